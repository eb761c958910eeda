"""A plan changes while timers wait, traffic runs and relays are killed: nothing is lost, left, repeated or buried.

As in a rolling deployment: new topics are made; relays and the consumer restart with the new plan, one after the other,
the relays by kill -9; producers go on with the old plan, and change last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.conftest import MakeStage
from tests.support.chaos_audit import AUDIT, count_dead_letters
from tests.support.chaos_conductor import Points
from tests.support.chaos_load import Load, Traffic
from tests.support.chaos_verdict import times_handled_and_never_early
from timewheel.core.plan import Calendar, Native, Ring, Scheme, Tiered, Wheel
from timewheel.provision import FormerTopics
from timewheel.provision.former_topics import RemovalStage, remove_drained
from timewheel.testing import eventually
from timewheel.testing.evidence.ledger import check

TIERS = Tiered(window_ms=2_000, tiers_ms=(2_000, 8_000))
OTHER_TIERS = Tiered(window_ms=3_000, tiers_ms=(3_000, 11_000))
BY_BROKER = Tiered(window_ms=3_000, tiers_ms=(3_000, 12_000), hold="broker")
RING = Wheel(rings=(Ring(slot_ms=4_000, slots=40),))
LONGER_RING = Wheel(rings=(Ring(slot_ms=5_000, slots=36),))
BY_MINUTE = Calendar(interval_ms=60_000)
GUARD_MS = 3_000
MAX_DELAY_MS = 120_000

CHANGES: dict[str, tuple[Scheme, Scheme, dict[str, Any]]] = {
    "other tiers": (TIERS, OTHER_TIERS, {}),
    "tiers to a ring": (TIERS, RING, {"revision": 2}),
    "a ring to tiers": (RING, TIERS, {}),
    "another ring": (RING, LONGER_RING, {}),
    "guard and window": (TIERS, replace(TIERS, window_ms=5_000), {"guard_ms": 4_000}),
    "relay-held to broker-held": (TIERS, BY_BROKER, {}),
    "broker-held to relay-held": (BY_BROKER, TIERS, {}),
    "tiers to native": (TIERS, Native(), {}),
    "native to tiers": (Native(), TIERS, {}),
    "tiers to a calendar": (TIERS, BY_MINUTE, {}),
    "a calendar to tiers": (BY_MINUTE, TIERS, {"former_intervals_ms": (60_000,)}),
    "max_delay down": (TIERS, TIERS, {"max_delay_ms": 30_000}),
    "a holding namespace": (TIERS, TIERS, {"holding_namespace": "public/held"}),
}
SHORT = "other tiers"
SIZES = {"short": (2_000, 3), "long": (20_000, 12)}  # timers that wait when the plan changes, and kills
PLAYS = [
    pytest.param(name, *size, id=f"{name}-{length}")
    for name in CHANGES
    for length, size in SIZES.items()
    if length == "long" or name == SHORT
]
BEFORE = {
    2_000: Traffic(burst=200, every_s=0.4, shortest_ms=14_000, longest_ms=26_000),
    20_000: Traffic(burst=400, every_s=0.4, shortest_ms=50_000, longest_ms=90_000),
}
AFTER = Traffic(burst=50, every_s=0.5, shortest_ms=8_000, longest_ms=25_000, limit=2_000)
POINTS: Points = {"before_forward": 400, "between_publish_confirmed_and_ack": 20, "after_ack": 20}
KILL_TIMEOUT_S = 300.0
FILL_TIMEOUT_S = 180.0
DRAIN_TIMEOUT_S = 300.0


@pytest.mark.proof
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(("name", "waiting", "kills"), PLAYS)
def test_a_plan_changes_under_way_and_nothing_is_lost_or_left_behind(
    stage: MakeStage, name: str, waiting: int, kills: int
) -> None:
    before, scheme, changed = CHANGES[name]
    on = stage(before, guard_ms=GUARD_MS, partitions=2, max_delay_ms=MAX_DELAY_MS)
    relays, consumer = [on.relay("relay-0", lists=True), on.relay("relay-1", lists=True)], on.consumer("consumer")
    consumer.start()
    loads: list[Load] = [on.load(BEFORE[waiting])]
    conductor = on.conductor(loads, victims=dict.fromkeys(relays, POINTS), steady=[consumer])
    conductor.calm(lambda: conductor.in_flight >= waiting, FILL_TIMEOUT_S, "timers that wait")

    on.change(replace(on.plan, scheme=scheme, **changed))
    consumer.end()  # who restarts has the new plan
    consumer.start()
    conductor.kill(kills, KILL_TIMEOUT_S)
    loads[0].stop()
    loads.append(on.load(AFTER, first_id=len(loads[0].sent)))
    conductor.kill(len(conductor.kills) + kills, KILL_TIMEOUT_S)
    on.drain(conductor, loads, DRAIN_TIMEOUT_S)

    totals = check(
        attempted=[timer_id for load in loads for timer_id in load.sent],
        acknowledged=[timer_id for load in loads for timer_id in load.confirmed()],
        handled=times_handled_and_never_early(conductor.events),
    )
    on.say(f"{name}: {conductor}")
    on.say(totals)
    assert totals.lost == 0, on.backlogs()
    assert (totals.duplicated, totals.unexpected) == (0, 0), totals
    assert count_dead_letters(on.client, on.plan) == 0

    for post in (*relays, consumer):
        post.kill()
    (removals,) = eventually(lambda: [_removed(on)], 60, poll=1.0, message="topics of the old plan")
    on.say(f"{len(removals)} topics of the old plan removed")
    assert FormerTopics(on.admin, on.plan)() == ()
    on.evidence(
        f"the plan changed: {name}",
        {
            "kills": len(conductor.kills),
            "timers": totals.acknowledged,
            "waited": waiting,
            "lost": totals.lost,
            "handled twice": totals.duplicated,
            "dead": 0,
            "old topics removed": len(removals),
        },
    )


def _removed(on: Any) -> tuple[Any, ...]:
    """What was removed, once nothing else is left; what is not drained yet is an error at the end."""
    for topic in FormerTopics(on.admin, on.plan)():
        if topic.is_due:
            on.admin.subscriptions.clear(topic.name, AUDIT)  # nobody reads that one
    removals = remove_drained(on.admin, on.plan, let_go_ms=5_000)
    assert {removal.stage for removal in removals} <= {RemovalStage.REMOVED}, [str(removal) for removal in removals]
    return removals

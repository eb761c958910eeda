"""The plan of a shadow changes while timers wait, and its service reads it anew: nothing is lost, repeated or left."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.broker.due_topic import now_ms
from tests.broker.relay_service import RelayProcess
from tests.broker.relay_stage import TIERED, plan_of
from tests.broker.shadow_stage import ShadowStage
from tests.broker.test_shadow_look import run, saved
from timewheel.core.durations import DAY_MS, HOUR_MS, SECOND_MS
from timewheel.core.former_topics import UndrainedTopics
from timewheel.core.plan import Ring, Tiered, Wheel
from timewheel.core.planfile import save_plan
from timewheel.inspect.status import Amount
from timewheel.provision import FormerTopics
from timewheel.provision.former_findings import left_behind
from timewheel.provision.provisioning import ensure
from timewheel.relay import Relay
from timewheel.shadow.draining import waiting
from timewheel.shadow.machine.audit import Place
from timewheel.shadow.machine.states import State, desired_in
from timewheel.shadow.overview_reading import overview_of
from timewheel.shadow.verification import Verification
from timewheel.shadow.verifying import verify
from timewheel.testing import Broker, eventually

RING = Wheel(rings=(Ring(slot_ms=2_000, slots=14, headstart_ms=500),))
EACH = 150
SHORTEST_MS, LONGEST_MS = 9_000, 18_000
CHANGES: dict[str, tuple[Any, dict[str, Any]]] = {
    "other tiers": (TIERED, {"scheme": Tiered(window_ms=2_000, tiers_ms=(2_000, 5_000))}),
    "tiers to a ring": (TIERED, {"scheme": RING, "revision": 2}),
    "a ring to tiers": (RING, {"scheme": TIERED}),
    "a larger guard": (TIERED, {"guard_ms": 1_500}),
    "more partitions": (TIERED, {"partitions": 4}),
}


def send(on: ShadowStage, names: range) -> None:
    # A producer of its own, which knows all partitions that there are now.
    producer = on.plain_producer()
    step_ms = (LONGEST_MS - SHORTEST_MS) // len(names)
    for place, number in enumerate(names):
        due_ms = now_ms() + SHORTEST_MS + place * step_ms
        producer.send_async(f"{number} {due_ms}".encode(), None, deliver_at=due_ms, partition_key=f"{number}")
    producer.flush()
    producer.close()


ALWAYS = {"other tiers", "more partitions"}


@pytest.mark.parametrize(
    ("scheme", "changed"),
    [
        pytest.param(*change, id=name, marks=() if name in ALWAYS else pytest.mark.proof)
        for name, change in CHANGES.items()
    ],
)
def test_a_plan_changes_while_lifted_timers_wait(
    pulsar_broker: Broker, tmp_path: Path, scheme: Any, changed: dict[str, Any]
) -> None:
    plan = plan_of(scheme, relay="service", readers="any", intake=True, partitions=2, max_delay_ms=20_000)
    with ShadowStage(pulsar_broker, plan) as on, RelayProcess(pulsar_broker, plan, tmp_path, kind="shadow") as service:
        on.desired(State.SHADOWING)
        service.await_ready()
        handling = [on.plain_consumer()]
        send(on, range(EACH))
        eventually(lambda: moved(service) >= EACH // 2, 60, message="timers are moved")

        new = replace(plan, **changed)
        if new.partitions != plan.partitions:
            on.admin.topics.update_partitions(plan.due_topic, new.partitions)
            told = eventually(lambda: service.told("shadow_misses_partitions"), 60)
            assert [(one["has"], one["plan"]) for one in told] == [(new.partitions, plan.partitions)]
        ensure(on.admin, new, now_ms=now_ms(), grow=True)
        save_plan(new, service.plan_file)
        service.hang_up()
        sessions = plan.partitions + new.partitions
        eventually(lambda: len(service.told("shadow_caught_up")) >= sessions, 60, message="movers with the new plan")
        if new.partitions != plan.partitions:
            handling.append(on.plain_consumer())  # the client looks for new partitions once a minute
        send(on, range(EACH, 2 * EACH))
        handled = {f"{number}" for number in range(2 * EACH)}
        eventually(lambda: {name for one in handling for name in one.handled} == handled, 60)

        assert sum(one.again for one in handling) == 0
        assert sum(len(one.handled) for one in handling) == len(handled), "each by one of them"
        early_ms = plan.tick_ms + 50
        assert min(late for one in handling for late in one.lateness_ms.values()) > -early_ms
        assert moved(service) >= EACH // 2, "of those that came after the change, too"
        eventually(lambda: waiting(on.admin, new) == 0, 60)


def moved(service: RelayProcess) -> int:
    """Copies that its movers have stored since they have their plan."""
    return sum(one["moved"] for one in service.status()["relays"][0]["shadow"]["movers"])


def test_a_plan_without_its_intake_is_refused_until_the_intake_is_empty(pulsar_broker: Broker) -> None:
    """As the way in ends: the last plain producer is gone, and relays move on what waits."""
    plan = plan_of(relay="service", readers="any", intake=True, max_delay_ms=40_000)
    without = replace(plan, intake=False)
    with ShadowStage(pulsar_broker, plan) as on:
        on.desired(State.SHADOWING)
        consumer, shadow = on.plain_consumer(), on.shadow(hold_ms=100)
        producer, due_ms = on.plain_producer(), now_ms() + 25_000
        for number in range(EACH):
            producer.send_async(f"{number} {due_ms}".encode(), None, deliver_at=due_ms)
        producer.flush()
        eventually(lambda: shadow.shadow_status().acked_originals == EACH, 60)
        former = FormerTopics(on.admin, without)
        with pytest.raises(UndrainedTopics, match="keep timewheel shadow run PLAN going"):
            ensure(on.admin, without, now_ms=now_ms())

        eventually(lambda: not left_behind(without, former()), 60, message="the journal is let go")
        shadow.stop()
        ensure(on.admin, without, now_ms=now_ms())
        relay = Relay(on.client, without, hooks=(on.events,), former_topics=former).start()
        try:
            assert now_ms() < due_ms, "relays take over while timers wait"
            eventually(lambda: len(consumer.handled) == EACH, 60)
        finally:
            relay.stop(5_000)
        assert consumer.again == 0


def test_what_waits_in_a_former_tier_is_seen_and_comes_back_by_an_abort_alone(
    pulsar_broker: Broker, tmp_path: Path
) -> None:
    """Nobody runs `shadow run` after the change: the looks are what one runs then, and the abort drains it itself."""
    before = Tiered(window_ms=10 * SECOND_MS, tiers_ms=(10 * SECOND_MS, HOUR_MS))
    plan = plan_of(before, relay="service", readers="any", intake=True, partitions=2, max_delay_ms=2 * DAY_MS)
    new = replace(plan, scheme=replace(before, tiers_ms=(10 * SECOND_MS, 2 * HOUR_MS)))
    with ShadowStage(pulsar_broker, plan) as on:
        on.desired(State.SHADOWING)
        on.plain_consumer()
        shadow, producer, due_ms = on.shadow(), on.plain_producer(), now_ms() + 5 * HOUR_MS
        for number in range(EACH):
            producer.send_async(b"x", None, deliver_at=due_ms + number, partition_key=f"{number}")
        producer.flush()
        eventually(lambda: shadow.shadow_status().acked_originals == EACH, 60)
        eventually(
            lambda: places(verify(on.admin, on.dialer, plan))[Place.HOLDING] == EACH,
            20,
            message="in the tier of an hour",
        )
        shadow.stop()
        ensure(on.admin, new, now_ms=now_ms())

        tier = on.tiers[0]
        assert tier.endswith(".tier-1h")
        found = verify(on.admin, on.dialer, new)
        assert found.is_balanced, found.wrong
        assert (found.unread, found.missing) == ((), ())
        assert places(found)[Place.HOLDING] == EACH
        held = overview_of(on.admin, on.dialer, new)
        assert [*held.former] == [tier]
        assert not held.holding
        assert held.timers == {tier: Amount(float(EACH))}, "of fewer entries, in batches"
        assert held.former[tier] <= EACH
        plan_file = saved(new, tmp_path)
        assert "Held by an earlier plan's topics" in run(pulsar_broker, "status", plan_file).stdout
        assert waiting(on.admin, new) > 0

        done = run(pulsar_broker, "abort", plan_file)
        assert done.returncode == 0, done.stderr
        assert desired_in(on.admin.topics.properties(on.names.journal)).state is State.NATIVE
        assert places(verify(on.admin, on.dialer, new))[Place.DUE] == EACH
        assert waiting(on.admin, new) == 0
        assert not overview_of(on.admin, on.dialer, new).former


def places(found: Verification) -> Counter[Place]:
    """Where the journal's copies are."""
    counts: Counter[Place] = Counter()
    for part in found.parts:
        counts.update(part.places)
    return counts

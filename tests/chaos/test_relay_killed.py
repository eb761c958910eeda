"""Relays killed with -9, frozen, and their topics unloaded: nothing lost, and no extra copy of on-time hops.

A hop of a tier under the broker's delay has no sequence id, so there copies are allowed; handlers see none of them. The
hops of a slot have one, but for what is filed again at its tail (broker-facts: slot-sweep), which counts as the late
lane does.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping

import pytest

from tests.chaos.conftest import MakeStage
from tests.support.chaos_conductor import Points
from tests.support.chaos_load import Traffic
from tests.support.chaos_stage import Stage
from tests.support.chaos_verdict import keeps_every_promise
from timewheel.core.plan import Ring, Scheme, Tiered, Wheel
from timewheel.core.topology import topology

KILLS = {"short": 6, "long": 22}  # one relay dies at five points in turn. The proof's kills are four rounds of that.
DISTURBANCES = {6: 1, 22: 5}  # unloads, and freezes, that go with so many kills
KILL_TIMEOUT_S = 400.0
DRAIN_TIMEOUT_S = 180.0
LEAST_IN_FLIGHT = 500
LEAST_ON_TIME = 1_000  # not a claim about lanes: so many timers at least were looked at for extra copies

TIERS = Tiered(window_ms=2_000, tiers_ms=(1_000, 3_000))
GUARD_MS = 12_000
"""Longer than a relay is usually away, so that most hops stay on time; shorter than a freeze, so that some do not."""
TRAFFIC = Traffic(burst=100, every_s=0.5, shortest_ms=15_000, longest_ms=27_000)
"""200 a second for 21 s on average: 4,200 in flight, each with one to five hops."""

RELAY_POINTS: Points = {
    "at_takeover": 4,
    "before_forward": 2_000,
    "between_publish_confirmed_and_ack": 60,
    "after_ack": 60,
}
"""Passes: a relay's life of some seconds sees about so many."""


def relays_killed(
    on: Stage,
    proof: str,
    *,
    relays: int,
    kills: int,
    traffic: Traffic = TRAFFIC,
    points: Points = RELAY_POINTS,
    each_point: bool = True,
    unloaded: Collection[str] = (),
    disturbances: Mapping[str, int] | None = None,
    in_flight: int = 4 * LEAST_IN_FLIGHT,
    least_on_time: int = LEAST_ON_TIME,
) -> None:
    """Kill relays under a living consumer, disturb, drain and judge.

    Args:
        on: The stage.
        proof: Name of the row of evidence.
        relays: How many.
        kills: How many.
        traffic: The load.
        points: Where relays are killed.
        each_point: Whether at least one is killed at each point.
        unloaded: The topics that "unload" takes one of.
        disturbances: The least number of each.
        in_flight: So many timers are in flight before the first kill.
        least_on_time: So many timers at least arrived by on-time hops alone.
    """
    wanted, topics = disturbances or {}, list(unloaded)

    def unload(choices: random.Random) -> None:
        on.admin.topics.unload(choices.choice(topics))

    posts, consumer = [on.relay(f"relay-{number}") for number in range(relays)], on.consumer("consumer")
    consumer.start()
    load = on.load(traffic)
    conductor = on.conductor(
        load,
        victims=dict.fromkeys(posts, points),
        steady=[consumer],
        disturbances={"unload": unload} if topics else {},
        stops_s=(1.0, 2.0, 8.0) if "SIGSTOP" in wanted else (),
    )
    conductor.calm(lambda: conductor.in_flight >= in_flight, 120.0, "timers in flight")

    conductor.kill(kills, KILL_TIMEOUT_S, points=points if each_point else ())
    for name, count in wanted.items():
        conductor.disturb(name, count, KILL_TIMEOUT_S)
    on.drain(conductor, load, DRAIN_TIMEOUT_S)

    verdict = on.shown_verdict(conductor, load)
    # A broker-held hop has no sequence id, so there copies are allowed.
    keeps_every_promise(verdict, reloads=conductor.disturbed["unload"], copies=on.plan.holds_in_relay)
    assert conductor.least_in_flight >= LEAST_IN_FLIGHT
    assert verdict.copies.on_time >= least_on_time
    names = {"SIGSTOP": "freezes", "unload": "unloads"}
    done = {names[name]: conductor.disturbed[name] for name in sorted(wanted)}
    on.evidence(proof, {"kills": len(conductor.kills), **done, **verdict.figures})


@pytest.mark.timeout(900)
@pytest.mark.proof
@pytest.mark.parametrize("kills", KILLS.values(), ids=KILLS)
def test_one_relay_killed_at_any_moment_loses_nothing_and_leaves_no_extra_copy(stage: MakeStage, kills: int) -> None:
    relays_killed(stage(TIERS, guard_ms=GUARD_MS, partitions=2), "one relay killed", relays=1, kills=kills)


@pytest.mark.proof
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", KILLS.values(), ids=KILLS)
def test_three_relays_killed_frozen_and_unloaded_lose_nothing_and_leave_no_extra_copy(
    stage: MakeStage, kills: int
) -> None:
    on = stage(TIERS, guard_ms=GUARD_MS, partitions=4)
    relays_killed(
        on,
        "three relays killed, frozen and unloaded",
        relays=3,
        kills=kills,
        unloaded=[spec.name for spec in topology(on.plan, 0).topics if spec.role != "dead_letter"],
        disturbances=dict.fromkeys(("unload", "SIGSTOP"), DISTURBANCES[kills]),
    )


UNLOADS = {4: 1, 20: 5}


@pytest.mark.timeout(900)
@pytest.mark.proof
@pytest.mark.parametrize("kills", UNLOADS, ids=KILLS)
def test_two_relays_killed_and_their_due_topic_without_partitions_unloaded_lose_and_repeat_nothing(
    stage: MakeStage, kills: int
) -> None:
    on = stage(TIERS, guard_ms=GUARD_MS, partitions=0)
    relays_killed(
        on,
        "two relays killed, a due topic without partitions unloaded",
        relays=2,
        kills=kills,
        each_point=False,
        unloaded=[on.plan.due_topic],
        disturbances={"unload": UNLOADS[kills]},
    )
    assert on.admin.topics.partitions(on.plan.due_topic) == 0


SCHEMES: dict[str, Scheme] = {
    "broker-held tiers": Tiered(window_ms=2_000, tiers_ms=(1_000, 3_000), hold="broker"),
    # 2 s slots, each turn 32 s: most timers wait in a slot, are swept a second before it begins, and some come late.
    "one ring": Wheel(rings=(Ring(slot_ms=2_000, slots=16, headstart_ms=1_000),)),
    # Day slots over hour slots, at 1:10,800: 8 s slots hop into 1 s slots.
    "two rings": Wheel(
        rings=(Ring(slot_ms=1_000, slots=14, headstart_ms=500), Ring(slot_ms=8_000, slots=6, headstart_ms=2_000))
    ),
}


@pytest.mark.proof
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [3, 10], ids=KILLS)
@pytest.mark.parametrize("name", SCHEMES)
def test_two_relays_of_other_schemes_killed_at_any_moment_lose_nothing(stage: MakeStage, name: str, kills: int) -> None:
    relays_killed(
        stage(SCHEMES[name], guard_ms=1_000, partitions=1, max_delay_ms=24_000),
        f"two relays killed, {name}",
        relays=2,
        kills=kills,
        traffic=Traffic(burst=80, every_s=0.5, shortest_ms=6_000, longest_ms=16_000),
        points={"before_forward": 400, "between_publish_confirmed_and_ack": 20, "after_ack": 20},
        each_point=False,
        in_flight=2 * LEAST_IN_FLIGHT,
        least_on_time=0,
    )

"""Relays killed with -9, frozen, and their topics unloaded: nothing lost, and no extra copy of on-time hops."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.support.chaos_conductor import Points
from tests.support.chaos_load import Traffic
from tests.support.chaos_verdict import keeps_every_promise
from timewheel.core.plan import Tiered
from timewheel.core.topology import topology

if TYPE_CHECKING:
    from tests.chaos.conftest import MakeStage
    from tests.conftest import Evidence
    from timewheel.testing import LocalPulsar

KILLS = {"short": 6, "long": 22}
"""One relay dies at five points in turn. The proof's kills are four rounds of that."""
DISTURBANCES = {6: 1, 22: 5}
"""Unloads, and freezes, that go with so many kills."""
KILL_TIMEOUT_S = 400.0
DRAIN_TIMEOUT_S = 180.0
LEAST_IN_FLIGHT = 500
LEAST_ON_TIME = 1_000
"""Not a claim about lanes: so many timers at least were looked at for extra copies."""

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


@pytest.mark.timeout(900)
@pytest.mark.proof
@pytest.mark.parametrize("kills", KILLS.values(), ids=KILLS)
def test_one_relay_killed_at_any_moment_loses_nothing_and_leaves_no_extra_copy(
    chaos_broker: LocalPulsar,
    stage: MakeStage,
    kills: int,
    evidence: Evidence,
) -> None:
    on = stage(chaos_broker, TIERS, guard_ms=GUARD_MS, partitions=2)
    relay, consumer = on.relay("relay-0"), on.consumer("consumer")
    consumer.start()
    load = on.load(TRAFFIC)
    conductor = on.conductor(load, victims={relay: RELAY_POINTS}, steady=[consumer])
    conductor.calm(lambda: conductor.in_flight >= 4 * LEAST_IN_FLIGHT, 120.0, "timers in flight")

    conductor.kill(kills, KILL_TIMEOUT_S, points=RELAY_POINTS)
    on.drain(conductor, load, DRAIN_TIMEOUT_S)

    verdict = on.shown_verdict(conductor, load)
    keeps_every_promise(verdict)
    assert {kill.point for kill in conductor.kills} >= set(RELAY_POINTS)
    assert min(kill.in_flight for kill in conductor.kills) >= LEAST_IN_FLIGHT
    assert verdict.copies.on_time >= LEAST_ON_TIME
    evidence("one relay killed", {"kills": len(conductor.kills), **verdict.figures}, seed=on.seed)


@pytest.mark.proof
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", KILLS.values(), ids=KILLS)
def test_three_relays_killed_frozen_and_unloaded_lose_nothing_and_leave_no_extra_copy(
    chaos_broker: LocalPulsar,
    stage: MakeStage,
    kills: int,
    evidence: Evidence,
) -> None:
    on = stage(chaos_broker, TIERS, guard_ms=GUARD_MS, partitions=4)
    relays, consumer = [on.relay(f"relay-{number}") for number in range(3)], on.consumer("consumer")
    topics = [spec.name for spec in topology(on.plan, 0).topics if spec.role != "dead_letter"]

    def unload(choices: random.Random) -> None:
        on.admin.topics.unload(choices.choice(topics))

    consumer.start()
    load = on.load(TRAFFIC)
    conductor = on.conductor(
        load,
        victims=dict.fromkeys(relays, RELAY_POINTS),
        steady=[consumer],
        disturbances={"unload": unload},
        stops_s=(1.0, 2.0, 8.0),
    )
    conductor.calm(lambda: conductor.in_flight >= 4 * LEAST_IN_FLIGHT, 120.0, "timers in flight")

    conductor.kill(kills, KILL_TIMEOUT_S, points=RELAY_POINTS)
    conductor.disturb("unload", DISTURBANCES[kills], KILL_TIMEOUT_S)
    conductor.disturb("SIGSTOP", DISTURBANCES[kills], KILL_TIMEOUT_S)
    on.drain(conductor, load, DRAIN_TIMEOUT_S)

    verdict = on.shown_verdict(conductor, load)
    keeps_every_promise(verdict, reloads=conductor.disturbed["unload"])
    assert {kill.point for kill in conductor.kills} >= set(RELAY_POINTS)
    assert min(kill.in_flight for kill in conductor.kills) >= LEAST_IN_FLIGHT
    assert verdict.copies.on_time >= LEAST_ON_TIME
    evidence(
        "three relays killed, frozen and unloaded",
        {
            "kills": len(conductor.kills),
            "freezes": conductor.disturbed["SIGSTOP"],
            "unloads": conductor.disturbed["unload"],
            **verdict.figures,
        },
        seed=on.seed,
    )

"""Relays killed with -9 around a due topic without partitions, which is unloaded too: nothing lost."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.support.chaos_conductor import Points
from tests.support.chaos_load import Traffic
from tests.support.chaos_verdict import keeps_every_promise
from timewheel.core.plan import Tiered

if TYPE_CHECKING:
    from tests.chaos.conftest import MakeStage
    from tests.conftest import Evidence
    from timewheel.testing import LocalPulsar

KILLS = {"short": 4, "long": 20}
UNLOADS = {4: 1, 20: 5}
KILL_TIMEOUT_S = 400.0
DRAIN_TIMEOUT_S = 180.0
LEAST_IN_FLIGHT = 500
LEAST_ON_TIME = 1_000
"""So many timers at least were looked at for extra copies."""

TIERS = Tiered(window_ms=2_000, tiers_ms=(1_000, 3_000))
GUARD_MS = 12_000
TRAFFIC = Traffic(burst=100, every_s=0.5, shortest_ms=15_000, longest_ms=27_000)
POINTS: Points = {
    "at_takeover": 4,
    "before_forward": 2_000,
    "between_publish_confirmed_and_ack": 60,
    "after_ack": 60,
}


@pytest.mark.timeout(900)
@pytest.mark.proof
@pytest.mark.parametrize("kills", KILLS.values(), ids=KILLS)
def test_two_relays_killed_and_their_due_topic_without_partitions_unloaded_lose_and_repeat_nothing(
    chaos_broker: LocalPulsar,
    stage: MakeStage,
    kills: int,
    evidence: Evidence,
) -> None:
    on = stage(chaos_broker, TIERS, guard_ms=GUARD_MS, partitions=0)
    relays, consumer = [on.relay("relay-0"), on.relay("relay-1")], on.consumer("consumer")

    def unload(_: random.Random) -> None:
        on.admin.topics.unload(on.plan.due_topic)

    consumer.start()
    load = on.load(TRAFFIC)
    conductor = on.conductor(
        load, victims=dict.fromkeys(relays, POINTS), steady=[consumer], disturbances={"unload": unload}
    )
    conductor.calm(lambda: conductor.in_flight >= 4 * LEAST_IN_FLIGHT, 120.0, "timers in flight")

    conductor.kill(kills, KILL_TIMEOUT_S)
    conductor.disturb("unload", UNLOADS[kills], KILL_TIMEOUT_S)
    on.drain(conductor, load, DRAIN_TIMEOUT_S)

    verdict = on.shown_verdict(conductor, load)
    keeps_every_promise(verdict, reloads=conductor.disturbed["unload"])
    assert min(kill.in_flight for kill in conductor.kills) >= LEAST_IN_FLIGHT
    assert verdict.copies.on_time >= LEAST_ON_TIME
    assert on.admin.topics.partitions(on.plan.due_topic) == 0
    evidence(
        "two relays killed, a due topic without partitions unloaded",
        {"kills": len(conductor.kills), "unloads": conductor.disturbed["unload"], **verdict.figures},
        seed=on.seed,
    )

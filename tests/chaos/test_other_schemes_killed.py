"""Relays of the other schemes killed with -9: tiers under the broker's delay, and slots of a ring.

Both lose nothing. A broker-held hop has no sequence id, so there copies are allowed; handlers see none of them. The
hops of a slot have one, but for what is filed again at its tail (broker-facts: slot-sweep), which counts as the late
lane does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.chaos_conductor import Points
from tests.support.chaos_load import Traffic
from tests.support.chaos_verdict import Verdict, keeps_every_promise
from timewheel.core.plan import Ring, Scheme, Tiered, Wheel

if TYPE_CHECKING:
    from tests.chaos.conftest import MakeStage
    from tests.conftest import Evidence
    from timewheel.testing import LocalPulsar

KILLS = {"short": 3, "long": 10}
KILL_TIMEOUT_S = 300.0
DRAIN_TIMEOUT_S = 180.0
LEAST_IN_FLIGHT = 500
GUARD_MS = 1_000
TRAFFIC = Traffic(burst=80, every_s=0.5, shortest_ms=6_000, longest_ms=16_000)

SCHEMES: dict[str, Scheme] = {
    "broker-held tiers": Tiered(window_ms=2_000, tiers_ms=(1_000, 3_000), hold="broker"),
    # 2 s slots, each turn 32 s: most timers wait in a slot, are swept a second before it begins, and some come late.
    "one ring": Wheel(rings=(Ring(slot_ms=2_000, slots=16, headstart_ms=1_000),)),
    # Day slots over hour slots, at 1:10,800: 8 s slots hop into 1 s slots.
    "two rings": Wheel(
        rings=(Ring(slot_ms=1_000, slots=14, headstart_ms=500), Ring(slot_ms=8_000, slots=6, headstart_ms=2_000))
    ),
}
PLAYS = [
    pytest.param(name, kills, id=f"{name}-{length}", marks=pytest.mark.proof)
    for name in SCHEMES
    for length, kills in KILLS.items()
]
POINTS: Points = {
    "before_forward": 400,
    "between_publish_confirmed_and_ack": 20,
    "after_ack": 20,
}


def loses_and_repeats_nothing(verdict: Verdict) -> None:
    assert verdict.totals.lost == 0, verdict
    assert verdict.totals.duplicated == 0, verdict
    assert verdict.totals.unexpected == 0, verdict
    assert verdict.early == 0, verdict
    assert verdict.copies.dead_letters == 0, verdict


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "kills"), PLAYS)
def test_two_relays_killed_at_any_moment_lose_nothing(
    chaos_broker: LocalPulsar,
    stage: MakeStage,
    name: str,
    kills: int,
    evidence: Evidence,
) -> None:
    on = stage(chaos_broker, SCHEMES[name], guard_ms=GUARD_MS, partitions=1, max_delay_ms=24_000)
    relays, consumer = [on.relay("relay-0"), on.relay("relay-1")], on.consumer("consumer")
    consumer.start()
    load = on.load(TRAFFIC)
    conductor = on.conductor(load, victims=dict.fromkeys(relays, POINTS), steady=[consumer])
    conductor.calm(lambda: conductor.in_flight >= 2 * LEAST_IN_FLIGHT, 120.0, "timers in flight")

    conductor.kill(kills, KILL_TIMEOUT_S)
    on.drain(conductor, load, DRAIN_TIMEOUT_S)

    on.say(name)
    verdict = on.shown_verdict(conductor, load)
    if on.plan.holds_in_relay:
        keeps_every_promise(verdict)
    else:
        loses_and_repeats_nothing(verdict)
    assert min(kill.in_flight for kill in conductor.kills) >= LEAST_IN_FLIGHT
    evidence(f"two relays killed, {name}", {"kills": len(conductor.kills), **verdict.figures}, seed=on.seed)

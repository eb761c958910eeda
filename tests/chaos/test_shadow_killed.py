"""Shadows killed with -9 behind plain clients, topics unloaded, brokers killed: nothing is lost or repeated."""

from __future__ import annotations

import time

import pytest

from tests.chaos.conftest import MakePlay
from tests.support.chaos_stage import QUICK_TAKEOVER
from tests.support.shadow_play import PlainTraffic, shadow_plan
from timewheel.core.plan import Tiered
from timewheel.testing import eventually
from timewheel.testing.plugin import MakeLocalPulsar

KILLS = {"short": 4, "long": 70}
KILLS_PER_UNLOAD = 5
TIERS = Tiered(window_ms=2_000, tiers_ms=(1_000, 3_000))
GUARD_MS = 12_000
"""Above what any takeover takes here: the longest outage that the promise covers is that and the longest due stay."""
TRAFFIC = PlainTraffic(rate=150, shortest_ms=500, longest_ms=45_000)


@pytest.mark.timeout(1_500)
@pytest.mark.proof
@pytest.mark.parametrize("kills", KILLS.values(), ids=KILLS)
@pytest.mark.parametrize("partitions", [0, 2])
def test_two_shadows_killed_and_their_topics_unloaded_lose_and_repeat_nothing(
    shadow_play: MakePlay, partitions: int, kills: int
) -> None:
    play = shadow_play(shadow_plan(GUARD_MS, TIERS, partitions=partitions))
    play.consume()
    play.mover("mover-0")
    play.mover("mover-1")
    play.watch_movers()
    play.watch_gaps()
    play.send(TRAFFIC)
    unloads = 0
    for _ in range(0, kills, KILLS_PER_UNLOAD):
        play.kill_movers(min(KILLS_PER_UNLOAD, kills), pause_s=(0.3, 2.0))
        play.unload()
        unloads += 1
    play.send_no_more()
    play.drained(120)

    verdict = play.verdict_of_clients()
    play.say(f"{verdict}, nobody was ready for {play.longest_outage_ms} ms at most")
    assert (verdict.lost, verdict.unexpected, verdict.early) == (0, 0, 0)
    assert play.longest_outage_ms < GUARD_MS, "the machine is too slow for this play"
    assert verdict.copies == 0
    more = {"most gaps": play.peak_gaps, "longest outage ms": play.longest_outage_ms}
    play.evidence(
        f"two shadows killed, a topic {'of 2 partitions' if partitions else 'without partitions'} unloaded",
        {"kills": kills, "unloads": unloads, **verdict.figures, **more},
    )


BROKER_KILLS = {"long": 4}
LONG_GUARD_MS = 60_000
"""A broker's kill -9 loses acknowledgements of up to a minute: what was acknowledged in it must not be due before it
is back and they are made good."""


@pytest.mark.timeout(1_500)
@pytest.mark.proof
@pytest.mark.parametrize("kills", BROKER_KILLS.values(), ids=BROKER_KILLS)
def test_a_broker_killed_behind_plain_clients_and_a_shadow_costs_no_timer_and_no_copy(
    make_local_pulsar: MakeLocalPulsar, shadow_play: MakePlay, kills: int
) -> None:
    broker = make_local_pulsar(config=QUICK_TAKEOVER)
    play = shadow_play(shadow_plan(LONG_GUARD_MS, TIERS), broker=broker)
    play.consume()
    mover = play.mover("mover-0")
    play.watch_gaps()
    play.send(PlainTraffic(rate=100, shortest_ms=500, longest_ms=130_000))
    for _ in range(kills):
        eventually(lambda: mover.is_ready, 180, message="the shadow is ready")
        time.sleep(play.rng.uniform(8, 16))
        away_s = play.rng.uniform(0, 3)
        broker.kill()
        time.sleep(away_s)
        broker.start()
    play.send_no_more()
    play.drained(240)

    verdict = play.verdict_of_clients()
    play.say(verdict)
    assert (verdict.lost, verdict.unexpected, verdict.copies, verdict.early) == (0, 0, 0, 0)
    play.evidence("the broker of a shadow killed", {"kills": kills, **verdict.figures})

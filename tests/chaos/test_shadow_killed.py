"""Shadows killed with -9 behind plain clients, topics unloaded, brokers killed: nothing is lost or repeated."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.chaos_stage import QUICK_TAKEOVER
from tests.support.shadow_play import PlainTraffic, ShadowPlay
from timewheel.core.plan import Plan, Tiered
from timewheel.testing import eventually

if TYPE_CHECKING:
    from tests.conftest import Evidence
    from timewheel.testing import LocalPulsar
    from timewheel.testing.plugin import MakeLocalPulsar

KILLS = {"short": 4, "long": 70}
KILLS_PER_UNLOAD = 5
TIERS = Tiered(window_ms=2_000, tiers_ms=(1_000, 3_000))
GUARD_MS = 12_000
"""Above what any takeover takes here: the longest outage that the promise covers is that and the longest due stay."""
TRAFFIC = PlainTraffic(rate=150, shortest_ms=500, longest_ms=45_000)


def shadow_plan(guard_ms: int = GUARD_MS, *, partitions: int = 0, scheme: Tiered = TIERS) -> Plan:
    return Plan(
        due_topic=f"persistent://public/default/shadowed-{uuid.uuid4().hex[:8]}",
        subscriptions=("billing",),
        scheme=scheme,
        partitions=partitions,
        guard_ms=guard_ms,
        max_delay_ms=600_000,
        relay="service",
        readers="any",
        intake=True,
    )


@pytest.mark.timeout(1_500)
@pytest.mark.proof
@pytest.mark.parametrize("kills", KILLS.values(), ids=KILLS)
@pytest.mark.parametrize("partitions", [0, 2])
def test_two_shadows_killed_and_their_topics_unloaded_lose_and_repeat_nothing(
    chaos_broker: LocalPulsar,
    tmp_path: Path,
    partitions: int,
    kills: int,
    seed: int,
    say: Callable[[object], None],
    evidence: Evidence,
) -> None:
    with ShadowPlay(chaos_broker, shadow_plan(partitions=partitions), tmp_path, seed) as play:
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

        verdict = play.verdict()
        say(f"{verdict}, nobody was ready for {play.longest_outage_ms} ms at most")
        assert (verdict.lost, verdict.unexpected, verdict.early) == (0, 0, 0)
        assert play.longest_outage_ms < GUARD_MS, "the machine is too slow for this play"
        assert verdict.copies == 0
        evidence(
            f"two shadows killed, a topic {'of 2 partitions' if partitions else 'without partitions'} unloaded",
            {
                "kills": kills,
                "unloads": unloads,
                **verdict.figures,
                "most gaps": play.peak_gaps,
                "longest outage ms": play.longest_outage_ms,
            },
            seed=seed,
        )


BROKER_KILLS = {"long": 4}
LONG_GUARD_MS = 60_000
"""A broker's kill -9 loses acknowledgements of up to a minute: what was acknowledged in it must not be due before it
is back and they are made good."""


@pytest.mark.timeout(1_500)
@pytest.mark.proof
@pytest.mark.parametrize("kills", BROKER_KILLS.values(), ids=BROKER_KILLS)
def test_a_broker_killed_behind_plain_clients_and_a_shadow_costs_no_timer_and_no_copy(
    make_local_pulsar: MakeLocalPulsar,
    tmp_path: Path,
    kills: int,
    seed: int,
    say: Callable[[object], None],
    evidence: Evidence,
) -> None:
    broker = make_local_pulsar(config=QUICK_TAKEOVER)
    with ShadowPlay(broker, shadow_plan(LONG_GUARD_MS, partitions=1), tmp_path, seed) as play:
        play.consume()
        mover = play.mover("mover-0")
        play.watch_gaps()
        play.send(PlainTraffic(rate=100, shortest_ms=500, longest_ms=130_000))
        for _ in range(kills):
            eventually(lambda: mover.is_ready, 180, message="the shadow is ready")
            time.sleep(play.rng.uniform(8, 16))
            play.kill_broker(away_s=play.rng.uniform(0, 3))
        play.send_no_more()
        play.drained(240)

        verdict = play.verdict()
        say(verdict)
        assert (verdict.lost, verdict.unexpected, verdict.copies, verdict.early) == (0, 0, 0, 0)
        evidence("the broker of a shadow killed", {"kills": kills, **verdict.figures}, seed=seed)

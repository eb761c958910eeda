"""The same traffic of plain clients on two topics, one with a shadow: gaps, what an unload brings again, lateness."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from tests.chaos.conftest import MakePlay
from tests.support.chaos_ledger import now_ms
from tests.support.shadow_play import PlainTraffic, Verdict, shadow_plan
from timewheel.core.plan import Native, Tiered
from timewheel.core.steps import far_ms
from timewheel.testing import eventually
from timewheel.testing.plugin import MakeLocalPulsar


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """How large it is."""

    day_ms: int  # a day of the plan: five of them are the long tier, thirty the longest delay
    rate: int  # timers a second on each topic
    send_s: int  # for how long
    limit: int  # ranges that the broker keeps
    share: float  # what of the native gaps is left at most


PLAYS = {
    "short": Play(day_ms=1_500, rate=170, send_s=24, limit=200, share=0.25),
    "long": Play(day_ms=3_000, rate=667, send_s=60, limit=1_000, share=0.1),
}


@pytest.mark.timeout(900)
@pytest.mark.proof
@pytest.mark.parametrize("play", PLAYS.values(), ids=PLAYS)
def test_a_shadow_leaves_a_tenth_of_the_gaps_and_an_unload_brings_nothing_again(
    make_local_pulsar: MakeLocalPulsar, shadow_play: MakePlay, play: Play
) -> None:
    config = {
        "managedLedgerMaxUnackedRangesToPersist": str(play.limit),
        # As bitmaps, 4.2's default, so few in one ledger are kept whole (broker-facts: persisted-ranges).
        "managedLedgerPersistIndividualAckAsLongArray": "false",
    }
    broker = make_local_pulsar(config=config)
    day_ms = play.day_ms
    guard_ms, longest_ms = day_ms // 3, 31 * day_ms
    tiers = Tiered(window_ms=day_ms, tiers_ms=(day_ms, 5 * day_ms))
    plans = {
        "native": shadow_plan(guard_ms, Native(), max_delay_ms=longest_ms, intake=False),
        "shadow": shadow_plan(guard_ms, tiers, max_delay_ms=longest_ms),
    }
    sides = {name: shadow_play(plan, broker=broker) for name, plan in plans.items()}
    mover = sides["shadow"].mover("mover")
    eventually(lambda: mover.is_ready, 60)
    for one in sides.values():
        one.consume()
        one.watch_gaps()
        one.send(PlainTraffic(rate=play.rate, shortest_ms=100, longest_ms=30 * day_ms))
    time.sleep(play.send_s * 0.75)
    for one in sides.values():
        one.unloaded_ms = now_ms()
        one.admin.topics.unload(one.plan.due_topic)
    time.sleep(play.send_s * 0.25)
    for one in sides.values():
        one.send_no_more()
    for one in sides.values():
        one.drained(60 + 30 * day_ms / 1_000)
    found: dict[str, Verdict] = {name: one.verdict_of_clients() for name, one in sides.items()}
    native, shadow = found["native"], found["shadow"]
    most = {name: one.peak_gaps for name, one in sides.items()}
    sides["shadow"].say(f"{most} {found}")
    assert (native.lost, shadow.lost) == (0, 0)
    assert native.forgotten > play.limit, "the unload hurts where there is no shadow"
    # A shadow that was as late as this could not keep the few gaps by which it keeps the rest (docs: shadows).
    if shadow.late_max_ms < far_ms(sides["shadow"].plan) // 2:
        assert most["shadow"] < min(play.share * most["native"], play.limit)
        assert (shadow.copies, shadow.forgotten) == (0, 0)
    sides["shadow"].evidence(
        "plain clients, one unload: native against shadow",
        {
            "timers on each": native.sent,
            "most gaps": f"{most['native']:,} / {most['shadow']:,}",
            "handled again": f"{native.forgotten:,} / {shadow.forgotten + shadow.copies:,}",
            "acknowledgements under way": f"{native.redelivered - native.forgotten} / {shadow.redelivered}",
            "sent again by the client": f"{native.sent_again} / {shadow.sent_again}",
            "lost": f"{native.lost} / {shadow.lost}",
            "p99 late ms": f"{native.late_p99_ms} / {shadow.late_p99_ms}",
            "latest ms": f"{native.late_max_ms} / {shadow.late_max_ms}",
        },
    )

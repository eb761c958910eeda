"""Timers are cancelled while relays and consumers are killed and frozen, and topics move: certain is certain."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.chaos.conftest import MakeStage
from tests.support.chaos_cancels import Cancels
from tests.support.chaos_conductor import Conductor, Points, Post
from tests.support.chaos_load import Traffic
from tests.support.chaos_stage import Stage
from tests.support.chaos_verdict import Verdict, keeps_every_promise
from timewheel.core.names import CANCELLATIONS_SUBSCRIPTION, Names
from timewheel.core.plan import Cancel, Tiered

KILLS = {"short": 5, "long": 50}
UNLOADS = {5: 2, 50: 10}
FREEZES = {5: 1, 50: 6}
KILL_TIMEOUT_S = 900.0
DRAIN_TIMEOUT_S = 180.0
LEAST_CERTAIN = 300

TIERS = Tiered(window_ms=2_000, tiers_ms=(1_000, 3_000))
GUARD_MS = 12_000
TRAFFIC = Traffic(burst=60, every_s=0.5, shortest_ms=15_000, longest_ms=27_000)
RELAY_POINTS: Points = {"before_forward": 1_000, "between_publish_confirmed_and_ack": 60, "after_ack": 60}
CONSUMER_POINTS: Points = {"in_handler": 200, "between_handled_and_ack": 200, "after_ack": 200}


def figures(verdict: Verdict, conductor: Conductor, cancels: Cancels) -> Mapping[str, object]:
    return {
        "kills": len(conductor.kills),
        **verdict.figures,
        "certain": len(cancels.certain),
        "certain yet handed": len(cancels.certain & conductor.handled),
    }


def killed(
    on: Stage, victims: Sequence[Post], points: Points, kills: int, least: Mapping[str, int], **options: Any
) -> tuple[Conductor, Cancels, Verdict]:
    """Cancel, kill, disturb so often at least, drain and judge; what is certain was not handed out."""
    cancels = Cancels(on.client, on.plan, on.seed)
    load = on.load(TRAFFIC, stored=cancels)
    conductor = on.conductor(load, victims=dict.fromkeys(victims, points), **options)
    conductor.calm(lambda: len(cancels.certain) >= LEAST_CERTAIN, 120.0, "certain cancels")
    conductor.kill(kills, KILL_TIMEOUT_S, points=points)
    for name, count in least.items():
        conductor.disturb(name, count, KILL_TIMEOUT_S)
    on.drain(conductor, load, DRAIN_TIMEOUT_S, cancels)

    verdict = on.shown_verdict(conductor, load, cancels)
    on.say(figures(verdict, conductor, cancels))
    assert cancels.certain & conductor.handled == set()
    assert len(cancels.certain) >= LEAST_CERTAIN
    return conductor, cancels, verdict


@pytest.mark.timeout(1_500)
@pytest.mark.proof
@pytest.mark.parametrize("kills", KILLS.values(), ids=KILLS)
def test_relays_killed_while_timers_are_cancelled_keep_every_promise(stage: MakeStage, kills: int) -> None:
    on = stage(TIERS, guard_ms=GUARD_MS, partitions=2, cancel=Cancel(skew_ms=0))
    relays, consumer = [on.relay(f"relay-{number}") for number in range(2)], on.consumer("consumer")

    def unload(_: random.Random) -> None:
        on.admin.topics.unload(Names(on.plan).cancellations)

    consumer.start()
    options: dict[str, Any] = {"steady": [consumer], "disturbances": {"unload": unload}}
    conductor, cancels, verdict = killed(on, relays, RELAY_POINTS, kills, {"unload": UNLOADS[kills]}, **options)
    keeps_every_promise(verdict)
    on.evidence("relays killed while timers are cancelled", figures(verdict, conductor, cancels))


@pytest.mark.timeout(1_500)
@pytest.mark.proof
@pytest.mark.parametrize("kills", KILLS.values(), ids=KILLS)
def test_consumers_killed_and_frozen_while_timers_are_cancelled_hand_out_nothing_that_is_certain(
    stage: MakeStage, kills: int
) -> None:
    on = stage(TIERS, guard_ms=GUARD_MS, partitions=2, cancel=Cancel(skew_ms=0))
    relay, consumers = on.relay("relay"), [on.consumer(f"consumer-{number}") for number in range(2)]
    relay.start()
    options: dict[str, Any] = {"steady": [relay], "stops_s": (1.0, 3.0)}
    conductor, cancels, verdict = killed(on, consumers, CONSUMER_POINTS, kills, {"SIGSTOP": FREEZES[kills]}, **options)
    assert verdict.totals.lost == 0, verdict
    assert verdict.early == 0, verdict
    on.evidence("consumers killed while timers are cancelled", figures(verdict, conductor, cancels))


@pytest.mark.timeout(900)
@pytest.mark.proof
def test_control_a_cut_off_that_can_be_taken_back_loses_what_a_relay_has_dropped_meanwhile(stage: MakeStage) -> None:
    """Nobody is killed, and the checker finds it all the same (broker-facts: cancellation-log)."""
    on = stage(TIERS, guard_ms=GUARD_MS, partitions=2, cancel=Cancel(skew_ms=0))
    rules = "the last one counts"
    posts = [on.relay("relay", cut_rules=rules), on.consumer("consumer", cut_rules=rules)]
    for post in posts:
        post.start()
    cancels = Cancels(on.client, on.plan, on.seed, takes_back=True)
    load = on.load(TRAFFIC, stored=cancels)
    conductor = on.conductor(load, steady=posts)
    conductor.calm(lambda: len(cancels.taken_back) >= 2 * LEAST_CERTAIN, 120.0, "cancels that were taken back")
    load.stop()
    cancels.stop()
    # All but the log: what is in it stays until a compactor packs it.
    on.drain_all(conductor, load, DRAIN_TIMEOUT_S, but=CANCELLATIONS_SUBSCRIPTION)

    verdict = on.verdict(conductor, load, cancels)
    lost = cancels.taken_back - conductor.handled
    on.say(verdict)
    on.say(f"{len(cancels.taken_back)} taken back, {len(lost)} of them lost")
    assert lost
    assert verdict.totals.lost == len(lost)
    on.evidence(
        "control: cancellations that can be taken back",
        {"timers": verdict.totals.acknowledged, "taken back": len(cancels.taken_back), "lost": len(lost)},
    )

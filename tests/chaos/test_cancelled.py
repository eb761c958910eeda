"""Timers are cancelled while relays and consumers are killed and frozen, and topics move: certain is certain."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest

from tests.support.chaos_audit import count_copies
from tests.support.chaos_cancels import Cancels
from tests.support.chaos_conductor import Conductor, Points
from tests.support.chaos_ledger import Handled, Hop, now_ms
from tests.support.chaos_load import Load, Traffic
from tests.support.chaos_verdict import Verdict, judge, keeps_every_promise
from timewheel.core.names import Names
from timewheel.core.plan import Cancel, Tiered

if TYPE_CHECKING:
    from tests.chaos.conftest import MakeStage
    from tests.conftest import Evidence
    from tests.support.chaos_stage import Stage
    from timewheel.testing import LocalPulsar

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


def judged(on: Stage, conductor: Conductor, load: Load, cancels: Cancels) -> Verdict:
    """Without the timers that a cancel has, or may have, kept from their handler."""
    conductor.observe()
    kept_back = cancels.meant - conductor.handled
    sent = {timer_id: one for timer_id, one in load.sent.items() if timer_id not in kept_back}
    hops = (event for event in conductor.events if isinstance(event, Hop))
    return judge(sent, conductor.events, count_copies(on.client, on.plan, hops, load.sends()))


def drain(on: Stage, conductor: Conductor, load: Load, cancels: Cancels) -> None:
    """All that nobody meant to cancel is handled."""
    load.stop()
    cancels.stop()
    wanted = load.confirmed() - cancels.meant
    conductor.calm(lambda: wanted <= conductor.handled, DRAIN_TIMEOUT_S, "all timers that were not cancelled handled")
    # And what is left of the others would have come by now: the last due time is over.
    conductor.calm(lambda: not any(" billing" in place for place in on.backlogs()), DRAIN_TIMEOUT_S, "all acknowledged")


def figures(verdict: Verdict, conductor: Conductor, cancels: Cancels) -> Mapping[str, object]:
    return {
        "kills": len(conductor.kills),
        **verdict.figures,
        "certain": len(cancels.certain),
        "certain yet handed": len(cancels.certain & conductor.handled),
    }


@pytest.mark.timeout(1_500)
@pytest.mark.proof
@pytest.mark.parametrize("kills", KILLS.values(), ids=KILLS)
def test_relays_killed_while_timers_are_cancelled_keep_every_promise(
    chaos_broker: LocalPulsar,
    stage: MakeStage,
    kills: int,
    evidence: Evidence,
) -> None:
    on = stage(chaos_broker, TIERS, guard_ms=GUARD_MS, partitions=2, cancel=Cancel(skew_ms=0))
    relays, consumer = [on.relay(f"relay-{number}") for number in range(2)], on.consumer("consumer")

    def unload(_: random.Random) -> None:
        on.admin.topics.unload(Names(on.plan).cancellations)

    consumer.start()
    cancels = Cancels(on.client, on.plan, on.seed)
    load = on.load(TRAFFIC, stored=cancels)
    conductor = on.conductor(
        load, victims=dict.fromkeys(relays, RELAY_POINTS), steady=[consumer], disturbances={"unload": unload}
    )
    conductor.calm(lambda: len(cancels.certain) >= LEAST_CERTAIN, 120.0, "certain cancels")

    conductor.kill(kills, KILL_TIMEOUT_S, points=RELAY_POINTS)
    conductor.disturb("unload", UNLOADS[kills], KILL_TIMEOUT_S)
    drain(on, conductor, load, cancels)

    verdict = judged(on, conductor, load, cancels)
    on.say(conductor)
    on.say(verdict)
    on.say(figures(verdict, conductor, cancels))
    assert cancels.certain & conductor.handled == set()
    assert len(cancels.certain) >= LEAST_CERTAIN
    keeps_every_promise(verdict)
    evidence("relays killed while timers are cancelled", figures(verdict, conductor, cancels), seed=on.seed)


@pytest.mark.timeout(1_500)
@pytest.mark.proof
@pytest.mark.parametrize("kills", KILLS.values(), ids=KILLS)
def test_consumers_killed_and_frozen_while_timers_are_cancelled_hand_out_nothing_that_is_certain(
    chaos_broker: LocalPulsar,
    stage: MakeStage,
    kills: int,
    evidence: Evidence,
) -> None:
    on = stage(chaos_broker, TIERS, guard_ms=GUARD_MS, partitions=2, cancel=Cancel(skew_ms=0))
    relay, consumers = on.relay("relay"), [on.consumer(f"consumer-{number}") for number in range(2)]
    relay.start()
    cancels = Cancels(on.client, on.plan, on.seed)
    load = on.load(TRAFFIC, stored=cancels)
    conductor = on.conductor(
        load, victims=dict.fromkeys(consumers, CONSUMER_POINTS), steady=[relay], stops_s=(1.0, 3.0)
    )
    conductor.calm(lambda: len(cancels.certain) >= LEAST_CERTAIN, 120.0, "certain cancels")

    conductor.kill(kills, KILL_TIMEOUT_S, points=CONSUMER_POINTS)
    conductor.disturb("SIGSTOP", FREEZES[kills], KILL_TIMEOUT_S)
    drain(on, conductor, load, cancels)

    verdict = judged(on, conductor, load, cancels)
    on.say(conductor)
    on.say(verdict)
    on.say(figures(verdict, conductor, cancels))
    assert cancels.certain & {event.timer_id for event in conductor.events if isinstance(event, Handled)} == set()
    assert len(cancels.certain) >= LEAST_CERTAIN
    assert verdict.totals.lost == 0, verdict
    assert verdict.early == 0, verdict
    evidence("consumers killed while timers are cancelled", figures(verdict, conductor, cancels), seed=on.seed)


@pytest.mark.timeout(900)
@pytest.mark.proof
def test_control_a_cut_off_that_can_be_taken_back_loses_what_a_relay_has_dropped_meanwhile(
    chaos_broker: LocalPulsar, stage: MakeStage, evidence: Evidence
) -> None:
    """Nobody is killed, and the checker finds it all the same (broker-facts: cancellation-log)."""
    on = stage(chaos_broker, TIERS, guard_ms=GUARD_MS, partitions=2, cancel=Cancel(skew_ms=0))
    posts = [
        on.relay("relay", cut_rules="the last one counts"),
        on.consumer("consumer", cut_rules="the last one counts"),
    ]
    for post in posts:
        post.start()
    cancels = Cancels(on.client, on.plan, on.seed, takes_back=True)
    load = on.load(TRAFFIC, stored=cancels)
    conductor = on.conductor(load, steady=posts)
    conductor.calm(lambda: len(cancels.taken_back) >= 2 * LEAST_CERTAIN, 120.0, "cancels that were taken back")
    load.stop()
    cancels.stop()
    last_due_ms = max(sent.due_ms for sent in load.sent.values())
    # All but the log: what is in it stays until a compactor packs it.
    conductor.calm(
        lambda: now_ms() > last_due_ms and all(" timewheel-cancellations" in place for place in on.backlogs()),
        DRAIN_TIMEOUT_S,
        "all topics drained",
    )

    verdict = judged(on, conductor, load, cancels)
    lost = cancels.taken_back - conductor.handled
    on.say(verdict)
    on.say(f"{len(cancels.taken_back)} taken back, {len(lost)} of them lost")
    assert lost
    assert verdict.totals.lost == len(lost)
    evidence(
        "control: cancellations that can be taken back",
        {"timers": verdict.totals.acknowledged, "taken back": len(cancels.taken_back), "lost": len(lost)},
        seed=on.seed,
    )

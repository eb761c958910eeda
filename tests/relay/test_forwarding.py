"""What is decided on messages, case by case."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from tests.relay.relay_world import PLAN, START_MS, STAY_MS
from tests.support.plans import plan_of
from timewheel.client.positions import Position
from timewheel.core.envelope import Envelope
from timewheel.core.limits import OutOfOrder
from timewheel.core.names import Names
from timewheel.core.next_hop import NextHop
from timewheel.core.plan import MAX_HOPS, Native, Plan, Ring, Scheme, Wheel
from timewheel.core.routing import Router
from timewheel.core.steps import steps
from timewheel.relay.machine.broker_held import BrokerHeld
from timewheel.relay.machine.commands import (
    RECEIVE,
    AskAgain,
    AwaitAll,
    Decision,
    Examine,
    Forward,
    HoldUntil,
    Reading,
    Receive,
    Refile,
    Stop,
    StoreDeadLetter,
    Unreadable,
    judged,
    why_dead,
)
from timewheel.relay.machine.counts import Counts
from timewheel.relay.machine.forwarding import LATE_RUN, Forwarding
from timewheel.relay.machine.order import NO_SEQUENCE_ID, Spot

NAMES = Names(PLAN)
DUE = PLAN.due_topic
TIER_10S, TIER_30S = (NAMES.of_step(step)[0] for step in (steps(PLAN)[1], steps(PLAN)[0]))
RELEASE_MS = START_MS + STAY_MS


BEFORE = Spot(Position(7, -1, -1), 0)
"""As if all before entry 0 had been confirmed by this process: no need to make sure of the beginning."""


def forwarding(*, known: Spot | None = BEFORE, window_limit: int = 1_000) -> Forwarding:
    return of(PLAN, known=known, window_limit=window_limit)


def of(plan: Plan, *, known: Spot | None = BEFORE, **options: Any) -> Forwarding:
    """For the first of a plan's holding topics."""
    next_hop = NextHop(Router(plan), steps(plan)[0])
    return Forwarding(next_hop, OutOfOrder(plan), known=known, **options)


def from_entry(entry: int, **options: Any) -> Forwarding:
    """One whose next message is this entry."""
    return of(PLAN, known=Spot(at(entry - 1), 0), **options)


def timer(remaining_ms: int, *, entered_ms: int = START_MS, hops: int = 0, revision: int = 1) -> Envelope:
    """A timer of the 30 s tier with so much left at its release."""
    return Envelope("t", entered_ms + STAY_MS + remaining_ms, entered_ms, hops=hops, revision=revision)


def at(entry: int, index: int = -1) -> Position:
    return Position(7, entry, index)


def receive(it: Forwarding, entry: int, reading: Reading, now_ms: int) -> Decision:
    return it.received(at(entry), 0, reading, f"receipt {entry}", now_ms)


def forwarded(command: Decision) -> Forward:
    assert isinstance(command, Forward)
    return command


def test_the_head_is_held_to_its_release_and_then_forwarded() -> None:
    it = forwarding()
    assert receive(it, 0, timer(5_000), RELEASE_MS - 1) == HoldUntil(RELEASE_MS, 0)
    assert it.tick(RELEASE_MS - 1) == HoldUntil(RELEASE_MS, 0)
    command = forwarded(it.tick(RELEASE_MS))
    assert command.topic == DUE
    # due - lead - 2.5 ticks: the first of a relay's is the one in a thousand (broker-facts: starved-due-topic)
    assert command.deliver_at_ms == RELEASE_MS + 5_000 - PLAN.lead_ms - 2_500
    assert command.envelope == timer(5_000)._replace(entered_ms=RELEASE_MS, hops=1)
    assert it.tick(RELEASE_MS) == Receive()


@pytest.mark.parametrize(
    ("remaining_ms", "topic"),
    [
        (0, DUE),
        (11_999, DUE),  # a tier is used only with the guard: 10 s + 2 s
        (12_000, TIER_10S),
        (31_999, TIER_10S),
        (32_000, TIER_30S),
    ],
)
def test_the_destination_comes_from_the_nominal_release_not_from_the_clock(remaining_ms: int, topic: str) -> None:
    on_time = forwarded(receive(from_entry(3), 3, timer(remaining_ms), RELEASE_MS))
    a_bit_late = forwarded(receive(from_entry(3), 3, timer(remaining_ms), RELEASE_MS + 1_999))
    assert on_time == a_bit_late
    assert on_time.topic == topic
    assert on_time.sequence_id == 7 << 32 | 3 << 12 | 0


def test_what_would_overshoot_goes_by_the_late_lane_and_by_the_clock() -> None:
    now_ms = RELEASE_MS + 2_001  # 10 s from now is 1 ms past the due time
    command = forwarded(receive(from_entry(3), 3, timer(12_000), now_ms))
    assert command.topic == DUE
    assert command.sequence_id == NO_SEQUENCE_ID
    assert command.envelope.entered_ms == now_ms


def test_lanes_change_only_when_nothing_is_under_way() -> None:
    it = forwarding()
    first = forwarded(receive(it, 0, timer(5_000), RELEASE_MS))
    assert receive(it, 1, timer(12_000), RELEASE_MS + 2_001) == AwaitAll()
    assert it.tick(RELEASE_MS + 2_001) == AwaitAll()
    it.confirmed(first.ordinal)
    late = forwarded(it.tick(RELEASE_MS + 2_001))
    assert late.sequence_id == NO_SEQUENCE_ID
    follower = late
    for entry in range(2, 2 + LATE_RUN):
        it.confirmed(follower.ordinal)
        follower = forwarded(receive(it, entry, timer(5_000), RELEASE_MS + 2_001))
        assert follower.sequence_id == NO_SEQUENCE_ID
    assert receive(it, 2 + LATE_RUN, timer(5_000), RELEASE_MS + 2_001) == AwaitAll()  # and back
    it.confirmed(follower.ordinal)
    assert forwarded(it.tick(RELEASE_MS + 2_001)).sequence_id != NO_SEQUENCE_ID


def test_on_time_hops_behind_a_late_one_share_its_lane_but_keep_their_route() -> None:
    # Else a relay that lags changes lanes, and waits for a round trip, at every other timer.
    it = forwarding()
    late = forwarded(receive(it, 0, timer(12_000), RELEASE_MS + 2_001))
    on_time = forwarded(receive(it, 1, timer(32_000), RELEASE_MS + 1_000))
    assert (late.sequence_id, on_time.sequence_id) == (NO_SEQUENCE_ID, NO_SEQUENCE_ID)
    assert on_time.topic == TIER_30S
    assert on_time.envelope.entered_ms == RELEASE_MS, "the nominal time, as by the other lane"
    for forward in (late, on_time):
        it.confirmed(forward.ordinal)
    assert it.counts.late == 2


def test_what_goes_to_a_tier_by_the_late_lane_may_be_batched_by_the_client_and_nothing_else() -> None:
    it = forwarding()
    to_due = forwarded(receive(it, 0, timer(12_000), RELEASE_MS + 2_001))
    to_tier = forwarded(receive(it, 1, timer(32_000), RELEASE_MS + 2_001))
    assert (to_due.topic, to_due.batches) == (DUE, False)
    assert (to_tier.topic, to_tier.batches) == (TIER_10S, True)
    it = forwarding()
    named = [forwarded(receive(it, entry, timer(left_ms), RELEASE_MS)) for entry, left_ms in enumerate((32_000, 0))]
    assert [command.batches for command in named] == [False, False]


def test_a_steady_share_of_late_timers_never_changes_the_lane() -> None:
    it = forwarding(window_limit=10_000)
    for entry in range(2_000):
        remaining_ms = 12_000 if entry % LATE_RUN == 0 else 5_000
        command = receive(it, entry, timer(remaining_ms), RELEASE_MS + 2_001)
        assert forwarded(command).sequence_id == NO_SEQUENCE_ID


@pytest.mark.parametrize(
    ("envelope", "reason"),
    [
        (None, "no envelope"),
        (judged({"tw-id": "x"}), "missing"),
        (judged({"tw-id": "x", "tw-timer": "0 1 0 0 1 1"}), "garbled"),
        (timer(5_000, hops=10_000), "10000 hops"),
    ],
)
def test_what_cannot_be_a_timer_is_a_dead_letter_at_once(envelope: Reading, reason: str) -> None:
    command = receive(forwarding(), 0, envelope, START_MS)
    assert isinstance(command, StoreDeadLetter)
    assert reason in command.reason


@pytest.mark.parametrize(
    ("before", "size", "after"),
    [
        (at(4), 0, at(6)),
        (at(4), 0, at(5, 1)),
        (at(4, 0), 3, at(4, 2)),
        (at(4, 1), 3, at(5)),  # cut short
        (at(4, 1), 3, Position(9, 0, -1)),  # cut short by the end of a ledger
        (at(4), 0, Position(9, 1, -1)),
    ],
)
def test_at_a_hole_the_topic_is_looked_at(before: Position, size: int, after: Position) -> None:
    for found in (before, after._replace(entry=after.entry + 9)):
        it = forwarding(known=Spot(before, size))
        look = it.received(after, 0, timer(5_000), "receipt", RELEASE_MS)
        assert look == Examine(Spot(before, size), after) == it.tick(RELEASE_MS)
        it.found(found)
        stop = it.tick(RELEASE_MS + 1_000_000)
        assert isinstance(stop, Stop), "for good: it can be read, so that another subscription gets it"
        assert (stop.after, stop.before) == (Spot(before, size), after)


@pytest.mark.parametrize("behind", [Position(9, 0, -1), Position(9, 3, -1), at(7)])
def test_what_a_look_has_found_goes_on_behind_what_the_client_hides_and_behind_a_ledgers_end(behind: Position) -> None:
    it = from_entry(4)
    it.confirmed(forwarded(receive(it, 4, timer(5_000), RELEASE_MS)).ordinal)
    assert it.received(behind, 0, timer(5_000), "receipt", RELEASE_MS) == Examine(Spot(at(4), 0), behind)
    it.found(behind)
    assert forwarded(it.tick(RELEASE_MS)).ordinal == 1
    assert it.acknowledge() == "receipt 4"
    next_one = behind._replace(entry=behind.entry + 1)
    assert isinstance(it.received(next_one, 0, timer(5_000), "receipt", RELEASE_MS), Forward)


@pytest.mark.parametrize("reading", [Unreadable("encrypted"), judged({"tw-id": "x", "tw-timer": "3 later"})])
def test_what_cannot_be_read_goes_to_the_dead_letters_and_what_is_behind_goes_on(reading: Reading) -> None:
    it = forwarding()
    dead_letter = receive(it, 0, reading, RELEASE_MS)
    assert isinstance(dead_letter, StoreDeadLetter)
    assert dead_letter.reason == why_dead(reading)
    it.confirmed(dead_letter.ordinal)
    assert forwarded(receive(it, 1, timer(5_000), RELEASE_MS)).ordinal == dead_letter.ordinal + 1


def test_a_hop_that_is_refused_for_good_makes_its_message_a_dead_letter() -> None:
    it = forwarding()
    assert isinstance(receive(it, 0, timer(5_000), RELEASE_MS), Forward)
    it.refused("no topic takes it")
    assert it.tick(RELEASE_MS) == StoreDeadLetter(0, "no topic takes it")


def test_what_was_confirmed_behind_a_failure_is_not_sent_again_by_the_next_subscription() -> None:
    first = forwarding()
    ordinals = [forwarded(receive(first, entry, timer(5_000), RELEASE_MS)).ordinal for entry in range(3)]
    for ordinal in (ordinals[0], ordinals[2]):
        first.confirmed(ordinal)
    assert first.failed(ordinals[1]) == at(1)
    assert first.unanswered == 0
    assert first.confirmed_behind == {at(2): "forwarded"}
    again = from_entry(1, confirmed_behind=first.confirmed_behind)
    assert isinstance(receive(again, 1, timer(5_000), RELEASE_MS), Forward)
    assert receive(again, 2, timer(5_000), RELEASE_MS) is RECEIVE
    assert again.in_flight == 2
    again.confirmed(0)
    assert again.in_flight == 0
    assert again.counts.forwarded == 2
    assert again.confirmed_behind == {}


def test_a_message_in_chunks_stands_where_its_first_chunk_does() -> None:
    it = from_entry(5, first_chunk={"receipt 8": at(5)}.get)
    assert isinstance(receive(it, 8, timer(5_000), RELEASE_MS), Forward)
    assert isinstance(receive(it, 9, timer(5_000), RELEASE_MS), Forward)
    assert isinstance(receive(it, 11, timer(5_000), RELEASE_MS), Examine)


def test_the_last_message_before_a_hole_is_not_acknowledged() -> None:
    """So whoever takes over, without our memory, meets the hole again."""
    it = forwarding()
    ordinals = [forwarded(receive(it, entry, timer(5_000), RELEASE_MS)).ordinal for entry in (0, 1)]
    for ordinal in ordinals:
        it.confirmed(ordinal)
    assert it.acknowledge() == "receipt 0"
    assert it.acknowledge() is None
    assert it.keeps_back
    assert isinstance(receive(it, 3, timer(5_000), RELEASE_MS), Examine)
    assert it.acknowledge() is None, "not before a dead letter names what is hidden there"


def test_a_held_head_is_enough_to_acknowledge_what_stands_before_it() -> None:
    it = forwarding()
    it.confirmed(forwarded(receive(it, 0, timer(5_000), RELEASE_MS)).ordinal)
    assert isinstance(receive(it, 1, timer(5_000, entered_ms=START_MS + 50), RELEASE_MS), HoldUntil)
    assert it.acknowledge() == "receipt 0"


def test_what_was_confirmed_before_a_reload_is_skipped_and_acknowledged_again() -> None:
    it = forwarding(known=Spot(at(4), 0))
    assert [receive(it, entry, timer(5_000), RELEASE_MS) for entry in (2, 3, 4)] == [Receive()] * 3
    assert it.counts.skipped == 3
    assert it.acknowledge() == "receipt 3"
    assert forwarded(receive(it, 5, timer(5_000), RELEASE_MS)).sequence_id == 7 << 32 | 5 << 12
    assert it.acknowledge() == "receipt 4"


def test_what_is_under_way_when_it_is_received_again_is_sent_once() -> None:
    it = forwarding()
    ordinal = forwarded(receive(it, 0, timer(5_000), RELEASE_MS)).ordinal
    assert receive(it, 0, timer(5_000), RELEASE_MS) == Receive()
    assert it.acknowledge() is None, "it is not confirmed yet"
    it.confirmed(ordinal)
    assert it.acknowledge(at(0)) == "receipt 0"


def test_a_beginning_is_believed_when_it_is_met_twice() -> None:
    it = forwarding(known=None)
    envelope = timer(5_000)
    # The broker gives 5 and 6 before it goes back to 3, where another consumer was.
    assert receive(it, 5, envelope, RELEASE_MS) == AskAgain()
    assert receive(it, 6, envelope, RELEASE_MS + 1) == Receive()
    assert receive(it, 3, envelope, RELEASE_MS + 2) == AskAgain()
    assert [receive(it, entry, envelope, RELEASE_MS + 3) for entry in (4, 5)] == [Receive()] * 2
    assert forwarded(receive(it, 3, envelope, RELEASE_MS + 4)).sequence_id == 7 << 32 | 3 << 12
    assert it.has_begun
    assert forwarded(receive(it, 4, envelope, RELEASE_MS + 5)).sequence_id == 7 << 32 | 4 << 12


def test_a_request_that_goes_unheard_is_made_again() -> None:
    it = forwarding(known=None)
    assert receive(it, 5, timer(5_000), RELEASE_MS) == AskAgain()
    assert receive(it, 6, timer(5_000), RELEASE_MS + 1_499) == Receive()
    assert receive(it, 7, timer(5_000), RELEASE_MS + 1_500) == AskAgain()
    assert receive(it, 8, timer(5_000), RELEASE_MS + 2_999) == Receive()
    assert receive(it, 9, timer(5_000), RELEASE_MS + 3_000) == AskAgain()


def test_a_command_that_could_not_be_carried_out_is_decided_on_anew() -> None:
    it = forwarding()
    first = forwarded(receive(it, 0, timer(12_000), RELEASE_MS))
    it.withdraw()
    assert it.tick(RELEASE_MS) == first
    it.withdraw()
    assert forwarded(it.tick(RELEASE_MS + 2_001)).sequence_id == NO_SEQUENCE_ID, "meanwhile it is late"


def test_outside_the_ranges_of_a_sequence_id_a_hop_is_unnamed_rather_than_stuck() -> None:
    it = from_entry(1 << 20)
    assert forwarded(receive(it, 1 << 20, timer(5_000), RELEASE_MS)).sequence_id == NO_SEQUENCE_ID


WHEEL = plan_of(Wheel(rings=(Ring(slot_ms=10_000, slots=8),)), due_topic=DUE, max_delay_ms=60_000, guard_ms=2_000)
TURN_MS = 8 * 10_000
SLOT_START_MS = START_MS // TURN_MS * TURN_MS + TURN_MS
"""A slot's start; its release is a head start of 2 s earlier."""


def slot_timer(turns: int) -> Envelope:
    return Envelope("t", SLOT_START_MS + turns * TURN_MS + 3_000, START_MS)


def test_a_sweep_refiles_a_later_turn_that_stands_before_a_straggler() -> None:
    it = of(WHEEL)
    release_ms = SLOT_START_MS - 2_000
    assert receive(it, 0, slot_timer(1), release_ms) == HoldUntil(release_ms + TURN_MS, 0)
    it.sweep(at(1))
    refile = it.tick(release_ms)
    assert isinstance(refile, Refile)
    assert receive(it, 1, slot_timer(0), release_ms) == AwaitAll(), "re-filing is no hop of the named lane"
    it.confirmed(refile.ordinal)
    assert isinstance(it.tick(release_ms), Forward)


def test_one_whose_turn_never_comes_is_refiled_as_often_as_hops_go_and_then_buried() -> None:
    it = of(WHEEL)
    release_ms = SLOT_START_MS - 2_000
    last = slot_timer(1_000)._replace(hops=MAX_HOPS - 1)
    it.sweep(at(9))
    refile = receive(it, 0, last, release_ms)
    assert isinstance(refile, Refile)
    assert refile.envelope == last._replace(hops=MAX_HOPS)
    it.confirmed(refile.ordinal)
    assert isinstance(receive(it, 1, refile.envelope, release_ms), StoreDeadLetter)


def test_a_sweep_ends_with_what_the_topic_held_when_it_began() -> None:
    it = of(WHEEL)
    release_ms = SLOT_START_MS - 2_000
    it.sweep(at(0))
    refile = receive(it, 0, slot_timer(1), release_ms)
    assert isinstance(refile, Refile)
    it.confirmed(refile.ordinal)
    # Its own copy at the tail is not touched again, or the sweep would never end.
    assert receive(it, 1, slot_timer(1), release_ms) == HoldUntil(release_ms + TURN_MS, 0)


@pytest.mark.parametrize("index", [-1, 0, 2])
def test_a_sweep_takes_all_messages_of_its_last_entry_whatever_index_it_was_told(index: int) -> None:
    it = of(WHEEL)
    release_ms = SLOT_START_MS - 2_000
    it.sweep(at(0, index))
    for number in range(3):
        refile = it.received(at(0, number), 3, slot_timer(1), f"receipt {number}", release_ms)
        assert isinstance(refile, Refile)
        it.confirmed(refile.ordinal)
    assert receive(it, 1, slot_timer(1), release_ms) == HoldUntil(release_ms + TURN_MS, 0)


def told(it: Forwarding) -> tuple[int | None, int | None]:
    """When the head may leave, and when the newest message in flight."""
    return it.head_release_ms, it.newest_release_ms


def test_how_old_the_newest_message_in_hand_is_can_be_told_while_nothing_is_held() -> None:
    """A relay that works off a backlog holds no head, and lags all the same."""
    it = forwarding()
    assert told(it) == (None, None)
    forwarded(receive(it, 0, timer(5_000), RELEASE_MS + 3_600_000))
    assert told(it) == (None, RELEASE_MS)
    forwarded(receive(it, 1, timer(5_000, entered_ms=START_MS + 7), RELEASE_MS + 3_600_000))
    assert told(it) == (None, RELEASE_MS + 7)
    for ordinal in range(2):
        it.confirmed(ordinal)
    assert told(it) == (None, None), "all is done, and nothing more has come"
    assert isinstance(receive(it, 2, timer(5_000), RELEASE_MS - 10), HoldUntil)
    assert told(it) == (RELEASE_MS, RELEASE_MS)


def test_a_broker_held_tier_tells_it_too() -> None:
    plan = Plan(due_topic=DUE, subscriptions=("billing",), scheme=PLAN.scheme, max_delay_ms=PLAN.max_delay_ms)
    next_hop = NextHop(Router(plan), steps(plan)[0])
    it = BrokerHeld(next_hop, OutOfOrder(plan), window_limit=10, counts=Counts(), rng=random.Random(7))
    assert (it.newest_release_ms, it.in_flight_bytes) == (None, 0)
    sent = it.received(at(0), 0, timer(5_000), "receipt", RELEASE_MS + 60_000, 200)
    assert isinstance(sent, Forward)
    assert (it.newest_release_ms, it.in_flight_bytes) == (RELEASE_MS, 200)
    it.confirmed([sent.ordinal])
    assert (it.newest_release_ms, it.in_flight_bytes) == (None, 0)


@pytest.mark.parametrize(("scheme", "asks"), [(PLAN.scheme, False), (Native(), True)])
def test_a_broker_held_tier_asks_after_a_silence_only_by_a_native_plan(scheme: Scheme, asks: bool) -> None:
    """On its Shared subscription that would bring again every timer whose acknowledgement is under way."""
    plan = replace(PLAN, scheme=scheme)
    next_hop = NextHop(Router(plan), steps(PLAN)[0])
    it = BrokerHeld(next_hop, OutOfOrder(plan), window_limit=10, counts=Counts(), rng=random.Random(7))
    answers = {type(it.nothing_came(START_MS + second * 1_000)) for second in range(120)}
    assert (AskAgain in answers) is asks

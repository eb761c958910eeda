"""The machines of a relay: decisions on messages, waits, leases, groups, slots and stops; and walks by chance."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tests.relay.machine_walk import TURN_MS, WHEEL, Met
from tests.relay.relay_world import PLAN, START_MS, STAY_MS
from tests.support.drawn import between
from tests.support.machine_table import PAGE, TABLES, begin, lines, walked
from timewheel.client.positions import Position
from timewheel.core.durations import DAY_MS
from timewheel.core.early_delivery import OutOfOrder
from timewheel.core.envelope import Envelope
from timewheel.core.names import Names
from timewheel.core.next_hop import NextHop
from timewheel.core.plan import MAX_HOPS, Native, Plan, Scheme
from timewheel.core.routing import Router
from timewheel.core.steps import steps
from timewheel.relay.machine.broker_held import BrokerHeld
from timewheel.relay.machine.interface import (
    AWAIT_MS,
    IDLE_MS,
    LEAVE,
    NEVER,
    PROBED,
    RECEIVE,
    RECEIVE_IDLE,
    SEND_GROUPS,
    Acknowledge,
    AskAgain,
    AskLast,
    AwaitAll,
    Counts,
    Decision,
    Examine,
    Forward,
    GiveBack,
    HoldUntil,
    Leave,
    PutProbe,
    Receive,
    Refile,
    State,
    Stop,
    StoreDeadLetter,
    Wait,
)
from timewheel.relay.machine.order import NO_SEQUENCE_ID, WINDOW_BYTES, Spot
from timewheel.relay.machine.readings import PROBE, Reading, Unreadable, parsed
from timewheel.relay.machine.relay_held import (
    ACK_EVERY,
    FORGOTTEN_AFTER_MS,
    LATE_RUN,
    LEASE_FIRST_MS,
    LEASE_LONGEST_MS,
    LOOKS_PER_LINGER,
    Forwarding,
    RelayHeld,
)
from timewheel.relay.machine.visits import Visit

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


def timer(remaining_ms: int, entered_ms: int = START_MS, *, hops: int = 0) -> Envelope:
    """A timer of the 30 s tier with so much left at its release."""
    return Envelope("t", entered_ms + STAY_MS + remaining_ms, entered_ms, hops=hops)


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


def test_what_would_overshoot_goes_by_the_late_lane_and_by_the_clock_and_needs_no_lease() -> None:
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


def test_what_goes_by_the_named_lane_again_keeps_the_delivery_time_of_its_nominal_way() -> None:
    """If it was not stored there after all, it is stored now, and must not be delivered before its time."""
    it = forwarding()
    late = forwarded(receive(it, 0, timer(12_000), RELEASE_MS + 2_001))
    to_due = forwarded(receive(it, 1, timer(5_000), RELEASE_MS + 1_000))
    assert (late.topic, late.nominally().topic, late.nominally().deliver_at_ms) == (DUE, TIER_10S, 0)
    assert to_due.nominally() == to_due._replace(sequence_id=to_due.nominally().sequence_id, nominal=None)
    assert to_due.nominally().named
    assert to_due.deliver_at_ms


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
    ("reading", "reason"),
    [
        (None, "no envelope"),
        (parsed({"tw-id": "x"}), "missing"),
        (parsed({"tw-id": "x", "tw-timer": "0 1 0 0 1 1"}), "garbled"),
        (parsed({"tw-id": "x", "tw-timer": "3 later"}), "3"),
        (Unreadable("encrypted"), "encrypted"),
        (timer(5_000, hops=10_000), "10000 hops"),
    ],
)
def test_what_cannot_be_a_timer_is_a_dead_letter_at_once_and_what_is_behind_goes_on(
    reading: Reading, reason: str
) -> None:
    it = forwarding()
    dead_letter = receive(it, 0, reading, START_MS)
    assert isinstance(dead_letter, StoreDeadLetter)
    assert reason in dead_letter.reason
    it.confirmed(dead_letter.ordinal)
    assert forwarded(receive(it, 1, timer(5_000), RELEASE_MS)).ordinal == dead_letter.ordinal + 1


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


def test_a_sweep_refiles_a_later_turn_that_stands_before_a_straggler() -> None:
    it = of(WHEEL)
    assert receive(it, 0, slot_timer(1), SLOT_RELEASE_MS) == HoldUntil(SLOT_RELEASE_MS + TURN_MS, 0)
    it.sweep(at(1))
    refile = it.tick(SLOT_RELEASE_MS)
    assert isinstance(refile, Refile)
    assert receive(it, 1, slot_timer(0), SLOT_RELEASE_MS) == AwaitAll(), "re-filing is no hop of the named lane"
    it.confirmed(refile.ordinal)
    assert isinstance(it.tick(SLOT_RELEASE_MS), Forward)


def test_one_whose_turn_never_comes_is_refiled_as_often_as_hops_go_and_then_buried() -> None:
    it = of(WHEEL)
    last = slot_timer(1_000)._replace(hops=MAX_HOPS - 1)
    it.sweep(at(9))
    refile = receive(it, 0, last, SLOT_RELEASE_MS)
    assert isinstance(refile, Refile)
    assert refile.envelope == last._replace(hops=MAX_HOPS)
    it.confirmed(refile.ordinal)
    assert isinstance(receive(it, 1, refile.envelope, SLOT_RELEASE_MS), StoreDeadLetter)


def test_a_sweep_ends_with_what_the_topic_held_when_it_began() -> None:
    it = of(WHEEL)
    it.sweep(at(0))
    refile = receive(it, 0, slot_timer(1), SLOT_RELEASE_MS)
    assert isinstance(refile, Refile)
    it.confirmed(refile.ordinal)
    # Its own copy at the tail is not touched again, or the sweep would never end.
    assert receive(it, 1, slot_timer(1), SLOT_RELEASE_MS) == HoldUntil(SLOT_RELEASE_MS + TURN_MS, 0)


@pytest.mark.parametrize("index", [-1, 0, 2])
def test_a_sweep_takes_all_messages_of_its_last_entry_whatever_index_it_was_told(index: int) -> None:
    it = of(WHEEL)
    it.sweep(at(0, index))
    for number in range(3):
        refile = it.received(at(0, number), 3, slot_timer(1), f"receipt {number}", SLOT_RELEASE_MS)
        assert isinstance(refile, Refile)
        it.confirmed(refile.ordinal)
    assert receive(it, 1, slot_timer(1), SLOT_RELEASE_MS) == HoldUntil(SLOT_RELEASE_MS + TURN_MS, 0)


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


def test_a_full_broker_held_tier_goes_on_after_one_confirmation() -> None:
    it = BrokerHeld(
        NextHop(Router(PLAN), steps(PLAN)[0]), OutOfOrder(PLAN), window_limit=1, counts=Counts(), rng=random.Random(7)
    )
    sent = it.received(at(0), 0, timer(5_000), "receipt", RELEASE_MS + 60_000, 200)
    assert isinstance(sent, Forward)
    assert it.received(at(1), 0, timer(5_000), "receipt", RELEASE_MS + 60_000, 200) == Wait(AWAIT_MS, 1)
    it.confirmed([sent.ordinal])
    assert isinstance(it.done(RELEASE_MS + 60_000), Forward)


@pytest.mark.parametrize(("scheme", "asks"), [(PLAN.scheme, False), (Native(), True)])
def test_a_broker_held_tier_asks_after_a_silence_only_by_a_native_plan(scheme: Scheme, asks: bool) -> None:
    """On its Shared subscription that would bring again every timer whose acknowledgement is under way."""
    plan = replace(PLAN, scheme=scheme)
    next_hop = NextHop(Router(plan), steps(PLAN)[0])
    it = BrokerHeld(next_hop, OutOfOrder(plan), window_limit=10, counts=Counts(), rng=random.Random(7))
    answers = {type(it.nothing_came(START_MS + second * 1_000)) for second in range(120)}
    assert (AskAgain in answers) is asks


LEASE_IDLE_MS = 3_000


# The table


def lines_in(page: str, name: str) -> list[str]:
    """The lines of a machine as they stand on the page."""
    return between(page, begin(name)).splitlines()


def steps_of(outline: list[str]) -> set[tuple[str, str, str, str]]:
    """(state, event, next state, command), each that an outline has."""
    found: set[tuple[str, str, str, str]] = set()
    state = ""
    for line in outline:
        if line.startswith("- "):
            events, outcomes = line.removeprefix("- ").strip().split(": ")
            for then, commands in re.findall(r"\*\*(\w+)\*\* ([^;]+)", outcomes):
                found |= {(state, event, then, one) for event in events.split(" / ") for one in commands.split(", ")}
        elif line.strip():
            state = line.strip("*\n")
    return found


@pytest.mark.parametrize("name", TABLES)
def test_the_table_of_the_page_is_what_walks_meet(name: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    told = steps_of(lines_in(page, name))
    met = steps_of(lines(walked(name)))
    assert len(met) > 10
    assert told == met, "if it is meant to be so: make docs-tables"


@pytest.mark.parametrize(
    ("mutation", "words"),
    [
        (Met(State.IDLE, "done", State.LEFT, Leave), "idle done"),
        (Met(State.DRAINING, "stopping", State.DRAINING, Forward), "draining stopping"),
    ],
)
def test_a_step_that_is_not_in_the_table_would_be_found(mutation: Met, words: str) -> None:
    told = steps_of(lines_in(PAGE.read_text(encoding="utf-8"), "relay-held"))
    more = steps_of(lines([mutation])) - told
    assert [f"{state} {event}" for state, event, _, _ in more] == [words]


# Waits, silence, leases, acknowledgements


def relay_held(
    plan: Plan = PLAN, *, visit: Visit | None = None, window_limit: int = 1_000, linger_ms: int = 0
) -> RelayHeld:
    next_hop = NextHop(Router(plan), steps(plan)[0])
    before = Spot(Position(7, -1, -1), 0)
    return RelayHeld(
        Forwarding(next_hop, OutOfOrder(plan), known=before, window_limit=window_limit, linger_ms=linger_ms),
        visit=lambda: visit,
        lease_idle_ms=LEASE_IDLE_MS,
        rng=random.Random(3),
    )


def sent(it: RelayHeld, entry: int, now_ms: int = RELEASE_MS) -> int:
    command = it.received(at(entry), 0, timer(5_000), f"receipt {entry}", now_ms)
    assert isinstance(command, Forward)
    return command.ordinal


def test_a_steady_stream_is_acknowledged_every_hundred_confirmations() -> None:
    it = relay_held()
    ordinals = [sent(it, entry) for entry in range(2 * ACK_EVERY)]
    assert it.confirmed(ordinals[: ACK_EVERY - 1]) is None
    assert it.confirmed(ordinals[ACK_EVERY - 1 : ACK_EVERY]) == Acknowledge((f"receipt {ACK_EVERY - 1}",))
    assert it.confirmed(ordinals[ACK_EVERY:-1]) is None
    # The newest is kept back until the topic is known to end with it.
    assert it.confirmed(ordinals[-1:]) == Acknowledge((f"receipt {2 * ACK_EVERY - 2}",))


def test_when_nothing_comes_all_is_acknowledged_and_names_are_given_back_in_time() -> None:
    it = relay_held()
    assert it.confirmed([sent(it, 0)]) is None
    assert it.nothing_came(RELEASE_MS) == AskLast(), "the newest is kept back"
    assert it.last_position(at(0), RELEASE_MS) == Acknowledge(("receipt 0",))
    assert it.done(RELEASE_MS) == RECEIVE_IDLE
    assert it.nothing_came(RELEASE_MS + LEASE_IDLE_MS - 1) in (RECEIVE_IDLE, AskAgain())
    assert it.nothing_came(RELEASE_MS + LEASE_IDLE_MS) == GiveBack()
    assert it.done(RELEASE_MS + LEASE_IDLE_MS) in (RECEIVE_IDLE, AskAgain())
    assert it.state is State.IDLE
    assert it.nothing_came(RELEASE_MS + LEASE_IDLE_MS) in (RECEIVE_IDLE, AskAgain()), "once"


def test_while_confirmations_are_outstanding_a_wait_is_short_and_nothing_is_given_back() -> None:
    it = relay_held()
    sent(it, 0)
    for second in range(20):
        assert it.nothing_came(RELEASE_MS + second * 1_000) == RECEIVE
        assert it.state is State.RECEIVING


def test_silence_is_asked_about_rarer_and_rarer_until_something_comes() -> None:
    it = relay_held()
    asked = []
    for second in range(600):
        command = it.nothing_came(RELEASE_MS + second * IDLE_MS)
        if command == GiveBack():
            command = it.done(RELEASE_MS + second * IDLE_MS)
        if command == AskAgain():
            asked.append(second)
            command = it.done(RELEASE_MS + second * IDLE_MS)
        assert command == RECEIVE_IDLE
    assert 5 <= len(asked) <= 25
    gaps = [later - earlier for earlier, later in pairwise(asked)]
    assert max(gaps) <= 61
    assert gaps[0] < gaps[-1]


@pytest.mark.parametrize(("forwards", "begins_anew"), [(0, False), (1, True)])
def test_who_was_quiet_since_an_acknowledgement_subscribes_anew_once(forwards: int, begins_anew: bool) -> None:
    """The broker may have forgotten it, and the client would show nobody what it delivers again."""
    it = relay_held()
    for entry in range(forwards):
        it.confirmed([sent(it, entry)])
    now_ms, end_ms = RELEASE_MS, RELEASE_MS + 4 * FORGOTTEN_AFTER_MS
    while now_ms < end_ms:
        now_ms += IDLE_MS
        command = it.nothing_came(now_ms)
        while not isinstance(command, Receive | Leave):
            command = it.last_position(at(forwards - 1), now_ms) if command == AskLast() else it.done(now_ms)
        if isinstance(command, Leave):
            break
    assert it.begins_anew is begins_anew
    assert (now_ms - RELEASE_MS <= FORGOTTEN_AFTER_MS + 2 * IDLE_MS) is begins_anew
    assert it.left is None


def test_a_long_hold_gives_names_back_and_a_short_one_keeps_them() -> None:
    it = relay_held()
    release_ms = RELEASE_MS + 10_000
    command = it.received(at(0), 0, timer(5_000, START_MS + 10_000), "r", RELEASE_MS)
    assert command == GiveBack()
    assert it.done(RELEASE_MS) == Wait(10_000, 1)
    assert (it.state, it.head_release_ms) == (State.HOLDING, release_ms)
    assert it.done(release_ms - LEASE_IDLE_MS) == Wait(LEASE_IDLE_MS, 1)
    assert isinstance(it.done(release_ms), Forward)
    short = relay_held()
    assert short.received(at(0), 0, timer(5_000), "r", RELEASE_MS - LEASE_IDLE_MS) == Wait(LEASE_IDLE_MS, 1)


def test_a_full_window_waits_for_a_quarter_of_it_or_for_all_that_is_left() -> None:
    it = relay_held(window_limit=8)
    ordinals = [sent(it, entry) for entry in range(8)]
    assert it.received(at(8), 0, timer(5_000), "r", RELEASE_MS) == Wait(2_000, 2)
    it.confirmed(ordinals[1:])  # all but the first: the window does not move
    assert it.done(RELEASE_MS) == Wait(2_000, 1)
    it.confirmed(ordinals[:1])
    assert isinstance(it.done(RELEASE_MS), Forward)


def test_a_window_is_full_by_bytes_too() -> None:
    """broker-facts: windows-in-bytes"""
    it = relay_held()
    ordinals = []
    for entry in range(8):
        command = it.received(at(entry), 0, timer(5_000), "r", RELEASE_MS, WINDOW_BYTES // 8)
        assert isinstance(command, Forward)
        ordinals.append(command.ordinal)
    assert it.received(at(8), 0, timer(5_000), "r", RELEASE_MS, 1) == Wait(2_000, 2)
    it.confirmed(ordinals[:1])
    assert isinstance(it.done(RELEASE_MS), Forward)
    huge = relay_held()
    assert isinstance(huge.received(at(0), 0, timer(5_000), "r", RELEASE_MS, 10 * WINDOW_BYTES), Forward), "alone"


def test_who_cannot_have_a_lease_holds_none_and_tries_again_rarer_and_rarer() -> None:
    it = relay_held()
    sent(it, 0)
    assert it.lease_held() == GiveBack()
    waits = [it.done(RELEASE_MS)]
    for _ in range(12):
        assert isinstance(it.done(RELEASE_MS), Forward)
        assert it.state is State.WAITING_FOR_LEASE
        waits.append(it.lease_held())
    assert all(isinstance(wait, Wait) and wait.wake_at == NEVER for wait in waits)
    waited_ms = [wait.timeout_ms for wait in waits if isinstance(wait, Wait)]
    assert waited_ms[0] <= LEASE_FIRST_MS
    assert LEASE_LONGEST_MS / 2 <= waited_ms[-1] <= LEASE_LONGEST_MS
    assert isinstance(it.done(RELEASE_MS), Forward)
    it.lease_taken()
    assert it.state is State.RECEIVING


def test_who_waits_for_a_lease_until_its_head_is_late_begins_anew_and_sends_nothing_without_one() -> None:
    """It was displaced, and what it has in flight was sent long since: by the late lane it would be stored twice."""
    it = relay_held()
    first = sent(it, 0)
    second = it.received(at(1), 0, timer(30_000), "receipt 1", RELEASE_MS)
    assert isinstance(second, Forward)
    it.lease_held()
    late_ms = RELEASE_MS + 10 * DAY_MS
    assert it.done(late_ms) == Wait(AWAIT_MS, 1), "what is under way is waited for"
    it.confirmed([first])
    assert it.done(late_ms) == Acknowledge(("receipt 0",))
    assert it.done(late_ms) == LEAVE
    assert (it.state, it.begins_anew, it.left) == (State.LEFT, True, None)


# Groups (broker-facts: batched-hops)

LINGER = 200


def joined(it: RelayHeld, entry: int, now_ms: int = RELEASE_MS, remaining_ms: int = 30_000) -> Forward:
    """A hop into the tier of 10 s."""
    command = it.received(at(entry), 0, timer(remaining_ms, now_ms - STAY_MS), f"receipt {entry}", now_ms)
    assert isinstance(command, Forward)
    assert command.in_group
    return command


def test_hops_into_the_due_topic_go_alone_and_those_into_a_tier_in_groups() -> None:
    it = relay_held(linger_ms=LINGER)
    alone = it.received(at(0), 0, timer(5_000), "r", RELEASE_MS)
    assert isinstance(alone, Forward)
    assert not alone.in_group
    assert not joined(it, 1).asks


def test_a_group_goes_when_its_time_is_over_whatever_comes_meanwhile() -> None:
    it = relay_held(linger_ms=LINGER)
    joined(it, 0)
    assert it.nothing_came(RELEASE_MS + 50) == Receive(LINGER - 50), "one wait, not one every 20 ms"
    assert not joined(it, 1, RELEASE_MS + LINGER - 1).asks
    assert joined(it, 2, RELEASE_MS + LINGER).asks
    assert it.done(RELEASE_MS + LINGER) == SEND_GROUPS
    assert it.done(RELEASE_MS + LINGER) == RECEIVE
    assert it.nothing_came(RELEASE_MS + LINGER) == RECEIVE, "its confirmation is out"


def test_a_hop_that_goes_alone_asks_too_when_a_group_must_go() -> None:
    it = relay_held(linger_ms=LINGER)
    joined(it, 0)
    command = it.received(at(1), 0, timer(5_000), "r", RELEASE_MS + LINGER)
    assert isinstance(command, Forward)
    assert (command.in_group, command.asks) == (False, True)


def test_a_head_that_waits_longer_than_the_group_sends_it_at_once() -> None:
    it = relay_held(linger_ms=LINGER)
    joined(it, 0)
    soon = it.received(at(1), 0, timer(5_000, START_MS + 100), "r", RELEASE_MS)
    assert soon == Wait(100, 1), "it may join them"
    assert isinstance(it.done(RELEASE_MS + 100), Forward)
    assert it.received(at(2), 0, timer(5_000, START_MS + 2_000), "r", RELEASE_MS + 100) == SEND_GROUPS


def test_a_head_that_goes_in_a_group_is_looked_at_with_those_behind_it() -> None:
    """A wake-up for each of a thousand timers a second is dearer than all the rest."""
    it = relay_held(linger_ms=LINGER)
    command = it.received(at(0), 0, timer(30_000), "r", RELEASE_MS - 500)
    assert command == Wait(500 + LINGER // LOOKS_PER_LINGER, 1)
    assert isinstance(it.done(RELEASE_MS + LINGER // LOOKS_PER_LINGER), Forward)
    alone = relay_held(linger_ms=LINGER)
    assert alone.received(at(0), 0, timer(5_000), "r", RELEASE_MS - 500) == Wait(500, 1), "into the due topic: at once"
    with_others = relay_held(linger_ms=LINGER)
    joined(with_others, 0)
    soon_ms = LINGER - 10
    behind = with_others.received(at(1), 0, timer(30_000, START_MS + soon_ms), "r", RELEASE_MS)
    assert behind == Wait(LINGER - 1, 1), "before the group goes"


def test_whoever_waits_for_confirmations_sends_the_groups_first() -> None:
    full = relay_held(linger_ms=LINGER, window_limit=2)
    joined(full, 0)
    joined(full, 1)
    assert full.received(at(2), 0, timer(5_000), "r", RELEASE_MS) == SEND_GROUPS
    assert isinstance(full.done(RELEASE_MS), Wait)
    late = relay_held(linger_ms=LINGER)
    joined(late, 0)
    assert late.received(at(1), 0, timer(-60_000), "r", RELEASE_MS) != SEND_GROUPS, "into the due topic: the same lane"
    dead = relay_held(linger_ms=LINGER)
    joined(dead, 0)
    assert dead.received(at(1), 0, None, "r", RELEASE_MS) == SEND_GROUPS
    assert isinstance(dead.done(RELEASE_MS), Wait)
    leased = relay_held(linger_ms=LINGER)
    joined(leased, 0)
    joined(leased, 1)
    assert leased.lease_held() == SEND_GROUPS, "the first of them"
    assert isinstance(leased.done(RELEASE_MS), Wait)


def test_a_stop_sends_the_groups_and_waits_for_them() -> None:
    it = relay_held(linger_ms=LINGER)
    ordinal = joined(it, 0).ordinal
    assert it.stopping(500) == SEND_GROUPS
    assert it.stopping(500) == Wait(500, 1)
    it.confirmed([ordinal])
    assert it.stopping(400) == AskLast()
    hasty = relay_held(linger_ms=LINGER)
    joined(hasty, 0)
    assert hasty.stopping(0) == Leave(), "they are left to the next relay"


def test_what_could_not_join_a_group_leaves_no_moment_behind() -> None:
    it = relay_held(linger_ms=LINGER)
    joined(it, 0)
    assert it.lease_held() == GiveBack()
    assert isinstance(it.done(RELEASE_MS + 5_000), Wait)


def test_a_question_without_an_answer_is_asked_again_and_ends_nothing() -> None:
    it = relay_held()
    it.confirmed([sent(it, 0)])
    assert it.nothing_came(RELEASE_MS) == AskLast()
    assert it.no_last_position() == RECEIVE_IDLE
    assert it.nothing_came(RELEASE_MS + IDLE_MS) == AskLast()
    swept = relay_held(WHEEL, visit=VISIT)
    assert swept.received(at(0), 0, slot_timer(1), "r", SLOT_RELEASE_MS) == AskLast()
    assert isinstance(swept.no_last_position(), Wait)
    assert swept.done(SLOT_RELEASE_MS) == AskLast()


# Slots

SLOT_MS = 10_000
SLOT_RELEASE_MS = START_MS // TURN_MS * TURN_MS + TURN_MS - 2_000
VISIT = Visit(SLOT_RELEASE_MS + SLOT_MS, (SLOT_RELEASE_MS, SLOT_RELEASE_MS + SLOT_MS))


def slot_timer(turn: int) -> Envelope:
    return Envelope("t", SLOT_RELEASE_MS + 5_000 + turn * TURN_MS, SLOT_RELEASE_MS - 30_000)


def test_a_sweep_covers_what_was_there_when_its_end_was_asked_for() -> None:
    """An answer may take seconds: what came meanwhile is the second sweep's, and that one is still to be begun."""
    it = relay_held(WHEEL, visit=VISIT)
    assert it.received(at(0), 0, slot_timer(1), "r", SLOT_RELEASE_MS) == AskLast()
    late_ms = SLOT_RELEASE_MS + SLOT_MS + 1
    assert isinstance(it.last_position(at(0), late_ms), Refile)
    assert it.nothing_came(late_ms) == RECEIVE, "its confirmation is out"
    it.confirmed([0])
    assert it.nothing_came(late_ms) == AskLast(), "the second"


def test_a_slot_is_left_when_its_last_position_is_confirmed() -> None:
    it = relay_held(WHEEL, visit=VISIT)
    over_ms = SLOT_RELEASE_MS + SLOT_MS
    command = it.received(at(0), 0, slot_timer(0), "r", SLOT_RELEASE_MS)
    assert isinstance(command, Forward)
    it.confirmed([command.ordinal])
    assert it.nothing_came(over_ms) == AskLast()
    assert it.last_position(at(0), over_ms) == Acknowledge(("r",))
    assert it.done(over_ms) == Leave()
    assert (it.state, it.left) == (State.LEFT, VISIT)


def test_a_slot_whose_end_was_acknowledged_by_others_is_left_when_its_probe_has_come() -> None:
    it = relay_held(WHEEL, visit=VISIT)
    over_ms = SLOT_RELEASE_MS + SLOT_MS
    assert it.nothing_came(over_ms) == AskLast()
    assert it.last_position(at(4), over_ms) == PutProbe()
    assert it.done(over_ms) == RECEIVE_IDLE
    assert it.nothing_came(over_ms + 1) == RECEIVE_IDLE, "not asked while the probe is under way"
    it.confirmed([PROBED])
    assert it.received(at(0), 0, PROBE, "probe", over_ms + 2) == RECEIVE
    assert it.nothing_came(over_ms + 3) == AskLast()
    assert it.last_position(at(0), over_ms + 3) == Acknowledge(("probe",))
    assert it.done(over_ms + 3) == Leave()


def test_an_empty_slot_is_left_at_once_and_one_with_a_later_turn_at_its_head_too() -> None:
    over_ms = SLOT_RELEASE_MS + SLOT_MS
    empty = relay_held(WHEEL, visit=VISIT)
    assert empty.nothing_came(over_ms) == AskLast()
    assert empty.last_position(Position(-1, -1, -1), over_ms) == Leave()
    later = relay_held(WHEEL, visit=Visit(over_ms))
    assert later.received(at(0), 0, slot_timer(1), "r", over_ms) == Leave()


# Stopping


def test_a_stop_waits_for_what_is_under_way_and_acknowledges_it() -> None:
    it = relay_held()
    ordinal = sent(it, 0)
    assert it.stopping(500) == Wait(500, 1)
    it.confirmed([ordinal])
    assert it.stopping(400) == AskLast()
    assert it.last_position(at(0), RELEASE_MS) == Acknowledge(("receipt 0",))
    assert it.stopping(400) == Leave()
    assert it.left is None


def test_what_was_never_sent_does_not_keep_a_stop_waiting() -> None:
    it = relay_held()
    command = it.received(at(0), 0, timer(5_000), "r", RELEASE_MS)
    assert it.stopping(30_000, undone=command) == Leave()
    assert it.confirmed_to == Spot(Position(7, -1, -1), 0), "it is left to the next relay"


def test_a_stop_that_may_not_wait_leaves_what_is_under_way_unacknowledged() -> None:
    it = relay_held()
    sent(it, 0)
    assert it.stopping(0) == Leave()

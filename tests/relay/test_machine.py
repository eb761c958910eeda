"""The machines of a relay, walked through by chance and case by case; what they decide on messages: test_forwarding."""

from __future__ import annotations

import random
import re
from itertools import pairwise

import pytest

from tests.relay.machine_walk import WHEEL, Met
from tests.relay.relay_world import PLAN, START_MS, STAY_MS
from tests.support.drawn import between
from tests.support.machine_table import PAGE, TABLES, begin, lines, walked
from timewheel.client.positions import Position
from timewheel.core.durations import DAY_MS
from timewheel.core.envelope import Envelope
from timewheel.core.limits import OutOfOrder
from timewheel.core.next_hop import NextHop
from timewheel.core.plan import Plan
from timewheel.core.routing import Router
from timewheel.core.steps import steps
from timewheel.relay.machine.commands import (
    AWAIT_MS,
    IDLE_MS,
    LEAVE,
    NEVER,
    PROBE,
    PROBED,
    RECEIVE,
    RECEIVE_IDLE,
    SEND_GROUPS,
    Acknowledge,
    AskAgain,
    AskLast,
    Forward,
    GiveBack,
    Leave,
    PutProbe,
    Receive,
    Refile,
    Wait,
)
from timewheel.relay.machine.forwarding import Forwarding
from timewheel.relay.machine.gathering import LOOKS_PER_LINGER
from timewheel.relay.machine.order import Spot
from timewheel.relay.machine.relay_held import ACK_EVERY, LEASE_FIRST_MS, LEASE_LONGEST_MS, RelayHeld
from timewheel.relay.machine.states import State
from timewheel.relay.machine.visits import Visit
from timewheel.relay.machine.window import WINDOW_BYTES

RELEASE_MS = START_MS + STAY_MS
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


def at(entry: int) -> Position:
    return Position(7, entry, -1)


def timer(remaining_ms: int, entered_ms: int = START_MS) -> Envelope:
    return Envelope("t", entered_ms + STAY_MS + remaining_ms, entered_ms)


def forwarded(it: RelayHeld, entry: int, now_ms: int = RELEASE_MS) -> int:
    command = it.received(at(entry), 0, timer(5_000), f"receipt {entry}", now_ms)
    assert isinstance(command, Forward)
    return command.ordinal


def test_a_steady_stream_is_acknowledged_every_hundred_confirmations() -> None:
    it = relay_held()
    ordinals = [forwarded(it, entry) for entry in range(2 * ACK_EVERY)]
    assert it.confirmed(ordinals[: ACK_EVERY - 1]) is None
    assert it.confirmed(ordinals[ACK_EVERY - 1 : ACK_EVERY]) == Acknowledge((f"receipt {ACK_EVERY - 1}",))
    assert it.confirmed(ordinals[ACK_EVERY:-1]) is None
    # The newest is kept back until the topic is known to end with it.
    assert it.confirmed(ordinals[-1:]) == Acknowledge((f"receipt {2 * ACK_EVERY - 2}",))


def test_when_nothing_comes_all_is_acknowledged_and_names_are_given_back_in_time() -> None:
    it = relay_held()
    assert it.confirmed([forwarded(it, 0)]) is None
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
    forwarded(it, 0)
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
    ordinals = [forwarded(it, entry) for entry in range(8)]
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
    forwarded(it, 0)
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
    first = forwarded(it, 0)
    second = it.received(at(1), 0, timer(30_000), "receipt 1", RELEASE_MS)
    assert isinstance(second, Forward)
    it.lease_held()
    late_ms = RELEASE_MS + 10 * DAY_MS
    assert it.done(late_ms) == Wait(AWAIT_MS, 1), "what is under way is waited for"
    it.confirmed([first])
    assert it.done(late_ms) == Acknowledge(("receipt 0",))
    assert it.done(late_ms) == LEAVE
    assert (it.state, it.begins_anew, it.left) == (State.LEFT, True, None)


def test_a_late_head_that_met_no_other_relay_needs_no_lease() -> None:
    it = relay_held()
    command = it.received(at(0), 0, timer(30_000), "r", RELEASE_MS + 10 * DAY_MS)
    assert isinstance(command, Forward)
    assert not command.named
    assert not it.begins_anew


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
    it.confirmed([forwarded(it, 0)])
    assert it.nothing_came(RELEASE_MS) == AskLast()
    assert it.no_last_position() == RECEIVE_IDLE
    assert it.nothing_came(RELEASE_MS + IDLE_MS) == AskLast()
    swept = relay_held(WHEEL, visit=VISIT)
    assert swept.received(at(0), 0, slot_timer(1), "r", SLOT_RELEASE_MS) == AskLast()
    assert isinstance(swept.no_last_position(), Wait)
    assert swept.done(SLOT_RELEASE_MS) == AskLast()


# Slots

SLOT_MS = 10_000
TURN_MS = 8 * SLOT_MS
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
    ordinal = forwarded(it, 0)
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
    forwarded(it, 0)
    assert it.stopping(0) == Leave()

"""The engine's table, row by row; what it remembers; what becomes of a timer that is due."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.consumers.support import BOUND_MS, NOW_MS, arrival, engine, handed, republished, said
from timewheel.client.positions import Position
from timewheel.consumers import Overdue
from timewheel.consumers.engine import (
    MAX_REPUBLISHING,
    DeliveryPolicy,
    HandledWindow,
    NegativeAcknowledge,
    Verdict,
    timer_key,
    verdict_on,
)
from timewheel.consumers.message import Arrival, Mark, Parked, Stage
from timewheel.consumers.receiver import DueQueue
from timewheel.core.envelope import Envelope, Life


@pytest.mark.parametrize("early_ms", [1, BOUND_MS])
def test_what_is_early_by_at_most_the_bound_is_held_to_the_millisecond(early_ms: int) -> None:
    it = engine()
    assert it.received(arrival(1, "a", NOW_MS + early_ms), NOW_MS, 0) == []
    assert it.next_wake_ms() == NOW_MS + early_ms
    assert it.tick(NOW_MS + early_ms - 1) == []
    assert said(it.tick(NOW_MS + early_ms)) == [("hand", 1)]
    assert it.next_wake_ms() is None


def test_what_is_earlier_than_that_waits_for_the_bound_and_then_published_again() -> None:
    it = engine()
    assert it.received(arrival(1, "a", NOW_MS + BOUND_MS + 60_000), NOW_MS, 0) == []
    assert it.next_wake_ms() == NOW_MS + BOUND_MS
    timer = republished(it.tick(NOW_MS + BOUND_MS))
    assert it.held_count == 1  # until it is confirmed
    assert said(it.published(timer, NOW_MS)) == [("ack", 1)]
    assert it.held_count == 0
    assert (it.counts.early, it.counts.far_too_early, it.counts.republished) == (1, 1, 1)


def test_what_was_too_early_and_is_nearly_due_after_that_is_held() -> None:
    it = engine()
    it.received(arrival(1, "a", NOW_MS + BOUND_MS + 5), NOW_MS, 0)
    assert it.tick(NOW_MS + BOUND_MS) == []
    assert said(it.tick(NOW_MS + BOUND_MS + 5)) == [("hand", 1)]


def test_far_ones_never_take_more_than_half_of_the_room() -> None:
    it = engine(max_held=10)
    far_ms = NOW_MS + 3_600_000
    for entry in range(5):
        assert it.received(arrival(entry, f"far-{entry}", far_ms), NOW_MS, 0) == []
    assert said(it.received(arrival(9, "far-9", far_ms), NOW_MS, 0)) == [("republish", 9)]


def test_it_is_full_at_its_bound_and_not_before() -> None:
    it = engine(max_held=3)
    for entry in range(3):
        assert not it.full
        it.received(arrival(entry, f"t{entry}", NOW_MS + 10), NOW_MS, 0)
    assert it.full
    it.tick(NOW_MS + 10)
    assert not it.full


def test_an_unanswered_republication_counts_as_held_and_a_failed_one_is_tried_again() -> None:
    it = engine(max_held=2)
    due_ms = NOW_MS + 3_600_000
    it.received(arrival(1, "a", due_ms), NOW_MS, 0)
    timer = republished(it.tick(NOW_MS + BOUND_MS))
    it.received(arrival(2, "b", NOW_MS + 5), NOW_MS, 0)
    assert it.full
    assert it.not_published(timer, NOW_MS + BOUND_MS) == []
    assert timer.stage is Stage.TOO_EARLY
    assert it.held_count == 2
    assert ("republish", 1) in said(it.tick(NOW_MS + 2 * BOUND_MS))


def test_no_more_than_the_bound_is_published_at_a_time() -> None:
    count = MAX_REPUBLISHING + 50
    it = engine(max_held=2 * count)
    for entry in range(count):
        it.received(arrival(entry, f"t{entry}", NOW_MS + 3_600_000), NOW_MS, 0)
    assert len(it.tick(NOW_MS + BOUND_MS)) == MAX_REPUBLISHING
    assert it.held_count == count


def test_done_acknowledges_and_a_later_delivery_is_dropped() -> None:
    it = engine()
    timer = handed(it.received(arrival(1, "a", NOW_MS), NOW_MS, 0))
    assert said(it.done(timer)) == [("ack", 1)]
    assert said(it.received(arrival(1, "a", NOW_MS), NOW_MS, 0)) == [("ack", 1)]
    assert said(it.received(arrival(7, "a", NOW_MS), NOW_MS, 0)) == [("ack", 7)]
    assert it.counts.already_handled == 2


@pytest.mark.parametrize("due_ms", [NOW_MS, NOW_MS + 10], ids=["handed", "held"])
def test_a_redelivery_from_the_same_position_is_handed_out_once_and_acknowledged_as_the_newest_copy(
    due_ms: int,
) -> None:
    it = engine()
    it.received(arrival(1, "a", due_ms, copy="old"), NOW_MS, 0)
    assert said(it.received(arrival(1, "a", due_ms, copy="new"), NOW_MS, 0)) == [("drop", 1)]
    it.tick(due_ms)
    timer = it.at_position(Position(1, 1, -1))
    assert timer is not None
    (command,) = it.done(timer)
    assert not isinstance(command, str)
    assert said([command]) == [("ack", 1)]
    assert timer.arrival.message == "new"
    assert it.counts.handed == 1


def test_an_extra_copy_is_acknowledged_when_its_timer_is_handled_and_not_before() -> None:
    it = engine()
    it.received(arrival(1, "a", NOW_MS + 10), NOW_MS, 0)
    assert said(it.received(arrival(2, "a", NOW_MS + 10), NOW_MS, 0)) == [("drop", 2)]
    assert said(it.received(arrival(2, "a", NOW_MS + 10), NOW_MS, 0)) == [("drop", 2)]
    assert it.held_count == 2
    timer = handed(it.tick(NOW_MS + 10))
    assert said(it.done(timer)) == [("ack", 1), ("ack", 2)]
    assert it.held_count == 0


def test_a_copy_that_comes_back_before_its_publication_is_confirmed_is_not_acknowledged_with_the_original() -> None:
    # The copy at 2 is what was just published: it alone is stored once the original at 1 is acknowledged.
    it = engine()
    due_ms = NOW_MS + BOUND_MS + 60_000
    it.received(arrival(1, "a", due_ms), NOW_MS, 0)
    timer = republished(it.tick(NOW_MS + BOUND_MS))
    assert said(it.received(arrival(2, "a", due_ms), NOW_MS + BOUND_MS, 0)) == [("drop", 2)]
    assert said(it.published(timer, due_ms - 10)) == [("ack", 1)]
    again = handed(it.tick(due_ms))
    assert said(it.done(again)) == [("ack", 2)]


def test_after_the_ack_time_out_it_is_handed_out_again_and_before_it_is_not() -> None:
    it = engine(ack_timeout_ms=10_000)
    first = handed(it.received(arrival(1, "a", NOW_MS), NOW_MS, 0))
    assert said(it.received(arrival(1, "a", NOW_MS), NOW_MS, 9_999)) == [("drop", 1)]  # a reload; counts afresh
    assert said(it.received(arrival(1, "a", NOW_MS), NOW_MS, 19_998)) == [("drop", 1)]
    second = handed(it.received(arrival(1, "a", NOW_MS), NOW_MS, 29_998))
    assert second is not first
    assert it.counts.timed_out == 1
    # The first handler fails late: the second one has it now.
    assert it.failed(first) == []
    assert said(it.done(second)) == [("ack", 1)]


def test_extra_copies_stay_with_a_timer_that_timed_out() -> None:
    it = engine(ack_timeout_ms=10_000)
    it.received(arrival(1, "a", NOW_MS), NOW_MS, 0)
    it.received(arrival(2, "a", NOW_MS), NOW_MS, 0)
    again = handed(it.received(arrival(1, "a", NOW_MS), NOW_MS, 10_000))
    assert said(it.done(again)) == [("ack", 1), ("ack", 2)]
    assert it.held_count == 0


def test_the_late_success_of_a_timed_out_handler_counts() -> None:
    it = engine(ack_timeout_ms=10_000)
    first = handed(it.received(arrival(1, "a", NOW_MS), NOW_MS, 0))
    second = handed(it.received(arrival(1, "a", NOW_MS), NOW_MS, 10_000))
    assert said(it.done(first)) == [("ack", 1)]
    assert it.failed(second) == []  # acknowledged: nothing to deliver again
    assert said(it.received(arrival(1, "a", NOW_MS), NOW_MS, 0)) == [("ack", 1)]


def test_the_late_success_acknowledges_extra_copies_also_when_the_second_handler_has_failed() -> None:
    it = engine(ack_timeout_ms=10_000)
    first = handed(it.received(arrival(1, "a", NOW_MS), NOW_MS, 0))
    it.received(arrival(2, "a", NOW_MS), NOW_MS, 0)
    second = handed(it.received(arrival(1, "a", NOW_MS), NOW_MS, 10_000))
    assert said(it.failed(second)) == [("nack", 1), ("nack", 2)]
    assert said(it.done(first)) == [("ack", 1), ("ack", 2)]
    assert said(it.received(arrival(2, "a", NOW_MS), NOW_MS, 10_000)) == [("ack", 2)]
    assert (it.counts.failed, it.counts.done, it.counts.skipped) == (1, 1, 0)


def test_a_foreign_message_is_handed_out_at_once_and_may_be_handed_out_after_it_was_handled() -> None:
    it = engine()
    timer = handed(it.received(arrival(1, None), NOW_MS, 0))
    assert said(it.received(arrival(1, None), NOW_MS, 0)) == [("drop", 1)]
    assert said(it.done(timer)) == [("ack", 1)]
    # It has no identity but its position: who rewinds a subscription wants it again.
    assert said(it.received(arrival(1, None), NOW_MS, 0)) == [("hand", 1)]
    assert it.counts.foreign == 3


def test_a_garbled_envelope_is_counted_and_handed_out() -> None:
    it = engine()
    garbled = Arrival(None, None, Position(1, 1, -1), None, "envelope: tw-timer is garbled")
    assert said(it.received(garbled, NOW_MS, 0)) == [("hand", 1)]
    assert (it.counts.envelope_errors, it.counts.foreign) == (1, 0)


def test_a_timer_of_a_later_version_is_given_back() -> None:
    it = engine()
    later = Arrival(None, None, Position(1, 1, -1), None, "envelope: version 2", Mark.TOO_NEW)
    assert it.received(later, NOW_MS, 0) == [NegativeAcknowledge(later)]
    assert (it.counts.too_new, it.counts.envelope_errors, it.counts.foreign) == (1, 0, 0)
    assert it.held_count == 0


def test_when_the_clock_goes_back_by_more_than_the_bound_nothing_stays_held() -> None:
    it = engine()
    for entry in range(3):
        it.received(arrival(entry, f"t{entry}", NOW_MS + 10), NOW_MS, 0)
    back_ms = NOW_MS - 3_600_000
    assert it.tick(back_ms) == []
    assert it.next_wake_ms() == back_ms + BOUND_MS  # too early
    assert said(it.tick(back_ms + BOUND_MS)) == [("republish", 0), ("republish", 1), ("republish", 2)]


def test_when_the_clock_goes_forward_everything_due_is_handed_out_in_order() -> None:
    it = engine()
    for entry, early_ms in enumerate([30, 10, 20]):
        it.received(arrival(entry, f"t{entry}", NOW_MS + early_ms), NOW_MS, 0)
    assert said(it.tick(NOW_MS + 3_600_000)) == [("hand", 1), ("hand", 2), ("hand", 0)]


def test_what_another_store_says_was_handled_is_dropped() -> None:
    store = HandledWindow(10)
    store.add(timer_key(Envelope("a", 1, 1)))
    it = engine(handled=store)
    assert said(it.received(arrival(1, "a", NOW_MS + 10), NOW_MS, 0)) == [("ack", 1)]


def test_what_is_due_is_ordered_by_due_time_and_what_says_none_comes_first() -> None:
    queue, under = DueQueue(), engine(max_held=100)
    for entry, (name, due_ms) in enumerate([("b", NOW_MS - 5), ("a", NOW_MS - 9), (None, 0), ("c", NOW_MS - 5)]):
        queue.push(handed(under.received(arrival(entry, name, due_ms), NOW_MS, 0)))
    assert (len(queue), queue.late_ms(NOW_MS)) == (4, 0), "nobody knows how late the first one is"
    first = queue.pop()
    assert first.arrival.envelope is None
    assert queue.late_ms(NOW_MS) == 9
    assert [queue.pop().key for _ in range(3)] == ["0:a", "0:b", "0:c"]
    assert (len(queue), queue.late_ms(NOW_MS)) == (0, 0)


def test_the_oldest_timer_is_forgotten_first() -> None:
    window = HandledWindow(3)
    for key in ["a", "b", "a", "c", "d"]:
        window.add(key)
    assert [key in window for key in "abcd"] == [False, True, True, True]
    assert len(window) == 3


def test_a_generation_is_a_timer_of_its_own() -> None:
    window = HandledWindow(3)
    window.add(timer_key(Envelope("sub-42", 1, 1, generation=0)))
    assert timer_key(Envelope("sub-42", 9, 9, generation=0)) in window
    assert timer_key(Envelope("sub-42", 1, 1, generation=1)) not in window


@given(st.lists(st.tuples(st.text(":0123a@", min_size=1), st.integers(0, 999_999_999)), min_size=2, unique=True))
def test_different_timers_never_share_a_key(timers: list[tuple[str, int]]) -> None:
    keys = {timer_key(Envelope(timer_id, 1, 1, generation=generation)) for timer_id, generation in timers}
    assert len(keys) == len(timers)
    assert all(key[0].isdigit() for key in keys)  # the engine's keys of messages without an envelope begin with @


KEEP_MS = 60_000
ALIVE, DEAD = DeliveryPolicy(lambda _: False, KEEP_MS), DeliveryPolicy(lambda _: True, KEEP_MS)
MINUTE = dt.timedelta(minutes=1)
PARK, DROP, DELIVER = (Overdue(MINUTE / 2, then) for then in ("park", "drop", "deliver"))


@pytest.mark.parametrize(
    ("late_ms", "judge", "overdue", "expected"),
    [
        (0, None, None, Verdict.HAND),
        (10**9, None, None, Verdict.HAND),
        (0, ALIVE, None, Verdict.ASK),
        (0, DEAD, None, Verdict.CANCELLED),
        (KEEP_MS, ALIVE, None, Verdict.ASK),
        (KEEP_MS + 1, ALIVE, None, Parked),
        (KEEP_MS + 1, DEAD, None, Verdict.CANCELLED),
        (30_000, None, PARK, Verdict.HAND),
        (30_001, None, PARK, Parked("it came 30s 1ms after its due time, and is useful for 30s only")),
        (30_001, None, DROP, Verdict.OVERDUE),
        (30_001, None, DELIVER, Verdict.HAND),
        (30_001, ALIVE, DELIVER, Verdict.ASK),
        (30_001, DEAD, DROP, Verdict.CANCELLED),
        (30_001, ALIVE, DROP, Verdict.OVERDUE),
        (KEEP_MS + 1, ALIVE, DELIVER, Parked),
    ],
)
def test_the_table(late_ms: int, judge: DeliveryPolicy | None, overdue: Overdue | None, expected: Any) -> None:
    found = verdict_on(Envelope("t", NOW_MS - late_ms, 0), NOW_MS, judge, overdue)
    if expected is Parked:
        assert isinstance(found, Parked)
        assert "it may have been cancelled" in found.reason
    else:
        assert found == expected


def test_without_an_envelope_it_is_handed_out() -> None:
    assert verdict_on(None, NOW_MS, DEAD, DROP) is Verdict.HAND


def test_an_attempt_is_overdue_by_its_own_time_and_cancelled_by_the_first() -> None:
    again = Envelope("t", NOW_MS - 1, 0, life=Life(attempt=3, first_due_ms=NOW_MS - KEEP_MS - 1, only_for="s"))
    assert verdict_on(again, NOW_MS, None, DROP) is Verdict.HAND
    assert isinstance(verdict_on(again, NOW_MS, ALIVE, None), Parked)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"after": dt.timedelta(0)}, "above 0"),
        ({"after": 5}, "a duration"),
        ({"after": MINUTE, "then": "burn"}, "deliver, drop, park"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(given: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Overdue(**given)


def test_an_overdue_one_is_dropped_with_its_copies_or_parked() -> None:
    under = engine(overdue=DROP)
    assert said(under.received(arrival(1, "a", NOW_MS - 30_001), NOW_MS, 0)) == [("ack", 1)]
    assert said(under.received(arrival(2, "a", NOW_MS - 30_001), NOW_MS, 0)) == [("ack", 2)]
    assert (under.counts.overdue, under.counts.already_handled, under.held_count) == (1, 1, 0)
    under = engine(overdue=PARK)
    timer = republished(under.received(arrival(1, "a", NOW_MS - 30_001), NOW_MS, 0))
    assert isinstance(timer.redirect, Parked)
    assert said(under.published(timer, NOW_MS)) == [("ack", 1)]
    assert under.counts.parked == 1

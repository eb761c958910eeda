"""What is cut off when something is cancelled or replaced; and what a producer makes of groups and replacements."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.manual_clock import ManualClock
from tests.support.plans import plan_of
from tests.support.silent_broker import SilentClient
from timewheel.client.results import Outcome
from timewheel.core import Cancel, Envelope, Native, Plan, Router, SystemClock
from timewheel.core.cancellations import Cancellation, CancellationTable, read_cancellations
from timewheel.core.durations import DAY_MS
from timewheel.core.envelope import MAX_GENERATION
from timewheel.core.errors import BadArgument, CancelFailed, CancelOutcomeUnknown, CancelRefused
from timewheel.producers import DelayedProducer, Timer
from timewheel.producers.cancel_messages import (
    after_cancel,
    cancellation_of_group,
    cancellation_of_replaced,
    cancellation_of_timer,
    message_of,
)
from timewheel.producers.prepare import Outgoing, prepare

NOW_MS = 1_763_700_000_000
DUE_TOPIC = "persistent://acme/crm/reminders"
PLAN = plan_of(Native(), max_delay_ms=7 * DAY_MS, cancel=Cancel(keep_ms=2 * DAY_MS, skew_ms=1_000))


def prepared(timer_id: str | None = "a", stamp: int = 7, plan: Plan = PLAN, **options: Any) -> Outgoing:
    when: dict[str, Any] = {} if "deliver_at" in options else {"deliver_after": dt.timedelta(days=1)}
    return prepare(
        Router(plan), NOW_MS, 0, str, b"x", bytes, timer_id=timer_id, new_stamp=lambda _: stamp, **when, **options
    )


def envelope_of(outgoing: Outgoing) -> Envelope:
    found = Envelope.read(outgoing.properties)
    assert found is not None
    return found


@given(st.integers(1, MAX_GENERATION - 1), st.integers(1, MAX_GENERATION - 1))
def test_a_replacement_outlives_its_own_cut_off_and_nothing_older_does(stamp: int, older: int) -> None:
    outgoing = prepared(stamp=stamp, replace=True)
    table = CancellationTable()
    table.merge(cancellation_of_replaced(PLAN, outgoing, NOW_MS))
    assert not table.is_cancelled(envelope_of(outgoing))
    assert table.is_cancelled(envelope_of(prepared()))
    assert table.is_cancelled(envelope_of(prepared(stamp=older, replace=True))) == (older < stamp)


@pytest.mark.parametrize("ahead_ms", [0, 999], ids=["in one millisecond", "by a clock that is ahead"])
def test_what_one_producer_of_a_process_sent_is_before_what_another_cancels_and_not_after(ahead_ms: int) -> None:
    now_ms = SystemClock().now_ms()
    sends, cancels = (
        DelayedProducer(SilentClient(closes=True), PLAN, clock=ManualClock(now_ms + more_ms))
        for more_ms in (ahead_ms, 0)
    )
    for number in range(50):
        table = CancellationTable()
        options: Any = {"timer_id": f"t{number}", "replace": True, "group": "g"}
        before = [envelope_of(sends._prepare(b"x", options)) for _ in range(2)]
        for cancelling in (
            cancels._cancelling(f"t{number}", print, print),
            cancels._cancelling("g", print, print, is_group=True),
        ):
            assert cancelling.cancellation is not None
            table.merge(cancelling.cancellation)
        assert all(table.is_cancelled(envelope) for envelope in before)
        assert not table.is_cancelled(envelope_of(sends._prepare(b"x", options)))


@given(st.integers(0, MAX_GENERATION), st.integers(0, MAX_GENERATION))
def test_a_cancelled_group_is_what_joined_before(joined: int, cancelled: int) -> None:
    table = CancellationTable()
    table.merge(cancellation_of_group(PLAN, "order 7", cancelled, NOW_MS))
    assert table.is_cancelled(envelope_of(prepared(stamp=joined, group="order 7"))) == (joined < cancelled)
    assert not table.is_cancelled(envelope_of(prepared(stamp=joined, group="order 8")))
    assert not table.is_cancelled(envelope_of(prepared(timer_id="order 7")))


@pytest.mark.parametrize(
    ("timer", "latest_due_ms"),
    [
        (Timer("a", NOW_MS + DAY_MS), NOW_MS + DAY_MS),
        (Timer("a", NOW_MS - DAY_MS), NOW_MS),  # it may be handed out at any moment from now on
        ("a", NOW_MS + 7 * DAY_MS),
    ],
)
def test_a_cut_off_is_kept_while_its_timer_may_come(timer: Timer | str, latest_due_ms: int) -> None:
    cancellation = cancellation_of_timer(PLAN, timer, 9, NOW_MS)
    assert cancellation == ("timer", "a", 9, latest_due_ms + 2 * DAY_MS + 1_000)


@pytest.mark.parametrize(
    ("due_ms", "says"),
    [
        (NOW_MS // 1_000, "milliseconds since 1970 are needed, not seconds"),
        (NOW_MS * 1_000, "not micro- or nanoseconds"),
        (None, "no whole number of milliseconds since 1970; where it is not known, give the id instead of the Timer"),
        (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "no whole number of milliseconds"),
    ],
)
def test_a_timer_put_together_with_a_wrong_due_time_is_refused_since_its_cancel_would_be_forgotten(
    due_ms: Any, says: str
) -> None:
    with pytest.raises(CancelRefused, match=says):
        cancellation_of_timer(PLAN, Timer("a", due_ms), 9, NOW_MS)


def moved(due_ms: int, stamp: int) -> tuple[Envelope, Cancellation]:
    """A timer that is due then in place of another, and its cancellation."""
    outgoing = prepared(stamp=stamp, replace=True, deliver_at=due_ms)
    return envelope_of(outgoing), cancellation_of_replaced(PLAN, outgoing, NOW_MS)


def test_what_was_replaced_or_cancelled_stays_dead_until_it_cannot_come_any_more() -> None:
    """Each timer here is moved from in an hour to the plan's longest delay, or from that to in two hours."""
    hour_ms, far_ms = DAY_MS // 24, NOW_MS + PLAN.max_delay_ms
    first = Timer("a", NOW_MS + hour_ms, due_topic=DUE_TOPIC)
    stamps = [(NOW_MS + n) * 1_000 for n in range(3)]
    far, cancellation_of_far = moved(far_ms, stamps[0])
    near, cancellation_of_near = moved(NOW_MS + 2 * hour_ms, stamps[1])
    cases = {
        "moved twice, since the first time had no answer, and never cut off": [moved(far_ms, stamps[1])[1]],
        "moved by another caller since": [cancellation_of_far, cancellation_of_near],
        "cancelled by who had the timer from before it was moved": [
            cancellation_of_far,
            cancellation_of_timer(PLAN, first, stamps[2], NOW_MS),
        ],
    }
    for case, cancellations in cases.items():
        table = CancellationTable()
        for cancellation in cancellations:
            table.merge(cancellation)
        for now_ms in (NOW_MS, NOW_MS + 2 * DAY_MS, far_ms, far_ms + 2 * DAY_MS):
            table.forget(now_ms)
            assert table.is_cancelled(far), (case, now_ms)
    assert near.due_ms < far.due_ms


def test_a_timer_of_this_topic_or_of_none_that_is_known_can_be_cancelled() -> None:
    for topic in ("", DUE_TOPIC):
        assert cancellation_of_timer(PLAN, Timer("a", NOW_MS, due_topic=topic), 9, NOW_MS).name == "a"
    with pytest.raises(CancelRefused, match="was sent to persistent://acme/crm/other"):
        cancellation_of_timer(PLAN, Timer("a", NOW_MS, due_topic="persistent://acme/crm/other"), 9, NOW_MS)


def test_the_message_of_a_cut_off_is_one_line_of_the_log() -> None:
    cancellation = cancellation_of_timer(PLAN, "a", 9, NOW_MS)
    message = message_of(PLAN, cancellation)
    assert (message.topic, message.partition, message.place, message.properties) == (
        f"{DUE_TOPIC}.tw.cancellations",
        0,
        "cancellations",
        {},
    )
    assert read_cancellations(message.payload or b"") == [cancellation]


def test_the_outcome_of_a_cut_off_is_told_as_what_it_is() -> None:
    message = message_of(PLAN, cancellation_of_timer(PLAN, "a", 9, NOW_MS))
    assert after_cancel(message, Outcome.OK, "Ok", attempts=1) is None
    assert after_cancel(message, Outcome.REOPEN, "AlreadyClosed", attempts=1) is message
    for outcome in (Outcome.REFUSED, Outcome.ROUTE_AGAIN, Outcome.BUSY, Outcome.TOO_LARGE):
        assert isinstance(after_cancel(message, outcome, "Why", attempts=1), CancelFailed)
    assert isinstance(after_cancel(message, Outcome.REOPEN, "AlreadyClosed", attempts=9), CancelFailed)
    unknown = after_cancel(message, Outcome.UNKNOWN, "Timeout", attempts=1)
    assert isinstance(unknown, CancelOutcomeUnknown)
    assert "Timeout" in str(unknown)


@pytest.mark.parametrize("group", ["", 7, "x" * 257, "\ud800"])
def test_a_group_that_no_message_can_carry_is_refused(group: Any) -> None:
    with pytest.raises(BadArgument) as caught:
        prepared(group=group)
    assert caught.value.name == "group"


def test_a_plain_send_has_the_two_properties_of_version_1_whether_there_are_cancels_or_not() -> None:
    without = Plan(due_topic=DUE_TOPIC, subscriptions=("billing",), scheme=Native(), max_delay_ms=7 * DAY_MS)
    assert prepared().properties == prepared(plan=without).properties
    assert prepared(replace=False).properties == prepared().properties
    assert set(prepared().properties) == {"tw-id", "tw-timer"}


def test_a_replacement_of_a_group_says_both() -> None:
    envelope = envelope_of(prepared(stamp=1_763_700_000_000_123, group="order 7", replace=True))
    assert envelope.generation == envelope.life.group_stamp == 1_763_700_000_000_123
    assert envelope.life.group == "order 7"


def test_on_another_route_a_timer_keeps_its_generation_and_its_group() -> None:
    outgoing = prepared(stamp=5, group="g", replace=True)
    moved = outgoing.sent_to(Router(PLAN).to_due(outgoing.due_ms, NOW_MS + 9), NOW_MS + 9, 3)
    before, after = envelope_of(outgoing), envelope_of(moved)
    assert after == before._replace(entered_ms=NOW_MS + 9, revision=3)
    assert moved.generation == 5

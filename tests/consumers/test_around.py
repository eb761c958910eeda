"""What stands around a handler: its order, what becomes of what it raises, and a timer that is put off."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from tests.consumers.support import BOUND_MS, NOW_MS, arrival, engine, handed, said
from timewheel.client.hooks import Hooks
from timewheel.consumers import Middleware, Postpone, SkipTimer
from timewheel.consumers.message import DelayedMessage, Stage
from timewheel.consumers.middleware import MiddlewareChain
from timewheel.hooks import Event


class Noting(Middleware):
    """Notes its calls; raises what it is told to."""

    def __init__(self, name: str, notes: list[str], **raises: BaseException) -> None:
        self._name = name
        self._notes = notes
        self._raises = raises

    def _called(self, method: str, error: object = "") -> None:
        self._notes.append(f"{self._name}.{method}{f' {type(error).__name__}' if error else ''}")
        if method in self._raises:
            raise self._raises[method]

    def before(self, message: DelayedMessage) -> None:
        del message
        self._called("before")

    def after(self, message: DelayedMessage) -> None:
        del message
        self._called("after")

    def failed(self, message: DelayedMessage, error: BaseException) -> None:
        del message
        self._called("failed", error)


def a_message() -> DelayedMessage:
    return DelayedMessage(handed(engine().received(arrival(1, "t", NOW_MS), NOW_MS, 0)), NOW_MS)


def played(
    outer: dict[str, BaseException], inner: dict[str, BaseException], handler: BaseException | None = None
) -> Any:
    notes: list[str] = []
    events: list[Event] = []
    middleware = MiddlewareChain(
        [Noting("outer", notes, **outer), Noting("inner", notes, **inner)], Hooks((events.append,))
    )

    def handle(_: DelayedMessage) -> None:
        notes.append("handler")
        if handler is not None:
            raise handler

    raised: BaseException | None = None
    try:
        middleware(handle, a_message())
    except BaseException as error:  # noqa: BLE001 - what came out is what is asked for
        raised = error
    return notes, raised, events


def test_the_first_is_the_outermost() -> None:
    notes, raised, events = played({}, {})
    assert notes == ["outer.before", "inner.before", "handler", "inner.after", "outer.after"]
    assert (raised, events) == (None, [])


@pytest.mark.parametrize(
    "error", [ValueError("no"), SkipTimer("done"), Postpone(dt.timedelta(seconds=1)), SystemExit(3)]
)
def test_what_a_handler_raises_is_told_to_all_from_within_and_goes_on(error: BaseException) -> None:
    notes, raised, _ = played({}, {}, error)
    kind = type(error).__name__
    assert notes == ["outer.before", "inner.before", "handler", f"inner.failed {kind}", f"outer.failed {kind}"]
    assert raised is error


def test_who_was_not_entered_is_not_told() -> None:
    error = SkipTimer()
    notes, raised, _ = played({}, {"before": error})
    assert notes == ["outer.before", "inner.before", "outer.failed SkipTimer"]
    assert raised is error


def test_what_after_and_failed_raise_is_an_event_and_changes_nothing() -> None:
    notes, raised, events = played({}, {"after": ValueError("after")})
    assert notes[-1] == "outer.after"
    assert raised is None
    assert [(event.name, event.fields["method"]) for event in events] == [("middleware_failed", "after")]
    handler = RuntimeError("handler")
    notes, raised, events = played({}, {"failed": ValueError("failed")}, handler)
    assert notes[-1] == "outer.failed RuntimeError"
    assert raised is handler
    assert [(event.name, event.fields["method"]) for event in events] == [("middleware_failed", "failed")]


@pytest.mark.parametrize("after", [dt.timedelta(seconds=-1), dt.timedelta(minutes=11)])
def test_later_is_for_short_whiles(after: dt.timedelta) -> None:
    with pytest.raises(ValueError, match="in this consumer's hands"):
        Postpone(after)
    assert Postpone(dt.timedelta(microseconds=1)).after_ms == 1


def test_a_timer_that_is_put_off_comes_again_at_its_time_and_not_before() -> None:
    under = engine()
    timer = handed(under.received(arrival(1, "t", NOW_MS), NOW_MS, 0))
    after_ms = 3 * BOUND_MS
    assert under.postponed(timer, NOW_MS, after_ms) == []
    assert (timer.stage, under.held_count, under.counts.postponed) == (Stage.HELD, 1, 1)
    for passed_ms in range(BOUND_MS, after_ms, BOUND_MS):
        assert under.tick(NOW_MS + passed_ms) == []
    assert said(under.tick(NOW_MS + after_ms)) == [("hand", 1)]
    assert said(under.done(timer)) == [("ack", 1)]


def test_a_clock_that_is_set_back_ends_the_wait() -> None:
    under = engine()
    timer = handed(under.received(arrival(1, "t", NOW_MS - 60_000), NOW_MS, 0))
    under.postponed(timer, NOW_MS, BOUND_MS)
    assert said(under.tick(NOW_MS - 30_000)) == [("hand", 1)]


def test_without_room_it_waits_with_the_broker() -> None:
    under = engine(max_held=1)
    timer = handed(under.received(arrival(1, "t", NOW_MS), NOW_MS, 0))
    under.received(arrival(2, "held", NOW_MS + 5), NOW_MS, 0)
    assert said(under.postponed(timer, NOW_MS, 1_000)) == [("nack", 1)]


def test_a_skipped_timer_is_acknowledged_and_remembered() -> None:
    under = engine()
    timer = handed(under.received(arrival(1, "t", NOW_MS), NOW_MS, 0))
    assert said(under.done(timer, is_skipped=True)) == [("ack", 1)]
    assert (under.counts.skipped, under.counts.done) == (1, 0)
    assert said(under.received(arrival(2, "t", NOW_MS), NOW_MS, 0)) == [("ack", 2)]

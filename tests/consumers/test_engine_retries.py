"""The engine where timers are tried again or parked: case by case, then in any order of events."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from tests.consumers.support import BOUND_MS, NOW_MS, arrival, engine, handed, republished, said
from tests.consumers.test_engine_life import MAX_HELD, EngineLife
from timewheel.consumers.engine import MAX_REPUBLISHING, Deliver, DeliveryPolicy, Engine
from timewheel.consumers.message import InFlight, Parked, Redirect, Stage, ToRetry

LATER = ToRetry(NOW_MS + 60_000)
GIVEN_UP = Parked("no such customer")


def handed_out(under: Engine, entry: int = 1, timer_id: str = "a") -> InFlight:
    return handed(under.received(arrival(entry, timer_id, NOW_MS), NOW_MS, 0))


@pytest.mark.parametrize(("redirect", "count"), [(LATER, "retried"), (GIVEN_UP, "parked")])
def test_it_is_acknowledged_when_what_follows_it_is_stored(redirect: Redirect, count: str) -> None:
    under = engine()
    timer = handed_out(under)
    assert republished(under.redirected(timer, redirect, NOW_MS)) is timer
    assert (timer.redirect, timer.stage, under.held_count) == (redirect, Stage.REPUBLISHING, 1)
    # A copy that comes meanwhile may be all that is stored: it is kept until the end.
    assert said(under.received(arrival(2, "a", NOW_MS), NOW_MS, 0)) == [("drop", 2)]
    assert said(under.published(timer, NOW_MS)) == [("ack", 1), ("ack", 2)]
    assert under.held_count == 0
    assert getattr(under.counts, count) == 1
    # One that comes later must not be handled, nor go on, once more.
    assert said(under.received(arrival(3, "a", NOW_MS), NOW_MS, 0)) == [("ack", 3)]


def test_what_could_not_be_stored_is_tried_until_it_is_and_no_handler_has_it_meanwhile() -> None:
    under = engine()
    timer = handed_out(under)
    under.redirected(timer, LATER, NOW_MS)
    assert under.not_published(timer, NOW_MS) == []
    assert under.tick(NOW_MS + BOUND_MS - 1) == []
    assert republished(under.tick(NOW_MS + BOUND_MS)) is timer
    assert said(under.published(timer, NOW_MS + BOUND_MS)) == [("ack", 1)]
    assert under.counts.handed == 1


def test_without_room_to_wait_it_goes_back_to_the_broker() -> None:
    under = engine(max_held=2)
    timer = handed_out(under)
    under.redirected(timer, LATER, NOW_MS)
    under.received(arrival(2, "b", NOW_MS + 5), NOW_MS, 0)
    assert under.full
    under.received(arrival(3, "c", NOW_MS + 5), NOW_MS, 0)  # the client had it under way
    assert said(under.not_published(timer, NOW_MS)) == [("let go", 1), ("nack", 1)]


def test_however_many_are_not_stored_while_it_is_full_it_never_holds_more_than_it_may() -> None:
    under = engine(max_held=5)
    for turn in range(10):
        timers = [handed_out(under, 10 * turn + n, f"{turn}-{n}") for n in range(3) if not under.full]
        for timer in timers:
            under.redirected(timer, LATER, NOW_MS)
        while not under.full:
            under.received(arrival(1_000 + under.held_count, f"{turn} {under.held_count}", NOW_MS + 5), NOW_MS, 0)
        for timer in timers:
            under.not_published(timer, NOW_MS)
            assert 0 <= under.held_count <= 5
        for command in under.tick(NOW_MS + 5):
            if isinstance(command, Deliver):
                under.done(command.timer)


def test_one_that_waits_to_be_stored_and_is_cancelled_meanwhile_is_let_go() -> None:
    dead: set[str] = set()
    under = engine(judge=DeliveryPolicy(lambda envelope: envelope.timer_id in dead, 60_000))
    under.received(arrival(1, "a", NOW_MS), NOW_MS, 0)
    under.asked()
    timer = handed(under.answered(NOW_MS))
    under.redirected(timer, LATER, NOW_MS)
    under.not_published(timer, NOW_MS)
    dead.add("a")
    assert said(under.received(arrival(1, "a", NOW_MS), NOW_MS, 0)) == [("ack", 1), ("let go", 1), ("ack", 1)]


def test_more_under_way_than_the_client_should_hold_wait_and_more_than_that_go_back() -> None:
    under = engine(max_held=MAX_REPUBLISHING + 1)
    timers = [handed_out(under, entry, f"t{entry}") for entry in range(MAX_REPUBLISHING + 2)]
    for timer in timers[:MAX_REPUBLISHING]:
        assert republished(under.redirected(timer, LATER, NOW_MS)) is timer
    assert under.redirected(timers[-2], LATER, NOW_MS) == []
    assert under.full
    last = MAX_REPUBLISHING + 1
    assert said(under.redirected(timers[-1], LATER, NOW_MS)) == [("let go", last), ("nack", last)]
    assert timers[-1].redirect is None
    under.published(timers[0], NOW_MS)
    assert republished(under.tick(NOW_MS + BOUND_MS)) is timers[-2]


def test_without_an_envelope_it_goes_back_to_the_broker() -> None:
    under = engine()
    timer = handed(under.received(arrival(1, None), NOW_MS, 0))
    assert said(under.redirected(timer, LATER, NOW_MS)) == [("let go", 1), ("nack", 1)]
    assert timer.redirect is None


def test_what_another_handler_has_after_the_ack_time_out_is_that_ones() -> None:
    under = engine(ack_timeout_ms=1_000)
    timer = handed_out(under)
    other = handed(under.received(arrival(1, "a", NOW_MS), NOW_MS, 2_000))
    assert said(under.redirected(timer, LATER, NOW_MS)) == [("let go", 1)]
    assert timer.redirect is None
    assert republished(under.redirected(other, LATER, NOW_MS)) is other


class RetryLife(EngineLife):
    """As the engine's life; handlers may also have a timer tried again: then its successor is another timer."""

    def __init__(self) -> None:
        super().__init__()
        self.successors = 0

    @precondition(lambda self: self.with_handler)
    @rule(data=st.data(), early_ms=st.integers(0, 2 * BOUND_MS))
    def handler_wants_another_attempt(self, data: st.DataObject, early_ms: int) -> None:
        timer_id = data.draw(st.sampled_from(sorted(self.with_handler)))
        redirect = ToRetry(self.now_ms + early_ms)
        self.execute(self.engine.redirected(self.with_handler.pop(timer_id), redirect, self.now_ms))

    def publication_is_answered(self, data: st.DataObject, stored: bool, confirmed: bool) -> None:
        """See `answer`."""

    @precondition(lambda self: self.publishing)
    @rule(data=st.data(), confirmed=st.booleans())
    def answer(self, data: st.DataObject, confirmed: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.publishing)))
        self.answered(key, confirmed=confirmed)

    def answered(self, key: str, *, confirmed: bool) -> None:
        timer = self.publishing.pop(key)
        timer_id = key.partition(":")[2]
        if not confirmed:
            self.execute(self.engine.not_published(timer, self.now_ms))
            return
        if isinstance(timer.redirect, ToRetry):
            # It is over with the confirmation, and not before.
            self.handled.append(timer_id)
            self.successors += 1
            self.due_ms[f"s{self.successors}"] = timer.redirect.due_ms
            self.store(f"s{self.successors}")
        else:
            self.store(timer_id)
        self.execute(self.engine.published(timer, self.now_ms))

    def publication_ends_well(self, key: str) -> None:
        self.answered(key, confirmed=True)

    @invariant()
    def bounded(self) -> None:
        """What handlers had does not ask for room; the local wheel itself refuses what is over its bound."""
        assert self.engine.held_count <= MAX_HELD + len(self.due_ms)


RetryLife.TestCase.settings = settings(stateful_step_count=40, deadline=None)
TestRetryLife = RetryLife.TestCase

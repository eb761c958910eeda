"""The engine where timers may be cancelled: case by case, then in any order of events against the definition."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.consumers.support import BOUND_MS, NOW_MS, arrival, engine, handed, republished, said
from tests.consumers.test_engine_life import MAX_HELD, EngineLife
from timewheel.consumers.engine import Command, Deliver, DeliveryPolicy, Engine
from timewheel.consumers.message import Parked, Stage
from timewheel.core.envelope import Envelope

KEEP_MS = 60_000


class Cut(set[str]):
    """Timer ids that are known to be dead."""

    def is_cancelled(self, envelope: Envelope) -> bool:
        return envelope.timer_id in self


@pytest.fixture
def cut() -> Cut:
    return Cut()


def delivery_policy(cut: Cut, **options: Any) -> Engine:
    return engine(judge=DeliveryPolicy(cut.is_cancelled, KEEP_MS), **options)


def test_none_is_handed_out_before_the_log_was_asked(cut: Cut) -> None:
    under = delivery_policy(cut)
    assert under.received(arrival(1, "due", NOW_MS), NOW_MS, 0) == []
    assert under.received(arrival(2, "held", NOW_MS + 5), NOW_MS, 0) == []
    assert (under.unasked, under.held_count) == (1, 2)
    assert under.tick(NOW_MS + 5) == []
    assert under.unasked == 2
    under.asked()
    assert (under.unasked, under.held_count) == (0, 2)
    assert said(under.answered(NOW_MS + 5)) == [("hand", 1), ("hand", 2)]
    assert under.held_count == 0


def test_what_becomes_due_while_a_question_is_under_way_waits_for_the_next(cut: Cut) -> None:
    under = delivery_policy(cut)
    under.received(arrival(1, "first", NOW_MS), NOW_MS, 0)
    under.asked()
    under.received(arrival(2, "second", NOW_MS), NOW_MS, 0)
    assert said(under.answered(NOW_MS)) == [("hand", 1)]
    assert under.unasked == 1


def test_what_is_known_to_be_dead_needs_no_question(cut: Cut) -> None:
    under = delivery_policy(cut)
    under.received(arrival(1, "held", NOW_MS + 5), NOW_MS, 0)
    cut |= {"held", "new"}
    assert said(under.received(arrival(2, "new", NOW_MS + 5), NOW_MS, 0)) == [("ack", 2)]
    assert said(under.tick(NOW_MS + 5)) == [("ack", 1)]
    assert (under.unasked, under.held_count, under.counts.cancelled, under.counts.handed) == (0, 0, 2, 0)


def test_what_is_cut_off_while_it_waits_for_its_handler_is_not_handled(cut: Cut) -> None:
    under = delivery_policy(cut)
    for entry, name in enumerate(("alive", "dead", "not known"), 1):
        under.received(arrival(entry, name, NOW_MS), NOW_MS, 0)
    under.asked()
    alive, dead, unknown = (handed([command]) for command in under.answered(NOW_MS))
    cut.add("dead")
    assert under.begins(alive, NOW_MS, is_asked=True) is None
    assert said(under.begins(dead, NOW_MS, is_asked=True) or []) == [("ack", 2)]
    assert under.begins(unknown, NOW_MS, is_asked=False) == []
    assert (under.unasked, under.counts.cancelled) == (1, 1)
    under.asked()
    assert handed(under.answered(NOW_MS)) is unknown
    # One that comes too late for an answer by then is for an operator.
    assert said(under.begins(unknown, NOW_MS + KEEP_MS + 1, is_asked=True) or []) == [("republish", 3)]


def test_a_copy_that_is_known_to_be_dead_takes_what_is_held_along(cut: Cut) -> None:
    under = delivery_policy(cut)
    under.received(arrival(1, "a", NOW_MS + 5), NOW_MS, 0)
    cut.add("a")
    assert said(under.received(arrival(2, "a", NOW_MS + 5), NOW_MS, 0)) == [("ack", 2), ("ack", 1)]
    assert (under.held_count, under.next_wake_ms()) == (0, None)


def test_a_cancel_leaves_alone_what_a_handler_has(cut: Cut) -> None:
    under = delivery_policy(cut)
    under.received(arrival(1, "a", NOW_MS), NOW_MS, 0)
    under.asked()
    timer = handed(under.answered(NOW_MS))
    cut.add("a")
    assert said(under.received(arrival(1, "a", NOW_MS), NOW_MS, 0)) == [("ack", 1)]
    assert timer.stage is Stage.HANDED
    # It failed: it comes again, and is dead then.
    assert said(under.failed(timer)) == [("nack", 1)]
    assert said(under.received(arrival(1, "a", NOW_MS), NOW_MS, 0)) == [("ack", 1)]


def test_without_an_envelope_nothing_can_be_cancelled_and_nothing_is_asked(cut: Cut) -> None:
    under = delivery_policy(cut)
    assert said(under.received(arrival(1, None), NOW_MS, 0)) == [("hand", 1)]


def test_it_is_delivered_unjudged_if_the_plan_has_it_so(cut: Cut) -> None:
    under = delivery_policy(cut)
    under.received(arrival(1, "a", NOW_MS), NOW_MS, 0)
    under.asked()
    assert said(under.unanswered()) == [("hand", 1)]
    assert (under.counts.unevaluated, under.counts.handed, under.held_count) == (1, 1, 0)


def test_what_is_handled_by_another_hand_meanwhile_is_not_handed_out(cut: Cut) -> None:
    under = delivery_policy(cut, ack_timeout_ms=1_000)
    under.received(arrival(1, "a", NOW_MS), NOW_MS, 0)
    under.asked()
    timer = handed(under.answered(NOW_MS))
    # The client delivers it again after the ack time-out, and while that waits for its answer the handler is done.
    assert under.received(arrival(1, "a", NOW_MS), NOW_MS, 2_000) == []
    under.asked()
    assert said(under.done(timer)) == [("ack", 1)]
    assert under.answered(NOW_MS) == []


def test_later_than_cut_offs_are_kept_it_is_parked_with_all_its_copies(cut: Cut) -> None:
    under = delivery_policy(cut)
    late_ms = NOW_MS - KEEP_MS - 1
    assert under.received(arrival(1, "at the limit", NOW_MS - KEEP_MS), NOW_MS, 0) == []
    timer = republished(under.received(arrival(2, "late", late_ms), NOW_MS, 0))
    assert isinstance(timer.redirect, Parked)
    under.received(arrival(3, "late", late_ms), NOW_MS, 0)
    assert said(under.published(timer, NOW_MS)) == [("ack", 2), ("ack", 3)]
    assert (under.counts.parked, under.counts.republished) == (1, 0)
    assert said(under.received(arrival(4, "late", late_ms), NOW_MS, 0)) == [("ack", 4)]


def test_an_answer_that_comes_when_cut_offs_are_forgotten_hands_out_nothing(cut: Cut) -> None:
    under = delivery_policy(cut)
    under.received(arrival(1, "a", NOW_MS), NOW_MS, 0)
    under.received(arrival(2, "b", NOW_MS + 1), NOW_MS, 0)
    under.tick(NOW_MS + 1)
    under.asked()
    # It was cancelled in time; the log could not be read for longer than cancellations are kept, and nothing says it
    # now.
    late, still = under.answered(NOW_MS + KEEP_MS + 1)
    assert isinstance(republished([late]).redirect, Parked)
    assert handed([still]).key == "0:b"


def test_one_that_could_not_be_parked_is_tried_again(cut: Cut) -> None:
    under = delivery_policy(cut)
    timer = republished(under.received(arrival(1, "late", 0), NOW_MS, 0))
    assert under.not_published(timer, NOW_MS) == []
    assert republished(under.tick(NOW_MS + BOUND_MS)) is timer


def test_a_question_counts_for_the_clock_at_its_answer(cut: Cut) -> None:
    under = delivery_policy(cut)
    under.received(arrival(1, "a", NOW_MS), NOW_MS, 0)
    under.asked()
    assert under.answered(NOW_MS - 10) == []
    assert under.tick(NOW_MS) == []
    under.asked()
    assert said(under.answered(NOW_MS)) == [("hand", 1)]


class CancelLife(EngineLife):
    """As the engine's life, with a log of cancellations that is read at any time, and answers at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[str, int]] = []  # timer id, when it was confirmed
        self.read = 0
        self.asked_at: int | None = None
        self.judge = DeliveryPolicy(self.is_cancelled, 10**15)

    @initialize()
    def begin(self) -> None:
        super().begin()

    def is_cancelled(self, envelope: Envelope) -> bool:
        return any(timer_id == envelope.timer_id for timer_id, _ in self.log[: self.read])

    def may_be_dropped(self, timer_id: str) -> bool:
        return timer_id in self.handled or any(timer_id == cut for cut, _ in self.log)

    def execute(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Deliver):
                timer_id = command.timer.arrival.envelope.timer_id  # type: ignore[union-attr]
                certain = [cut for cut, at_ms in self.log if cut == timer_id and at_ms < self.due_ms[timer_id]]
                assert not certain, "a cancel that was confirmed before the due time is honoured"
        super().execute(commands)

    @precondition(lambda self: self.due_ms)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.log.append((data.draw(st.sampled_from(sorted(self.due_ms))), self.now_ms))

    @rule(lines=st.integers(1, 3))
    def the_log_is_read(self, lines: int) -> None:
        self.read = min(self.read + lines, len(self.log))

    # A clock that goes back makes "before the due time" mean two things; it has its own case above.
    def clock_goes_back(self) -> None:
        pass

    @precondition(lambda self: self.asked_at is None)
    @rule()
    def ask(self) -> None:
        if self.engine.unasked:
            self.engine.asked()
            self.asked_at = len(self.log)

    @precondition(lambda self: self.asked_at is not None)
    @rule()
    def answer(self) -> None:
        assert self.asked_at is not None
        self.read = max(self.read, self.asked_at)
        self.asked_at = None
        self.execute(self.engine.answered(self.now_ms))

    def settle(self) -> None:
        self.ask() if self.asked_at is None else self.answer()

    def judge_the_end(self) -> None:
        cancelled = {timer_id for timer_id, _ in self.log}
        assert len(self.handled) == len(set(self.handled))
        assert set(self.due_ms) - cancelled <= set(self.handled)
        assert self.engine.held_count <= MAX_HELD


CancelLife.TestCase.settings = settings(stateful_step_count=40, deadline=None)
TestCancelLife = CancelLife.TestCase

"""The receiving thread, by a clock that leaps and a source that is made up: what waits, for how long, and its pace."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.consumers.support import BOUND_MS, NOW_MS, engine
from tests.support.manual_clock import LeapingClock
from timewheel.client.hooks import Hooks
from timewheel.client.positions import Position
from timewheel.consumers.engine import Command, DeliveryPolicy, Engine, Overdue
from timewheel.consumers.message import Arrival, InFlight
from timewheel.consumers.receiver import (
    ASKED_AGAIN_MS,
    BLIND_AFTER_MS,
    BURST_MS,
    JUST_HANDED_MS,
    STALE_MS,
    Pace,
    Questions,
    Receiver,
)
from timewheel.core.envelope import Envelope
from timewheel.core.plan import WhenBlind

SECOND_MS = 1_000
OUTAGE_MS = 60_000


class Origin:
    """Takes all answers."""

    consumer: Any

    def __init__(self) -> None:
        self.consumer = self
        self.acknowledged = 0
        self.given_back = 0
        self.loses = False
        self.session: int | None = 0

    def is_lost(self) -> bool:
        self.loses, is_lost = False, self.loses
        return is_lost

    def session_now(self) -> int | None:
        return self.session

    def inspect(self) -> bool:
        return False

    def answered(self, position: Position, at_ms: int) -> None:
        """Nobody asks."""

    def acknowledge(self, message: Any) -> None:
        assert message is None
        self.acknowledged += 1

    def negative_acknowledge(self, message: Any) -> None:
        assert message is None
        self.given_back += 1


class Stream:
    """Messages that come at their times; each is (when it comes, when it is due)."""

    def __init__(self, clock: LeapingClock, times_ms: list[tuple[int, int]]) -> None:
        self.clock = clock
        self.left = list(reversed(times_ms))
        self.origin = Origin()
        self.partitions = (self.origin,)
        self.replaced = 0

    def receive(self, timeout_ms: int) -> Arrival | None:
        if not self.left or self.left[-1][0] - self.clock.now_ms() > timeout_ms:
            self.clock.advance(max(timeout_ms, 1))
            return None
        at_ms, due_ms = self.left.pop()
        self.clock.advance(max(at_ms - self.clock.now_ms(), 0))
        number = len(self.left)
        return Arrival(None, self.origin, Position(1, number, -1), Envelope(f"t{number}", due_ms, 0))

    def close(self) -> None:
        """Nothing is open."""


class NothingPublished:
    """In place of a republisher."""

    settles: Any = None

    def outcomes(self) -> list[tuple[InFlight, bool]]:
        return []

    def close(self) -> None:
        """Nothing is open."""


class Log:
    """In place of the log of cancellations: a question that is waited for is answered, if it is not silent."""

    topic = "cancellations"

    def __init__(self, clock: LeapingClock) -> None:
        self.clock = clock
        self.cut: set[str] = set()
        self.known: set[str] = set()
        self.read_ms = clock.monotonic_ms()
        self.asked = 0
        self.is_silent = False
        self.waits = 0

    def is_cancelled(self, envelope: Envelope) -> bool:
        return envelope.timer_id in self.known

    def ask(self) -> int:
        self.asked += 1
        return self.asked

    def is_answered(self, question: int) -> bool:
        del question
        return self._answers()

    def await_answer(self, question: int, timeout_ms: int) -> bool:
        del question, timeout_ms
        self.waits += 1
        return self._answers()

    def _answers(self) -> bool:
        if not self.is_silent:
            self.known, self.read_ms = set(self.cut), self.clock.monotonic_ms()
        return not self.is_silent

    def age_ms(self) -> int:
        return self.clock.monotonic_ms() - self.read_ms


def receiving(
    times_ms: list[tuple[int, int]], *, pace: Pace | None = None, questions: Questions | None = None, **options: Any
) -> tuple[Receiver, Stream]:
    clock = options.pop("clock", None) or LeapingClock(NOW_MS)
    stream: Any = Stream(clock, times_ms)
    republisher: Any = NothingPublished()
    made = Receiver(
        stream,
        engine(max_held=10_000, **options),
        republisher,
        pace=pace,
        questions=questions,
        sorts=True,
        redelivery_delay_ms=SECOND_MS,
        clock=clock,
        hooks=Hooks(()),
    )
    return made, stream


@pytest.mark.parametrize("apart_ms", [1, 5, 10, 25])
def test_one_that_is_long_overdue_holds_nobody_up(apart_ms: int) -> None:
    """As one that was given back to the broker and comes a minute later, in a stream that never pauses."""
    lead_ms, count = 1_500, 3_000
    assert lead_ms < BOUND_MS
    times = [(NOW_MS + n * apart_ms, NOW_MS + n * apart_ms + lead_ms) for n in range(count)]
    times[100] = (times[100][0], times[100][0] - OUTAGE_MS)
    receiver, stream = receiving(times)
    late_ms: list[int] = []
    while len(late_ms) < count:
        before_ms = stream.clock.now_ms()
        timer = receiver.next(200)
        assert stream.clock.now_ms() - before_ms <= 450, "a stop would wait for it"
        if timer is not None:
            late_ms.append(stream.clock.now_ms() - timer.due_ms)
            receiver.done(timer)
    *on_time, latest = sorted(late_ms)
    assert latest == pytest.approx(OUTAGE_MS, abs=450)
    assert on_time[-1] <= 200


def test_after_an_outage_what_was_due_first_comes_first() -> None:
    count = 200
    times = [(NOW_MS, NOW_MS - OUTAGE_MS + 7 * n % count) for n in range(count)]
    receiver, _ = receiving(times)
    came = [receiver.next(200) for _ in range(count)]
    due = [timer.due_ms for timer in came if timer is not None]
    assert len(due) == count
    assert due == sorted(due)


def test_timers_that_are_due_together_are_handed_out_by_one_look_at_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    count, looks = 300, 0
    receiver, stream = receiving([(NOW_MS, NOW_MS + BOUND_MS)] * count)
    tick = Engine.tick

    def looked(self: Engine, now_ms: int) -> list[Command]:
        nonlocal looks
        looks += now_ms >= NOW_MS + BOUND_MS
        return tick(self, now_ms)

    monkeypatch.setattr(Engine, "tick", looked)
    handed = 0
    while handed < count:
        handed += receiver.next(200) is not None
    assert stream.clock.now_ms() == NOW_MS + BOUND_MS
    assert looks <= 2


@pytest.mark.parametrize("pace", [Pace(10), None], ids=["paced", "not paced"])
def test_what_waits_for_its_turn_for_too_long_is_overdue(pace: Pace | None) -> None:
    """All are due at the same time; each handler, or the pace, takes 100 ms."""
    due_ms, count = NOW_MS + SECOND_MS, 100
    receiver, stream = receiving(
        [(NOW_MS, due_ms)] * count, pace=pace, overdue=Overdue(dt.timedelta(seconds=5), then="drop")
    )
    handled = 0
    while handled + receiver.counts.overdue < count:
        timer = receiver.next(200)
        if timer is None:
            continue
        assert stream.clock.now_ms() - timer.due_ms <= 5_100
        handled += 1
        receiver.done(timer)
        if pace is None:
            stream.clock.advance(100)
    assert 48 <= handled <= 53
    assert stream.origin.acknowledged == count


@pytest.mark.parametrize(
    ("waited_ms", "asks", "begins"),
    [
        (JUST_HANDED_MS - 1, 0, True),  # as where workers are idle: nothing more is asked
        (ASKED_AGAIN_MS, 1, True),  # by what is known; those that begin after it know more
        (STALE_MS - 1, 1, True),
        (STALE_MS, 1, False),
        (BLIND_AFTER_MS - 1, 1, False),
    ],
)
def test_a_handler_that_begins_later_knows_what_was_cut_off_meanwhile(waited_ms: int, asks: int, begins: bool) -> None:
    clock = LeapingClock(NOW_MS)
    log = Log(clock)
    questions = Questions(log, "hold", clock)
    receiver, _ = receiving(
        [(NOW_MS, NOW_MS)], clock=clock, questions=questions, judge=DeliveryPolicy(log.is_cancelled, OUTAGE_MS)
    )
    timer = receiver.next(200)
    assert timer is not None
    asked = log.asked
    log.cut.add("t0")
    clock.advance(waited_ms)
    assert receiver.begins(timer) is begins
    assert (log.asked - asked, receiver.counts.cancelled) == (asks, 0 if begins else 1)


@pytest.mark.parametrize("on_log_unavailable", ["hold", "deliver"])
@pytest.mark.parametrize("waited_ms", [STALE_MS, BLIND_AFTER_MS])
def test_while_the_log_is_silent_what_would_begin_is_held_or_not_as_the_plan_has_it(
    on_log_unavailable: WhenBlind, waited_ms: int
) -> None:
    clock = LeapingClock(NOW_MS)
    log = Log(clock)
    questions = Questions(log, on_log_unavailable, clock)
    receiver, _ = receiving(
        [(NOW_MS, NOW_MS)], clock=clock, questions=questions, judge=DeliveryPolicy(log.is_cancelled, OUTAGE_MS)
    )
    timer = receiver.next(200)
    assert timer is not None
    log.is_silent = True
    clock.advance(waited_ms)
    assert receiver.begins(timer) is (on_log_unavailable == "deliver")
    assert log.waits == (waited_ms < BLIND_AFTER_MS)
    log.is_silent = False
    assert receiver.next(200) is (timer if on_log_unavailable == "hold" else None)


@given(st.floats(0.1, 100_000), st.integers(0, 2**31), st.integers(1, 2_000))
def test_no_second_has_more_than_the_rate_and_a_burst(per_s: float, seed: int, count: int) -> None:
    pace, rng = Pace(per_s), random.Random(seed)
    now_ms, taken = 1_000_000, list[int]()
    for _ in range(count):
        now_ms += pace.wait_ms(now_ms) + rng.choice([0, 0, 0, 1, 5])
        pace.take(now_ms)
        taken.append(now_ms)
    allowed = per_s * (1 + BURST_MS / 1_000) + 2
    for index, at_ms in enumerate(taken):
        later = index + int(allowed)
        if later < len(taken):
            assert taken[later] - at_ms >= 999


@pytest.mark.parametrize("per_s", [1, 7, 1_000, 30_000])
def test_who_always_has_something_gets_the_whole_rate(per_s: int) -> None:
    pace, now_ms, taken = Pace(per_s), 0, 0
    while now_ms < 10_000:
        now_ms += pace.wait_ms(now_ms)
        pace.take(now_ms)
        taken += 1
    assert taken == pytest.approx(10 * per_s, rel=0.02, abs=2)


def test_a_pause_is_not_made_up_for() -> None:
    pace = Pace(100)
    for now_ms in (0, 60_000):
        first = 0
        while pace.wait_ms(now_ms) == 0:
            pace.take(now_ms)
            first += 1
        assert first == 2, "ten milliseconds' worth, and one"

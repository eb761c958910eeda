"""Handling on an event loop: whatever is cancelled, and whenever, each timer has exactly one end."""

from __future__ import annotations

import asyncio
import datetime as dt
import random
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.consumers.support import NOW_MS
from tests.support.client_messages import client_message
from timewheel.client.hooks import Hooks
from timewheel.client.positions import Position
from timewheel.consumers.aio import MAX_QUEUED, AsyncRun
from timewheel.consumers.message import Arrival, DelayedMessage, InFlight
from timewheel.consumers.middleware import Middleware, MiddlewareChain, Postpone, SkipTimer
from timewheel.core.envelope import Envelope
from timewheel.hooks import Event

SECOND = dt.timedelta(seconds=1)


def timer_of(number: int, key: str = "") -> InFlight:
    envelope = Envelope(f"t{number}", NOW_MS, 0)
    return InFlight(f"0:t{number}", Arrival(client_message(key=key), None, Position(1, number, -1), envelope), 0)


class Feed:
    """Gives what it has, then waits until it is stopped."""

    def __init__(self, timers: list[InFlight], error: Exception | None = None) -> None:
        self.waiting = deque(timers)
        self.error = error
        self.stopped = asyncio.Event()

    async def until(self, reached: Callable[[], bool], changed: asyncio.Event) -> bool:
        while not reached():
            changed.clear()
            waits = [asyncio.ensure_future(one.wait()) for one in (changed, self.stopped)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in waits:
                    one.cancel()
            if self.stopped.is_set():
                return False
        return True

    async def next(self) -> InFlight | None:
        await asyncio.sleep(0)
        if self.waiting and not self.stopped.is_set():
            return self.waiting.popleft()
        if self.error is not None:
            raise self.error
        await self.stopped.wait()
        return None


class Ends:
    """In place of `Outcomes`: how each timer ended."""

    def __init__(self) -> None:
        self.of: dict[str, str] = {}
        self.changed = asyncio.Event()

    def _note(self, timer: InFlight, end: str) -> None:
        assert timer.key not in self.of, f"{timer.key} ended twice: {self.of[timer.key]}, {end}"
        self.of[timer.key] = end
        self.changed.set()

    def returned(self, timer: InFlight) -> None:
        self._note(timer, "handled")

    def given_back(self, timer: InFlight) -> None:
        self._note(timer, "given back")

    def raised(self, timer: InFlight, message: DelayedMessage, error: Exception) -> None:
        assert message.timer_id == timer.key.partition(":")[2]
        self._note(timer, type(error).__name__)

    async def until(self, count: int) -> None:
        while len(self.of) < count:
            self.changed.clear()
            await self.changed.wait()


async def steps(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def until(reached: Callable[[], bool]) -> None:
    while not reached():  # noqa: ASYNC110 - it is the steps of a loop that are on trial, and nobody tells of each
        await asyncio.sleep(0)


async def taken(timer: InFlight) -> DelayedMessage:
    return DelayedMessage(timer, NOW_MS)


class Stage:
    """A run with its feed and its ends."""

    def __init__(
        self,
        timers: list[InFlight],
        handler: Callable[[DelayedMessage], Awaitable[object]],
        *,
        concurrency: int = 4,
        middleware: tuple[Middleware, ...] = (),
        error: Exception | None = None,
        take: Callable[[InFlight], Awaitable[DelayedMessage]] = taken,
    ) -> None:
        self.feed, self.ends, self.events = Feed(timers, error), Ends(), list[Event]()
        hooks = Hooks((self.events.append,))
        feed: Any = self.feed
        ends: Any = self.ends
        self.run = AsyncRun(
            feed,
            handler,
            taken=take,
            middlewares=MiddlewareChain(middleware, hooks) if middleware else None,
            outcomes=ends,
            hooks=hooks,
            concurrency=concurrency,
            stop=self.feed.stopped.set,
        )

    async def play(self, count: int) -> None:
        """Until so many have ended; then it is stopped."""
        running = asyncio.create_task(self.run.until_stopped(SECOND))
        await self.ends.until(count)
        self.feed.stopped.set()
        await running


async def test_each_ends_as_its_handler_does() -> None:
    async def handle(message: DelayedMessage) -> None:
        errors = {"t1": ValueError(), "t2": SkipTimer(), "t3": Postpone(SECOND)}
        if message.timer_id in errors:
            raise errors[message.timer_id]

    stage = Stage([timer_of(number) for number in range(4)], handle)
    await stage.play(4)
    assert stage.ends.of == {"0:t0": "handled", "0:t1": "ValueError", "0:t2": "SkipTimer", "0:t3": "Postpone"}
    assert stage.events == []


@pytest.mark.parametrize("failing", ["taken", "raised", "returned"])
def test_an_error_beside_the_handler_ends_the_run_which_raises_it(failing: str) -> None:
    """Else the task alone would end, with its timer in flight for ever."""

    async def handle(message: DelayedMessage) -> None:
        if failing == "raised":
            raise ValueError(message.timer_id)

    async def play(stage: Stage) -> None:
        await stage.run.until_stopped(SECOND)

    stage = Stage([timer_of(0)], handle, take=broken if failing == "taken" else taken)
    if failing != "taken":
        setattr(stage.ends, failing, broken)
    with pytest.raises(AttributeError, match="max_attempts"):
        asyncio.run(asyncio.wait_for(play(stage), 20))
    assert stage.ends.of == {"0:t0": "given back"}


def broken(*_: object) -> Any:
    raise AttributeError("max_attempts")


async def test_so_many_at_once_and_of_a_key_one_after_the_other() -> None:
    at_work: Counter[str] = Counter()
    most: Counter[str] = Counter()
    order: dict[str, list[str]] = {}

    async def handle(message: DelayedMessage) -> None:
        key = message.partition_key()
        at_work[key] += 1
        at_work["all"] += 1
        most[key] = max(most[key], at_work[key])
        most["all"] = max(most["all"], at_work["all"])
        order.setdefault(key, []).append(str(message.timer_id))
        await steps(30)
        at_work[key] -= 1
        at_work["all"] -= 1

    timers = [timer_of(number, ("", "a", "b")[number % 3]) for number in range(60)]
    stage = Stage(timers, handle, concurrency=5)
    await stage.play(60)
    assert set(stage.ends.of.values()) == {"handled"}
    for key in ("a", "b"):
        assert order[key] == [one.key.partition(":")[2] for one in timers if one.arrival.message.partition_key() == key]
    assert most["a"] == most["b"] == 1
    assert 3 <= most[""] <= 5
    assert most["all"] <= 5


async def test_behind_a_key_that_takes_long_only_so_many_wait() -> None:
    go = asyncio.Event()

    async def handle(_: DelayedMessage) -> None:
        await go.wait()

    timers = [timer_of(number, "a") for number in range(MAX_QUEUED + 50)]
    stage = Stage(timers, handle)
    running = asyncio.create_task(stage.run.until_stopped(SECOND))
    await until(lambda: len(stage.feed.waiting) <= 48)
    await steps(100)
    assert len(stage.feed.waiting) == 48  # one is handled, one has been taken and waits for room
    go.set()
    await stage.ends.until(len(timers))
    stage.feed.stopped.set()
    await running
    assert set(stage.ends.of.values()) == {"handled"}


async def test_told_to_end_handlers_end_what_they_have_begun_and_what_waits_is_given_back() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def handle(_: DelayedMessage) -> None:
        begun.set()
        await go.wait()

    stage = Stage([timer_of(number, "a") for number in range(3)], handle)
    running = asyncio.create_task(stage.run.until_stopped(SECOND))
    await begun.wait()
    await until(lambda: not stage.feed.waiting)
    await steps(3)
    stage.feed.stopped.set()
    await stage.ends.until(2)
    go.set()
    await running
    assert stage.ends.of == {"0:t0": "handled", "0:t1": "given back", "0:t2": "given back"}
    assert stage.events == []


async def test_a_handler_that_outlasts_the_drain_is_cancelled_and_its_timer_given_back() -> None:
    async def handle(_: DelayedMessage) -> None:
        await asyncio.Event().wait()

    stage = Stage([timer_of(0)], handle)
    running = asyncio.create_task(stage.run.until_stopped(SECOND / 100))
    await until(lambda: not stage.feed.waiting)
    stage.feed.stopped.set()
    await running
    assert stage.ends.of == {"0:t0": "given back"}
    assert [event.name for event in stage.events] == ["handlers_left_behind"]


async def test_what_ends_receiving_is_raised_and_handlers_are_cancelled() -> None:
    async def handle(_: DelayedMessage) -> None:
        await asyncio.Event().wait()

    stage = Stage([timer_of(0)], handle, error=OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        await stage.run.until_stopped(SECOND)
    assert stage.ends.of == {"0:t0": "given back"}


class Noting(Middleware):
    """Enters, and notes that it was left; refuses some."""

    def __init__(self) -> None:
        self.entered: list[str] = []
        self.left: list[str] = []

    def before(self, message: DelayedMessage) -> None:
        if message.timer_id == "t1":
            raise SkipTimer
        self.entered.append(str(message.timer_id))

    def after(self, message: DelayedMessage) -> None:
        self.left.append(str(message.timer_id))

    def failed(self, message: DelayedMessage, error: BaseException) -> None:
        assert error is not None
        self.left.append(str(message.timer_id))


@given(
    cancel_after=st.integers(0, 60),
    keys=st.lists(st.sampled_from(["", "", "a", "b"]), min_size=1, max_size=12),
    concurrency=st.integers(1, 4),
    has_middleware=st.booleans(),
    seed=st.integers(0, 99),
)
def test_cancelled_at_any_step_nothing_is_stranded_and_nothing_ends_twice(
    cancel_after: int, keys: list[str], concurrency: int, has_middleware: bool, seed: int
) -> None:
    rng, noting = random.Random(seed), Noting()
    handled: Counter[str] = Counter()

    async def handle(message: DelayedMessage) -> None:
        await steps(rng.randint(0, 5))
        handled[str(message.timer_id)] += 1

    async def play() -> None:
        timers = [timer_of(number, key) for number, key in enumerate(keys)]
        middleware = (noting,) if has_middleware else ()
        stage = Stage(timers, handle, concurrency=concurrency, middleware=middleware)
        running = asyncio.create_task(stage.run.until_stopped(SECOND))
        await steps(cancel_after)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.sleep(0)
        taken = {timer.key for timer in timers} - {timer.key for timer in stage.feed.waiting}
        assert stage.ends.of.keys() == taken
        told = {key for key, end in stage.ends.of.items() if end == "handled"}
        assert told == {f"0:{timer_id}" for timer_id in handled}, "what has had its effect is not given back"

    asyncio.run(play())
    assert max(handled.values(), default=1) == 1
    assert sorted(noting.entered) == sorted(noting.left), "a claim is not left behind"


async def test_however_often_it_is_cancelled_what_was_entered_is_left() -> None:
    """While a store takes its time."""
    go, is_in = threading.Event(), threading.Event()

    class Slow(Noting):
        def before(self, message: DelayedMessage) -> None:
            is_in.set()
            assert go.wait(30)
            super().before(message)

    slow = Slow()

    async def handle(_: DelayedMessage) -> None:
        raise AssertionError("it was cancelled before")

    stage = Stage([timer_of(0)], handle, middleware=(slow,))
    running = asyncio.create_task(stage.run.until_stopped(SECOND))
    await asyncio.to_thread(is_in.wait, 30)
    (handling,) = stage.run._tasks
    for _ in range(3):
        handling.cancel()
        await steps(3)
    assert not handling.done()
    go.set()
    await asyncio.wait([handling])
    assert (slow.entered, slow.left, stage.ends.of) == (["t0"], ["t0"], {"0:t0": "given back"})
    stage.feed.stopped.set()
    await running


async def test_told_to_end_while_it_waits_for_room_it_gives_back_what_it_has_taken() -> None:
    go = asyncio.Event()

    async def handle(_: DelayedMessage) -> None:
        await go.wait()

    stage = Stage([timer_of(number) for number in range(3)], handle, concurrency=1)
    running = asyncio.create_task(stage.run.until_stopped(SECOND))
    await until(lambda: len(stage.feed.waiting) == 1)
    await steps(5)
    stage.feed.stopped.set()
    await stage.ends.until(1)
    assert stage.ends.of == {"0:t1": "given back"}
    go.set()
    await running
    assert stage.ends.of == {"0:t0": "handled", "0:t1": "given back"}
    assert len(stage.feed.waiting) == 1, "the rest is the feed's to give back"

"""Handlers of every form are called and waited for."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from unittest import mock

import pytest

from tests.consumers.support import NOW_MS, arrival
from tests.support.manual_clock import ManualClock
from tests.support.processes import StartedThreads
from timewheel.consumers.consumer import Handler, HandlerCalls
from timewheel.consumers.message import DelayedMessage, InFlight
from timewheel.core import SystemClock
from timewheel.testing import eventually

CLOCK = SystemClock()

MESSAGE = DelayedMessage(InFlight("0:a", arrival(1, "a", NOW_MS), 0), NOW_MS + 7)


class AsyncCallable:
    async def __call__(self, message: DelayedMessage) -> None:
        await asyncio.sleep(0)
        raise KeyError(message.timer_id)


async def coroutine(message: DelayedMessage) -> None:
    await AsyncCallable()(message)


async def with_more(_: int, message: DelayedMessage) -> None:
    await coroutine(message)


def plain(message: DelayedMessage) -> None:
    raise KeyError(message.timer_id)


def decorated(message: DelayedMessage) -> Any:
    return coroutine(message)


FORMS: dict[str, Any] = {
    "plain": plain,
    "coroutine": coroutine,
    "object": AsyncCallable(),
    "method": AsyncCallable().__call__,
    "partial": functools.partial(with_more, 1),
    "partial of an object": functools.partial(AsyncCallable()),
    "plain around a coroutine": decorated,
    "lambda around a coroutine": lambda message: with_more(1, message),
    "mock": mock.Mock(spec=plain, side_effect=plain),
    "magic mock": mock.MagicMock(spec=plain, side_effect=plain),
    "autospec": mock.create_autospec(plain, side_effect=plain),
    "async mock": mock.AsyncMock(side_effect=coroutine),
    "autospec of a coroutine": mock.create_autospec(coroutine, side_effect=coroutine),
}


@pytest.mark.parametrize("handler", FORMS.values(), ids=FORMS)
def test_what_a_handler_raises_is_raised_to_the_worker(handler: Any) -> None:
    """Also where a coroutine comes from a function that looks plain: unawaited, its timer would be acknowledged."""
    with HandlerCalls(handler, CLOCK) as call, pytest.raises(KeyError, match="a"):
        call(MESSAGE)


class Awaitable:
    def __await__(self) -> Iterator[None]:
        raise AssertionError("awaited after the run")


def test_nothing_is_awaited_after_the_run() -> None:
    with HandlerCalls(lambda _: Awaitable(), CLOCK) as call:
        pass
    with pytest.raises(RuntimeError, match="the run has ended"):
        call(MESSAGE)


def test_coroutines_share_one_loop_and_run_at_the_same_time() -> None:
    loops = set()
    together = asyncio.Barrier(3)

    async def handler(_: DelayedMessage) -> None:
        loops.add(asyncio.get_running_loop())
        await asyncio.wait_for(together.wait(), 5)

    with HandlerCalls(handler, CLOCK) as call:
        threads = [threading.Thread(target=call, args=(MESSAGE,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert len(loops) == 1


def test_a_coroutine_that_missed_the_deadline_is_cancelled() -> None:
    cancelled = threading.Event()
    begun = threading.Event()

    async def handler(_: DelayedMessage) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    def quietly(call: HandlerCalls) -> None:
        with pytest.raises(concurrent.futures.CancelledError):
            call(MESSAGE)

    handlers: Handler = handler
    with HandlerCalls(handlers, CLOCK) as call:
        thread = threading.Thread(target=quietly, args=(call,))
        thread.start()
        assert begun.wait(5)
    assert cancelled.wait(5)
    thread.join(5)
    assert not thread.is_alive()


def test_a_coroutine_that_will_not_be_cancelled_is_left_behind_after_a_while() -> None:
    started, clock = StartedThreads(), ManualClock()
    begun, may_end = threading.Event(), threading.Event()

    async def handler(_: DelayedMessage) -> None:
        begun.set()
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.001)

    def leave() -> None:
        with HandlerCalls(handler, clock) as call:
            threading.Thread(target=call, args=(MESSAGE,)).start()
            assert begun.wait(10)

    leaving = threading.Thread(target=leave)
    leaving.start()
    clock.await_wait(5_000)
    clock.advance(5_000)
    leaving.join(10)
    assert not leaving.is_alive()
    may_end.set()
    assert eventually(lambda: started.names() == [])


def test_a_message_tells_when_it_was_due_and_how_late_it_is() -> None:
    assert MESSAGE.timer_id == "a"
    assert MESSAGE.due_at is not None
    assert MESSAGE.due_at.timestamp() * 1000 == NOW_MS
    assert MESSAGE.lateness is not None
    assert MESSAGE.lateness.total_seconds() == 0.007
    assert (MESSAGE.generation, MESSAGE.hops) == (0, 0)


def test_a_message_without_an_envelope_has_no_times() -> None:
    foreign = DelayedMessage(InFlight("@1", arrival(1, None), 0), NOW_MS)
    assert (foreign.due_at, foreign.lateness, foreign.timer_id, foreign.hops) == (None, None, None, 0)

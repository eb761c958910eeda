"""Handlers of every form are called and waited for."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
from typing import Any

import pytest

from tests.consumers.support import NOW_MS, arrival
from timewheel.consumers.engine import Timer
from timewheel.consumers.handlers import Handler, HandlerCalls
from timewheel.consumers.message import DelayedMessage

MESSAGE = DelayedMessage(Timer("0:a", arrival(1, "a", NOW_MS), 0), NOW_MS + 7)


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


@pytest.mark.parametrize(
    "handler",
    [plain, coroutine, AsyncCallable(), functools.partial(with_more, 1)],
    ids=["plain", "coroutine", "object", "partial"],
)
def test_what_a_handler_raises_is_raised_to_the_worker(handler: Any) -> None:
    with HandlerCalls(handler) as call, pytest.raises(KeyError, match="a"):
        call(MESSAGE)


def test_coroutines_share_one_loop_and_run_at_the_same_time() -> None:
    loops = set()
    together = asyncio.Barrier(3)

    async def handler(_: DelayedMessage) -> None:
        loops.add(asyncio.get_running_loop())
        await asyncio.wait_for(together.wait(), 5)

    with HandlerCalls(handler) as call:
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
    with HandlerCalls(handlers) as call:
        thread = threading.Thread(target=quietly, args=(call,))
        thread.start()
        assert begun.wait(5)
    assert cancelled.wait(5)
    thread.join(5)
    assert not thread.is_alive()


def test_a_message_tells_when_it_was_due_and_how_late_it_is() -> None:
    assert MESSAGE.timer_id == "a"
    assert MESSAGE.due_at is not None
    assert MESSAGE.due_at.timestamp() * 1000 == NOW_MS
    assert MESSAGE.lateness is not None
    assert MESSAGE.lateness.total_seconds() == 0.007
    assert (MESSAGE.generation, MESSAGE.hops) == (0, 0)


def test_a_message_without_an_envelope_has_no_times() -> None:
    foreign = DelayedMessage(Timer("@1", arrival(1, None), 0), NOW_MS)
    assert (foreign.due_at, foreign.lateness, foreign.timer_id, foreign.hops) == (None, None, None, 0)

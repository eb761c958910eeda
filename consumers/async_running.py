"""Handles timers on an event loop, one after the other where they share a key, and ends in order."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from timewheel.consumers.around import Arounds
from timewheel.consumers.feeding import Feed
from timewheel.consumers.in_hand import InHand
from timewheel.consumers.message import DelayedMessage, key_of
from timewheel.consumers.outcomes import Outcomes
from timewheel.events import HandlersLeftBehind
from timewheel.wire.hooks import Hooks

__all__ = ["AsyncHandler", "AsyncRun", "wait_out"]

AsyncHandler = Callable[[DelayedMessage], Awaitable[object]]
"""Handles one timer: to return is to acknowledge, to raise is to have it again."""

MAX_QUEUED = 1_000
"""Timers that wait for another one of their key; then nothing more is taken until one of them is through."""
CANCEL_TIMEOUT_S = 5.0
"""For handlers to end once they are cancelled."""


class AsyncRun:
    """One `AsyncDelayedConsumer.run`.

    Args:
        feed: Gives what is due.
        handler: The user's.
        taken: Makes what a handler sees, when it begins; None: it must not begin, and all that follows is done.
        arounds: What stands around each handler, called on threads, since it may block; None: nothing.
        outcomes: Takes how handlers end.
        hooks: Told of handlers that are left behind.
        concurrency: How many timers are handled at the same time.
    """

    def __init__(
        self,
        feed: Feed,
        handler: AsyncHandler,
        *,
        taken: Callable[[InHand], Awaitable[DelayedMessage | None]],
        arounds: Arounds | None,
        outcomes: Outcomes,
        hooks: Hooks,
        concurrency: int,
    ) -> None:
        self._feed = feed
        self._handler = handler
        self._taken = taken
        self._arounds = arounds
        self._outcomes = outcomes
        self._hooks = hooks
        self._concurrency = concurrency
        self._tasks: set[asyncio.Task[None]] = set()
        # A task that is cancelled before its first step runs nothing of itself.
        self._not_begun: set[InHand] = set()
        # Of each key that is at work, those that wait for it.
        self._keys: dict[str, deque[InHand]] = {}
        self._queued = 0
        self._changed = asyncio.Event()

    async def until_stopped(self, drain: dt.timedelta) -> None:
        """Handle timers until the feed ends; then let handlers end what they have begun.

        If it is cancelled, or the feed fails, handlers are cancelled at once. Whatever is not handled is given back.

        Args:
            drain: How long the end waits for handlers.

        Raises:
            pulsar.PulsarException: What ended receiving.
            asyncio.CancelledError: It was cancelled.
        """
        try:
            while (timer := await self._feed.next()) is not None:
                if await self._has_room_for(timer):
                    self._begin(timer)
                else:
                    self._outcomes.given_back(timer)
            self._give_back_queued()
            await self._all_end(drain.total_seconds())
        finally:
            await self._cancel()

    async def _has_room_for(self, timer: InHand) -> bool:
        """Wait for room; False if it shall end before."""
        key = key_of(timer.arrival.message)

        def is_there() -> bool:
            return self._queued < MAX_QUEUED and (key in self._keys or len(self._tasks) < self._concurrency)

        try:
            return is_there() or await self._feed.until(is_there, self._changed)
        except asyncio.CancelledError:
            self._outcomes.given_back(timer)
            raise

    def _begin(self, timer: InHand) -> None:
        key = key_of(timer.arrival.message)
        if key in self._keys:
            self._keys[key].append(timer)
            self._queued += 1
            return
        if key:
            self._keys[key] = deque()
        task = asyncio.create_task(self._handle_all(key, timer))
        self._tasks.add(task)
        self._not_begun.add(timer)
        task.add_done_callback(partial(self._ended, key, timer))

    def _ended(self, key: str, timer: InHand, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if timer in self._not_begun:
            self._not_begun.discard(timer)
            self._outcomes.given_back(timer)
        if task.cancelled() or task.exception() is not None:  # else it has left its key, and another may have it
            for left in self._keys.pop(key, ()):
                self._queued -= 1
                self._outcomes.given_back(left)
        self._changed.set()

    async def _handle_all(self, key: str, timer: InHand) -> None:
        """This one, and then those of its key that came meanwhile."""
        self._not_begun.discard(timer)
        await self._handle(timer)
        while key and (queued := self._keys[key]):
            self._queued -= 1
            self._changed.set()
            await self._handle(queued.popleft())
        self._keys.pop(key, None)  # in the same step in which nobody was waiting

    async def _handle(self, timer: InHand) -> None:
        message = await self._taken(timer)
        if message is None:
            return
        has_returned = False
        try:
            if self._arounds is None:
                await self._handler(message)
            else:
                await self._within(self._arounds, message)
                has_returned = True
                await _to_its_end(self._arounds.leave, message)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises, its timer comes again
            self._outcomes.raised(timer, message, error)
        except BaseException:
            # Cancelled while it is told that the handler has returned: the effect has happened.
            (self._outcomes.returned if has_returned else self._outcomes.given_back)(timer)
            raise
        else:
            self._outcomes.returned(timer)

    async def _within(self, arounds: Arounds, message: DelayedMessage) -> None:
        """Until the handler has returned, which nobody is told yet."""
        await _to_its_end(arounds.enter, message, then=lambda: arounds.leave(message, asyncio.CancelledError()))
        try:
            await self._handler(message)
        except BaseException as error:
            await _to_its_end(arounds.leave, message, error)
            raise

    def _give_back_queued(self) -> None:
        for queued in self._keys.values():
            while queued:
                self._queued -= 1
                self._outcomes.given_back(queued.popleft())

    async def _cancel(self) -> None:
        """Handlers that still run; what they have not handled is given back."""
        if not self._tasks:
            return
        self._hooks.emit(HandlersLeftBehind(handlers=len(self._tasks)))
        for task in self._tasks:
            task.cancel()
        await self._all_end(CANCEL_TIMEOUT_S)

    async def _all_end(self, timeout_s: float) -> None:
        """Wait for all handlers, by the event loop's clock; the rest of them go on."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._tasks:
                    await asyncio.wait(self._tasks)


async def _to_its_end(call: Callable[..., None], *arguments: object, then: Callable[[], None] | None = None) -> None:
    """Run it on a thread; if this is cancelled meanwhile, wait for it all the same, since it cannot be cut short.

    Args:
        call: It may block.
        arguments: Its.
        then: Called on a thread besides, if this was cancelled and the call did not raise.
    """
    calling = asyncio.ensure_future(asyncio.to_thread(call, *arguments))
    try:
        await asyncio.shield(calling)
    except asyncio.CancelledError:
        await wait_out(calling)
        if then is not None and calling.exception() is None:
            await wait_out(asyncio.ensure_future(asyncio.to_thread(then)))
        raise


async def wait_out(calling: asyncio.Future[Any]) -> None:
    """Until it has ended, however often this is cancelled meanwhile; the caller is about to raise that it was."""
    while not calling.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([calling])

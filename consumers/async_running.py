"""Runs handlers on an event loop: timers with the same key one after the other, and an orderly end."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from timewheel.client.hooks import Hooks
from timewheel.consumers.feeding import Feed
from timewheel.consumers.in_flight import InFlight
from timewheel.consumers.message import DelayedMessage, key_of
from timewheel.consumers.middleware import MiddlewareChain
from timewheel.consumers.outcomes import Outcomes
from timewheel.events import HandlersLeftBehind

AsyncHandler = Callable[[DelayedMessage], Awaitable[object]]
"""Handles a timer: returning acknowledges the timer, raising has it delivered again."""

MAX_QUEUED = 1_000
"""Timers that wait for another timer of their key; at this number, no timer is taken until the number falls."""
CANCEL_TIMEOUT_S = 5.0
"""Time for handlers to end after they are cancelled."""


class AsyncRun:
    """A call of `AsyncDelayedConsumer.run`.

    Args:
        feed: Source of due timers.
        handler: The user's handler.
        taken: Makes the message for a handler when it begins; None if the handler must not begin, and the timer is
            already dealt with.
        middlewares: Code around each handler, called on threads, since it may block; None if there is no such code.
        outcomes: Receives the outcomes of handlers.
        hooks: Receive events about handlers that are left behind.
        concurrency: Maximum number of timers handled at the same time.
        stop: Has the consumer stop.
    """

    def __init__(
        self,
        feed: Feed,
        handler: AsyncHandler,
        *,
        taken: Callable[[InFlight], Awaitable[DelayedMessage | None]],
        middlewares: MiddlewareChain | None,
        outcomes: Outcomes,
        hooks: Hooks,
        concurrency: int,
        stop: Callable[[], None],
    ) -> None:
        self._feed = feed
        self._handler = handler
        self._taken = taken
        self._middlewares = middlewares
        self._outcomes = outcomes
        self._hooks = hooks
        self._concurrency = concurrency
        self._stop = stop
        self._fatal: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        # A task that is cancelled before its first step runs none of its code.
        self._not_begun: set[InFlight] = set()
        # For each key that is being handled, the timers that wait for it.
        self._keys: dict[str, deque[InFlight]] = {}
        self._queued = 0
        self._changed = asyncio.Event()

    async def until_stopped(self, drain: dt.timedelta) -> None:
        """Handle timers until the feed ends; then wait for the handlers that have begun.

        If this is cancelled, or the feed fails, handlers are cancelled at once. Unhandled timers are given back.

        Args:
            drain: Time that the end waits for handlers.

        Raises:
            pulsar.PulsarException: Receiving failed.
            Exception: The outcome of a handler could not be decided.
            asyncio.CancelledError: This call was cancelled.
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
        if self._fatal is not None:
            raise self._fatal

    async def _has_room_for(self, timer: InFlight) -> bool:
        """Wait for room; return False if the feed ends first."""
        key = key_of(timer.arrival.message)

        def is_there() -> bool:
            return self._queued < MAX_QUEUED and (key in self._keys or len(self._tasks) < self._concurrency)

        try:
            return is_there() or await self._feed.until(is_there, self._changed)
        except asyncio.CancelledError:
            self._outcomes.given_back(timer)
            raise

    def _begin(self, timer: InFlight) -> None:
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

    def _ended(self, key: str, timer: InFlight, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if timer in self._not_begun:
            self._not_begun.discard(timer)
            self._outcomes.given_back(timer)
        fatal = None if task.cancelled() else task.exception()
        if fatal is not None:
            self._fatal = self._fatal or fatal
            self._stop()
        if task.cancelled() or fatal is not None:  # else its key is released, and may be another task's
            for left in self._keys.pop(key, ()):
                self._queued -= 1
                self._outcomes.given_back(left)
        self._changed.set()

    async def _handle_all(self, key: str, timer: InFlight) -> None:
        """Handle this timer, then the timers of its key that arrived meanwhile."""
        self._not_begun.discard(timer)
        await self._handle(timer)
        while key and (queued := self._keys[key]):
            self._queued -= 1
            self._changed.set()
            await self._handle(queued.popleft())
        self._keys.pop(key, None)  # in the same step in which no timer was queued

    async def _handle(self, timer: InFlight) -> None:
        try:
            message = await self._taken(timer)
            if message is not None:
                await self._handle_message(timer, message)
        except Exception:  # beside the handler: the run ends with it
            self._outcomes.given_back(timer)
            raise

    async def _handle_message(self, timer: InFlight, message: DelayedMessage) -> None:
        has_returned = False
        try:
            if self._middlewares is None:
                await self._handler(message)
            else:
                await self._within(self._middlewares, message)
                has_returned = True
                await _to_its_end(self._middlewares.leave, message)
        except Exception as error:  # noqa: BLE001 - whichever error a handler raises, its timer is delivered again
            self._outcomes.raised(timer, message, error)
        except BaseException:
            # Cancelled while ``leave`` runs, after the handler has returned: the effect has happened.
            (self._outcomes.returned if has_returned else self._outcomes.given_back)(timer)
            raise
        else:
            self._outcomes.returned(timer)

    async def _within(self, middlewares: MiddlewareChain, message: DelayedMessage) -> None:
        """Enter the middleware and run the handler; ``leave`` is called here only if the handler raises."""
        await _to_its_end(middlewares.enter, message, then=lambda: middlewares.leave(message, asyncio.CancelledError()))
        try:
            await self._handler(message)
        except BaseException as error:
            await _to_its_end(middlewares.leave, message, error)
            raise

    def _give_back_queued(self) -> None:
        for queued in self._keys.values():
            while queued:
                self._queued -= 1
                self._outcomes.given_back(queued.popleft())

    async def _cancel(self) -> None:
        """Cancel the handlers that still run; their unhandled timers are given back."""
        if not self._tasks:
            return
        self._hooks.emit(HandlersLeftBehind(handlers=len(self._tasks)))
        for task in self._tasks:
            task.cancel()
        await self._all_end(CANCEL_TIMEOUT_S)

    async def _all_end(self, timeout_s: float) -> None:
        """Wait for all handlers, by the event loop's clock; handlers that are left at the timeout continue."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._tasks:
                    await asyncio.wait(self._tasks)


async def _to_its_end(call: Callable[..., None], *arguments: object, then: Callable[[], None] | None = None) -> None:
    """Run a call on a thread; if this is cancelled meanwhile, wait for the call, which cannot be interrupted.

    Args:
        call: A function that may block.
        arguments: Arguments of the call.
        then: Called on a thread as well, if this was cancelled and the call did not raise.
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
    """Wait until a call has ended, however often this is cancelled; the caller then raises the cancellation."""
    while not calling.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([calling])

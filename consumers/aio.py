"""The asyncio consumer."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Self

from timewheel.client.hooks import Hooks
from timewheel.core.arguments import check_kind, is_async
from timewheel.core.clock import Clock
from timewheel.core.errors import ClientMisuse
from timewheel.events import HandlersLeftBehind

from .base_consumer import BaseConsumer, Outcomes, stopping_on_signals
from .errors import ReceiveTimeout, SubscribeRefused, check_count, check_duration, timeout_ms_of
from .message import DelayedMessage, InFlight, key_of
from .middleware import MiddlewareChain
from .receiver import LOOK_MS, SLICE_MS, Receiver
from .retry import ParkTimer, RetryLater

MAX_WAITING = 256  # due timers that the loop has not taken yet; more wait in the engine and in the broker
JOIN_TIMEOUT_MS = 5_000


class Feed:
    """A queue from the receiving thread to the coroutines of a loop.

    A waiter takes a timer only when it resumes, so that a cancelled waiter takes no timer along.
    """

    def __init__(
        self, receiver: Receiver, loop: asyncio.AbstractEventLoop, clock: Clock, is_stopping: Callable[[], bool]
    ) -> None:
        self._receiver = receiver
        self._loop = loop
        self._clock = clock
        self._is_stopping = is_stopping
        self._waiting: deque[InFlight] = deque()
        self._room = threading.Condition()
        self._arrived = asyncio.Event()
        self._waiters: set[asyncio.Event] = set()
        self._is_called = self._is_abandoned = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="timewheel-feed", daemon=True)

    def start(self) -> None:
        """Begin to receive."""
        self._thread.start()

    async def next(self) -> InFlight | None:
        """Return the next due timer; None once the feed shall end."""
        while not self._is_stopping():
            if self._waiting:
                return self._take()
            if self._failure is not None:
                raise self._failure
            self._arrived.clear()
            await self._arrived.wait()
        return None

    async def until(self, reached: Callable[[], bool], changed: asyncio.Event) -> bool:
        """Wait until a condition is reached; return False once the feed has ended."""
        self._waiters.add(changed)
        try:
            while not self._is_stopping():
                if reached():
                    return True
                changed.clear()
                await changed.wait()
        finally:
            self._waiters.discard(changed)
        return False

    def end(self) -> list[InFlight]:
        """Wait for the thread, which ends by itself; return the timers not taken. Blocks, so never on the loop."""
        if self._thread.ident is not None:
            self._clock.join(self._thread, JOIN_TIMEOUT_MS)
        left = list(self._waiting)
        self._waiting.clear()
        return left

    def _take(self) -> InFlight:
        timer = self._waiting.popleft()
        if len(self._waiting) == MAX_WAITING - 1:
            with self._room:
                self._room.notify()
        return timer

    def _run(self) -> None:
        try:
            while not self._is_stopping() and not self._is_abandoned:
                if len(self._waiting) >= MAX_WAITING:
                    with self._room:
                        self._clock.wait(self._room, LOOK_MS)
                    self._receiver.look()
                    continue
                timer = self._receiver.next(SLICE_MS)
                if timer is not None:
                    self._waiting.append(timer)
                    self._call()
        except Exception as error:  # noqa: BLE001 - raised again where timers are taken
            self._failure = error
        self._call()

    def _call(self) -> None:
        """Wake the loop, unless a wake-up is under way: so that a burst costs a single wake-up."""
        if not self._is_called:
            self._is_called = True
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:
                self._is_abandoned = True  # the loop is closed: the timers here go to others when the process ends

    def _wake(self) -> None:
        self._is_called = False
        self._arrived.set()
        for waiter in self._waiters:
            waiter.set()


AsyncHandler = Callable[[DelayedMessage], Awaitable[object]]
"""Handles a timer: returning acknowledges the timer, raising has it delivered again."""

MAX_QUEUED = 1_000
"""Timers that wait for another timer of their key; at this number, no timer is taken until the number falls."""
CANCEL_TIMEOUT_S = 5.0  # time for handlers to end after they are cancelled


@dataclass(eq=False)
class AsyncRun:
    """A call of `AsyncDelayedConsumer.run`; the middleware is called on threads, since it may block."""

    feed: Feed
    handler: AsyncHandler
    taken: Callable[[InFlight], Awaitable[DelayedMessage | None]]
    middlewares: MiddlewareChain | None
    outcomes: Outcomes
    hooks: Hooks
    concurrency: int
    stop: Callable[[], None]
    fatal: BaseException | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    # A task that is cancelled before its first step runs none of its code.
    _not_begun: set[InFlight] = field(default_factory=set)
    # For each key that is being handled, the timers that wait for it.
    _keys: dict[str, deque[InFlight]] = field(default_factory=dict)
    _queued: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def until_stopped(self, drain: dt.timedelta) -> None:
        """Handle timers until the feed ends; then wait for the handlers that have begun.

        If this is cancelled, or the feed fails, handlers are cancelled at once. Unhandled timers are given back.
        """
        try:
            while (timer := await self.feed.next()) is not None:
                if await self._has_room_for(timer):
                    self._begin(timer)
                else:
                    self.outcomes.given_back(timer)
            self._give_back_queued()
            await self._all_end(drain.total_seconds())
        finally:
            await self._cancel()
        if self.fatal is not None:
            raise self.fatal

    async def _has_room_for(self, timer: InFlight) -> bool:
        """Wait for room; return False if the feed ends first."""
        key = key_of(timer.arrival.message)

        def is_there() -> bool:
            return self._queued < MAX_QUEUED and (key in self._keys or len(self._tasks) < self.concurrency)

        try:
            return is_there() or await self.feed.until(is_there, self._changed)
        except asyncio.CancelledError:
            self.outcomes.given_back(timer)
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
            self.outcomes.given_back(timer)
        fatal = None if task.cancelled() else task.exception()
        if fatal is not None:
            self.fatal = self.fatal or fatal
            self.stop()
        if task.cancelled() or fatal is not None:  # else its key is released, and may be another task's
            for left in self._keys.pop(key, ()):
                self._queued -= 1
                self.outcomes.given_back(left)
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
            message = await self.taken(timer)
            if message is not None:
                await self._handle_message(timer, message)
        except Exception:  # beside the handler: the run ends with it
            self.outcomes.given_back(timer)
            raise

    async def _handle_message(self, timer: InFlight, message: DelayedMessage) -> None:
        has_returned = False
        try:
            if self.middlewares is None:
                await self.handler(message)
            else:
                await self._within(self.middlewares, message)
                has_returned = True
                await _to_its_end(self.middlewares.leave, message)
        except Exception as error:  # noqa: BLE001 - whichever error a handler raises, its timer is delivered again
            self.outcomes.raised(timer, message, error)
        except BaseException:
            # Cancelled while ``leave`` runs, after the handler has returned: the effect has happened.
            (self.outcomes.returned if has_returned else self.outcomes.given_back)(timer)
            raise
        else:
            self.outcomes.returned(timer)

    async def _within(self, middlewares: MiddlewareChain, message: DelayedMessage) -> None:
        """Enter the middleware and run the handler; ``leave`` is called here only if the handler raises."""
        await _to_its_end(middlewares.enter, message, then=lambda: middlewares.leave(message, asyncio.CancelledError()))
        try:
            await self.handler(message)
        except BaseException as error:
            await _to_its_end(middlewares.leave, message, error)
            raise

    def _give_back_queued(self) -> None:
        for queued in self._keys.values():
            while queued:
                self._queued -= 1
                self.outcomes.given_back(queued.popleft())

    async def _cancel(self) -> None:
        """Cancel the handlers that still run; their unhandled timers are given back."""
        if not self._tasks:
            return
        self.hooks.emit(HandlersLeftBehind(handlers=len(self._tasks)))
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
    """Run a call on a thread; if this is cancelled meanwhile, wait for the call, which cannot be interrupted."""
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


MAX_CONCURRENCY = 10_000


class AsyncDelayedConsumer(BaseConsumer):
    """Hands out timers on one event loop; the asyncio twin of `DelayedConsumer`.

        async with AsyncDelayedConsumer(client, plan, "billing") as consumer:
            await consumer.run(handler, concurrency=100)

    A single thread receives, however many handlers run. The client is a ``pulsar.Client`` (not
    ``pulsar.asyncio.Client``); the arguments are those of `BaseConsumer`. The inbox and the `Middleware` objects may
    block; they are called on threads of the loop's executor.
    """

    _feed: Feed | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> Self:
        """Subscribe and start the embedded relay; do nothing if the consumer has started.

        Raises:
            ClientMisuse: The consumer belongs to another event loop. Other errors are those of `DelayedConsumer.start`.
        """
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise ClientMisuse("this consumer belongs to another event loop: make one in each")
        self._loop = loop
        if self._feed is None or self._stopping:
            await asyncio.to_thread(self._open)
        if self._feed is None:
            self._feed = Feed(self._receiver, loop, self._clock, lambda: self._stopping)
            self._feed.start()
        return self

    async def close(self) -> None:
        """Stop the relay and close the client's consumers. Unacknowledged timers are redelivered to other consumers."""
        self.stop()
        await asyncio.to_thread(self._close)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --------------------------------------------------------------------------------------------------------- receive

    async def receive(
        self,
        timeout: dt.timedelta | None = None,  # noqa: ASYNC109 - the arguments of the blocking twin
        *,
        timeout_millis: int | None = None,
    ) -> DelayedMessage:
        """Wait for the next due timer, as `DelayedConsumer.receive`; a cancelled call takes no timer."""
        timeout_ms = timeout_ms_of(timeout, timeout_millis)
        await self.start()
        if timeout_ms is None:
            return await self._received()
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                return await self._received()
        except TimeoutError:
            raise ReceiveTimeout(timeout_ms) from None

    async def _received(self) -> DelayedMessage:
        while (timer := await self._next()) is not None:
            if (message := await self._taken_soon(timer)) is not None:
                return message
        self._check_usable()
        raise ClientMisuse("the consumer was stopped")

    async def __aiter__(self) -> AsyncIterator[DelayedMessage]:
        """Yield every timer as it becomes due, until `stop`; the caller acknowledges each timer."""
        await self.start()
        while (timer := await self._next()) is not None:
            if (message := await self._taken_soon(timer)) is not None:
                yield message

    async def acknowledge(self, message: DelayedMessage | Any) -> None:
        """Acknowledge a handled timer; see `DelayedConsumer.acknowledge`."""
        self._receiver.done(self._timer_of(message))

    async def negative_acknowledge(self, message: DelayedMessage | Any) -> None:
        """Have the timer redelivered after ``negative_ack_redelivery_delay_ms``."""
        self._receiver.failed(self._timer_of(message))

    async def retry(
        self, message: DelayedMessage | Any, after: dt.timedelta | None = None, *, reason: str = ""
    ) -> None:
        """Have the timer handled again later; see `DelayedConsumer.retry`."""
        self._move_on(message, RetryLater(after, reason))

    async def park(self, message: DelayedMessage | Any, reason: str) -> None:
        """Park the timer for an operator; see `DelayedConsumer.park`."""
        self._move_on(message, ParkTimer(reason))

    # ------------------------------------------------------------------------------------------------------------- run

    async def run(
        self,
        handler: AsyncHandler,
        *,
        concurrency: int = 100,
        drain_timeout: dt.timedelta = dt.timedelta(seconds=30),
        stops_on_signals: bool = True,
    ) -> None:
        """Handle timers until `stop`, SIGTERM or SIGINT; return when the handlers that have begun have ended.

        The end of a handler decides about its timer as in `DelayedConsumer.run`. If this call is cancelled, handlers
        are cancelled at once, and their unhandled timers are redelivered.

        Args:
            handler: An ``async def``.
            concurrency: Maximum number of timers handled at the same time. Timers with the same key are handled one
                after the other.
            drain_timeout: Time that the end waits for handlers that have begun; after it, they are cancelled.
            stops_on_signals: As in `DelayedConsumer.run`.

        Raises:
            SubscribeRefused: ``concurrency`` is out of range, or the handler is no ``async def``.
            BadArgument: The handler cannot be called.
            TypeError: ``drain_timeout`` is no timedelta.
            TopologyError, pulsar.PulsarException: As in `start`; also an error that ended receiving.
        """
        check_count("concurrency", concurrency, MAX_CONCURRENCY)
        check_duration("drain_timeout", drain_timeout)
        check_kind("handler", handler, ("__call__",), "a function is needed, such as run(handle)")
        if not is_async(handler):
            raise SubscribeRefused(
                "handler", handler, "an async def is needed; DelayedConsumer.run takes plain functions"
            )
        await self.start()
        assert self._feed is not None, "it was started"
        run = AsyncRun(
            self._feed,
            handler,
            taken=self._taken_soon,
            middlewares=self._middlewares,
            outcomes=Outcomes(self._receiver, self._retries, self._hooks),
            hooks=self._hooks,
            concurrency=concurrency,
            stop=self.stop,
        )
        with stopping_on_signals(self.stop) if stops_on_signals else nullcontext():
            await run.until_stopped(drain_timeout)

    # ---------------------------------------------------------------------------------------------------------- inside

    async def _next(self) -> InFlight | None:
        assert self._feed is not None, "it was started"
        return await self._feed.next()

    async def _taken_soon(self, timer: InFlight) -> DelayedMessage | None:
        """Do the work of `_taken`, which may wait for the log of cancellations; if cancelled, give the timer back."""
        if self._receiver.is_known(timer):
            return self._taken(timer, is_known=True)
        taking = asyncio.ensure_future(asyncio.to_thread(self._taken, timer))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            await wait_out(taking)
            if taking.result() is not None:
                self._receiver.postponed(timer, 0)
            raise

    def _close(self) -> None:
        for timer in self._feed.end() if self._feed is not None else ():
            self._receiver.failed(timer, quietly=True)
        self._shut()

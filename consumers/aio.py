"""The asyncio consumer."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator
from contextlib import nullcontext
from types import TracebackType
from typing import Any, Self

from timewheel.consumers.arguments import check_count, check_duration, timeout_ms_of
from timewheel.consumers.async_running import AsyncHandler, AsyncRun, wait_out
from timewheel.consumers.base_consumer import BaseConsumer
from timewheel.consumers.errors import ReceiveTimeout, SubscribeRefused
from timewheel.consumers.feeding import Feed
from timewheel.consumers.in_flight import InFlight
from timewheel.consumers.message import DelayedMessage
from timewheel.consumers.outcomes import Outcomes
from timewheel.consumers.retry import ParkTimer, RetryLater
from timewheel.consumers.signals import stopping_on_signals
from timewheel.core.arguments import check_kind, is_async
from timewheel.core.errors import ClientMisuse

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
            TopologyError: A topic is missing; names the command that creates the topic.
            ClientMisuse: The consumer was closed, was created before a fork, or belongs to another event loop.
            pulsar.PulsarException: The broker refused or did not answer.
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
        """Wait for the next due timer, as `DelayedConsumer.receive`; a cancelled call takes no timer.

        Args:
            timeout: Time to wait; None waits for ever.
            timeout_millis: The same under pulsar-client's name, in milliseconds.

        Raises:
            ReceiveTimeout: No timer was due in time; a subclass of both `pulsar.Timeout` and `TimeoutError`.
            TypeError: ``timeout`` is a number, which has no unit.
            ClientMisuse: The consumer was stopped or closed.
        """
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

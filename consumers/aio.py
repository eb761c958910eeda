"""The asyncio consumer."""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
from collections.abc import AsyncIterator
from contextlib import nullcontext
from types import TracebackType
from typing import Any, Self

from timewheel.consumers.arguments import check_count, check_duration
from timewheel.consumers.async_running import AsyncHandler, AsyncRun, wait_out
from timewheel.consumers.consuming import Consuming
from timewheel.consumers.errors import SubscribeRefused
from timewheel.consumers.feeding import Feed
from timewheel.consumers.in_hand import InHand
from timewheel.consumers.message import DelayedMessage
from timewheel.consumers.outcomes import Outcomes
from timewheel.consumers.retry import Park, RetryLater
from timewheel.consumers.signals import stopping_on_signals
from timewheel.core.errors import ClientMisuse

__all__ = ["AsyncDelayedConsumer"]

MAX_CONCURRENCY = 10_000


class AsyncDelayedConsumer(Consuming):
    """Hands out timers on one event loop; `DelayedConsumer`'s twin.

        async with AsyncDelayedConsumer(client, plan, "billing") as consumer:
            await consumer.run(handler, concurrency=100)

    One thread receives, however many handlers are at work. It takes your ``pulsar.Client`` (not
    ``pulsar.asyncio.Client``); its arguments are those of `Consuming`. What stands around handlers, the inbox among it,
    may block, and is called on threads of the loop's executor.
    """

    _feed: Feed | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> Self:
        """Subscribe and start the embedded relay; nothing if that was done.

        Raises:
            TopologyError: A topic is missing; names the command that makes it.
            ClientMisuse: It was closed, comes from before a fork, or belongs to another event loop.
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
        """Stop the relay, close the client's consumers. What is not acknowledged is delivered again to others."""
        self.stop()
        await asyncio.to_thread(self._close)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --------------------------------------------------------------------------------------------------------- receive

    async def receive(self) -> DelayedMessage:
        """Wait for the next timer that is due; cancelled, it takes none.

        To wait for so long only: ``async with asyncio.timeout(5)``.

        Raises:
            ClientMisuse: The consumer was stopped or closed.
        """
        await self.start()
        while (timer := await self._next()) is not None:
            if (message := await self._taken_soon(timer)) is not None:
                return message
        self._check_usable()
        raise ClientMisuse("the consumer was stopped")

    async def __aiter__(self) -> AsyncIterator[DelayedMessage]:
        """Every timer as it becomes due, until `stop`; each is to be acknowledged by the caller."""
        await self.start()
        while (timer := await self._next()) is not None:
            if (message := await self._taken_soon(timer)) is not None:
                yield message

    async def acknowledge(self, message: DelayedMessage | Any) -> None:
        """The timer is handled; as `DelayedConsumer.acknowledge`."""
        self._receiver.done(self._timer_of(message))

    async def negative_acknowledge(self, message: DelayedMessage | Any) -> None:
        """Have the timer delivered again, after ``negative_ack_redelivery_delay_ms``."""
        self._receiver.failed(self._timer_of(message))

    async def retry(
        self, message: DelayedMessage | Any, after: dt.timedelta | None = None, *, reason: str = ""
    ) -> None:
        """Have the timer handled again later; as `DelayedConsumer.retry`."""
        self._move_on(message, RetryLater(after, reason))

    async def park(self, message: DelayedMessage | Any, reason: str) -> None:
        """Have the timer wait for an operator; as `DelayedConsumer.park`."""
        self._move_on(message, Park(reason))

    # ------------------------------------------------------------------------------------------------------------- run

    async def run(
        self,
        handler: AsyncHandler,
        *,
        concurrency: int = 100,
        drain_timeout: dt.timedelta = dt.timedelta(seconds=30),
        stops_on_signals: bool = True,
    ) -> None:
        """Handle timers until `stop`, or SIGTERM or SIGINT: then handlers end what they have begun, and it returns.

        What becomes of a timer by how its handler ends: as `DelayedConsumer.run`. If this is cancelled, handlers are
        cancelled at once, and what they had not handled is delivered again.

        Args:
            handler: An ``async def``.
            concurrency: How many timers are handled at the same time. Those with the same key are handled one after the
                other.
            drain_timeout: How long the end waits for handlers that have begun; then they are cancelled.
            stops_on_signals: As for `DelayedConsumer.run`.

        Raises:
            SubscribeRefused: ``concurrency`` is out of range, or the handler is no ``async def``.
            TypeError: ``drain_timeout`` is no timedelta.
            TopologyError, pulsar.PulsarException: As `start`; also what ends receiving.
        """
        check_count("concurrency", concurrency, MAX_CONCURRENCY)
        check_duration("drain_timeout", drain_timeout)
        if not (inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)):
            raise SubscribeRefused("handler", handler, "an async def; DelayedConsumer.run takes plain functions")
        await self.start()
        assert self._feed is not None, "it was started"
        run = AsyncRun(
            self._feed,
            handler,
            taken=self._taken_soon,
            arounds=self._arounds,
            outcomes=Outcomes(self._receiver, self._retries, self._hooks),
            hooks=self._hooks,
            concurrency=concurrency,
        )
        with stopping_on_signals(self.stop) if stops_on_signals else nullcontext():
            await run.until_stopped(drain_timeout)

    # ---------------------------------------------------------------------------------------------------------- inside

    async def _next(self) -> InHand | None:
        assert self._feed is not None, "it was started"
        return await self._feed.next()

    async def _taken_soon(self, timer: InHand) -> DelayedMessage | None:
        """As `_taken`, which may wait for the log of cut-offs; cancelled meanwhile, the timer is handed out again."""
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

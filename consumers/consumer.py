"""The consumer SDK: a thin shell that executes the engine's decisions on the user's own pulsar client."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import nullcontext
from types import TracebackType
from typing import Any, NoReturn, Self

from timewheel.consumers.arguments import check_count, check_duration, timeout_ms_of
from timewheel.consumers.consuming import Consuming
from timewheel.consumers.errors import ReceiveTimeout
from timewheel.consumers.handlers import Handler
from timewheel.consumers.message import DelayedMessage
from timewheel.consumers.outcomes import Outcomes
from timewheel.consumers.receiving.receiver import SLICE_MS
from timewheel.consumers.retry import Park, RetryLater
from timewheel.consumers.running import Run
from timewheel.consumers.signals import stopping_on_signals
from timewheel.core.errors import ClientMisuse, UnsupportedAcknowledgement

__all__ = ["DelayedConsumer"]

MAX_WORKERS = 1_000


class DelayedConsumer(Consuming):
    """Reads a plan's due topic: every timer once, never before its due time by this machine's clock.

    It subscribes at its first use, or at once as a context manager. One thread receives at a time; `run` spreads timers
    over workers. In a calendar it follows the topics of the intervals. Its arguments are those of `Consuming`.
    """

    def start(self) -> Self:
        """Subscribe and start the embedded relay; nothing if that was done.

        Raises:
            TopologyError: A topic is missing; names the command that makes it.
            ClientMisuse: It was closed, or comes from before a fork.
            pulsar.PulsarException: The broker refused or did not answer.
        """
        self._open()
        return self

    def close(self) -> None:
        """Stop the relay, close the client's consumers. What is not acknowledged is delivered again to others."""
        self._shut()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --------------------------------------------------------------------------------------------------------- receive

    def receive(self, timeout: dt.timedelta | None = None, *, timeout_millis: int | None = None) -> DelayedMessage:
        """Wait for the next timer that is due.

        Args:
            timeout: How long to wait; None: for ever.
            timeout_millis: The same under pulsar-client's name, in milliseconds.

        Raises:
            ReceiveTimeout: Nothing was due in time; it is a `pulsar.Timeout` and a `TimeoutError` at once.
            TypeError: ``timeout`` is a number: nothing says of what.
            ClientMisuse: The consumer was stopped or closed.
        """
        timeout_ms = timeout_ms_of(timeout, timeout_millis)
        self.start()
        deadline_ms = None if timeout_ms is None else self._clock.monotonic_ms() + timeout_ms
        while not self._stopping:
            left_ms = SLICE_MS if deadline_ms is None else deadline_ms - self._clock.monotonic_ms()
            timer = self._receiver.next(min(max(left_ms, 0), SLICE_MS))
            if timer is not None and (message := self._taken(timer)) is not None:
                return message
            if timeout_ms is not None and left_ms <= 0:
                raise ReceiveTimeout(timeout_ms)
        self._check_usable()
        raise ClientMisuse("the consumer was stopped")

    def __iter__(self) -> Iterator[DelayedMessage]:
        """Every timer as it becomes due, until `stop`; each is to be acknowledged by the caller."""
        self.start()
        while not self._stopping:
            timer = self._receiver.next(SLICE_MS)
            if timer is not None and (message := self._taken(timer)) is not None:
                yield message

    def acknowledge(self, message: DelayedMessage | Any) -> None:
        """The timer is handled: it is remembered, and the broker is told.

        Args:
            message: As received, or its message id.

        Raises:
            pulsar.PulsarException: The client could not take the acknowledgement. The timer is remembered all the same:
                when it is delivered again it is dropped.
        """
        self._receiver.done(self._timer_of(message))

    def negative_acknowledge(self, message: DelayedMessage | Any) -> None:
        """Have the timer delivered again, after ``negative_ack_redelivery_delay_ms``."""
        self._receiver.failed(self._timer_of(message))

    def retry(self, message: DelayedMessage | Any, after: dt.timedelta | None = None, *, reason: str = "") -> None:
        """Have the timer handled again later, by this subscription alone, as `RetryLater` does under `run`.

        Args:
            message: As received, or its message id.
            after: How long from now; None: as the policy says.
            reason: Why, for whoever finds it parked at the end.

        Raises:
            SubscribeRefused: The plan has no topics for that.
        """
        self._move_on(message, RetryLater(after, reason))

    def park(self, message: DelayedMessage | Any, reason: str) -> None:
        """Have the timer wait for an operator, as `Park` does under `run`.

        Args:
            message: As received, or its message id.
            reason: Why, as a sentence.

        Raises:
            SubscribeRefused: The plan has no topics for that.
        """
        self._move_on(message, Park(reason))

    def acknowledge_cumulative(self, message: object) -> NoReturn:
        """Always refused.

        Raises:
            UnsupportedAcknowledgement: On Shared and Key_Shared subscriptions, and these alone honour a delay, it would
                acknowledge timers that were never delivered: they become due in another order than they were sent in.
        """
        raise UnsupportedAcknowledgement(
            f"acknowledge_cumulative({message!r}): timers become due in another order than they are stored in, so it "
            "would drop timers that are not yet due; acknowledge each"
        )

    # ------------------------------------------------------------------------------------------------------------- run

    def run(
        self,
        handler: Handler,
        *,
        workers: int = 8,
        drain_timeout: dt.timedelta = dt.timedelta(seconds=30),
        stops_on_signals: bool = True,
    ) -> None:
        """Handle timers until `stop`, or SIGTERM or SIGINT: then handlers end what they have begun, and it returns.

        A timer whose handler returns is acknowledged. One whose handler raises is told to the hooks and tried again, as
        ``retry`` has it; without that it is negatively acknowledged. See also `Skip`, `Later`, `RetryLater`, `Park`.
        Timers with the same key are handled one after the other, by one worker.

        Args:
            handler: Plain (called on worker threads) or ``async def`` (all on one event loop).
            workers: How many timers are handled at the same time.
            drain_timeout: How long the end waits for handlers that have begun or are next in line; what is not done by
                then stays unacknowledged, and is delivered again.
            stops_on_signals: Whether the first SIGTERM or SIGINT ends it so. On the main thread only, and only a signal
                for which your service has no handler of its own; a second one does what it does by default.

        Raises:
            SubscribeRefused: ``workers`` is out of range.
            TypeError: ``drain_timeout`` is no timedelta.
            BaseException: What a handler raised that is no `Exception`, such as `SystemExit`, after the drain.
            TopologyError, pulsar.PulsarException: As `start`; also what ends receiving, after the drain.
        """
        check_count("workers", workers, MAX_WORKERS)
        check_duration("drain_timeout", drain_timeout)
        self.start()
        run = Run(
            self._receiver,
            taken=self._taken,
            arounds=self._arounds,
            outcomes=Outcomes(self._receiver, self._retries, self._hooks),
            clock=self._clock,
            hooks=self._hooks,
            is_stopping=lambda: self._stopping,
            stop=self.stop,
        )
        with stopping_on_signals(self.stop) if stops_on_signals else nullcontext():
            run.until_stopped(handler, workers, drain_timeout // dt.timedelta(milliseconds=1))

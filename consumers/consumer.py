"""The blocking consumer: a thin shell that executes the engine's decisions on the user's own pulsar client."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import nullcontext
from types import TracebackType
from typing import Any, NoReturn, Self

from timewheel.consumers.arguments import check_count, check_duration, timeout_ms_of
from timewheel.consumers.base_consumer import BaseConsumer
from timewheel.consumers.errors import ReceiveTimeout
from timewheel.consumers.handlers import Handler
from timewheel.consumers.message import DelayedMessage
from timewheel.consumers.outcomes import Outcomes
from timewheel.consumers.receiving.receiver import SLICE_MS
from timewheel.consumers.retry import ParkTimer, RetryLater
from timewheel.consumers.running import Run
from timewheel.consumers.signals import stopping_on_signals
from timewheel.core.arguments import check_kind
from timewheel.core.errors import ClientMisuse, UnsupportedAcknowledgement

MAX_WORKERS = 1_000


class DelayedConsumer(BaseConsumer):
    """Reads a plan's due topic: every timer once, never before its due time by this machine's clock.

    It subscribes at its first use, or at once as a context manager. A single thread receives at a time; `run` spreads
    timers over workers. With a calendar it follows the topics of the intervals. The arguments are those of
    `BaseConsumer`.
    """

    def start(self) -> Self:
        """Subscribe and start the embedded relay; do nothing if the consumer has started.

        Raises:
            TopologyError: A topic is missing; names the command that creates the topic.
            ClientMisuse: The consumer was closed, or was created before a fork.
            pulsar.PulsarException: The broker refused or did not answer.
        """
        self._open()
        return self

    def close(self) -> None:
        """Stop the relay and close the client's consumers. Unacknowledged timers are redelivered to other consumers."""
        self._shut()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --------------------------------------------------------------------------------------------------------- receive

    def receive(self, timeout: dt.timedelta | None = None, *, timeout_millis: int | None = None) -> DelayedMessage:
        """Wait for the next due timer.

        Args:
            timeout: Time to wait; None waits for ever.
            timeout_millis: The same under pulsar-client's name, in milliseconds.

        Raises:
            ReceiveTimeout: No timer was due in time; a subclass of both `pulsar.Timeout` and `TimeoutError`.
            TypeError: ``timeout`` is a number, which has no unit.
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
        """Yield every timer as it becomes due, until `stop`; the caller acknowledges each timer."""
        self.start()
        while not self._stopping:
            timer = self._receiver.next(SLICE_MS)
            if timer is not None and (message := self._taken(timer)) is not None:
                yield message

    def acknowledge(self, message: DelayedMessage | Any) -> None:
        """Remember the timer as handled, and acknowledge it to the broker.

        Args:
            message: The message as received, or its message id.

        Raises:
            pulsar.PulsarException: The client could not take the acknowledgement. The timer is remembered all the same:
                it is dropped when it is redelivered.
        """
        self._receiver.done(self._timer_of(message))

    def negative_acknowledge(self, message: DelayedMessage | Any) -> None:
        """Have the timer redelivered after ``negative_ack_redelivery_delay_ms``."""
        self._receiver.failed(self._timer_of(message))

    def retry(self, message: DelayedMessage | Any, after: dt.timedelta | None = None, *, reason: str = "") -> None:
        """Have the timer handled again later, by this subscription alone, as `RetryLater` does under `run`.

        Args:
            message: The message as received, or its message id.
            after: Delay from now; None uses the delay of the policy.
            reason: The reason, for the operator who may find the timer parked in the end.

        Raises:
            SubscribeRefused: The plan has no retry and parking topics.
        """
        self._move_on(message, RetryLater(after, reason))

    def park(self, message: DelayedMessage | Any, reason: str) -> None:
        """Park the timer for an operator, as `ParkTimer` does under `run`.

        Args:
            message: The message as received, or its message id.
            reason: The reason, as a sentence.

        Raises:
            SubscribeRefused: The plan has no retry and parking topics.
        """
        self._move_on(message, ParkTimer(reason))

    def acknowledge_cumulative(self, message: object) -> NoReturn:
        """Always refuse.

        Raises:
            UnsupportedAcknowledgement: Only Shared and Key_Shared subscriptions honour a delay. On these, a cumulative
                acknowledgement would acknowledge timers that were never delivered, since timers become due in another
                order than they were sent in.
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
        """Handle timers until `stop`, SIGTERM or SIGINT; return when the handlers that have begun have ended.

        A timer whose handler returns is acknowledged. If the handler raises, the exception is reported to the hooks and
        the timer is tried again under the ``retry`` policy; without a policy it is negatively acknowledged. See also
        `SkipTimer`, `Postpone`, `RetryLater`, `ParkTimer`. Timers with the same key are handled one after the other,
        by the same worker.

        Args:
            handler: A plain function (called on worker threads) or an ``async def`` (all on one event loop). A
                coroutine that a plain function returns is awaited too.
            workers: Maximum number of timers handled at the same time.
            drain_timeout: Time that the end waits for handlers that have begun or are next in line; timers that are not
                done by then stay unacknowledged, and are redelivered.
            stops_on_signals: End `run` on the first SIGTERM or SIGINT. On the main thread only, and only for a signal
                for which your service has no handler of its own; a second signal has its default effect.

        Raises:
            SubscribeRefused: ``workers`` is out of range.
            BadArgument: The handler cannot be called.
            TypeError: ``drain_timeout`` is no timedelta.
            BaseException: A handler raised an exception that is no `Exception`, such as `SystemExit`; raised after the
                drain.
            TopologyError, pulsar.PulsarException: As in `start`; also an error that ended receiving, after the drain.
        """
        check_count("workers", workers, MAX_WORKERS)
        check_duration("drain_timeout", drain_timeout)
        check_kind("handler", handler, ("__call__",), "a function is needed, such as run(handle)")
        self.start()
        run = Run(
            self._receiver,
            taken=self._taken,
            middlewares=self._middlewares,
            outcomes=Outcomes(self._receiver, self._retries, self._hooks),
            clock=self._clock,
            hooks=self._hooks,
            is_stopping=lambda: self._stopping,
            stop=self.stop,
        )
        with stopping_on_signals(self.stop) if stops_on_signals else nullcontext():
            run.until_stopped(handler, workers, drain_timeout // dt.timedelta(milliseconds=1))

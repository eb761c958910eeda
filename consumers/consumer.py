"""The consumer SDK: a thin shell that executes the engine's decisions on the user's own pulsar client."""

from __future__ import annotations

import datetime as dt
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

import pulsar
import pulsar.schema

from timewheel.consumers.arguments import check_count, timeout_ms_of
from timewheel.consumers.around import Around, Arounds
from timewheel.consumers.counts import ConsumerCounts
from timewheel.consumers.errors import ReceiveTimeout, SubscribeRefused
from timewheel.consumers.guarding import guarding
from timewheel.consumers.handled import DEFAULT_HANDLED
from timewheel.consumers.handlers import Handler
from timewheel.consumers.in_hand import InHand
from timewheel.consumers.judging import Overdue
from timewheel.consumers.lateness import Lateness
from timewheel.consumers.message import DelayedMessage
from timewheel.consumers.receiving.receiver import SLICE_MS
from timewheel.consumers.reception import Reception
from timewheel.consumers.retry import NO_TOPICS, Park, Retries, RetryLater, RetryPolicy
from timewheel.consumers.running import Run
from timewheel.consumers.signals import stopping_on_signals
from timewheel.core.chance import Chance, system_chance
from timewheel.core.clock import Clock, SystemClock
from timewheel.core.errors import ClientMisuse, UnsupportedAcknowledgement
from timewheel.core.former_topics import FormerTopic
from timewheel.core.limits import DEFAULT_MAX_HELD
from timewheel.core.plan import Plan
from timewheel.hooks import Hook
from timewheel.wire.hooks import Hooks
from timewheel.wire.positions import Position
from timewheel.wire.surface import ClientLike

if TYPE_CHECKING:
    from timewheel.consumers.inbox.protocol import Inbox
    from timewheel.consumers.relay.status import RelayStatus

__all__ = ["DelayedConsumer"]

MAX_WORKERS = 1_000
MAX_HANDLED = 10_000_000
"""Handled timers that one process may remember: some 2 GB."""


class DelayedConsumer:
    """Reads a plan's due topic: every timer once, never before its due time by this machine's clock.

    It subscribes at its first use, or at once as a context manager. One thread receives at a time; `run` spreads timers
    over workers. In a calendar it follows the topics of the intervals.

    Args:
        client: The user's `pulsar.Client`; stays the user's to close, after the consumer.
        plan: Which topics, and where the relay runs.
        subscription: One of the plan's.
        consumer_type: `pulsar.ConsumerType.Shared` or ``KeyShared``; the others would get every timer at once.
        schema: As for pulsar-client.
        clock: Where time comes from; None: the system's.
        chance: Of the relay that runs here; None: the machine's.
        hooks: Told of alarms and changes, never of each message; None: they are logged.
        max_held: The most timers that wait here until they are due; at most half of the broker's
            ``maxUnackedMessagesPerConsumer`` (broker-facts: bounded-local-hold).
        max_rate: Timers a second at most, in this consumer; None: as they become due. What is over it comes later, in
            order, and waits with the broker.
        handled_window: How many handled timers are remembered, to drop them when a reload delivers them again.
        relay: Whether this process runs the plan's relay; None: as the plan says.
        former_topics: As for `Relay`: the one that runs here then drains holding topics of earlier plans.
        inbox: Remembers beyond this process what was handled, so that `run` handles it once, as far as the store can:
            see `timewheel.consumers.inbox`. It stays the user's to close, after the consumer.
        retry: When a timer whose handler raises is tried again, and when it is parked; the plan must have topics for
            that (``retry = true``). None: the broker delivers it again, as it does by itself.
        overdue: What becomes of timers that come too late to be of use; None: they are delivered.
        around: What stands around each handler of `run`, the outermost first; the inbox is further in than all of them.
        relay_memory_bytes: ``memory_bytes`` of the relay that runs here; None: as `Relay` has it.
        consumer_options: pulsar-client's own keyword arguments of ``subscribe``, such as ``receiver_queue_size``,
            ``unacked_messages_timeout_ms``, ``negative_ack_redelivery_delay_ms``, ``batch_index_ack_enabled``.

    Raises:
        SubscribeRefused: An argument cannot be honoured.
    """

    def __init__(
        self,
        client: ClientLike,
        plan: Plan,
        subscription: str,
        *,
        consumer_type: Any = pulsar.ConsumerType.Shared,
        schema: Any = None,
        clock: Clock | None = None,
        chance: Chance | None = None,
        hooks: tuple[Hook, ...] | None = None,
        max_held: int = DEFAULT_MAX_HELD,
        max_rate: float | None = None,
        handled_window: int = DEFAULT_HANDLED,
        relay: bool | None = None,
        former_topics: Callable[[], Sequence[FormerTopic]] | None = None,
        relay_memory_bytes: int | None = None,
        retry: RetryPolicy | None = None,
        overdue: Overdue | None = None,
        inbox: Inbox | None = None,
        around: Sequence[Around] = (),
        **consumer_options: Any,
    ) -> None:
        self.plan = plan
        self.subscription = subscription
        self._clock = clock or SystemClock()
        self._hooks = Hooks(hooks)
        self._retries = Retries(retry, plan, self._clock, chance or system_chance())
        self._guard = guarding(
            inbox,
            plan,
            subscription,
            tries_again=self._retries.always,
            clock=self._clock,
            chance=chance or system_chance(),
            hooks=self._hooks,
        )
        self._arounds = (*around, self._guard) if self._guard is not None else tuple(around)
        self._reception = Reception(
            client,
            plan,
            subscription,
            consumer_type=consumer_type,
            schema=schema or pulsar.schema.BytesSchema(),
            clock=self._clock,
            chance=chance,
            hooks=hooks,
            max_held=max_held,
            max_rate=max_rate,
            handled_window=handled_window,
            relay=relay,
            former_topics=former_topics,
            relay_memory_bytes=relay_memory_bytes,
            overdue=overdue,
            on_settled=None if self._guard is None else self._guard.settled,
            consumer_options=consumer_options,
        )
        self._receiver = self._reception.receiver
        self._lateness: Lateness | None = None
        self._pid = os.getpid()
        self._fatal: BaseException | None = None
        self._starting = threading.Lock()
        self._started = False
        self._stopping = False
        self._closed = False

    # ------------------------------------------------------------------------------------------------------ life-cycle

    def start(self) -> Self:
        """Subscribe and start the embedded relay; nothing if that was done.

        Raises:
            TopologyError: A topic is missing; names the command that makes it.
            ClientMisuse: It was closed, or comes from before a fork.
            pulsar.PulsarException: The broker refused or did not answer.
        """
        with self._starting:
            self._check_usable()
            if not self._started:
                try:
                    self._reception.start()
                except BaseException:
                    self._closed = self._reception.is_spent
                    raise
                self._started = True
        return self

    def stop(self) -> None:
        """End `run`, `receive` and iteration within `SLICE_MS`, for good; safe from any thread and signal handler."""
        # A plain write: a signal handler may interrupt the very code that holds a lock.
        self._stopping = True

    def close(self) -> None:
        """Stop the relay, close the client's consumers. What is not acknowledged is delivered again to others."""
        with self._starting:
            self._stopping = True
            if self._closed:
                return
            self._closed = True
            if not self._started or os.getpid() != self._pid:
                return
            self._reception.close()
            if self._guard is not None:
                self._guard.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def ready(self) -> bool:
        """Whether timers reach this consumer: subscribed, connected, and what it needs besides ready.

        That is its relay, if it has one, and the log of cut-offs, where timers may be cancelled.
        """
        return self._started and not self._closed and self._reception.ready

    @property
    def counts(self) -> ConsumerCounts:
        """What it has seen and done so far."""
        return self._receiver.counts

    @property
    def relay_status(self) -> RelayStatus | None:
        """Of the relay that runs here; None: none does."""
        return self._reception.relay_status

    def measure_lateness(self) -> Lateness:
        """Keep a histogram of how late timers are handed over, from now on; the same one if it is asked for again.

        For metrics: without this nothing is measured.
        """
        self._lateness = self._lateness or Lateness()
        return self._lateness

    # --------------------------------------------------------------------------------------------------------- receive

    def receive(self, timeout: dt.timedelta | None = None, *, timeout_millis: int | None = None) -> DelayedMessage:
        """Wait for the next timer that is due.

        Args:
            timeout: How long to wait; None: for ever.
            timeout_millis: The same under pulsar-client's name, in milliseconds.

        Raises:
            ReceiveTimeout: Nothing was due in time; it is a `pulsar.Timeout` and a `TimeoutError` at once.
            ClientMisuse: The consumer was stopped or closed.
        """
        timeout_ms = timeout_ms_of(timeout, timeout_millis)
        self.start()
        deadline_ms = None if timeout_ms is None else self._clock.monotonic_ms() + timeout_ms
        while not self._stopping:
            left_ms = SLICE_MS if deadline_ms is None else deadline_ms - self._clock.monotonic_ms()
            timer = self._receiver.next(min(max(left_ms, 0), SLICE_MS))
            if timer is not None:
                return self._handed(timer)
            if timeout_ms is not None and left_ms <= 0:
                raise ReceiveTimeout(timeout_ms)
        self._check_usable()
        raise ClientMisuse("the consumer was stopped")

    def __iter__(self) -> Iterator[DelayedMessage]:
        """Every timer as it becomes due, until `stop`; each is to be acknowledged by the caller."""
        self.start()
        while not self._stopping:
            timer = self._receiver.next(SLICE_MS)
            if timer is not None:
                yield self._handed(timer)

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
            BaseException: What a handler raised that is no `Exception`, such as `SystemExit`, after the drain.
            TopologyError, pulsar.PulsarException: As `start`; also what ends receiving, after the drain.
        """
        check_count("workers", workers, MAX_WORKERS)
        self.start()
        run = Run(
            self._receiver,
            handed=self._handed,
            arounds=Arounds(self._arounds, self._hooks) if self._arounds else None,
            retries=self._retries,
            clock=self._clock,
            hooks=self._hooks,
            is_stopping=lambda: self._stopping,
            stop=self.stop,
        )
        with stopping_on_signals(self.stop) if stops_on_signals else nullcontext():
            run.until_stopped(handler, workers, drain_timeout // dt.timedelta(milliseconds=1))

    # ---------------------------------------------------------------------------------------------------------- inside

    def _handed(self, timer: InHand) -> DelayedMessage:
        now_ms = self._clock.now_ms()
        if self._lateness is not None and timer.arrival.envelope is not None:
            self._lateness.add(now_ms - timer.arrival.envelope.due_ms)
        return DelayedMessage(timer, now_ms)

    def _move_on(self, message: DelayedMessage | Any, error: Exception) -> None:
        timer = self._timer_of(message)
        envelope = timer.arrival.envelope
        onward = self._retries.after(error, 0 if envelope is None else envelope.life.attempt)
        if onward is None:
            raise SubscribeRefused("retry", error, NO_TOPICS)
        self._receiver.moved_on(timer, onward)

    def _timer_of(self, message: DelayedMessage | Any) -> InHand:
        self._check_usable()
        if isinstance(message, DelayedMessage):
            return message.handle
        timer = self._receiver.at_position(Position.of(message))
        if timer is None:
            raise ClientMisuse(f"no timer with the message id {message} is in hand")
        return timer

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise ClientMisuse(
                "this consumer was made before a fork, and the client's threads did not come along: make client and "
                "consumer after the fork"
            )
        if self._closed:
            raise ClientMisuse("the consumer was closed")

"""The consumer SDK: a thin shell that executes the engine's decisions on the user's own pulsar client."""

from __future__ import annotations

import datetime as dt
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

import pulsar
import pulsar.schema

from timewheel.consumers.alarms import Alarms
from timewheel.consumers.engine import (
    DEFAULT_MAX_HELD,
    Acknowledge,
    Arrival,
    Command,
    ConsumerCounts,
    Engine,
    Hand,
    NegativeAcknowledge,
    Republish,
    Timer,
)
from timewheel.consumers.errors import ReceiveTimeout, SubscribeRefused
from timewheel.consumers.handled import DEFAULT_HANDLED, HandledWindow
from timewheel.consumers.handlers import Handler, HandlerCalls
from timewheel.consumers.message import DelayedMessage, key_of
from timewheel.consumers.republisher import Republisher
from timewheel.consumers.rolling_source import RollingSource
from timewheel.consumers.source import SingleSource, Source
from timewheel.consumers.subscribing import Subscribing
from timewheel.consumers.workers import Workers
from timewheel.core.clock import Clock, SystemClock
from timewheel.core.errors import ClientMisuse, UnsupportedAcknowledgement
from timewheel.core.limits import hold_bound_ms
from timewheel.core.plan import Calendar, Plan
from timewheel.wire.hooks import Hook, Hooks
from timewheel.wire.positions import Position
from timewheel.wire.surface import ClientLike

if TYPE_CHECKING:
    from timewheel.consumers.relay import Relay

__all__ = ["DelayedConsumer"]

SLICE_MS = 200
"""The longest single wait: what a stop from a signal, or a jump of the clock, may have to wait for."""
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
        hooks: Told of alarms and changes, never of single messages in calm; None: they are logged.
        max_held: The most timers that wait here until they are due; at most half of the broker's
            ``maxUnackedMessagesPerConsumer`` (rules.md 11).
        handled_window: How many handled timers are remembered, to drop them when a reload delivers them again.
        relay: Whether this process runs the plan's relay; None: as the plan says.
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
        hooks: tuple[Hook, ...] | None = None,
        max_held: int = DEFAULT_MAX_HELD,
        handled_window: int = DEFAULT_HANDLED,
        relay: bool | None = None,
        **consumer_options: Any,
    ) -> None:
        _check_count("max_held", max_held, DEFAULT_MAX_HELD * 10)
        _check_count("handled_window", handled_window, MAX_HANDLED)
        self.plan = plan
        self.subscription = subscription
        self._clock = clock or SystemClock()
        self._hooks = Hooks(hooks)
        self._alarms = Alarms(self._hooks, self._clock)
        self._subscribing = Subscribing(
            client,
            plan,
            subscription,
            consumer_type=consumer_type,
            schema=schema or pulsar.schema.BytesSchema(),
            options=consumer_options,
            clock=self._clock,
        )
        self._source: Source = (
            RollingSource(self._subscribing, plan, self._clock, self._hooks)
            if isinstance(plan.scheme, Calendar)
            else SingleSource(self._subscribing, plan.due_topic, self._clock)
        )
        self._engine = Engine(
            hold_bound_ms=hold_bound_ms(plan),
            max_held=max_held,
            handled=HandledWindow(handled_window),
            ack_timeout_ms=self._subscribing.ack_timeout_ms,
        )
        self._republisher = Republisher(client, plan, self._clock, self._hooks)
        embedded = plan.needs_relay and (plan.relay == "embedded" if relay is None else relay)
        self._relay = _relay(client, plan, self._clock, hooks) if embedded else None
        self._pid = os.getpid()
        self._state = threading.Lock()  # guards the engine
        self._never = threading.Condition(self._state)  # to let time pass while nothing may be received
        self._receiving = threading.Lock()  # one thread waits in the client at a time; guards what is due
        self._due: deque[Timer] = deque()
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
                self._source.start()
                if self._relay is not None:
                    try:
                        self._relay.start()
                    except BaseException:
                        self._closed = True
                        self._source.close()
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
            if self._relay is not None:
                self._relay.stop()
            self._republisher.close()
            with self._receiving:  # waits a slice for a thread that is in the client
                self._execute_quietly(self._settled())
                self._source.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def ready(self) -> bool:
        """Whether timers reach this consumer: subscribed, connected, and its relay (if it has one) ready."""
        return (
            self._started
            and not self._closed
            and self._source.ready
            and (self._relay is None or bool(self._relay.ready))
        )

    @property
    def counts(self) -> ConsumerCounts:
        """What it has seen and done so far."""
        with self._state:
            return self._engine.counts

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
        timeout_ms = _timeout_ms(timeout, timeout_millis)
        self.start()
        deadline_ms = None if timeout_ms is None else self._clock.monotonic_ms() + timeout_ms
        while not self._stopping:
            left_ms = SLICE_MS if deadline_ms is None else deadline_ms - self._clock.monotonic_ms()
            timer = self._next(min(max(left_ms, 0), SLICE_MS))
            if timer is not None:
                return DelayedMessage(timer, self._clock.now_ms())
            if timeout_ms is not None and left_ms <= 0:
                raise ReceiveTimeout(timeout_ms)
        self._check_usable()
        raise ClientMisuse("the consumer was stopped")

    def __iter__(self) -> Iterator[DelayedMessage]:
        """Every timer as it becomes due, until `stop`; each is to be acknowledged by the caller."""
        self.start()
        while not self._stopping:
            timer = self._next(SLICE_MS)
            if timer is not None:
                yield DelayedMessage(timer, self._clock.now_ms())

    def acknowledge(self, message: DelayedMessage | Any) -> None:
        """The timer is handled: it is remembered, and the broker is told.

        Args:
            message: As received, or its message id.

        Raises:
            pulsar.PulsarException: The client could not take the acknowledgement. The timer is remembered all the same:
                when it is delivered again it is dropped.
        """
        timer = self._timer_of(message)
        with self._state:
            commands = self._engine.done(timer)
        self._execute(commands)

    def negative_acknowledge(self, message: DelayedMessage | Any) -> None:
        """Have the timer delivered again, after ``negative_ack_redelivery_delay_ms``."""
        timer = self._timer_of(message)
        with self._state:
            commands = self._engine.failed(timer)
        self._execute(commands)

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
        self, handler: Handler, *, workers: int = 8, drain_timeout: dt.timedelta = dt.timedelta(seconds=30)
    ) -> None:
        """Handle timers until `stop`.

        A timer whose handler returns is acknowledged; one whose handler raises is negatively acknowledged and told to
        the hooks. Timers with the same key are handled one after the other, by one worker.

        Args:
            handler: Plain (called on worker threads) or ``async def`` (all on one event loop).
            workers: How many timers are handled at the same time.
            drain_timeout: How long the end waits for handlers that have begun or are next in line; what is not done by
                then stays unacknowledged, and is delivered again.

        Raises:
            SubscribeRefused: ``workers`` is out of range.
            BaseException: What a handler raised that is no `Exception`, such as `SystemExit`, after the drain.
            TopologyError, pulsar.PulsarException: As `start`; also what ends receiving, after the drain.
        """
        _check_count("workers", workers, MAX_WORKERS)
        self.start()
        with HandlerCalls(handler) as call:
            pool: Workers[Timer] = Workers(workers, lambda timer: self._handle(call, timer))
            try:
                self._feed(pool)
            finally:
                self._drain(pool, drain_timeout)
        if self._fatal is not None:
            raise self._fatal

    def _feed(self, pool: Workers[Timer]) -> None:
        while not self._stopping:
            timer = self._next(SLICE_MS)
            if timer is not None and not self._put(pool, timer):
                self._return([timer])

    def _put(self, pool: Workers[Timer], timer: Timer) -> bool:
        key = key_of(timer.arrival.message)
        while not self._stopping:
            if pool.put(timer, key, SLICE_MS / 1000):
                return True
        return False

    def _drain(self, pool: Workers[Timer], drain_timeout: dt.timedelta) -> None:
        self._return(pool.drain(drain_timeout.total_seconds()))
        if pool.running:
            self._hooks.emit("handlers_left_behind", "warning", handlers=pool.running)

    def _return(self, timers: Iterable[Timer]) -> None:
        """Timers that no handler began: others may have them."""
        for timer in timers:
            with self._state:
                commands = self._engine.failed(timer)
            self._execute_quietly(commands)

    def _handle(self, call: HandlerCalls, timer: Timer) -> None:
        message = DelayedMessage(timer, self._clock.now_ms())
        try:
            call(message)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises, its timer comes again
            self._hooks.emit("handler_failed", "warning", timer_id=message.timer_id, error=repr(error))
            with self._state:
                commands = self._engine.failed(timer)
        except BaseException as error:  # noqa: BLE001 - raised again by `run`
            # sys.exit() in a handler means the process: `run` ends with it, on the thread that called it.
            self._fatal = self._fatal or error
            self.stop()
            with self._state:
                commands = self._engine.failed(timer)
        else:
            with self._state:
                commands = self._engine.done(timer)
        self._execute_quietly(commands)

    # ---------------------------------------------------------------------------------------------------------- inside

    def _next(self, timeout_ms: int) -> Timer | None:
        """The next timer that is due, or None after about ``timeout_ms``; at most `SLICE_MS`."""
        with self._receiving:
            if self._closed:
                return None
            deadline_ms = self._clock.monotonic_ms() + timeout_ms
            while True:
                wait_ms = self._wake(deadline_ms)
                if self._due:
                    return self._due.popleft()
                if wait_ms is None:
                    return None
                self._receive_one(wait_ms)

    def _wake(self, deadline_ms: int) -> int | None:
        """Let the engine act on the time; returns how long it may wait now, None if the deadline has passed."""
        # What is to be waited for is told by the wall clock, how long is measured by the monotonic one: a jump of the
        # wall clock is noticed after a slice.
        commands = self._settled()
        now_ms = self._clock.now_ms()
        with self._state:
            commands += self._engine.tick(now_ms)
            wake_ms = self._engine.next_wake_ms()
        self._execute_quietly(commands)
        left_ms = deadline_ms - self._clock.monotonic_ms()
        if left_ms < 0:
            return None
        return left_ms if wake_ms is None else min(left_ms, max(wake_ms - now_ms, 1))

    def _receive_one(self, wait_ms: int) -> None:
        if self._engine.full:
            # Nothing more may be taken (rules.md 11): what is held is due soon, or is being published again.
            with self._state:
                self._clock.wait(self._never, wait_ms)
            return
        arrival = self._source.receive(wait_ms)
        if arrival is None:
            return
        now_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        with self._state:
            commands = self._engine.received(arrival, now_ms, monotonic_ms)
        self._report(arrival, now_ms)
        self._execute_quietly(commands)

    def _settled(self) -> list[Command]:
        """What follows from re-publications that were answered."""
        commands: list[Command] = []
        for timer, published in self._republisher.outcomes():
            now_ms = self._clock.now_ms()
            with self._state:
                commands += (
                    self._engine.published(timer, now_ms) if published else self._engine.not_published(timer, now_ms)
                )
        return commands

    def _report(self, arrival: Arrival, now_ms: int) -> None:
        """Raise alarms about one message."""
        if arrival.envelope_error is not None:
            self._alarms.raised("envelope_error", "error", topic=_topic_of(arrival), error=arrival.envelope_error)
        elif arrival.envelope is not None:
            early_ms = arrival.envelope.due_ms - now_ms
            if early_ms > hold_bound_ms(self.plan):
                self._alarms.raised(
                    "timer_far_too_early",
                    "error",
                    topic=_topic_of(arrival),
                    early_ms=early_ms,
                    remedy="is delayed delivery enabled on the topic, and is this machine's clock right?",
                )

    def _execute(self, commands: Iterable[Command]) -> None:
        for command in commands:
            match command:
                case Hand(timer):
                    self._due.append(timer)
                case Acknowledge(arrival):
                    origin = arrival.origin
                    origin.answered(arrival.position, self._clock.monotonic_ms())
                    origin.consumer.acknowledge(arrival.message)
                case NegativeAcknowledge(arrival):
                    origin = arrival.origin
                    again_ms = self._clock.monotonic_ms() + self._subscribing.redelivery_delay_ms
                    origin.answered(arrival.position, again_ms)
                    origin.consumer.negative_acknowledge(arrival.message)
                case Republish(timer):
                    self._republisher.submit(timer)

    def _execute_quietly(self, commands: Iterable[Command]) -> None:
        """Where no caller asked for it: an acknowledgement that fails only means that the message comes again."""
        for command in commands:
            try:
                self._execute((command,))
            except pulsar.PulsarException as error:
                self._hooks.emit("acknowledge_failed", "warning", error=str(error))

    def _timer_of(self, message: DelayedMessage | Any) -> Timer:
        self._check_usable()
        if isinstance(message, DelayedMessage):
            return message.handle
        with self._state:
            timer = self._engine.at_position(Position.of(message))
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


def _relay(client: ClientLike, plan: Plan, clock: Clock, hooks: tuple[Hook, ...] | None) -> Relay:
    # Imported here: a consumer that embeds no relay does not pay for one.
    from timewheel.consumers.relay import Relay  # noqa: PLC0415

    return Relay(client, plan, clock=clock, hooks=hooks)


def _topic_of(arrival: Arrival) -> str:
    return str(arrival.message.topic_name())


def _timeout_ms(timeout: dt.timedelta | None, timeout_millis: int | None) -> int | None:
    if timeout is not None and timeout_millis is not None:
        raise TypeError("give timeout or timeout_millis, not both")
    if timeout is None:
        return timeout_millis
    return max(round(timeout / dt.timedelta(milliseconds=1)), 0)


def _check_count(argument: str, value: object, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise SubscribeRefused(argument, value, f"a whole number from 1 to {most}")

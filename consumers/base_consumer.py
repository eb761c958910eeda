"""The base of the two consumers: arguments, parts, start and end, and the taking of timers."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import pulsar
import pulsar.schema

from timewheel.client.cancellation_log import CancellationLog
from timewheel.client.hooks import Hooks
from timewheel.client.positions import Position
from timewheel.client.process import ProcessGuard, end_at_exit
from timewheel.client.reaching import reaching
from timewheel.client.surface import ClientLike
from timewheel.core.arguments import check_client_and_plan, check_kind, has_methods, is_async
from timewheel.core.clock import Clock, SystemClock
from timewheel.core.early_delivery import DEFAULT_MAX_HELD, hold_bound_ms
from timewheel.core.errors import BadArgument, ClientMisuse
from timewheel.core.names import Names
from timewheel.core.plan import Plan
from timewheel.core.rng import Random, system_random
from timewheel.core.topology import FormerTopic
from timewheel.events import HandlerFailed
from timewheel.hooks import Hook

from .counts import ConsumerCounts, Lateness
from .engine import DEFAULT_HANDLED, DeliveryPolicy, Engine, HandledWindow, Overdue
from .errors import SubscribeRefused, check_count
from .message import DelayedMessage, InFlight, Mark, beside_shadow, reading_of
from .middleware import Middleware, MiddlewareChain, Postpone, SkipTimer
from .receiver import Pace, Questions, Receiver
from .republisher import Republisher
from .retry import NO_TOPICS, ParkTimer, Retries, RetryLater, RetryPolicy
from .source import Source, Subscribing

if TYPE_CHECKING:
    from timewheel.relay import Relay
    from timewheel.relay.relay import RelayStatus

    from .inbox.protocol import Inbox
    from .inbox_guard import InboxGuard


ASKED_TO_END = (signal.SIGTERM, signal.SIGINT)
NOBODYS = (signal.SIG_DFL, signal.default_int_handler)  # the default handlers of a process


def _is_nobodys(handler: Any) -> bool:
    # Nor has a service its own handler in `asyncio.run`, which handles SIGINT by cancelling.
    is_asyncios = getattr(getattr(handler, "func", None), "__qualname__", "") == "Runner._on_sigint"
    return handler in NOBODYS or is_asyncios


@contextmanager
def stopping_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Within this context, the first SIGTERM or SIGINT calls ``stop``, and a second has its previous effect.

    Only on the main thread, as Python demands; and only for a signal without a handler of the service's own.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[signal.Signals, Any] = {}

    def give_back() -> None:
        while before:
            number, handler = before.popitem()
            signal.signal(number, handler)

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        give_back()
        stop()

    for number in ASKED_TO_END:
        handler = signal.getsignal(number)
        if _is_nobodys(handler):
            before[number] = handler
            signal.signal(number, end)
    try:
        yield
    finally:
        give_back()


class Outcomes:
    """Passes outcomes to the receiver, which reports failed acknowledgements to the hooks."""

    def __init__(self, receiver: Receiver, retries: Retries, hooks: Hooks) -> None:
        self._receiver = receiver
        self._retries = retries
        self._hooks = hooks

    def returned(self, timer: InFlight) -> None:
        """Acknowledge a timer that was handled."""
        self._receiver.done(timer, quietly=True)

    def given_back(self, timer: InFlight) -> None:
        """Give a timer back, so that another consumer may have it: no handler began, or none is to blame."""
        self._receiver.failed(timer, quietly=True)

    def raised(self, timer: InFlight, message: DelayedMessage, error: Exception) -> None:
        """Decide about a timer whose handler or `Middleware` raised."""
        if isinstance(error, SkipTimer):
            self._receiver.skipped(timer)
        elif isinstance(error, Postpone):
            self._receiver.postponed(timer, error.after_ms)
        else:
            self._failed(timer, message, error)

    def _failed(self, timer: InFlight, message: DelayedMessage, error: Exception) -> None:
        redirect = self._retries.after(error, message.attempt)
        if redirect is None or not isinstance(error, RetryLater | ParkTimer):
            self._hooks.emit(HandlerFailed(timer_id=message.timer_id, error=repr(error)))
        if redirect is None:
            self._receiver.failed(timer, quietly=True)
        else:
            self._receiver.redirected(timer, redirect)


MAX_HANDLED = 10_000_000  # maximum number of handled timers that a process may remember: some 2 GB


class BaseConsumer:
    """The common part of `DelayedConsumer` and `AsyncDelayedConsumer`, which add how timers are handed out.

    Args:
        client: The user's `pulsar.Client`; the user closes it, after the consumer.
        plan: Defines the topics, and where the relay runs.
        subscription: A subscription of the plan.
        consumer_type: `pulsar.ConsumerType.Shared` or ``KeyShared``; the other types would receive every timer at once.
        schema: The schema, as for pulsar-client.
        clock: Source of time; None for the system clock.
        rng: Randomness for the relay that runs here; None for the machine's.
        hooks: Receive alarms and changes, never an event for each message; None logs the events.
        max_held: Maximum number of timers that wait here until they are due; at most half of the broker's
            ``maxUnackedMessagesPerConsumer`` (broker-facts: bounded-local-hold).
        max_rate: Maximum number of timers a second in this consumer; None for no limit. Timers over the limit are
            handed out later, in order, and wait in the broker.
        handled_window: Number of handled timers that are remembered, to drop them when a reload delivers them again.
        relay: Whether this process runs the plan's relay; None to follow the plan.
        former_topics: As for `Relay`: the relay that runs here then drains holding topics of earlier plans.
        inbox: Remembers handled timers beyond this process, so that `run` handles each timer once, as far as the store
            can ensure it: see `timewheel.consumers.inbox`. The user closes it, after the consumer.
        retry: Decides when a timer whose handler raised is tried again, and when it is parked; the plan must have
            topics for that (``retry = true``). None leaves redelivery to the broker.
        overdue: Decides about timers that arrive too late to be useful; None delivers them.
        middleware: Code around each handler of `run`, the outermost first; the inbox is further in than all of them.
        relay_memory_bytes: ``memory_bytes`` of the relay that runs here; None for the default of `Relay`.
        consumer_options: pulsar-client's own keyword arguments of ``subscribe``, such as ``receiver_queue_size``,
            ``unacked_messages_timeout_ms``, ``negative_ack_redelivery_delay_ms``, ``batch_index_ack_enabled``.

    Raises:
        BadArgument: An argument is of the wrong kind, such as a path in place of a plan.
        SubscribeRefused: An argument cannot be honoured.
        ClientMisuse: gevent or eventlet has replaced the threads of this process.
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
        rng: Random | None = None,
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
        middleware: Sequence[Middleware] = (),
        **consumer_options: Any,
    ) -> None:
        check_client_and_plan(client, plan)
        _check_options(retry, overdue, inbox, middleware)
        check_count("max_held", max_held, DEFAULT_MAX_HELD * 10)
        check_count("handled_window", handled_window, MAX_HANDLED)
        if max_rate is not None and not 0 < max_rate < math.inf:
            raise SubscribeRefused("max_rate", max_rate, "a number above 0")
        if overdue is not None and overdue.then == "park" and not plan.keeps_back:
            raise SubscribeRefused("overdue", overdue, NO_TOPICS)
        client = reaching(client)
        self._process = ProcessGuard()
        self.plan = plan
        self.subscription = subscription
        self._clock = clock = clock or SystemClock()
        self._hooks = Hooks(hooks)
        chance = rng or system_random()
        self._retries = Retries(retry, plan, clock, chance)
        self._guard = None if inbox is None else self._guarding(inbox, chance)
        middlewares = (*middleware, self._guard) if self._guard is not None else tuple(middleware)
        self._middlewares = MiddlewareChain(middlewares, self._hooks) if middlewares else None
        self._subscribing = Subscribing(
            client,
            plan,
            subscription,
            consumer_type=consumer_type,
            schema=schema or pulsar.schema.BytesSchema(),
            options=consumer_options,
            clock=clock,
            hooks=self._hooks,
        )
        self._source = self._source_of()
        self._cancellation_log: CancellationLog | None = None
        judge: DeliveryPolicy | None = None
        questions: Questions | None = None
        if plan.cancel is not None:
            self._cancellation_log = CancellationLog(client, plan, clock, self._hooks)
            judge = DeliveryPolicy(self._cancellation_log.table.is_cancelled, plan.cancel.keep_ms)
            questions = Questions(self._cancellation_log, plan.cancel.on_log_unavailable, clock)
        self._receiver = Receiver(
            self._source,
            Engine(
                hold_bound_ms=hold_bound_ms(plan),
                max_held=max_held,
                handled=HandledWindow(handled_window),
                ack_timeout_ms=self._subscribing.ack_timeout_ms,
                judge=judge,
                overdue=overdue,
                parks=plan.keeps_back,
                redelivery_delay_ms=self._subscribing.redelivery_delay_ms,
            ),
            Republisher(client, plan, subscription, clock, self._hooks),
            pace=None if max_rate is None else Pace(max_rate),
            questions=questions,
            sorts=self._subscribing.ack_timeout_ms is None,
            redelivery_delay_ms=self._subscribing.redelivery_delay_ms,
            clock=clock,
            hooks=self._hooks,
            on_settled=None if self._guard is None else self._guard.settled,
        )
        self._relay: Relay | None = None
        has_work = plan.needs_relay or plan.cancel is not None or former_topics is not None
        if has_work and (plan.relay == "embedded" if relay is None else relay):
            # Imported here, so that a consumer without an embedded relay does not pay for the import.
            from timewheel.relay import Relay  # noqa: PLC0415
            from timewheel.relay.driver.source import MEMORY_BYTES  # noqa: PLC0415

            self._relay = Relay(
                client,
                plan,
                clock=clock,
                rng=rng,
                hooks=hooks,
                former_topics=former_topics,
                cancellation_log=self._cancellation_log,
                memory_bytes=MEMORY_BYTES if relay_memory_bytes is None else relay_memory_bytes,
            )
        self._lateness: Lateness | None = None
        self._starting = threading.Lock()
        self._started = False
        self._stopping = False
        self._closed = False

    def stop(self) -> None:
        """End `run`, `receive` and iteration within `SLICE_MS`, for good; safe from any thread and signal handler."""
        # A plain write: a signal handler may interrupt the very code that holds a lock.
        self._stopping = True

    @property
    def ready(self) -> bool:
        """True if timers reach this consumer: it is subscribed, connected and not stopped, and its parts are ready.

        These parts are its embedded relay, and the log of cancellations, where timers may be cancelled.
        """
        return self._started and not self._stopping and not self._closed and self._are_parts_ready()

    @property
    def counts(self) -> ConsumerCounts:
        """Counters of this consumer so far."""
        return self._receiver.counts

    @property
    def relay_status(self) -> RelayStatus | None:
        """Status of the relay that runs here; None if there is none."""
        return None if self._relay is None else self._relay.status()

    def measure_lateness(self) -> Lateness:
        """Keep a histogram of how late timers are handed over, from now on; further calls return the same histogram.

        For metrics: without this call, lateness is not measured.
        """
        self._lateness = self._lateness or Lateness()
        return self._lateness

    # ---------------------------------------------------------------------------------------------------------- inside

    def _open(self) -> None:
        """Subscribe and start the embedded relay; do nothing if the consumer has started."""
        with self._starting:
            self._check_usable()
            if not self._started:
                end_at_exit(self, BaseConsumer._end)
                self._start_parts()
                self._started = True

    def _start_parts(self) -> None:
        """Start all parts; if a part fails, the started parts end again."""
        parked = Names(self.plan).parked(self.subscription) if self.plan.keeps_back else None
        with ExitStack() as undo:
            if self._cancellation_log is not None:
                self._cancellation_log.start()
                undo.callback(self._cancellation_log.stop)
            if parked and (problem := self._subscribing.problem_with(parked)) is not None:
                raise problem
            self._source.start()
            if self._relay is not None:
                undo.callback(self._source.close)
                self._closed = True  # if the relay cannot start, the consumer cannot be started again
                self._relay.start()
                self._closed = False
            undo.pop_all()

    def _are_parts_ready(self) -> bool:
        return (
            self._source.ready
            and (self._cancellation_log is None or self._cancellation_log.ready)
            and (self._relay is None or bool(self._relay.ready))
        )

    def _guarding(self, inbox: Inbox, rng: Random) -> InboxGuard:
        # Imported here, so that a consumer without an inbox does not pay for the import.
        from .inbox.protocol import DEFAULT_KEEP_MS  # noqa: PLC0415
        from .inbox_guard import InboxGuard  # noqa: PLC0415

        return InboxGuard(
            inbox,
            self.plan.due_topic,
            self.subscription,
            keep_ms=max(DEFAULT_KEEP_MS, 0 if self.plan.cancel is None else self.plan.cancel.keep_ms),
            goes_on=self._retries.goes_on if self.plan.keeps_back else None,
            clock=self._clock,
            rng=rng,
            hooks=self._hooks,
        )

    def _source_of(self) -> Source:
        plan, clock = self.plan, self._clock
        mine = self.subscription if plan.keeps_back else ""
        retry_topic = Names(plan).retry(mine) if mine else None
        read = beside_shadow(clock, mine) if plan.intake else reading_of(mine)
        return Source(self._subscribing, plan, retry_topic, clock, self._hooks, read)

    def _shut(self) -> None:
        """Stop the relay and close the client's consumers."""
        with self._starting:
            self._stopping = True
            if self._closed:
                return
            self._closed = True
            if not self._started or self._process.is_child:
                return
            if self._relay is not None:
                self._relay.stop()
            self._receiver.close()
            if self._cancellation_log is not None:
                self._cancellation_log.stop()
            if self._guard is not None:
                self._guard.stop()

    def _end(self) -> None:
        """Let no thread wait in the client any more; the relay and the log of cancellations end by themselves."""
        self._stopping = True
        self._receiver.close()

    def _taken(self, timer: InFlight, *, is_known: bool = False) -> DelayedMessage | None:
        """Return a timer's message for its handler; None if the handler must not begin, see `Receiver.begins`."""
        return self._handed(timer) if self._receiver.begins(timer, is_known=is_known) else None

    def _handed(self, timer: InFlight) -> DelayedMessage:
        now_ms = self._clock.now_ms()
        arrival = timer.arrival
        if self._lateness is not None and arrival.envelope is not None and arrival.mark is not Mark.NATIVE:
            self._lateness.add(now_ms - arrival.envelope.due_ms)
        return DelayedMessage(timer, now_ms)

    def _move_on(self, message: DelayedMessage | Any, error: Exception) -> None:
        timer = self._timer_of(message)
        envelope = timer.arrival.envelope
        redirect = self._retries.after(error, 0 if envelope is None else envelope.life.attempt)
        if redirect is None:
            raise SubscribeRefused("retry", error, NO_TOPICS)
        self._receiver.redirected(timer, redirect)

    def _timer_of(self, message: DelayedMessage | Any) -> InFlight:
        self._check_usable()
        if isinstance(message, DelayedMessage):
            return message.handle
        timer = self._receiver.at_position(Position.of(message))
        if timer is None:
            raise ClientMisuse(f"no timer with the message id {message} is in flight")
        return timer

    def _check_usable(self) -> None:
        self._process.check("consumer")
        if self._closed:
            raise ClientMisuse("the consumer was closed")


def _check_options(retry: object, overdue: object, inbox: object, middleware: object) -> None:
    if retry is not None:
        check_kind("retry", retry, RetryPolicy, "a RetryPolicy is needed, such as RetryPolicy(max_attempts=3)")
    if overdue is not None:
        wanted = 'an Overdue is needed, such as Overdue(timedelta(hours=1), then="park")'
        check_kind("overdue", overdue, Overdue, wanted)
    if inbox is not None:
        wanted = 'an inbox of `timewheel.consumers.inbox` is needed, such as SqliteInbox("inbox.sqlite3")'
        check_kind("inbox", inbox, ("claim", "renew", "done", "release"), wanted)
    methods = ("before", "after", "failed")
    if not isinstance(middleware, Sequence) or not all(has_methods(part, methods) for part in middleware):
        raise BadArgument(
            "middleware", middleware, "a list of Middleware objects is needed, such as middleware=[MyMiddleware()]"
        )
    for part in middleware:
        for method in methods:
            if is_async(getattr(part, method)):
                wanted = f"{method} is a plain function, since it runs on a thread: def {method}(self, ...)"
                raise BadArgument("middleware", part, wanted)

"""The base of the two consumers: arguments, start and end, and the taking of timers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pulsar
import pulsar.schema

from timewheel.client.hooks import Hooks
from timewheel.client.positions import Position
from timewheel.client.process import ProcessGuard, end_at_exit
from timewheel.client.reaching import reaching
from timewheel.client.surface import ClientLike
from timewheel.consumers.counts import ConsumerCounts
from timewheel.consumers.delivery_policy import Overdue
from timewheel.consumers.errors import SubscribeRefused
from timewheel.consumers.guarding import guarding
from timewheel.consumers.handled import DEFAULT_HANDLED
from timewheel.consumers.in_flight import InFlight, Mark
from timewheel.consumers.lateness import Lateness
from timewheel.consumers.message import DelayedMessage
from timewheel.consumers.middleware import Middleware, MiddlewareChain
from timewheel.consumers.resources import ConsumerResources
from timewheel.consumers.retry import NO_TOPICS, Retries, RetryPolicy
from timewheel.core.arguments import check_client_and_plan, check_kind, has_methods, is_async
from timewheel.core.clock import Clock, SystemClock
from timewheel.core.errors import BadArgument, ClientMisuse
from timewheel.core.limits import DEFAULT_MAX_HELD
from timewheel.core.plan import Plan
from timewheel.core.rng import Random, system_random
from timewheel.core.topology import FormerTopic
from timewheel.hooks import Hook

if TYPE_CHECKING:
    from timewheel.consumers.inbox.protocol import Inbox
    from timewheel.relay.relay import RelayStatus


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
        self._process = ProcessGuard()
        self.plan = plan
        self.subscription = subscription
        self._clock = clock or SystemClock()
        self._hooks = Hooks(hooks)
        self._retries = Retries(retry, plan, self._clock, rng or system_random())
        self._guard = guarding(
            inbox,
            plan,
            subscription,
            goes_on=self._retries.goes_on if plan.keeps_back else None,
            clock=self._clock,
            rng=rng or system_random(),
            hooks=self._hooks,
        )
        middlewares = (*middleware, self._guard) if self._guard is not None else tuple(middleware)
        self._middlewares = MiddlewareChain(middlewares, self._hooks) if middlewares else None
        self._resources = ConsumerResources(
            reaching(client),
            plan,
            subscription,
            consumer_type=consumer_type,
            schema=schema or pulsar.schema.BytesSchema(),
            clock=self._clock,
            rng=rng,
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
        self._receiver = self._resources.receiver
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
        return self._started and not self._stopping and not self._closed and self._resources.ready

    @property
    def counts(self) -> ConsumerCounts:
        """Counters of this consumer so far."""
        return self._receiver.counts

    @property
    def relay_status(self) -> RelayStatus | None:
        """Status of the relay that runs here; None if there is none."""
        return self._resources.relay_status

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
                try:
                    self._resources.start()
                except BaseException:
                    self._closed = self._resources.is_spent
                    raise
                self._started = True

    def _shut(self) -> None:
        """Stop the relay and close the client's consumers."""
        with self._starting:
            self._stopping = True
            if self._closed:
                return
            self._closed = True
            if not self._started or self._process.is_child:
                return
            self._resources.close()
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

"""Common part of both producers: prepares messages, chooses their producers, evaluates their outcomes.

No function here waits for an outcome; the two producers differ in how they wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from os import getpid, urandom
from typing import Any

import pulsar.schema

from timewheel.client.hooks import Hooks
from timewheel.client.process import ProcessGuard
from timewheel.client.reaching import BrokerUnreachable, reaching
from timewheel.client.results import Outcome, cause_of, is_producer_closed, outcome_of_error
from timewheel.client.surface import ClientLike
from timewheel.core.arguments import check_client_and_plan
from timewheel.core.cancellations import Cancellation, CancelResult, Stamps, answer_of
from timewheel.core.clock import Clock
from timewheel.core.durations import HOUR_MS
from timewheel.core.errors import (
    CancelFailed,
    CancelRefused,
    SendFailed,
    SendOutcomeUnknown,
    SendRefused,
    TimewheelError,
)
from timewheel.core.ids import TimerIds
from timewheel.core.limits import OutOfOrder
from timewheel.core.plan import Calendar, Plan
from timewheel.core.rng import system_random
from timewheel.core.routing import Router
from timewheel.producers.cancel_messages import (
    after_cancel,
    cancellation_of_group,
    cancellation_of_replaced,
    cancellation_of_timer,
    id_and_due,
    message_of,
)
from timewheel.producers.prepare import prepare
from timewheel.producers.send_options import SendOptions, unknown_option
from timewheel.producers.send_outcome import send_outcome
from timewheel.producers.sending.attempt import Attempt
from timewheel.producers.sending.counters import Counters
from timewheel.producers.sending.limiter import Batch
from timewheel.producers.sending.options import ProducerOptions
from timewheel.producers.sending.outgoing import Outgoing
from timewheel.producers.sending.pool import ProducerPool, room_for_all
from timewheel.producers.timer import Timer

DEFAULT_MAX_PENDING = 1_000
"""Limit on pending sends, over all topics; pulsar-client's own default for one producer."""
IDLE_MS = 4 * HOUR_MS
"""A producer that was not used for one to two of these periods is closed. The period is long, since each reopening uses
up one of the names that a broker remembers of a topic (broker-facts: forgotten-names)."""
CALENDAR_IDLE_MS = 30_000
"""Shorter period in a calendar: a passed topic cannot be removed while a producer is connected to it
(broker-facts: removing-a-topic), and no names of producers are remembered for calendar topics."""


def idle_ms(plan: Plan) -> int:
    """Return how long an unused producer is kept open."""
    return CALENDAR_IDLE_MS if isinstance(plan.scheme, Calendar) else IDLE_MS


_STAMPS: dict[int, Stamps] = {}
"""Stamps by process id: producers of a process share them, and agree on the order of sends and cancels. A fork copies
locks, so a child needs stamps of its own."""


class Send(Attempt):
    """Send of one timer, through one or more attempts.

    Args:
        outgoing: Message to send.
        finished: See `Attempt`.
        notify: Receives the outcome for the producer.

    Attributes:
        group: Group of the gate; None once the send has ended.
        raised: Error with which the client's code refused the message.
        attempts: Number of finished attempts.
        stored: True if an attempt was confirmed, in a slot that had been swept, or may have been.
        cancellation: Cancellation that goes into the log, or is stored; None: there is none, or it is not known yet.
        older_due_ms: Due time of the timer that is cut off; None: unknown.
        confirmed_ms: Time at which the cancellation was confirmed.
        copy: A timer that replaces another timer, and its position, once it is stored.
    """

    __slots__ = (
        "attempts",
        "cancellation",
        "confirmed_ms",
        "copy",
        "group",
        "is_plain",
        "notify",
        "older_due_ms",
        "raised",
        "stored",
    )

    def __init__(self, outgoing: Outgoing, finished: Callable[[Any], None], notify: Any) -> None:
        super().__init__(outgoing, finished)
        self.notify = notify
        self.group: Batch | None = None
        self.raised: Exception | None = None
        self.attempts = 0
        self.stored = False
        self.is_plain = not outgoing.generation
        self.cancellation: Cancellation | None = None
        self.older_due_ms: int | None = None
        self.confirmed_ms = 0
        self.copy: tuple[Outgoing, Any] | None = None

    @property
    def is_cancel(self) -> bool:
        """True if the send consists of a cancellation only."""
        return self.cancellation is not None and self.copy is None


class TimerWriter:
    """Prepares timers of one plan and evaluates their sends.

    Args:
        client: The user's client.
        plan: The plan.
        schema: The user's schema; None: bytes.
        clock: Clock for send times, and for the waits at the end.
        hooks: Called with events for operators.
        max_producers: See `ProducerPool`.
        max_message_bytes: The broker's ``maxMessageSize``.
        may_wait: See `ProducerPool`.
        options: pulsar-client's producer options.
    """

    __slots__ = (
        "_clock",
        "_encode",
        "_ids",
        "_max_message_bytes",
        "_out_of_order",
        "_router",
        "_stamp",
        "_turns",
        "counters",
        "pool",
        "process",
    )

    def __init__(
        self,
        client: ClientLike,
        plan: Plan,
        *,
        schema: Any,
        clock: Clock,
        hooks: Hooks,
        max_producers: int | None,
        max_message_bytes: int,
        may_wait: Callable[[], bool],
        options: Mapping[str, Any],
    ) -> None:
        check_client_and_plan(client, plan)
        schema = pulsar.schema.BytesSchema() if schema is None else schema
        self._router = Router(plan)
        self._clock = clock
        self._encode: Callable[[Any], bytes] = schema.encode
        self._max_message_bytes = max_message_bytes
        self._ids = TimerIds(urandom)
        self._turns = count()
        self._stamp = _STAMPS.setdefault(getpid(), Stamps(system_random())).new
        self._out_of_order = OutOfOrder(plan)
        self.counters = Counters()
        self.process = ProcessGuard()
        self.pool = ProducerPool(
            reaching(client),
            ProducerOptions(schema, options),
            plan=plan,
            max_producers=room_for_all(plan) if max_producers is None else max_producers,
            may_wait=may_wait,
            clock=clock,
            hooks=hooks,
        )

    def prepare(self, content: Any, options: SendOptions, above: int = 0) -> Outgoing:
        """Build a message from the arguments of a send, at this clock's time; see `prepare.prepare` for the errors.

        Args:
            content: See `prepare.prepare`.
            options: See `SendOptions`.
            above: Generation that the timer replaces, if it is known.
        """
        now_ms = self._clock.now_ms()
        try:
            outgoing = prepare(
                self._router,
                now_ms,
                next(self._turns),
                self._ids.new,
                content,
                self._encode,
                self._max_message_bytes,
                partial(self._stamp, above=above) if above else self._stamp,
                **options,
            )
        except TypeError:
            if (unknown := unknown_option(options)) is None:
                raise
            self.counters.raised(unknown)
            raise unknown from None
        except SendRefused as error:
            self.counters.raised(error)
            raise
        return outgoing.in_its_turn(self._out_of_order) if outgoing.deliver_at_ms else outgoing

    def cancelling(self, timer: Timer | str, finished: Callable[[Any], None], notify: Any) -> Send:
        """Build the send that cancels a timer; see `cancel_messages.cancellation_of_timer` for the errors."""
        due_ms = timer.due_ms if isinstance(timer, Timer) else None
        above = timer.generation if isinstance(timer, Timer) else 0
        now_ms = self._clock.now_ms()

        def cut() -> Cancellation:
            id_and_due(self._router.plan, timer)  # first: no stamp can be above a generation that is no number
            return cancellation_of_timer(self._router.plan, timer, self._stamp(now_ms, above), now_ms)

        return self._cancelling(cut, due_ms, finished, notify)

    def cancelling_group(self, group: str, finished: Callable[[Any], None], notify: Any) -> Send:
        """Build the send that cancels a group; see `cancel_messages.cancellation_of_group` for the errors."""
        now_ms = self._clock.now_ms()
        return self._cancelling(
            lambda: cancellation_of_group(self._router.plan, group, self._stamp(now_ms), now_ms), None, finished, notify
        )

    def _cancelling(
        self, cut: Callable[[], Cancellation], due_ms: int | None, finished: Callable[[Any], None], notify: Any
    ) -> Send:
        try:
            cancellation = cut()
        except CancelRefused as error:
            self.counters.raised(error)
            raise
        send = Send(message_of(self._router.plan, cancellation), finished, notify)
        send.is_plain, send.cancellation, send.older_due_ms = False, cancellation, due_ms
        return send

    def told(self, send: Send, error: TimewheelError | None) -> Timer | CancelResult | None:
        """Return the result for the caller of an ended send: a timer, without a position if there was an error, or a
        cancellation, if it was stored.
        """
        cancel_result = None
        cancel = self._router.plan.cancel
        if send.cancellation is not None and error is None and cancel is not None:
            answer = answer_of(send.older_due_ms, send.confirmed_ms, cancel.skew_ms)
            cancel_result = CancelResult(answer, send.confirmed_ms, send.cancellation)
        if send.is_cancel:
            return cancel_result
        outgoing, message_id = send.copy or (send.outgoing, send.message_id)
        return Timer(
            outgoing.timer_id,
            outgoing.due_ms,
            None if error is not None else message_id,
            outgoing.partition,
            outgoing.generation,
            self._router.plan.due_topic,
            cancel_result,
        )

    def routed_now(self, send: Send) -> Outgoing:
        """Return the next message to send, on the present route: call this before opening a producer.

        A producer must not be opened for a passed interval: the timer would come too late, or the topic would be
        created again, without policies and subscriptions (broker-facts: removing-a-topic). The interval may have passed
        while the send waited for room.
        """
        outgoing = send.outgoing
        if self._router.interval_ms and outgoing.place != "cancellations":
            now_ms = self._clock.now_ms()
            route = self._router.route(outgoing.due_ms, now_ms)
            if route.topic != outgoing.topic:
                outgoing = send.outgoing = outgoing.sent_to(route, now_ms, self._router.plan.revision)
        return outgoing

    def opening_failed(self, send: Send, error: Exception) -> None:
        """Handle the failure to open a producer: set another route on the send, or raise if there is none.

        Raises:
            TimewheelError: The send ends here; nothing was sent, or nothing further.
        """
        if isinstance(error, TimewheelError) and not isinstance(error, BrokerUnreachable):
            if not send.stored or send.outgoing.place == "cancellations":
                raise error
            raise self._as_unknown(send, error) from error
        send.attempts += 1
        step = self._next_step(send, outcome_of_error(error), cause_of(error))
        if not isinstance(step, Outgoing):
            assert step is not None, "an opening that failed is not a stored message"
            raise step from error
        send.outgoing = step

    def judge(self, send: Send) -> TimewheelError | Outgoing | None:
        """Evaluate a finished attempt, whose producer was given back.

        Returns:
            None: the timer is stored. An error: it is not stored, or may not be. An Outgoing, also set on the send:
            start the send again.
        """
        if send.raised is not None:
            return self.refused(send, send.raised)
        outcome = send.outcome()
        if outcome is Outcome.OK and not send.outgoing.release_at_ms and send.is_plain:
            return None
        if outcome is Outcome.DROPPED or is_producer_closed(send.result):
            self.pool.discard(send.pooled)
        send.attempts += 1
        step = self._next_step(send, outcome, cause_of(send.result))
        if isinstance(step, Outgoing):
            send.stored = send.stored or outcome in (Outcome.OK, Outcome.DROPPED)
            send.outgoing = step
        elif step is None and not send.is_plain:
            step = self._cut_next(send)
        return step

    def _cut_next(self, send: Send) -> Outgoing | None:
        """Continue after a stored part of a cancel, or of a timer that replaces another: send one cancellation."""
        now_ms = self._clock.now_ms()
        if send.cancellation is not None:
            send.confirmed_ms = now_ms
            self.counters.was_cancelled(is_cancel=send.is_cancel)
            return None
        send.copy = (send.outgoing, send.message_id)
        send.cancellation = cancellation_of_replaced(self._router.plan, send.outgoing, now_ms)
        send.attempts = 0
        send.outgoing = message_of(self._router.plan, send.cancellation)
        return send.outgoing

    def refused(self, send: Send, error: Exception) -> TimewheelError:
        """Return the error for a send that the client's code refused."""
        topic = self._router.names.part(send.outgoing.topic, send.outgoing.partition)
        if send.outgoing.place == "cancellations":
            return CancelFailed(send.outgoing.timer_id, topic, cause_of(error))
        return self._as_unknown(send, SendFailed(send.outgoing.timer_id, topic, cause_of(error)))

    def _next_step(self, send: Send, outcome: Outcome, cause: str) -> TimewheelError | Outgoing | None:
        if send.outgoing.place == "cancellations":
            return after_cancel(send.outgoing, outcome, cause, attempts=send.attempts)
        return send_outcome(
            self._router,
            send.outgoing,
            outcome,
            cause,
            self._clock.now_ms(),
            attempts=send.attempts,
            stored=send.stored,
        )

    def _as_unknown(self, send: Send, error: TimewheelError) -> TimewheelError:
        # A first copy is already stored: "not stored" would be wrong, and "again under the same id" is right.
        if not send.stored:
            return error
        topic = self._router.names.part(send.outgoing.topic, send.outgoing.partition)
        return SendOutcomeUnknown(send.outgoing.timer_id, topic, str(error))

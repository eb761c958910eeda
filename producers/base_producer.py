"""Common part of both producers: prepares messages, chooses their producers, evaluates their outcomes.

No function here waits for an outcome; the two producers differ in how they wait.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from os import getpid, urandom
from threading import get_ident
from typing import Any

import pulsar.schema

from timewheel.client.hooks import Hooks
from timewheel.client.process import ProcessGuard
from timewheel.client.producer_pool import CLOSED, Opened, PooledProducer, ProducerPool
from timewheel.client.reaching import BrokerUnreachable, RoleRefused, reaching
from timewheel.client.results import NO_RESULT, Outcome, cause_of, outcome_of_error, outcome_of_result
from timewheel.client.surface import ClientLike
from timewheel.core.arguments import check_client_and_plan
from timewheel.core.cancellations import Cancellation, CancelResult, Stamps, answer_of
from timewheel.core.clock import Clock, SystemClock
from timewheel.core.durations import HOUR_MS
from timewheel.core.early_delivery import OutOfOrder
from timewheel.core.errors import (
    CancelFailed,
    CancelOutcomeUnknown,
    CancelRefused,
    ClientMisuse,
    PayloadTooLarge,
    SendFailed,
    SendOutcomeUnknown,
    SendRefused,
    TimewheelError,
)
from timewheel.core.ids import TimerIds
from timewheel.core.plan import Calendar, Plan
from timewheel.core.rng import system_random
from timewheel.core.routing import Router
from timewheel.hooks import Hook

from .cancel_messages import (
    after_cancel,
    cancellation_of_group,
    cancellation_of_replaced,
    cancellation_of_timer,
    id_and_due,
    message_of,
)
from .pool import Key, PlanProducers, ProducerOptions, room_for_all, sender_of
from .prepare import DEFAULT_MAX_MESSAGE_BYTES, Outgoing, prepare
from .timer import SendOptions, Timer, unknown_option

DEFAULT_MAX_PENDING = 1_000  # limit on pending sends, over all topics; pulsar-client's own default for one producer
IDLE_MS = 4 * HOUR_MS
"""A producer that was not used for one to two of these periods is closed. The period is long, since each reopening uses
up one of the names that a broker remembers of a topic (broker-facts: forgotten-names)."""
CALENDAR_IDLE_MS = 30_000
"""Shorter period in a calendar: a passed topic cannot be removed while a producer is connected to it
(broker-facts: removing-a-topic), and no names of producers are remembered for calendar topics."""
CLOSE_TIMEOUT_S = 30.0  # time for which `DelayedProducer.close` waits for outcomes: the client's own send time-out
CLOSE_GRACE_MS = 1_000  # further time for producers to close and for the last callbacks to run
NO_ROOM = "no earlier send was stored in the time of a send, so that there was no room for it among max_pending sends"
MAX_ATTEMPTS = 4
"""Limit on sends of a timer on changing routes. A calendar's route changes once per interval, a slot's once: more than
two sends happen only if intervals are shorter than sends."""

_STAMPS: dict[int, Stamps] = {}
"""Stamps by process id: producers of a process share them, and agree on the order of sends and cancels. A fork copies
locks, so a child needs stamps of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerCounts:
    """Counts of a producer since its creation; all except ``pending`` only grow.

    Args:
        stored: Timers that the broker has confirmed.
        refused: Sends and cancels with invalid arguments; none of them left this process.
        failed: Sends and cancels that the broker did not take.
        unknown: Sends and cancels that may or may not be stored.
        pending: Sends and cancels that are pending now.
        cut: Cancellations that the broker has confirmed: for cancels, and for timers that replaced others.
        replaced: Producers of the client that were dead, and were replaced.
    """

    stored: int = 0
    refused: int = 0
    failed: int = 0
    unknown: int = 0
    pending: int = 0
    cut: int = 0
    replaced: int = 0


class Counters:
    """Counts outcomes, for whole batches of them, so that they cost a send nothing.

    A single thread calls `ended`, the thread that concludes sends; any thread may call `raised`, since errors are rare.
    """

    def __init__(self) -> None:
        self._counts = Counter[str]()
        self._errors = threading.Lock()

    def ended(self, count: int, errors: Sequence[TimewheelError] = ()) -> None:
        """Count ended sends, some of them with an error."""
        self._counts["stored"] += count - len(errors)
        for error in errors:
            self.raised(error)

    def was_cancelled(self, *, is_cancel: bool) -> None:
        """Count a stored cancellation; a cancel ends without a timer."""
        self._counts["cut"] += 1
        self._counts["stored"] -= is_cancel

    def raised(self, error: BaseException) -> None:
        """Count a send that ended with an error in its caller; foreign errors, such as an interrupt, do not count."""
        with self._errors:
            if isinstance(error, SendRefused | CancelRefused):
                self._counts["refused"] += 1
            elif isinstance(error, SendOutcomeUnknown | CancelOutcomeUnknown):
                self._counts["unknown"] += 1
            elif isinstance(error, TimewheelError):
                self._counts["failed"] += 1

    def counts(self, pending: int, replaced: int) -> ProducerCounts:
        return ProducerCounts(**self._counts, pending=pending, replaced=replaced)


@dataclass(slots=True, eq=False)
class Batch:
    """Sends that entered `InFlightLimiter` between two drains; a drain waits until its batches are empty."""

    inside: int = 0


@dataclass(slots=True, eq=False, repr=False)
class Send:
    """Send of a timer or a cancellation, through one or more attempts; also the client's callback for an attempt that
    no other send tells of.

    See `timewheel.producers.runs` for runs.
    """

    outgoing: Outgoing  # message to send
    # called with this send when the client knows the result, on the client's own thread: it must never raise or wait
    finished: Callable[[Any], None]
    notify: Any  # receives the outcome for the producer
    # producer that sends the message; the caller of `start` borrows it and gives it back
    pooled: PooledProducer[Key] = field(init=False)
    began: int = 0  # the pool's round in which the time of the send began
    result: Any = None  # the client's result; None until it is known
    message_id: Any = None  # the client's message id; meaningful if the result is Ok
    answer: dict[Any, Any] | None = None  # result and message id of an attempt in a run; empty until they are known
    run: Sequence[Send] = ()  # earlier sends of the run that this one ends
    # False if the client refused the message before it could have written any of it; None: not known, in a run
    handed_over: bool | None = True
    sending_thread: int = 0
    batch: Batch | None = None  # batch of the limiter; None once the send has ended
    raised: Exception | None = None  # error with which the client's code refused the message
    attempts: int = 0  # number of finished attempts
    stored: bool = False  # True if an attempt was confirmed, in a slot that had been swept, or may have been
    # cancellation that goes into the log, or is stored; None: there is none, or it is not known yet
    cancellation: Cancellation | None = None
    older_due_ms: int | None = None  # due time of the timer that is cancelled; None: unknown
    confirmed_ms: int = 0  # time at which the cancellation was confirmed
    copy: tuple[Outgoing, Any] | None = None  # a timer that replaces another, and its position, once it is stored

    @property
    def is_cancel(self) -> bool:
        """True if the send consists of a cancellation only."""
        return self.cancellation is not None and self.copy is None

    def start(self) -> None:
        """Hand the message over to the client, through the producer in ``pooled``. Any error of the client means that
        nothing was sent, and ``finished`` is not called.
        """
        self.handed_over = True
        self.answer = None
        self.sending_thread = get_ident()
        self.pooled.send(self.outgoing, self)
        self.sending_thread = 0

    def start_in_run(self, *, is_heard: bool) -> None:
        """Hand the message over like `start`, as a send of a run that is not its last."""
        self.handed_over = self.result = None
        self.answer = {} if is_heard else None
        self.pooled.send(self.outgoing, None if self.answer is None else self.answer.setdefault)

    @property
    def is_unheard(self) -> bool:
        """True if the other sends of the run must tell the answer."""
        return self.handed_over is None and self.answer is None and self.result is None and self.raised is None

    @property
    def outcome(self) -> Outcome | None:
        """Outcome of the client's result; None until it is known."""
        return None if self.result is None else outcome_of_result(self.result, self.message_id)

    def is_answered(self) -> bool:
        """Take the answer of an attempt in a run; False: the client has not given it yet."""
        if self.answer is not None:
            if not self.answer:
                return False
            ((self.result, self.message_id),) = self.answer.items()
        return True

    def __call__(self, result: Any, message_id: Any) -> None:
        """Take the result, as the client's callback."""
        if self.sending_thread and self.sending_thread == get_ident():
            # Called from inside our own call: the client refused on the spot, so nothing was written.
            self.handed_over = False
        self.message_id = message_id
        self.result = result
        self.finished(self)


def idle_ms(plan: Plan) -> int:
    """Return how long an unused producer is kept open."""
    return CALENDAR_IDLE_MS if isinstance(plan.scheme, Calendar) else IDLE_MS


class BaseProducer:
    """The common part of `DelayedProducer` and `AsyncDelayedProducer`; the arguments are theirs."""

    def __init__(
        self,
        client: ClientLike,
        plan: Plan,
        *,
        schema: Any = None,
        clock: Clock | None = None,
        hooks: tuple[Hook, ...] | None = None,
        max_pending: int = DEFAULT_MAX_PENDING,
        max_producers: int | None = None,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        **producer_options: Any,
    ) -> None:
        if max_pending < 1 or (max_producers is not None and max_producers < 1):
            raise ClientMisuse("max_pending and max_producers are at least 1")
        check_client_and_plan(client, plan)
        schema = pulsar.schema.BytesSchema() if schema is None else schema
        self.plan = plan
        self._clock: Clock = clock or SystemClock()
        self._hooks = Hooks(hooks)
        self._router = Router(plan)
        self._encode: Callable[[Any], bytes] = schema.encode
        self._max_message_bytes = max_message_bytes
        self._ids = TimerIds(urandom)
        self._turns = count()
        self._stamp = _STAMPS.setdefault(getpid(), Stamps(system_random())).new
        self._out_of_order = OutOfOrder(plan)
        self._counters = Counters()
        self._unanswered: list[Send] = []
        self._process = ProcessGuard()
        self._closed = False
        options = ProducerOptions(schema, producer_options)
        self._runs = options.runs
        self._producers = PlanProducers(reaching(client), options, plan)
        self._pool: ProducerPool[Key] = ProducerPool(
            max_producers=room_for_all(plan) if max_producers is None else max_producers,
            send_timeout_ms=options.send_timeout_ms,
            idle_ms=idle_ms(plan),
            name_of=self._producers.topic,
            sender_of=sender_of,
            clock=self._clock,
            hooks=self._hooks,
        )
        self._begin(max_pending)

    def _begin(self, max_pending: int) -> None:
        """Make what the kind of producer needs to wait for outcomes, and start it."""
        raise NotImplementedError

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise ClientMisuse(CLOSED)

    def _prepare(self, content: Any, options: SendOptions, above: int = 0) -> Outgoing:
        """Build a message from the arguments of a send, at this clock's time; ``above``: the replaced generation."""
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
            self._counters.raised(unknown)
            raise unknown from None
        except SendRefused as error:
            self._counters.raised(error)
            raise
        return outgoing.in_its_turn(self._out_of_order) if outgoing.deliver_at_ms else outgoing

    def _cancelling(self, name: Any, finished: Callable[[Any], None], notify: Any, *, is_group: bool = False) -> Send:
        """Build the send that cancels a timer (a `Timer` or an id), or all timers of a group so far."""
        plan, now_ms, due_ms = self.plan, self._clock.now_ms(), None
        try:
            if is_group:
                cancellation = cancellation_of_group(plan, name, self._stamp(now_ms), now_ms)
            else:
                _, due_ms = id_and_due(plan, name)  # first: no stamp can be above a generation that is no number
                above = name.generation if isinstance(name, Timer) else 0
                cancellation = cancellation_of_timer(plan, name, self._stamp(now_ms, above), now_ms)
        except CancelRefused as error:
            self._counters.raised(error)
            raise
        send = Send(message_of(plan, cancellation), finished, notify)
        send.cancellation, send.older_due_ms = cancellation, due_ms
        return send

    def _result(self, send: Send, error: TimewheelError | None) -> Timer | CancelResult | None:
        """Return an ended send's result: a timer, without position after an error, or a stored cancellation."""
        cancel_result = None
        cancel = self.plan.cancel
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
            self.plan.due_topic,
            cancel_result,
        )

    def _routed_now(self, send: Send) -> Outgoing:
        """Return the next message to send, on the present route: call this before opening a producer.

        A producer must not be opened for a passed interval: the timer would come too late, or the topic would be
        created again, without policies and subscriptions (broker-facts: removing-a-topic). The interval may have passed
        while the send waited for room.
        """
        outgoing = send.outgoing
        if self._router.interval_ms and outgoing.place != "cancellations":
            now_ms = self._clock.now_ms()
            route = self._router.route_of_send(outgoing.due_ms, now_ms)
            if route.topic != outgoing.topic:
                outgoing = send.outgoing = outgoing.sent_to(route, now_ms, self.plan.revision)
        return outgoing

    def _borrowed(self, send: Send) -> bool:
        """Return whether a send has got the open producer of its partition; else it must wait for `_opening`."""
        return self._pool.borrow((send.outgoing.topic, send.outgoing.partition), send)

    def _opening(self, send: Send) -> Opened:
        """Open the producer of a send's present route; the future ends when it can be borrowed."""
        outgoing = self._routed_now(send)
        key = (outgoing.topic, outgoing.partition)
        return self._pool.open(key, partial(self._producers.open, key, outgoing.place))

    def _refuse_if_overdue(self, send: Send) -> None:
        """Raise if the time of a send has passed while it waited for room: nothing was sent."""
        if not self._pool.left_ms(send):
            topic = self._router.names.part(send.outgoing.topic, send.outgoing.partition)
            kind = CancelFailed if send.is_cancel else SendFailed
            raise kind(send.outgoing.timer_id, topic, NO_ROOM)

    def _overdue(self) -> list[Send]:
        """Count a round of the pool, and return the sends whose time has passed, with an unknown outcome, and the sends
        that no run will tell of.
        """
        overdue: list[Send] = self._pool.inspect()
        for send in overdue:
            send.result, send.answer, send.handed_over = NO_RESULT, None, True
        unanswered, self._unanswered = self._unanswered, []
        return overdue + unanswered

    def _answered(self, finished: Sequence[Send]) -> list[Send]:
        """Return those sends, and the sends of the runs that they end. Where the client refused the last of a run on
        the spot, others may have no answer yet: the next rounds look for it.
        """
        sends: list[Send] = []
        for send in finished:
            if send.run:
                self._runs.tell(send.run, send)
            for one in (*send.run, send):
                known = one.raised is not None or one.is_answered()
                (sends if known else self._unanswered).append(one)
            send.run = ()
        return sends

    def _opening_failed(self, send: Send, error: Exception) -> None:
        """Set another route on a send whose producer could not be opened, or raise: nothing (further) was sent."""
        if isinstance(error, TimewheelError) and not isinstance(error, BrokerUnreachable | RoleRefused):
            if not send.stored or send.outgoing.place == "cancellations":
                raise error
            raise self._as_unknown(send, error) from error
        send.attempts += 1
        step = self._next_step(send, outcome_of_error(error), cause_of(error))
        if not isinstance(step, Outgoing):
            assert step is not None, "an opening that failed is not a stored message"
            raise step from error
        send.outgoing = step

    def _evaluate(self, send: Send) -> TimewheelError | Outgoing | None:
        """Evaluate a finished attempt, whose producer was given back. None: the timer is stored. An error: it is not
        stored, or may not be. An Outgoing, also set on the send: start the send again.
        """
        if send.raised is not None:
            return self._refused_by_client(send, send.raised)
        sent = send.outgoing
        is_plain = send.cancellation is None and not sent.generation  # a timer that replaces no other
        if send.result is None:
            outcome, cause, may_be_stored = Outcome.REOPEN, "its run does not say what became of it", True
        else:
            outcome = outcome_of_result(send.result, send.message_id, handed_over=send.handed_over is not False)
            if outcome is Outcome.OK and not sent.release_at_ms and is_plain:
                return None
            self._pool.failed(send.pooled, send.result, outcome)
            cause, may_be_stored = cause_of(send.result), outcome is Outcome.UNKNOWN and send.handed_over is None
            if may_be_stored:  # the client may have refused it on the spot as well: then it goes on as after that
                outcome = outcome_of_result(send.result, send.message_id, handed_over=False)
        send.stored = send.stored or may_be_stored  # from here on, no error says that it is not stored
        send.attempts += 1
        step = self._next_step(send, outcome, cause)
        if isinstance(step, Outgoing):
            send.stored = send.stored or outcome in (Outcome.OK, Outcome.DROPPED)
            send.outgoing = step
        elif step is None and not is_plain:
            step = self._cancel_next(send)
        return step

    def _cancel_next(self, send: Send) -> Outgoing | None:
        """Continue after a stored part of a cancel, or of a timer that replaces another: send one cancellation."""
        now_ms = self._clock.now_ms()
        if send.cancellation is not None:
            send.confirmed_ms = now_ms
            self._counters.was_cancelled(is_cancel=send.is_cancel)
            return None
        send.copy = (send.outgoing, send.message_id)
        send.cancellation = cancellation_of_replaced(self.plan, send.outgoing, now_ms)
        send.attempts, send.stored = 0, False  # of the cancellation, from here on
        send.outgoing = message_of(self.plan, send.cancellation)
        return send.outgoing

    def _refused_by_client(self, send: Send, error: Exception) -> TimewheelError:
        if isinstance(error, TimewheelError):
            return error
        topic = self._router.names.part(send.outgoing.topic, send.outgoing.partition)
        if send.outgoing.place == "cancellations":
            kind = CancelOutcomeUnknown if send.stored else CancelFailed
            return kind(send.outgoing.timer_id, topic, cause_of(error))
        return self._as_unknown(send, SendFailed(send.outgoing.timer_id, topic, cause_of(error)))

    def _next_step(self, send: Send, outcome: Outcome, cause: str) -> TimewheelError | Outgoing | None:
        if send.outgoing.place == "cancellations":
            return after_cancel(send.outgoing, outcome, cause, attempts=send.attempts, stored=send.stored)
        now_ms = self._clock.now_ms()
        return send_outcome(
            self._router, send.outgoing, outcome, cause, now_ms, attempts=send.attempts, stored=send.stored
        )

    def _as_unknown(self, send: Send, error: TimewheelError) -> TimewheelError:
        # A first copy is already stored: "not stored" would be wrong, and "again under the same id" is right.
        if not send.stored:
            return error
        topic = self._router.names.part(send.outgoing.topic, send.outgoing.partition)
        return SendOutcomeUnknown(send.outgoing.timer_id, topic, str(error))


def send_outcome(
    router: Router, outgoing: Outgoing, outcome: Outcome, cause: str, now_ms: int, *, attempts: int, stored: bool
) -> Outgoing | TimewheelError | None:
    """Decide the next step when the outcome of the last of ``attempts`` is known. Pure. None: the timer is stored in
    the right topic. An Outgoing: send this message as well, under the same timer id. An error: report it. ``stored``:
    an earlier attempt was confirmed, in a slot that had been swept, or may have been.
    """
    plan = router.plan
    if outcome is Outcome.OK:
        if not outgoing.release_at_ms or now_ms < outgoing.release_at_ms - plan.skew_ms:
            return None
        # The slot may have been swept before the message was in it, and is swept again only a slot later: a second
        # copy goes to the due topic, and consumers drop the copy that comes second (broker-facts: slot-sweep). The
        # relay sweeps by its own clock, which may be ahead of this machine's.
        return outgoing.sent_to(router.to_due(outgoing.due_ms, now_ms), now_ms, plan.revision)
    if attempts < MAX_ATTEMPTS:
        if outcome in (Outcome.REOPEN, Outcome.DROPPED):
            return outgoing
        if outcome is Outcome.ROUTE_AGAIN:
            # Never the same topic again: it is terminated, or would be created without policies and subscriptions
            # (broker-facts: removing-a-topic).
            route = router.route_of_send(outgoing.due_ms, now_ms)
            if route.topic != outgoing.topic:
                return outgoing.sent_to(route, now_ms, plan.revision)
    topic = router.names.part(outgoing.topic, outgoing.partition)
    if stored or outcome in (Outcome.UNKNOWN, Outcome.DROPPED):
        # A copy in a swept slot arrives, though late: the error must not be "not stored".
        return SendOutcomeUnknown(outgoing.timer_id, topic, cause)
    if outcome is Outcome.TOO_LARGE:
        return PayloadTooLarge(outgoing.size_bytes(), None)
    return SendFailed(outgoing.timer_id, topic, cause)

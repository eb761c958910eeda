"""The blocking producer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack

from timewheel.core.clock import Clock, SystemClock
from timewheel.core.cut_offs import Cancellation
from timewheel.core.errors import ClientMisuse, TimewheelError
from timewheel.core.plan import Plan
from timewheel.events import ProducerClosedWithUnknownOutcomes, SendCallbackFailed
from timewheel.hooks import Hook
from timewheel.producers.cutting import id_and_due
from timewheel.producers.prepare import DEFAULT_MAX_MESSAGE_BYTES
from timewheel.producers.send_options import SendOptions
from timewheel.producers.sending.dispatcher import Dispatcher
from timewheel.producers.sending.gate import Gate
from timewheel.producers.sending.outbox import Outbox
from timewheel.producers.sending.outgoing import Outgoing
from timewheel.producers.sending.pool import PooledProducer
from timewheel.producers.sending.tally import ProducerCounts
from timewheel.producers.sending.writer import DEFAULT_MAX_PENDING, Send, TimerWriter, idle_ms
from timewheel.producers.timer import Timer
from timewheel.wire.hooks import Hooks
from timewheel.wire.process import EXIT_MS, end_at_exit
from timewheel.wire.surface import ClientLike

__all__ = ["CancelCallback", "DelayedProducer", "TimerCallback"]

TimerCallback = Callable[[TimewheelError | None, Timer], None]
"""``callback(error, timer)``: error is None if the timer is stored."""
CancelCallback = Callable[[TimewheelError | None, Cancellation | None], None]
"""``callback(error, cancellation)``: error is None if the cancel is stored."""

R = TypeVar("R")

CLOSE_TIMEOUT_S = 30.0
"""How long `DelayedProducer.close` waits for outcomes: the client's own send time-out."""
CLOSE_GRACE_MS = 1_000
"""Beyond that: for producers to close and the last callbacks to run."""


class DelayedProducer:
    """Sends timers of one plan; may be used from several threads.

        with DelayedProducer(client, plan) as producer:
            timer = producer.send(b"renew", deliver_after=timedelta(days=17), timer_id="sub-42")

    Args:
        client: Your ``pulsar.Client``; it stays yours to close, after the producer.
        plan: The plan.
        schema: A schema of pulsar-client; None: bytes.
        clock: Where the send time comes from, and how to wait; None: the machine's.
        hooks: Told of what an operator should know; None: they are logged.
        max_pending: Sends under way at once, over all topics; whoever comes then waits.
        max_producers: The client's producers that are open at once; one serves one partition of one topic. None: as
            many as there are, up to 4,096.
        max_message_bytes: The broker's ``maxMessageSize``.
        producer_options: pulsar-client's ``send_timeout_millis``, ``compression_type``, ``properties`` and
            ``batching_...``; batching applies where a relay holds.

    Raises:
        ClientMisuse: A producer option that timewheel sets itself, or a process whose threads gevent has replaced; the
            message says why.
    """

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
        self.plan = plan
        self._clock: Clock = clock or SystemClock()
        self._hooks = Hooks(hooks)
        self._writer = TimerWriter(
            client,
            plan,
            schema=schema,
            clock=self._clock,
            hooks=self._hooks,
            max_producers=max_producers,
            max_message_bytes=max_message_bytes,
            may_wait=self._may_wait,
            options=producer_options,
        )
        self._dispatcher: Dispatcher[Send] = Dispatcher(
            self._conclude, self._writer.pool.close_idle, idle_ms(plan), self._clock, self._hooks
        )
        self._gate = Gate(max_pending, self._may_wait)
        self._outbox: Outbox[Send] = Outbox(lambda: self._gate.inside, self._refused, self._clock)
        self._closed = False
        self._dispatcher.start()
        end_at_exit(self, lambda producer: producer.close(EXIT_MS / 1000))

    def send(self, content: Any, **options: Unpack[SendOptions]) -> Timer:
        """Send a timer and wait until it is stored.

        Args:
            content: What the schema takes; None: a null value.
            options: ``deliver_at`` (UTC milliseconds since 1970, or an aware datetime) or ``deliver_after`` (a
                timedelta): when it is due; neither: now. ``timer_id``, ``properties``, ``partition_key``,
                ``ordering_key``, ``event_timestamp``, ``group``, ``replace``: see `SendOptions`.

        Returns:
            The timer; from now on it will be delivered.

        Raises:
            SendRefused: Arguments that cannot be sent (`BadDueTime`, `DelayTooLong`, `BadTimerId`, `BadArgument`,
                `ReservedProperty`, `PayloadTooLarge`).
            SendFailed: The broker did not take it.
            SendOutcomeUnknown: It may be stored: send it again under the same id.
            CancelFailed, CancelOutcomeUnknown: With ``replace``: it is stored, and what it replaces is not cancelled,
                or nobody knows. Send it again, with ``replace``.
            TopologyError: Its topic does not exist.
            ClientMisuse: After `close`, in a forked child, or from a callback, which would wait for itself.
        """
        return self._sent(content, options, None)

    def send_async(self, content: Any, callback: TimerCallback, **options: Unpack[SendOptions]) -> None:
        """Send a timer and go on; waits only for room among ``max_pending`` sends and for its producer to open.

        Args:
            content: As for `send`.
            callback: ``callback(error, timer)``, called once on a thread of this producer; error is None if the timer
                is stored. What it raises is reported to the hooks. It may call `send_async`; `send`, `flush` and
                `close` would wait for itself and are refused.
            options: As for `send`.

        Raises:
            TimewheelError: As `send`, where it is known at once; the callback is not called then.
        """
        self._submit(
            Send(self._writer.prepare(content, options), self._dispatcher.put, callback),
            self._outbox.put,
        )

    def cancel(self, timer: Timer | str) -> Cancellation:
        """Cancel a timer, and wait until that is stored.

        Args:
            timer: As `send` gave it, or its id alone. With the timer the answer can be certain, and it is remembered no
                longer than needed.

        Returns:
            What can be promised: see `timewheel.core.Answer`. Nobody knows whether there is a timer of that id.

        Raises:
            CancelRefused: It is no timer of this plan's, or the plan has no ``[cancel]``.
            CancelFailed: The broker did not take it: the timer will come.
            CancelOutcomeUnknown: It may be stored; trying again is always safe.
            TopologyError: The log of cut-offs does not exist.
            ClientMisuse: As for `send`.
        """
        return self._cancelled(lambda waiting: self._writer.cancelling(timer, self._dispatcher.put_urgent, waiting))

    def cancel_group(self, group: str) -> Cancellation:
        """Cancel all timers that were sent with this ``group`` before now, however many there are; else as `cancel`."""
        return self._cancelled(
            lambda waiting: self._writer.cancelling_group(group, self._dispatcher.put_urgent, waiting)
        )

    def cancel_async(self, timer: Timer | str, callback: CancelCallback) -> None:
        """Cancel a timer and go on; as `send_async`.

        Args:
            timer: As for `cancel`.
            callback: ``callback(error, cancellation)``, called once on a thread of this producer: one of them is None.

        Raises:
            TimewheelError: As `cancel`, where it is known at once; the callback is not called then.
        """
        self._submit(self._writer.cancelling(timer, self._dispatcher.put, callback), self._outbox.put)

    def reschedule(self, timer: Timer, content: Any, **options: Unpack[SendOptions]) -> Timer:
        """Send a timer in place of one that was sent before: first the new one is stored, then the old one cancelled.

        A crash in between leaves both, never none.

        Args:
            timer: The old one, as `send` or `reschedule` gave it.
            content: Of the new one: the old one's is not at hand, so all of it is sent again.
            options: As for `send`, but for ``timer_id`` and ``replace``.

        Returns:
            The new timer, whose ``superseded`` says what can be promised of the old one.

        Raises:
            TimewheelError: As `send` with ``replace``, and `cancel`.
        """
        id_and_due(self.plan, timer)
        return self._sent(content, {**options, "timer_id": timer.id, "replace": True}, timer)

    def _sent(self, content: Any, options: SendOptions, older: Timer | None) -> Timer:
        self._refuse_to_wait("send", "send_async")
        outgoing = self._writer.prepare(content, options, 0 if older is None else older.generation)
        waiting: _Waiting[Timer] = _Waiting()
        send = Send(outgoing, self._dispatcher.put_urgent, waiting)
        send.older_due_ms = None if older is None else older.due_ms
        self._submit(send, self._start)
        return waiting.result()

    def _cancelled(self, cancelling: Callable[[_Waiting[Cancellation]], Send]) -> Cancellation:
        self._refuse_to_wait("cancel", "cancel_async")
        waiting: _Waiting[Cancellation] = _Waiting()
        self._submit(cancelling(waiting), self._start)
        return waiting.result()

    def _refuse_to_wait(self, what: str, instead: str) -> None:
        if self._dispatcher.is_current_thread():
            raise ClientMisuse(
                f"{what} waits for an outcome that this very thread reports; use {instead} in a callback"
            )

    def flush(self) -> None:
        """Wait until the outcome of every send so far is known; it was told to each send's caller or callback.

        Raises:
            ClientMisuse: In a callback or a forked child.
        """
        self._refuse_in_callback("flush")
        self._writer.process.check("producer")
        self._outbox.hand_over()
        self._writer.pool.flush()
        self._gate.drain(self._clock)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> int:
        """Send nothing more, wait for the outcomes that are missing, and close. A second time it does nothing.

        Args:
            timeout_s: Seconds to wait for outcomes. Sends without one by then end with `SendOutcomeUnknown`.

        Returns:
            How many outcomes were unknown when the time had passed; the hooks are told of them too.

        Raises:
            ClientMisuse: In a callback.
        """
        if self._writer.process.is_child or self._closed:
            return 0  # a forked child leaves everything to its parent
        self._refuse_in_callback("close")
        self._closed = True
        self._gate.close()
        self._outbox.hand_over()
        self._gate.drain(self._clock, int(timeout_s * 1000))
        unknown_count = self._gate.inside
        self._writer.pool.close_all(CLOSE_GRACE_MS)
        self._gate.drain(self._clock, CLOSE_GRACE_MS)
        self._dispatcher.stop(CLOSE_GRACE_MS)
        if unknown_count:
            self._hooks.emit(ProducerClosedWithUnknownOutcomes(unknown_count=unknown_count))
        return unknown_count

    @property
    def counts(self) -> ProducerCounts:
        """What it has sent, and what became of it, so far."""
        return self._writer.tally.counts(self._gate.inside)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _may_wait(self) -> bool:
        return not self._dispatcher.is_current_thread()

    def _refuse_in_callback(self, what: str) -> None:
        if self._dispatcher.is_current_thread():
            raise ClientMisuse(f"{what} waits for callbacks, and would wait for this one; call it elsewhere")

    def _submit(self, send: Send, hand_over: Callable[[Send], None]) -> None:
        self._writer.process.check("producer")
        self._gate.enter(send)
        try:
            self._borrow(send)
            try:
                hand_over(send)
            except BaseException:
                self._writer.pool.give_back(send.pooled)
                raise
        except BaseException as error:
            self._writer.tally.raised(error)
            self._gate.leave(send)
            raise

    def _borrow(self, send: Send) -> None:
        outgoing = send.outgoing
        send.pooled = self._writer.pool.borrow(outgoing.topic, outgoing.partition) or self._opened(send)

    def _start(self, send: Send) -> None:
        """Hand a send whose producer is borrowed to the client now."""
        try:
            send.start()
        except Exception as error:
            raise self._writer.refused(send, error) from error

    def _opened(self, send: Send) -> PooledProducer:
        while True:
            outgoing = self._writer.routed_now(send)
            try:
                return self._writer.pool.open(outgoing.topic, outgoing.partition, outgoing.place)
            except Exception as error:  # noqa: BLE001 - the client has kinds of its own; the writer reads them all
                self._writer.opening_failed(send, error)

    def _refused(self, send: Send, error: Exception) -> None:
        """Let the dispatcher tell that the client would not take a message; its caller has gone on long ago."""
        send.raised = error
        self._dispatcher.put(send)

    def _conclude(self, finished: list[Send]) -> None:
        """Take finished attempts; runs on the dispatcher's thread."""
        # One that has ended already was interrupted while it was handed over, and its caller knows.
        sends = [send for send in finished if send.group is not None]
        self._writer.pool.give_back(*[send.pooled for send in sends])
        ended: list[Send] = []
        errors: list[TimewheelError] = []
        for send in sends:
            step = self._writer.judge(send)
            if isinstance(step, Outgoing):
                step = self._continued(send)
                if step is None:
                    continue
            ended.append(send)
            if step is not None:
                errors.append(step)
            try:
                send.notify(step, self._writer.told(send, step))
            except Exception as error:  # noqa: BLE001 - a user's callback must not end the thread that reports to all
                self._hooks.emit(SendCallbackFailed(timer_id=send.outgoing.timer_id, error=repr(error)))
        self._writer.tally.ended(len(ended), errors)
        # Their room only now: what waits for a slow callback is bounded as well, and a flush waits for callbacks.
        self._gate.leave(*ended)
        self._outbox.some_ended()

    def _continued(self, send: Send) -> TimewheelError | None:
        """Start the next attempt of a send; an error if it cannot be."""
        try:
            self._borrow(send)
            try:
                self._start(send)
            except TimewheelError:
                self._writer.pool.give_back(send.pooled)
                raise
        except TimewheelError as error:
            return error
        return None


class _Waiting(Generic[R]):
    """A caller that waits for one outcome; the callback of its send."""

    __slots__ = ("_error", "_known", "_result")

    def __init__(self) -> None:
        # A bare lock: a Condition or an Event costs more than all else of a send in Python.
        self._known = threading.Lock()
        self._known.acquire()
        self._error: TimewheelError | None = None
        self._result: R | None = None

    def __call__(self, error: TimewheelError | None, result: R | None) -> None:
        self._error = error
        self._result = result
        self._known.release()

    def result(self) -> R:
        self._known.acquire()
        if self._error is not None:
            raise self._error
        assert self._result is not None, "an outcome is an error or a result"
        return self._result

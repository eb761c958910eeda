"""Blocking producer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack

from timewheel.client.process import EXIT_MS, DaemonWorkers, end_at_exit
from timewheel.client.producer_pool import ROUND_MS, THREADS
from timewheel.core.cancellations import CancelResult
from timewheel.core.errors import ClientMisuse, TimewheelError
from timewheel.events import ProducerClosedWithUnknownOutcomes, SendCallbackFailed

from .base_producer import CLOSE_GRACE_MS, CLOSE_TIMEOUT_S, BaseProducer, ProducerCounts, Send
from .cancel_messages import replacing
from .dispatcher import Dispatcher, HandoffQueue, InFlightLimiter
from .prepare import Outgoing
from .timer import SendOptions, Timer

TimerCallback = Callable[[TimewheelError | None, Timer], None]
"""``callback(error, timer)``: error is None if the timer is stored."""
CancelCallback = Callable[[TimewheelError | None, CancelResult | None], None]
"""``callback(error, cancellation)``: error is None if the cancel is stored."""

R = TypeVar("R")


class DelayedProducer(BaseProducer):
    """Sends timers of one plan. Thread-safe.

        with DelayedProducer(client, plan) as producer:
            timer = producer.send(b"renew", deliver_after=timedelta(days=17), timer_id="sub-42")

    Args:
        client: Your ``pulsar.Client``. Close it yourself, after the producer.
        plan: The plan.
        schema: A schema of pulsar-client; None: bytes.
        clock: Clock for send times and waits; None: the system's clock.
        hooks: Called with events for operators; None: events are logged.
        max_pending: Limit on pending sends, over all topics; further sends wait.
        max_producers: Limit on open producers of the client; each serves a partition of a topic. None: the number that
            the plan needs, up to 4,096.
        max_message_bytes: The broker's ``maxMessageSize``.
        producer_options: pulsar-client's ``send_timeout_millis``, ``compression_type``, ``properties`` and
            ``batching_...``; batching applies to topics that a relay holds.

    Raises:
        ClientMisuse: A producer option is set by timewheel itself, or gevent has replaced the process's threads; the
            message states the reason.
    """

    def _begin(self, max_pending: int) -> None:
        self._dispatcher: Dispatcher[Send] = Dispatcher(
            self._conclude, lambda: self._conclude(self._overdue()), ROUND_MS, self._clock, self._hooks
        )
        self._aside = DaemonWorkers(name="timewheel-producer-again", limit=THREADS)
        # The thread that finishes sends may not wait for itself: it exceeds the limit by the sends of its callbacks.
        self._limiter = InFlightLimiter(max_pending, lambda: not self._dispatcher.is_current_thread())
        self._handoff_queue = HandoffQueue(self._runs, lambda: self._limiter.inside, self._refused, self._clock)
        self._dispatcher.start()
        end_at_exit(self, lambda producer: producer.close(EXIT_MS / 1000))

    def send(self, content: Any, **options: Unpack[SendOptions]) -> Timer:
        """Send a timer and wait until it is stored.

        Args:
            content: Content for the schema; None: a null value.
            options: ``deliver_at`` (UTC milliseconds since 1970, or an aware datetime) or ``deliver_after`` (a
                timedelta): the due time; neither: now. ``timer_id``, ``properties``, ``partition_key``,
                ``ordering_key``, ``event_timestamp``, ``group``, ``replace``: see `SendOptions`.

        Returns:
            The timer; it is stored, and will be delivered.

        Raises:
            SendRefused: Arguments cannot be sent (`BadDueTime`, `DelayTooLong`, `BadTimerId`, `BadArgument`,
                `ReservedProperty`, `PayloadTooLarge`).
            SendFailed: The broker did not take the timer.
            SendOutcomeUnknown: The timer may be stored: send it again under the same id.
            CancelFailed, CancelOutcomeUnknown: With ``replace``: the timer is stored; the timer that it replaces is not
                cancelled, or may not be. Send it again, with ``replace``.
            TopologyError: The timer's topic does not exist.
            ClientMisuse: The producer is closed or forked, or the call is made in a callback, which would wait for
                itself.
        """
        return self._sent(content, options, None)

    def send_async(self, content: Any, callback: TimerCallback, **options: Unpack[SendOptions]) -> None:
        """Send a timer without waiting for its outcome; waits only for room among ``max_pending`` sends and for its
        producer to open.

        Args:
            content: Content as for `send`.
            callback: ``callback(error, timer)``, called once on a thread of this producer; error is None if the timer
                is stored. An exception of the callback is reported to the hooks. The callback may call `send_async`;
                `send`, `flush` and `close` would wait for the callback itself, and are refused.
            options: Options as for `send`.

        Raises:
            TimewheelError: An error of `send` that is known at once; the callback is not called then.
        """
        self._submit(Send(self._prepare(content, options), self._dispatcher.put, callback), self._handoff_queue.put)

    def cancel(self, timer: Timer | str) -> CancelResult:
        """Cancel a timer, and wait until the cancellation is stored.

        Args:
            timer: The timer as returned by `send`, or its id alone. With the timer, the answer can be certain, and the
                cancellation is remembered no longer than needed.

        Returns:
            The cancellation with its guarantee: see `timewheel.core.Answer`. It does not reveal whether a timer of
            that id exists.

        Raises:
            CancelRefused: The timer is not a timer of this plan, or the plan has no ``[cancel]``.
            CancelFailed: The broker did not take the cancellation: the timer will be delivered.
            CancelOutcomeUnknown: The cancellation may be stored; trying again is always safe.
            TopologyError: The log of cancellations does not exist.
            ClientMisuse: See `send`.
        """
        return self._cancelled(lambda waiting: self._cancelling(timer, self._dispatcher.put_urgent, waiting))

    def cancel_group(self, group: str) -> CancelResult:
        """Cancel all timers that were sent with this ``group`` so far, however many; otherwise like `cancel`."""
        return self._cancelled(
            lambda waiting: self._cancelling(group, self._dispatcher.put_urgent, waiting, is_group=True)
        )

    def cancel_async(self, timer: Timer | str, callback: CancelCallback) -> None:
        """Cancel a timer without waiting for the outcome, like `send_async`.

        Args:
            timer: Timer as for `cancel`.
            callback: ``callback(error, cancellation)``, called once on a thread of this producer: one of the two is
                None.

        Raises:
            TimewheelError: An error of `cancel` that is known at once; the callback is not called then.
        """
        self._submit(self._cancelling(timer, self._dispatcher.put, callback), self._handoff_queue.put)

    def reschedule(self, timer: Timer, content: Any, **options: Unpack[SendOptions]) -> Timer:
        """Send a timer in place of an earlier timer: the new timer is stored first, then the old timer is cancelled.

        A crash in between leaves both, never none.

        Args:
            timer: The old timer, as returned by `send` or `reschedule`.
            content: Content of the new timer: the old content is not available, so it must be sent again.
            options: Options as for `send`, except ``timer_id`` and ``replace``.

        Returns:
            The new timer; its ``superseded`` has the guarantee for the old timer.

        Raises:
            TimewheelError: An error of `send` with ``replace``, or of `cancel`.
        """
        return self._sent(content, replacing(self.plan, timer, options), timer)

    def _sent(self, content: Any, options: SendOptions, older: Timer | None) -> Timer:
        self._refuse_to_wait("send", "send_async")
        outgoing = self._prepare(content, options, 0 if older is None else older.generation)
        waiting: _Waiting[Timer] = _Waiting()
        send = Send(outgoing, self._dispatcher.put_urgent, waiting)
        send.older_due_ms = None if older is None else older.due_ms
        self._submit(send, self._handoff_queue.put_urgent)
        return waiting.result()

    def _cancelled(self, cancelling: Callable[[_Waiting[CancelResult]], Send]) -> CancelResult:
        self._refuse_to_wait("cancel", "cancel_async")
        waiting: _Waiting[CancelResult] = _Waiting()
        self._submit(cancelling(waiting), self._handoff_queue.put_urgent)
        return waiting.result()

    def _refuse_to_wait(self, what: str, instead: str) -> None:
        if self._dispatcher.is_current_thread():
            raise ClientMisuse(
                f"{what} waits for an outcome that this very thread reports; use {instead} in a callback"
            )

    def flush(self) -> None:
        """Wait until the outcome of every send so far is known and passed to its caller or callback.

        Raises:
            ClientMisuse: The call is made in a callback or a forked child.
        """
        self._refuse_in_callback("flush")
        self._process.check("producer")
        self._handoff_queue.hand_over()
        self._pool.flush()
        self._limiter.drain(self._clock)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> int:
        """Refuse further sends, wait for outstanding outcomes, and close. A second call does nothing.

        Args:
            timeout_s: Seconds to wait for outcomes. Sends without an outcome by then end with `SendOutcomeUnknown`.

        Returns:
            Number of outcomes that were unknown after that time; an event reports it to the hooks too.

        Raises:
            ClientMisuse: The call is made in a callback.
        """
        if self._process.is_child or self._closed:
            return 0  # a forked child leaves everything to its parent
        self._refuse_in_callback("close")
        self._closed = True
        self._limiter.close()
        self._handoff_queue.hand_over()
        self._limiter.drain(self._clock, int(timeout_s * 1000))
        unknown_count = self._limiter.inside
        self._pool.close_all(CLOSE_GRACE_MS)
        self._limiter.drain(self._clock, CLOSE_GRACE_MS)
        self._dispatcher.stop(CLOSE_GRACE_MS)
        if unknown_count:
            self._hooks.emit(ProducerClosedWithUnknownOutcomes(unknown_count=unknown_count))
        return unknown_count

    @property
    def counts(self) -> ProducerCounts:
        """Counts of sends by outcome, so far."""
        return self._counters.counts(self._limiter.inside, self._pool.replaced)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _refuse_in_callback(self, what: str) -> None:
        if self._dispatcher.is_current_thread():
            raise ClientMisuse(f"{what} waits for callbacks, and would wait for this one; call it elsewhere")

    def _submit(self, send: Send, hand_over: Callable[[Send], None]) -> None:
        self._process.check("producer")
        # The time of a send includes its wait for room while nothing is stored, but not the work of earlier sends.
        send.began, stored = self._pool.round, self._limiter.stored
        self._limiter.enter(send)
        try:
            if send.began != self._pool.round:
                if stored != self._limiter.stored:
                    send.began = self._pool.round
                self._refuse_if_overdue(send)
            self._borrow(send)
            try:
                hand_over(send)
            except BaseException:
                self._pool.give_back([send])
                raise
        except BaseException as error:
            self._counters.raised(error)
            self._limiter.leave(send)
            raise

    def _borrow(self, send: Send) -> None:
        """Borrow the producer of a send, and wait for it to open if need be."""
        while not self._borrowed(send):
            try:
                self._pool.await_opened(self._opening(send), send)
            except Exception as error:  # noqa: BLE001 - the client has errors of its own; `_opening_failed` knows them
                self._opening_failed(send, error)

    def _refused(self, send: Send, error: Exception) -> None:
        """Let the dispatcher report a message that was not sent."""
        send.raised = error
        send.finished(send)

    def _conclude(self, finished: list[Send]) -> None:
        """Conclude finished attempts; runs on the dispatcher's thread."""
        # A send that has already ended was overdue, or was interrupted during its handover, and its caller knows.
        sends = [send for send in self._answered(finished) if send.batch is not None]
        self._pool.give_back(sends)
        ended: list[Send] = []
        errors: list[TimewheelError] = []
        for send in sends:
            step = self._evaluate(send)
            if isinstance(step, Outgoing):
                self._continue(send)
                continue
            ended.append(send)
            if step is not None:
                errors.append(step)
            try:
                send.notify(step, self._result(send, step))
            except Exception as error:  # noqa: BLE001 - a user's callback must not end the thread that serves all
                self._hooks.emit(SendCallbackFailed(timer_id=send.outgoing.timer_id, error=repr(error)))
        self._counters.ended(len(ended), errors)
        # Room is freed only now: so sends behind a slow callback are limited as well, and a flush waits for callbacks.
        self._limiter.leave(*ended, stored=len(ended) - len(errors))
        self._handoff_queue.some_ended()

    def _continue(self, send: Send) -> None:
        """Start the next attempt of a send."""
        if not self._borrowed(send):
            self._aside.run(lambda: self._continue_aside(send))
        else:
            self._handoff_queue.put(send)

    def _continue_aside(self, send: Send) -> None:
        """Start the next attempt of a send whose producer is not open, on a thread that may wait for it."""
        try:
            self._borrow(send)
            self._handoff_queue.put(send)
        except Exception as error:  # noqa: BLE001 - the dispatcher reports it
            self._refused(send, error)


class _Waiting(Generic[R]):
    """Callback of a send that lets its caller wait for the outcome."""

    __slots__ = ("_error", "_known", "_result")

    def __init__(self) -> None:
        # A bare lock: a Condition or an Event costs more than the rest of a send in Python.
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

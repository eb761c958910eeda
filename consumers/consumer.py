"""The blocking consumer, and the worker threads of its `run`."""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Generic, NoReturn, Self, TypeVar

from timewheel.client.hooks import Hooks
from timewheel.core.arguments import check_kind
from timewheel.core.clock import Clock, wait_until
from timewheel.core.errors import ClientMisuse, UnsupportedAcknowledgement
from timewheel.events import HandlersLeftBehind

from .base_consumer import BaseConsumer, Outcomes, stopping_on_signals
from .errors import ReceiveTimeout, check_count, check_duration, timeout_ms_of
from .message import DelayedMessage, InFlight, key_of
from .middleware import MiddlewareChain
from .receiver import LOOK_MS, SLICE_MS, Receiver
from .retry import ParkTimer, RetryLater

T = TypeVar("T")

QUEUED_PER_WORKER = 4
"""Items that wait per worker: enough to keep it busy, few enough that a stop need not wait for them."""
KEYED_PER_WORKER = 256
"""Items with a key that wait for the only worker that may take them. The number is larger, since their producer has
other items too: a hot key, or a handler that is slow for one key, must not leave the other workers idle. A stop
gives back those beyond `QUEUED_PER_WORKER`.
"""


class Workers(Generic[T]):
    """Runs ``work(item)``, which must not raise, on threads that keep a key on one worker.

    Each worker has a queue of its own for keyed items; items without a key share a queue that all workers take from, so
    that they never wait behind a slow key.
    """

    def __init__(self, count: int, work: Callable[[T], None], clock: Clock, name: str = "timewheel-worker") -> None:
        self._work = work
        self._clock = clock
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._wake = [threading.Condition(self._lock) for _ in range(count)]
        self._keyed: list[deque[tuple[int, T]]] = [deque() for _ in range(count)]
        self._keyless: deque[tuple[int, T]] = deque()
        self._idle: set[int] = set()
        self._sequence = 0
        self._keyless_limit = count * QUEUED_PER_WORKER
        self._closing = False
        self._alive = count
        # Daemons: a handler that hangs must not keep the process alive after the drain's deadline.
        self._threads = [
            threading.Thread(target=self._run, args=(index,), name=f"{name}-{index}", daemon=True)
            for index in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, item: T, key: str, timeout_ms: int) -> bool:
        """Queue an item."""
        with self._lock:
            index = hash(key) % len(self._threads) if key else -1
            queue, limit = (self._keyed[index], KEYED_PER_WORKER) if key else (self._keyless, self._keyless_limit)
            if not wait_until(self._clock, self._room, lambda: len(queue) < limit, timeout_ms):
                return False
            self._sequence += 1
            if key:
                queue.append((self._sequence, item))
                self._wake[index].notify()
            else:
                self._keyless.append((self._sequence, item))
                if self._idle:
                    self._wake[self._idle.pop()].notify()
            return True

    def drain(self, timeout_ms: int) -> list[T]:
        """Take no new items, wait for items that are running or next in line, and end the threads."""
        with self._lock:
            self._closing = True
            left = [queue.pop() for queue in self._keyed for _ in range(len(queue) - QUEUED_PER_WORKER)]
            for wake in self._wake:
                wake.notify()
            wait_until(self._clock, self._room, lambda: self._alive == 0, timeout_ms)
            left += [*self._keyless, *(entry for queue in self._keyed for entry in queue)]
            self._keyless.clear()
            for queue in self._keyed:
                queue.clear()
            return [item for _, item in sorted(left, key=lambda entry: entry[0])]

    @property
    def running(self) -> int:
        """Threads that have not ended."""
        with self._lock:
            return self._alive

    def _run(self, index: int) -> None:
        try:
            while (entry := self._next(index)) is not None:
                self._work(entry[1])
        finally:
            with self._lock:
                self._alive -= 1
                self._room.notify_all()

    def _next(self, index: int) -> tuple[int, T] | None:
        own, shared = self._keyed[index], self._keyless
        with self._lock:
            while not own and not shared:
                if self._closing:
                    return None
                self._idle.add(index)
                self._wake[index].wait()
                self._idle.discard(index)
            # The older of the two heads, so that neither kind starves the other.
            queue = own if own and (not shared or own[0][0] < shared[0][0]) else shared
            self._room.notify()
            return queue.popleft()


Handler = Callable[[DelayedMessage], Any] | Callable[[DelayedMessage], Awaitable[Any]]
"""Handles a timer: returning acknowledges the timer, raising has it delivered again."""

JOIN_TIMEOUT_MS = 5_000


class HandlerCalls:
    """Calls a handler and waits for it. All awaitables that it returns run on one event loop, in its own thread."""

    def __init__(self, handler: Handler, clock: Clock) -> None:
        self._handler = handler
        self._clock = clock
        self._starting = threading.Lock()
        self._has_ended = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._starting:
            self._has_ended = True
            loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        # Only handlers that missed the drain's deadline still run.
        asyncio.run_coroutine_threadsafe(_cancel_others_and_stop(), loop)
        # A handler that swallows its cancellation is left behind, with the thread, which is a daemon.
        self._clock.join(thread, JOIN_TIMEOUT_MS)

    def __call__(self, message: DelayedMessage) -> None:
        """Run the handler to its end, and raise the handler's exception."""
        result = self._handler(message)
        # By the result, not by the handler: a decorator or a lambda around an async def looks like a plain function.
        if inspect.isawaitable(result):
            loop = self._running_loop()
            asyncio.run_coroutine_threadsafe(_awaited(result), loop).result()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._has_ended:
                raise RuntimeError("the run has ended: a handler that begins now is not waited for")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run_to_its_end, args=(self._loop,), name="timewheel-handlers", daemon=True
                )
                self._thread.start()
            return self._loop


def _run_to_its_end(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


async def _awaited(result: Awaitable[Any]) -> None:
    await result


async def _cancel_others_and_stop() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    asyncio.get_running_loop().stop()


@dataclass(eq=False)
class Run:
    """A call of `DelayedConsumer.run`; ``taken`` is None for a timer whose handler must not begin."""

    receiver: Receiver
    taken: Callable[[InFlight], DelayedMessage | None]
    middlewares: MiddlewareChain | None
    outcomes: Outcomes
    clock: Clock
    hooks: Hooks
    is_stopping: Callable[[], bool]
    stop: Callable[[], None]
    fatal: BaseException | None = None

    def until_stopped(self, handler: Handler, workers: int, drain_ms: int) -> None:
        """Handle timers until the run shall end; then wait for the handlers that have begun."""
        with HandlerCalls(handler, self.clock) as call:
            calls = call if self.middlewares is None else partial(self.middlewares, call)
            pool: Workers[InFlight] = Workers(workers, lambda timer: self._handle(calls, timer), self.clock)
            try:
                self._feed(pool)
            finally:
                for timer in pool.drain(drain_ms):
                    self.outcomes.given_back(timer)
                if pool.running:
                    self.hooks.emit(HandlersLeftBehind(handlers=pool.running))
        if self.fatal is not None:
            raise self.fatal

    def _feed(self, pool: Workers[InFlight]) -> None:
        while not self.is_stopping():
            timer = self.receiver.next(SLICE_MS)
            if timer is not None and not self._put(pool, timer):
                self.outcomes.given_back(timer)

    def _put(self, pool: Workers[InFlight], timer: InFlight) -> bool:
        key = key_of(timer.arrival.message)
        while not self.is_stopping():
            if pool.put(timer, key, LOOK_MS):
                return True
            self.receiver.look()
        return False

    def _handle(self, call: Callable[[DelayedMessage], None], timer: InFlight) -> None:
        try:
            message = self.taken(timer)
            if message is None:
                return
            try:
                call(message)
            except Exception as error:  # noqa: BLE001 - after any error of a handler, its timer is delivered again
                self.outcomes.raised(timer, message, error)
            else:
                self.outcomes.returned(timer)
        except BaseException as error:  # noqa: BLE001 - raised again by `until_stopped`
            # sys.exit() in a handler means the process, and an error around the handler would end this worker alone:
            # `run` ends with it, on the thread that called it.
            self.fatal = self.fatal or error
            self.stop()
            self.outcomes.given_back(timer)


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
            left_ms = None if deadline_ms is None else max(deadline_ms - self._clock.monotonic_ms(), 0)
            timer = self._receiver.next(SLICE_MS if left_ms is None else min(left_ms, SLICE_MS), left_ms)
            if timer is not None and (message := self._taken(timer)) is not None:
                return message
            if timeout_ms is not None and left_ms == 0:
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

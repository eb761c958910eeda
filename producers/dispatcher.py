"""What lets many threads share a blocking producer: limit of pending sends, common handover, thread of callbacks."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from timewheel.client.hooks import Hooks
from timewheel.client.producer_pool import CLOSED
from timewheel.core.clock import Clock
from timewheel.core.errors import ClientMisuse
from timewheel.events import ProducerDispatcherFailed

from .base_producer import Batch, Send
from .runs import TOGETHER, Runs


class InFlightLimiter:
    """Admits at most ``limit`` sends, from any number of threads.

    A thread that finds it full waits until half of it is free, and newcomers wait behind it: a single wake-up for
    many sends instead of a wake-up for each.
    """

    def __init__(self, limit: int, may_wait: Callable[[], bool]) -> None:
        self._limit = limit
        self._low_mark = limit // 2
        self._may_wait = may_wait
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self.stored = 0  # count of stored sends; grows only
        self._inside = 0
        self._waiters = 0
        self._drainers = 0
        self._closed = False
        self._batch = Batch()
        self._draining: list[Batch] = []

    @property
    def inside(self) -> int:
        """Number of pending sends."""
        return self._inside

    def enter(self, send: Send) -> None:
        """Wait for room, and take it."""
        with self._lock:
            if self._waiters or self._closed or self._inside >= self._limit:
                self._wait_for_room()
            self._inside += 1
            send.batch = batch = self._batch
            batch.inside += 1

    def leave(self, *sends: Send, stored: int = 0) -> None:
        """Free the room of sends with known outcomes, as many of them stored. A second call for a send does nothing."""
        with self._lock:
            self.stored += stored
            emptied = False
            for send in sends:
                batch = send.batch
                if batch is not None:
                    send.batch = None
                    self._inside -= 1
                    batch.inside -= 1
                    emptied = emptied or not batch.inside
            if (self._waiters and self._inside <= self._low_mark) or (self._drainers and emptied):
                self._changed.notify_all()

    def close(self) -> None:
        """Refuse all sends from now on, including those that wait for room."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    def drain(self, clock: Clock, timeout_ms: int | None = None) -> bool:
        """Wait until every pending send has left, but for later ones; False: the time passed before."""
        deadline_ms = None if timeout_ms is None else clock.monotonic_ms() + timeout_ms
        with self._lock:
            if self._batch.inside:
                self._draining.append(self._batch)
                self._batch = Batch()
            batches = self._draining = [batch for batch in self._draining if batch.inside]
            self._drainers += 1
            try:
                while any(batch.inside for batch in batches):
                    if deadline_ms is None:
                        self._changed.wait()
                        continue
                    remaining_ms = deadline_ms - clock.monotonic_ms()
                    if remaining_ms <= 0:
                        return False
                    clock.wait(self._changed, remaining_ms)
            finally:
                self._drainers -= 1
        return True

    def _wait_for_room(self) -> None:
        if not self._closed and self._may_wait():
            self._waiters += 1
            try:
                self._changed.wait_for(lambda: self._closed or self._inside <= self._low_mark)
            finally:
                self._waiters -= 1
        if self._closed:
            raise ClientMisuse(CLOSED)


BUSY_FROM = 64
"""Sends with the client from which on further messages wait for each other. With fewer, each is handed over at once."""
MAX_WAIT_MS = 5
"""Longest wait of a message for other messages while the broker answers: a slow stream of sends over a slow broker."""


class HandoffQueue:
    """Hands messages over to the client together, while the client is busy. Thread-safe.

    Every call into the client releases Python's interpreter lock, and while sends are pending the client's own thread
    waits for that lock to report results. If messages are prepared and handed over individually, the lock changes hands
    twice per message, which costs more than the rest of a send in Python. If messages are handed over together, the
    lock changes hands a few times for many messages. Those of one producer are a run (`timewheel.producers.runs`), and
    one thread at a time hands over, so that nothing comes between the messages of a run.

    No message is ever stuck: `put` keeps a message back only while `BUSY_FROM` sends are with the client, and the
    thread that ends them calls `some_ended`.
    """

    def __init__(
        self, runs: Runs, under_way: Callable[[], int], refused: Callable[[Send, Exception], None], clock: Clock
    ) -> None:
        self._runs = runs
        self._under_way = under_way
        self._refused = refused
        self._monotonic_ms = clock.monotonic_ms  # bound once: called for every few messages
        self._ready: deque[Send] = deque()
        self._handing_over = threading.Lock()
        self._since_ms = 0

    def put(self, send: Send) -> None:
        """Hand a message over soon: together with others if the client is busy, otherwise now."""
        if not self._ready:
            self._since_ms = self._monotonic_ms()
        self._ready.append(send)
        # In this order: sends that end after the check find every message that was put before it.
        if len(self._ready) >= TOGETHER or not self._is_busy():
            self.hand_over()

    def put_urgent(self, send: Send) -> None:
        """Hand a message over now, behind those that are ready."""
        self._ready.append(send)
        self.hand_over()

    def some_ended(self) -> None:
        """Hand over ready messages, unless more sends will end, and soon. Call this after sends have ended."""
        if self._ready and (not self._is_busy() or self._monotonic_ms() - self._since_ms > MAX_WAIT_MS):
            self.hand_over()

    def _is_busy(self) -> bool:
        return self._under_way() - len(self._ready) >= BUSY_FROM

    def hand_over(self) -> None:
        """Hand over all ready messages, in the order in which they were put.

        A single thread does it at a time, else a thread could overtake another between taking a message and handing it
        over. A second thread leaves at once: the first thread checks for new messages before it ends.
        """
        while self._ready and self._handing_over.acquire(blocking=False):
            try:
                self._hand_over_ready()
            finally:
                self._handing_over.release()

    def _hand_over_ready(self) -> None:
        ready = self._ready
        while ready:
            together = [ready.popleft() for _ in range(min(len(ready), TOGETHER))]
            try:
                for run in self._runs.of(together):
                    self._hand_over_run(run)
            except BaseException:
                # Interrupted, perhaps after the handover: twice under one timer id is safe, never is not.
                ready.extendleft(reversed(together))
                raise

    def _hand_over_run(self, run: list[Send]) -> None:
        *earlier, last = run
        last.run = earlier
        is_heard = not self._runs.is_batched(last)
        for send in run:
            try:
                if send is last:
                    send.start()
                else:
                    send.start_in_run(is_heard=is_heard or send is earlier[0])
            except Exception as error:  # noqa: BLE001 - the client has errors of its own; the sender gets them
                self._refused(send, error)


T = TypeVar("T")

LINGER_MS = 3
"""Pause between two reads of a busy queue: it fills meanwhile, instead of waking this thread for each item."""
MAX_AT_ONCE = 256  # items handled together: work that is done once for all of them waits for the slowest
BUSY_MS = 6  # time within which two non-empty reads of a queue make it busy


class Dispatcher(Generic[T]):
    """Passes queued items to ``handle``, in order, on a thread of its own, which also calls ``housekeeping`` regularly.

    A Python callback that raises on the client's own thread ends the process, and a slow callback there stops every
    send of the client. So the client's thread only puts finished sends on a queue, and this thread does the rest.
    """

    def __init__(
        self,
        handle: Callable[[list[T]], None],
        housekeeping: Callable[[], None],
        housekeeping_ms: int,
        clock: Clock,
        hooks: Hooks,
    ) -> None:
        self._handle = handle
        self._housekeeping = housekeeping
        self._housekeeping_ms = housekeeping_ms
        self._clock = clock
        self._hooks = hooks
        self._queue: SimpleQueue[T | None] = SimpleQueue()
        self._hurry: SimpleQueue[None] = SimpleQueue()
        self.put: Callable[[T], None] = self._queue.put  # queue an item; never blocks, never raises
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="timewheel-producer", daemon=True)

    def put_urgent(self, item: T) -> None:
        """Queue an item for which a caller waits; never blocks, never raises."""
        self._queue.put(item)
        self._hurry.put(None)

    def start(self) -> None:
        """Start the thread; call this once."""
        self._thread.start()

    def is_current_thread(self) -> bool:
        """Return whether the caller runs on this dispatcher's thread, inside a user's callback for instance."""
        return threading.current_thread() is self._thread

    def stop(self, timeout_ms: int) -> bool:
        """Handle the queued items, then end the thread; False: it still runs, and ends after the last item."""
        self._stopping = True
        self._queue.put(None)
        self._hurry.put(None)
        return self._clock.join(self._thread, timeout_ms)

    def _run(self) -> None:
        clock = self._clock
        before_ms = clock.monotonic_ms()
        next_round_ms = before_ms + self._housekeeping_ms
        while True:
            self._forget_hurry()
            self._handle_all(clock.idle_ms(None, next_round_ms - before_ms))
            if self._stopping and self._queue.empty():
                return
            now_ms = clock.monotonic_ms()
            if now_ms >= next_round_ms:
                self._guarded(self._housekeeping)
                next_round_ms = now_ms + self._housekeeping_ms
            if now_ms - before_ms < BUSY_MS:
                with suppress(Empty):
                    clock.get(self._hurry, LINGER_MS)
            before_ms = now_ms

    def _handle_all(self, timeout_ms: int) -> None:
        """Wait for the first item, then handle all queued items."""
        items: list[T] = []
        with suppress(Empty):
            item = self._clock.get(self._queue, timeout_ms)
            while True:
                if item is not None:
                    items.append(item)
                if len(items) >= MAX_AT_ONCE:
                    break
                item = self._queue.get_nowait()
        if items:
            self._guarded(self._handle, items)

    def _forget_hurry(self) -> None:
        # Urgent items are queued before their hurry mark, so the next read of the queue finds them.
        with suppress(Empty):
            while True:
                self._hurry.get_nowait()

    def _guarded(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            function(*arguments)
        except Exception as error:  # noqa: BLE001 - one failure must not end the thread that finishes all sends
            self._hooks.emit(ProducerDispatcherFailed(error=repr(error)))

"""Worker threads that keep a key on one worker.

Each worker has a queue of its own for keyed items; items without a key share a queue that all workers take from, so
that they never wait behind a slow key.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from timewheel.core.clock import Clock, wait_until

T = TypeVar("T")

QUEUED_PER_WORKER = 4
"""Items that wait per worker: enough to keep it busy, few enough that a stop need not wait for them."""
KEYED_PER_WORKER = 256
"""Items with a key that wait for the only worker that may take them. The number is larger, since their producer has
other items too: a hot key, or a handler that is slow for one key, must not leave the other workers idle. A stop
gives back those beyond `QUEUED_PER_WORKER`.
"""


class Workers(Generic[T]):
    """Runs ``work(item)`` on its threads.

    Args:
        count: Number of threads.
        work: Must not raise.
        clock: Waits.
        name: Prefix of the threads' names.
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
        """Queue an item.

        Args:
            item: The argument for `work`.
            key: Items with the same key go to the same worker, in order; items with an empty key go to any worker.
            timeout_ms: Time to wait for room.

        Returns:
            False if there was no room in time; the item was not taken.
        """
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
        """Take no new items, wait for items that are running or next in line, and end the threads.

        Returns:
            The items that were not begun, in order of arrival; threads that are still running after ``timeout_ms`` are
            left behind.
        """
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

"""Timers that a consumer holds until they are due: a bounded structure ordered by time, without clock or threads."""

from __future__ import annotations

import heapq
from collections.abc import Iterator


class LocalWheel:
    """Keys, each with its wake-up time.

    A heap, not hashed buckets: the hold is short and exact to the millisecond, so a bucket per tick would have to be
    sorted again.

    Args:
        capacity: Maximum number of keys; exceeding it is the caller's fault, since every hold must be bounded
            (broker-facts: bounded-local-hold).
    """

    __slots__ = ("_heap", "_live", "_sequence", "capacity")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._heap: list[tuple[int, int, str]] = []
        # key -> sequence number of its entry in the heap; an entry with another number is dead.
        self._live: dict[str, int] = {}
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, key: object) -> bool:
        return key in self._live

    def push(self, key: str, wake_ms: int) -> None:
        """Hold a key until ``wake_ms`` (UTC milliseconds); a key that is already held is moved.

        Raises:
            OverflowError: The wheel is full.
        """
        if key not in self._live and len(self._live) >= self.capacity:
            raise OverflowError(f"the local wheel holds {self.capacity} timers and is full")
        self._sequence += 1
        self._live[key] = self._sequence
        heapq.heappush(self._heap, (wake_ms, self._sequence, key))
        # Dead entries never outnumber live ones by more than the live ones, so memory is bounded too.
        if len(self._heap) > 2 * len(self._live) + 64:
            self._heap = [entry for entry in self._heap if self._live.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def discard(self, key: str) -> bool:
        """Forget a key; False if it is not held."""
        return self._live.pop(key, None) is not None

    def next_wake_ms(self) -> int | None:
        """Return the wake-up time of the first key; None when empty."""
        self._drop_dead()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> Iterator[str]:
        """Remove and yield every key whose time has come, the earliest first, equal times in order of arrival."""
        while True:
            self._drop_dead()
            if not self._heap or self._heap[0][0] > now_ms:
                return
            key = heapq.heappop(self._heap)[2]
            del self._live[key]
            yield key

    def pop_all(self) -> tuple[str, ...]:
        """Remove and return all keys, in order."""
        keys = tuple(entry[2] for entry in sorted(self._heap) if self._live.get(entry[2]) == entry[1])
        self._heap.clear()
        self._live.clear()
        return keys

    def _drop_dead(self) -> None:
        heap, live = self._heap, self._live
        while heap and live.get(heap[0][2]) != heap[0][1]:
            heapq.heappop(heap)

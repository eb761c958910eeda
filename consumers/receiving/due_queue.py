"""Timers that may be handed out, the earliest due time in front."""

from __future__ import annotations

import heapq
from itertools import count

from timewheel.consumers.in_flight import InFlight


class DueQueue:
    """Ordered by due time, equal due times in order of arrival; a message without a due time comes first."""

    __slots__ = ("_heap", "_numbers")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, InFlight]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, timer: InFlight) -> None:
        """Add a timer."""
        heapq.heappush(self._heap, (timer.due_ms, next(self._numbers), timer))

    def first(self) -> InFlight:
        """Return the first timer without removing it; the queue must not be empty."""
        return self._heap[0][2]

    def pop(self) -> InFlight:
        """Remove and return the first timer; the queue must not be empty."""
        return heapq.heappop(self._heap)[2]

    def late_ms(self, now_ms: int) -> int:
        """Return how late the first timer is; 0 if the queue is empty, or its first message has no due time."""
        return now_ms - self._heap[0][0] if self._heap and self._heap[0][0] else 0

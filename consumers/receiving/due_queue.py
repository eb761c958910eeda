"""Timers that may be handed out, the one that was due first in front."""

from __future__ import annotations

import heapq
from itertools import count

from timewheel.consumers.in_hand import InHand

__all__ = ["DueQueue"]


class DueQueue:
    """Ordered by due time, equal ones as they came; a message without a due time comes first."""

    __slots__ = ("_heap", "_numbers")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, InHand]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, timer: InHand) -> None:
        """Add one."""
        heapq.heappush(self._heap, (timer.due_ms, next(self._numbers), timer))

    def first(self) -> InHand:
        """The first, which stays; there is one."""
        return self._heap[0][2]

    def pop(self) -> InHand:
        """Take the first; there is one."""
        return heapq.heappop(self._heap)[2]

    def late_ms(self, now_ms: int) -> int:
        """How late the first one is; 0 if there is none, or it says no due time."""
        return now_ms - self._heap[0][0] if self._heap and self._heap[0][0] else 0

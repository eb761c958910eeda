"""How late timers are handed over: a histogram with fixed bounds, kept on request."""

from __future__ import annotations

import threading
from bisect import bisect_left
from typing import NamedTuple

BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000, 3_600_000)
"""Upper bounds, inclusive. Fine where timers usually are, a few milliseconds late; coarse for outages."""


class LatenessCounts(NamedTuple):
    """The counts of a histogram.

    Args:
        counts: Timers by bound, not cumulative; the last count is that of timers beyond all bounds.
        sum_ms: Sum of all lateness, in milliseconds.
    """

    counts: tuple[int, ...]
    sum_ms: int


class Lateness:
    """Counts how long after its due time each timer was handed over. Safe from several threads."""

    __slots__ = ("_counts", "_lock", "_sum_ms")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_MS) + 1)
        self._sum_ms = 0
        self._lock = threading.Lock()

    def add(self, late_ms: int) -> None:
        """Count a timer; a negative lateness counts as 0."""
        late_ms = max(late_ms, 0)
        number = bisect_left(BOUNDS_MS, late_ms)
        with self._lock:
            self._counts[number] += 1
            self._sum_ms += late_ms

    def counted(self) -> LatenessCounts:
        """Return all counts so far."""
        with self._lock:
            return LatenessCounts(tuple(self._counts), self._sum_ms)

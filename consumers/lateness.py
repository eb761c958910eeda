"""How late timers were handed over: a histogram with fixed bounds, for whoever asks a consumer to keep one."""

from __future__ import annotations

import threading
from bisect import bisect_left
from typing import NamedTuple

__all__ = ["BOUNDS_MS", "Lateness", "LatenessCounts"]

BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000, 3_600_000)
"""Upper bounds, inclusive. Fine where a timer is usually late, a few milliseconds; coarse for outages."""


class LatenessCounts(NamedTuple):
    """What a histogram has counted.

    Args:
        counts: Timers by bound, each for itself; the last one is of those beyond all bounds.
        sum_ms: Of all lateness, in milliseconds.
    """

    counts: tuple[int, ...]
    sum_ms: int


class Lateness:
    """Counts how much after its due time each timer was handed over. Safe from several threads."""

    __slots__ = ("_counts", "_lock", "_sum_ms")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_MS) + 1)
        self._sum_ms = 0
        self._lock = threading.Lock()

    def add(self, late_ms: int) -> None:
        """One timer; none is ever early."""
        late_ms = max(late_ms, 0)
        number = bisect_left(BOUNDS_MS, late_ms)
        with self._lock:
            self._counts[number] += 1
            self._sum_ms += late_ms

    def counted(self) -> LatenessCounts:
        """All so far."""
        with self._lock:
            return LatenessCounts(tuple(self._counts), self._sum_ms)

"""A grid of moments at which gaps are counted, with the spans between them.

A count at a moment of the grid is exact. Between two moments a count only has a bound: the count at the earlier moment
plus the ranges that begin in the span. If that bound is above the greatest count found so far, a finer grid of only
these spans decides (`Grid.refined`); times are whole milliseconds, so the refinement ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["MAX_POINTS", "NEVER_MS", "Grid"]

Integers = NDArray[np.int64]

NEVER_MS = 2**60
"""Time for "not acknowledged": after every moment of every grid."""
DEFAULT_POINTS = 4_096
MAX_POINTS = 65_536
"""Most moments of a grid: the counts of a due partition stay within half a megabyte."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """Distinct moments, ascending.

    Args:
        points_ms: The moments, UTC milliseconds; at least one.
        step_ms: Distance of the moments of a regular grid, which makes lookups fast; 0: irregular.
        spans: For each moment, whether the span since the previous moment belongs to the grid: it is longer than a
            millisecond, and no earlier grid has settled it. The first moment has no span.
    """

    points_ms: Integers
    step_ms: int = 0
    spans: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))

    @classmethod
    def regular(cls, first_ms: int, last_ms: int, points: int = DEFAULT_POINTS) -> Grid:
        """Create about ``points`` equidistant moments, the first at ``first_ms``, the last not before ``last_ms``."""
        if not 2 <= points <= MAX_POINTS:
            raise ValueError(f"points is {points}: a grid has 2 to {MAX_POINTS}")
        if last_ms < first_ms:
            raise ValueError(f"a grid cannot end at {last_ms} ms, before its start at {first_ms} ms")
        step_ms = max(1, -(-(last_ms - first_ms) // (points - 1)))
        count = -(-(last_ms - first_ms) // step_ms) + 1
        return cls._of(first_ms + step_ms * np.arange(count, dtype=np.int64), step_ms=step_ms)

    @classmethod
    def at(cls, moments_ms: Integers) -> Grid:
        """Create a grid of exactly these moments, in any order."""
        return cls._of(np.unique(np.asarray(moments_ms, np.int64)))

    @classmethod
    def _of(cls, points_ms: Integers, step_ms: int = 0) -> Grid:
        spans = np.zeros(len(points_ms), np.bool_)
        spans[1:] = np.diff(points_ms) > 1
        return cls(points_ms=points_ms, step_ms=step_ms, spans=spans)

    def __len__(self) -> int:
        return len(self.points_ms)

    def index_of(self, times_ms: Integers) -> Integers:
        """Return for each time the first moment of the grid at or after the time; ``len(grid)``: there is none."""
        if not self.step_ms:
            found: Integers = np.searchsorted(self.points_ms, times_ms, side="left").astype(np.int64, copy=False)
            return found
        rounded_up = (times_ms - (int(self.points_ms[0]) - self.step_ms + 1)) // self.step_ms
        return np.clip(rounded_up, 0, len(self.points_ms), out=rounded_up)

    def refined(self, spans: NDArray[np.bool_], points: int = MAX_POINTS) -> Grid | None:
        """Create a grid of the wanted spans only, each divided into equal parts.

        Args:
            spans: For each moment, whether the span since the previous moment is wanted; within ``self.spans``.
            points: The most moments of the new grid; each wanted span is halved in any case.

        Returns:
            None if no span can be divided.
        """
        wanted = np.flatnonzero(spans & self.spans)
        if not len(wanted):
            return None
        lows_ms, highs_ms = self.points_ms[wanted - 1], self.points_ms[wanted]
        parts = max(2, points // len(wanted) - 1)
        steps_ms = np.maximum(1, -(-(highs_ms - lows_ms) // parts))
        counts = -(-(highs_ms - lows_ms) // steps_ms) + 1
        begins = np.cumsum(counts) - counts
        offsets = np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(begins, counts)
        points_ms = np.minimum(
            np.repeat(lows_ms, counts) + offsets * np.repeat(steps_ms, counts), np.repeat(highs_ms, counts)
        )
        # The moment between two neighbouring spans occurs twice; its first occurrence has the span before it.
        once = np.ones(len(points_ms), np.bool_)
        once[1:] = points_ms[1:] != points_ms[:-1]
        points_ms, is_inside = points_ms[once], (offsets > 0)[once]
        is_inside[1:] &= np.diff(points_ms) > 1
        return Grid(points_ms=points_ms, spans=is_inside)

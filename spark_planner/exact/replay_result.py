"""Result of an exact replay: gap ranges over time, for each partition of each due topic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from timewheel.spark_planner.exact.grid import Grid
from timewheel.spark_planner.exact.ranges import Changes

__all__ = ["DuePartition", "GapCounts", "PartitionGaps", "Peak", "peak_of"]

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class DuePartition:
    """A partition of a due topic.

    Args:
        topic: The history's topic; empty: the history has no topics.
        interval: Number of the calendar interval, counted from 1970; 0 for a single due topic.
        partition: Partition number, from 0.
    """

    topic: str
    interval: int
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The most gap ranges over time.

    Args:
        gap_count: The highest count at a moment of the grid.
        gap_count_limit: Upper bound of the count between two moments; equal to ``gap_count``: the peak is exact.
        at_ms: The first moment with ``gap_count``, UTC milliseconds.
    """

    gap_count: int
    gap_count_limit: int
    at_ms: int

    @property
    def is_exact(self) -> bool:
        """True if no span between two moments of the grid can have a higher count."""
        return self.gap_count == self.gap_count_limit


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartitionGaps:
    """Entries and gaps of a partition.

    Args:
        due: The partition.
        entries: Entries that arrived in the partition.
        changes: Changes along the grid of the `GapCounts`.
    """

    due: DuePartition
    entries: int
    changes: Changes


@dataclass(frozen=True, kw_only=True, eq=False)
class GapCounts:
    """Exact gap counts at each moment of a grid.

    Args:
        grid: The moments.
        partitions: Every partition with entries, in order.
    """

    grid: Grid
    partitions: tuple[PartitionGaps, ...]

    @property
    def entries(self) -> int:
        """Entries of all partitions."""
        return sum(found.entries for found in self.partitions)

    def of(self, due: DuePartition) -> Integers:
        """Return the gap ranges of a partition at each moment of the grid; zeros for a partition without entries."""
        own = next((found.changes for found in self.partitions if found.due == due), Changes.none())
        return own.counts(len(self.grid))

    @cached_property
    def total(self) -> Integers:
        """Gap ranges of all partitions together at each moment of the grid, as drawn by the demo."""
        return self._all.counts(len(self.grid))

    @cached_property
    def peak_of_total(self) -> Peak:
        """The most gap ranges of all partitions together at one moment."""
        return peak_of(self.grid, [self._all])

    @cached_property
    def peak_per_partition(self) -> Peak:
        """The most gap ranges of any partition, to which the broker's limit applies."""
        return peak_of(self.grid, [found.changes for found in self.partitions])

    @property
    def is_exact(self) -> bool:
        """True if both peaks are exact."""
        return self.peak_of_total.is_exact and self.peak_per_partition.is_exact

    def open_spans(self, *, least_total: int = 0, least_partition: int = 0) -> NDArray[np.bool_]:
        """Return for each moment whether the span since the previous moment may contain a peak.

        Args:
            least_total: A count of all partitions together that was reached on another grid.
            least_partition: A count of a single partition that was reached on another grid.
        """
        points = len(self.grid)
        found = self._all.bounds(points) > max(least_total, self.peak_of_total.gap_count)
        least = max(least_partition, self.peak_per_partition.gap_count)
        for partition in self.partitions:
            found |= partition.changes.bounds(points) > least
        return found & self.grid.spans

    def above(self, gap_count: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return two masks of spans, each span ending at its moment: those in which any partition may have had more
        gaps than ``gap_count``, and those in which a partition had more at both ends.
        """
        points = len(self.grid)
        may, does = np.zeros(points, np.bool_), np.zeros(points, np.bool_)
        for partition in self.partitions:
            may |= partition.changes.bounds(points) > gap_count
            more = partition.changes.counts(points) > gap_count
            does[1:] |= more[1:] & more[:-1]
        return may & self.grid.spans, does & self.grid.spans

    def above_ms(self, gap_count: int) -> int:
        """Return an upper bound of the time in which any partition had more gaps, to the resolution of the spans."""
        may, _ = self.above(gap_count)
        return int(np.diff(self.grid.points_ms, prepend=self.grid.points_ms[0])[may].sum())

    def mostly(self, share: float) -> int:
        """Return the most gaps of any partition for this share of the grid's moments."""
        points = len(self.grid)
        return max(
            (int(np.quantile(one.changes.counts(points), share, method="higher")) for one in self.partitions),
            default=0,
        )

    @cached_property
    def _all(self) -> Changes:
        return Changes.summed(found.changes for found in self.partitions)


def peak_of(grid: Grid, several: Sequence[Changes]) -> Peak:
    """Return the greatest count, and the greatest bound of a span of the grid, over several changes."""
    peak, limit, at = 0, 0, 0
    for changes in several:
        counts = changes.counts(len(grid))
        highest = int(np.argmax(counts))
        if counts[highest] > peak:
            peak, at = int(counts[highest]), highest
        limit = max(limit, int(changes.bounds(len(grid))[grid.spans].max(initial=0)))
    return Peak(gap_count=peak, gap_count_limit=max(peak, limit), at_ms=int(grid.points_ms[at]))

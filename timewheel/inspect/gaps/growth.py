"""Growth of a subscription's gaps over several looks, and the time until they reach the limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from timewheel.core.durations import HOUR_MS, MINUTE_MS
from timewheel.core.slope import LEAST_POINTS, slope_of

LEAST_SPAN_MS = MINUTE_MS
"""From the first snapshot to the last: ticks of brokers and batches of consumers change the gaps within seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GapGrowth:
    """Growth of the gaps of the worst partition.

    Args:
        per_hour: Gaps per hour; 0 if no growth was found.
        gap_count: Gaps at the last snapshot.
        gap_limit: The broker's limit.
        snapshots: Number of snapshots.
        span_ms: Time from the first snapshot to the last.
    """

    per_hour: float
    gap_count: int
    gap_limit: int
    snapshots: int
    span_ms: int

    @property
    def hours_to_limit(self) -> float | None:
        """Hours until the gaps reach the limit at this growth; None if never, 0 at or beyond the limit."""
        if self.gap_count >= self.gap_limit:
            return 0.0
        return (self.gap_limit - self.gap_count) / self.per_hour if self.per_hour > 0 else None


def growth_of(snapshots: Sequence[tuple[int, int]], gap_limit: int) -> GapGrowth | None:
    """Fit a line through the gaps of several looks.

    Args:
        snapshots: (UTC milliseconds, gaps of the worst partition), in order of time.
        gap_limit: The broker's limit.

    Returns:
        The growth; None if the snapshots are too few or too close together.
    """
    if len(snapshots) < LEAST_POINTS or snapshots[-1][0] - snapshots[0][0] < LEAST_SPAN_MS:
        return None
    hours = [(at_ms - snapshots[0][0]) / HOUR_MS for at_ms, _ in snapshots]
    slope = slope_of(hours, [float(gaps) for _, gaps in snapshots])
    return GapGrowth(
        per_hour=slope.value if slope.is_up else 0.0,
        gap_count=snapshots[-1][1],
        gap_limit=gap_limit,
        snapshots=len(snapshots),
        span_ms=snapshots[-1][0] - snapshots[0][0],
    )

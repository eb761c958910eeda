"""Growth of a subscription's gaps over several looks, and when it brings them to the limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from timewheel.core.durations import HOUR_MS, MINUTE_MS
from timewheel.core.slope import LEAST_POINTS, slope_of

__all__ = ["LEAST_SPAN_MS", "GapGrowth", "growth_of"]

LEAST_SPAN_MS = MINUTE_MS
"""From the first look to the last: a broker's ticks and consumers' batches make gaps go up and down within seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GapGrowth:
    """How fast the gaps of the worst partition grow.

    Args:
        per_hour: Gaps; 0: not, as far as can be told.
        gap_count: At the last look.
        gap_limit: The broker's.
        looks: How many it is from.
        span_ms: From the first to the last of them.
    """

    per_hour: float
    gap_count: int
    gap_limit: int
    looks: int
    span_ms: int

    @property
    def hours_to_limit(self) -> float | None:
        """Until the gaps are as many as the limit, if it goes on like this; None: never. At or beyond it: 0."""
        if self.gap_count >= self.gap_limit:
            return 0.0
        return (self.gap_limit - self.gap_count) / self.per_hour if self.per_hour > 0 else None


def growth_of(looks: Sequence[tuple[int, int]], gap_limit: int) -> GapGrowth | None:
    """Fit a line through the gaps of several looks.

    Args:
        looks: (UTC milliseconds, gaps of the worst partition), in order of time.
        gap_limit: The broker's.

    Returns:
        None: there are too few looks, or they are too close together.
    """
    if len(looks) < LEAST_POINTS or looks[-1][0] - looks[0][0] < LEAST_SPAN_MS:
        return None
    hours = [(at_ms - looks[0][0]) / HOUR_MS for at_ms, _ in looks]
    slope = slope_of(hours, [float(gaps) for _, gaps in looks])
    return GapGrowth(
        per_hour=slope.value if slope.is_up else 0.0,
        gap_count=looks[-1][1],
        gap_limit=gap_limit,
        looks=len(looks),
        span_ms=looks[-1][0] - looks[0][0],
    )

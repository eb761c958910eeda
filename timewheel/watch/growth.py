"""Growth over earlier checks, and the date at which it brings a figure to its limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from timewheel.core.durations import DAY_MS
from timewheel.core.slope import slope_of

__all__ = ["LEAST_CHECKS", "LEAST_SPAN_MS", "LONGEST_WEEKS", "Growth", "growth_of"]

WEEK_MS = 7 * DAY_MS
LEAST_CHECKS = 4
"""Three lie on a line too easily."""
LEAST_SPAN_MS = WEEK_MS
"""From the first check to the last: within a week it is the days of the week that differ."""
LEAST_WEEKLY = 0.002
"""Ten per cent in a year: less is told as no growth."""
LONGEST_WEEKS = 522
"""Ten years: nobody can say of some weeks what a topic will be like after that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How a figure grows.

    Args:
        weekly: In parts of one, compounded; 0: not, as far as can be told.
        weeks: Over which that was seen.
        checks: How many figures it is from.
        at_ms: Of the last of them, UTC milliseconds.
    """

    weekly: float
    weeks: float
    checks: int
    at_ms: int

    def reached_ms(self, times: float) -> int | None:
        """When the figure is so many times what it was last, UTC milliseconds.

        None: never, or not within `LONGEST_WEEKS`. With 1 or less: now.
        """
        if times <= 1:
            return self.at_ms
        if self.weekly <= 0:
            return None
        weeks = math.log(times) / math.log1p(self.weekly)
        return None if weeks > LONGEST_WEEKS else self.at_ms + round(weeks * WEEK_MS)

    def times_after(self, span_ms: int) -> float:
        """How many times the figure is what it was last, so much later."""
        return math.exp(math.log1p(self.weekly) * span_ms / WEEK_MS)


def growth_of(figures: Sequence[tuple[int, float]]) -> Growth | None:
    """Fit a line through the logarithms, by least squares.

    Args:
        figures: (moment in UTC milliseconds, figure); those that are not above 0 are left out.

    Returns:
        None: there are too few, or they are too close together.
    """
    found = sorted((at_ms, math.log(figure)) for at_ms, figure in figures if figure > 0)
    if len(found) < LEAST_CHECKS or found[-1][0] - found[0][0] < LEAST_SPAN_MS:
        return None
    weeks = [(at_ms - found[0][0]) / WEEK_MS for at_ms, _ in found]
    logs = [log for _, log in found]
    slope = slope_of(weeks, logs)
    weekly = math.expm1(slope.value)
    return Growth(
        weekly=weekly if slope.is_up and weekly >= LEAST_WEEKLY else 0.0,
        weeks=weeks[-1],
        checks=len(found),
        at_ms=found[-1][0],
    )

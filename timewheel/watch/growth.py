"""Growth over earlier checks, and the date at which a figure reaches its limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from timewheel.core.durations import DAY_MS
from timewheel.core.slope import slope_of

WEEK_MS = 7 * DAY_MS
LEAST_CHECKS = 4
"""Three checks lie on a line too easily."""
LEAST_SPAN_MS = WEEK_MS
"""From the first check to the last: within a week, the days of the week differ."""
LEAST_WEEKLY = 0.002
"""About ten per cent a year; less counts as no growth."""
LONGEST_WEEKS = 522
"""Ten years: some weeks of checks predict nothing beyond that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Growth of a figure.

    Args:
        weekly: Weekly growth rate, compounded, 0.01 for 1 %; 0 if no growth was found.
        weeks: Length of the observation, in weeks.
        checks: Number of checks behind the estimate.
        at_ms: Time of the last check, UTC milliseconds.
    """

    weekly: float
    weeks: float
    checks: int
    at_ms: int

    def reached_ms(self, times: float) -> int | None:
        """Return when the figure reaches `times` its last value, UTC milliseconds.

        Returns None if the figure never does, or not within `LONGEST_WEEKS`, and `at_ms` if `times` is 1 or less.
        """
        if times <= 1:
            return self.at_ms
        if self.weekly <= 0:
            return None
        weeks = math.log(times) / math.log1p(self.weekly)
        return None if weeks > LONGEST_WEEKS else self.at_ms + round(weeks * WEEK_MS)

    def times_after(self, span_ms: int) -> float:
        """Return the factor on the last value after a span of time."""
        return math.exp(math.log1p(self.weekly) * span_ms / WEEK_MS)


def growth_of(figures: Sequence[tuple[int, float]]) -> Growth | None:
    """Fit a line through the logarithms, by least squares.

    Args:
        figures: (moment in UTC milliseconds, figure); figures of 0 or less are left out.

    Returns:
        The growth; None if the figures are too few or too close together.
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

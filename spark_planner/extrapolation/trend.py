"""Trend: the growth of a history's volume from week to week, and the time at which it reaches a limit."""

from __future__ import annotations

import math
from dataclasses import dataclass

from timewheel.core.durations import DAY_MS
from timewheel.spark_planner.extrapolation.days import WEEK, by_hour, compounded, days_of
from timewheel.spark_planner.summary.cells import Cells

__all__ = ["LEAST_WEEKS", "LONGEST_WEEKS", "Trend", "trend_of"]

LEAST_WEEKS = 3
"""The difference of two weeks may come from an event in either of them."""
LEAST_PAIRS = 4
"""Weekdays that were ordinary in both weeks: fewer do not show the spread of days."""
LONGEST_WEEKS = 522
"""Ten years: some weeks do not show the use of a topic after that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """Growth of a history's volume.

    Args:
        weeks: Full weeks, counted back from the last send.
        first_timers: Timers sent in the first week, on the compared days.
        last_timers: Timers sent in the last week, on the same weekdays.
        weekly_growth: Relative growth per week, compounded; 0: flat, falling or not significant.
        end_ms: End of the last week, UTC milliseconds.
    """

    weeks: int
    first_timers: float
    last_timers: float
    weekly_growth: float
    end_ms: int

    def reached_ms(self, times: float) -> int | None:
        """Return the time at which the volume is ``times`` that of the last week, UTC milliseconds.

        None: the volume does not grow, or not that far within `LONGEST_WEEKS`. With 1 or less: the end of the history.
        """
        if times <= 1:
            return self.end_ms
        if self.weekly_growth <= 0:
            return None
        weeks = math.log(times) / math.log1p(self.weekly_growth)
        return None if weeks > LONGEST_WEEKS else self.end_ms + round(weeks * WEEK * DAY_MS)


def trend_of(cells: Cells) -> Trend | None:
    """Compute the trend of a history's own days: its last full week against its first, weekday by weekday.

    A day with a campaign that happened once is left out, and so is its weekday in the other week. Growth is reported
    only if the two weeks differ by more than their days do among themselves, and by at least a tenth.

    Args:
        cells: Cells of one topic, of the history alone: a continuation only repeats its own days.

    Returns:
        None: the history has fewer than `LEAST_WEEKS` full weeks, or too few ordinary days to compare.
    """
    if not len(cells) or int(cells.publish_max_ms.max()) - int(cells.publish_min_ms.min()) < DAY_MS:
        return None
    days = days_of(cells)
    number = len(days.begins_ms)
    weeks = number // WEEK
    if weeks < LEAST_WEEKS:
        return None
    timers = by_hour(cells, days.end_ms, number).sum(axis=1)
    pairs = [
        (first, first + (weeks - 1) * WEEK)
        for first in range(number - weeks * WEEK, number - (weeks - 1) * WEEK)
        if not {first, first + (weeks - 1) * WEEK} & set(days.campaigns)
    ]
    if len(pairs) < LEAST_PAIRS:
        return None
    first, last = (timers[[pair[side] for pair in pairs]] for side in (0, 1))
    return Trend(
        weeks=weeks,
        first_timers=float(first.sum()),
        last_timers=float(last.sum()),
        weekly_growth=max(compounded(first, last, weeks - 1), 0.0),
        end_ms=days.end_ms,
    )

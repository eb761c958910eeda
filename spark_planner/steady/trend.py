"""Trend: how a history's volume grows from week to week, and when that brings it to a limit."""

from __future__ import annotations

import math
from dataclasses import dataclass

from timewheel.core.durations import DAY_MS
from timewheel.spark_planner.steady.days import WEEK, by_hour, compounded, days_of
from timewheel.spark_planner.summary.cells import Cells

__all__ = ["LEAST_WEEKS", "LONGEST_WEEKS", "Trend", "trend_of"]

LEAST_WEEKS = 3
"""Two weeks differ by whatever happened in one of them."""
LEAST_PAIRS = 4
"""Days of the week that were ordinary in both weeks: of fewer nobody can say how far apart days are."""
LONGEST_WEEKS = 522
"""Ten years: nobody can say of some weeks what a topic will be like after that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """How a history's volume grows.

    Args:
        weeks: Full weeks that there are, counted back from the last send.
        first_timers: Sent in the first of them, on the days that were compared.
        last_timers: Sent in the last of them, on the same days of the week.
        weekly_growth: In parts of one, compounded; 0: flat or falling, as far as can be told.
        end_ms: When the last week ends, UTC milliseconds.
    """

    weeks: int
    first_timers: float
    last_timers: float
    weekly_growth: float
    end_ms: int

    def reached_ms(self, times: float) -> int | None:
        """When the volume is so many times that of the last week, UTC milliseconds.

        None: it does not grow, or not that far within `LONGEST_WEEKS`. With 1 or less: at the end of the history.
        """
        if times <= 1:
            return self.end_ms
        if self.weekly_growth <= 0:
            return None
        weeks = math.log(times) / math.log1p(self.weekly_growth)
        return None if weeks > LONGEST_WEEKS else self.end_ms + round(weeks * WEEK * DAY_MS)


def trend_of(cells: Cells) -> Trend | None:
    """The trend of a history's own days: its last full week against its first, day of the week by day of the week.

    A day with a campaign that came once is left out, and its weekday in the other week too. Growth is told only where
    the two weeks differ by more than their days do among themselves, and by a tenth at least.

    Args:
        cells: Of one topic, of the history alone: what it was continued by are its own days again.

    Returns:
        None: the history has fewer than `LEAST_WEEKS` full weeks, or hardly an ordinary day to compare.
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

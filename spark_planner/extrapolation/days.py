"""Days: the whole days of a history, and the days that may be drawn to continue it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.spark_planner.summary.cells import Cells

__all__ = ["WEEK", "Days", "by_hour", "compounded", "days_of"]

Integers = NDArray[np.int64]

WEEK = 7
WEEKS_BY_WEEKDAY = 3
"""From this many weeks on, a day is compared with the same weekdays: an event of every Monday is no exception."""
LEAST_DAYS_FOR_CAMPAIGNS = 4
"""Fewer days do not show an ordinary day."""
CAMPAIGN_TIMES = 4.0
"""Ratio to the same hour of the other days."""
CAMPAIGN_SHARE = 0.2
"""Share of an ordinary day's timers; a smaller excess is ignored."""
MAX_CAMPAIGN_DAYS = 0.25
"""Share of the days; if there are more, campaigns are the topic's normal use."""
TREND_ROOTS = 3.0
"""Least difference of a week from the first, in its standard errors over the days of the week."""
LEAST_TREND = 0.1
"""Least difference of a week from the first, as a share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Days:
    """Whole days of a history, of 24 hours each, counted back from its last send.

    Args:
        begins_ms: Beginning of each day, ascending, UTC milliseconds.
        drawn: Days that may be repeated: indexes into ``begins_ms``.
        campaigns: Days that are not repeated, because of a campaign that happened once.
        weekly_growth: Relative growth of the volume per week; 0: no significant growth.
    """

    begins_ms: tuple[int, ...]
    drawn: tuple[int, ...]
    campaigns: tuple[int, ...]
    weekly_growth: float

    @property
    def end_ms(self) -> int:
        """End of the last day."""
        return self.begins_ms[-1] + DAY_MS

    @property
    def by_weekday(self) -> bool:
        """True if there are enough days to draw a Monday for a Monday, with every weekday among them."""
        return len(self.drawn) >= WEEKS_BY_WEEKDAY * WEEK and len({day % WEEK for day in self.drawn}) == WEEK


def days_of(cells: Cells) -> Days:
    """Return the days of a history that has at least a day.

    Args:
        cells: Cells of one topic.
    """
    end_ms = int(cells.publish_max_ms.max()) + 1
    # The first day may lack up to an hour: the first and last sends of a week are somewhere within it.
    number = max((end_ms - int(cells.publish_min_ms.min()) + HOUR_MS) // DAY_MS, 1)
    begins_ms = end_ms - DAY_MS * np.arange(number, 0, -1)
    hours = by_hour(cells, end_ms, number)
    campaigns = _campaigns(hours) if cells.slot_ms <= HOUR_MS else []
    ordinary = [day for day in range(number) if day not in campaigns]
    weekly_growth = _weekly_growth(hours.sum(axis=1), campaigns)
    # A growing history continues with its last week; it has no campaigns.
    drawn = range(number - WEEK, number) if weekly_growth else ordinary
    return Days(
        begins_ms=tuple(begins_ms.tolist()),
        drawn=tuple(drawn),
        campaigns=tuple(campaigns),
        weekly_growth=weekly_growth,
    )


def by_hour(cells: Cells, end_ms: int, number: int) -> NDArray[np.float64]:
    """Count timers by day and hour of the day, with days counted back from the end."""
    hour = number * 24 - 1 - (end_ms - 1 - cells.middle_ms) // HOUR_MS
    inside = hour >= 0
    counts = np.bincount(hour[inside], cells.count[inside].astype(np.float64), number * 24).astype(np.float64)
    return counts.reshape(number, 24)


def _campaigns(hours: NDArray[np.float64]) -> list[int]:
    number = len(hours)
    if number < LEAST_DAYS_FOR_CAMPAIGNS:
        return []
    ordinary = np.empty_like(hours)
    kinds = WEEK if number >= WEEKS_BY_WEEKDAY * WEEK else 1
    for kind in range(kinds):
        ordinary[kind::kinds] = np.median(hours[kind::kinds], axis=0)
    is_much = hours > CAMPAIGN_TIMES * (ordinary + 1)
    excess = np.where(is_much, hours - ordinary, 0.0).sum(axis=1)
    found = np.flatnonzero(excess > CAMPAIGN_SHARE * max(float(np.median(hours.sum(axis=1))), 1.0))
    return found.tolist() if len(found) <= MAX_CAMPAIGN_DAYS * number else []


def _weekly_growth(timers: NDArray[np.float64], campaigns: list[int]) -> float:
    """Return the growth between the first and the last week, weekday by weekday."""
    weeks = (len(timers) - WEEK) / WEEK
    if weeks < 1 or campaigns:
        return 0.0
    return compounded(timers[:WEEK], np.roll(timers[-WEEK:], (len(timers) - WEEK) % WEEK), weeks)


def compounded(first: NDArray[np.float64], last: NDArray[np.float64], weeks: float) -> float:
    """Return the relative growth of the volume per week, compounded; negative for a falling volume.

    The result is 0 if there is no significant change: the two differ by no more than days do among themselves, or by
    too little.

    Args:
        first: Timers of some days of the week.
        last: Timers of the same days of a later week.
        weeks: Weeks between the two.
    """
    differences = last - first
    error = float(differences.std(ddof=1)) / np.sqrt(len(first)) + 1e-9
    ratio = float(last.sum() / max(first.sum(), 1.0))
    if abs(float(differences.mean())) < TREND_ROOTS * error or abs(ratio - 1) < LEAST_TREND or ratio <= 0:
        return 0.0
    return float(ratio ** (1 / weeks) - 1)

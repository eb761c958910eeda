"""Days: the whole days of a history, and which of them may be drawn to go on with."""

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
"""With so many weeks a day is held against those of its weekday: what comes every Monday is no exception."""
LEAST_DAYS_FOR_CAMPAIGNS = 4
"""In fewer, nothing tells what an ordinary day is like."""
CAMPAIGN_TIMES = 4.0
"""So many times what the same hour of the other days has."""
CAMPAIGN_SHARE = 0.2
"""Of an ordinary day's timers; a lesser excess is left where it is."""
MOST_CAMPAIGN_DAYS = 0.25
"""Of the days; where there are more, campaigns are how the topic is used."""
TREND_ROOTS = 3.0
"""A week has to differ from the first by so many of its standard errors, from day to day of the week."""
LEAST_TREND = 0.1
"""And by that share at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Days:
    """Whole days of a history, of 24 hours each, counted back from its last send.

    Args:
        begins_ms: When each begins, ascending, UTC milliseconds.
        drawn: Which of them go on: indices into ``begins_ms``.
        campaigns: Which do not, since a campaign fell on them that came once.
        weekly_growth: By how much the volume grows from week to week, in parts of one; 0: it does not, as far as can
            be told.
    """

    begins_ms: tuple[int, ...]
    drawn: tuple[int, ...]
    campaigns: tuple[int, ...]
    weekly_growth: float

    @property
    def end_ms(self) -> int:
        """When the last one ends."""
        return self.begins_ms[-1] + DAY_MS

    @property
    def by_weekday(self) -> bool:
        """Whether there are enough to draw a Monday for a Monday, and Mondays among them."""
        return len(self.drawn) >= WEEKS_BY_WEEKDAY * WEEK and len({day % WEEK for day in self.drawn}) == WEEK


def days_of(cells: Cells) -> Days:
    """The days of a history of a day at least.

    Args:
        cells: Of one topic.
    """
    end_ms = int(cells.publish_max_ms.max()) + 1
    # The first may lack up to an hour: a week of sends has its first and its last one some time within it.
    number = max((end_ms - int(cells.publish_min_ms.min()) + HOUR_MS) // DAY_MS, 1)
    begins_ms = end_ms - DAY_MS * np.arange(number, 0, -1)
    hours = by_hour(cells, end_ms, number)
    campaigns = _campaigns(hours) if cells.slot_ms <= HOUR_MS else []
    ordinary = [day for day in range(number) if day not in campaigns]
    weekly_growth = _weekly_growth(hours.sum(axis=1), campaigns)
    # What grows goes on as it was last; then there was no campaign.
    drawn = range(number - WEEK, number) if weekly_growth else ordinary
    return Days(
        begins_ms=tuple(begins_ms.tolist()),
        drawn=tuple(drawn),
        campaigns=tuple(campaigns),
        weekly_growth=weekly_growth,
    )


def by_hour(cells: Cells, end_ms: int, number: int) -> NDArray[np.float64]:
    """Timers by day and hour of the day, days counted back from the end."""
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
    return found.tolist() if len(found) <= MOST_CAMPAIGN_DAYS * number else []


def _weekly_growth(timers: NDArray[np.float64], campaigns: list[int]) -> float:
    """By the first and the last week, day of the week by day of the week."""
    weeks = (len(timers) - WEEK) / WEEK
    if weeks < 1 or campaigns:
        return 0.0
    return compounded(timers[:WEEK], np.roll(timers[-WEEK:], (len(timers) - WEEK) % WEEK), weeks)


def compounded(first: NDArray[np.float64], last: NDArray[np.float64], weeks: float) -> float:
    """By how much the volume grew from week to week, in parts of one, compounded; below 0 where it fell.

    0: as far as can be told it did neither: the two differ by no more than days do among themselves, or by too little.

    Args:
        first: Timers of some days of the week.
        last: Of the same days of a later week.
        weeks: From the one to the other.
    """
    differences = last - first
    error = float(differences.std(ddof=1)) / np.sqrt(len(first)) + 1e-9
    ratio = float(last.sum() / max(first.sum(), 1.0))
    if abs(float(differences.mean())) < TREND_ROOTS * error or abs(ratio - 1) < LEAST_TREND or ratio <= 0:
        return 0.0
    return float(ratio ** (1 / weeks) - 1)

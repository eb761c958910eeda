"""Band: how far the steady state may be from what one continuation shows, since it has few days to go by.

The bootstrap over days: the days themselves are drawn with replacement, a continuation is drawn from those, and the
peak of its gaps is what one draw says. What a day's sends add to the gaps at any later time is reckoned once for each
day, so that a draw is a sum of curves; pairs across midnight are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.plan import Plan
from timewheel.spark_planner.pricing.course import course_of
from timewheel.spark_planner.steady.continuing import Continuation
from timewheel.spark_planner.steady.days import WEEK
from timewheel.spark_planner.summary.cells import Cells

__all__ = ["LEAST_DAYS", "Band", "band"]

Floats = NDArray[np.float64]

LEAST_DAYS = 3
"""Of fewer days nobody can say how far apart days are."""
DRAWS = 400
CERTAINTY = 0.95
NORMAL = 1.96
"""Standard deviations of a normal distribution within which that share lies."""
HOURLY_DAYS = 60
"""Of longer continuations the moments are a day apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """What the peak of a full topic may be with a certainty of 95 %, in parts of what one continuation shows.

    Args:
        low: At the least.
        high: At the most.
    """

    low: float
    high: float


def band(cells: Cells, native: Plan, continued: Continuation, rng: np.random.Generator) -> Band | None:
    """The band of native gaps; None: there are too few days, or they leave no gap.

    Args:
        cells: Of the history alone.
        native: A plan of native delays.
        continued: How the history goes on.
        rng: Where chance comes from.
    """
    days = len(continued.days.drawn)
    if days < LEAST_DAYS:
        return None
    # As many as there are with the history's own: those might have been others as well.
    length = len(continued.days.begins_ms) + len(continued.sources)
    step_ms = HOUR_MS if length <= HOURLY_DAYS else DAY_MS
    curves = _curves(cells, native, continued, length, step_ms)
    peaks = _peaks(curves, length, DAY_MS // step_ms, rng)
    middle = float(np.median(peaks))
    if middle < 1:
        return None
    tail = (1 - CERTAINTY) / 2
    low, high = np.quantile(peaks / middle - 1, [tail, 1 - tail]) * _wider(days)
    # And what a count has by chance.
    chance = NORMAL / sqrt(middle)
    return Band(low=max(1 - sqrt(low**2 + chance**2), 0.0), high=1 + sqrt(high**2 + chance**2))


def _curves(cells: Cells, native: Plan, continued: Continuation, length: int, step_ms: int) -> Floats:
    """Gaps that each day leaves, a line for each: at steps of time from its begin, over so many days."""
    ages_ms = np.arange(0, length * DAY_MS, step_ms).astype(np.float64)
    curves = np.zeros((len(continued.days.drawn), len(ages_ms)))
    for line, day in enumerate(continued.days.drawn):
        begins_ms = continued.days.begins_ms[day]
        part = cells.sent_within(begins_ms, begins_ms + DAY_MS)
        if len(part):
            curve = course_of(native, part).gaps
            curves[line] = np.interp(begins_ms + ages_ms, curve.at_ms, curve.gaps, left=0.0, right=0.0)
    return curves


def _peaks(curves: Floats, length: int, steps: int, rng: np.random.Generator) -> Floats:
    """The peak of the last week of each draw of so many days."""
    days = len(curves)
    # First which days there are to draw from, then what is drawn from them.
    pools = rng.integers(0, days, (DRAWS, days))
    drawn = np.take_along_axis(pools, rng.integers(0, days, (DRAWS, length)), axis=1)
    gaps = np.zeros((DRAWS, length * steps))
    for day in range(length):
        gaps[:, day * steps :] += curves[drawn[:, day], : (length - day) * steps]
    found: Floats = gaps[:, -WEEK * steps :].max(axis=1)
    return found


def _wider(days: int) -> float:
    """What few days take away: their spread is less than that of all days, and is itself not well known (Student's t,
    by Cornish and Fisher's series).
    """
    freedom = days - 1
    t = NORMAL
    t += (NORMAL**3 + NORMAL) / (4 * freedom)
    t += (5 * NORMAL**5 + 16 * NORMAL**3 + 3 * NORMAL) / (96 * freedom**2)
    return t / NORMAL * sqrt(days / freedom)

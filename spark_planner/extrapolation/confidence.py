"""Band: confidence interval of the steady state's peak, since a continuation is based on few days.

A bootstrap over days: the days themselves are drawn with replacement, a continuation is drawn from these, and each draw
gives the peak of its gaps. The gaps that a day's sends add at any later time are computed once for each day, so that a
draw is a sum of curves; pairs across midnight are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.plan import Plan
from timewheel.spark_planner.extrapolation.continuing import Continuation
from timewheel.spark_planner.extrapolation.days import WEEK
from timewheel.spark_planner.pricing.simulation import simulation_of
from timewheel.spark_planner.summary.cells import Cells

__all__ = ["LEAST_DAYS", "ConfidenceInterval", "confidence"]

Floats = NDArray[np.float64]

LEAST_DAYS = 3
"""Fewer days do not show the spread of days."""
DRAWS = 400
CERTAINTY = 0.95
NORMAL = 1.96
"""Standard deviations of a normal distribution that contain this share."""
HOURLY_DAYS = 60
"""For longer continuations the moments are a day apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceInterval:
    """The 95 % confidence interval of a full topic's peak, as multiples of the continuation's peak.

    Args:
        low: Lower end.
        high: Upper end.
    """

    low: float
    high: float


def confidence(
    cells: Cells, native: Plan, continued: Continuation, rng: np.random.Generator
) -> ConfidenceInterval | None:
    """Compute the band of native gaps; None: there are too few days, or the days leave no gap.

    Args:
        cells: Cells of the history alone.
        native: A plan of native delays.
        continued: The continuation of the history.
        rng: Source of randomness.
    """
    days = len(continued.days.drawn)
    if days < LEAST_DAYS:
        return None
    # The number of days including the history's own: those are a draw as well.
    length = len(continued.days.begins_ms) + len(continued.sources)
    step_ms = HOUR_MS if length <= HOURLY_DAYS else DAY_MS
    curves = _curves(cells, native, continued, length, step_ms)
    peaks = _peaks(curves, length, DAY_MS // step_ms, rng)
    middle = float(np.median(peaks))
    if middle < 1:
        return None
    tail = (1 - CERTAINTY) / 2
    low, high = np.quantile(peaks / middle - 1, [tail, 1 - tail]) * _wider(days)
    # Add the random error of a count.
    error = NORMAL / sqrt(middle)
    return ConfidenceInterval(low=max(1 - sqrt(low**2 + error**2), 0.0), high=1 + sqrt(high**2 + error**2))


def _curves(cells: Cells, native: Plan, continued: Continuation, length: int, step_ms: int) -> Floats:
    """Compute the gaps that each day leaves, a row for each day: at steps from its beginning, over ``length`` days."""
    ages_ms = np.arange(0, length * DAY_MS, step_ms).astype(np.float64)
    curves = np.zeros((len(continued.days.drawn), len(ages_ms)))
    for line, day in enumerate(continued.days.drawn):
        begins_ms = continued.days.begins_ms[day]
        part = cells.sent_within(begins_ms, begins_ms + DAY_MS)
        if len(part):
            curve = simulation_of(native, part).gaps
            curves[line] = np.interp(begins_ms + ages_ms, curve.at_ms, curve.gaps, left=0.0, right=0.0)
    return curves


def _peaks(curves: Floats, length: int, steps: int, rng: np.random.Generator) -> Floats:
    """Return the peak of the last week of each draw of so many days."""
    days = len(curves)
    # First draw the days of each pool, then draw from the pool.
    pools = rng.integers(0, days, (DRAWS, days))
    drawn = np.take_along_axis(pools, rng.integers(0, days, (DRAWS, length)), axis=1)
    gaps = np.zeros((DRAWS, length * steps))
    for day in range(length):
        gaps[:, day * steps :] += curves[drawn[:, day], : (length - day) * steps]
    found: Floats = gaps[:, -WEEK * steps :].max(axis=1)
    return found


def _wider(days: int) -> float:
    """Return the correction for few days: their spread is less than that of all days, and is itself uncertain
    (Student's t, by the series of Cornish and Fisher).
    """
    freedom = days - 1
    t = NORMAL
    t += (NORMAL**3 + NORMAL) / (4 * freedom)
    t += (5 * NORMAL**5 + 16 * NORMAL**3 + 3 * NORMAL) / (96 * freedom**2)
    return t / NORMAL * sqrt(days / freedom)

"""Continued history: the timers of a history and, if it is shorter than the warm-up, of extrapolated days after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from timewheel.core.plan import Plan
from timewheel.spark_planner.extrapolation.confidence import ConfidenceInterval, confidence
from timewheel.spark_planner.extrapolation.continuing import Continuation, continuation, extended_cells
from timewheel.spark_planner.extrapolation.days import days_of
from timewheel.spark_planner.extrapolation.warm_up import WarmUp, warm_up
from timewheel.spark_planner.summary.cells import CELL_LIMIT, Cells

__all__ = ["MAX_TIMERS", "Continued", "continued_from"]

MAX_TIMERS = 25_000_000
"""Most timers of a continued history: with delays of a year, a week of ten million timers would become half a billion.
"""
MAX_DAYS = 800
"""Most further days: a week does not show the use of a topic in years."""
_SEED = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Continued:
    """The timers of a topic that a plan is made for, continued if the history is too short.

    Args:
        cells: Cells of all these timers.
        warm_up: The warm-up of a topic whose history is too short; None: the history is long enough.
        continuation: The continuation of the history; None: it is not continued.
        unfit: Reason why a history that is too short is not continued: the user declined (``as_is``), it has no whole
            day (``burst``), or the continuation would be too large (``days``, ``timers``).
        confidence: Confidence interval of native gaps, relative to the continuation; None: unknown.
    """

    cells: Cells
    warm_up: WarmUp | None
    continuation: Continuation | None = None
    unfit: Literal["", "as_is", "burst", "days", "timers"] = ""
    confidence: ConfidenceInterval | None = None

    @property
    def is_short(self) -> bool:
        """True if the history is too short, is not continued, and the user did not take it as complete."""
        return self.unfit not in ("", "as_is")

    @property
    def upper(self) -> float:
        """Factor on the continuation's figures for which the plan is made: the upper end of the band."""
        return 1.0 if self.confidence is None else self.confidence.high


def continued_from(alone: Cells, *, as_is: bool = False) -> Continued:
    """Continue a history, if it is too short.

    Args:
        alone: Cells of a topic's history.
        as_is: Take the history as complete, regardless of its length.
    """
    found = warm_up(alone)
    if found is None:
        return Continued(cells=alone, warm_up=None)
    if as_is:
        return Continued(cells=alone, warm_up=found, unfit="as_is")
    if not found.has_rate:
        return Continued(cells=alone, warm_up=found, unfit="burst")
    rng = np.random.default_rng(_SEED)
    continued = continuation(days_of(alone), found.warm_up_ms, rng)
    if len(continued.sources) > MAX_DAYS:
        return Continued(cells=alone, warm_up=found, unfit="days")
    if alone.timers * (1 + len(continued.sources) / len(continued.days.begins_ms)) > MAX_TIMERS:
        return Continued(cells=alone, warm_up=found, unfit="timers")
    native = Plan(due_topic="persistent://public/default/continued", subscriptions=("any",))
    return Continued(
        cells=extended_cells(alone, continued.stretches, CELL_LIMIT),
        warm_up=found,
        continuation=continued,
        confidence=confidence(alone, native, continued, rng),
    )

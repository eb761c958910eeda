"""Continued: the timers that a plan is made for: those of a history and, if it is too short, of days after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from timewheel.core.plan import Plan
from timewheel.spark_planner.steady.band import Band, band
from timewheel.spark_planner.steady.continuing import Continuation, continuation, extended_cells
from timewheel.spark_planner.steady.days import days_of
from timewheel.spark_planner.steady.settling import Settling, settling
from timewheel.spark_planner.summary.cells import CELL_LIMIT, Cells

__all__ = ["MOST_TIMERS", "Continued", "continued_from"]

MOST_TIMERS = 25_000_000
"""Of a continued history: with delays of a year a week of ten million timers would be half a billion."""
MOST_DAYS = 800
"""Further days: nobody can say of a week what it will be like in years."""
_SEED = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Continued:
    """What a plan is made for: the timers of one topic, continued where the history is too short.

    Args:
        cells: Of all that it is made for.
        settling: What is known of a history that is too short; None: it is long enough.
        continuation: How it goes on; None: it does not.
        unfit: Why it does not, though it is too short: it was not to (``as_is``), it has no day of its own, or it
            would be too much.
        band: How far native gaps may be from what the continuation shows; None: it is not known.
    """

    cells: Cells
    settling: Settling | None
    continuation: Continuation | None = None
    unfit: Literal["", "as_is", "burst", "days", "timers"] = ""
    band: Band | None = None

    @property
    def upper(self) -> float:
        """As many times what the continuation shows is planned for: the upper end of the band."""
        return 1.0 if self.band is None else self.band.high


def continued_from(alone: Cells, *, as_is: bool = False) -> Continued:
    """What a plan is made for.

    Args:
        alone: Of one topic's history.
        as_is: Whatever its length, what is in it is all that there will be.
    """
    found = settling(alone)
    if found is None:
        return Continued(cells=alone, settling=None)
    if as_is:
        return Continued(cells=alone, settling=found, unfit="as_is")
    if not found.has_rate:
        return Continued(cells=alone, settling=found, unfit="burst")
    rng = np.random.default_rng(_SEED)
    continued = continuation(days_of(alone), found.settles_ms, rng)
    if len(continued.sources) > MOST_DAYS:
        return Continued(cells=alone, settling=found, unfit="days")
    if alone.timers * (1 + len(continued.sources) / len(continued.days.begins_ms)) > MOST_TIMERS:
        return Continued(cells=alone, settling=found, unfit="timers")
    native = Plan(due_topic="persistent://public/default/continued", subscriptions=("any",))
    return Continued(
        cells=extended_cells(alone, continued.stretches, CELL_LIMIT),
        settling=found,
        continuation=continued,
        band=band(alone, native, continued, rng),
    )

"""A history that is shorter than its delays: it shows how a topic fills up, not how it is once it is full."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from timewheel.core.durations import DAY_MS, rounded_up
from timewheel.spark_planner.job import Planned
from timewheel.spark_planner.results.delays import delay_quantile_ms
from timewheel.spark_planner.summary.cells import Cells

__all__ = ["SteadyState", "said_of_short", "steady_state"]

Floats = NDArray[np.float64]

SHARE = 0.99
"""Of the timers, whose delays a history should be longer than."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """What a topic holds under native delays if timers go on being sent as in a history that ends before their delays.

    Args:
        history_ms: From the first send of the history to the last.
        delay_ms: What 99 % of the delays do not exceed; longer than that.
        longest_ms: The longest delay.
        pending: Timers that will wait at any time.
        gaps: Ranges that there will be at any time.
    """

    history_ms: int
    delay_ms: int
    longest_ms: int
    pending: float
    gaps: float

    def said(self, counted_gaps: int) -> str:
        """In words.

        Args:
            counted_gaps: The most native gaps of the history itself.
        """
        return (
            f"This history spans {rounded_up(self.history_ms)}, and 1 % of its timers wait longer than "
            f"{rounded_up(self.delay_ms)}. So it shows how a topic fills up, not how it is once it is full. If timers "
            f"go on being sent like this, about {self.pending:,.0f} will wait, and native delays on one partition will "
            f"leave about {self.gaps:,.0f} gaps (estimated), not {counted_gaps:,}. What is said here is of the history "
            f"alone: plan from one that is longer than {rounded_up(self.longest_ms)}."
        )


def steady_state(cells: Cells) -> SteadyState | None:
    """The steady state of a topic; None: the history is long enough to show it.

    With ``L`` sends a second and delays that are distributed as ``F``, ``L`` times the mean delay wait, and native
    delays leave ``L`` times the integral of ``F (1 - F)`` gaps: rate times half the mean difference of two delays.

    Args:
        cells: Of one topic.
    """
    history_ms = int(cells.publish_max_ms.max()) - int(cells.publish_min_ms.min())
    delay_ms = delay_quantile_ms(cells, SHARE)
    # A minute's burst is no rate that could go on; a day of a topic is.
    if delay_ms <= history_ms or history_ms < DAY_MS:
        return None
    at_ms, below = _distribution(cells)
    before, after, length_ms = below[:-1], below[1:], np.diff(at_ms)
    mean_ms = float(at_ms[0]) + float((length_ms * (1 - (before + after) / 2)).sum())
    # Below is linear between two points, so its square is exact by Simpson's rule.
    squares = (before * before + before * after + after * after) / 3
    spread_ms = float((length_ms * ((before + after) / 2 - squares)).sum())
    per_ms = cells.timers / history_ms
    return SteadyState(
        history_ms=history_ms,
        delay_ms=delay_ms,
        longest_ms=int(cells.delay_max_ms.max()),
        pending=per_ms * mean_ms,
        gaps=per_ms * spread_ms,
    )


def said_of_short(planned: Planned) -> list[str]:
    """What has to be said first of a plan from a history that is too short; nothing if it is not."""
    found = steady_state(planned.history.cells(planned.topic))
    return [] if found is None else [found.said(planned.native.replay.peak_of_total.gap_count)]


def _distribution(cells: Cells) -> tuple[Floats, Floats]:
    """(delays, the share of timers whose delay is shorter), linear in between; a cell's timers are taken as uniform."""
    low = cells.delay_min_ms.astype(np.float64)
    high = np.maximum(cells.delay_max_ms.astype(np.float64), low + 1.0)
    density = cells.count / (high - low)
    at_ms, where = np.unique(np.concatenate([low, high]), return_inverse=True)
    slopes = np.cumsum(np.bincount(where, np.concatenate([density, -density])))
    below = np.concatenate([[0.0], np.cumsum(slopes[:-1] * np.diff(at_ms))]) / cells.timers
    return at_ms, np.clip(below, 0.0, 1.0)

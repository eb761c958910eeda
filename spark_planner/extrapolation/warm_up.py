"""Settling: the warm-up time until a topic is full, and the timers and gaps of a full topic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from timewheel.core.history_span import shows_day, shows_full
from timewheel.spark_planner.summary.cells import Cells

__all__ = ["WarmUp", "warm_up"]

Floats = NDArray[np.float64]

MISSING = 0.01
"""Share of the steady state's pending timers: a history is long enough if at most this share is missing at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """The steady state of a topic under native delays, if the send rate of a too short history continues.

    Args:
        history_ms: Time from the first send of the history to the last.
        warm_up_ms: Length of the warm-up: after this time 99 % of the steady state's pending timers wait, and a history
            of this length is long enough.
        pending: Timers that wait at any time, if each is sent by itself.
        gaps: Ranges at any time, if neighbours' delays are independent.
        has_rate: True if the history has at least a day. A burst of a minute is no rate that could continue: the steady
            state is unknown, and ``pending`` and ``gaps`` are 0.
    """

    history_ms: int
    warm_up_ms: int
    pending: float = 0.0
    gaps: float = 0.0
    has_rate: bool = True


def warm_up(cells: Cells) -> WarmUp | None:
    """Compute the steady state of a topic; None: the history is long enough to show it.

    With ``L`` sends a second and delays distributed as ``F``, ``L`` times the mean delay wait, of which ``L`` times the
    integral of ``1 - F`` up to ``T`` wait after ``T``; and native delays leave ``L`` times the integral of
    ``F (1 - F)`` gaps: rate times half the mean difference of two delays.

    Args:
        cells: Cells of one topic.
    """
    history_ms = int(cells.publish_max_ms.max()) - int(cells.publish_min_ms.min())
    at_ms, below = _distribution(cells)
    before, after, length_ms = below[:-1], below[1:], np.diff(at_ms)
    waits_ms = length_ms * (1 - (before + after) / 2)
    mean_ms = float(at_ms[0]) + float(waits_ms.sum())
    missing_ms = np.r_[np.cumsum(waits_ms[::-1])[::-1], 0.0]
    warm_up_ms = int(at_ms[int(np.argmax(missing_ms <= MISSING * mean_ms))])
    if not shows_day(history_ms):
        return WarmUp(history_ms=history_ms, warm_up_ms=warm_up_ms, has_rate=False)
    if shows_full(history_ms, warm_up_ms):
        return None
    # ``below`` is linear between two points, so its square is exact by Simpson's rule.
    squares = (before * before + before * after + after * after) / 3
    spread_ms = float((length_ms * ((before + after) / 2 - squares)).sum())
    per_ms = cells.timers / history_ms
    return WarmUp(history_ms=history_ms, warm_up_ms=warm_up_ms, pending=per_ms * mean_ms, gaps=per_ms * spread_ms)


def _distribution(cells: Cells) -> tuple[Floats, Floats]:
    """Return (delays, share of timers with a shorter delay), linear in between: timers are uniform within a cell."""
    low = cells.delay_min_ms.astype(np.float64)
    high = np.maximum(cells.delay_max_ms.astype(np.float64), low + 1.0)
    density = cells.count / (high - low)
    at_ms, where = np.unique(np.concatenate([low, high]), return_inverse=True)
    slopes = np.cumsum(np.bincount(where, np.concatenate([density, -density])))
    below = np.concatenate([[0.0], np.cumsum(slopes[:-1] * np.diff(at_ms))]) / cells.timers
    return at_ms, np.clip(below, 0.0, 1.0)

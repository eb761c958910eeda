"""Settling: how long a topic takes to fill up, and what it holds once it is full."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from timewheel.core.history_span import shows_day, shows_full
from timewheel.spark_planner.summary.cells import Cells

__all__ = ["Settling", "settling"]

Floats = NDArray[np.float64]

MISSING = 0.01
"""Of what will wait at any time: a history is long enough if no more than that is still to come at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settling:
    """What a topic comes to hold under native delays if timers go on being sent as in a history that is too short.

    Args:
        history_ms: From the first send of the history to the last.
        settles_ms: After so long 99 % of what will wait at any time does: a history of that length settles the matter.
        pending: Timers that will wait at any time, if each is sent by itself.
        gaps: Ranges that there will be at any time, if neighbours' delays are independent.
        has_rate: The history has a day at least. A minute's burst is no rate that could go on: what will wait is not
            known, and ``pending`` and ``gaps`` are 0.
    """

    history_ms: int
    settles_ms: int
    pending: float = 0.0
    gaps: float = 0.0
    has_rate: bool = True


def settling(cells: Cells) -> Settling | None:
    """How a topic settles; None: the history is long enough to show it.

    With ``L`` sends a second and delays that are distributed as ``F``, ``L`` times the mean delay wait, of which
    ``L`` times the integral of ``1 - F`` up to ``T`` do after ``T``; and native delays leave ``L`` times the integral
    of ``F (1 - F)`` gaps: rate times half the mean difference of two delays.

    Args:
        cells: Of one topic.
    """
    history_ms = int(cells.publish_max_ms.max()) - int(cells.publish_min_ms.min())
    at_ms, below = _distribution(cells)
    before, after, length_ms = below[:-1], below[1:], np.diff(at_ms)
    waits_ms = length_ms * (1 - (before + after) / 2)
    mean_ms = float(at_ms[0]) + float(waits_ms.sum())
    missing_ms = np.r_[np.cumsum(waits_ms[::-1])[::-1], 0.0]
    settles_ms = int(at_ms[int(np.argmax(missing_ms <= MISSING * mean_ms))])
    if not shows_day(history_ms):
        return Settling(history_ms=history_ms, settles_ms=settles_ms, has_rate=False)
    if shows_full(history_ms, settles_ms):
        return None
    # Below is linear between two points, so its square is exact by Simpson's rule.
    squares = (before * before + before * after + after * after) / 3
    spread_ms = float((length_ms * ((before + after) / 2 - squares)).sum())
    per_ms = cells.timers / history_ms
    return Settling(history_ms=history_ms, settles_ms=settles_ms, pending=per_ms * mean_ms, gaps=per_ms * spread_ms)


def _distribution(cells: Cells) -> tuple[Floats, Floats]:
    """(delays, the share of timers whose delay is shorter), linear in between; a cell's timers are taken as uniform."""
    low = cells.delay_min_ms.astype(np.float64)
    high = np.maximum(cells.delay_max_ms.astype(np.float64), low + 1.0)
    density = cells.count / (high - low)
    at_ms, where = np.unique(np.concatenate([low, high]), return_inverse=True)
    slopes = np.cumsum(np.bincount(where, np.concatenate([density, -density])))
    below = np.concatenate([[0.0], np.cumsum(slopes[:-1] * np.diff(at_ms))]) / cells.timers
    return at_ms, np.clip(below, 0.0, 1.0)

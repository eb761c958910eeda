"""Bursts: publish slots so full that they must not be merged with their neighbours.

Most plans are priced from slots much longer than a minute. A campaign of a minute would be spread over such a slot,
together with all other timers of the slot, and its gaps would be spread as well.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from timewheel.spark_planner.summary.cells import LEVELS, Cells

__all__ = ["with_bursts_apart"]

Flags = NDArray[np.bool_]

PARTS = 16
"""Parts of a coarse slot that are checked for bursts."""
FULL_SHARE = 0.25
"""A part with this share of its slot is a burst: four times its share under even sending."""
LEAST_SHARE = 1 / 2_000
"""Least share of all timers: smaller bursts do not decide a peak, and at most 2,000 are as large."""
LEAST_TIMERS = 256
"""Fewer timers are chance and not a burst."""
MAX_BURST_CELLS = 10_000


def with_bursts_apart(cells: Cells, level: int) -> tuple[Cells, ...]:
    """Split the cells into cells of a coarser level and finer cells of bursts.

    Args:
        cells: Cells of one topic.
        level: Level to which all cells except those of bursts are merged.

    Returns:
        The coarse cells, then the cells of bursts if there are any.
    """
    is_burst = _bursts(cells, level)
    if not is_burst.any():
        return (cells.coarsened(level),)
    calm, bursts = cells.where(~is_burst), cells.where(is_burst)
    return calm.coarsened(level), bursts.bounded(MAX_BURST_CELLS)


def _bursts(cells: Cells, level: int) -> Flags:
    """Return for each cell whether it is in a burst."""
    coarse_ms = LEVELS[level].slot_ms
    part_ms = max(coarse_ms // PARTS, cells.slot_ms)
    if not len(cells) or part_ms >= coarse_ms:
        return np.zeros(len(cells), np.bool_)
    at_ms = cells.slot * cells.slot_ms
    # Cells are in order of their slots.
    opens_part, part = _numbered(at_ms // part_ms)
    in_part = np.bincount(part, cells.count)
    _, slot = _numbered(at_ms[opens_part] // coarse_ms)
    mass = np.r_[0.0, np.bincount(slot, in_part), 0.0]
    # A history begins and ends within a slot: the rest of such a slot is no burst if the next slot is as full.
    in_slot = np.maximum(np.maximum(mass[:-2], mass[2:]), mass[1:-1])[slot]
    least = max(LEAST_TIMERS, LEAST_SHARE * cells.timers)
    # In a slot of few parts, a quarter is no more than a part's share.
    share = max(FULL_SHARE, 2 * part_ms / coarse_ms)
    found: Flags = ((in_part >= least) & (in_part >= share * in_slot))[part]
    return found


def _numbered(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the beginning of each run of equal values, and the run number of each value."""
    is_first = np.ones(len(values), np.bool_)
    is_first[1:] = values[1:] != values[:-1]
    return np.flatnonzero(is_first), np.cumsum(is_first) - 1

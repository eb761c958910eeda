"""Ramps: sums of shares that rise evenly, as piecewise linear curves with exact integrals, for many rows at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from timewheel.spark_planner.pricing.resolution import CLOSE, Resolution

__all__ = ["Ramps", "risen", "risen_evenly"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

JUMP_MS = 1.0
"""A ramp shorter than this is a step: times are whole milliseconds."""
BURST_PLACES = 48
"""Places in a row of a burst, in which all timers have about the same stay: more places add nothing."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ramps:
    """A curve ``F(x)`` for each row: 0 at first, then the sum of its ramps, then constant.

    Args:
        key: ``row * stride_ms + x - origin_ms`` of each event, ascending; every row begins with an event of its own.
        x_ms: Place of each event.
        value: ``F`` just after the event.
        slope: Slope of ``F`` up to the next event of the row, per millisecond.
        integral_ms: Integral of ``F`` up to the event.
        square_ms: Integral of ``F ** 2`` up to the event.
        origin_ms: A place before every event.
        stride_ms: Longer than the span of all ``x``.
    """

    key: Floats
    x_ms: Floats
    value: Floats
    slope: Floats
    integral_ms: Floats
    square_ms: Floats
    origin_ms: float
    stride_ms: float

    @classmethod
    def of(
        cls,
        row: Integers,
        start_ms: Floats,
        end_ms: Floats,
        share: Floats,
        rows: int,
        *,
        bursts: bool = False,
        resolution: Resolution = CLOSE,
    ) -> Ramps:
        """Sum ramps that rise by ``share`` from ``start_ms`` to ``end_ms``, each in its row of ``range(rows)``.

        Args:
            row: Row of each ramp.
            start_ms: Beginning of each ramp.
            end_ms: End of each ramp; not before its start.
            share: Rise of each ramp.
            rows: Number of rows.
            bursts: True if rows span so little that `BURST_PLACES` are enough.
            resolution: If there are more ramps than its limit, they are moved to evenly spaced places between the first
                and the last of their row, which costs a count instead of a sort; steps stay steps.
        """
        # Near the events, so that the keys of thousands of rows keep their milliseconds in a float.
        origin_ms = float(start_ms.min()) - 2.0 if len(start_ms) else 0.0
        stride_ms = float(np.maximum(end_ms, start_ms).max()) - origin_ms + 4.0 if len(start_ms) else 4.0
        places = min(BURST_PLACES, resolution.places) if bursts else resolution.places
        if len(row) > (places * rows if bursts else resolution.ramps):
            event_row, x_ms, rise, bend, running = _lattice_events(
                row, start_ms, end_ms, share, rows, origin_ms, places
            )
        else:
            event_row, x_ms, rise, bend, running = _events(row, start_ms, end_ms, share, rows, origin_ms, stride_ms)
        key = event_row * stride_ms + (x_ms - origin_ms)
        opens = np.searchsorted(event_row, np.arange(rows))
        # Rounding errors in the sum of slopes would grow over a long flat stretch.
        slopes = np.where(np.cumsum(running) > 0.5, np.cumsum(bend), 0.0)
        gap_ms = np.diff(x_ms, append=x_ms[-1:])
        gap_ms[np.r_[opens[1:] - 1, len(key) - 1] if rows else []] = 0.0  # a row ends where the next begins
        value = _within_rows(np.r_[0.0, (slopes * gap_ms)[:-1]] + rise, opens, event_row)
        after = value + slopes * gap_ms
        integral_ms = _within_rows(np.r_[0.0, ((value + after) / 2 * gap_ms)[:-1]], opens, event_row)
        squares = (value * value + value * after + after * after) / 3 * gap_ms
        square_ms = _within_rows(np.r_[0.0, squares[:-1]], opens, event_row)
        return cls(
            key=key,
            x_ms=x_ms,
            value=value,
            slope=slopes,
            integral_ms=integral_ms,
            square_ms=square_ms,
            origin_ms=origin_ms,
            stride_ms=stride_ms,
        )

    def at(self, row: Integers, x_ms: Floats) -> tuple[Floats, Floats, Floats]:
        """Return value, integral and integral of the square of the rows' curves at these points."""
        inside_ms = np.clip(x_ms, self.origin_ms, self.origin_ms + self.stride_ms - 1.0)
        index = np.searchsorted(self.key, row * self.stride_ms + (inside_ms - self.origin_ms), "right") - 1
        # Rounding of the key may select the event after; a negative distance would turn the curve around.
        distance_ms = np.maximum(x_ms - self.x_ms[index], 0.0)
        before, slope = self.value[index], self.slope[index]
        value = before + slope * distance_ms
        integral_ms = self.integral_ms[index] + (before + value) / 2 * distance_ms
        square_ms = self.square_ms[index] + (before * before + before * value + value * value) / 3 * distance_ms
        return value, integral_ms, square_ms

    def values(self, row: Integers, x_ms: Floats) -> Floats:
        """Return only the values of the rows' curves at these points."""
        inside_ms = np.clip(x_ms, self.origin_ms, self.origin_ms + self.stride_ms - 1.0)
        index = np.searchsorted(self.key, row * self.stride_ms + (inside_ms - self.origin_ms), "right") - 1
        found: Floats = self.value[index] + self.slope[index] * np.maximum(x_ms - self.x_ms[index], 0.0)
        return found


def risen(
    at_ms: Floats,
    start_ms: Floats,
    end_ms: Floats,
    mass: Floats,
    line: Integers | None = None,
    lines: int = 1,
) -> Floats:
    """Sum ramps at moments: array (lines, moments).

    Args:
        at_ms: Moments, ascending.
        start_ms: Beginning of each ramp.
        end_ms: End of each ramp, where it has risen by its mass; not before its start.
        mass: Mass of each ramp.
        line: Sum to which each ramp belongs; None: all belong to the first.
        lines: Number of sums.
    """
    width_ms = np.maximum(end_ms - start_ms, 1.0)
    slope = mass / width_ms
    base_ms = at_ms[0] if len(at_ms) else 0.0
    columns = len(at_ms) + 1
    size = lines * columns

    def place(x_ms: Floats) -> Integers:
        index = np.searchsorted(at_ms, x_ms, "left").astype(np.int64)
        return index if line is None else index + line * columns

    starts, ends = place(start_ms), place(start_ms + width_ms)
    risen_ms = slope * (start_ms - base_ms)

    def summed(at_start: Floats, at_end: Floats) -> Floats:
        total: Floats = (np.bincount(starts, at_start, size) + np.bincount(ends, at_end, size)).astype(np.float64)
        return np.cumsum(total.reshape(lines, columns), axis=1)[:, :-1]

    slopes = summed(slope, -slope)
    constants = summed(-risen_ms, risen_ms + mass)
    found: Floats = slopes * (at_ms - base_ms) + constants
    return found


def risen_evenly(
    base_ms: float, step_ms: float, moments: int, start_ms: Floats, end_ms: Floats, mass: Floats
) -> Floats:
    """Sum ramps at evenly spaced moments, like `risen`, with beginnings and ends moved to the nearest moment.

    Args:
        base_ms: The first moment, before every ramp.
        step_ms: Distance of the moments.
        moments: Number of moments; the last two are after every ramp.
        start_ms: Beginning of each ramp.
        end_ms: End of each ramp, where it has risen by its mass; not before its start.
        mass: Mass of each ramp.
    """
    first = np.rint((start_ms - base_ms) / step_ms).astype(np.int64)
    last = np.maximum(np.rint((end_ms - base_ms) / step_ms).astype(np.int64), first + 1)
    rise = mass / (last - first)
    bend: Floats = (np.bincount(first, rise, moments) - np.bincount(last, rise, moments)).astype(np.float64)
    # A slope holds from the next moment on.
    found: Floats = np.cumsum(np.r_[0.0, np.cumsum(bend)[:-1]])
    return found


Events = tuple[Integers, Floats, Floats, Floats, Floats]
"""(row, x, jump, change of slope, change of the number of ramps that rise), ordered by row and x."""


def _events(
    row: Integers, start_ms: Floats, end_ms: Floats, share: Floats, rows: int, origin_ms: float, stride_ms: float
) -> Events:
    is_jump = end_ms - start_ms < JUMP_MS
    slope = np.where(is_jump, 0.0, share / np.where(is_jump, 1.0, end_ms - start_ms))
    none, ends = np.zeros(rows), ~is_jump
    event_row = np.concatenate([np.arange(rows), row, row[ends]])
    x_ms = np.concatenate([np.full(rows, origin_ms), start_ms, end_ms[ends]])
    order = np.argsort(event_row * stride_ms + (x_ms - origin_ms), kind="stable")
    rise = np.concatenate([none, np.where(is_jump, share, 0.0), np.zeros(int(ends.sum()))])
    bend = np.concatenate([none, slope, -slope[ends]])
    running = np.concatenate([none, np.where(is_jump, 0.0, 1.0), np.full(int(ends.sum()), -1.0)])
    return event_row[order], x_ms[order], rise[order], bend[order], running[order]


def _lattice_events(
    row: Integers, start_ms: Floats, end_ms: Floats, share: Floats, rows: int, origin_ms: float, places: int
) -> Events:
    begin_ms, until_ms = np.full(rows, np.inf), np.full(rows, -np.inf)
    np.minimum.at(begin_ms, row, start_ms)
    np.maximum.at(until_ms, row, np.maximum(end_ms, start_ms))
    begin_ms[np.isinf(begin_ms)] = origin_ms + 1.0  # rows without a ramp
    step_ms = np.maximum((until_ms - begin_ms) / places, 1e-3)
    per_ms = 1.0 / step_ms[row]
    first = np.rint((start_ms - begin_ms[row]) * per_ms).astype(np.int64)
    last = np.rint((np.maximum(end_ms, start_ms) - begin_ms[row]) * per_ms).astype(np.int64)
    is_jump = last == first
    slope = np.where(is_jump, 0.0, share * per_ms / np.maximum(last - first, 1))
    # Before its places a row has its own beginning, from which on it is flat.
    width = places + 2
    begin = row * width + 1
    end, size = begin + last, rows * width
    begin += first
    opens = np.where(is_jump, 0.0, 1.0)
    rise: Floats = np.bincount(begin, np.where(is_jump, share, 0.0), size).astype(np.float64)
    bend: Floats = (np.bincount(begin, slope, size) - np.bincount(end, slope, size)).astype(np.float64)
    running: Floats = (np.bincount(begin, opens, size) - np.bincount(end, opens, size)).astype(np.float64)
    x_ms = begin_ms[:, None] + np.arange(-1.0, places + 1) * step_ms[:, None]
    x_ms[:, 0] = origin_ms
    event_row: Integers = np.repeat(np.arange(rows, dtype=np.int64), width)
    return event_row, x_ms.ravel(), rise, bend, running


def _within_rows(steps: Floats, opens: Integers, event_row: Integers) -> Floats:
    total = np.cumsum(steps)
    found: Floats = total - total[opens][event_row] if len(opens) else total
    return found

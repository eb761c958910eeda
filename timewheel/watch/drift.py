"""Drift: present rate and delays, compared with those that a plan was made for."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.spark_planner.summary.cells import Cells
from timewheel.watch.sends import SHARES, Sends

RATE_DRIFT = 0.2
"""Fraction of the former rate: a change by a fifth, beyond chance and sampling error, is drift."""
DELAY_DRIFT = 0.1
"""Fraction of all timers: changed delays of a tenth of them, beyond chance and sampling error, are drift."""
SAME = 0.03
"""Fraction of a delay: smaller differences count as equal. Statistics have buckets of 3 %, and clocks jitter."""
WEEKLY_MS = 14 * DAY_MS
"""Length from which a history is compared by days of the week; a shorter history is compared by hours of the day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Former rate and delays.

    Args:
        name: Source of the reference, worded to follow "against".
        per_second: Sends per second, at the same hours.
        quantiles_ms: Delays not exceeded by `SHARES` of the sends.
    """

    name: str
    per_second: float
    quantiles_ms: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Change of rate and delays since a reference.

    Args:
        reference: The reference.
        rate: Present rate divided by the former rate.
        rate_error: Error of `rate`, at 95 %.
        moved: Least share of timers whose delays have changed.
        moved_error: Error of `moved`, at 95 %.
        quantiles_ms: Delays not exceeded by `SHARES` of the present sends.
    """

    reference: Reference
    rate: float
    rate_error: float
    moved: float
    moved_error: float
    quantiles_ms: tuple[int, ...]

    @property
    def is_rate(self) -> bool:
        """True if the rate has changed."""
        return abs(self.rate - 1) - self.rate_error > RATE_DRIFT

    @property
    def is_delay(self) -> bool:
        """True if the delays have changed."""
        return self.moved - self.moved_error > DELAY_DRIFT


def drift(sends: Sends, reference: Reference) -> Drift:
    """Compare the sends with a reference.

    Args:
        sends: Enough sends (`Sends.is_enough`).
        reference: Reference with a rate above 0.
    """
    delays_ms, shares = sends.delays()
    return Drift(
        reference=reference,
        rate=sends.per_second / reference.per_second,
        rate_error=sends.per_second_error / reference.per_second,
        moved=_moved(delays_ms, shares, reference.quantiles_ms),
        moved_error=sends.share_error,
        quantiles_ms=sends.quantiles_ms(),
    )


def _moved(delays_ms: Sequence[int], shares: Sequence[float], then_ms: Sequence[int]) -> float:
    """Return the largest change of the share of timers up to any of the former quantiles.

    Many timers may share a delay; then any share from just below that delay up to it counts as unchanged.
    """
    reached = [0.0, *accumulate(shares)]
    most = 0.0
    for share, quantile_ms in zip(SHARES, then_ms, strict=True):
        below = reached[bisect_left(delays_ms, quantile_ms * (1 - SAME))]
        upto = reached[bisect_right(delays_ms, quantile_ms * (1 + SAME))]
        most = max(most, below - share, share - upto)
    return most


def reference_of(cells: Cells, name: str, from_ms: int, until_ms: int) -> Reference | None:
    """Return a history's rate and delays at the hours of a window.

    A window shorter than a day is compared with the same hours of the history's days, and of the same days of the week
    if the history has two weeks. Otherwise the night would count as a drop in traffic.

    Args:
        cells: Cells of a single topic.
        name: Name of the reference (`Reference.name`).
        from_ms: Start of the window, UTC milliseconds.
        until_ms: End of the window, UTC milliseconds.

    Returns:
        The reference; None if the history has no timer at these hours, or no length.
    """
    first_ms, last_ms = int(cells.publish_min_ms.min()), int(cells.publish_max_ms.max()) + 1
    period_ms = DAY_MS if last_ms - first_ms < WEEKLY_MS else 7 * DAY_MS
    is_all = until_ms - from_ms >= period_ms or last_ms - first_ms < DAY_MS
    # Hours of the period, so that a window of some minutes is not compared with equally few minutes of a day.
    begin = 0 if is_all else from_ms // HOUR_MS
    hours = period_ms // HOUR_MS if is_all else -(-until_ms // HOUR_MS) - begin
    middle_ms: NDArray[np.int64] = cells.middle_ms
    inside = (middle_ms // HOUR_MS - begin) % (period_ms // HOUR_MS) < hours
    count = cells.count[inside]
    length_ms = last_ms - first_ms
    if not is_all:
        all_hours = np.arange(first_ms // HOUR_MS, -(-last_ms // HOUR_MS))
        same = all_hours[(all_hours - begin) % (period_ms // HOUR_MS) < hours]
        # The first and the last hour may be incomplete.
        length_ms = int(
            (np.minimum((same + 1) * HOUR_MS, last_ms) - np.maximum(same * HOUR_MS, first_ms)).clip(0).sum()
        )
    if not len(count) or length_ms <= 0:
        return None
    return Reference(
        name=name,
        per_second=float(count.sum()) * 1_000 / length_ms,
        quantiles_ms=_quantiles(cells.where(inside)),
    )


def _quantiles(cells: Cells) -> tuple[int, ...]:
    """Return the quantiles of the delays; timers of a cell count with the cell's middle delay."""
    delay_ms = (cells.delay_min_ms + cells.delay_max_ms) // 2
    order = np.argsort(delay_ms)
    reached = np.cumsum(cells.count[order])
    places = np.searchsorted(reached, np.array(SHARES) * reached[-1] - 1e-9)
    return tuple(int(delay) for delay in delay_ms[order][np.minimum(places, len(order) - 1)])

"""Drift: rate and delays now, against those that a plan was made for."""

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

__all__ = ["DELAY_DRIFT", "RATE_DRIFT", "Drift", "Reference", "drift", "reference_of"]

RATE_DRIFT = 0.2
"""In parts of the rate then: a fifth more or less, beyond what chance and sample explain."""
DELAY_DRIFT = 0.1
"""In parts of all timers: a tenth of them have become longer or shorter, beyond the same."""
SAME = 0.03
"""In parts of a delay: two that differ by less count as one. Statistics keep them in buckets of 3 %; clocks jitter."""
WEEKLY_MS = 14 * DAY_MS
"""Of a history as long as this the same days of the week are compared, of a shorter one the same hours of the day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What sends were like.

    Args:
        name: Where that is from, as a sentence goes on after "against".
        per_second: Sends a second, at the same hours.
        quantiles_ms: Delays that `SHARES` of them did not exceed.
    """

    name: str
    per_second: float
    quantiles_ms: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How sends have changed.

    Args:
        reference: Since when.
        rate: The rate now, in parts of that then.
        rate_error: Of that, at 95 %.
        moved: The share of timers whose delays are others now, at the least.
        moved_error: Of that, at 95 %.
        quantiles_ms: Delays that `SHARES` of the sends do not exceed now.
    """

    reference: Reference
    rate: float
    rate_error: float
    moved: float
    moved_error: float
    quantiles_ms: tuple[int, ...]

    @property
    def is_rate(self) -> bool:
        """Whether the rate is another than it was."""
        return abs(self.rate - 1) - self.rate_error > RATE_DRIFT

    @property
    def is_delay(self) -> bool:
        """Whether the delays are."""
        return self.moved - self.moved_error > DELAY_DRIFT


def drift(sends: Sends, reference: Reference) -> Drift:
    """Compare.

    Args:
        sends: Enough of them (`Sends.is_enough`).
        reference: With a rate that is not 0.
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
    """How far the share up to any of the quantiles then is from what it was.

    Many timers may have the same delay; then any share from just below that delay up to it is as it was.
    """
    reached = [0.0, *accumulate(shares)]
    most = 0.0
    for share, quantile_ms in zip(SHARES, then_ms, strict=True):
        below = reached[bisect_left(delays_ms, quantile_ms * (1 - SAME))]
        upto = reached[bisect_right(delays_ms, quantile_ms * (1 + SAME))]
        most = max(most, below - share, share - upto)
    return most


def reference_of(cells: Cells, name: str, from_ms: int, until_ms: int) -> Reference | None:
    """What a history says of the same hours as those of a window.

    A window shorter than a day is held against the same hours of the history's days, and of the same days of the week
    where there are two weeks: else the night would be said to have less traffic than the day.

    Args:
        cells: Of one topic.
        name: See `Reference`.
        from_ms: When the window begins, UTC milliseconds.
        until_ms: And ends.

    Returns:
        None: the history has no timer at these hours, or no length.
    """
    first_ms, last_ms = int(cells.publish_min_ms.min()), int(cells.publish_max_ms.max()) + 1
    period_ms = DAY_MS if last_ms - first_ms < WEEKLY_MS else 7 * DAY_MS
    is_all = until_ms - from_ms >= period_ms or last_ms - first_ms < DAY_MS
    # Hours of the period, so that a window of some minutes is not held against as few of one day.
    begin = 0 if is_all else from_ms // HOUR_MS
    hours = period_ms // HOUR_MS if is_all else -(-until_ms // HOUR_MS) - begin
    middle_ms: NDArray[np.int64] = cells.middle_ms
    inside = (middle_ms // HOUR_MS - begin) % (period_ms // HOUR_MS) < hours
    count = cells.count[inside]
    length_ms = last_ms - first_ms
    if not is_all:
        all_hours = np.arange(first_ms // HOUR_MS, -(-last_ms // HOUR_MS))
        same = all_hours[(all_hours - begin) % (period_ms // HOUR_MS) < hours]
        # The first and the last of them may be cut short.
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
    """Of the delays; a cell's timers are taken as having the middle one."""
    delay_ms = (cells.delay_min_ms + cells.delay_max_ms) // 2
    order = np.argsort(delay_ms)
    reached = np.cumsum(cells.count[order])
    places = np.searchsorted(reached, np.array(SHARES) * reached[-1] - 1e-9)
    return tuple(int(delay) for delay in delay_ms[order][np.minimum(places, len(order) - 1)])

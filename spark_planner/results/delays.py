"""The distribution of delays, for readers: shares of a few round spans, computed from cells."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np

from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS, format_duration, rounded_up
from timewheel.core.plurals import counted
from timewheel.spark_planner.summary.cells import Cells

__all__ = ["DelaySpan", "delay_quantile_ms", "delay_spans", "reading"]

EDGES_MS = (
    0,
    MINUTE_MS,
    10 * MINUTE_MS,
    HOUR_MS,
    6 * HOUR_MS,
    DAY_MS,
    2 * DAY_MS,
    5 * DAY_MS,
    10 * DAY_MS,
    20 * DAY_MS,
    30 * DAY_MS,
    60 * DAY_MS,
    90 * DAY_MS,
    180 * DAY_MS,
    365 * DAY_MS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DelaySpan:
    """Timers with a delay in a span.

    Args:
        name: The span, such as ``1h to 6h``.
        from_ms: The least delay in the span.
        timers: Number of timers; fractional, since a cell may lie across a border.
    """

    name: str
    from_ms: int
    timers: float


def delay_spans(cells: Cells) -> tuple[DelaySpan, ...]:
    """Return the shares of round spans, from the first with a timer to the last; timers are uniform within a cell."""
    below = [_timers_below(cells, edge_ms) for edge_ms in EDGES_MS]
    counts = np.diff([*below, float(cells.timers)])
    names = [
        "under 1m",
        *(f"{format_duration(low)} to {format_duration(high)}" for low, high in pairwise(EDGES_MS[1:])),
        "1 year up",
    ]
    spans = [
        DelaySpan(name=name, from_ms=from_ms, timers=float(count))
        for name, from_ms, count in zip(names, EDGES_MS, counts, strict=True)
    ]
    used = [number for number, span in enumerate(spans) if span.timers > 0]
    return tuple(spans[used[0] : used[-1] + 1]) if used else ()


def reading(cells: Cells) -> str:
    """Describe the history in a sentence that shows a reader whether columns and units were interpreted correctly."""
    first, last = (
        datetime.fromtimestamp(at_ms / 1_000, UTC)
        for at_ms in (int(cells.publish_min_ms.min()), int(cells.publish_max_ms.max()))
    )
    half, most = (rounded_up(delay_quantile_ms(cells, share)) for share in (0.5, 0.99))
    return (
        f"As read: {counted(cells.timers, 'timer')} sent from {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC; "
        f"half of the delays are within {half}, 99 % within {most}, "
        f"the longest is {rounded_up(int(cells.delay_max_ms.max()))}."
    )


def delay_quantile_ms(cells: Cells, share: float) -> int:
    """Return the quantile of delays for a share from 0 to 1; exact to a cell's bucket, 3 to 13 percent."""
    order = np.argsort(cells.delay_max_ms)
    reached = np.cumsum(cells.count[order])
    return int(cells.delay_max_ms[order[min(int(np.searchsorted(reached, share * reached[-1])), len(order) - 1)]])


def _timers_below(cells: Cells, edge_ms: int) -> float:
    # Both ends of a cell's span are timers of it: n whole milliseconds from the least to the greatest.
    span_ms = cells.delay_max_ms - cells.delay_min_ms + 1
    shares = np.clip((edge_ms - cells.delay_min_ms) / span_ms, 0.0, 1.0)
    return float((shares * cells.count).sum())

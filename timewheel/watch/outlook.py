"""What growth leads to: which limit is reached first, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from timewheel.spark_planner.choice.constraints import Room
from timewheel.spark_planner.steady.trend import Trend
from timewheel.watch.growth import Growth

__all__ = ["Outlook", "Reached", "outlook_of"]

GAP_LIMIT = "gap limit"
"""In the words of a `Room` of gaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A limit that growth leads to.

    Args:
        limit: In words, with its unit.
        at_ms: When, UTC milliseconds.
        growth: By which.
        basis: What grows, in words.
    """

    limit: str
    at_ms: int
    growth: Growth
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What is ahead.

    Args:
        until_ms: The horizon, UTC milliseconds.
        volume: How the sends grow; None: it is not known.
        gaps: How the predicted peak grows; None: it is not known.
        reached: The limit that is reached first; None: none, or nobody knows.
        times: As many times the present volume as there will be at the horizon; 1: it does not grow.
    """

    until_ms: int
    volume: Growth | None
    gaps: Growth | None
    reached: Reached | None
    times: float

    @property
    def compares(self) -> bool:
        """Whether earlier figures say anything of growth."""
        return self.volume is not None or self.gaps is not None

    @property
    def is_soon(self) -> bool:
        """Whether a limit is reached within the horizon."""
        return self.reached is not None and self.reached.at_ms <= self.until_ms


def outlook_of(
    rooms: Sequence[Room], volume: Growth | None, gaps: Growth | None, trend: Trend | None, now_ms: int, horizon_ms: int
) -> Outlook:
    """Which limit is reached first.

    Args:
        rooms: How many times the present volume each limit allows; none: it is not known.
        volume: Growth of the sends over earlier checks.
        gaps: Growth of the predicted peak over earlier checks of the same plan: of longer delays too.
        trend: Of a saved statistic, where checks say nothing of the volume.
        now_ms: UTC milliseconds.
        horizon_ms: How far to look.
    """
    basis = "the sends of earlier checks"
    if volume is None and trend is not None:
        volume = Growth(weekly=trend.weekly_growth, weeks=trend.weeks, checks=0, at_ms=now_ms)
        basis = "the statistic"
    found = []
    for room in rooms:
        ways = [(volume, basis)]
        if GAP_LIMIT in room.limit:
            ways.append((gaps, "the gaps that earlier checks predicted"))
        for growth, by in ways:
            at_ms = None if growth is None or growth.weekly <= 0 else growth.reached_ms(room.times)
            if growth is not None and at_ms is not None:
                found.append(Reached(limit=room.limit, at_ms=at_ms, growth=growth, basis=by))
    times = max((growth.times_after(horizon_ms) for growth in (volume, gaps) if growth is not None), default=1.0)
    return Outlook(
        until_ms=now_ms + horizon_ms,
        volume=volume,
        gaps=gaps,
        reached=min(found, key=lambda reached: reached.at_ms, default=None),
        times=max(times, 1.0),
    )

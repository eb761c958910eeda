"""Projection of growth: the limit that is reached first, and its date."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from timewheel.spark_planner.choice.constraints import Room
from timewheel.spark_planner.extrapolation import Trend
from timewheel.watch.growth import Growth

GAP_LIMIT = "gap limit"
"""The phrase by which a `Room` of gaps names its limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A limit that growth will reach.

    Args:
        limit: The limit in words, with its unit.
        at_ms: When the limit is reached, UTC milliseconds.
        growth: The growth that reaches it.
        basis: The growing figure, in words.
    """

    limit: str
    at_ms: int
    growth: Growth
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Projection of growth to the horizon.

    Args:
        until_ms: The horizon, UTC milliseconds.
        volume: Growth of the sends; None if unknown.
        gaps: Growth of the predicted peak; None if unknown.
        reached: The limit that is reached first; None if growth reaches no limit, or is unknown.
        times: Volume at the horizon divided by the present volume; 1 without growth.
    """

    until_ms: int
    volume: Growth | None
    gaps: Growth | None
    reached: Reached | None
    times: float

    @property
    def compares(self) -> bool:
        """True if earlier figures suffice to estimate growth."""
        return self.volume is not None or self.gaps is not None

    @property
    def is_soon(self) -> bool:
        """True if a limit is reached within the horizon."""
        return self.reached is not None and self.reached.at_ms <= self.until_ms


def outlook_of(
    rooms: Sequence[Room], volume: Growth | None, gaps: Growth | None, trend: Trend | None, now_ms: int, horizon_ms: int
) -> Outlook:
    """Find the limit that is reached first.

    Args:
        rooms: The factor on the present volume that each limit allows; empty if unknown.
        volume: Growth of the sends over earlier checks.
        gaps: Growth of the predicted peak over earlier checks of the same plan; longer delays raise it too.
        trend: Trend of a saved statistic, used if checks do not show the growth of the volume.
        now_ms: Present time, UTC milliseconds.
        horizon_ms: Time ahead to look.
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

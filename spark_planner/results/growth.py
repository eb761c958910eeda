"""The time at which the recommended plan reaches its limits, if the topic keeps growing as its history did."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from timewheel.spark_planner.choice.constraints import Room
from timewheel.spark_planner.extrapolation.trend import Trend, trend_of
from timewheel.spark_planner.history.sampled import sample_note
from timewheel.spark_planner.job import Planned

__all__ = ["describe_growth", "growth_facts", "reached_on", "trend_in"]


def trend_in(planned: Planned) -> Trend | None:
    """Return the trend of the history alone; None: it is too short, or a sample.

    A sample has only the messages that the broker still stores: of older days only timers of long delay, which looks
    like growth.
    """
    if sample_note(planned.history.source) is not None:
        return None
    return trend_of(planned.history.cells(planned.topic))


def reached_on(planned: Planned, room: Room, trend: Trend) -> str:
    """Return the day on which a limit is reached, such as ``2027-03-14``; empty: not within ten years."""
    at_ms = trend.reached_ms(room.times * planned.growth)
    return "" if at_ms is None else f"{datetime.fromtimestamp(at_ms / 1_000, UTC):%Y-%m-%d}"


def describe_growth(planned: Planned) -> str:
    """Describe when the nearest limit is reached, with the evidence for the growth; empty: unknown."""
    trend = trend_in(planned)
    if trend is None or not planned.choice.rooms:
        return ""
    if not trend.weekly_growth:
        return (
            f"No growth is seen in this history: of its {trend.weeks} full weeks the last has "
            f"{trend.last_timers:,.0f} timers, the first {trend.first_timers:,.0f} (on the same days of the week)."
        )
    room = planned.choice.rooms[0]
    basis = (
        f"This history grows by {trend.weekly_growth:.1%} a week (the last of {trend.weeks} full weeks against the "
        "first)"
    )
    day = reached_on(planned, room, trend)
    if not day:
        return f"{basis}: at this growth no limit is reached within ten years."
    if room.times * planned.growth <= 1:
        return f"{basis}, and by the estimate it has reached {room.limit}."
    return f"{basis}: at this growth {room.limit} is reached about {day} (estimated)."


def growth_facts(planned: Planned) -> dict[str, Any] | None:
    """Return the trend and the days of the limits as JSON; None: unknown."""
    trend = trend_in(planned)
    if trend is None:
        return None
    return {
        "full_weeks": trend.weeks,
        "first_week_timers": trend.first_timers,
        "last_week_timers": trend.last_timers,
        "weekly_growth": trend.weekly_growth,
        "limits_reached_on": {room.limit: reached_on(planned, room, trend) or None for room in planned.choice.rooms},
    }

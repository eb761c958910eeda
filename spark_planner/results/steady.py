"""Notices about a history that is shorter than its delays."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from timewheel.core.durations import DAY_MS, rounded_up
from timewheel.core.history_span import describe_span
from timewheel.core.plurals import counted
from timewheel.spark_planner.extrapolation.confidence import LEAST_DAYS
from timewheel.spark_planner.extrapolation.continued import MAX_TIMERS, Continued
from timewheel.spark_planner.job import Planned

__all__ = ["describe_native", "describe_traffic", "extrapolation_facts"]


def describe_traffic(traffic: Continued) -> list[str]:
    """Describe a history that is too short, and its continuation; empty if it is long enough."""
    found = traffic.warm_up
    if found is None:
        return []
    said = describe_span(found.history_ms, found.warm_up_ms)
    if traffic.continuation is None:
        return [f"{said} {_alone(traffic)}"]
    further, days = len(traffic.continuation.sources), len(traffic.continuation.days.drawn)
    how = "a Monday for a Monday" if traffic.continuation.days.by_weekday else "in random order"
    said += (
        f" So it was continued by {counted(further, 'day')}, drawn from {days} of its own ({how}); a history of "
        f"{rounded_up(found.warm_up_ms)} would be long enough, and --as-is plans for the history alone."
    )
    return [said, *_left_out(traffic)]


def describe_native(planned: Planned) -> list[str]:
    """Describe the gaps of native delays in the history alone and continued; empty if both are the same."""
    continued, confidence = planned.traffic.continuation, planned.traffic.confidence
    if continued is None or planned.native_alone is None:
        return []
    gaps = planned.native.replay.peak_of_total.gap_count
    said = (
        f"Native delays on one partition leave at most {counted(planned.native_alone.peak_of_total.gap_count, 'gap')} "
        f"in the history alone, and {gaps:,} when it is continued (both counted)"
    )
    if confidence is not None:
        low, high = confidence.low * gaps, confidence.high * gaps
        return [f"{said}: between {low:,.0f} and {high:,.0f} with 95 % confidence. The plan is for the upper end."]
    if gaps and len(continued.days.drawn) < LEAST_DAYS:
        return [f"{said}; no confidence interval from fewer than {LEAST_DAYS} days."]
    return [said + "."]


def extrapolation_facts(traffic: Continued) -> dict[str, Any] | None:
    """Return the steady state as JSON; None: the history is long enough."""
    found, continued, confidence = traffic.warm_up, traffic.continuation, traffic.confidence
    if found is None:
        return None
    return {
        "history_ms": found.history_ms,
        "warm_up_ms": found.warm_up_ms,
        "estimated_pending": found.pending if found.has_rate else None,
        "estimated_native_gaps": found.gaps if found.has_rate else None,
        "continued_days": 0 if continued is None else len(continued.sources),
        "not_continued": traffic.unfit or None,
        "days_drawn_from": 0 if continued is None else len(continued.days.drawn),
        "campaign_days_ms": [] if continued is None else _campaign_days_ms(traffic),
        "weekly_growth": 0.0 if continued is None else continued.days.weekly_growth,
        "native_gaps_times_low": None if confidence is None else confidence.low,
        "native_gaps_times_high": None if confidence is None else confidence.high,
    }


def _alone(traffic: Continued) -> str:
    found = traffic.warm_up
    assert found is not None
    said = "All figures here are of the history alone"
    if found.has_rate:
        said = (
            f"If timers go on being sent like this, about {found.pending:,.0f} will wait, and native delays on one "
            f"partition will leave about {counted(round(found.gaps), 'gap')} (estimated). {said}"
        )
    match traffic.unfit:
        case "burst":
            return f"{said}. Plan from a history of a day or more; best, longer than its delays."
        case "days":
            return f"{said}: its delays are too long to continue it. Plan from a longer history."
        case "timers":
            return (
                f"{said}: continued it would have more than {MAX_TIMERS:,} timers. Plan from a longer history, or from "
                "every "
                "tenth timer with --growth 10."
            )
        case _:
            return f"{said} (--as-is)."


def _left_out(traffic: Continued) -> list[str]:
    assert traffic.continuation is not None
    days = traffic.continuation.days
    said = []
    if days.campaigns:
        named = ", ".join(
            f"{datetime.fromtimestamp(at_ms / 1_000, UTC):%Y-%m-%d}" for at_ms in _campaign_days_ms(traffic)
        )
        said.append(
            f"Not continued: the campaign of {named}, when far more was sent than in the same hours of other days. If "
            "campaigns recur, give a history with several of them."
        )
    if days.weekly_growth:
        said.append(
            f"Its volume changes by {days.weekly_growth:+.0%} a week. It was continued like its last week; --growth "
            "plans for a larger volume."
        )
    return said


def _campaign_days_ms(traffic: Continued) -> list[int]:
    assert traffic.continuation is not None
    days = traffic.continuation.days
    # The middle: days are counted back from the last send, and usually begin on the previous calendar day.
    return [days.begins_ms[day] + DAY_MS // 2 for day in days.campaigns]

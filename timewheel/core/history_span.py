"""Tests whether a history of sends is long enough to show a topic in its full state."""

from __future__ import annotations

from timewheel.core.durations import DAY_MS, HOUR_MS, rounded_up


def shows_day(span_ms: float) -> bool:
    """Return whether a history has a day at least: the first and the last send of a day lie some time within it.

    A shorter history may be a burst: its rate could not go on, and the sends of other hours are not in it.
    """
    return span_ms >= DAY_MS - HOUR_MS


def shows_full(span_ms: float, warm_up_ms: float) -> bool:
    """Return whether a history is longer than its delays: after ``warm_up_ms``, nearly the longest delay, a topic holds
    99 % of its lasting number of timers.
    """
    return span_ms > 0 and span_ms >= warm_up_ms


def describe_span(span_ms: int, warm_up_ms: int) -> str:
    """Render the respect in which a history is too short, as a sentence; empty: the history is long enough."""
    span, settles = rounded_up(span_ms), rounded_up(warm_up_ms)
    is_full = shows_full(span_ms, warm_up_ms)
    if is_full:
        return "" if shows_day(span_ms) else f"This history spans {span}, less than a day: other hours are not in it."
    if not shows_day(span_ms):
        return (
            f"This history spans {span}, less than a day, and with its delays a topic takes {settles} to fill up: it "
            "shows a burst, not the steady state of the topic."
        )
    return (
        f"This history spans {span}, but with its delays a topic takes {settles} to fill up: it shows the topic while "
        "it fills, not its steady state."
    )

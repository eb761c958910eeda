"""A timer that is neither handled nor redelivered: it is published anew, and then acknowledged."""

from __future__ import annotations

from typing import NamedTuple

from timewheel.core.durations import format_duration, spelled

MAX_REASON_CHARS = 1_000
"""Longest reason and error; properties are metadata, and a broker limits their size."""


class ToRetry(NamedTuple):
    """To be handled again by the same subscription.

    Args:
        due_ms: Due time of the next attempt, UTC milliseconds.
    """

    due_ms: int


class Parked(NamedTuple):
    """To wait for an operator.

    Args:
        reason: The reason, as a sentence.
        error: The handler's exception; empty if there is none.
    """

    reason: str
    error: str = ""


Redirect = ToRetry | Parked


def too_late_to_know(late_ms: int, keep_ms: int) -> Parked:
    """Park a timer that came too late to know whether it was cancelled.

    Args:
        late_ms: Its lateness.
        keep_ms: Time that its plan keeps cancellations.
    """
    return Parked(
        f"it came {spelled(late_ms)} after its due time, and cancellations are kept for {format_duration(keep_ms)}: "
        "it may have been cancelled"
    )

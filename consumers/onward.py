"""What becomes of a timer that is neither handled nor delivered again: it is published anew, and then acknowledged."""

from __future__ import annotations

from typing import NamedTuple

from timewheel.core.durations import format_duration, spelled

__all__ = ["MAX_REASON_CHARS", "Onward", "Parked", "TriedAgain", "too_late_to_judge"]

MAX_REASON_CHARS = 1_000
"""Of a reason and of an error; properties are metadata, and a broker takes few of them."""


class TriedAgain(NamedTuple):
    """To be handled again by the same subscription.

    Args:
        due_ms: When, UTC milliseconds.
    """

    due_ms: int


class Parked(NamedTuple):
    """To wait for an operator.

    Args:
        reason: Why, as a sentence.
        error: What the handler raised; empty: nothing.
    """

    reason: str
    error: str = ""


Onward = TriedAgain | Parked


def too_late_to_judge(late_ms: int, keep_ms: int) -> Parked:
    """Nobody can say any more whether it was cancelled.

    Args:
        late_ms: How much after its due time it came.
        keep_ms: How long its plan keeps cut-offs.
    """
    return Parked(
        f"it came {spelled(late_ms)} after its due time, and cut-offs are kept for {format_duration(keep_ms)}: "
        "it may have been cancelled"
    )

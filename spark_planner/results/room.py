"""The sentences about a plan that keeps the limits with little room, however it was chosen."""

from __future__ import annotations

from timewheel.core.gap_law import WATCH_SHARE
from timewheel.spark_planner.choice.constraints import TWICE

__all__ = ["describe_room"]


def describe_room(gaps: float, limit: int, *, room: float, is_short_of_room: bool) -> str:
    """Describe the remedies of little room, with a space before each sentence; empty: there is room.

    Args:
        gaps: The most gaps in a partition, at the planned volume.
        limit: The broker's limit.
        room: Multiple of the history's volume at which the gaps reach the limit.
        is_short_of_room: True if the history is a burst, and `TWICE` as many timers would break the limit.
    """
    said = ""
    if gaps > WATCH_SHARE * limit + 1e-6:
        said += (
            f" That fits the limit, but is above the {WATCH_SHARE:.0%} of it from which gaps are a warning: for more "
            f"room plan again with --gap-fraction {WATCH_SHARE:g}."
        )
    if is_short_of_room:
        said += (
            f" This history is SHORT, and shows one burst: {room:.2g} times as many timers at a time, or a "
            f"second burst while the first waits, reach the limit. Plan again with --growth {TWICE:g} to have room, or "
            "from a longer history."
        )
    return said

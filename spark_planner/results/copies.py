"""Notice of repeated rows: an export that is contained twice would be planned for as twice the traffic."""

from __future__ import annotations

from typing import Any

from timewheel.core.plurals import counted
from timewheel.spark_planner.job import Planned

__all__ = ["copies_facts", "describe_copies"]

REPORTED_SHARE = 0.01


def describe_copies(planned: Planned) -> str:
    """Describe the repeated rows in a sentence; empty if there are few."""
    timers = planned.history.cells(planned.topic).timers
    if planned.repeated < max(REPORTED_SHARE * timers, 1):
        return ""
    return (
        f"{planned.repeated:,} of {counted(timers, 'row')} ({planned.repeated / timers:.0%}) "
        f"{'repeats' if planned.repeated == 1 else 'repeat'} another one in send time, due time and key. "
        "If they are copies, the volume, the costs and perhaps the gaps are too high: name the column of timer ids "
        "(--timer-id), or remove the copies. If they are separate timers, nothing is wrong."
    )


def copies_facts(planned: Planned) -> dict[str, Any]:
    """Return the repeated rows as JSON."""
    return {"repeated_rows": planned.repeated}

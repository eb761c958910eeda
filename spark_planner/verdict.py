"""The one sentence that a reader takes away."""

from __future__ import annotations

from timewheel.core.plan import Native
from timewheel.spark_planner.job import Planned
from timewheel.spark_planner.reasons import describe

__all__ = ["verdict"]


def verdict(planned: Planned) -> str:
    """What to do, and the gaps that decide it: counted by the exact replay, or predicted for a volume not seen yet."""
    plan, limit = planned.plan, planned.profile.gap_limit_ranges
    if planned.growth == 1:
        fullest: float = planned.recommended.replay.peak_per_partition.gap_count
        today: float = planned.native.replay.peak_of_total.gap_count
        when, leaves = "", "this history leaves"
    else:
        fullest, today = planned.choice.recommended.evaluation.peak_gaps_per_partition, planned.choice.native.peak_gaps
        when, leaves = f" for {planned.growth:g} times this volume", "it would leave"
    broken = "" if planned.keeps_limits else " (NOT within every limit)"
    if isinstance(plan.scheme, Native) and plan.partitions == 1:
        said = f"Stay with native delays on one partition{when}{broken}"
        return f"{said}: {leaves} at most {today:,.0f} gaps, of {limit:,} that the broker keeps."
    where = "one partition" if plan.partitions == 1 else f"{plan.partitions} partitions"
    return (
        f"Use {describe(plan)} on {where}{when}{broken}: {leaves} at most {fullest:,.0f} gaps in a partition, of "
        f"{limit:,} that the broker keeps; native delays on one partition leave {today:,.0f}."
    )

"""The one sentence that a reader takes away."""

from __future__ import annotations

from timewheel.spark_planner.choice.reasons import describe, partitions_in_words, stays
from timewheel.spark_planner.job import Planned
from timewheel.spark_planner.results.peaks import peaks_of

__all__ = ["verdict"]


def verdict(planned: Planned) -> str:
    """What to do, and the gaps that decide it: counted by the exact replay, or predicted for a volume not seen yet.

    A second sentence where the count does not bear out what the plan was chosen by.
    """
    return _recommendation(planned) + _objection(planned)


def _objection(planned: Planned) -> str:
    if planned.is_borne_out or "gap_fraction" in planned.choice.recommended.broken:
        return ""
    counted = planned.recommended.replay.peak_per_partition.gap_count
    return (
        f" The replay counted {counted:,} in the fullest partition of {_which(planned)}, where at most "
        f"{planned.most_countable_gaps:,} go with what was asked: plan with a smaller --gap-fraction."
    )


def _recommendation(planned: Planned) -> str:
    plan, limit = planned.plan, planned.profile.gap_limit_ranges
    peaks = peaks_of(planned)
    fullest, today, how = peaks.then, peaks.now, peaks.known
    if planned.growth == 1:
        when, leaves = "", f"{_which(planned)} leaves"
    else:
        when, leaves = f" for {planned.growth:g} times this volume", "it would leave"
    broken = "" if planned.keeps_limits else " (NOT within every limit)"
    if stays(plan):
        said = f"Stay with native delays on {partitions_in_words(plan.partitions)}{when}{broken}"
        return f"{said}: {leaves} at most {today:,.0f} gaps ({how}), of {limit:,} that the broker keeps."
    return (
        f"Use {describe(plan)} on {partitions_in_words(plan.partitions)}{when}{broken}: {leaves} at most "
        f"{fullest:,.0f} gaps in a partition ({how}), "
        f"of {limit:,} that the broker keeps; native delays on one partition leave {today:,.0f}."
    )


def _which(planned: Planned) -> str:
    return "this history" if planned.traffic.continuation is None else "this history, continued,"

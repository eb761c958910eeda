"""The verdict: the recommendation in one sentence."""

from __future__ import annotations

from timewheel.core.durations import spelled
from timewheel.core.plurals import counted
from timewheel.spark_planner.choice.hindrance import MOSTLY
from timewheel.spark_planner.choice.reasons import describe, partitions_in_words, stays
from timewheel.spark_planner.history.sampled import sample_note
from timewheel.spark_planner.job import Planned
from timewheel.spark_planner.results.peaks import peaks_of
from timewheel.spark_planner.results.room import describe_room

__all__ = ["verdict"]

SETTING = "managedLedgerMaxUnackedRangesToPersist; gap_limit_ranges in a file for --profile"


def verdict(planned: Planned) -> str:
    """State the recommendation, with the gaps that decide: counted by the exact replay, or predicted if volume grows.

    If no plan keeps the gap limit, the verdict names the cause and the remedies.
    """
    return _recommendation(planned) + _hindrance(planned) + _narrow(planned)


def _narrow(planned: Planned) -> str:
    """Describe a plan that keeps the limits with little room, and the remedies; empty: there is room, or it breaks
    them.
    """
    limit, gaps = planned.profile.gap_limit_ranges, planned.counted_gaps
    if not planned.keeps_limits:
        return ""
    said = ""
    if planned.growth != 1 and peaks_of(planned).then > planned.constraints.allowed_gaps(limit):
        said = f" The count decides, which comes to about {counted(round(gaps), 'gap')} at that volume."
    return said + describe_room(gaps, limit, room=planned.gap_room, is_short_of_room=planned.is_short_of_room)


def _hindrance(planned: Planned) -> str:
    """Describe the cause that no plan keeps the gap limit, and the remedies; empty: this plan keeps it."""
    found, limit = planned.hindrance, planned.profile.gap_limit_ranges
    if found is None:
        return ""
    said = f" At most {counted(found.allowed, 'gap goes', 'gaps go')} with what was asked"
    if planned.growth != 1:
        peak = planned.recommended.replay.peak_per_partition.gap_count
        said += f" ({counted(peak, 'was', 'were')} counted at this volume)"
    said += ", and no plan tried keeps that"
    if found.never_held_gaps > found.allowed and planned.plan.own_partitions == 1:
        timers = counted(found.never_held_timers, "timer")
        said += (
            f": none holds back {timers} due within {spelled(found.never_held_ms)} of being sent, which leave "
            f"{counted(found.never_held_gaps, 'gap')} by themselves (counted)"
        )
    elif planned.plan.intake:
        said += (
            ": while timers wait that are due soon, originals between them that a shadow has moved and acknowledged "
            "make gaps"
        )
    said += (
        f". This plan leaves more for {spelled(found.lasts_ms)} at most, and for {MOSTLY:.0%} of the time "
        f"{counted(found.mostly_gaps, 'gap')} at most (counted)"
    )
    helps = [f"a broker that keeps {found.gap_limit_ranges:,} ranges where this one keeps {limit:,} ({SETTING})"]
    if found.partitions is not None:
        # A sample's topic is not partitioned, regardless of the options, and cannot become so.
        is_sample = sample_note(planned.history.source) is not None
        how = "plan again with --due-topic and its name" if is_sample else "plan without --unpartitioned"
        helps.insert(0, f"a new due topic with {partitions_in_words(found.partitions)} ({how})")
    if found.gap_fraction is not None:
        helps.append(f"this plan, with less room (--gap-fraction {found.gap_fraction:g})")
    return f"{said}. What helps: {', or '.join(helps)}."


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
        return f"{said}: {leaves} at most {counted(round(today), 'gap')} ({how}), of {limit:,} that the broker keeps."
    return (
        f"Use {describe(plan)} on {partitions_in_words(plan.partitions)}{when}{broken}: {leaves} at most "
        f"{counted(round(fullest), 'gap')} in a partition ({how}), "
        f"of {limit:,} that the broker keeps; native delays on one partition leave {today:,.0f}."
    )


def _which(planned: Planned) -> str:
    return "this history" if planned.traffic.continuation is None else "this history, continued,"

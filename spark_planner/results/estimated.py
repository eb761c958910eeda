"""The estimate from a survey, in words, tables and JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from timewheel._report.page import Table
from timewheel.core.durations import rounded_up
from timewheel.core.planfile import dump_plan
from timewheel.core.plurals import counted
from timewheel.spark_planner.choice.reasons import describe, partitions_in_words, stays
from timewheel.spark_planner.estimating import Estimated
from timewheel.spark_planner.results.facts import assessed_facts, evaluation_facts
from timewheel.spark_planner.results.room import describe_room
from timewheel.spark_planner.results.skew import key_facts
from timewheel.spark_planner.results.steady import extrapolation_facts
from timewheel.spark_planner.results.tables import front_table, plans_table

__all__ = ["estimated_facts", "estimated_tables", "estimated_verdict"]


def estimated_verdict(found: Estimated) -> str:
    """State the recommendation, its certainty, and the remedies if it has little room."""
    if not found.keeps_limits:
        return _recommendation(found)
    limit, is_short = found.profile.gap_limit_ranges, found.is_short_of_room
    return _recommendation(found) + describe_room(
        found.peak_gaps, limit, room=found.gap_room, is_short_of_room=is_short
    )


def _recommendation(found: Estimated) -> str:
    plan, limit = found.plan, found.profile.gap_limit_ranges
    when = "" if found.growth == 1 else f" for {found.growth:g} times this volume"
    if stays(plan):
        broken = "" if found.keeps_limits else " (NOT within every limit)"
        said = f"Stay with native delays on {partitions_in_words(plan.partitions)}{when}{broken}"
        return f"{said}: {_native(found)}, of {limit:,} that the broker keeps."
    chosen = found.choice.recommended
    said = (
        f"{describe(plan)} on {partitions_in_words(plan.partitions)}{when}: about "
        f"{counted(round(chosen.evaluation.peak_gaps_per_partition), 'gap')} in a partition (estimated), of {limit:,} "
        f"that the broker keeps; {_native(found)}."
    )
    if not found.is_certain:
        return (
            "NOT DECIDED. Neighbouring delays depend on each other here: native gaps are "
            f"{found.native.ratio:.2g} times what independent ones would leave, and estimates of other plans may be as "
            f"wrong. Count them: timewheel plan with the history itself. By the estimates it would be {said}"
        )
    return f"Use {said}" if not chosen.broken else f"Use (NOT within every limit) {said}"


def _native(found: Estimated) -> str:
    native = found.native
    how = f"counted, at moments {rounded_up(native.apart_ms)} apart"
    if found.growth == 1 and found.continued.continuation is None:
        return f"native delays on one partition leave at most {counted(native.counted, 'gap')} ({how})"
    return (
        f"native delays on one partition leave about {counted(round(native.peak * found.growth), 'gap')} (estimated; "
        f"{native.counted:,} in the history alone, {how})"
    )


def estimated_tables(found: Estimated) -> list[Table]:
    """Build the tables: plans side by side, alternatives, and the room to each limit."""
    rooms = [(room.limit, f"{room.times:,.2f}", f"{room.timers_per_day:,.0f}") for room in found.choice.rooms]
    room_table = Table(
        caption="Growth: when this plan reaches each limit (estimated)",
        header=("limit", "times the volume planned for", "timers a day"),
        rows=rooms,
    )
    return [plans_table(found), front_table(found), room_table]


def estimated_facts(found: Estimated) -> dict[str, Any]:
    """Return the estimate as JSON, without the curves."""
    choice, statistic = found.choice, found.survey.statistic
    return {
        "survey": {
            "timers": statistic.timers,
            "topics": len(statistic.cells),
            "days": len(found.survey.days),
            "first_publish_ms": statistic.first_publish_ms,
            "last_publish_ms": statistic.last_publish_ms,
            "quarantined": dict(statistic.quarantined),
        },
        "topic": found.topic,
        "profile": asdict(found.profile),
        "constraints": asdict(found.constraints),
        "growth": found.growth,
        "keeps_limits": found.keeps_limits,
        "is_certain": found.is_certain,
        "is_short_of_room": found.is_short_of_room,
        "native_gaps": asdict(found.native),
        "plan": dump_plan(found.plan),
        "reasons": list(choice.reasons),
        "recommended": assessed_facts(choice.recommended),
        "native": evaluation_facts(choice.native),
        "steady_state": extrapolation_facts(found.continued),
        "keys": key_facts(found),
        "candidate_count": choice.considered,
        "priced_count": len(choice.candidates),
        "front": [assessed_facts(one) for one in choice.front],
        "rooms": [asdict(room) for room in choice.rooms],
    }

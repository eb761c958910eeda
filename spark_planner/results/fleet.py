"""Results for a fleet: the verdict, the ranked table, JSON facts, and the page with links to each topic's report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from timewheel._report.page import Fold, Headline, Page, Section, Table
from timewheel._report.render import render_page
from timewheel.core.planfile import dump_plan
from timewheel.core.plurals import counted
from timewheel.spark_planner.choice.reasons import describe, partitions_in_words, stays
from timewheel.spark_planner.fleet import Fleet, NativeFit, NativeGaps
from timewheel.spark_planner.job import Planned
from timewheel.spark_planner.results.facts import history_facts, planned_facts
from timewheel.spark_planner.results.money import Prices
from timewheel.spark_planner.results.peaks import peaks_of

__all__ = ["fleet_facts", "fleet_page", "fleet_table", "fleet_verdict"]

SAID = {
    NativeFit.FINE: "stays as it is",
    NativeFit.SHORT: "history too short to stay",
    NativeFit.OVER: "too many gaps",
    NativeFit.OTHER: "another limit is broken",
}
HOW_KNOWN = (
    "Gaps now are counted: every timer of the history under native delays on one partition, at 1,024 moments. Again: "
    "messages that an unload at the worst moment delivers a second time; this and the cost (entries written a second, "
    "topics and relay included) are estimated. A topic that stays needs no other plan: none would be cheaper."
)


def fleet_verdict(fleet: Fleet) -> str:
    """State the recommendation in one or two sentences."""
    topics = len(fleet.topics)
    stay = sum(one.native_fit == NativeFit.FINE for one in fleet.topics)
    moving = [planned for planned in fleet.planned.values() if not stays(planned.plan)]
    said = f"Of {counted(topics, 'topic')} {stay:,} can stay on native delays with one partition"
    if fleet.planned:
        said += f"; {len(fleet.planned):,} were planned for, and of these {len(moving):,} change"
    broken = sum(not planned.keeps_limits for planned in fleet.planned.values())
    if broken:
        said += f" ({broken:,} of them keep NOT every limit)"
    if fleet.waiting:
        said += f". {len(fleet.waiting):,} more need a plan and have none yet"
    if fleet.unfit:
        topic, reason = next(iter(fleet.unfit.items()))
        said += f". No plan can name {counted(len(fleet.unfit), 'topic')}, such as {topic!r} ({reason})"
    return said + "."


def fleet_table(fleet: Fleet, topics: Sequence[NativeGaps], caption: str) -> Table:
    """Build a table of topics with their standing, a row for each.

    Args:
        fleet: The fleet of the topics.
        topics: Topics of the rows, in this order.
        caption: Caption of the table.
    """
    return Table(
        caption=caption,
        header=("topic", "timers a day", "gaps now", "of limit", "again", "what", "gaps then", "cost"),
        rows=[_row(one, fleet.planned.get(one.topic)) for one in topics],
    )


def fleet_facts(fleet: Fleet, files: Mapping[str, str], prices: Prices | None = None) -> dict[str, Any]:
    """Return the results for a fleet as JSON, without the curves.

    Args:
        fleet: The result of the planner.
        files: The plan file of each topic that has a plan.
        prices: Prices for a month's cost.
    """
    return {
        "history": history_facts(fleet.history),
        "profile": asdict(fleet.profile),
        "constraints": asdict(fleet.constraints),
        "growth": fleet.growth,
        "keeps_limits": fleet.keeps_limits,
        "verdict": fleet_verdict(fleet),
        "topics": [
            {
                "topic": one.topic,
                "native_fit": one.native_fit.value,
                "timers": one.timers,
                "timers_per_day": one.timers_per_day,
                "native_gaps_counted": one.peak.gap_count,
                "native_gaps_at_most": one.peak.gap_count_limit,
                "gap_limit_ranges": one.evaluation.gap_limit_ranges,
                "native_redelivered_entries_estimated": one.evaluation.redelivered.worst_entries,
                "plan_file": files.get(one.topic),
            }
            for one in fleet.topics
        ],
        "planned": {topic: planned_facts(planned, prices) for topic, planned in fleet.planned.items()},
        "waiting": list(fleet.waiting),
        "unfit": dict(fleet.unfit),
    }


def fleet_page(fleet: Fleet, pages: Mapping[str, str]) -> str:
    """Render the page as HTML.

    Args:
        fleet: The result of the planner.
        pages: By topic, the name of the report's file, in the same folder as this page.
    """
    matter = [one for one in fleet.topics if one.native_fit != NativeFit.FINE]
    others = [one for one in fleet.topics if one.native_fit == NativeFit.FINE]
    rest = fleet_table(fleet, others, "Topics that stay, the one nearest to its limit first")
    sections = [
        Section(
            heading="Topics that matter",
            sentences=[] if matter else ["None: every topic stays as it is."],
            links=[(topic, name) for topic, name in pages.items()],
            tables=[fleet_table(fleet, matter, "The one furthest beyond its limit first")] if matter else [],
        ),
        Section(
            heading="All others",
            folds=[Fold(name=counted(len(others), "topic that stays", "topics that stay"), table=rest)],
        ),
    ]
    page = Page(
        title=f"timewheel plan: {counted(len(fleet.topics), 'topic')}",
        verdict=fleet_verdict(fleet),
        good=fleet.keeps_limits,
        headlines=_headlines(fleet, matter),
        notices=[f"No plan yet, since more topics matter than were to be planned for: {', '.join(fleet.waiting)}."]
        if fleet.waiting
        else [],
        sections=sections,
        notes=[HOW_KNOWN],
        commands=[("Of one topic:", dump_plan(planned.plan)) for planned in list(fleet.planned.values())[:1]],
    )
    return render_page(page)


def _headlines(fleet: Fleet, matter: Sequence[NativeGaps]) -> list[Headline]:
    limit = fleet.profile.gap_limit_ranges
    worst = max(fleet.topics, key=lambda one: one.peak.gap_count)
    again = sum(one.evaluation.redelivered.worst_entries for one in fleet.topics)
    then = sum(
        fleet.planned[one.topic].choice.recommended.evaluation.redelivered.worst_entries
        if one.topic in fleet.planned
        else one.evaluation.redelivered.worst_entries
        for one in fleet.topics
    )
    return [
        Headline(
            name="Topics at risk",
            value=f"{len(matter):,}",
            unit=f"of {len(fleet.topics):,}",
            known="counted",
            lines=[f"{counted(fleet.history.statistic.timers, 'timer')} in all"],
            good=not matter,
        ),
        Headline(
            name="Most gaps now",
            value=f"{worst.peak.gap_count:,}",
            unit="gaps at the peak",
            known="counted",
            lines=[f"{worst.topic}: {worst.gap_fraction:.0%} of the {limit:,} that the broker keeps"],
            good=worst.peak.gap_count <= limit,
        ),
        Headline(
            name="Delivered again",
            value=f"{again:,.0f}",
            unit="messages, if each topic is unloaded at its worst moment",
            known="estimated",
            lines=[f"with these plans {then:,.0f}"],
            good=again < 1,
        ),
    ]


def _row(one: NativeGaps, planned: Planned | None) -> tuple[str, ...]:
    return (
        one.topic.removeprefix("persistent://") or "(no topic)",
        f"{one.timers_per_day:,.0f}",
        f"{one.peak.gap_count:,}",
        f"{one.gap_fraction:.0%}",
        f"{one.evaluation.redelivered.worst_entries:,.0f}",
        SAID[one.native_fit] if planned is None else _what(planned),
        "-" if planned is None else f"{peaks_of(planned).then:,.0f}",
        "-" if planned is None else _cost(planned),
    )


def _what(planned: Planned) -> str:
    broken = "" if planned.keeps_limits else ", NOT within every limit"
    return f"{describe(planned.plan)}, {partitions_in_words(planned.plan.partitions)}{broken}"


def _cost(planned: Planned) -> str:
    now = planned.constraints.cost_of(planned.choice.native).writes_per_second
    return f"{now:,.1f} -> {planned.choice.recommended.cost_writes_per_second:,.1f}"

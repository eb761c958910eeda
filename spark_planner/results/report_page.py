"""The report of a plan: one self-contained page that says what to run, why, and how well it was predicted."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from timewheel._report.bars import Bar, BarChart, bar_chart
from timewheel._report.choices import Choice, Choices, Named, choice_chart
from timewheel._report.gap_chart import GapChart, Mark, Series, gap_chart
from timewheel._report.page import Figure, Page, Section
from timewheel._report.render import render_page
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS, format_duration
from timewheel.core.planfile import dump_plan
from timewheel.spark_planner.choice.assessed import Assessed
from timewheel.spark_planner.exact.replay import Replay
from timewheel.spark_planner.job import Planned
from timewheel.spark_planner.pricing.evaluation import Evaluation
from timewheel.spark_planner.results import tables
from timewheel.spark_planner.results.delays import delay_quantile_ms, delay_spans, reading
from timewheel.spark_planner.results.steady import said_of_native, said_of_traffic
from timewheel.spark_planner.results.verdict import verdict

__all__ = ["report_page"]

MOST_POINTS = 800
"""Of a line: the picture is 700 wide. Of neighbouring moments the highest is drawn, so that no peak is lost."""
GAPS_CAPTION = (
    "Gap ranges of the fullest partition, every timer of this history replayed. Dashed: what the broker keeps for a "
    "subscription; an unload while a line is above it delivers messages again. A gap is a range of acknowledged "
    "messages behind one that still waits."
)
FRONT_CAPTION = (
    "Each dot is a plan with the partitions it needs; down and to the left is better. The line joins those that no "
    "other beats in both. Gaps here are of all partitions together: above the dashed line one partition is not enough. "
    "Cost: "
)


def report_page(planned: Planned, *, plan_file: str = "plan.toml") -> str:
    """The page as HTML.

    Args:
        planned: What was found.
        plan_file: Where the plan was written, for the commands at the end.
    """
    choice, statistic = planned.choice, planned.history.statistic
    cells = planned.history.cells(planned.topic)
    recommended = planned.recommended.evaluation
    quarantine = tables.quarantine_table(statistic)
    hops = tables.hop_table(recommended)
    error = planned.recommended.peak_gaps_error
    facts = [
        ("History", planned.history.source + (f", topic {planned.topic}" if planned.topic else "")),
        ("As read", f"{reading(cells).removeprefix('As read: ')} {recommended.timers_per_day:,.0f} a day."),
        ("Not used", f"{sum(statistic.quarantined.values()):,} of {statistic.rows:,} rows (see Quarantine)"),
        ("Planned for", "this volume" if planned.growth == 1 else f"{planned.growth:g} times this volume"),
        (
            "Broker",
            f"profile {planned.profile.name}: keeps {planned.profile.gap_limit_ranges:,} gap ranges a partition "
            f"({planned.profile.ack_format}); at most {planned.constraints.gap_fraction:.0%} of that was allowed",
        ),
        ("Prediction", f"{error:+.1%} off the exact count of the peak"),
    ]
    sections = [
        Section(
            heading="Why",
            sentences=[*said_of_traffic(planned.traffic), *said_of_native(planned), *choice.reasons],
            tables=[tables.plans_table(planned)],
        ),
        Section(heading="Delays", figure=_delays(planned)),
        Section(heading="Alternatives", figure=_front(planned), tables=[tables.front_table(planned)]),
        Section(
            heading="Costs and hops",
            tables=[
                tables.cost_table(planned),
                *([] if hops is None else [hops]),
            ],
        ),
        Section(heading="Growth", tables=[tables.room_table(choice.rooms)]),
        Section(heading="How good the prediction is", tables=[tables.prediction_table(tables.both(planned))]),
        Section(
            heading="Quarantine",
            sentences=["Every row of the history could be used."] if quarantine is None else [],
            tables=[] if quarantine is None else [quarantine],
        ),
    ]
    page = Page(
        title=f"timewheel plan: {planned.plan.due_topic}",
        verdict=verdict(planned),
        good=planned.keeps_limits,
        facts=facts,
        figure=gap_chart(_gaps(planned)),
        sections=sections,
        notes=[
            "Predictions come from a statistic of the history; counts from a replay of every timer that takes each "
            "message as handled when it is due and its relay as always up. Neither was measured on a broker.",
        ],
        commands=[
            ("The plan:", dump_plan(planned.plan)),
            ("Make its topics:", f"timewheel topics ensure {plan_file} --dry-run"),
        ],
    )
    return render_page(page)


def _gaps(planned: Planned) -> GapChart:
    cells = planned.history.cells(planned.topic)
    first_ms = int(cells.publish_min_ms.min())
    native, recommended = planned.native.replay, planned.recommended.replay
    last_ms = max(int(played.gaps.grid.points_ms[-1]) for played in (native, recommended))
    unit, unit_ms = _unit(last_ms - first_ms)
    partitions = planned.plan.partitions
    growth = planned.growth
    volume = "" if growth == 1 else f" Counted at this volume and multiplied by {growth:g}: gaps grow with it."
    series = [Series(name="native, 1 partition", points=_line(native, first_ms, unit_ms, growth))]
    if planned.recommended is not planned.native:
        name = "this plan" if partitions == 1 else f"this plan, of {partitions}"
        series.append(Series(name=name, points=_line(recommended, first_ms, unit_ms, growth)))
    return GapChart(
        title="Gap ranges over time",
        caption=GAPS_CAPTION + volume,
        series=series,
        limit=planned.profile.gap_limit_ranges,
        marks=[Mark(at=(int(cells.publish_max_ms.max()) - first_ms) / unit_ms, name=_end(planned))],
        time_unit=f"{unit} since the first timer was sent",
    )


def _end(planned: Planned) -> str:
    return "last timer sent" if planned.traffic.continuation is None else "end of the history, here continued"


def _line(played: Replay, first_ms: int, unit_ms: int, growth: float) -> list[tuple[float, float]]:
    counts = _fullest(played)
    times_ms = played.gaps.grid.points_ms
    per_point = -(-len(counts) // MOST_POINTS)
    points = [(0.0, 0.0)]
    for begin in range(0, len(counts), per_point):
        at = begin + int(np.argmax(counts[begin : begin + per_point]))
        points.append((max(float(times_ms[at]) - first_ms, 0.0) / unit_ms, growth * float(counts[at])))
    return points


def _fullest(played: Replay) -> NDArray[np.int64]:
    """The gaps of whichever partition has most at each moment."""
    points = len(played.gaps.grid)
    most = np.zeros(points, np.int64)
    for partition in played.gaps.partitions:
        np.maximum(most, partition.changes.counts(points), out=most)
    return most


def _delays(planned: Planned) -> Figure:
    cells = planned.history.cells(planned.topic)
    bars = [
        Bar(name=span.name, share=span.timers / cells.timers, note=f"({span.timers:,.0f})")
        for span in delay_spans(cells)
    ]
    half, most = (delay_quantile_ms(cells, share) for share in (0.5, 0.99))
    return bar_chart(
        BarChart(
            title="Distribution of delays",
            caption=f"From send to due: half of the timers wait at most {_about(half)}, 99 % at most {_about(most)}, "
            f"none more than {_about(int(cells.delay_max_ms.max()))}. Gaps come from delays that differ: with one "
            "fixed delay there are none.",
            bars=bars,
            axis="share of timers by delay",
        )
    )


def _front(planned: Planned) -> Figure:
    choice = planned.choice
    named = [
        Named(
            name="today: native, 1 partition",
            choice=_choice(choice.native, planned.constraints.cost_of(choice.native).writes_per_second),
        ),
        *(Named(name=f'rule "{name}"', choice=_assessed(one)) for name, one in choice.article),
        Named(name="recommended", choice=_assessed(choice.recommended), stands_out=True),
    ]
    limit = planned.profile.gap_limit_ranges
    return choice_chart(
        Choices(
            title="Candidates by cost and gaps",
            caption=FRONT_CAPTION + tables.prices(planned.constraints),
            points=[_assessed(one) for one in choice.candidates],
            front=[_assessed(one) for one in choice.front],
            named=named,
            limit=limit,
            limit_name=f"the broker keeps {limit:,} ranges a partition",
            x_name="cost, writes a second (logarithmic)",
            y_name="peak gap ranges (logarithmic)",
        )
    )


def _assessed(one: Assessed) -> Choice:
    return _choice(one.evaluation, one.cost_writes_per_second)


def _choice(evaluation: Evaluation, cost_writes_per_second: float) -> Choice:
    return Choice(plan=tables.plan_label(evaluation.plan), at=(cost_writes_per_second, evaluation.peak_gaps))


def _unit(span_ms: int) -> tuple[str, int]:
    for name, unit_ms in (("days", DAY_MS), ("hours", HOUR_MS)):
        if span_ms >= 2 * unit_ms:
            return name, unit_ms
    return "minutes", MINUTE_MS


def _about(duration_ms: int) -> str:
    """A duration in at most two digits or so: ``59d``, ``14h``."""
    for unit_ms in (DAY_MS, HOUR_MS, MINUTE_MS, 1_000):
        if duration_ms >= 2 * unit_ms:
            return format_duration(-(-duration_ms // unit_ms) * unit_ms)
    return format_duration(duration_ms)

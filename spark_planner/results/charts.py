"""The charts of a plan's report: gaps over time, delays, and the candidates by cost and gaps."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from timewheel._report.bars import Bar, BarChart, bar_chart
from timewheel._report.choices import Choice, Choices, Named, choice_chart
from timewheel._report.gap_chart import GapChart, Mark, Series
from timewheel._report.page import Figure
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS, rounded_up
from timewheel.spark_planner.choice.assessed import Assessed
from timewheel.spark_planner.exact.replay import Replay
from timewheel.spark_planner.job import Planned
from timewheel.spark_planner.pricing.evaluation import Evaluation
from timewheel.spark_planner.results import tables
from timewheel.spark_planner.results.delays import delay_quantile_ms, delay_spans

__all__ = ["MAX_POINTS", "delays_figure", "front_figure", "gaps_over_time"]

MAX_POINTS = 800
"""Most points of a line in a picture of width 700. Of neighbouring moments the highest is drawn, so that peaks remain.
"""
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


def gaps_over_time(planned: Planned) -> GapChart:
    """Build the chart of the fullest partition, native and under the plan."""
    cells = planned.history.cells(planned.topic)
    first_ms = int(cells.publish_min_ms.min())
    native, recommended = planned.native.replay, planned.recommended.replay
    last_ms = max(int(played.gaps.grid.points_ms[-1]) for played in (native, recommended))
    unit, unit_ms = _unit(last_ms - first_ms)
    partitions = planned.plan.own_partitions
    growth = planned.growth
    volume = "" if growth == 1 else f" Counted at this volume and multiplied by {growth:g}: gaps grow with it."
    line = partial(_line, first_ms=first_ms, unit_ms=unit_ms, growth=growth)
    series = [Series(name="native, 1 partition", points=line(native))]
    if planned.recommended is not planned.native:
        name = "this plan" if partitions == 1 else f"this plan, of {partitions}"
        series.append(Series(name=name, points=line(recommended)))
    return GapChart(
        title="Gap ranges over time",
        caption=GAPS_CAPTION + volume,
        series=series,
        limit=planned.profile.gap_limit_ranges,
        marks=[Mark(at=(int(cells.publish_max_ms.max()) - first_ms) / unit_ms, name=_end(planned))],
        time_unit=f"{unit} since the first timer was sent",
    )


def _end(planned: Planned) -> str:
    return "last timer sent" if planned.traffic.continuation is None else "continued from here"


def _line(played: Replay, first_ms: int, unit_ms: int, growth: float) -> list[tuple[float, float]]:
    counts = _fullest(played)
    times_ms = played.gaps.grid.points_ms
    per_point = -(-len(counts) // MAX_POINTS)
    # The exact peak is included, which may be between two moments of the grid.
    peak = played.peak_per_partition
    points = [(0.0, 0.0), (max(float(peak.at_ms) - first_ms, 0.0) / unit_ms, growth * float(peak.gap_count))]
    for begin in range(0, len(counts), per_point):
        at = begin + int(np.argmax(counts[begin : begin + per_point]))
        points.append((max(float(times_ms[at]) - first_ms, 0.0) / unit_ms, growth * float(counts[at])))
    return sorted(points)


def _fullest(played: Replay) -> NDArray[np.int64]:
    """Return the gaps of the fullest partition at each moment."""
    points = len(played.gaps.grid)
    most = np.zeros(points, np.int64)
    for partition in played.gaps.partitions:
        np.maximum(most, partition.changes.counts(points), out=most)
    return most


def delays_figure(planned: Planned) -> Figure:
    """Draw the shares of delays."""
    cells = planned.history.cells(planned.topic)
    bars = [
        Bar(name=span.name, share=span.timers / cells.timers, note=f"({span.timers:,.0f})")
        for span in delay_spans(cells)
    ]
    half, most = (delay_quantile_ms(cells, share) for share in (0.5, 0.99))
    return bar_chart(
        BarChart(
            title="Distribution of delays",
            caption=f"From send to due: half of the timers wait at most {rounded_up(half)}, "
            f"99 % at most {rounded_up(most)}, "
            f"none more than {rounded_up(int(cells.delay_max_ms.max()))}. Gaps come from delays that differ: with one "
            "fixed delay there are none.",
            bars=bars,
            axis="share of timers by delay",
        )
    )


def front_figure(planned: Planned) -> Figure:
    """Draw all candidates; those with a name are larger."""
    choice = planned.choice
    named = [
        Named(
            name="today: native, 1 partition",
            choice=_choice(choice.native, planned.constraints.cost_of(choice.native).writes_per_second),
        ),
        *(Named(name=f'rule "{name}"', choice=_assessed(one)) for name, one in choice.article),
        *(
            Named(name=tables.TIED, choice=_choice(one, planned.constraints.cost_of(one).writes_per_second))
            for one in choice.ties[:1]
        ),
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

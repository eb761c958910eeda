"""The chart of gaps over time.

The count axis is logarithmic, of 1 + gaps, so that ten thousand gaps and none fit in a picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt

from timewheel._report import look
from timewheel._report.page import Figure

DASHES = ([1, 0], [7, 3], [2, 3], [9, 3, 2, 3], [4, 2], [12, 2])  # lines differ in dash as well as in colour
HEADROOM = 1.05  # room above the highest point
LEGEND_COLUMNS = "width < 560 ? 1 : width < 900 ? 2 : 3"
DASHES_SIZE = 500  # area of a legend's symbol, in square pixels: a line long enough for its dashes
DIMMED = 0.07  # opacity of a line that is not selected
TOUCHED_SIZE, DOT_SIZE = 300, 80  # areas, in square pixels
TIME_DIGITS = 4
HINT = (
    "Point at a line for its figures. Click a name for its line alone, with Shift one more. Turn the wheel with Ctrl "
    "to zoom, drag to move; a double click shows all again."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line of the chart."""

    name: str
    points: Sequence[tuple[float, float]]  # (time, gaps), time ascending


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A vertical line at a moment, with its name."""

    at: float
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GapChart:
    """The values of a gap chart; screen readers read the title, with the caption."""

    title: str
    caption: str
    series: Sequence[Series]  # at most five, the worst first
    limit: int  # dashed line: the number of ranges that the broker keeps
    marks: Sequence[Mark] = ()
    time_unit: str = "days"


def gap_chart(chart: GapChart) -> Figure:
    points = [point for line in chart.series for point in line.points]
    last_time = max([1.0, *(time for time, _ in points), *(mark.at for mark in chart.marks)])
    top = look.round_up(HEADROOM * max([chart.limit, *(count for _, count in points)]))
    peaks = ", ".join(f"{line.name} {_peak(line):,.0f}" for line in chart.series)
    words = f"{chart.title}. Peaks: {peaks}. Limit: {chart.limit:,}."
    parts = [
        look.limit_line(chart.limit),
        *(_mark(number, mark, last_time) for number, mark in enumerate(chart.marks)),
        _lines(chart, last_time, top),
    ]
    return Figure(
        name="gaps",
        spec=look.finished(parts, height="container", words=words),
        words=words,
        caption=chart.caption,
        hint=HINT,
    )


def _mark(number: int, mark: Mark, last_time: float) -> look.Drawn:
    data = f"mark-{number}"
    base = look.chart_of(data).encode(x="at:Q")
    rule = base.mark_rule(color=look.SOFT, strokeDash=[3, 3], strokeWidth=1.5, clip=True)
    # The name is on the side that has room for it.
    align, dx = ("right", -6) if mark.at > last_time / 2 else ("left", 6)
    names = look.name_layers(base.encode(y=alt.value(0)), color=look.INK, align=align, dx=dx, dy=8)
    return look.Drawn([rule, *names], {data: [{"at": mark.at, "name": mark.name}]})


def _lines(chart: GapChart, last_time: float, top: float) -> look.Drawn:
    names, limit = [f"{line.name}: peak {_peak(line):,.0f}" for line in chart.series], _limit_name(chart)
    rows: list[dict[str, str | float]] = [
        {"line": name, "at": round(time, TIME_DIGITS), "gaps": max(count, 0)}
        for name, line in zip(names, chart.series, strict=True)
        for time, count in line.points
    ]
    count = len(names)
    # The limit's name is in the legend: in the plot it would lie on lines.
    colors = [*(look.LINES[number % len(look.LINES)] for number in range(count)), look.ALARM]
    color = alt.Scale(domain=[*names, limit], range=colors)
    dashes = [*(DASHES[number % len(DASHES)] for number in range(count)), look.LIMIT_DASH]
    dash = alt.Scale(domain=[*names, limit], range=dashes)
    legend = alt.Legend(
        columns=alt.ExprRef(LEGEND_COLUMNS), symbolType="stroke", symbolStrokeWidth=2.5, symbolSize=DASHES_SIZE
    )
    shown = alt.selection_point(name="shown", fields=["line"], bind="legend")
    pointed = alt.selection_point(
        name="pointed", fields=["line", "at"], on="pointerover", clear="pointerout", empty=False
    )
    base = look.chart_of("lines").encode(
        x=alt.X(
            "at:Q",
            title=chart.time_unit,
            axis=alt.Axis(grid=False, **look.LABELS_APART),
            scale=alt.Scale(domain=[0, last_time], nice=False),
        ),
        y=alt.Y("gaps:Q", axis=look.count_axis(top, "gap ranges (logarithmic)"), scale=look.count_scale(top)),
        color=alt.Color("line:N", scale=color, legend=legend),
        strokeDash=alt.StrokeDash("line:N", scale=dash, legend=legend),
    )
    drawn = base.mark_line(clip=True, strokeWidth=2, strokeJoin="round").encode(
        opacity=alt.when(shown).then(alt.value(1)).otherwise(alt.value(DIMMED))
    )
    # The pointer meets invisible dots: they are larger than a line is wide, and than the visible dots.
    dots = base.transform_filter(shown).mark_point(clip=True, filled=True, opacity=0, size=TOUCHED_SIZE)
    dots = dots.encode(
        strokeDash=alt.value([1, 0]),
        tooltip=[
            alt.Tooltip("line:N", title="line"),
            alt.Tooltip("at:Q", title=chart.time_unit, format=",.2f"),
            alt.Tooltip("gaps:Q", title="gap ranges", format=",.0f"),
        ],
    )
    dot = base.transform_filter(pointed).mark_point(clip=True, filled=True, opacity=1, size=DOT_SIZE, tooltip=None)
    dot = dot.encode(strokeDash=alt.value([1, 0]))
    return look.Drawn([drawn.add_params(shown), dot, dots.add_params(pointed, look.zoom("x"))], {"lines": rows})


def _limit_name(chart: GapChart) -> str:
    return f"the broker keeps {chart.limit:,} ranges"


def _peak(line: Series) -> float:
    return max((count for _, count in line.points), default=0.0)

"""Shares as horizontal bars; choices as points of two costs, both axes logarithmic: down and to the left is better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

import altair as alt

from timewheel._report import look
from timewheel._report.page import Figure

LEAST_X = 0.01  # lower costs are drawn here: a logarithm has no zero
CANDIDATE, ON_FRONT = "a candidate", "no other beats it in both"
NAMED_COLORS = (look.LINES[0], look.LINES[2], look.LINES[3], look.LINES[4])
NAMED_SHAPES = ("cross", "triangle-up", "square", "triangle-down", "triangle-left")
"""Points differ in shape as well as in colour."""
TWO_DASHES = "M-1,-0.15H-0.2V0.15H-1ZM0.2,-0.15H1V0.15H0.2Z"  # of the limit, in the legend
CANDIDATE_SIZE, FRONT_SIZE, NAMED_SIZE, BEST_SIZE = 35, 55, 130, 260  # areas, in square pixels
CANDIDATE_OPACITY = 0.45  # many dots overlap
LEGEND_COLUMNS = "width < 560 ? 1 : width < 900 ? 3 : 4"
DIMMED = 0.07
AT_THE_EDGE = 0.04  # share of a power of ten: a dot closer to the axis would be cut in half
BELOW, NEAR = 14, 1.6  # pixels from a dot to the middle of its name; ratio to the limit at which a name moves away
HINT = (
    "Point at a dot for its plan. Click a name for its dots alone, with Shift one more. Turn the wheel with Ctrl to "
    "zoom, drag to move; a double click shows all again."
)

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A point of the chart: its plan, and (x, y)."""

    plan: str
    at: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A choice with its name; a choice that ``stands_out`` is drawn larger, with its name beside it."""

    name: str
    choice: Choice
    stands_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The values of a choice chart; screen readers read the title."""

    title: str
    caption: str
    points: Sequence[Choice]
    front: Sequence[Choice]  # those that no other choice beats, by x
    named: Sequence[Named]
    limit: float  # a height to mark
    limit_name: str  # in the legend
    x_name: str
    y_name: str


def choice_chart(choices: Choices) -> Figure:
    words = f"{choices.title}: {len(choices.points)}, of them {len(choices.front)} that no other beats. " + "".join(
        f"{named.name}: {choices.x_name} {named.choice.at[0]:,.2f}, {choices.y_name} {named.choice.at[1]:,.0f}. "
        for named in choices.named
    )
    parts = [look.limit_line(choices.limit), _front(choices), _dots(choices), _best(choices)]
    return Figure(
        name="choices",
        spec=look.finished(parts, height="container", words=words.rstrip()),
        words=words.rstrip(),
        caption=choices.caption,
        hint=HINT,
    )


def _row(choice: Choice, kind: str, size: float, opacity: float = 1.0) -> dict[str, str | float]:
    x, y = choice.at
    return {"kind": kind, "plan": choice.plan, "x": max(x, LEAST_X), "y": max(y, 0.0), "size": size, "opacity": opacity}


def _powers(choices: Choices) -> tuple[int, int]:
    """Return the powers of ten between which all x lie."""
    every = [*choices.points, *choices.front, *(named.choice for named in choices.named)]
    xs = [max(one.at[0], LEAST_X) for one in every] or [1.0]
    low = floor(log10(min(xs)) - AT_THE_EDGE)
    return low, max(ceil(log10(max(xs))), low + 1)


def _axes(choices: Choices) -> tuple[alt.X, alt.Y]:
    low, high = _powers(choices)
    top = _top(choices)
    scale = alt.Scale(type="log", domain=[10.0**low, 10.0**high], nice=False)
    return (
        alt.X(
            "x:Q",
            title=choices.x_name,
            scale=scale,
            axis=alt.Axis(format=",~g", tickCount=high - low, **look.LABELS_APART),
        ),
        alt.Y("y:Q", axis=look.count_axis(top, choices.y_name), scale=look.count_scale(top)),
    )


def _top(choices: Choices) -> float:
    """Return the upper end of the y axis."""
    heights = [one.at[1] for one in (*choices.points, *(named.choice for named in choices.named))]
    return 10.0 ** max(ceil(log10(1 + max([choices.limit, *heights]))), 1)


def _front(choices: Choices) -> look.Drawn:
    line = look.chart_of("front").mark_line(color=look.ACCENT, strokeWidth=1.5, clip=True)
    return look.Drawn(
        [line.encode(x="x:Q", y="y:Q", order="x:Q")],
        {"front": [_row(one, ON_FRONT, FRONT_SIZE) for one in choices.front]},
    )


def _dots(choices: Choices) -> look.Drawn:
    on_front = set(choices.front)
    named = sorted(choices.named, key=lambda one: one.stands_out)  # drawn last, above the others
    rows = [
        *(_row(one, CANDIDATE, CANDIDATE_SIZE, CANDIDATE_OPACITY) for one in choices.points if one not in on_front),
        *(_row(one, ON_FRONT, FRONT_SIZE) for one in choices.front),
        *(_row(one.choice, one.name, BEST_SIZE if one.stands_out else NAMED_SIZE) for one in named),
    ]
    usual = [one.name for one in named if not one.stands_out]
    best = [one.name for one in named if one.stands_out]
    kinds = [*best, *usual, ON_FRONT, CANDIDATE, choices.limit_name]
    colors = [*(look.GOOD for _ in best), *_cycled(NAMED_COLORS, len(usual)), look.ACCENT, look.SOFT, look.ALARM]
    shapes = [*("diamond" for _ in best), *_cycled(NAMED_SHAPES, len(usual)), "circle", "circle", TWO_DASHES]
    shown = alt.selection_point(name="shown", fields=["kind"], bind="legend")
    legend = alt.Legend(columns=alt.ExprRef(LEGEND_COLUMNS), symbolOpacity=1)
    x, y = _axes(choices)
    opacity = alt.Opacity("opacity:Q", scale=None, legend=None)
    dots = (
        look.chart_of("choices")
        .mark_point(filled=True, clip=True)
        .encode(
            x=x,
            y=y,
            color=alt.Color("kind:N", scale=alt.Scale(domain=kinds, range=colors), legend=legend),
            shape=alt.Shape("kind:N", scale=alt.Scale(domain=kinds, range=shapes), legend=legend),
            size=alt.Size("size:Q", scale=None, legend=None),
            opacity=alt.when(shown).then(opacity).otherwise(alt.value(DIMMED)),
            tooltip=[
                alt.Tooltip("kind:N", title="what"),
                alt.Tooltip("plan:N", title="plan"),
                alt.Tooltip("x:Q", title=choices.x_name, format=",.2f"),
                alt.Tooltip("y:Q", title=choices.y_name, format=",.0f"),
            ],
        )
    )
    return look.Drawn([dots.add_params(shown, look.zoom("x", "y"))], {"choices": rows})


def _best(choices: Choices) -> look.Drawn:
    low, high = _powers(choices)
    best = [named for named in choices.named if named.stands_out]
    rows = [_row(one.choice, one.name, BEST_SIZE) | {"name": one.name} for one in best]
    # The name is on the side that has room for it.
    late = any(log10(max(one.choice.at[0], LEAST_X)) > (low + high) / 2 for one in best)
    align, dx = ("right", -12) if late else ("left", 12)
    # Beside its dot a name would lie on the limit's line, if the dot is near it.
    near = [one.choice.at[1] for one in best if choices.limit / NEAR < one.choice.at[1] < choices.limit * NEAR]
    above = any(y > choices.limit and y * NEAR < _top(choices) for y in near)
    dy = (-BELOW if above else BELOW) if near else 0
    base = look.chart_of("best").encode(x="x:Q", y="y:Q")
    return look.Drawn(
        look.name_layers(base, color=look.INK, align=align, dx=dx, dy=dy, fontWeight="bold"), {"best": rows}
    )


def _cycled(values: Sequence[str], count: int) -> list[str]:
    return [values[number % len(values)] for number in range(count)]


STEP = 30  # pixels from bar to bar
AXIS_HEIGHT = 50
AXIS_MAXIMA = (0.1, 0.2, 0.5, 1.0)
BAR_HINT = "Point at a bar for its figures."


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A share."""

    name: str
    share: float  # from 0 to 1
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BarChart:
    """The values of a bar chart, from top to bottom; screen readers read the title."""

    title: str
    caption: str
    bars: Sequence[Bar]
    axis: str  # name of the axis of shares


def bar_chart(chart: BarChart) -> Figure:
    most = max((bar.share for bar in chart.bars), default=0.0)
    axis_max = next(maximum for maximum in AXIS_MAXIMA if maximum >= min(most, 1.0))
    rows: list[dict[str, str | float]] = [
        {"name": bar.name, "share": bar.share, "note": f"{_percent(bar.share)} {bar.note}".rstrip()}
        for bar in chart.bars
    ]
    words = f"{chart.title}. " + ", ".join(f"{bar.name} {_percent(bar.share)}" for bar in chart.bars) + "."
    base = look.chart_of("bars").encode(
        y=alt.Y("name:N", sort=None, axis=alt.Axis(title=None, domain=False, ticks=False, labelColor=look.INK)),
        tooltip=[alt.Tooltip("name:N", title="delay"), alt.Tooltip("note:N", title="share")],
    )
    scale = alt.Scale(domain=[0, axis_max], nice=False)
    bars = base.mark_bar(color=look.ACCENT, cornerRadiusEnd=3, height={"band": 0.7}).encode(
        x=alt.X("share:Q", title=chart.axis, scale=scale, axis=alt.Axis(format=".0%", tickCount=5, **look.LABELS_APART))
    )
    notes = base.mark_text(fill=look.INK, align="left", dx=8).encode(x=alt.value("width"), text="note:N")
    height = STEP * len(rows) + AXIS_HEIGHT
    return Figure(
        name="delays",
        spec=look.finished([look.Drawn([bars, notes], {"bars": rows})], height=height, words=words),
        words=words,
        caption=chart.caption,
        hint=BAR_HINT,
    )


def _percent(share: float) -> str:
    return "< 0.1%" if 0 < share < 0.001 else f"{share:.1%}"

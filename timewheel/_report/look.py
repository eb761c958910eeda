"""Common parts of all charts: colours, axes, width, zoom and pan.

Colours are the page's own CSS variables, so that charts are light or dark like the page, even when that changes while
the page is open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Any, Literal

import altair as alt

INK, SOFT, GRID, PAPER = "var(--ink)", "var(--soft)", "var(--grid)", "var(--paper)"
ALARM, GOOD = "var(--alarm)", "var(--good)"
LINES = tuple(f"var(--line-{number})" for number in range(6))
ACCENT = LINES[1]
FONT = "system-ui, sans-serif"
LABELS_APART: dict[str, Any] = {"labelFlush": False, "labelOverlap": "greedy", "labelSeparation": 3}
"""Labels of a horizontal number axis: those at the ends stay; Vega's default moves them onto neighbours."""
HALO_WIDTH = 4  # pixels of paper colour around a name that overlaps lines

ZOOM_EVENT = "wheel![event.ctrlKey || event.shiftKey]"  # not the wheel alone: the page would not scroll past a chart
PAN_EVENT = "[pointerdown[event.pointerType === 'mouse'], window:pointerup] > window:pointermove!"
"""Not the finger: the page would not scroll either."""


def zoom(*axes: Literal["x", "y"]) -> alt.Parameter:
    """Let a pointer zoom and move these axes."""
    return alt.selection_interval(name="zoom", encodings=[*axes], bind="scales", zoom=ZOOM_EVENT, translate=PAN_EVENT)


def count_scale(top: float) -> alt.Scale:
    """Build a scale that is logarithmic in 1 + a count, so that ten thousand and none fit in a picture."""
    return alt.Scale(type="symlog", constant=1, domain=[0, top], nice=False)


def count_axis(top: float, title: str) -> alt.Axis:
    """Build an axis with ticks at 0 and at powers of ten; its title is above, to save width."""
    values = [0, *(10**power for power in range(floor(log10(top)) + 1))]
    return alt.Axis(
        values=values,
        format=",d",
        title=title,
        titleAngle=0,
        titleAlign="left",
        titleAnchor="start",
        titleBaseline="bottom",
        titleX=0,
        titleY=-8,
    )


def round_up(least: float) -> float:
    """Return the smallest of 1, 2, 5 times a power of ten that is not below ``least``."""
    power = 10.0 ** (ceil(log10(least)) - 1) if least > 0 else 1.0
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)


@dataclass(frozen=True, slots=True)
class Drawn:
    """Layers, from the lowest to the highest, and the rows that they draw, by the name of their data."""

    layers: Sequence[alt.Chart]
    rows: Mapping[str, Sequence[Mapping[str, str | float]]]


LIMIT_DASH = [10, 5]


def limit_line(limit: float) -> Drawn:
    """Draw a dashed horizontal line, which the chart's legend names."""
    line = chart_of("limit").mark_rule(color=ALARM, strokeDash=LIMIT_DASH, strokeWidth=2, clip=True)
    return Drawn([line.encode(y="limit:Q")], {"limit": [{"limit": limit}]})


def chart_of(data: str) -> alt.Chart:
    """Build a chart of the rows of that name.

    Altair checks all its input against its schema, thousands of rows in seconds: so it gets only the name of the rows.
    """
    return alt.Chart(alt.NamedData(name=data))


def name_layers(base: alt.Chart, *, color: str, **mark: Any) -> list[alt.Chart]:
    """Draw the texts of the column ``name``, legible on any layer below them."""
    named = base.encode(text="name:N")
    halo = named.mark_text(stroke=PAPER, strokeWidth=HALO_WIDTH, strokeJoin="round", clip=True, **mark)
    return [halo, named.mark_text(fill=color, clip=True, **mark)]


def finished(parts: Sequence[Drawn], *, height: int | str, words: str) -> dict[str, Any]:
    """Return the chart as Vega-Lite's JSON values, as wide as its place on the page."""
    sized = alt.LayerChart(layer=[layer for part in parts for layer in part.layers]).properties(
        width="container", height=height, description=words
    )
    found: dict[str, Any] = (
        sized.properties(autosize=alt.AutoSizeParams(type="fit", contains="padding"))
        .configure(background="transparent", font=FONT)
        .configure_view(stroke=None)
        .configure_axis(
            domainColor=SOFT,
            gridColor=GRID,
            labelColor=SOFT,
            labelFontSize=12,
            tickColor=SOFT,
            titleColor=SOFT,
            titleFontSize=12,
            titleFontWeight="normal",
        )
        .configure_legend(
            columnPadding=18,
            labelColor=INK,
            labelFontSize=13,
            labelLimit=0,
            offset=26,
            orient="top",
            rowPadding=4,
            symbolSize=110,
            title=None,
        )
        .configure_text(fontSize=13)
        .to_dict()
    )
    return found | {"datasets": {name: list(rows) for part in parts for name, rows in part.rows.items()}}

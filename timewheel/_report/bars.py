"""Shares as horizontal bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt

from timewheel._report import look
from timewheel._report.page import Figure

STEP = 30
"""Pixels from bar to bar."""
AXIS_HEIGHT = 50
AXIS_MAXIMA = (0.1, 0.2, 0.5, 1.0)
HINT = "Point at a bar for its figures."


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
        hint=HINT,
    )


def _percent(share: float) -> str:
    return "< 0.1%" if 0 < share < 0.001 else f"{share:.1%}"

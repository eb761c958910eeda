"""Shares as horizontal bars, as one SVG element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Bar", "BarChart", "bar_chart"]

WIDTH = 960
LEFT, RIGHT = 130, 190
BAR_HEIGHT, STEP = 20, 30
TOP, BOTTOM = 12, 44
AXIS_MAXIMA = (0.1, 0.2, 0.5, 1.0)
TICKS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One share.

    Args:
        name: Of what.
        share: From 0 to 1.
        note: At its end, beside the share.
    """

    name: str
    share: float
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BarChart:
    """What is drawn, from top to bottom.

    Args:
        title: Read by screen readers.
        bars: In order.
        axis: Name of the axis of shares.
    """

    title: str
    bars: Sequence[Bar]
    axis: str


def bar_chart(chart: BarChart) -> str:
    """Draw the chart as an SVG element, styled by the page."""
    most = max((bar.share for bar in chart.bars), default=0.0)
    axis_max = next(maximum for maximum in AXIS_MAXIMA if maximum >= min(most, 1.0))
    base = TOP + STEP * len(chart.bars)
    wide = (WIDTH - LEFT - RIGHT) / axis_max
    parts = [
        f'<svg class="bar-chart" viewBox="0 0 {WIDTH} {base + BOTTOM}" role="img" '
        f'aria-label="{escape(chart.title)}" data-axis-max="{axis_max:g}">'
    ]
    for number in range(TICKS + 1):
        share = axis_max * number / TICKS
        x = LEFT + wide * share
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{base}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{base + 17}" text-anchor="middle">{share:.0%}</text>')
    for number, bar in enumerate(chart.bars):
        y = TOP + STEP * number
        x = LEFT + wide * bar.share
        middle = y + BAR_HEIGHT / 2 + 5
        note = f" {bar.note}" if bar.note else ""
        parts += [
            f'<text class="name" x="{LEFT - 10}" y="{middle:.0f}" text-anchor="end">{escape(bar.name)}</text>',
            f'<rect class="bar" x="{LEFT}" y="{y}" width="{x - LEFT:.1f}" height="{BAR_HEIGHT}" '
            f'data-share="{bar.share:.6f}"/>',
            f'<text class="share" x="{x + 7:.1f}" y="{middle:.0f}">{escape(_percent(bar.share) + note)}</text>',
        ]
    middle_x = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text class="axis" x="{middle_x:.0f}" y="{base + 38}" text-anchor="middle">{escape(chart.axis)}</text>'
    )
    parts.append("</svg>")
    return "\n".join(parts)


def _percent(share: float) -> str:
    return "< 0.1%" if 0 < share < 0.001 else f"{share:.1%}"

"""The chart of gaps over time, as one SVG element: no script, no font, no file beside it.

The count axis is logarithmic, of 1 + gaps, so that ten thousand and none stand in one picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

__all__ = ["GapChart", "Mark", "Series", "gap_chart"]

WIDTH, HEIGHT = 960, 460
LEFT, RIGHT, TOP, BOTTOM = 70, 190, 24, 52
"""Margins; the right one holds the names of the lines."""
LABEL_HEIGHT = 17
DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2")
"""Lines differ in dash as well as in colour."""
MAX_TIME_TICKS = 10
HEADROOM = 1.05
"""Above the highest point."""
LIMIT_NAMES_AT = (0.2, 0.45, 0.7)
"""Where along the dashed line its name may stand; mostly the first: a sick line has risen above it there, and an unload
is later."""
LIMIT_NAME_WIDTH, LIMIT_NAME_HEIGHT = 190, 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line.

    Args:
        name: As readers know it.
        points: (time, gaps), time ascending.
    """

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A vertical line at a moment, with its name."""

    at: float
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GapChart:
    """What is drawn.

    Args:
        title: Read by screen readers, with the caption.
        caption: Below the chart.
        series: At most five, the sick one first.
        limit: Dashed line: how many ranges the broker keeps.
        marks: Vertical lines.
        time_unit: Name of the time axis.
    """

    title: str
    caption: str
    series: Sequence[Series]
    limit: int
    marks: Sequence[Mark] = ()
    time_unit: str = "days"


@dataclass(frozen=True, slots=True)
class _Scale:
    last_time: float
    top_count: float

    def x(self, time: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * time / self.last_time

    def y(self, count: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * log10(1 + max(count, 0)) / log10(1 + self.top_count)


def gap_chart(chart: GapChart) -> str:
    """Draw the chart as an SVG element, styled by the page's ``--line-N``, ``--ink``, ``--grid`` and ``--alarm``."""
    points = [point for line in chart.series for point in line.points]
    scale = _Scale(
        last_time=max([1.0, *(time for time, _ in points), *(mark.at for mark in chart.marks)]),
        top_count=_round_step(HEADROOM * max([chart.limit, *(count for _, count in points)])),
    )
    parts = [
        f'<svg class="gap-chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="chart-title chart-desc" '
        f'data-axis-max="{scale.top_count:.0f}" data-limit="{chart.limit}">',
        f'<title id="chart-title">{escape(chart.title)}</title>',
        f'<desc id="chart-desc">{escape(chart.caption)} {escape(_in_words(chart))}</desc>',
        *_count_axis(scale),
        *_time_axis(scale, chart.time_unit),
        *_limit_line(scale, chart),
        *(part for mark in chart.marks for part in _mark_line(scale, mark)),
        *(_polyline(scale, line, number) for number, line in enumerate(chart.series)),
        *_names(scale, chart.series),
        "</svg>",
    ]
    return "\n".join(parts)


def _in_words(chart: GapChart) -> str:
    peaks = ", ".join(f"{line.name} {_peak(line):,.0f}" for line in chart.series)
    return f"Peaks: {peaks}. Limit: {chart.limit:,}."


def _count_axis(scale: _Scale) -> list[str]:
    powers = floor(log10(scale.top_count))
    parts = []
    for count in (0, *(10**power for power in range(powers + 1))):
        y = scale.y(count)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{count:,}</text>')
    parts.append(
        f'<text class="axis" transform="translate(16 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)" '
        'text-anchor="middle">gap ranges (logarithmic)</text>'
    )
    return parts


def _time_axis(scale: _Scale, unit: str) -> list[str]:
    step = _round_step(scale.last_time / MAX_TIME_TICKS)
    base = HEIGHT - BOTTOM
    parts = []
    for number in range(int(scale.last_time / step) + 1):
        x = scale.x(number * step)
        parts.append(f'<line class="tick-mark" x1="{x:.1f}" x2="{x:.1f}" y1="{base}" y2="{base + 5}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{base + 19}" text-anchor="middle">{number * step:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="axis" x="{middle:.0f}" y="{base + 40}" text-anchor="middle">{escape(unit)}</text>')
    return parts


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is not below ``least``."""
    power = 10.0 ** (ceil(log10(least)) - 1) if least > 0 else 1.0
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)


def _limit_line(scale: _Scale, chart: GapChart) -> list[str]:
    y = scale.y(chart.limit)
    places = [(LEFT + part * (WIDTH - LEFT - RIGHT), y_name) for y_name in (y - 6, y + 18) for part in LIMIT_NAMES_AT]
    drawn = [(scale.x(time), scale.y(count)) for line in chart.series for time, count in line.points]
    x_name, y_name = min(places, key=lambda place: _covered(place, drawn))
    return [
        f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>',
        f'<text class="limit-name" x="{x_name:.0f}" y="{y_name:.1f}">the broker keeps {chart.limit:,} ranges</text>',
    ]


def _covered(place: tuple[float, float], drawn: Sequence[tuple[float, float]]) -> int:
    """How many points of the lines a name at this place would lie on."""
    x_name, y_name = place
    return sum(
        x_name <= x <= x_name + LIMIT_NAME_WIDTH and y_name - LIMIT_NAME_HEIGHT <= y <= y_name + LIMIT_NAME_HEIGHT / 4
        for x, y in drawn
    )


def _mark_line(scale: _Scale, mark: Mark) -> list[str]:
    x = scale.x(mark.at)
    return [
        f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>',
        f'<text class="mark-name" x="{x + 5:.1f}" y="{TOP + 12}">{escape(mark.name)}</text>',
    ]


def _polyline(scale: _Scale, line: Series, number: int) -> str:
    points = " ".join(f"{scale.x(time):.1f},{scale.y(count):.1f}" for time, count in line.points)
    return (
        f'<polyline class="line line-{number}"{_dash(number)} points="{points}">'
        f"<title>{escape(line.name)}</title></polyline>"
    )


def _names(scale: _Scale, lines: Sequence[Series]) -> list[str]:
    """Each line's name and peak at the right edge, at the height of its typical value, kept apart from the others."""
    wanted = sorted((scale.y(_middle(line)), number) for number, line in enumerate(lines))
    parts: list[str] = []
    free_from = float(TOP)
    room = HEIGHT - BOTTOM - LABEL_HEIGHT * 2 * len(wanted)
    for y_wanted, number in wanted:
        y = max(min(y_wanted, room + LABEL_HEIGHT * 2 * len(parts)), free_from)
        free_from = y + LABEL_HEIGHT * 2
        line = lines[number]
        x, y_line = WIDTH - RIGHT + 10, f"{y + 5:.1f}"
        parts.append(
            f'<line class="line line-{number}"{_dash(number)} x1="{x}" x2="{x + 26}" y1="{y_line}" y2="{y_line}"/>'
            f'<text class="name" x="{x + 32}" y="{y + 9:.1f}">{escape(line.name)}'
            f'<tspan class="peak" x="{x + 32}" dy="{LABEL_HEIGHT - 3}">peak {_peak(line):,.0f}</tspan></text>'
        )
    return parts


def _middle(line: Series) -> float:
    counts = sorted(count for _, count in line.points)
    return counts[len(counts) // 2] if counts else 0.0


def _peak(line: Series) -> float:
    return max((count for _, count in line.points), default=0.0)


def _dash(number: int) -> str:
    dash = DASHES[number % len(DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""

"""Choices as points of two costs, both axes logarithmic, as one SVG element: down and to the left is better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

__all__ = ["Choices", "Named", "choice_chart"]

WIDTH, HEIGHT = 960, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 190, 24, 52
LABEL_HEIGHT = 16
LABEL_WIDTH = 230
"""Names that are nearer than this must not be at one height."""
LEAST_X = 0.01

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A point with its name; the one that ``stands_out`` is drawn larger."""

    name: str
    at: Point
    stands_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What is drawn.

    Args:
        title: Read by screen readers.
        points: All choices, (x, y).
        front: Of them those that nothing beats, by x.
        named: Those with a name.
        limit: A height to mark.
        limit_name: What it is.
        x_name: Of the axis.
        y_name: Of the axis.
    """

    title: str
    points: Sequence[Point]
    front: Sequence[Point]
    named: Sequence[Named]
    limit: float
    limit_name: str
    x_name: str
    y_name: str


@dataclass(frozen=True, slots=True)
class _Scale:
    x_low: int
    x_high: int
    y_high: int

    def at(self, point: Point) -> Point:
        x = (log10(max(point[0], LEAST_X)) - self.x_low) / (self.x_high - self.x_low)
        y = log10(1 + max(point[1], 0)) / log10(1 + 10**self.y_high)
        return LEFT + (WIDTH - LEFT - RIGHT) * x, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y


def choice_chart(choices: Choices) -> str:
    """Draw the chart as an SVG element, styled by the page."""
    every = [*choices.points, *choices.front, *(named.at for named in choices.named)]
    xs = [max(x, LEAST_X) for x, _ in every] or [1.0]
    x_low = floor(log10(min(xs)))
    scale = _Scale(
        x_low=x_low,
        x_high=max(ceil(log10(max(xs))), x_low + 1),
        y_high=max(ceil(log10(max(1 + choices.limit, *(1 + y for _, y in every)))), 1),
    )
    limit_y = scale.at((1.0, choices.limit))[1]
    front = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(scale.at, choices.front))
    return "\n".join(
        [
            f'<svg class="choice-chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(choices.title)}" '
            f'data-x-max="{10**scale.x_high:g}" data-axis-max="{10**scale.y_high}" data-limit="{choices.limit:g}">',
            *_axes(scale, choices),
            f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{limit_y:.1f}" y2="{limit_y:.1f}"/>',
            f'<text class="limit-name" x="{WIDTH - RIGHT}" y="{limit_y - 6:.1f}" text-anchor="end">'
            f"{escape(choices.limit_name)}</text>",
            *(_dot("candidate", 3, scale.at(point)) for point in choices.points),
            f'<polyline class="front" points="{front}"/>',
            *(_dot("on-front", 4, scale.at(point)) for point in choices.front),
            *_names(scale, choices.named),
            "</svg>",
        ]
    )


def _axes(scale: _Scale, choices: Choices) -> list[str]:
    base, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for count in (0, *(10**power for power in range(scale.y_high + 1))):
        y = scale.at((1.0, count))[1]
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{count:,}</text>')
    for power in range(scale.x_low, scale.x_high + 1):
        x = scale.at((10.0**power, 0.0))[0]
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{base}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{base + 19}" text-anchor="middle">{10.0**power:,g}</text>')
    parts.append(
        f'<text class="axis" x="{(LEFT + right) / 2:.0f}" y="{base + 40}" text-anchor="middle">'
        f"{escape(choices.x_name)}</text>"
    )
    parts.append(
        f'<text class="axis" transform="translate(16 {(TOP + base) / 2:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escape(choices.y_name)}</text>"
    )
    return parts


def _names(scale: _Scale, named: Sequence[Named]) -> list[str]:
    """Each point that has a name, and the name beside it, pushed down where another one is in its way."""
    parts: list[str] = []
    placed: list[Point] = []
    # The one that stands out gets the place that it wants.
    for one in sorted(named, key=lambda one: (not one.stands_out, scale.at(one.at)[1])):
        x, y = scale.at(one.at)
        label_y = y + 4
        while any(
            abs(x - other_x) < LABEL_WIDTH and abs(label_y - other_y) < LABEL_HEIGHT for other_x, other_y in placed
        ):
            label_y += LABEL_HEIGHT / 2
        placed.append((x, label_y))
        kind = "stands-out" if one.stands_out else "named"
        parts.append(_dot(kind, 7 if one.stands_out else 5, (x, y)))
        if label_y - y > LABEL_HEIGHT / 2:
            parts.append(f'<line class="leader" x1="{x:.1f}" x2="{x + 9:.1f}" y1="{y:.1f}" y2="{label_y - 4:.1f}"/>')
        parts.append(f'<text class="name {kind}-name" x="{x + 11:.1f}" y="{label_y:.1f}">{escape(one.name)}</text>')
    return parts


def _dot(kind: str, radius: int, at: Point) -> str:
    return f'<circle class="{kind}" cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="{radius}"/>'

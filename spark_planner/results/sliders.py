"""The sliders of a report's what-if: their values and labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from timewheel._report.page import Slider, Sliders
from timewheel.core.durations import format_duration
from timewheel.spark_planner.results.what_if import WhatIf, windows_ms

__all__ = ["sliders"]

GROWTHS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5, 10.0, 15.0, 20.0)
GAP_FRACTIONS = tuple(percent / 100 for percent in range(5, 101, 5))
TOPIC_PRICES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
ROWS = (
    ("plan", "plan"),
    ("partitions", "partitions"),
    ("gaps", "gaps in the fullest partition"),
    ("topics", "partition topics, all"),
    ("cost", "cost, entries a second"),
    ("broken", "limits broken"),
)


def sliders(statistic: WhatIf) -> Sliders:
    """Build the four sliders, which start at the planned values."""
    start = statistic.start
    windows = [0, *windows_ms(statistic.options)]
    return Sliders(
        sliders=[
            _slider("growth", "Volume", GROWTHS, start.growth, lambda times: f"{times:g} x"),
            _slider("gap_fraction", "Of the broker's gap limit", GAP_FRACTIONS, start.gap_fraction, _percent),
            _slider("window_ms", "Window", windows, start.window_ms, _window),
            _slider(
                "topic_price", "Price of a topic", TOPIC_PRICES, start.topic_price, lambda price: f"{price:g} entries/s"
            ),
        ],
        statistic=statistic.as_json(),
        rows=ROWS,
        columns=("cheapest here", "recommended plan"),
    )


def _slider(name: str, label: str, usual: Iterable[float], start: float, written: Callable[[float], str]) -> Slider:
    stops = sorted({*usual, start})
    return Slider(
        name=name, label=label, stops=stops, texts=[written(stop) for stop in stops], start=stops.index(start)
    )


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.3g} %"


def _window(window_ms: float) -> str:
    return format_duration(int(window_ms)) if window_ms else "any plan"

"""Draws the dashboard as a picture, each panel from the results of its own queries, for review by people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import vl_convert

__all__ = ["Line", "lines_of", "write_picture"]

COLUMN_PX = 60
"""Grafana has 24 columns."""
ROW_PX = 24
MARGIN_PX = 90
"""Space between two panels: for the figures at an axis."""
LINES = {"percentunit": ".0%", "bytes": ".3~s", "s": ",.6~g", "ops": ",.6~g", "wps": ",.6~g", "short": ",.6~g"}
"""Format of figures at an axis, by Grafana's unit."""
FIGURES = {"percentunit": ".0%", "s": ",.1f", "short": ",.0f"}
"""Format of a large single figure."""
WORDS = {"bytes": "bytes", "s": "seconds", "ops": "a second", "wps": "a second"}
"""Title of an axis; counts need none."""
SUFFIXES = {"s": " s"}

Spec = dict[str, Any]
"""A Vega-Lite specification."""
Points = Sequence[tuple[float, float]]


class Line(NamedTuple):
    """A series of a panel: its legend, and (UTC seconds, value) in order."""

    legend: str
    points: Points


def lines_of(target: Mapping[str, Any], answer: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Return the lines that a panel draws for a query.

    Args:
        target: The query, as in the dashboard.
        answer: Prometheus's result over a range of time.
    """
    found = []
    for series in answer:
        points = [(float(at), float(value)) for at, value in series["values"] if math.isfinite(float(value))]
        legend = Template(target["legendFormat"].replace("{{", "${").replace("}}", "}")).substitute(series["metric"])
        if points:
            found.append(Line(legend, points))
    return found


def write_picture(panels: Sequence[Mapping[str, Any]], drawn: Mapping[int, Sequence[Line]], file: Path) -> None:
    """Write all panels into one PNG, in their places.

    Args:
        panels: Panels of the dashboard, including rows.
        drawn: The lines of each panel, by the panel's id.
        file: The file to write.
    """
    rows: dict[int, list[Spec]] = {}
    for panel in panels:
        chart = _row(panel) if panel["type"] == "row" else _chart(panel, drawn[panel["id"]])
        rows.setdefault(panel["gridPos"]["y"], []).append(chart)
    apart = {"resolve": {"scale": {"color": "independent"}}}
    # Align by the frames, not by titles and axes around them: so panels form columns, as in Grafana.
    grid = {"bounds": "flush", "spacing": MARGIN_PX, **apart}
    page = {"vconcat": [{"hconcat": charts, **grid} for _, charts in sorted(rows.items())], **apart}
    file.write_bytes(vl_convert.vegalite_to_png(page))


def _row(panel: Mapping[str, Any]) -> Spec:
    mark = {"type": "text", "align": "left", "x": 0, "fontSize": 20, "fontWeight": "bold"}
    return {
        "data": {"values": [{}]},
        "mark": mark,
        "encoding": {"text": {"value": panel["title"]}},
        "width": 200,
        "height": 30,
    }


def _chart(panel: Mapping[str, Any], lines: Sequence[Line]) -> Spec:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    rows: list[Spec] = [
        {"at": at * 1_000, "value": value, "line": line.legend} for line in lines for at, value in line.points
    ]
    if panel["type"] == "stat":
        drawn = _figure(panel, unit, rows[-1]["value"] if rows else None)
    else:
        drawn = {
            "data": {"values": rows},
            # A line needs two points.
            "mark": {"type": "line", "point": any(len(line.points) == 1 for line in lines)},
            "encoding": {
                "x": {"field": "at", "type": "temporal", "title": None},
                "y": {
                    "field": "value",
                    "type": "quantitative",
                    "title": WORDS.get(unit),
                    "axis": {"format": LINES[unit], **({"tickMinStep": 1} if unit == "short" else {})},
                },
                "color": {
                    "field": "line",
                    "type": "nominal",
                    "legend": {"orient": "bottom", "title": None, "labelLimit": 600, "columns": 1},
                },
            },
        }
    return {
        **drawn,
        "title": panel["title"],
        "width": panel["gridPos"]["w"] * COLUMN_PX - MARGIN_PX,
        "height": panel["gridPos"]["h"] * ROW_PX,
    }


def _figure(panel: Mapping[str, Any], unit: str, last: float | None) -> Spec:
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    reached = [step["color"] for step in steps if step["value"] is None or (last or 0) >= step["value"]]
    suffix = SUFFIXES.get(unit, "")
    color = "black" if reached[-1] == "text" else reached[-1]
    return {
        "data": {"values": [{"value": last}]},
        "mark": {"type": "text", "fontSize": 34, "color": color},
        "transform": [{"calculate": f"format(datum.value, '{FIGURES[unit]}') + '{suffix}'", "as": "text"}],
        "encoding": {"text": {"field": "text", "type": "nominal"}},
    }

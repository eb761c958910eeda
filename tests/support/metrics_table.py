"""Generates the table of metrics in docs/how-to/metrics.md from the catalogue.

As a program it writes the page; `make docs-tables` runs it.
"""

from __future__ import annotations

from tests.support.checkout import ROOT
from tests.support.drawn import drawn
from timewheel.metrics import CATALOGUE, Metric

PAGE = ROOT / "docs" / "how-to" / "metrics.md"
BEGIN = "<!-- drawn from timewheel/metrics/catalogue.py by `make docs-tables` -->\n"


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.means} |\n"


def table() -> str:
    """Return all metrics, by the component that exports them."""
    parts = []
    for by in dict.fromkeys(metric.by for metric in CATALOGUE):
        rows = "".join(_row(metric) for metric in CATALOGUE if metric.by == by)
        parts.append(f"**{by.capitalize()}**\n\n| metric | kind | labels | means |\n|---|---|---|---|\n{rows}")
    return "\n".join(parts)


def redrawn(page: str) -> str:
    """Return the page with its generated part updated."""
    return drawn(page, BEGIN, table())


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

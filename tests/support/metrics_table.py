"""Generates the list of metrics in docs/how-to/metrics.md from the catalogue.

As a program it writes the page; `make docs-tables` runs it.
"""

from __future__ import annotations

from tests.support.checkout import ROOT
from tests.support.drawn import drawn
from timewheel.metrics import CATALOGUE, Metric

PAGE = ROOT / "docs" / "how-to" / "metrics.md"
BEGIN = "<!-- drawn from timewheel/metrics/catalogue.py by `make docs-tables` -->\n"


def _line(metric: Metric, common: tuple[str, ...]) -> str:
    labels = ", ".join(label for label in metric.labels if label not in common)
    return f"- `{metric.name}{f'{{{labels}}}' if labels else ''}`: {metric.means}\n"


def _part(by: str) -> str:
    """Return the metrics of a component; labels that all of them have stand above the list."""
    metrics = [metric for metric in CATALOGUE if metric.by == by]
    common = tuple(label for label in metrics[0].labels if all(label in metric.labels for metric in metrics))
    of_all = f": {', '.join(f'`{label}`' for label in common)}" if common else ""
    return f"**{by.capitalize()}**{of_all}\n\n{''.join(_line(metric, common) for metric in metrics)}"


def table() -> str:
    """Return all metrics, by the component that exports them."""
    return "\n".join(_part(by) for by in dict.fromkeys(metric.by for metric in CATALOGUE))


def redrawn(page: str) -> str:
    """Return the page with its generated part updated."""
    return drawn(page, BEGIN, table())


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

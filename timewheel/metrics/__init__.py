"""Prometheus metrics: of this process's producers, consumers, relays and shadows, and of topics and plans from outside.

`Metrics` reads the counts of producers, consumers and relays at each scrape. `Exporter` inspects topics and plans
periodically, in a process of its own: ``timewheel exporter``.

Metrics need the extra `metrics`. Names are loaded on first use; without the extra the first use raises
`timewheel.errors.ExtraMissing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timewheel.core.extras import missing_extra, names_on_first_use

if TYPE_CHECKING:
    from timewheel.metrics.catalogue import CATALOGUE, Metric
    from timewheel.metrics.collecting import Metrics, metrics_page
    from timewheel.metrics.exporting import Exporter

__all__ = ["CATALOGUE", "Exporter", "Metric", "Metrics", "metrics_page"]

__getattr__ = names_on_first_use(
    __name__,
    {".catalogue": "CATALOGUE Metric", ".collecting": "Metrics metrics_page", ".exporting": "Exporter"},
    missing_extra("a page of metrics", "metrics"),
)

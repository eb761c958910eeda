"""Metrics for Prometheus (extra ``metrics``): of this process's own roles, and of topics and plans from outside.

`Metrics` reads what producers, consumers and relays have counted, when somebody scrapes. `Exporter` looks at topics and
plans again and again, for a process of its own: ``timewheel exporter``.
"""

from timewheel.metrics.catalogue import CATALOGUE, Metric
from timewheel.metrics.collecting import Metrics, metrics_page
from timewheel.metrics.exporting import Exporter

__all__ = ["CATALOGUE", "Exporter", "Metric", "Metrics", "metrics_page"]

"""Metrics for Prometheus: of this process's own roles, and of topics and plans from outside.

`Metrics` reads what producers, consumers and relays have counted, when somebody scrapes. `Exporter` looks at topics and
plans again and again, for a process of its own: ``timewheel exporter``.

It needs the extra: ``pip install 'pulsar-timewheel[metrics]'``. Names are loaded on first use; without the extra that
first use raises `timewheel.errors.MetricsMissing`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from timewheel.metrics.errors import MetricsMissing

if TYPE_CHECKING:
    from timewheel.metrics.catalogue import CATALOGUE, Metric
    from timewheel.metrics.collecting import Metrics, metrics_page
    from timewheel.metrics.exporting import Exporter

__all__ = ["CATALOGUE", "Exporter", "Metric", "Metrics", "metrics_page"]

_MODULE_OF = {
    "CATALOGUE": "catalogue",
    "Exporter": "exporting",
    "Metric": "catalogue",
    "Metrics": "collecting",
    "metrics_page": "collecting",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{_MODULE_OF[name]}")
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("prometheus_client"):
            raise  # nothing that the extra would mend
        raise MetricsMissing from error
    value: object = getattr(module, name)
    globals()[name] = value
    return value

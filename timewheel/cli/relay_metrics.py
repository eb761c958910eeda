"""Metrics of a relay service for Prometheus, if the extra is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from timewheel.metrics import Metrics
    from timewheel.serving import Page

__all__ = ["metrics_of_service"]


def metrics_of_service() -> tuple[Metrics | None, dict[str, Page]]:
    """Return metrics on a separate registry, and the page that serves them; without the extra, a page that names the
    extra.
    """
    from timewheel.core.extras import ExtraMissing
    from timewheel.serving import METRICS_PATH, Answer

    try:
        from timewheel.metrics import Metrics, metrics_page
    except ExtraMissing as error:
        told = Answer(501, f"{error}\n".encode())
        return None, {METRICS_PATH: lambda: told}
    from prometheus_client import CollectorRegistry
    from prometheus_client.platform_collector import PlatformCollector
    from prometheus_client.process_collector import ProcessCollector

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return Metrics(registry), {METRICS_PATH: metrics_page(registry)}

"""Errors of metrics."""

from __future__ import annotations

from timewheel.core.errors import TimewheelError

__all__ = ["MetricsMissing"]


class MetricsMissing(TimewheelError, ImportError):
    """prometheus-client is not installed; the message has the line that installs it."""

    def __init__(self) -> None:
        super().__init__("metrics need prometheus-client, which pip install 'pulsar-timewheel[metrics]' installs")

"""What tracing raises of its own."""

from __future__ import annotations

from timewheel.core.errors import TimewheelError

__all__ = ["TracingMissing"]


class TracingMissing(TimewheelError, ImportError):
    """OpenTelemetry's API is not installed; the message has the line that installs it."""

    def __init__(self) -> None:
        super().__init__("tracing needs opentelemetry-api, which pip install 'pulsar-timewheel[otel]' installs")

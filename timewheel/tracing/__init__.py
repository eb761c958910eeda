"""OpenTelemetry: a span for every send, and a span for every handled timer, linked to the span of its send.

    producer = TracedProducer(client, plan)
    consumer.run(traced_handler(handle))

Tracing needs the extra `otel`. Names are loaded on first use, so that importing this package costs nothing; without the
extra the first use raises `timewheel.errors.ExtraMissing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timewheel.core.extras import missing_extra, names_on_first_use

if TYPE_CHECKING:
    from timewheel.tracing.handlers import traced_handler
    from timewheel.tracing.producers import AsyncTracedProducer, TracedProducer

__all__ = ["AsyncTracedProducer", "TracedProducer", "traced_handler"]

__getattr__ = names_on_first_use(
    __name__,
    {".producers": "AsyncTracedProducer TracedProducer", ".handlers": "traced_handler"},
    missing_extra("tracing", "otel"),
)

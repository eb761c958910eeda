"""OpenTelemetry: a span for every send, and one for every timer that is handled, linked to its send's.

    producer = TracedProducer(client, plan)
    consumer.run(traced_handler(handle))

It needs the extra: ``pip install 'pulsar-timewheel[otel]'``. Names are loaded on first use, so that importing this
package costs nothing; without the extra that first use raises `timewheel.errors.TracingMissing`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from timewheel.tracing.errors import TracingMissing

if TYPE_CHECKING:
    from timewheel.tracing.handlers import traced_handler
    from timewheel.tracing.producers import AsyncTracedProducer, TracedProducer

__all__ = ["AsyncTracedProducer", "TracedProducer", "traced_handler"]

_MODULE_OF = {"AsyncTracedProducer": "producers", "TracedProducer": "producers", "traced_handler": "handlers"}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{_MODULE_OF[name]}")
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("opentelemetry"):
            raise  # nothing that the extra would mend
        raise TracingMissing from error
    value: object = getattr(module, name)
    globals()[name] = value
    return value

"""The context of a trace as two properties of a message: W3C's ``traceparent`` and ``tracestate``."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

__all__ = ["MAX_CHARS", "context_in", "properties_of"]

# Not the process-wide propagator. It would store baggage, which is the user's data, in topics for months; and who
# reads a property after months should find a standard, not what this process was set up with.
_W3C = TraceContextTextMapPropagator()
_FIELDS = ("traceparent", "tracestate")

MAX_CHARS = 512
"""Of either property: what W3C asks everybody to pass on. A longer one is neither written nor read."""


def properties_of(span: Span) -> dict[str, str]:
    """The properties that name a span; none if nobody traces."""
    found: dict[str, str] = {}
    _W3C.inject(found, set_span_in_context(span, Context()))
    return _bounded(found)


def context_in(properties: Mapping[str, str]) -> SpanContext | None:
    """Whom a message's properties name; None if they name nobody that can be read."""
    named = get_current_span(_W3C.extract(_bounded(properties))).get_span_context()
    return named if named.is_valid else None


def _bounded(properties: Mapping[str, str]) -> dict[str, str]:
    # Bounded here, since the propagator writes a line into the log for each that is too long.
    return {name: properties[name] for name in _FIELDS if len(properties.get(name, "")) in range(1, MAX_CHARS + 1)}

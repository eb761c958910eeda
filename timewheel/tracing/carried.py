"""Propagation of a trace's context as two properties of a message: W3C's ``traceparent`` and ``tracestate``."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

# Not the process-wide propagator: it would store baggage, which is the user's data, in topics for months. And a reader
# of a property after months should find a standard, not a format from the configuration of this process.
_W3C = TraceContextTextMapPropagator()
_FIELDS = ("traceparent", "tracestate")

MAX_CHARS = 512
"""Limit for either property: the length that W3C asks all parties to pass on. Longer values are not written or read."""


def properties_of(span: Span) -> dict[str, str]:
    """Return the properties that identify a span; empty without tracing."""
    found: dict[str, str] = {}
    _W3C.inject(found, set_span_in_context(span, Context()))
    return _bounded(found)


def context_in(properties: Mapping[str, str]) -> SpanContext | None:
    """Return the span context in a message's properties; None: there is none, or it is unreadable."""
    named = get_current_span(_W3C.extract(_bounded(properties))).get_span_context()
    return named if named.is_valid else None


def _bounded(properties: Mapping[str, str]) -> dict[str, str]:
    # Bounded here, since the propagator logs a line for each value that is too long.
    return {name: properties[name] for name in _FIELDS if len(properties.get(name, "")) in range(1, MAX_CHARS + 1)}

"""Names of span attributes, and the values that spans of sends and of handlers share.

Names under ``messaging.`` come from OpenTelemetry's semantic conventions, which are still in development: a test
compares them with the installed conventions. Names under ``timewheel.`` are timewheel's own.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, Literal

from opentelemetry.context import Context
from opentelemetry.trace import (
    Span,
    SpanContext,
    Tracer,
    TracerProvider,
    get_current_span,
    get_tracer,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import timewheel
from timewheel.client.positions import Position

SYSTEM = "messaging.system"
OPERATION_NAME = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
DESTINATION = "messaging.destination.name"
TEMPLATE = "messaging.destination.template"
PARTITION = "messaging.destination.partition.id"
SUBSCRIPTION = "messaging.destination.subscription.name"
MESSAGE_ID = "messaging.message.id"
ERROR_TYPE = "error.type"

TIMER_ID = "timewheel.timer_id"
DUE = "timewheel.due"  # ISO 8601 in UTC, with milliseconds
DELAY_S = "timewheel.delay_s"
OUTCOME = "timewheel.outcome"
LATENESS_MS = "timewheel.lateness_ms"
HOPS = "timewheel.hops"
GENERATION = "timewheel.generation"

Operation = Literal["send", "process"]


def common(operation: Operation, topic: str) -> dict[str, str]:
    """Return the attributes that every span has."""
    return {SYSTEM: "pulsar", OPERATION_NAME: operation, OPERATION_TYPE: operation, DESTINATION: topic}


def due_text(due_at: dt.datetime) -> str:
    """Render a due time as an attribute."""
    return due_at.isoformat(timespec="milliseconds")


def position_text(message_id: Any) -> str:
    """Render a position as an attribute, as ``pulsar-admin`` writes it, with the index in its batch if it has one.

    The client's own text contains the partition too, or -1 if the client does not know it: the texts of producer and
    consumer would differ for the same message.
    """
    return Position.of(message_id).text


def tracer_of(provider: TracerProvider | None) -> Tracer:
    """Return the tracer of this library; without a provider, from the process-wide provider, which may be set later."""
    return get_tracer("timewheel", timewheel.__version__, provider)


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

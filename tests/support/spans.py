"""Spans for tests: a tracer provider that stores all finished spans."""

from __future__ import annotations

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, Tracer


class Spans:
    """Stores every span that has ended."""

    def __init__(self) -> None:
        self.provider = TracerProvider(shutdown_on_exit=False)
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def tracer(self) -> Tracer:
        """Return the test's own tracer."""
        return self.provider.get_tracer("test")

    def ended(self, name: str = "") -> list[ReadableSpan]:
        """Return spans whose name starts with ``name``, in the order in which they ended."""
        return [span for span in self._exporter.get_finished_spans() if span.name.startswith(name)]

    def only(self, name: str = "") -> ReadableSpan:
        (span,) = self.ended(name)
        return span


def attributes_of(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


def context_of(span: ReadableSpan) -> SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found

"""Producers that trace their sends, and otherwise behave like their base classes."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, Unpack

from opentelemetry.context import attach, detach, get_current
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, TracerProvider

from timewheel.client.surface import ClientLike
from timewheel.core.clock import Clock, SystemClock
from timewheel.core.errors import PayloadTooLarge, SendFailed, SendOutcomeUnknown, TimewheelError, TopologyError
from timewheel.core.plan import Plan
from timewheel.producers import AsyncDelayedProducer, DelayedProducer, SendOptions, Timer, TimerCallback
from timewheel.producers.base_producer import BaseProducer
from timewheel.tracing import attributes as tags


class SendSpans:
    """Begins the spans of a producer's sends."""

    def __init__(self, topic: str, provider: TracerProvider | None, clock: Clock | None) -> None:
        self._tracer: Tracer = tags.tracer_of(provider)
        self._name = f"send {topic}"
        self._attributes = tags.common("send", topic)
        self._clock = clock or SystemClock()

    def begin(self, options: SendOptions) -> SendSpan:
        """Begin a span as a child of the caller's span, and add its context to the options."""
        attributes = dict(self._attributes)
        timer_id: object = options.get("timer_id")
        if isinstance(timer_id, str):
            attributes[tags.TIMER_ID] = timer_id  # set at the start, so that a sampler can use it
        span = self._tracer.start_span(self._name, kind=SpanKind.PRODUCER, attributes=attributes)
        return SendSpan(span, options, self._clock.now_ms())


class SendSpan:
    """Span of a single send; a context manager that ends it with any exception."""

    __slots__ = ("_began_ms", "_ended", "_span", "bare", "options")

    def __init__(self, span: Span, options: SendOptions, began_ms: int) -> None:
        self._span = span
        self._began_ms = began_ms
        self._ended = False
        self.bare = options  # options as given by the caller
        self.options = _with_context(options, span)  # options with the context among the properties

    @property
    def carries_context(self) -> bool:
        """True if the context was added to the caller's properties."""
        return self.options is not self.bare

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.end(error, None)

    def end(self, error: BaseException | None, timer: Timer | None) -> None:
        """Record the outcome, and end the span; later calls are ignored."""
        if self._ended:
            return
        self._ended = True
        span = self._span
        if span.is_recording():
            span.set_attribute(tags.OUTCOME, _outcome(error))
            if timer is not None:
                self._report(timer)
            if error is not None:
                span.set_attribute(tags.ERROR_TYPE, type(error).__qualname__)
                span.record_exception(error)
                span.set_status(Status(StatusCode.ERROR, str(error)))
        span.end()

    def reporting(self, callback: TimerCallback) -> TimerCallback:
        """Return a callback that ends the span, then calls the user's callback in the context of the sender."""
        context = get_current()

        def told(error: TimewheelError | None, timer: Timer) -> None:
            self.end(error, timer)
            token = attach(context)
            try:
                callback(error, timer)
            finally:
                detach(token)

        return told

    def _report(self, timer: Timer) -> None:
        self._span.set_attribute(tags.TIMER_ID, timer.id)
        self._span.set_attribute(tags.DUE, tags.due_text(timer.due_at))
        self._span.set_attribute(tags.DELAY_S, max(timer.due_ms - self._began_ms, 0) / 1_000)
        if timer.partition is not None:
            self._span.set_attribute(tags.PARTITION, str(timer.partition))
        if timer.message_id is not None:
            self._span.set_attribute(tags.MESSAGE_ID, tags.position_text(timer.message_id))


def _with_context(options: SendOptions, span: Span) -> SendOptions:
    added = tags.properties_of(span)
    given: object = options.get("properties")
    if given is None:
        given = {}
    if not added or not isinstance(given, Mapping) or "traceparent" in given or "tracestate" in given:
        return options  # nothing to add; properties that the producer refuses itself; or the caller's own context
    carrying = options.copy()
    carrying["properties"] = {**given, **added}
    return carrying


def _outcome(error: BaseException | None) -> str:
    """Classify an error of a send in a single word."""
    if error is None:
        return "stored"
    if isinstance(error, SendOutcomeUnknown) or not isinstance(error, Exception):
        return "unknown"  # a cancelled or interrupted caller ends its wait, not the send
    if isinstance(error, SendFailed | TopologyError):
        return "failed"
    return "refused"


class _Traced(BaseProducer):
    def __init__(
        self,
        client: ClientLike,
        plan: Plan,
        *,
        tracer_provider: TracerProvider | None = None,
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        self._spans = SendSpans(plan.due_topic, tracer_provider, clock)
        super().__init__(client, plan, clock=clock, **options)


class TracedProducer(_Traced, DelayedProducer):
    """`DelayedProducer` with a span ``send TOPIC`` for each send, whose context travels in the timer's properties.

        with TracedProducer(client, plan) as producer:
            timer = producer.send(b"renew", deliver_after=timedelta(days=17), timer_id="sub-42")

    A span begins with the call and ends with the outcome. This includes `send_async`, whose callback is called in the
    context of its sender. A ``traceparent`` or ``tracestate`` among your properties stays unchanged. A timer without
    room for the context is sent without it.

    Args:
        client: See `DelayedProducer`.
        plan: See `DelayedProducer`.
        tracer_provider: Provider of the tracer; None: the process-wide provider.
        clock: See `DelayedProducer`; None: the system's clock.
        options: All other arguments of `DelayedProducer`.

    Raises:
        ClientMisuse: See `DelayedProducer`.
    """

    def send(self, content: Any, **options: Unpack[SendOptions]) -> Timer:
        """Send a timer and trace the send; see `DelayedProducer.send`."""
        with self._spans.begin(options) as span:
            try:
                timer = super().send(content, **span.options)
            except PayloadTooLarge:
                if not span.carries_context:
                    raise
                timer = super().send(content, **span.bare)
            span.end(None, timer)
            return timer

    def send_async(self, content: Any, callback: TimerCallback, **options: Unpack[SendOptions]) -> None:
        """Send a timer without waiting for its outcome, and trace the send; see `DelayedProducer.send_async`."""
        with self._spans.begin(options) as span:
            told = span.reporting(callback)
            try:
                super().send_async(content, told, **span.options)
            except PayloadTooLarge:
                if not span.carries_context:
                    raise
                super().send_async(content, told, **span.bare)


class AsyncTracedProducer(_Traced, AsyncDelayedProducer):
    """Counterpart of `TracedProducer` for asyncio, with its arguments: `AsyncDelayedProducer` with spans of sends."""

    async def send(self, content: Any, **options: Unpack[SendOptions]) -> Timer:
        """Send a timer and trace the send; see `AsyncDelayedProducer.send`."""
        with self._spans.begin(options) as span:
            try:
                timer = await super().send(content, **span.options)
            except PayloadTooLarge:
                if not span.carries_context:
                    raise
                timer = await super().send(content, **span.bare)
            span.end(None, timer)
            return timer

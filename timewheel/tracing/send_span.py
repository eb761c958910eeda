"""The span of one send, from the call to its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from opentelemetry.context import attach, detach, get_current
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, TracerProvider

from timewheel.core.clock import Clock, SystemClock
from timewheel.core.errors import SendFailed, SendOutcomeUnknown, TimewheelError, TopologyError
from timewheel.producers import SendOptions, Timer, TimerCallback
from timewheel.tracing.attributes import (
    DELAY_S,
    DUE,
    ERROR_TYPE,
    MESSAGE_ID,
    OUTCOME,
    PARTITION,
    TIMER_ID,
    common,
    due_text,
    position_text,
    tracer_of,
)
from timewheel.tracing.carried import properties_of

__all__ = ["SendSpan", "SendSpans"]


class SendSpans:
    """Begins the spans of one producer's sends.

    Args:
        topic: The plan's due topic.
        provider: None: the process-wide one.
        clock: The producer's; None: the machine's.
    """

    def __init__(self, topic: str, provider: TracerProvider | None, clock: Clock | None) -> None:
        self._tracer: Tracer = tracer_of(provider)
        self._name = f"send {topic}"
        self._attributes = common("send", topic)
        self._clock = clock or SystemClock()

    def begin(self, options: SendOptions) -> SendSpan:
        """A span as a child of the caller's, and the options with its context."""
        attributes = dict(self._attributes)
        timer_id: object = options.get("timer_id")
        if isinstance(timer_id, str):
            attributes[TIMER_ID] = timer_id  # from the start, so that a sampler may go by it
        span = self._tracer.start_span(self._name, kind=SpanKind.PRODUCER, attributes=attributes)
        return SendSpan(span, options, self._clock.now_ms())


class SendSpan:
    """One send; as a context manager it ends with what was raised.

    Args:
        span: Has begun.
        options: The caller's.
        began_ms: The send time, UTC milliseconds.
    """

    __slots__ = ("_began_ms", "_ended", "_span", "bare", "options")

    def __init__(self, span: Span, options: SendOptions, began_ms: int) -> None:
        self._span = span
        self._began_ms = began_ms
        self._ended = False
        self.bare = options
        """The options as the caller gave them."""
        self.options = _with_context(options, span)
        """Those with the context among the properties."""

    @property
    def carries_context(self) -> bool:
        """Whether anything was added to what the caller gave."""
        return self.options is not self.bare

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.end(error, None)

    def end(self, error: BaseException | None, timer: Timer | None) -> None:
        """Tell the outcome; what comes after the first is ignored."""
        if self._ended:
            return
        self._ended = True
        span = self._span
        if span.is_recording():
            span.set_attribute(OUTCOME, _outcome(error))
            if timer is not None:
                self._tell(timer)
            if error is not None:
                span.set_attribute(ERROR_TYPE, type(error).__qualname__)
                span.record_exception(error)
                span.set_status(Status(StatusCode.ERROR, str(error)))
        span.end()

    def telling(self, callback: TimerCallback) -> TimerCallback:
        """A callback that ends the span, then calls the user's in the context of whoever sent."""
        context = get_current()

        def told(error: TimewheelError | None, timer: Timer) -> None:
            self.end(error, timer)
            token = attach(context)
            try:
                callback(error, timer)
            finally:
                detach(token)

        return told

    def _tell(self, timer: Timer) -> None:
        self._span.set_attribute(TIMER_ID, timer.id)
        self._span.set_attribute(DUE, due_text(timer.due_at))
        self._span.set_attribute(DELAY_S, max(timer.due_ms - self._began_ms, 0) / 1_000)
        if timer.partition is not None:
            self._span.set_attribute(PARTITION, str(timer.partition))
        if timer.message_id is not None:
            self._span.set_attribute(MESSAGE_ID, position_text(timer.message_id))


def _with_context(options: SendOptions, span: Span) -> SendOptions:
    added = properties_of(span)
    given: object = options.get("properties")
    if given is None:
        given = {}
    if not added or not isinstance(given, Mapping) or "traceparent" in given or "tracestate" in given:
        return options  # nothing to add; not ours to refuse; or the caller's own, whole
    carrying = options.copy()
    carrying["properties"] = {**given, **added}
    return carrying


def _outcome(error: BaseException | None) -> str:
    """The three outcomes by which errors differ, in one word each."""
    if error is None:
        return "stored"
    if isinstance(error, SendOutcomeUnknown) or not isinstance(error, Exception):
        return "unknown"  # whoever is cancelled or interrupted gives up waiting, not sending
    if isinstance(error, SendFailed | TopologyError):
        return "failed"
    return "refused"

"""The span around a handler: what it tells, whom it is linked to, and that the handler is what it was."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from tests.support.client_messages import NO_TEXT, client_message
from tests.support.manual_clock import ManualClock
from tests.support.spans import Spans, attributes_of, context_of
from timewheel.consumers import DelayedMessage
from timewheel.consumers.consumer import HandlerCalls
from timewheel.consumers.message import InFlight, arrival_of
from timewheel.core.envelope import Envelope
from timewheel.tracing import traced_handler

TOPIC = "persistent://acme/crm/reminders"
DUE_MS = 1_800_000_000_000
SENT = (0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7)
TRACEPARENT = f"00-{SENT[0]:032x}-{SENT[1]:016x}-00"


def stored(properties: dict[str, str] | bytes, topic: str) -> Any:
    return client_message(properties, topic=topic, at=(7, 11, 2))


def handed(stored: Any, at_ms: int = DUE_MS) -> DelayedMessage:
    return DelayedMessage(InFlight("sub-42", arrival_of(stored, None), received_ms=0), at_ms)


def message(
    topic: str = f"{TOPIC}-partition-3", *, late_ms: int = 0, properties: dict[str, str] | None = None
) -> DelayedMessage:
    """A timer that is handed out."""
    envelope = Envelope("sub-42", DUE_MS, 0, hops=2).properties()
    return handed(stored({**(properties or {}), **envelope}, topic=topic), DUE_MS + late_ms)


def links_of(span: Any) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def test_a_handled_timer_is_told_and_linked_to_its_send() -> None:
    spans = Spans()
    seen: list[tuple[Any, Any]] = []

    def handle(timer: DelayedMessage) -> str:
        """What it does."""
        with spans.tracer().start_as_current_span("query"):
            seen.append((timer, trace.get_current_span()))
        return "done"

    traced = traced_handler(handle, subscription="billing", tracer_provider=spans.provider)
    timer = message(late_ms=1_250, properties={"traceparent": TRACEPARENT})
    with spans.tracer().start_as_current_span("whatever runs here"):
        assert traced(timer) == "done"
    assert seen[0][0] is timer
    assert (getattr(traced, "__name__", None), traced.__doc__) == ("handle", "What it does.")
    query, span, _ = spans.ended()
    assert (span.name, span.kind, span.status.status_code) == (f"process {TOPIC}", SpanKind.CONSUMER, StatusCode.UNSET)
    assert span.parent is None
    assert links_of(span) == [SENT]
    assert context_of(span).trace_id != SENT[0]
    assert query.parent is not None
    assert query.parent.span_id == context_of(span).span_id
    assert attributes_of(span) == {
        "messaging.system": "pulsar",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": TOPIC,
        "messaging.destination.partition.id": "3",
        "messaging.destination.subscription.name": "billing",
        "messaging.message.id": "7:11:2",
        "timewheel.timer_id": "sub-42",
        "timewheel.due": "2027-01-15T08:00:00.000+00:00",
        "timewheel.lateness_ms": 1_250,
        "timewheel.hops": 2,
        "timewheel.generation": 0,
    }
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_a_calendars_topics_share_the_name_of_a_span() -> None:
    spans = Spans()
    traced_handler(lambda _: None, tracer_provider=spans.provider)(message(f"{TOPIC}.tw.1d-20270115-partition-0"))
    span = spans.only()
    assert span.name == f"process {TOPIC}"
    found = attributes_of(span)
    assert found["messaging.destination.name"] == f"{TOPIC}.tw.1d-20270115"
    assert found["messaging.destination.template"] == TOPIC
    assert "messaging.destination.subscription.name" not in found


@pytest.mark.parametrize("properties", [{}, {"traceparent": "garbled"}, {"traceparent": TRACEPARENT + "x" * 10_000}])
def test_a_context_that_cannot_be_read_is_no_link_and_no_error(
    properties: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    spans = Spans()
    calls: list[DelayedMessage] = []
    traced_handler(calls.append, tracer_provider=spans.provider)(message(properties=properties))
    assert len(calls) == 1
    assert spans.only().links == ()
    assert caplog.records == []


@pytest.mark.parametrize("properties", [NO_TEXT, {}, {"tw-timer": "garbled", "traceparent": TRACEPARENT}])
def test_a_foreign_message_is_handled_like_any_other(properties: dict[str, str] | bytes) -> None:
    spans = Spans()
    calls: list[DelayedMessage] = []
    foreign = handed(stored(properties, topic=TOPIC))
    traced_handler(calls.append, tracer_provider=spans.provider)(foreign)
    assert calls == [foreign]
    span = spans.only()
    assert links_of(span) == ([SENT] if properties and properties is not NO_TEXT else [])
    assert not [name for name in attributes_of(span) if name.startswith("timewheel.")]
    assert "messaging.destination.partition.id" not in attributes_of(span)


@pytest.mark.parametrize("error", [ValueError("no such customer"), SystemExit(3)], ids=["error", "exit"])
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_what_a_handler_raises_is_recorded_and_raised(kind: str, error: BaseException) -> None:
    spans = Spans()

    def plain(_: DelayedMessage) -> None:
        raise error

    async def asynchronous(_: DelayedMessage) -> None:
        await asyncio.sleep(0)
        raise error

    handler: Any = plain if kind == "plain" else asynchronous
    traced: Any = traced_handler(handler, tracer_provider=spans.provider)
    with pytest.raises(type(error)) as caught:
        traced(message()) if kind == "plain" else asyncio.run(traced(message()))
    assert caught.value is error
    span = spans.only()
    assert span.status.status_code is StatusCode.ERROR
    assert attributes_of(span)["error.type"] == type(error).__name__
    assert [event.name for event in span.events] == ["exception"]


@pytest.mark.parametrize("wrapped", [False, True], ids=["object", "partial"])
def test_an_async_handler_stays_one_and_its_spans_are_children(wrapped: bool) -> None:
    spans = Spans()
    traces: list[int] = []

    class Handling:
        async def __call__(self, _: DelayedMessage) -> None:
            await asyncio.sleep(0)
            with spans.tracer().start_as_current_span("query"):
                await asyncio.sleep(0)
                traces.append(trace.get_current_span().get_span_context().trace_id)

    handling = Handling()

    async def with_two(_: str, timer: DelayedMessage) -> None:
        await handling(timer)

    handler: Any = functools.partial(with_two, "first") if wrapped else handling
    with HandlerCalls(traced_handler(handler, tracer_provider=spans.provider), ManualClock()) as call:
        call(message())
        call(message())
    process = spans.ended("process")
    assert [context_of(span).trace_id for span in process] == traces
    assert len(set(traces)) == 2
    assert all(span.parent is None for span in process)


def test_it_can_stand_over_a_function() -> None:
    @traced_handler
    def handle(timer: DelayedMessage) -> str | None:
        return timer.timer_id

    assert handle(message()) == "sub-42", "without a provider: the process-wide one, which does nothing here"

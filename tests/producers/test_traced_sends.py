"""The span of a send: what it tells, what it puts into the message, and that it ends, whatever the outcome."""

from __future__ import annotations

import asyncio
import datetime as dt
import subprocess
import sys
import threading
from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import pulsar
import pytest
from opentelemetry import trace
from opentelemetry.semconv._incubating.attributes import messaging_attributes as conventions
from opentelemetry.semconv.attributes import error_attributes
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags, TraceState

from tests.support.manual_clock import ManualClock
from tests.support.plans import plan_of
from tests.support.silent_broker import AnsweringClient, SilentClient
from tests.support.spans import Spans, attributes_of, context_of
from timewheel.core import Tiered
from timewheel.core.errors import (
    BadArgument,
    ClientMisuse,
    PayloadTooLarge,
    ReservedProperty,
    SendFailed,
    SendOutcomeUnknown,
    TimewheelError,
    TopologyError,
)
from timewheel.producers import Timer
from timewheel.tracing import AsyncTracedProducer, TracedProducer, attributes
from timewheel.tracing.attributes import MAX_CHARS, context_in, properties_of
from timewheel.tracing.producers import SendSpans

PLAN = plan_of(Tiered(window_ms=3_600_000, tiers_ms=(3_600_000, 86_400_000)))
DAYS = dt.timedelta(days=17)
NOW_MS = 1_800_000_000_000
CONTEXT = SpanContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, is_remote=True, trace_flags=TraceFlags(1))
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def of_the_user(properties: Any) -> dict[str, str]:
    return {name: value for name, value in properties.items() if not name.startswith("tw-")}


def traced(client: Any, spans: Spans, **options: Any) -> TracedProducer:
    return TracedProducer(client, PLAN, tracer_provider=spans.provider, hooks=(), **options)


def test_a_send_is_told_and_named_in_the_message() -> None:
    client, spans, clock = AnsweringClient(), Spans(), ManualClock(NOW_MS)
    with traced(client, spans, clock=clock) as producer:
        producer.send(b"x", deliver_after=DAYS, timer_id="sub-42", properties={"who": "me"})
    span = spans.only()
    assert (span.name, span.kind, span.status.status_code) == (
        f"send {PLAN.due_topic}",
        SpanKind.PRODUCER,
        StatusCode.UNSET,
    )
    assert attributes_of(span) == {
        "messaging.system": "pulsar",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": PLAN.due_topic,
        "messaging.destination.partition.id": "0",
        "messaging.message.id": "7:11",
        "timewheel.timer_id": "sub-42",
        "timewheel.due": "2027-02-01T08:00:00.000+00:00",
        "timewheel.delay_s": 17 * 86_400.0,
        "timewheel.outcome": "stored",
    }
    (properties,) = client.sent
    carried = of_the_user(properties)
    assert carried.pop("who") == "me"
    assert carried.keys() == {"traceparent"}
    named = context_in(carried)
    assert named is not None
    assert (named.trace_id, named.span_id) == (context_of(span).trace_id, context_of(span).span_id)
    assert span.instrumentation_scope is not None
    assert span.instrumentation_scope.name == "timewheel"


def test_names_and_values_are_those_of_the_conventions() -> None:
    wanted = {
        attributes.SYSTEM: conventions.MESSAGING_SYSTEM,
        attributes.OPERATION_NAME: conventions.MESSAGING_OPERATION_NAME,
        attributes.OPERATION_TYPE: conventions.MESSAGING_OPERATION_TYPE,
        attributes.DESTINATION: conventions.MESSAGING_DESTINATION_NAME,
        attributes.TEMPLATE: conventions.MESSAGING_DESTINATION_TEMPLATE,
        attributes.PARTITION: conventions.MESSAGING_DESTINATION_PARTITION_ID,
        attributes.SUBSCRIPTION: conventions.MESSAGING_DESTINATION_SUBSCRIPTION_NAME,
        attributes.MESSAGE_ID: conventions.MESSAGING_MESSAGE_ID,
        attributes.ERROR_TYPE: error_attributes.ERROR_TYPE,
    }
    assert all(ours == theirs for ours, theirs in wanted.items())
    types = {kind.value for kind in conventions.MessagingOperationTypeValues}
    for operation in ("send", "process"):
        told = attributes.common(operation, "t")
        assert told[attributes.OPERATION_TYPE] in types
        assert told[attributes.SYSTEM] == conventions.MessagingSystemValues.PULSAR.value


def test_a_send_belongs_to_its_callers_trace() -> None:
    client, spans = AnsweringClient(), Spans()
    with traced(client, spans) as producer, spans.tracer().start_as_current_span("request") as request:
        producer.send(b"x")
    span = spans.only("send")
    assert span.parent is not None
    assert span.parent.span_id == request.get_span_context().span_id
    assert context_of(span).trace_id == request.get_span_context().trace_id


def test_the_callers_own_context_and_properties_are_left_as_they_are() -> None:
    client, spans = AnsweringClient(), Spans()
    own = {"traceparent": TRACEPARENT, "n": "1"}
    kept = MappingProxyType(OrderedDict(n="1"))
    with traced(client, spans) as producer:
        producer.send(b"x", properties=own)
        producer.send(b"x", properties={"tracestate": "theirs=1"})
        producer.send(b"x", properties=kept)
    first, second, third = (of_the_user(properties) for properties in client.sent)
    assert first == own
    assert second == {"tracestate": "theirs=1"}, "a state of one trace must not be sent beside the parent of another"
    assert third.keys() == {"n", "traceparent"}
    assert kept == {"n": "1"}


def test_a_state_travels_along_unless_it_is_longer_than_is_passed_on() -> None:
    for length, carried in ((MAX_CHARS, {"traceparent", "tracestate"}), (MAX_CHARS + 1, {"traceparent"})):
        rest = length - len("a=,b=") - 256
        state = TraceState([("a", "x" * 256), ("b", "x" * rest)])
        assert len(state.to_header()) == length
        context = SpanContext(CONTEXT.trace_id, CONTEXT.span_id, is_remote=True, trace_state=state)
        assert properties_of(NonRecordingSpan(context)).keys() == carried


def test_where_nobody_traces_nothing_is_added_and_a_callers_context_goes_on() -> None:
    client = AnsweringClient()
    with TracedProducer(client, PLAN, tracer_provider=trace.NoOpTracerProvider(), hooks=()) as producer:
        producer.send(b"x")
        producer.send(b"x", properties={"n": "1"})
        with trace.use_span(NonRecordingSpan(CONTEXT)):
            producer.send(b"x")
    assert [of_the_user(properties) for properties in client.sent] == [{}, {"n": "1"}, {"traceparent": TRACEPARENT}]


@pytest.mark.parametrize(
    ("result", "error", "outcome"),
    [
        (pulsar.Result.Timeout, SendOutcomeUnknown, "unknown"),
        (pulsar.Result.ProducerQueueIsFull, SendFailed, "failed"),
        (pulsar.Result.MessageTooBig, PayloadTooLarge, "refused"),
    ],
)
async def test_a_send_that_is_not_stored_says_how_sure_that_is(
    result: Any, error: type[Exception], outcome: str
) -> None:
    client, spans = AnsweringClient(result), Spans()
    told: list[tuple[TimewheelError | None, Timer]] = []
    with traced(client, spans) as producer:
        with pytest.raises(error):
            producer.send(b"x")
        producer.send_async(b"x", lambda *of: told.append(of), timer_id="sub-42", deliver_after=DAYS)
        producer.flush()
    async with AsyncTracedProducer(client, PLAN, tracer_provider=spans.provider, hooks=()) as producer:
        with pytest.raises(error):
            await producer.send(b"x")
    assert isinstance(told[0][0], error)
    assert len(spans.ended()) == 3
    for span in spans.ended():
        assert span.status.status_code is StatusCode.ERROR
        found = attributes_of(span)
        assert (found["timewheel.outcome"], found["error.type"]) == (outcome, error.__name__)
        assert [event.name for event in span.events] == ["exception"]
        assert "messaging.message.id" not in found
    assert attributes_of(spans.ended()[1])["timewheel.delay_s"] == pytest.approx(17 * 86_400, abs=5)


def test_what_is_refused_ends_its_span_and_calls_no_callback() -> None:
    client, spans = AnsweringClient(), Spans()
    told: list[object] = []
    producer = traced(client, spans)
    wrong: Any = ["not", "a", "mapping"]
    with pytest.raises(BadArgument):
        producer.send(b"x", properties=wrong)
    with pytest.raises(ReservedProperty):
        producer.send_async(b"x", lambda *of: told.append(of), properties={"tw-x": "1"})
    unknown: Any = {"deliver_afetr": DAYS}
    with pytest.raises(BadArgument, match="did you mean deliver_after"):
        producer.send(b"x", **unknown)
    producer.close()
    with pytest.raises(ClientMisuse):
        producer.send(b"x")
    kinds = [attributes_of(span)["error.type"] for span in spans.ended()]
    assert kinds == ["BadArgument", "ReservedProperty", "BadArgument", "ClientMisuse"]
    assert {attributes_of(span)["timewheel.outcome"] for span in spans.ended()} == {"refused"}
    assert told == client.sent == []


def test_a_missing_topic_is_a_send_that_failed() -> None:
    class NoTopic(AnsweringClient):
        def get_topic_partitions(self, topic: str) -> list[str]:
            return [topic]

    spans = Spans()
    with traced(NoTopic(), spans) as producer, pytest.raises(TopologyError):
        producer.send(b"x")
    assert attributes_of(spans.only())["timewheel.outcome"] == "failed"


def largest(client: AnsweringClient, **options: Any) -> bytes:
    """The largest payload that goes without a context, at a limit of 10,000 bytes."""
    for length in range(9_100, 8_800, -1):
        with TracedProducer(
            client, PLAN, tracer_provider=trace.NoOpTracerProvider(), hooks=(), max_message_bytes=10_000
        ) as producer:
            try:
                producer.send(b"x" * length, **options)
            except PayloadTooLarge:
                continue
            return b"x" * length
    raise AssertionError("all are refused")


async def test_a_timer_without_room_for_the_context_goes_without_it() -> None:
    options: Any = {"timer_id": "sub-42", "properties": {"n": "1"}}
    payload = largest(AnsweringClient(), **options)
    client, spans = AnsweringClient(), Spans()
    with traced(client, spans, max_message_bytes=10_000) as producer:
        producer.send(payload, **options)
        producer.send_async(payload, lambda _error, _timer: None, **options)
        producer.flush()
        with pytest.raises(PayloadTooLarge):
            producer.send(payload + b"x", **options)
    async with AsyncTracedProducer(
        client, PLAN, tracer_provider=spans.provider, hooks=(), max_message_bytes=10_000
    ) as producer:
        await producer.send(payload, **options)
    assert [of_the_user(properties) for properties in client.sent] == [{"n": "1"}] * 3
    outcomes = [attributes_of(span)["timewheel.outcome"] for span in spans.ended()]
    assert outcomes == ["stored", "stored", "refused", "stored"]


def test_a_callback_is_called_after_its_span_in_the_context_of_its_sender() -> None:
    client, spans = AnsweringClient(), Spans()
    seen: list[tuple[int, int]] = []
    called = threading.Event()

    def callback(_: TimewheelError | None, __: Timer) -> None:
        seen.append((trace.get_current_span().get_span_context().span_id, len(spans.ended("send"))))
        called.set()
        raise ValueError("the callback's own fault")

    with traced(client, spans) as producer:
        with spans.tracer().start_as_current_span("request") as request:
            producer.send_async(b"x", callback)
        assert called.wait(10)
        called.clear()
        producer.send_async(b"x", callback)
        assert called.wait(10)
    assert seen == [(request.get_span_context().span_id, 1), (0, 2)]
    assert {attributes_of(span)["timewheel.outcome"] for span in spans.ended("send")} == {"stored"}


def test_an_outcome_is_told_once_and_leaves_nothing_on_its_thread(caplog: pytest.LogCaptureFixture) -> None:
    spans = Spans()
    span = SendSpans(PLAN.due_topic, spans.provider, None).begin({})
    seen: list[int] = []
    with spans.tracer().start_as_current_span("request") as request:
        told = span.reporting(lambda *_: seen.append(trace.get_current_span().get_span_context().span_id))
    told(None, Timer("sub-42", NOW_MS))
    assert seen == [request.get_span_context().span_id]
    assert trace.get_current_span() is trace.INVALID_SPAN
    span.end(KeyboardInterrupt(), None)  # whoever sent was interrupted when the outcome was known already
    assert attributes_of(spans.only("send"))["timewheel.outcome"] == "stored"
    assert caplog.records == []


async def test_an_asyncio_send_is_traced_and_a_cancelled_one_is_unknown() -> None:
    client, spans = AnsweringClient(), Spans()
    silent = SilentClient(closes=True)
    async with AsyncTracedProducer(client, PLAN, tracer_provider=spans.provider, hooks=()) as producer:
        with spans.tracer().start_as_current_span("request"):
            await producer.send(b"x", deliver_after=DAYS)
    producer = AsyncTracedProducer(silent, PLAN, tracer_provider=spans.provider, hooks=())
    sending = asyncio.create_task(producer.send(b"x"))
    assert await asyncio.get_running_loop().run_in_executor(None, silent.was_sent_to.wait, 10)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    await producer.close(timeout_s=0)
    stored, cancelled = spans.ended("send")
    assert context_of(stored).trace_id == context_of(spans.only("request")).trace_id
    assert attributes_of(stored)["timewheel.outcome"] == "stored"
    assert attributes_of(cancelled)["timewheel.outcome"] == "unknown"


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"traceparent": ""},
        {"traceparent": "garbled"},
        {"traceparent": TRACEPARENT.upper()},
        {"traceparent": TRACEPARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32)},
        {"traceparent": TRACEPARENT + "-" + "x" * 1_000_000},
        {"tracestate": "a=1"},
    ],
    ids=["none", "empty", "garbled", "upper case", "zeros", "a megabyte", "state alone"],
)
def test_a_context_that_cannot_be_read_is_none(properties: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    with trace.use_span(NonRecordingSpan(CONTEXT)):  # what is current has nothing to do with the message
        assert context_in(properties) is None
    assert caplog.records == []


@pytest.mark.parametrize("state", ["", "no state", "=", "x" * 1_000_000], ids=["empty", "garbled", "sign", "megabyte"])
def test_a_state_that_cannot_be_read_leaves_the_parent(state: str, caplog: pytest.LogCaptureFixture) -> None:
    found = context_in({"traceparent": TRACEPARENT, "tracestate": state})
    assert found is not None
    assert (found.trace_id, found.span_id, len(found.trace_state)) == (CONTEXT.trace_id, CONTEXT.span_id, 0)
    assert [record for record in caplog.records if len(state) > MAX_CHARS] == []


def test_only_who_asks_for_tracing_loads_opentelemetry_and_never_its_sdk() -> None:
    program = """
import sys
import timewheel.consumers, timewheel.errors, timewheel.producers, timewheel.tracing
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
from timewheel.tracing import AsyncTracedProducer, TracedProducer, traced_handler
assert "opentelemetry.trace" in sys.modules
assert not [name for name in sys.modules if name.startswith("opentelemetry.sdk")]
"""
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)


def test_without_the_extra_the_error_says_what_to_install() -> None:
    program = """
import sys
sys.modules["opentelemetry"] = None
import timewheel.tracing
from timewheel.errors import ExtraMissing
try:
    timewheel.tracing.traced_handler
except ExtraMissing as error:
    assert error.missing == ("opentelemetry-api",) and isinstance(error, ImportError)
else:
    raise SystemExit("no error")
"""
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)

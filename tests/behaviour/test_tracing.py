"""A trace's context on its way through real topics: whichever scheme, the handler's span is linked to the send's."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from opentelemetry import trace

from tests.broker.due_topic import now_ms, running, stored_entries
from tests.broker.relay_stage import BUSINESS, plan_of
from tests.support.spans import Spans, attributes_of, context_of
from timewheel.broker.admin import AdminClient
from timewheel.consumers import DelayedConsumer, DelayedMessage
from timewheel.core.names import Names
from timewheel.core.plan import Calendar, Native, Plan, Scheme, Tiered
from timewheel.core.steps import steps
from timewheel.producers import Timer
from timewheel.provision import ensure, roll
from timewheel.tracing import AsyncTracedProducer, TracedProducer, traced_handler

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from timewheel.core.errors import TimewheelError
    from timewheel.testing import Broker

TIMERS = 40  # sent from a thread; they share entries where a relay holds them
OWN = {"who": "me", "ünïcode": "⏰"}
TIMEOUT_S = 20


class Case(NamedTuple):
    """A scheme whose days are seconds, and a delay that goes all of its way."""

    scheme: Scheme
    delay_ms: int
    hops: int


CASES = {
    "tiered": Case(Tiered(window_ms=1_500, tiers_ms=(1_500, 3_000)), 5_300, 2),
    "broker-held": Case(Tiered(window_ms=1_500, tiers_ms=(1_500,), hold="broker"), 2_500, 1),
    "calendar": Case(Calendar(interval_ms=2_000), 2_000, 0),
    "native": Case(Native(), 1_000, 0),
}


def provided(broker: Broker, scheme: Scheme) -> Plan:
    plan = plan_of(scheme, max_delay_ms=8_000)
    with AdminClient(broker.admin_url) as admin:
        if isinstance(scheme, Calendar):
            roll(admin, plan, now_ms())
        else:
            ensure(admin, plan, now_ms=now_ms())
    return plan


class Handled:
    """What a handler was given, and in which trace."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._lock = threading.Lock()
        self.properties: dict[str, dict[str, str]] = {}
        self.traces: dict[str, int] = {}
        self.all_came = threading.Event()

    def __call__(self, message: DelayedMessage) -> None:
        assert message.timer_id is not None
        with self._lock:
            self.properties[message.timer_id] = message.properties()
            self.traces[message.timer_id] = trace.get_current_span().get_span_context().trace_id
            if len(self.properties) == self._count:
                self.all_came.set()


def by_timer(spans: list[ReadableSpan]) -> dict[str, ReadableSpan]:
    return {str(attributes_of(span)["timewheel.timer_id"]): span for span in spans}


@pytest.mark.real
@pytest.mark.parametrize("name", sorted(CASES))
def test_the_handlers_span_is_linked_to_the_sends(pulsar_broker: Broker, pulsar_client: Any, name: str) -> None:
    case = CASES[name]
    plan = provided(pulsar_broker, case.scheme)
    spans, handled = Spans(), Handled(TIMERS + 1)
    errors: list[TimewheelError | None] = []

    def callback(error: TimewheelError | None, _: Timer) -> None:
        errors.append(error)

    async def send_one() -> Timer:
        async with AsyncTracedProducer(pulsar_client, plan, tracer_provider=spans.provider) as producer:
            return await producer.send(b"x", deliver_after=delay, timer_id="awaited", properties=OWN)

    delay = timedelta(milliseconds=case.delay_ms)
    handler = traced_handler(handled, subscription=BUSINESS, tracer_provider=spans.provider)
    with running(DelayedConsumer(pulsar_client, plan, BUSINESS), handler):
        with TracedProducer(pulsar_client, plan, tracer_provider=spans.provider) as producer:
            for number in range(TIMERS):
                producer.send_async(b"x", callback, deliver_after=delay, timer_id=f"t{number}", properties=OWN)
        timer = asyncio.run(send_one())
        assert handled.all_came.wait(TIMEOUT_S), len(handled.properties)
    assert errors == [None] * TIMERS

    sent, processed = by_timer(spans.ended("send")), by_timer(spans.ended("process"))
    assert len(sent) == len(processed) == len(spans.ended("process")) == TIMERS + 1
    for timer_id, span in processed.items():
        context = context_of(sent[timer_id])
        (link,) = span.links
        assert (link.context.trace_id, link.context.span_id) == (context.trace_id, context.span_id)
        assert link.context.is_remote
        assert span.parent is None
        assert context_of(span).trace_id == handled.traces[timer_id] != context.trace_id
        parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        assert handled.properties[timer_id] == {**OWN, "traceparent": parent}
        assert attributes_of(span)["timewheel.due"] == attributes_of(sent[timer_id])["timewheel.due"]
    assert {attributes_of(span)["timewheel.hops"] for span in processed.values()} == {case.hops}

    assert {attributes_of(span)["messaging.destination.partition.id"] for span in sent.values()} == {"0"}
    told = attributes_of(sent["awaited"])
    assert told["messaging.destination.name"] == plan.due_topic
    first_copy = told["messaging.message.id"]
    found = timer.message_id
    assert str(first_copy).startswith(f"{found.ledger_id()}:{found.entry_id()}")
    assert told["timewheel.delay_s"] == pytest.approx(case.delay_ms / 1000, abs=0.5)
    told = attributes_of(processed["awaited"])
    due_topic = told["messaging.destination.template" if name == "calendar" else "messaging.destination.name"]
    assert due_topic == plan.due_topic
    assert told["messaging.destination.partition.id"] == "0"
    assert told["messaging.destination.subscription.name"] == BUSINESS
    assert (told["messaging.message.id"] == first_copy) is (case.hops == 0), "one message, unless it hopped"
    if name == "tiered":
        topics = [topic for step in steps(plan) for topic in Names(plan).of_step(step)]
        assert all(stored_entries(pulsar_broker, topic) < TIMERS for topic in topics), "many in one entry, at each step"

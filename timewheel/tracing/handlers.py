"""Tracing of handlers: a span for each timer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, Tracer, TracerProvider, use_span
from opentelemetry.util.types import AttributeValue

from timewheel.consumers import DelayedMessage, Handler
from timewheel.core.arguments import is_async
from timewheel.core.names import partition_of
from timewheel.core.plan import OWN_INFIX
from timewheel.tracing import attributes as tags


def traced_handler(
    handler: Handler, *, subscription: str | None = None, tracer_provider: TracerProvider | None = None
) -> Handler:
    """Wrap a handler, plain or ``async def``, with a span ``process TOPIC`` around each call.

        consumer.run(traced_handler(handle, subscription="billing"))

    The span is the root of a new trace and is *linked* to the send's: a trace that continues after 17 days is not
    useful. The span is current in the handler, so that the handler's own spans are its children. An exception of the
    handler is recorded and raised. A message without a readable context gets a span without a link.

    Args:
        handler: Handler as for `timewheel.consumers.DelayedConsumer.run`.
        subscription: The consumer's subscription, as an attribute of the spans.
        tracer_provider: Provider of the tracer; None: the process-wide provider.
    """
    tracer = tags.tracer_of(tracer_provider)
    if is_async(handler):

        @wraps(handler)
        async def handle_async(message: DelayedMessage) -> Any:
            with _processing(tracer, message, subscription):
                return await handler(message)

        return handle_async

    @wraps(handler)
    def handle(message: DelayedMessage) -> Any:
        with _processing(tracer, message, subscription):
            return handler(message)

    return handle


@contextmanager
def _processing(tracer: Tracer, message: DelayedMessage, subscription: str | None) -> Iterator[None]:
    topic, partition = partition_of(message.topic_name())
    # Topics of a calendar's intervals are named after the due topic; a span's name should not change every day.
    due_topic = topic.partition(OWN_INFIX)[0]
    sent = tags.context_in(_properties(message))
    span = tracer.start_span(
        f"process {due_topic}",
        context=Context(),
        kind=SpanKind.CONSUMER,
        attributes=_attributes(message, topic, due_topic, partition, subscription),
        links=() if sent is None else (Link(sent),),
    )
    # Not left to OpenTelemetry, which ignores SystemExit and the like: after these, too, the timer comes again.
    with use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield
        except BaseException as error:
            span.set_attribute(tags.ERROR_TYPE, type(error).__qualname__)
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR, str(error)))
            raise


def _attributes(
    message: DelayedMessage, topic: str, due_topic: str, partition: int, subscription: str | None
) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {
        **tags.common("process", topic),
        tags.MESSAGE_ID: tags.position_text(message.message_id()),
    }
    if due_topic != topic:
        found[tags.TEMPLATE] = due_topic
    if partition >= 0:
        found[tags.PARTITION] = str(partition)
    if subscription is not None:
        found[tags.SUBSCRIPTION] = subscription
    if message.timer_id is not None:
        found[tags.TIMER_ID] = message.timer_id
    if message.due_at is not None and message.lateness is not None:
        found[tags.DUE] = tags.due_text(message.due_at)
        found[tags.LATENESS_MS] = round(message.lateness.total_seconds() * 1_000)
        found[tags.HOPS] = message.hops
        found[tags.GENERATION] = message.generation or 0
    return found


def _properties(message: DelayedMessage) -> dict[str, str]:
    try:
        return message.properties()
    except UnicodeDecodeError:  # clients of other languages can write properties that are not text
        return {}

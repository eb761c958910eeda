"""Producers that trace their sends, and otherwise behave like their base classes."""

from __future__ import annotations

from typing import Any, Unpack

from opentelemetry.trace import TracerProvider

from timewheel.client.surface import ClientLike
from timewheel.core.clock import Clock
from timewheel.core.errors import PayloadTooLarge
from timewheel.core.plan import Plan
from timewheel.producers import AsyncDelayedProducer, DelayedProducer, SendOptions, Timer, TimerCallback
from timewheel.tracing.send_span import SendSpans


class TracedProducer(DelayedProducer):
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


class AsyncTracedProducer(AsyncDelayedProducer):
    """Counterpart of `TracedProducer` for asyncio: `AsyncDelayedProducer` with a span for each send.

    Args:
        client: See `AsyncDelayedProducer`.
        plan: See `AsyncDelayedProducer`.
        tracer_provider: Provider of the tracer; None: the process-wide provider.
        clock: See `AsyncDelayedProducer`; None: the system's clock.
        options: All other arguments of `AsyncDelayedProducer`.

    Raises:
        ClientMisuse: See `AsyncDelayedProducer`.
    """

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

"""A trace's context on its way through real topics: whichever scheme, the handler's span is linked to the send's."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind

from tests.broker.due_topic import running
from tests.broker.relay_stage import BUSINESS, TIERED, WHEEL, plan_of
from tests.support.spans import Spans, attributes_of, context_of
from timewheel.admin import AdminClient
from timewheel.consumers import DelayedConsumer, DelayedMessage
from timewheel.core.names import RELAY_SUBSCRIPTION, Names, partition_topic
from timewheel.core.plan import Calendar, Native, Plan, Tiered
from timewheel.ops import ensure, roll
from timewheel.testing import eventually
from timewheel.tracing import AsyncTracedProducer, TracedProducer, traced_handler

if TYPE_CHECKING:
    from timewheel.testing import Broker

TIMERS = 40
SPREAD_MS = 20
OWN = {"who": "me", "ünïcode": "⏰"}

# Days are seconds. The delays cross two tiers (two hops) and one slot (one hop).
CASES = {
    "tiered": (plan_of(TIERED, partitions=2), 6_000, 2),
    "broker-held": (plan_of(Tiered(window_ms=1_500, tiers_ms=(1_500,), hold="broker")), 4_000, 1),
    "wheel": (plan_of(WHEEL), 5_000, 1),
    "calendar": (replace(plan_of(Calendar(interval_ms=2_000)), max_delay_ms=20_000, tick_ms=200), 3_000, 0),
    "native": (plan_of(Native()), 1_500, 0),
}


def provide(broker: Broker, plan: Plan) -> None:
    import time

    with AdminClient(broker.admin_url) as admin:
        make = roll if isinstance(plan.scheme, Calendar) else ensure
        make(admin, plan, now_ms=time.time_ns() // 1_000_000)


class Handling:
    """An async handler, or the body of a plain one, that notes what it was given and in which trace."""

    def __init__(self) -> None:
        self.properties: dict[str, dict[str, str]] = {}
        self.traces: dict[str, int] = {}
        self._lock = threading.Lock()
        self.all_came = threading.Event()

    def __call__(self, message: DelayedMessage) -> None:
        assert message.timer_id is not None
        with self._lock:
            self.properties[message.timer_id] = message.properties()
            self.traces[message.timer_id] = trace.get_current_span().get_span_context().trace_id
            if len(self.properties) == TIMERS:
                self.all_came.set()

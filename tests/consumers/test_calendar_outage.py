"""A calendar's topics while a broker is away: timers that are due come first."""

from __future__ import annotations

from typing import Any

import pulsar

from tests.consumers.test_replaced import Consumer
from tests.support.manual_clock import ManualClock
from timewheel.client.hooks import Hooks
from timewheel.consumers.source import Source, Subscribing
from timewheel.core.plan import Calendar, Plan

PLAN = Plan(
    due_topic="persistent://a/b/c", subscriptions=("s",), scheme=Calendar(interval_ms=30_000), max_delay_ms=60_000
)
TIMEOUT_MS = 10_000


class Client:
    """A client whose broker of the single due topic is away."""

    def __init__(self, clock: ManualClock) -> None:
        self._client, self._clock = self, clock
        self.opened: list[str] = []

    def get_topic_partitions(self, topic: str) -> list[str]:
        if topic == PLAN.due_topic:
            self._clock.advance(TIMEOUT_MS)
            raise pulsar.Timeout("lookup")
        return [f"{topic}-partition-0"]

    def subscribe(self, topic: str, *_: Any, **__: Any) -> Consumer:
        self.opened.append(topic)
        return Consumer()


def test_a_running_interval_does_not_wait_for_the_broker_of_another_topic() -> None:
    clock = ManualClock()
    client: Any = Client(clock)
    hooks = Hooks(())
    subscribing = Subscribing(
        client, PLAN, "s", consumer_type=pulsar.ConsumerType.Shared, schema=None, options={}, clock=clock, hooks=hooks
    )
    source = Source(subscribing, PLAN, None, clock, hooks)
    began_ms = clock.now_ms()
    source._step()
    assert client.opened
    assert clock.now_ms() - began_ms <= TIMEOUT_MS
    source.close()

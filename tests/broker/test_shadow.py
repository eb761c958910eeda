"""Plain producers and plain consumers, with a shadow behind their topic."""

from __future__ import annotations

import random

import pytest

from tests.broker.due_topic import now_ms
from tests.broker.relay_stage import BUSINESS
from tests.broker.shadow_stage import ShadowStage, shadow_plan, staged
from timewheel.testing import Broker, eventually

DELAY_MS = 8_000
"""Above the longest stay in the due topic (2.0 s) and the guard."""


def gap_count(on: ShadowStage, part: str) -> int:
    return on.admin.topics.stats(part).subscriptions[BUSINESS].gap_count


@pytest.mark.parametrize("partitions", [0, 3])
def test_plain_clients_handle_each_timer_once_and_on_time(pulsar_broker: Broker, partitions: int) -> None:
    with staged(pulsar_broker, shadow_plan(partitions=partitions)) as on:
        consumer, shadow = on.plain_consumer(), on.shadow()
        producer, rng = on.plain_producer(), random.Random(1)
        for number in range(400):
            due_ms = now_ms() + rng.randrange(DELAY_MS)
            producer.send_async(f"{number} {due_ms}".encode(), None, deliver_at=due_ms, partition_key=f"k{number % 7}")
        producer.flush()
        eventually(lambda: len(consumer.handled) == 400, 60)

        moved = sum(one.moved for one in shadow.shadow_status().movers)
        assert consumer.again == 0
        assert moved >= 200
        assert shadow.shadow_status().acked_originals >= moved, (
            "a relay that begins asks once more for what it was given"
        )
        assert min(consumer.lateness_ms.values()) >= -1_000, "a broker is early by a tick at most"
        assert {message.partition_key() for message in consumer.messages.values()} == {f"k{n}" for n in range(7)}
        eventually(lambda: all(gap_count(on, part) == 0 for part in on.parts()), 60)

"""Timers that cannot be stored as they are when they are to be tried again or parked."""

from __future__ import annotations

import json
import os
from typing import Any

import _pulsar
import pulsar
import pytest

from tests.broker.due_topic import SUBSCRIPTION, now_ms, running
from tests.broker.test_cancel import provisioned
from tests.broker.test_retry import SECOND, WAIT_S, left, parked_in, retrying
from timewheel.consumers import DelayedConsumer, DelayedMessage, FixedBackoff, RetryPolicy
from timewheel.core.envelope import Envelope
from timewheel.core.names import Names
from timewheel.core.plan import Plan
from timewheel.testing import Broker, eventually

MAX_BYTES = 5 * 1024 * 1024


@pytest.fixture
def plan(pulsar_broker: Broker, topic: str) -> Plan:
    return provisioned(pulsar_broker, retrying(topic))


def given_up(client: Any, broker: Broker, plan: Plan, count: int, *, attempts: int) -> None:
    """All fail, with much to say about it, until they are parked."""

    def handle(message: DelayedMessage) -> None:
        raise ValueError(f"{message.timer_id} {'€' * 900}")

    policy = RetryPolicy(max_attempts=attempts, backoff=FixedBackoff(SECOND))
    consumer = DelayedConsumer(client, plan, SUBSCRIPTION, retry=policy)
    with running(consumer, handle):
        eventually(lambda: consumer.counts.parked == count and left(broker, plan) == 0, WAIT_S)


def largest(producer: Any, room: int) -> bytes:
    """The largest payload that a producer takes, but for so much."""
    own = Envelope("large", now_ms(), now_ms()).properties()
    for less in range(room, room + 400, 2):
        payload = os.urandom(MAX_BYTES - less)
        try:
            producer.send(payload, properties=own)
        except pulsar.MessageTooBig:
            continue
        return payload
    raise AssertionError("no size is taken")


def test_a_large_timer_is_parked_whole_without_its_error(client: Any, pulsar_broker: Broker, plan: Plan) -> None:
    producer = client.create_producer(Names(plan).part(plan.due_topic, 0), batching_enabled=False)
    payload = largest(producer, 1_000)
    producer.send(b"small", properties=Envelope("small", now_ms(), now_ms()).properties())
    given_up(client, pulsar_broker, plan, 2, attempts=2)
    found = {message.properties()["tw-id"]: message for message in parked_in(client, plan, 2)}
    assert found["large"].data() == payload
    assert "tw-parked-error" not in found["large"].properties()
    assert found["large"].properties()["tw-parked-reason"].startswith("it was tried 2 times")
    assert "€" in found["small"].properties()["tw-parked-error"]


def test_the_largest_that_a_client_sends_is_parked_in_parts(client: Any, pulsar_broker: Broker, plan: Plan) -> None:
    producer = client.create_producer(Names(plan).part(plan.due_topic, 0), batching_enabled=False)
    payload = largest(producer, 0)
    producer.send(b"small", properties=Envelope("small", now_ms(), now_ms()).properties())
    given_up(client, pulsar_broker, plan, 2, attempts=2)
    parts = [message for message in parked_in(client, plan, 8) if message.properties()["tw-id"] == "large"]
    assert [part.properties()["tw-parked-part"] for part in parts] == [
        *(f"payload {number}/6" for number in range(1, 7)),
        "rest 1/1",
    ]
    assert b"".join(part.data() for part in parts[:-1]) == payload
    assert json.loads(parts[-1].data())["properties"]["tw-id"] == "large"
    assert "it cannot be stored to be tried again" in parts[0].properties()["tw-parked-reason"]


def test_a_key_of_bytes_stays_through_another_attempt(client: Any, pulsar_broker: Broker, plan: Plan) -> None:
    producer = client.create_producer(Names(plan).part(plan.due_topic, 0), batching_enabled=False)
    building = _pulsar.MessageBuilder()
    building.content(b"x")
    building.properties(Envelope("odd", now_ms(), now_ms()).properties())
    building.partition_key(b"\xff\x00k")
    producer._producer.send(building.build())
    given_up(client, pulsar_broker, plan, 1, attempts=2)
    (message,) = parked_in(client, plan, 1)
    with pytest.raises(UnicodeDecodeError) as caught:
        message.partition_key()
    assert caught.value.object == b"\xff\x00k"

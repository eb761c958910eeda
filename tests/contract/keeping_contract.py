"""What a broker keeps of a topic, as tests: time to live, backlog quotas."""

from __future__ import annotations

from datetime import timedelta
from queue import Empty
from typing import Any

import pulsar
import pytest

from tests.contract.client_contract import Outcomes, Topics, subscribed
from tests.contract.sharing_contract import assert_nothing_comes, received, rest, send
from timewheel.broker.admin.policies import BacklogQuota, QuotaAction
from timewheel.client.surface import ClientLike
from timewheel.core.names import partition_topic
from timewheel.testing import eventually

OLD_S = 3  # too old, if a test says so
LIMIT_BYTES = 5_000
TOO_MUCH = "x" * LIMIT_BYTES
REFUSALS: list[tuple[QuotaAction, type[Exception]]] = [
    ("producer_request_hold", pulsar.ProducerBlockedQuotaExceededError),
    ("producer_exception", pulsar.ProducerBlockedQuotaExceededException),
]


class KeepingContract:
    """A backend inherits it; its broker looks at quotas every second, or has a clock that jumps."""

    # Time to live

    @pytest.mark.parametrize(
        "kind", [pulsar.ConsumerType.Shared, pulsar.ConsumerType.Failover], ids=lambda one: one.name
    )
    def test_what_is_too_old_is_dropped_received_or_not_delayed_or_not(
        self, client: ClientLike, topics: Topics, kind: Any
    ) -> None:
        topic = topics.make()
        partition = partition_topic(topic, 0)
        consumer = subscribed(client, partition, kind)
        send(client, partition, "old")
        received(consumer, "old")
        send(client, partition, "delayed", deliver_after=timedelta(days=1))
        if kind == pulsar.ConsumerType.Failover:
            received(consumer, "delayed")
        assert_nothing_comes(consumer, 1_500 * OLD_S + 100)
        send(client, partition, "new")

        assert topics.expire(topic, "s", OLD_S)

        eventually(lambda: topics.backlog(topic, "s") == 1)
        consumer.close()
        received(subscribed(client, partition, kind), "new")

    def test_what_a_consumer_is_about_to_receive_is_dropped_later(self, client: ClientLike, topics: Topics) -> None:
        topic = topics.make()
        consumer = subscribed(client, topic)
        send(client, topic, "old")
        received(consumer, "old")
        assert_nothing_comes(consumer, 2_000 * OLD_S + 100)

        assert not topics.expire(topic, "s", 2 * OLD_S), "not before it is half as old again"

        consumer.close()
        assert topics.expire(topic, "s", 2 * OLD_S)
        eventually(lambda: topics.backlog(topic, "s") == 0)

    # Backlog quotas

    @pytest.mark.parametrize(("action", "error"), REFUSALS)
    def test_a_full_backlog_refuses_new_producers(
        self, client: ClientLike, topics: Topics, action: QuotaAction, error: type[Exception]
    ) -> None:
        topic = topics.make(quota=BacklogQuota(limit_bytes=LIMIT_BYTES, action=action))
        consumer = subscribed(client, topic)
        send(client, topic, TOO_MUCH)

        with pytest.raises(error):
            client.create_producer(topic)

        consumer.acknowledge_cumulative(received(consumer, TOO_MUCH)[0])
        eventually(lambda: topics.backlog(topic, "s") == 0)
        send(client, topic, "1")
        received(consumer, "1")

    def test_a_full_backlog_lets_open_producers_wait(self, client: ClientLike, topics: Topics) -> None:
        topic = topics.make(quota=BacklogQuota(limit_bytes=LIMIT_BYTES, action="producer_request_hold"))
        consumer = subscribed(client, topic)
        producer, outcomes = shut_out(client, topic), Outcomes()

        producer.send_async(b"1", outcomes)

        with pytest.raises(Empty):
            outcomes.next(1.0)
        consumer.acknowledge_cumulative(received(consumer, TOO_MUCH)[0])
        assert outcomes.next()[0].name == "Ok"
        received(consumer, "1")

    def test_a_full_backlog_fails_sends_of_open_producers(self, client: ClientLike, topics: Topics) -> None:
        topic = topics.make(quota=BacklogQuota(limit_bytes=LIMIT_BYTES, action="producer_exception"))
        consumer = subscribed(client, topic)
        producer, outcomes = shut_out(client, topic), Outcomes()

        producer.send_async(b"1", outcomes)

        assert outcomes.next()[0].name == "ProducerBlockedQuotaExceededException"
        consumer.acknowledge_cumulative(received(consumer, TOO_MUCH)[0])
        eventually(producer.is_connected)
        producer.send_async(b"2", outcomes)
        assert outcomes.next()[0].name == "Ok"
        received(consumer, "2")

    def test_a_full_backlog_drops_its_oldest_delayed_or_not(self, client: ClientLike, topics: Topics) -> None:
        topic = topics.make(quota=BacklogQuota(limit_bytes=LIMIT_BYTES, action="consumer_backlog_eviction"))
        subscribed(client, topic, pulsar.ConsumerType.Shared).close()
        contents = [f"{number:01000}" for number in range(10)]
        send(client, topic, *contents[:2], deliver_after=timedelta(days=1))
        send(client, topic, *contents[2:])

        eventually(lambda: topics.backlog(topic, "s") < len(contents) - 2, 150, poll=0.5)

        left = rest(subscribed(client, topic, pulsar.ConsumerType.Shared))
        assert left == contents[-len(left) :]
        assert len(left) in range(3, 7), "about as many as may be there"


def shut_out(client: ClientLike, topic: str) -> Any:
    """A producer that has filled the backlog, and is disconnected for that."""
    producer = client.create_producer(topic)
    producer.send(TOO_MUCH.encode())
    eventually(lambda: not producer.is_connected(), 150, poll=0.5)
    return producer

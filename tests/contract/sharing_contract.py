"""Who gets which message, as tests: by key, by the active consumer, by the only one; and from which place on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import pulsar
import pytest

from tests.contract.client_contract import NOTHING_MS, RECEIVE_MS, subscribed
from timewheel.client.surface import ClientLike
from timewheel.testing import eventually

TURN_MS = 100
KEYS = [f"key-{number}" for number in range(30)]  # so many that no hash gives all to one of two consumers


class SharingContract:
    """Inherit it beside `ClientContract`, whose fixtures it uses."""

    # Key_Shared

    def test_the_messages_of_a_key_go_to_one_consumer_in_order(self, client: ClientLike, partition: str) -> None:
        consumers = [by_key(client, partition, name) for name in "ab"]
        send_each(client, partition, "1", "2", "3")

        first, second = shared_out(consumers, 3 * len(KEYS))

        assert {*first, *second} == {*KEYS}
        assert len(first) + len(second) == len(KEYS), "no key is at both"
        assert first, "each has keys"
        assert second
        assert all(contents == ["1", "2", "3"] for contents in [*first.values(), *second.values()])

    def test_a_key_that_is_pending_stays_where_it_is(self, client: ClientLike, partition: str) -> None:
        old = by_key(client, partition, "a")
        send_each(client, partition, "1")
        pending = [old.receive(RECEIVE_MS) for _ in KEYS]
        new = by_key(client, partition, "b")
        send_each(client, partition, "2")

        assert_nothing_comes(new)
        for message in pending:
            old.acknowledge(message)

        kept, moved = shared_out([old, new], len(KEYS))
        assert kept, "the new one takes a share of the keys"
        assert moved
        assert sorted([*kept, *moved]) == sorted(KEYS)
        assert [*kept.values(), *moved.values()] == [["2"]] * len(KEYS)

    def test_keys_of_a_consumer_that_leaves_go_to_the_others_in_order(self, client: ClientLike, partition: str) -> None:
        stays, leaves = consumers = [by_key(client, partition, name) for name in "ab"]
        send_each(client, partition, "1", "2")
        _, left = shared_out(consumers, 2 * len(KEYS))

        leaves.close()

        (again,) = shared_out([stays], 2 * len(left))
        assert again == left
        assert_nothing_comes(stays)

    # Failover and Exclusive

    def test_of_failover_consumers_one_is_active_and_the_next_gets_all_that_is_unacknowledged(
        self, client: ClientLike, partition: str
    ) -> None:
        second = subscribed(client, partition, consumer_name="b")
        send(client, partition, "1", "2", "3")
        second.acknowledge(received(second, "1", "2", "3")[0])
        assert_nothing_comes(second)  # meanwhile the acknowledgement leaves

        first = subscribed(client, partition, consumer_name="a")  # of partition 0 the first by name is active

        received(first, "2", "3")
        send(client, partition, "4")
        received(first, "4")
        assert_nothing_comes(second)
        first.close()
        received(second, "2", "3", "4")

    def test_an_exclusive_consumer_has_no_other_beside_it(self, client: ClientLike, partition: str) -> None:
        first = subscribed(client, partition, pulsar.ConsumerType.Exclusive)

        for kind in (pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared, pulsar.ConsumerType.Failover):
            with pytest.raises(pulsar.ConsumerBusy):
                subscribed(client, partition, kind)
        send(client, partition, "1")
        received(first, "1")

        first.close()
        received(subscribed(client, partition, pulsar.ConsumerType.Shared), "1")

    # Cumulative acknowledgements

    def test_a_cumulative_acknowledgement_is_refused_on_shared(self, client: ClientLike, partition: str) -> None:
        send(client, partition, "1")
        for kind in (pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared):
            consumer = subscribed(client, partition, kind, name=kind.name)
            (message,) = received(consumer, "1")
            with pytest.raises(pulsar.CumulativeAcknowledgementNotAllowedError):
                consumer.acknowledge_cumulative(message)

    def test_a_cumulative_acknowledgement_within_a_batch_ends_before_the_batch(
        self, client: ClientLike, partition: str
    ) -> None:
        consumer = subscribed(client, partition)
        send(client, partition, "1")
        send_batch(client, partition, "2", "3", "4")
        messages = received(consumer, "1", "2", "3", "4")

        consumer.acknowledge_cumulative(messages[2])
        consumer.close()
        again = subscribed(client, partition)
        last = received(again, "2", "3", "4")[-1]
        again.acknowledge_cumulative(last)
        again.close()

        assert_nothing_comes(subscribed(client, partition))

    # Readers

    def test_a_reader_begins_at_the_earliest_or_behind_the_latest(self, client: ClientLike, partition: str) -> None:
        send(client, partition, "1", "2")
        earliest = client.create_reader(partition, pulsar.MessageId.earliest)
        latest = client.create_reader(partition, pulsar.MessageId.latest)
        assert (earliest.has_message_available(), latest.has_message_available()) == (True, False)

        send(client, partition, "3")

        assert (read(earliest, 3), read(latest, 1)) == (["1", "2", "3"], ["3"])
        assert (earliest.has_message_available(), latest.has_message_available()) == (False, False)

    def test_a_reader_begins_behind_a_message_or_at_it(self, client: ClientLike, partition: str) -> None:
        send(client, partition, "1")
        send_batch(client, partition, "2", "3", "4")
        ids = [message.message_id() for message in received(subscribed(client, partition), "1", "2", "3", "4")]

        for index, start in enumerate(ids):
            behind = client.create_reader(partition, start)
            at = client.create_reader(partition, start, start_message_id_inclusive=True)
            assert behind.has_message_available() == (index < 3)
            assert at.has_message_available()
            assert read(behind, 3 - index) == ["2", "3", "4"][index:]
            assert read(at, 4 - index) == ["1", "2", "3", "4"][index:]
            assert_nothing_comes(at)

    # Seek

    def test_a_consumer_goes_back_to_the_earliest_or_to_the_latest(self, client: ClientLike, partition: str) -> None:
        consumer = subscribed(client, partition)
        send(client, partition, "1", "2")
        consumer.acknowledge_cumulative(received(consumer, "1", "2")[-1])

        consumer.seek(pulsar.MessageId.earliest)
        received(consumer, "1", "2")
        consumer.seek(pulsar.MessageId.earliest)
        received(consumer, "1")
        consumer.seek(pulsar.MessageId.latest)
        assert_nothing_comes(consumer)
        send(client, partition, "3")
        received(consumer, "3")

    def test_a_consumer_goes_to_a_message(self, client: ClientLike, partition: str) -> None:
        consumer = subscribed(client, partition)
        send(client, partition, "1", "2", "3")
        messages = received(consumer, "1", "2", "3")

        found = []
        for message in messages:
            consumer.seek(message.message_id())
            found.append(rest(consumer))

        assert found == [["2", "3"], ["3"], []]

    def test_a_consumer_and_a_reader_go_to_a_time(self, client: ClientLike, partition: str) -> None:
        consumer = subscribed(client, partition)
        reader = client.create_reader(partition, pulsar.MessageId.earliest)
        send(client, partition, "1")
        received(consumer, "1")
        assert_nothing_comes(consumer)  # so that the others are sent later
        send(client, partition, "2", "3")
        at_ms = received(consumer, "2", "3")[0].publish_timestamp()

        consumer.seek(at_ms)
        reader.seek(at_ms)

        received(consumer, "2", "3")
        assert read(reader, 2) == ["2", "3"]


def by_key(client: ClientLike, topic: str, name: str) -> Any:
    return subscribed(client, topic, pulsar.ConsumerType.KeyShared, consumer_name=name)


def send(client: ClientLike, topic: str, *contents: str, **options: Any) -> None:
    """Each as an entry; ``options`` are those of `pulsar.Producer.send`."""
    producer = client.create_producer(topic, batching_enabled=False)
    for content in contents:
        producer.send(content.encode(), **options)
    producer.close()


def send_batch(client: ClientLike, topic: str, *contents: str) -> None:
    """As one entry."""
    most = len(contents)
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=most, batching_max_publish_delay_ms=60_000
    )
    for content in contents:
        producer.send_async(content.encode(), lambda *_: None)
    producer.flush()
    producer.close()


def send_each(client: ClientLike, topic: str, *contents: str) -> None:
    """Each content once with every key."""
    producer = client.create_producer(topic, batching_enabled=False)
    for content in contents:
        for key in KEYS:
            producer.send(content.encode(), partition_key=key)
    producer.close()


def received(consumer: Any, *contents: str) -> list[Any]:
    """The next messages, which must have these contents."""
    messages = [consumer.receive(RECEIVE_MS) for _ in contents]
    assert [message.data().decode() for message in messages] == [*contents]
    return messages


def rest(consumer: Any, first_ms: int = 2_000) -> list[str]:
    """All contents that come until nothing does."""
    found: list[str] = []
    try:
        while True:
            found.append(consumer.receive(NOTHING_MS if found else first_ms).data().decode())
    except pulsar.Timeout:
        return found


def read(reader: Any, number: int) -> list[str]:
    return [reader.read_next(RECEIVE_MS).data().decode() for _ in range(number)]


def assert_nothing_comes(one: Any, for_ms: int = NOTHING_MS) -> None:
    with pytest.raises(pulsar.Timeout):
        (one.read_next if hasattr(one, "read_next") else one.receive)(for_ms)


def shared_out(consumers: Sequence[Any], number: int) -> list[dict[str, list[str]]]:
    """By consumer and key the contents of the next messages, so many of all."""
    found: list[dict[str, list[str]]] = [{} for _ in consumers]

    def take() -> bool:
        for consumer, contents in zip(consumers, found, strict=True):
            with suppress(pulsar.Timeout):
                while True:
                    message = consumer.receive(TURN_MS)
                    contents.setdefault(message.partition_key(), []).append(message.data().decode())
        return sum(map(len, chain.from_iterable(one.values() for one in found))) >= number

    eventually(take)
    return found

"""What timewheel relies on in a client, as tests: every client that claims `timewheel.client.surface` inherits them.

A class per backend inherits `ClientContract` and gives two fixtures, ``client`` and ``topics``. All behaviour here is
pulsar-client's (3.13) on a real broker; a virtual client that differs in one of these points would hide losses.
"""

from __future__ import annotations

import inspect
import uuid
from abc import abstractmethod
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

import httpx
import pulsar
import pytest

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.policies import DEDUPLICATION, SIZE_QUOTA, BacklogQuota
from timewheel.broker.admin.stats import TopicStats
from timewheel.client.native import flush_soon
from timewheel.client.positions import Position
from timewheel.client.results import Outcome, outcome_of_error, outcome_of_result
from timewheel.client.surface import ClientLike, ConsumerLike, MessageIdLike, MessageLike, ProducerLike
from timewheel.core.names import partition_topic
from timewheel.testing import eventually

ANY_NAME = "a:b/c d%é"  # of a subscription: a broker takes it, and lists its cursor under another
EARLIEST = pulsar.InitialPosition.Earliest
RECEIVE_MS = 10_000
NOTHING_MS = 300
OUTCOME_TIMEOUT_S = 20.0


class Topics:
    """Makes topics of one partition on a broker, and has it do what its administrator can."""

    def __init__(self, admin_url: str) -> None:
        self._url = f"{admin_url}/admin/v2"
        self._admin = AdminClient(admin_url)
        self.close = self._admin.close

    def make(self, *, deduplication: bool = False, quota: BacklogQuota | None = None) -> str:
        """A partitioned topic with one partition.

        Returns:
            The full name of the topic, without a partition suffix.
        """
        topic, policies = _any_name(), self._admin.topic_policies
        self._admin.topics.create(topic, 1)
        if deduplication:
            policies.set(topic, DEDUPLICATION, True)
            eventually(lambda: self._stats(topic).deduplication == "Enabled", message="deduplication in force")
        if quota is not None:
            policies.set(topic, SIZE_QUOTA, quota)
            policies.await_value(topic, SIZE_QUOTA, quota, applied=True)
        return topic

    def make_unpartitioned(self) -> str:
        """A topic without partitions; its full name."""
        topic = _any_name()
        self._admin.topics.create_unpartitioned(topic)
        return topic

    def terminate(self, topic: str) -> None:
        """End a topic: sends are refused from now on."""
        self._admin.topics.terminate(topic)

    def cursors(self, topic: str) -> frozenset[str]:
        """The subscriptions whose cursors the broker lists."""
        return frozenset(self._admin.topics.internal_stats(partition_topic(topic, 0)).cursors)

    def backlog(self, topic: str, subscription: str) -> int:
        """Entries that a subscription has not acknowledged."""
        return self._stats(topic).subscriptions[subscription].backlog

    def expire(self, topic: str, subscription: str, seconds: int) -> bool:
        """Drop what is older, as a broker does every few minutes by a topic's time to live; False: it does nothing."""
        name = topic.removeprefix("persistent://")
        url = f"{self._url}/persistent/{name}/subscription/{subscription}/expireMessages/{seconds}"
        answer = httpx.post(url)
        if not (is_busy := answer.status_code == httpx.codes.CONFLICT):
            answer.raise_for_status()
        return not is_busy

    def _stats(self, topic: str) -> TopicStats:
        return self._admin.topics.stats(partition_topic(topic, 0), precise_backlog=True)


def _any_name() -> str:
    return f"persistent://public/default/contract-{uuid.uuid4().hex[:10]}"


class Outcomes:
    """The results of sends, in the order of their callbacks."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Any, Any]] = SimpleQueue()

    def __call__(self, result: Any, message_id: Any) -> None:
        self._queue.put((result, message_id))

    def next(self, timeout_s: float = OUTCOME_TIMEOUT_S) -> tuple[Any, Any]:
        return self._queue.get(timeout=timeout_s)


def _group_producer(client: ClientLike, partition: str, **options: Any) -> ProducerLike:
    """One whose batches are cut by nobody but `flush_soon`, unless ``options`` say otherwise."""
    producer: ProducerLike = client.create_producer(
        partition,
        producer_name="one",
        **{
            "batching_enabled": True,
            "batching_max_messages": 1_000_000,
            "batching_max_allowed_size_in_bytes": 1 << 30,
            "batching_max_publish_delay_ms": 3_600_000,
            "max_pending_messages": 0,
            **options,
        },
    )
    return producer


def _sent_as_group(producer: ProducerLike, payloads: Sequence[bytes], number: int) -> list[Position]:
    """Where the messages came to stand, by their callbacks."""
    outcomes = Outcomes()
    for payload in payloads:
        producer.send_async(payload, outcomes, sequence_id=number)
    flush_soon(producer)
    return [Position.of(outcomes.next()[1]) for _ in payloads]


class ClientContract:
    """Inherit it in a class named ``Test...``."""

    @pytest.fixture
    @abstractmethod
    def client(self) -> ClientLike:
        """The client under test; open."""

    @pytest.fixture
    @abstractmethod
    def topics(self) -> Topics:
        """Topics on its broker."""

    @pytest.fixture
    def partition(self, topics: Topics) -> str:
        """A partition of a new topic."""
        return partition_topic(topics.make(), 0)

    # Signatures

    def test_every_name_of_the_surface_is_there_with_its_parameters_and_defaults(
        self, client: ClientLike, partition: str
    ) -> None:
        consumer = subscribed(client, partition)
        producer = client.create_producer(partition)
        message = sent_and_received(producer, consumer)

        differences = [
            difference
            for protocol, found in (
                (ClientLike, client),
                (ProducerLike, producer),
                (ConsumerLike, consumer),
                (MessageLike, message),
                (MessageIdLike, message.message_id()),
            )
            for difference in differences_from(protocol, found)
        ]
        assert differences == []

    # Sends

    def test_a_stored_message_has_result_0_named_ok_and_a_position(self, client: ClientLike, partition: str) -> None:
        producer, outcomes = client.create_producer(partition), Outcomes()

        producer.send_async(b"x", outcomes)

        result, message_id = outcomes.next()
        assert (result.value, result.name) == (0, "Ok")
        assert message_id.ledger_id() >= 0
        assert message_id.entry_id() >= 0

    def test_a_send_after_close_is_refused_before_anything_is_written(self, client: ClientLike, partition: str) -> None:
        producer, outcomes = client.create_producer(partition), Outcomes()
        producer.close()

        producer.send_async(b"x", outcomes)

        result, _ = outcomes.next()
        assert result.name == "AlreadyClosed"
        assert outcome_of_result(result, None, handed_over=False) is Outcome.REOPEN

    def test_a_terminated_topic_refuses_sends_and_says_so(self, client: ClientLike, topics: Topics) -> None:
        topic = topics.make()
        producer, outcomes = client.create_producer(partition_topic(topic, 0)), Outcomes()
        topics.terminate(topic)

        producer.send_async(b"x", outcomes)

        result, _ = outcomes.next()
        assert outcome_of_result(result, None) is Outcome.ROUTE_AGAIN, result.name

    def test_a_repeated_sequence_id_is_dropped_with_ok_and_no_position(
        self, client: ClientLike, topics: Topics
    ) -> None:
        partition = partition_topic(topics.make(deduplication=True), 0)
        consumer = subscribed(client, partition)
        producer = client.create_producer(partition, producer_name="one", batching_enabled=False)
        outcomes = Outcomes()

        stored = []
        for payload, sequence_id in ((b"7", 7), (b"7 again", 7), (b"3", 3), (b"8", 8)):
            producer.send_async(payload, outcomes, sequence_id=sequence_id)
            # One by one: while the first is not stored yet the broker cannot say, and breaks the connection.
            stored.append(outcomes.next())

        assert [result.name for result, _ in stored] == ["Ok"] * 4
        places = [(message_id.ledger_id(), message_id.entry_id()) for _, message_id in stored]
        assert [place == (-1, -1) for place in places] == [False, True, True, False], places
        assert [consumer.receive(RECEIVE_MS).data() for _ in range(2)] == [b"7", b"8"]

    def test_a_batch_has_one_number_and_one_outcome_and_each_message_its_place(
        self, client: ClientLike, topics: Topics
    ) -> None:
        partition = partition_topic(topics.make(deduplication=True), 0)
        consumer = subscribed(client, partition)
        first = _group_producer(client, partition)
        assert first.last_sequence_id() == -1

        stored = _sent_as_group(first, (b"1", b"2", b"3"), 30)
        again = _sent_as_group(first, (b"1", b"2", b"3"), 30)
        first.close()
        second = _group_producer(client, partition)
        mark = second.last_sequence_id()
        replayed = _sent_as_group(second, (b"2", b"3"), 30)
        above = _sent_as_group(second, (b"4",), 40)

        assert [place.batch_index for place in stored] == [0, 1, 2]
        assert len({(place.ledger, place.entry) for place in stored}) == 1
        assert again == [Position(-1, -1, 0), Position(-1, -1, 1), Position(-1, -1, 2)]
        assert mark == 30, "what the broker has stored is told to whoever opens the producer next"
        assert replayed == [Position(-1, -1, 0), Position(-1, -1, 1)]
        assert [place.batch_index for place in above] == [0]
        assert [consumer.receive(RECEIVE_MS).data() for _ in range(4)] == [b"1", b"2", b"3", b"4"]

    def test_a_group_that_the_client_cuts_is_told_by_the_place_of_its_last_message(
        self, client: ClientLike, topics: Topics
    ) -> None:
        partition = partition_topic(topics.make(deduplication=True), 0)
        producer = _group_producer(client, partition, batching_max_messages=2)

        places = _sent_as_group(producer, (b"1", b"2", b"3"), 30)

        assert [place.batch_index for place in places] == [0, 1, 0]

    def test_a_name_belongs_to_one_producer_at_a_time(self, client: ClientLike, partition: str) -> None:
        first = client.create_producer(partition, producer_name="one")

        with pytest.raises(pulsar.PulsarException) as busy:
            client.create_producer(partition, producer_name="one")
        assert outcome_of_error(busy.value) is Outcome.BUSY

        first.close()
        client.create_producer(partition, producer_name="one")

    # Messages

    def test_a_null_payload_is_told_from_an_empty_one(self, client: ClientLike, partition: str) -> None:
        consumer, producer = subscribed(client, partition), client.create_producer(partition)

        null, empty = (sent_and_received(producer, consumer, content=content) for content in (None, b""))

        assert (null.has_null_value(), null.data()) == (True, b"")
        assert (empty.has_null_value(), empty.data()) == (False, b"")

    def test_what_was_not_given_is_empty_or_zero_and_what_was_arrives(self, client: ClientLike, partition: str) -> None:
        consumer, producer = subscribed(client, partition), client.create_producer(partition)

        bare = sent_and_received(producer, consumer)
        full = sent_and_received(
            producer, consumer, properties={"k": "ü"}, partition_key="p", ordering_key="o", event_timestamp=5
        )

        assert fields_of(bare) == ({}, "", "", 0)
        assert fields_of(full) == ({"k": "ü"}, "p", "o", 5)
        assert full.topic_name() == partition
        assert full.publish_timestamp() > 0

    def test_batch_indexes_count_within_an_entry_and_are_minus_one_without_a_batch(
        self, client: ClientLike, partition: str
    ) -> None:
        consumer = subscribed(client, partition)
        single = client.create_producer(partition, batching_enabled=False)
        batching = client.create_producer(
            partition, batching_enabled=True, batching_max_messages=3, batching_max_publish_delay_ms=5_000
        )
        single.send_async(b"0", Outcomes())
        single.flush()
        for payload in (b"1", b"2", b"3"):
            batching.send_async(payload, Outcomes())

        alone, *batch = (Position.of(consumer.receive(RECEIVE_MS).message_id()) for _ in range(4))

        assert alone.batch_index == -1
        assert [position.batch_index for position in batch] == [0, 1, 2]
        assert {(position.ledger, position.entry) for position in batch} == {(alone.ledger, alone.entry + 1)}

    # Consumers

    def test_a_receive_in_vain_raises_timeout(self, client: ClientLike, partition: str) -> None:
        with pytest.raises(pulsar.Timeout):
            subscribed(client, partition).receive(NOTHING_MS)

    def test_what_was_not_acknowledged_comes_again_to_the_next_consumer(
        self, client: ClientLike, partition: str
    ) -> None:
        consumer, producer = subscribed(client, partition), client.create_producer(partition, batching_enabled=False)
        one, two, _ = (sent_and_received(producer, consumer, content=content) for content in (b"1", b"2", b"3"))
        consumer.acknowledge_cumulative(two)
        consumer.close()

        again = subscribed(client, partition)

        assert again.receive(RECEIVE_MS).data() == b"3"
        assert Position.of(one.message_id()) < Position.of(two.message_id())

    def test_all_that_is_unacknowledged_can_be_asked_for_again(self, client: ClientLike, partition: str) -> None:
        consumer, producer = subscribed(client, partition), client.create_producer(partition, batching_enabled=False)
        one, *_ = (sent_and_received(producer, consumer, content=content) for content in (b"1", b"2", b"3"))
        consumer.acknowledge_cumulative(one)

        consumer.redeliver_unacknowledged_messages()

        assert [consumer.receive(RECEIVE_MS).data() for _ in range(2)] == [b"2", b"3"]

    def test_what_has_arrived_stays_when_all_is_asked_for_again(self, client: ClientLike, partition: str) -> None:
        consumer, producer = subscribed(client, partition), _group_producer(client, partition)
        _sent_as_group(producer, (b"1", b"2", b"3"), 1)  # an entry: all of it comes at once
        received = [consumer.receive(RECEIVE_MS).data()]

        consumer.redeliver_unacknowledged_messages()

        received += [consumer.receive(RECEIVE_MS).data() for _ in range(5)]
        assert received == [b"1", b"2", b"3", b"1", b"2", b"3"]

    def test_a_negative_acknowledgement_brings_the_message_again(self, client: ClientLike, partition: str) -> None:
        consumer = subscribed(client, partition, pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100)
        message = sent_and_received(client.create_producer(partition), consumer, content=b"x")

        consumer.negative_acknowledge(message)

        assert consumer.receive(RECEIVE_MS).data() == b"x"

    def test_the_last_position_of_a_topic_is_told(self, client: ClientLike, partition: str) -> None:
        consumer = subscribed(client, partition)
        message = sent_and_received(client.create_producer(partition, batching_enabled=False), consumer)

        last, found = Position.of(consumer.get_last_message_id()), Position.of(message.message_id())
        assert (last.ledger, last.entry) == (found.ledger, found.entry)

    def test_a_delay_holds_on_shared_and_is_ignored_on_failover(self, client: ClientLike, partition: str) -> None:
        shared = subscribed(client, partition, pulsar.ConsumerType.Shared, name="shared")
        failover = subscribed(client, partition, pulsar.ConsumerType.Failover, name="failover")
        producer = client.create_producer(partition)

        producer.send_async(b"tomorrow", Outcomes(), deliver_at=TOMORROW_MS)
        producer.send_async(b"now", Outcomes())

        assert [failover.receive(RECEIVE_MS).data() for _ in range(2)] == [b"tomorrow", b"now"]
        assert shared.receive(RECEIVE_MS).data() == b"now"
        with pytest.raises(pulsar.Timeout):
            shared.receive(NOTHING_MS)

    def test_a_subscription_of_any_name_keeps_what_it_has_done_and_its_cursor_is_listed_under_that_name(
        self, client: ClientLike, topics: Topics
    ) -> None:
        """broker-facts: names-of-cursors"""
        topic = topics.make()
        consumer, producer = subscribed(client, topic, name=ANY_NAME), client.create_producer(topic)
        consumer.acknowledge_cumulative(sent_and_received(producer, consumer, content=b"1"))
        consumer.close()

        again = subscribed(client, topic, name=ANY_NAME)

        assert sent_and_received(producer, again, content=b"2").data() == b"2"
        assert topics.cursors(topic) == {ANY_NAME}

    # Topics

    def test_partitions_are_named_and_a_topic_that_is_missing_is_its_own_only_name(
        self, client: ClientLike, topics: Topics
    ) -> None:
        topic = topics.make()
        missing = f"{topic}-missing"

        assert client.get_topic_partitions(topic) == [partition_topic(topic, 0)]
        # Twice: asking must not have made it.
        assert [client.get_topic_partitions(missing) for _ in range(2)] == [[missing], [missing]]

    def test_a_topic_without_partitions_is_answered_as_one_that_is_missing(
        self, client: ClientLike, topics: Topics
    ) -> None:
        """broker-facts: unpartitioned-topics"""
        topic = topics.make_unpartitioned()

        consumer = subscribed(client, topic)
        message = sent_and_received(client.create_producer(topic), consumer)

        assert client.get_topic_partitions(topic) == [topic]
        assert message.topic_name() == topic


TOMORROW_MS = 4_102_444_800_000  # the year 2100


def subscribed(
    client: ClientLike, topic: str, kind: Any = pulsar.ConsumerType.Failover, name: str = "s", **options: Any
) -> Any:
    return client.subscribe(topic, name, consumer_type=kind, initial_position=EARLIEST, **options)


def sent_and_received(producer: Any, consumer: Any, *, content: bytes | None = b"x", **arguments: Any) -> Any:
    outcomes = Outcomes()
    producer.send_async(content, outcomes, **arguments)
    producer.flush()
    result, _ = outcomes.next()
    assert result.name == "Ok"
    return consumer.receive(RECEIVE_MS)


def fields_of(message: Any) -> tuple[dict[str, str], str, str, int]:
    return message.properties(), message.partition_key(), message.ordering_key(), message.event_timestamp()


def differences_from(protocol: type, found: object) -> list[str]:
    """What a Protocol promises and an object does not keep: names, and parameters with their defaults, in order."""
    differences = []
    for name, promised in inspect.getmembers(protocol, inspect.isfunction):
        if name.startswith("_"):
            continue
        method = getattr(found, name, None)
        if not callable(method):
            differences.append(f"{protocol.__name__}.{name} is missing")
            continue
        wanted, has = (_parameters(promised) or [])[1:], _parameters(method)
        if has is not None and [one for one in has if one.name in {two.name for two in wanted}] != wanted:
            differences.append(f"{protocol.__name__}.{name}{wanted} differs: {has}")
    return differences


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """Without annotations, and without *args and **options, which stand for more; None: compiled, it does not say."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        return None
    return [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]

"""Entries are read from real brokers as they were sent, and acknowledged beside consumers who do not notice."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar.schema import JsonSchema, Record, String

from tests.broker.due_topic import crypto_keys, now_ms
from tests.support.kept import Kept
from tests.support.own_broker import own_broker
from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.entries import messages_of_batch
from timewheel.broker.protocol.commands import SubscriptionType
from timewheel.broker.protocol.consumers import EntryAcknowledger, EntryReader
from timewheel.broker.protocol.dialing import Dialer
from timewheel.broker.protocol.entries import Compression, Entry
from timewheel.broker.protocol.errors import BrokerLost, BrokerRefused, BrokerSilent, ConsumerLost, ProtocolViolation
from timewheel.client.positions import EntryPosition
from timewheel.core.names import partition_topic
from timewheel.testing import Broker, LocalPulsar, eventually

HOUR_MS = 3_600_000
TIMEOUT_MS = 20_000
GROUP = "billing"


@pytest.fixture
def dialer(pulsar_broker: Broker) -> Dialer:
    return Dialer(pulsar_broker.service_url)


@pytest.fixture
def native(admin: AdminClient, topic: str) -> str:
    """A topic without partitions, with a subscription."""
    admin.topics.create_unpartitioned(topic)
    admin.subscriptions.create(topic, GROUP)
    return topic


def position_of(message_id: Any) -> EntryPosition:
    return EntryPosition(message_id.ledger_id(), message_id.entry_id())


def send_all(producer: Any, messages: list[dict[str, Any]]) -> list[EntryPosition]:
    """Send them in their order; where each was stored."""
    stored: dict[int, EntryPosition] = {}
    results: list[Any] = []

    def told(at: int) -> Callable[[Any, Any], None]:
        def on_progress(result: Any, message_id: Any) -> None:
            stored[at] = position_of(message_id)
            results.append(result)

        return on_progress

    for at, message in enumerate(messages):
        if at % 500 == 499:
            producer.flush()  # not every producer here waits for room
        producer.send_async(b"x", told(at), **message)
    producer.flush()
    eventually(lambda: len(results) == len(messages), message="all are confirmed")
    assert set(results) == {pulsar.Result.Ok}
    return [stored[at] for at in range(len(messages))]


def read_all(reader: EntryReader, count: int) -> list[Entry]:
    """So many entries; fails if there are fewer, or more in the last piece."""
    found: list[Entry] = []
    while len(found) < count:
        came = reader.read(TIMEOUT_MS)
        assert came, f"{len(found)} of {count} came"
        found += came
    assert len(found) == count
    return found


def delayed(count: int, *, after_ms: int = HOUR_MS, step_ms: int = 1) -> list[dict[str, Any]]:
    begin_ms = now_ms() + after_ms
    return [{"deliver_at": begin_ms + at * step_ms} for at in range(count)]


# What pulsar-client cannot do.


def test_pulsar_client_shows_no_time_of_delivery(pulsar_client: Any, native: str) -> None:
    """Once this fails, a newer client shows it: use that where it does."""
    producer = pulsar_client.create_producer(native)
    deliver_at_ms = now_ms() + HOUR_MS
    producer.send(b"x", deliver_at=deliver_at_ms)
    reader = pulsar_client.create_reader(native, pulsar.MessageId.earliest)
    message = reader.read_next(TIMEOUT_MS)
    shown = [str(message), repr(message), str(message.message_id().serialize())]
    for one in (message, message._message):
        getters = [name for name in dir(one) if not name.startswith("__") and callable(getattr(one, name))]
        assert not [name for name in getters if "deliver_a" in name.lower()]
        shown += [str(getattr(one, name)()) for name in getters if not name.startswith("_") and name != "value"]
    reader.close()

    assert str(message.publish_timestamp()) in " ".join(shown), "what is shown would be found"
    assert str(deliver_at_ms) not in " ".join(shown)


# Reading.


def test_the_asked_time_of_a_thousand_delayed_messages_is_read(
    pulsar_client: Any, dialer: Dialer, admin: AdminClient, topic: str, seed: int
) -> None:
    admin.topics.create(topic, 2)
    rng = random.Random(seed)
    began_ms = now_ms()
    messages: list[dict[str, Any]] = [
        {
            "deliver_at": began_ms + rng.randrange(HOUR_MS, 10_000 * HOUR_MS),
            "properties": {"i": str(at), "name": "wärme"},
            "partition_key": f"key-{rng.randrange(50)}",
            "ordering_key": f"order-{at}",
            "event_timestamp": began_ms - at - 1,
        }
        for at in range(1_000)
    ]
    partition = partition_topic(topic, 1)
    producer = pulsar_client.create_producer(partition, block_if_queue_full=True, producer_name=f"p-{seed}")
    positions = send_all(producer, messages)

    with EntryReader(dialer, partition) as reader:
        entries = read_all(reader, 1_000)
        assert reader.last_position() == entries[-1].position

    assert [entry.position for entry in entries] == positions
    for entry, sent in zip(entries, messages, strict=True):
        assert (entry.deliver_at_ms, entry.properties) == (sent["deliver_at"], sent["properties"])
        assert (entry.partition_key, entry.ordering_key) == (sent["partition_key"], sent["ordering_key"].encode())
        assert (entry.event_ms, entry.producer, entry.batch_size) == (sent["event_timestamp"], f"p-{seed}", 0)
        assert began_ms - 1_000 <= entry.publish_ms <= now_ms() + 1_000
        assert (entry.is_encrypted, entry.is_chunked, entry.has_null_value) == (False, False, False)
    assert admin.subscriptions.list(partition) == (), "nothing is left behind"


def test_what_a_reader_has_read_is_no_backlog_in_the_brokers_statistics(
    pulsar_client: Any, dialer: Dialer, admin: AdminClient, native: str
) -> None:
    producer = pulsar_client.create_producer(native)
    send_all(producer, delayed(5, step_ms=123_457))

    def backlogs() -> dict[bool, int]:
        found = admin.topics.stats(native).subscriptions.values()
        return {one.is_durable: one.backlog for one in found}

    with EntryReader(dialer, native) as reader:
        read_all(reader, 5)
        reader.read(0)
        eventually(lambda: backlogs() == {True: 5, False: 0})


@pytest.mark.parametrize("compression", [pulsar.CompressionType.NONE, pulsar.CompressionType.ZLib])
def test_a_batch_is_one_entry_and_its_messages_are_seen_where_it_is_not_compressed(
    pulsar_client: Any, dialer: Dialer, native: str, compression: Any
) -> None:
    producer = pulsar_client.create_producer(
        native, batching_enabled=True, batching_max_publish_delay_ms=2_000, compression_type=compression
    )
    sent = [{"properties": {"i": str(at)}, "partition_key": f"k{at}"} for at in range(7)]
    positions = send_all(producer, sent)
    with EntryReader(dialer, native, keep_payload=True) as reader:
        (entry,) = read_all(reader, 1)

    assert set(positions) == {entry.position}
    assert (entry.batch_size, entry.deliver_at_ms) == (7, None)
    if compression == pulsar.CompressionType.NONE:
        assert entry.compression == Compression.NONE
        messages = messages_of_batch(entry.payload or b"", 7)
        found = [(message.properties, message.partition_key) for message in messages]
        assert found == [(one["properties"], one["partition_key"]) for one in sent]
    else:
        assert entry.compression == Compression.ZLIB


class Order(Record):  # type: ignore[misc]
    name = String()


def test_schemas_null_values_chunks_and_encryption_are_seen(
    pulsar_client: Any, dialer: Dialer, native: str, tmp_path: Path
) -> None:
    with_schema = pulsar_client.create_producer(native, schema=JsonSchema(Order))
    with_schema.send(Order(name="one"), deliver_at=now_ms() + HOUR_MS)
    with_schema.close()
    plain = pulsar_client.create_producer(native)
    plain.send(None, partition_key="gone")
    chunking = pulsar_client.create_producer(native, chunking_enabled=True, batching_enabled=False)
    chunking.send(random.Random(1).randbytes(6_000_000))
    keys = crypto_keys(tmp_path)
    encrypting = pulsar_client.create_producer(native, encryption_key="key", crypto_key_reader=keys)
    encrypting.send(b"secret", deliver_at=now_ms() + HOUR_MS)

    with EntryReader(dialer, native) as reader:
        described, gone, first, second, encrypted = read_all(reader, 5)

    assert described.schema_version == bytes(8), "the topic's first"
    assert described.deliver_at_ms is not None
    assert (gone.has_null_value, gone.schema_version) in {(True, None), (True, b"")}
    assert [(one.is_chunked, one.chunk, one.chunk_count) for one in (first, second)] == [(True, 0, 2), (True, 1, 2)]
    assert encrypted.is_encrypted
    assert encrypted.deliver_at_ms is not None, "the time is not encrypted"


def test_a_reader_begins_behind_the_position_that_it_is_given(pulsar_client: Any, dialer: Dialer, native: str) -> None:
    positions = send_all(pulsar_client.create_producer(native), delayed(10))

    for after, expected in (
        (positions[3], positions[4:]),
        (EntryPosition(positions[0].ledger, -1), positions),
        (positions[0]._replace(ledger=positions[0].ledger - 1, entry=10_000), positions),
    ):
        with EntryReader(dialer, native, after=after) as reader:
            assert [entry.position for entry in read_all(reader, len(expected))] == expected
    with EntryReader(dialer, native, after=positions[-1]) as reader:
        assert reader.read(500) == []
        (late,) = send_all(pulsar_client.create_producer(native), delayed(1))
        assert [entry.position for entry in read_all(reader, 1)] == [late]


def test_a_position_beyond_the_end_is_an_error_and_not_the_beginning(
    pulsar_client: Any, dialer: Dialer, native: str
) -> None:
    """A broker begins from the first entry then."""
    (position,) = send_all(pulsar_client.create_producer(native), delayed(1))
    beyond = EntryPosition(position.ledger + 1_000, 0)
    with (
        EntryReader(dialer, native, after=beyond) as reader,
        pytest.raises(ProtocolViolation, match="read it from the start"),
    ):
        reader.read(TIMEOUT_MS)


def test_whoever_takes_nothing_is_sent_no_more_than_the_permits(
    pulsar_client: Any, dialer: Dialer, admin: AdminClient, native: str
) -> None:
    send_all(pulsar_client.create_producer(native), delayed(300))
    with EntryReader(dialer, native, permits=50) as reader:
        (name,) = set(admin.subscriptions.list(native)) - {GROUP}

        def sent() -> int:
            return admin.topics.stats(native).subscriptions[name].delivered

        eventually(lambda: sent() >= 50, message="the permits are used")
        assert sent() == 50
        assert len(read_all(reader, 300)) == 300


def test_an_unload_under_way_is_told_and_reading_on_behind_the_position_misses_nothing(
    pulsar_client: Any, dialer: Dialer, admin: AdminClient, native: str
) -> None:
    positions = send_all(pulsar_client.create_producer(native, block_if_queue_full=True), delayed(3_000))
    found: list[EntryPosition] = []
    lost = 0
    reader = EntryReader(dialer, native, permits=100)
    while len(found) < len(positions):
        try:
            came = reader.read(TIMEOUT_MS)
            assert came, f"nothing behind {reader.position}"
            found += [entry.position for entry in came]
        except ConsumerLost:
            lost += 1
            reader = open_again(dialer, native, reader.position)
        if not lost and len(found) >= 1_000:
            admin.topics.unload(native)
    reader.close()

    assert lost >= 1
    assert found == positions


def open_again(dialer: Dialer, topic: str, after: EntryPosition) -> EntryReader:
    """Once the topic is served again."""

    def attempt() -> EntryReader | None:
        try:
            return EntryReader(dialer, topic, after=after, permits=100)
        except (BrokerRefused, ConsumerLost):
            return None

    return eventually(attempt, message="it is served again")


def test_a_terminated_topic_is_read_to_its_end(
    pulsar_client: Any, dialer: Dialer, admin: AdminClient, topic: str
) -> None:
    admin.topics.create(topic, 1)
    producer = pulsar_client.create_producer(partition_topic(topic, 0))
    send_all(producer, [{} for _ in range(3)])
    producer.close()
    admin.topics.terminate(topic)
    with EntryReader(dialer, partition_topic(topic, 0)) as reader:
        last = reader.last_position()
        found: list[Entry] = []
        while reader.position < last:
            found += reader.read(TIMEOUT_MS)

    assert sum(entry.message_count for entry in found) == 3


def test_a_topic_that_is_not_there_is_refused_and_not_made(dialer: Dialer, admin: AdminClient, topic: str) -> None:
    with pytest.raises(BrokerRefused, match="TopicNotFound"):
        EntryReader(dialer, topic)
    assert topic not in admin.topics.list("public/default")


# Acknowledging.


def unacked_of(admin: AdminClient, topic: str, name: str) -> int:
    consumers = admin.topics.stats(topic, clients=True).subscriptions[GROUP].consumers or ()
    return {consumer.name: consumer.unacked for consumer in consumers}[name]


def test_delayed_entries_are_acknowledged_beside_a_consumer_who_gets_the_others(
    pulsar_client: Any, dialer: Dialer, admin: AdminClient, native: str
) -> None:
    consumer = pulsar_client.subscribe(native, GROUP, consumer_type=pulsar.ConsumerType.Shared, consumer_name="service")
    due_ms = now_ms() + 10_000
    positions = send_all(pulsar_client.create_producer(native), [{"deliver_at": due_ms}] * 1_000)
    acked_originals, left = set(positions[::2]), set(positions[1::2])
    with EntryAcknowledger(dialer, native, GROUP) as acknowledger:
        acknowledger.acknowledge(sorted(acked_originals))
        assert admin.topics.stats(native, precise_backlog=True).subscriptions[GROUP].backlog == 500
        assert unacked_of(admin, native, "service") == 0
        assert now_ms() < due_ms, "all of it before any was due"

        received: list[EntryPosition] = []
        for _ in left:
            message = consumer.receive(TIMEOUT_MS)
            received.append(position_of(message.message_id()))
            consumer.acknowledge(message)
        with pytest.raises(pulsar.Timeout):
            consumer.receive(2_500)
        assert sorted(received) == sorted(left)
        eventually(lambda: admin.topics.stats(native, precise_backlog=True).subscriptions[GROUP].backlog == 0)
        assert unacked_of(admin, native, "service") == 0
        acknowledger.acknowledge(sorted(acked_originals))  # again, which does no harm


def test_what_a_consumer_holds_is_acknowledged_and_its_own_numbers_stay_right(
    pulsar_client: Any, dialer: Dialer, admin: AdminClient, native: str
) -> None:
    consumer = pulsar_client.subscribe(native, GROUP, consumer_type=pulsar.ConsumerType.Shared, consumer_name="service")
    send_all(pulsar_client.create_producer(native, batching_enabled=False), [{} for _ in range(10)])
    held = [consumer.receive(TIMEOUT_MS) for _ in range(10)]
    eventually(lambda: unacked_of(admin, native, "service") == 10)
    with EntryAcknowledger(dialer, native, GROUP) as acknowledger:
        acknowledger.acknowledge([position_of(message.message_id()) for message in held[:4]])
        eventually(lambda: unacked_of(admin, native, "service") == 6)
        for message in held:
            consumer.acknowledge(message)
        eventually(lambda: unacked_of(admin, native, "service") == 0)
        assert unacked_of(admin, native, "timewheel-acknowledger") == 0

    assert admin.topics.stats(native, precise_backlog=True).subscriptions[GROUP].backlog == 0


def test_a_batch_is_acknowledged_as_a_whole(
    pulsar_client: Any, dialer: Dialer, admin: AdminClient, native: str
) -> None:
    producer = pulsar_client.create_producer(native, batching_enabled=True, batching_max_publish_delay_ms=2_000)
    (position,) = set(send_all(producer, [{} for _ in range(9)]))
    with EntryAcknowledger(dialer, native, GROUP) as acknowledger:
        acknowledger.acknowledge([position])
    assert admin.topics.stats(native, precise_backlog=True).subscriptions[GROUP].backlog == 0


def test_after_an_unload_acknowledgements_fail_at_once_and_a_new_one_makes_them(
    pulsar_client: Any, dialer: Dialer, admin: AdminClient, native: str
) -> None:
    """A broker never answers those of a consumer that it has closed."""
    positions = send_all(pulsar_client.create_producer(native), delayed(100))
    with EntryAcknowledger(dialer, native, GROUP) as acknowledger:
        acknowledger.acknowledge(positions[:50])
        admin.topics.unload(native)
        began_s = time.monotonic()
        with pytest.raises(ConsumerLost, match="the broker closed the consumer"):
            acknowledger.acknowledge(positions)
        assert time.monotonic() - began_s < 10, "not waited for as long as an answer may take"

    def again() -> bool:
        try:
            with EntryAcknowledger(dialer, native, GROUP) as another:
                another.acknowledge(positions)
        except (BrokerRefused, ConsumerLost):
            return False
        return True

    eventually(again, message="it is served again")
    assert admin.topics.stats(native, precise_backlog=True).subscriptions[GROUP].backlog == 0


def test_on_key_shared_the_others_have_all_keys_again_when_it_has_left(
    pulsar_client: Any, dialer: Dialer, native: str
) -> None:
    consumer = pulsar_client.subscribe(native, GROUP, consumer_type=pulsar.ConsumerType.KeyShared)
    producer = pulsar_client.create_producer(native)
    far = send_all(producer, [{**message, "partition_key": f"k{at}"} for at, message in enumerate(delayed(50))])
    acknowledger = EntryAcknowledger(dialer, native, GROUP, kind=SubscriptionType.KEY_SHARED)
    acknowledger.acknowledge(far)
    acknowledger.leave()
    send_all(producer, [{"partition_key": f"k{at}"} for at in range(50)])
    assert len({consumer.receive(TIMEOUT_MS).partition_key() for _ in range(50)}) == 50


def test_an_exclusive_subscription_refuses_it_and_says_so(pulsar_client: Any, dialer: Dialer, native: str) -> None:
    pulsar_client.subscribe(native, GROUP, consumer_type=pulsar.ConsumerType.Exclusive)
    with pytest.raises(BrokerRefused, match=f"refused to open a consumer of 'billing' on {native}"):
        EntryAcknowledger(dialer, native, GROUP)


@pytest.mark.short
def test_a_whole_topic_is_read_at_a_rate_that_is_written_down(
    pulsar_client: Any, dialer: Dialer, native: str, evidence: Any
) -> None:
    count = 60_000
    producer = pulsar_client.create_producer(native, block_if_queue_full=True, max_pending_messages=5_000)
    message = {"properties": {"user": "abc", "kind": "reminder"}, "partition_key": "key"}
    send_all(producer, [{**one, **message} for one in delayed(count)])
    best: dict[str, float] = {}
    for _ in range(3):
        with EntryReader(dialer, native) as reader:
            began_s, cpu_s = time.perf_counter(), time.process_time()
            read_all(reader, count)
            wall, cpu = time.perf_counter() - began_s, time.process_time() - cpu_s
        best = {
            "entries": count,
            "entries a second": max(best.get("entries a second", 0), round(count / wall)),
            "of one core": max(best.get("of one core", 0), round(count / cpu)),
        }

    evidence("entries that are read with their times of delivery", best)


ASKS_EVERY_S = 1


@pytest.fixture
def nervous(kept: Kept) -> LocalPulsar:
    """A broker that asks every second whether its clients are there, and gives them up a second later."""
    return kept.get("nervous", lambda: own_broker({"keepAliveIntervalSeconds": str(ASKS_EVERY_S)}))


@pytest.fixture
def client(nervous: LocalPulsar) -> Iterator[Any]:
    opened = pulsar.Client(nervous.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield opened
    opened.close()


@pytest.fixture
def watched(nervous: LocalPulsar, topic: str) -> str:
    with AdminClient(nervous.admin_url) as admin:
        admin.topics.create_unpartitioned(topic)
        admin.subscriptions.create(topic, GROUP)
    return topic


def send(client: Any, topic: str) -> EntryPosition:
    producer = client.create_producer(topic)
    message_id = producer.send(b"x", deliver_at=now_ms() + HOUR_MS)
    producer.close()
    return EntryPosition(message_id.ledger_id(), message_id.entry_id())


def test_whoever_is_called_now_and_then_is_kept_and_whoever_is_not_is_told(
    nervous: LocalPulsar, client: Any, watched: str
) -> None:
    dialer = Dialer(nervous.service_url)
    reader, acknowledger = EntryReader(dialer, watched), EntryAcknowledger(dialer, watched, GROUP)
    forgotten = EntryReader(dialer, watched)
    until_s = time.monotonic() + 5 * ASKS_EVERY_S
    while time.monotonic() < until_s:
        assert reader.read(200) == []
        acknowledger.keep_alive()
    position = send(client, watched)
    (entry,) = reader.read(TIMEOUT_MS)
    acknowledger.acknowledge([position])
    assert entry.position == position

    with pytest.raises(BrokerLost, match="connect again"):
        eventually(lambda: forgotten.read(0) and False, 5)
    reader.close()
    acknowledger.close()


def test_a_frozen_broker_is_given_up_in_time(nervous: LocalPulsar, client: Any, watched: str) -> None:
    position = send(client, watched)
    acknowledger = EntryAcknowledger(Dialer(nervous.service_url, request_ms=3_000), watched, GROUP)
    nervous.pause()
    try:
        began_s = time.monotonic()
        with pytest.raises(BrokerSilent, match="no answer within 3000 ms"):
            acknowledger.acknowledge([position])
        assert 2.9 < time.monotonic() - began_s < 20
        with pytest.raises(BrokerSilent, match="no answer to CONNECT"):
            EntryReader(Dialer(nervous.service_url, connect_ms=500), watched)
    finally:
        nervous.resume()


def test_a_killed_broker_is_told_as_a_lost_connection(nervous: LocalPulsar, client: Any, watched: str) -> None:
    send(client, watched)
    reader = EntryReader(Dialer(nervous.service_url), watched)
    assert len(reader.read(TIMEOUT_MS)) == 1
    nervous.kill()
    try:
        with pytest.raises(BrokerLost, match="no connection to"):
            reader.read(TIMEOUT_MS)
        with pytest.raises(BrokerLost, match="is a broker there"):
            EntryReader(Dialer(nervous.service_url), watched)
    finally:
        nervous.start()

"""Whatever a plain producer sends: what can be moved comes as it was sent, what cannot stays and comes all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema

from tests.broker.due_topic import now_ms
from tests.broker.producing import crypto_keys
from tests.broker.relay_stage import BUSINESS
from tests.broker.shadow_stage import ShadowStage, shadow_plan, staged
from timewheel.shadow.shadow import Shadow
from timewheel.testing import Broker, eventually

AHEAD_MS = 6_000
"""Above the longest stay in the due topic (2.0 s) and the guard: it is moved."""
RECEIVE_MS = 20_000


def decisions(shadow: Shadow) -> dict[str, int]:
    (mover,) = shadow.shadow_status().movers
    return mover.decisions


@pytest.fixture
def on(pulsar_broker: Broker) -> Iterator[ShadowStage]:
    with staged(pulsar_broker, shadow_plan()) as stage:
        yield stage


def consumer_of(on: ShadowStage, **options: Any) -> Any:
    return on.client.subscribe(
        on.plan.due_topic,
        BUSINESS,
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        **options,
    )


COMPRESSIONS = {
    "none": pulsar.CompressionType.NONE,
    "lz4": pulsar.CompressionType.LZ4,
    "zlib": pulsar.CompressionType.ZLib,
    "zstd": pulsar.CompressionType.ZSTD,
    "snappy": pulsar.CompressionType.SNAPPY,
}
MESSAGES: dict[str, dict[str, Any]] = {
    "plain": {"content": b"renew"},
    "empty": {"content": b""},
    "null": {"content": None},
    "large": {"content": bytes(range(256)) * 4_000},
    "key": {"content": b"x", "partition_key": "Zürich"},
    "ordering key": {"content": b"x", "partition_key": "k", "ordering_key": "o"},
    "properties": {"content": b"x", "properties": {"größe": "日本", "empty": ""}},
    "event time": {"content": b"x", "event_timestamp": 1_700_000_000_123},
}


def test_every_compression_and_every_part_of_a_message_comes_as_it_was_sent(on: ShadowStage) -> None:
    shadow, consumer = on.shadow(), consumer_of(on)
    due_ms = now_ms() + AHEAD_MS
    wanted = {}
    for compression, kind in COMPRESSIONS.items():
        producer = on.plain_producer(compression_type=kind)
        for name, message in MESSAGES.items():
            properties = {**message.get("properties", {}), "case": f"{compression}, {name}"}
            wanted[properties["case"]] = {**message, "properties": properties}
            producer.send(**{**message, "properties": properties}, deliver_at=due_ms)
    got: dict[str, Any] = {}
    while len(got) < len(wanted):
        message = consumer.receive(RECEIVE_MS)
        got[message.properties()["case"]] = message
        consumer.acknowledge(message)

    assert decisions(shadow)["moved"] == len(wanted)
    for case, sent in wanted.items():
        message = got[case]
        properties = {name: value for name, value in message.properties().items() if not name.startswith("tw-")}
        assert message.has_null_value() is (sent["content"] is None), case
        assert message.data() == (sent["content"] or b""), case
        assert properties == sent["properties"], case
        assert message.partition_key() == sent.get("partition_key", ""), case
        assert message.ordering_key() == sent.get("ordering_key", ""), case
        assert message.event_timestamp() == sent.get("event_timestamp", 0), case
        assert set(message.properties()) - set(sent["properties"]) == {"tw-id", "tw-timer"}, case


V1: dict[str, Any] = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
V2: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "string"}, {"name": "count", "type": "int", "default": 3}],
}


def test_records_of_two_versions_of_a_schema_are_read_by_a_reader_of_the_new_one(on: ShadowStage) -> None:
    shadow, due_ms = on.shadow(), now_ms() + AHEAD_MS
    for version, record in ((V1, {"id": "a"}), (V2, {"id": "b", "count": 9}), (V1, {"id": "c"})):
        on.plain_producer(schema=AvroSchema(None, version)).send(record, deliver_at=due_ms)
    consumer = consumer_of(on, schema=AvroSchema(None, V2))
    got: dict[str, int] = {}
    while len(got) < 3:
        message = consumer.receive(RECEIVE_MS)
        got[message.value()["id"]] = message.value()["count"]
        consumer.acknowledge(message)
    assert decisions(shadow)["moved"] == 3
    assert got == {"a": 3, "b": 9, "c": 3}


def test_what_is_encrypted_or_chunked_stays_is_told_and_comes_in_its_time(on: ShadowStage, tmp_path: Path) -> None:
    shadow, due_ms, keys = on.shadow(), now_ms() + AHEAD_MS, crypto_keys(tmp_path)
    consumer = consumer_of(on, crypto_key_reader=keys)
    encrypting = on.plain_producer(encryption_key="key", crypto_key_reader=keys)
    encrypting.send(b"secret", deliver_at=due_ms)
    chunking = on.plain_producer(chunking_enabled=True, batching_enabled=False)
    large = bytes(range(256)) * 24_000  # 6 MB, in two parts
    chunking.send(large, deliver_at=due_ms)
    on.plain_producer().send(b"plain", deliver_at=due_ms)
    eventually(lambda: decisions(shadow).get("moved") == 1, 60)
    eventually(lambda: decisions(shadow).get("chunk") == 2 and decisions(shadow).get("encrypted") == 1, 60)
    assert {event.fields["why"] for event in on.events.named("shadow_stays_native")} == {"chunk", "encrypted"}
    got: set[bytes] = set()
    while len(got) < 3:
        message = consumer.receive(RECEIVE_MS)
        got.add(bytes(message.data()))
        consumer.acknowledge(message)
    assert got == {b"secret", large, b"plain"}


def test_a_copy_that_would_be_too_large_stays(on: ShadowStage) -> None:
    shadow, due_ms = on.shadow(), now_ms() + AHEAD_MS
    consumer = consumer_of(on)
    payload = bytes(5 * 1024 * 1024 - 4_096)
    on.plain_producer(compression_type=pulsar.CompressionType.NONE).send(payload, deliver_at=due_ms)
    eventually(lambda: [event.fields["why"] for event in on.events.named("shadow_stays_native")] == ["large"], 60)
    message = consumer.receive(RECEIVE_MS)
    assert len(message.data()) == len(payload)
    assert "tw-id" not in message.properties()
    consumer.acknowledge(message)
    assert shadow.ready

"""What a relay carries arrives byte for byte (broker-facts: byte-for-byte); what it cannot is a dead letter."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import _pulsar
import fastavro
import httpx
import pulsar
import pytest
from pulsar.schema import AvroSchema

from tests.broker.due_topic import V1, V2, crypto_keys, largest, now_ms
from tests.broker.relay_stage import BUSINESS, Stage, plan_of
from tests.support.raw_producer import RawProducer, batch_member, metadata_of
from timewheel.client.native import schema_version_of
from timewheel.client.positions import EntryPosition
from timewheel.client.schemas import PassThroughSchema
from timewheel.core.envelope import Envelope
from timewheel.core.grouping import LARGE_BYTES, LARGEST_BATCH
from timewheel.core.plan import Tiered
from timewheel.inspect.status import status_of
from timewheel.testing import Broker, eventually
from timewheel.testing.admin_calls import topic_path

GOOD = 8
LEFT_MS = 2_500
ENCRYPTED_BATCH = 900  # messages: more than a relay's queue has entries, whoever holds them
PAIRED = {"name": "Order", "type": "AVRO", "properties": "{}"}  # of either side of a schema of keys and values


@pytest.fixture(params=["relay", "broker"])
def stage(request: pytest.FixtureRequest, pulsar_broker: Broker) -> Iterator[Stage]:
    """A plan of short tiers, held by relays and held by the broker."""
    with Stage(pulsar_broker, plan_of(Tiered(window_ms=1_500, tiers_ms=(1_500, 4_000), hold=request.param))) as opened:
        yield opened


LARGE = pytest.mark.parametrize("stage", ["relay", pytest.param("broker", marks=pytest.mark.short)], indirect=True)
"""For tests of large messages, of many seconds: where a broker holds they are short plays."""


def envelope(name: str) -> Envelope:
    at_ms = now_ms()
    return Envelope(name, at_ms + LEFT_MS, at_ms)


def raw(producer: Any, own: Envelope, **parts: Any) -> None:
    """As another client sends it: keys and properties of bytes."""
    building = _pulsar.MessageBuilder()
    building.content(parts.get("payload", b"odd"))
    for name, value in (own.properties() | parts.get("properties", {})).items():
        building.property(name, value)
    if "key" in parts:
        building.partition_key(parts["key"])
    if "ordering_key" in parts:
        building.ordering_key(parts["ordering_key"])
    producer._producer.send(building.build())


def between_good_ones(stage: Stage, send: Callable[[Any], Any], play: int = 0, **options: Any) -> Any:
    """Good timers before and behind an odd message, all in one tier."""
    tier, result = stage.tiers[-1], None
    for number in range(GOOD):
        if number == GOOD // 2:
            stage.flush()
            producer = stage.producer(tier, **{"batching_enabled": False, **options})
            result = send(producer)
            producer.close()
        stage.put(tier, envelope(f"good{play}-{number}"), b"good")
    stage.flush()
    return result


def assert_neighbours(stage: Stage, plays: int = 1) -> None:
    """Each came once, unless a slow machine made its relay late."""
    good = {f"good{play}-{number}" for play in range(plays) for number in range(GOOD)}
    eventually(lambda: good <= set(stage.copies()), 60, poll=0.2)
    assert stage.is_late or {stage.copies()[name] for name in good} == {1}
    stage.await_all_acknowledged(60)


def dead_letters(stage: Stage, count: int) -> list[Any]:
    eventually(lambda: len(stage.stored(stage.names.dead_letter)) >= count, 60, poll=0.2)
    found = stage.stored(stage.names.dead_letter)
    assert len(found) == count
    return found


@LARGE
def test_odd_messages_are_carried_as_they_were_sent_or_set_aside_with_their_reason(
    stage: Stage, tmp_path: Path
) -> None:
    """The broker counts the messages of an encrypted batch against what it may send, and the client asks for no more
    than the one it sees. Java's ordering keys are bytes.
    """
    relay, city, small, chunked = stage.relay(), "Köln".encode("latin-1"), b"{}" * 4_000_000, os.urandom(6_000_000)
    encrypting = {"encryption_key": "key", "crypto_key_reader": crypto_keys(tmp_path)}
    batching = {
        "batching_enabled": True,
        "batching_max_messages": ENCRYPTED_BATCH,
        "batching_max_publish_delay_ms": 10_000,
    }

    def plain(name: str, payload: bytes) -> Callable[[Any], Any]:
        return lambda it: it.send(payload, properties=envelope(name).properties())

    def in_batch(producer: Any) -> None:
        for _ in range(ENCRYPTED_BATCH):
            producer.send_async(b"secret", lambda *_: None, properties=envelope("batch").properties())
        producer.flush()

    def no_text(it: Any) -> None:
        raw(it, envelope("no text"), properties={"city": city}, key=b"\xff", payload=b"x")

    def keys(it: Any) -> None:
        raw(it, envelope("keys"), key=b"\xff\x00k", ordering_key=bytes(range(128, 144)))

    sends: tuple[tuple[Callable[[Any], Any], dict[str, Any]], ...] = (
        (no_text, {}),
        (keys, {}),
        (plain("small", small), {"compression_type": pulsar.CompressionType.LZ4}),
        (lambda it: largest(it, envelope("payload")), {}),
        (lambda it: largest(it, envelope("page"), by_payload=False), {}),
        (plain("chunks", chunked), {"chunking_enabled": True}),
        (plain("encrypted", b"secret"), encrypting),
        (in_batch, encrypting | batching),
        (lambda it: it.send(b"x", properties={"tw-id": "later", "tw-timer": "3 anything"}), {}),
    )
    results = [between_good_ones(stage, send, play, **options) for play, (send, options) in enumerate(sends)]
    assert_neighbours(stage, len(sends))

    due = {message.properties()["tw-id"]: message for message in stage.await_due(GOOD * len(sends) + 2)}
    found = []
    for read in (due["keys"].partition_key, due["keys"].ordering_key):
        with pytest.raises(UnicodeDecodeError) as caught:
            read()
        found.append(caught.value.object)
    assert found == [b"\xff\x00k", bytes(range(128, 144))]
    assert due["small"].data() == small, "small only if it is compressed"

    by_id: dict[str, list[Any]] = {}
    for dead_letter in dead_letters(stage, 4 + 3 * 7):
        properties = dead_letter.properties()
        sealed = json.loads(properties.get("tw-dead-encryption", "{}")).get("batch_size")
        name = "batch" if sealed == ENCRYPTED_BATCH else properties.get("tw-id", "no text")
        by_id.setdefault(name, []).append(dead_letter)
    (dead_letter,) = by_id["no text"]
    assert dead_letter.data() == b"x"
    assert "no UTF-8" in dead_letter.properties()["tw-dead-reason"]
    assert r"b'K\xf6ln'" in dead_letter.properties()["tw-dead-reason"]
    assert dead_letter.properties()["tw-dead-at"] in {
        event.fields["position"] for event in stage.events.named("relay_dead_letter")
    }
    (dead_letter,) = by_id["encrypted"]
    assert dead_letter.data() != b"secret"
    how = json.loads(dead_letter.properties()["tw-dead-encryption"])
    assert list(how["keys"]) == ["key"]
    assert how["param"]
    (dead_letter,) = by_id["batch"]
    assert json.loads(dead_letter.properties()["tw-dead-encryption"])["batch_size"] == ENCRYPTED_BATCH
    (dead_letter,) = by_id["later"]
    assert "version 3" in dead_letter.properties()["tw-dead-reason"]

    assert_in_parts(by_id, results[3], results[4], chunked)
    assert relay.status().total("failures") == 0


def assert_in_parts(by_id: dict[str, list[Any]], payload: bytes, page: bytes, chunked: bytes) -> None:
    """These are as large as a client sends them, so that any hop has more to say."""
    parts = [message.properties()["tw-dead-part"] for message in by_id["payload"]]
    assert parts == [*(f"payload {number}/6" for number in range(1, 7)), "rest 1/1"]
    assert b"".join(message.data() for message in by_id["payload"][:-1]) == payload
    assert json.loads(by_id["payload"][-1].data())["properties"]["tw-id"] == "payload"
    assert "MessageTooBig" in by_id["payload"][0].properties()["tw-dead-reason"]
    assert [message.properties()["tw-dead-part"] for message in by_id["page"]][:2] == ["payload 1/1", "rest 1/6"]
    rest = json.loads(b"".join(message.data() for message in by_id["page"][1:]))
    assert rest["properties"]["page"] == page.hex()
    assert b"".join(message.data() for message in by_id["chunks"][:-1]) == chunked


@LARGE
def test_large_messages_are_carried_before_one_that_is_too_large(stage: Stage) -> None:
    """The client refuses the last on the spot, before those that it sent first have an answer."""
    producer = stage.producer(stage.tiers[-1], batching_enabled=False)
    due_ms, fit = (at_ms := now_ms()) + 2 * LEFT_MS, os.urandom(LARGE_BYTES)
    for number in range(GOOD):
        producer.send(fit, properties=Envelope(f"fits{number}", due_ms, at_ms).properties())
    largest(producer, Envelope("refused", due_ms, at_ms))
    relay = stage.relay()
    assert {message.data() for message in stage.await_due(GOOD)} == {fit}
    assert {letter.properties()["tw-id"] for letter in dead_letters(stage, 7)} == {"refused"}
    stage.await_all_acknowledged()
    stage.assert_no_copies()
    assert relay.status().total("failures") == 0


def put_batch(stage: Stage, messages: int) -> EntryPosition:
    """An entry of so many messages that say nothing, in the last tier."""
    with RawProducer(stage.broker.service_url, stage.names.part(stage.tiers[-1], 0)) as producer:
        return producer.send(metadata_of(batch_size=messages), batch_member() * messages, messages=messages)


def test_a_batch_of_many_empty_messages_is_set_aside_once(stage: Stage) -> None:
    """Its client needs more memory for it than for all else; what a broker holds is acknowledged by whole batches."""
    relay = stage.relay()
    many = 2_000
    between_good_ones(stage, lambda _: put_batch(stage, many))
    assert_neighbours(stage)
    assert many <= relay.status().total("dead") <= many + 10, "the first is met again with a shorter queue"


@LARGE
def test_a_batch_beyond_the_bound_is_one_letter(stage: Stage) -> None:
    relay = stage.relay()
    many = 20 * LARGEST_BATCH
    entry = between_good_ones(stage, lambda _: put_batch(stage, many))
    assert_neighbours(stage)
    (dead_letter,) = dead_letters(stage, 1)
    assert dead_letter.data() == b""
    properties = dead_letter.properties()
    assert (properties["tw-dead-at"], properties["tw-dead-part"]) == (entry.text, "none")
    assert f"a batch of {many} messages" in properties["tw-dead-reason"]
    (event,) = stage.events.named("relay_dead_letter")
    assert event.fields["position"] == entry.text
    assert (relay.status().total("dead"), relay.status().total("failures")) == (1, 0)


def test_a_schema_that_the_next_topic_refuses_is_a_dead_letter(stage: Stage) -> None:
    stage.producer(stage.plan.due_topic, schema=pass_through(_pulsar.SchemaType.AVRO, V1)).close()
    relay = stage.relay()
    other = pass_through(_pulsar.SchemaType.JSON, V1)
    between_good_ones(stage, lambda it: it.send(b'{"id": "a"}', properties=envelope("odd").properties()), schema=other)
    assert_neighbours(stage)
    (dead_letter,) = dead_letters(stage, 1)
    assert dead_letter.data() == b'{"id": "a"}'
    assert "does not take its schema" in dead_letter.properties()["tw-dead-reason"]
    assert dead_letter.properties()["tw-dead-schema"] == "0"
    assert relay.status().total("failures") == 0


def test_a_schema_of_keys_and_values_is_a_dead_letter(stage: Stage) -> None:
    """Java's clients have it. pulsar-client ends the process that sends anything by a producer of it."""
    record = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
    sides = {f"{side}.schema.{what}": text for side in ("key", "value") for what, text in PAIRED.items()}
    definition = {
        "type": "KEY_VALUE",
        "schema": json.dumps({"key": record, "value": record}),
        "properties": {**sides, "kv.encoding.type": "INLINE"},
    }
    path = stage.tiers[-1].replace("persistent://", "")
    httpx.post(f"{stage.broker.admin_url}/admin/v2/schemas/{path}/schema", json=definition).raise_for_status()
    relay = stage.relay()

    def send(_: Any) -> None:
        properties = envelope("odd").properties()
        with RawProducer(stage.broker.service_url, stage.names.part(stage.tiers[-1], 0)) as producer:
            producer.send(metadata_of(properties=properties, schema_version=(0).to_bytes(8, "big")), b"pair")

    between_good_ones(stage, send)
    assert_neighbours(stage)
    (dead_letter,) = dead_letters(stage, 1)
    assert dead_letter.data() == b"pair"
    assert "KEY_VALUE, which pulsar-client cannot send on" in dead_letter.properties()["tw-dead-reason"]
    assert relay.status().total("failures") == 0


def test_a_schema_version_that_is_gone_is_a_dead_letter(stage: Stage) -> None:
    own = pass_through(_pulsar.SchemaType.JSON, V1)
    between_good_ones(stage, lambda it: it.send(b'{"id": "a"}', properties=envelope("odd").properties()), schema=own)
    path = stage.tiers[-1].replace("persistent://", "")
    httpx.delete(f"{stage.broker.admin_url}/admin/v2/schemas/{path}/schema?force=true").raise_for_status()
    relay = stage.relay()
    assert_neighbours(stage)
    (dead_letter,) = dead_letters(stage, 1)
    assert "has no schema of version 0" in dead_letter.properties()["tw-dead-reason"]
    assert relay.status().total("failures") == 0


def test_a_relay_that_begins_anew_for_its_topics_sake_is_not_taken_for_none(stage: Stage) -> None:
    """The topic refuses, so nothing is a dead letter: it waits, and goes on when the topic takes it."""
    between_good_ones(stage, lambda _: None)
    stage.admin.topics.terminate(stage.plan.due_topic)
    relay = stage.relay(start=False).start()
    failed = eventually(lambda: [*stage.events.named("relay_session_failed")][4:], 60)
    assert "TopicTerminated" in str(failed[0].fields["reason"])
    eventually(lambda: not relay.ready)
    holds = [place for place in status_of(stage.admin, stage.plan).places if place.is_held and place.entries]
    assert holds
    assert all(place.consumers or place.begins_anew for place in holds)
    assert relay.status().total("dead") == 0
    assert not stage.stored(stage.names.dead_letter)
    assert {len(stage.stored(tier)) for tier in stage.tiers} == {0, GOOD}, "and nothing is repeated"


def properties(timer_id: str) -> tuple[dict[str, str], int]:
    """A timer that hops once from the smallest tier."""
    now = now_ms()
    return Envelope(timer_id, now + 2_500, now).properties(), now + 1_500


def test_payload_keys_event_time_and_properties_arrive_as_sent(stage: Stage) -> None:
    producer = stage.producer(stage.tiers[-1], batching_enabled=False)
    sent: dict[str, dict[str, Any]] = {
        "plain": {"content": b"\x00\xffbytes"},
        "empty": {"content": b""},
        "null": {"content": None},
        "null with key": {"content": None, "partition_key": "k"},
        "dressed": {
            "content": "größe ✓".encode(),
            "partition_key": "schlüssel ✓",
            "ordering_key": "ordnung ✓",
            "event_timestamp": 1_234_567_890_123,
            "properties": {"farbe": "grün ✓", "leer": "", "tw": "not our prefix"},
        },
        "large": {"content": b"x" * 4_000_000},
    }
    for timer_id, message in sent.items():
        envelope, deliver_at = properties(timer_id)
        producer.send(
            message["content"],
            properties={**message.get("properties", {}), **envelope},
            partition_key=message.get("partition_key"),
            ordering_key=message.get("ordering_key"),
            event_timestamp=message.get("event_timestamp"),
            deliver_at=deliver_at if not stage.plan.holds_in_relay else None,
        )
    stage.relay()
    stage.await_due(len(sent))
    for message in stage.due():
        found = message.properties()
        was = sent[found.pop("tw-id")]
        del found["tw-timer"]
        assert message.has_null_value() == (was["content"] is None)
        assert message.data() == (was["content"] or b"")
        assert found == was.get("properties", {})
        assert message.partition_key() == was.get("partition_key", "")
        assert message.ordering_key() == was.get("ordering_key", "")
        assert message.event_timestamp() == was.get("event_timestamp", 0)


def avro(definition: dict[str, Any], **fields: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, definition, fields)
    return buffer.getvalue()


def pass_through(kind: Any, definition: dict[str, Any]) -> PassThroughSchema:
    return PassThroughSchema(_pulsar.SchemaInfo(kind, "Order", json.dumps(definition)))


def put_with_schema(stage: Stage, timer_id: str, schema: Any, content: bytes) -> None:
    envelope, deliver_at = properties(timer_id)
    producer = stage.producer(stage.tiers[-1], schema=schema)
    producer.send(content, properties=envelope, deliver_at=None if stage.plan.holds_in_relay else deliver_at)
    producer.close()


@pytest.mark.parametrize("enforced", [False, True], ids=["free", "enforced"])
def test_avro_versions_are_kept_apart_for_the_reader(stage: Stage, enforced: bool) -> None:
    """Two versions of a record in one tier; a reader of the newer one reads both, and not one as the other."""
    if enforced:
        for topic in (*stage.tiers, stage.plan.due_topic):
            url = f"{stage.broker.admin_url}/admin/v2/{topic_path(topic)}/schemaValidationEnforced"
            httpx.post(url, json=True).raise_for_status()
        eventually(lambda: _refuses_bytes(stage), 60)
    old, new = (pass_through(_pulsar.SchemaType.AVRO, definition) for definition in (V1, V2))
    put_with_schema(stage, "old", old, avro(V1, id="a"))
    put_with_schema(stage, "new", new, avro(V2, id="b", count=9))
    put_with_schema(stage, "old again", old, avro(V1, id="c"))
    consumer = stage.client.subscribe(
        stage.plan.due_topic,
        BUSINESS,
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        schema=AvroSchema(None, V2),
    )
    stage.relay()
    found = {}
    for _ in range(3):
        message = consumer.receive(30_000)
        found[message.properties()["tw-id"]] = (message.value(), schema_version_of(message))
    assert {timer_id: value for timer_id, (value, _) in found.items()} == {
        "old": {"id": "a", "count": 3},
        "new": {"id": "b", "count": 9},
        "old again": {"id": "c", "count": 3},
    }
    assert found["old"][1] == found["old again"][1] != found["new"][1]


def _refuses_bytes(stage: Stage) -> bool:
    """The policy is in force, seen by a topic that has a schema."""
    stage.producer(stage.tiers[-1], schema=pass_through(_pulsar.SchemaType.AVRO, V1)).close()
    try:
        stage.client.create_producer(f"{stage.tiers[-1]}-partition-0").close()
    except pulsar.IncompatibleSchema:
        return True
    return False


def test_json_keeps_its_schema_and_bytes_stay_bytes(stage: Stage) -> None:
    put_with_schema(stage, "json", pass_through(_pulsar.SchemaType.JSON, V1), b'{"id": "a"}')
    envelope, deliver_at = properties("bytes")
    stage.producer(stage.tiers[-1]).send(
        b"raw", properties=envelope, deliver_at=None if stage.plan.holds_in_relay else deliver_at
    )
    stage.relay()
    stage.await_due(2)
    versions = {message.properties()["tw-id"]: schema_version_of(message) for message in stage.due()}
    assert versions == {"json": 0, "bytes": -1}
    schema = httpx.get(f"{stage.broker.admin_url}/admin/v2/schemas/{_schema_path(stage.plan.due_topic)}/schema").json()
    assert schema["type"] == "JSON"
    assert json.loads(schema["data"]) == V1


def _schema_path(topic: str) -> str:
    return topic_path(topic).removeprefix("persistent/")

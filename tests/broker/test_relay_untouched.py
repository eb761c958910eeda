"""Byte for byte (broker-facts: byte-for-byte): what a timer carries is the same behind its hops, schema version
included.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import fastavro
import httpx
import pulsar
import pytest
from pulsar.schema import AvroSchema

from tests.broker.due_topic import now_ms
from tests.broker.relay_stage import BUSINESS, TIERED, Stage, plan_of
from timewheel.client.native import schema_version_of
from timewheel.client.schemas import PassThroughSchema
from timewheel.core.envelope import Envelope
from timewheel.core.plan import Tiered
from timewheel.testing import Broker, eventually
from timewheel.testing.admin_calls import topic_path

V1: dict[str, Any] = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
V2: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "string"}, {"name": "count", "type": "int", "default": 3}],
}


@pytest.fixture(params=[TIERED, Tiered(window_ms=1_500, tiers_ms=(1_500,), hold="broker")], ids=["relay", "broker"])
def stage(request: pytest.FixtureRequest, pulsar_broker: Broker) -> Iterator[Stage]:
    with Stage(pulsar_broker, plan_of(request.param)) as made:
        yield made


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
    return PassThroughSchema(_pulsar_schema_info(kind, definition))


def _pulsar_schema_info(kind: Any, definition: dict[str, Any]) -> Any:
    import _pulsar

    return _pulsar.SchemaInfo(kind, "Order", json.dumps(definition))


def put_with_schema(stage: Stage, timer_id: str, schema: Any, content: bytes) -> None:
    envelope, deliver_at = properties(timer_id)
    producer = stage.producer(stage.tiers[-1], schema=schema)
    producer.send(content, properties=envelope, deliver_at=None if stage.plan.holds_in_relay else deliver_at)
    producer.close()


@pytest.mark.parametrize("enforced", [False, True], ids=["free", "enforced"])
def test_avro_versions_are_kept_apart_for_the_reader(stage: Stage, enforced: bool) -> None:
    """Two versions of a record in one tier; a reader of the newer one reads both, and not one as the other."""
    import _pulsar

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
    import _pulsar

    stage.producer(stage.tiers[-1], schema=pass_through(_pulsar.SchemaType.AVRO, V1)).close()
    try:
        stage.client.create_producer(f"{stage.tiers[-1]}-partition-0").close()
    except pulsar.IncompatibleSchema:
        return True
    return False


def test_json_keeps_its_schema_and_bytes_stay_bytes(stage: Stage) -> None:
    import _pulsar

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

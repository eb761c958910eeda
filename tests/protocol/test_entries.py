"""What stands in an entry beside its payload is read as protobuf wrote it."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pulsar_messages import entry_frame, message
from timewheel.broker.protocol.commands import CommandType, command_in, entry_in
from timewheel.broker.protocol.entries import Compression, Entry, Marker
from timewheel.broker.protocol.wire import Frames, data_field, number_field
from timewheel.client.positions import EntryPosition


def read(data: bytes, *, keep_payload: bool = True) -> Entry:
    frames = Frames()
    frames.feed(data)
    got = frames.next()
    assert got is not None
    frame, end = got
    kind, body = command_in(frame, end)
    assert kind == CommandType.MESSAGE
    return entry_in(body, frame, end, keep_payload=keep_payload)


def properties(**texts: str) -> list[Any]:
    return [message("KeyValue", key=key, value=value) for key, value in texts.items()]


def test_an_entry_of_nothing_but_what_each_has() -> None:
    entry = read(entry_frame((12, 34), payload=b"payload"))

    assert entry.position == EntryPosition(12, 34)
    assert (entry.producer, entry.sequence_id, entry.publish_ms) == ("p", 7, 1_000)
    assert (entry.deliver_at_ms, entry.event_ms, entry.partition_key, entry.ordering_key) == (None, None, None, None)
    assert (entry.batch_size, entry.message_count, entry.properties) == (0, 1, {})
    assert (entry.compression, entry.is_encrypted, entry.is_chunked, entry.marker) == (
        Compression.NONE,
        False,
        False,
        None,
    )
    assert (entry.replicated_from, entry.schema_version, entry.transaction) == (None, None, None)
    assert (entry.has_null_value, entry.redeliveries) == (False, 0)
    assert (entry.payload, entry.payload_bytes) == (b"payload", 7)


FIELDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "delivery": ({"deliver_at_time": 1_800_000_000_123}, {"deliver_at_ms": 1_800_000_000_123}),
    "delivery before 1970": ({"deliver_at_time": -1}, {"deliver_at_ms": -1}),
    "delivery at 0": ({"deliver_at_time": 0}, {"deliver_at_ms": 0}),
    "size before compression": ({"uncompressed_size": 4_096}, {"uncompressed_bytes": 4_096}),
    "batch": ({"num_messages_in_batch": 3, "payload": b"x" * 12}, {"batch_size": 3, "message_count": 3}),
    "batch, compressed": ({"num_messages_in_batch": 3, "uncompressed_size": 12}, {"batch_size": 3}),
    "batch of one": ({"num_messages_in_batch": 1, "payload": b"x" * 4}, {"batch_size": 1, "message_count": 1}),
    "properties": ({"properties": properties(a="1", b="", ü="ß")}, {"properties": {"a": "1", "b": "", "ü": "ß"}}),
    "key": ({"partition_key": "k"}, {"partition_key": "k", "key_is_base64": False}),
    "empty key": ({"partition_key": ""}, {"partition_key": ""}),
    "key of bytes": (
        {"partition_key": "AAE=", "partition_key_b64_encoded": True},
        {"partition_key": "AAE=", "key_is_base64": True},
    ),
    "ordering key": ({"ordering_key": b"\x00\xff"}, {"ordering_key": b"\x00\xff"}),
    "event time": ({"event_time": 5}, {"event_ms": 5}),
    "replicated": ({"replicated_from": "east"}, {"replicated_from": "east"}),
    "schema": ({"schema_version": b"\x00" * 7 + b"\x03"}, {"schema_version": b"\x00" * 7 + b"\x03"}),
    "empty schema version": ({"schema_version": b""}, {"schema_version": None, "defect": None}),
    "compression": ({"compression": 3}, {"compression": Compression.ZSTD}),
    "compression that is not known": ({"compression": 9}, {"compression": 9}),
    "encryption": ({"encryption_keys": [message("EncryptionKeys", key="k", value=b"v")]}, {"is_encrypted": True}),
    "chunk": (
        {"uuid": "u", "num_chunks_from_msg": 2, "chunk_id": 0, "total_chunk_msg_size": 9},
        {"is_chunked": True, "chunk": 0, "chunk_count": 2},
    ),
    "one chunk": ({"num_chunks_from_msg": 1, "chunk_id": 0}, {"is_chunked": False, "chunk_count": 1}),
    "marker": ({"marker_type": 12}, {"marker": Marker.SNAPSHOT}),
    "null value": ({"null_value": True}, {"has_null_value": True}),
    "null value, said to be none": ({"null_value": False}, {"has_null_value": False}),
    "transaction": ({"txnid_max_bits": 1, "txnid_least_bits": 2}, {"transaction": (1, 2)}),
    "redeliveries": ({"redelivery_count": 4}, {"redeliveries": 4}),
    "broker's metadata": ({"before": b"\x0e\x02\x00\x00\x00\x03\x08\x01\x10"}, {"payload": b"x"}),
    "no checksum": ({"has_checksum": False}, {"payload": b"x", "producer": "p"}),
}


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_each_field_is_read_as_it_was_written(name: str) -> None:
    written, expected = FIELDS[name]
    entry = read(entry_frame((1, 2), **written))
    assert {field: getattr(entry, field) for field in expected} == expected


def test_unknown_fields_are_passed_over_and_known_numbers_of_another_kind_too() -> None:
    metadata = message("MessageMetadata", producer_name="p", sequence_id=1, publish_time=2, deliver_at_time=3)
    unknown = b"\xfa\x3f\x03new" + b"\xf8\x3f\x05" + b"\x9a\x01\x03abc"  # fields 1023 and, as a text, 19
    inner = metadata.SerializeToString() + unknown
    body = struct.pack(">I", len(inner)) + inner
    entry = read(_with_rest(body))
    assert (entry.deliver_at_ms, entry.publish_ms) == (3, 2)


def test_without_being_asked_for_a_payload_none_is_kept() -> None:
    entry = read(entry_frame((1, 2), payload=b"x" * 100), keep_payload=False)
    assert (entry.payload, entry.payload_bytes) == (None, 100)


def test_a_wrong_checksum_is_a_defect_that_has_both() -> None:
    entry = read(entry_frame((5, 6), checksum=1))
    assert str(entry.defect).startswith("an entry with checksum 0x00000001")
    assert (entry.position, entry.properties, entry.deliver_at_ms) == (EntryPosition(5, 6), {}, None)


@given(flipped=st.integers(0, 8 * 60 - 1))
def test_no_changed_bit_of_an_entry_goes_unseen(flipped: int) -> None:
    data = bytearray(entry_frame((5, 6), payload=b"x" * 60, partition_key="key"))
    at = len(data) - 60 + flipped // 8
    data[at] ^= 1 << flipped % 8
    assert "checksum" in str(read(bytes(data)).defect)


@pytest.mark.parametrize("missing", ["producer_name", "sequence_id", "publish_time"])
def test_an_entry_without_what_each_has_is_none(missing: str) -> None:
    without: dict[str, Any] = {missing: None}
    assert read(entry_frame((1, 2), **without)).defect == "an entry without its producer, number or time"


def test_an_entry_that_ends_early_has_a_defect_wherever_it_ends() -> None:
    whole = _rest(entry_frame((1, 2), payload=b"", has_checksum=False, partition_key="key"))
    for end in range(len(whole)):
        assert read(_with_rest(whole[:end])).defect is not None


ABSURD: dict[str, tuple[dict[str, Any], str, int]] = {
    "a negative batch": ({"num_messages_in_batch": -5}, "a batch of -5 messages", (1 << 32) - 5),
    "a batch of none": ({"num_messages_in_batch": 0}, "a batch of 0 messages", 1),
    "a batch of more than its bytes": ({"num_messages_in_batch": 3, "payload": b"x" * 11}, "a batch of 3 messages", 3),
    "the largest batch": ({"num_messages_in_batch": (1 << 31) - 1}, "a batch of 2147483647 messages", (1 << 31) - 1),
    "a long schema version": ({"schema_version": bytes(200)}, "a schema version of 200 bytes", 1),
    "a negative schema version": ({"schema_version": b"\xff" * 8}, "a schema version of 8 bytes", 1),
    "a time that is no date": ({"publish_time": (1 << 64) - 1}, "an entry of 18446744073709551615 ms", 1),
}


@pytest.mark.parametrize("name", ABSURD)
def test_a_number_that_cannot_be_is_a_defect_and_counts_as_brokers_count_it(name: str) -> None:
    written, defect, count = ABSURD[name]
    entry = read(entry_frame((1, 2), **written))
    assert (entry.defect, entry.message_count) == (defect, count)


VALID = message("MessageMetadata", producer_name="p", sequence_id=1, publish_time=2).SerializeToString()
SEVEN = number_field(11, 7)  # a batch of seven messages
UNREADABLE: dict[str, tuple[bytes, int]] = {
    "a field without a number": (b"\x00\x05" + VALID + SEVEN, 7),
    "a property with such a field": (VALID + data_field(4, b"\x00\x01" + data_field(1, "k")) + SEVEN, 7),
    "a property that goes on in the field behind it": (
        VALID + b"\x22\x02\x0a\x04" + SEVEN * 2 + number_field(11, 9),
        9,
    ),
    "a last field that goes on in the payload": (VALID + SEVEN + b"\x32\x05key", 7),
    "a group": (VALID + SEVEN + b"\x0b\x0c", 7),
    "a number without an end": (VALID + SEVEN + b"\x10" + b"\xff" * 12, 1),
}
"""And how many messages a broker counts."""


@pytest.mark.parametrize("name", UNREADABLE)
def test_metadata_that_protobuf_does_not_allow_is_a_defect(name: str) -> None:
    metadata, count = UNREADABLE[name]
    entry = read(_with_rest(struct.pack(">I", len(metadata)) + metadata + b"payload"))
    assert entry.defect is not None
    assert (entry.message_count, entry.properties, entry.deliver_at_ms, entry.marker) == (count, {}, None, None)
    assert entry.payload == struct.pack(">I", len(metadata)) + metadata + b"payload", "all of it"


@given(rest=st.binary(max_size=80), has_head=st.booleans())
def test_any_bytes_are_an_entry(rest: bytes, has_head: bool) -> None:
    data = struct.pack(">I", len(VALID) + len(rest) // 2) + VALID + rest if has_head else rest
    entry = read(_with_rest(data))
    assert entry.position == EntryPosition(1, 2)
    assert 1 <= entry.message_count < 1 << 32


def _rest(frame: bytes) -> bytes:
    """What stands behind the command."""
    command_size = int.from_bytes(frame[4:8], "big")
    return frame[8 + command_size :]


def _with_rest(rest: bytes) -> bytes:
    frame = entry_frame((1, 2))
    command = frame[8 : 8 + int.from_bytes(frame[4:8], "big")]
    return struct.pack(">II", 4 + len(command) + len(rest), len(command)) + command + rest

"""What stands in an entry beside its payload is read as protobuf wrote it."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pulsar_messages import entry_frame, message
from timewheel.binary_protocol.answers import command_in, entry_in
from timewheel.binary_protocol.command_types import CommandType
from timewheel.binary_protocol.entries import Compression, Entry, Marker, members_of
from timewheel.binary_protocol.errors import ChecksumMismatch, ProtocolViolation
from timewheel.binary_protocol.frames import Frames
from timewheel.core.errors import ClientMisuse
from timewheel.wire.positions import EntryPosition


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
    "batch": ({"num_messages_in_batch": 3}, {"batch_size": 3, "message_count": 3}),
    "batch of one": ({"num_messages_in_batch": 1}, {"batch_size": 1, "message_count": 1}),
    "batch that cannot be": ({"num_messages_in_batch": -5}, {"batch_size": 1, "message_count": 1}),
    "batch of none": ({"num_messages_in_batch": 0}, {"batch_size": 1, "message_count": 1}),
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
    "transaction": ({"txnid_most_bits": 1, "txnid_least_bits": 2}, {"transaction": (1, 2)}),
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


def test_a_wrong_checksum_names_the_entry_and_both_checksums() -> None:
    with pytest.raises(ChecksumMismatch, match=r"entry 5:6 with checksum 0x00000001; its bytes have 0x") as refused:
        read(entry_frame((5, 6), checksum=1))

    assert (refused.value.ledger, refused.value.entry) == (5, 6)


@given(flipped=st.integers(0, 8 * 60 - 1))
def test_no_changed_bit_of_an_entry_goes_unseen(flipped: int) -> None:
    data = bytearray(entry_frame((5, 6), payload=b"x" * 60, partition_key="key"))
    at = len(data) - 60 + flipped // 8
    data[at] ^= 1 << flipped % 8

    with pytest.raises(ChecksumMismatch):
        read(bytes(data))


@pytest.mark.parametrize("missing", ["producer_name", "sequence_id", "publish_time"])
def test_an_entry_without_what_each_has_is_none(missing: str) -> None:
    without: dict[str, Any] = {missing: None}
    with pytest.raises(ProtocolViolation, match="entry 1:2 without its producer, number or time"):
        read(entry_frame((1, 2), **without))


def test_an_entry_that_ends_early_is_refused_wherever_it_ends() -> None:
    whole = _rest(entry_frame((1, 2), payload=b"", has_checksum=False, partition_key="key"))
    for end in range(len(whole)):
        with pytest.raises(ProtocolViolation):
            read(_with_rest(whole[:end]))


def batch(*, sizes: tuple[int, ...] = (2, 3)) -> bytes:
    payload = b""
    for index, size in enumerate(sizes):
        single = message(
            "SingleMessageMetadata",
            payload_size=size,
            properties=properties(i=str(index)),
            partition_key=f"k{index}",
            ordering_key=b"o",
            event_time=9,
        ).SerializeToString()
        payload += struct.pack(">I", len(single)) + single + b"x" * size
    return payload


def test_the_messages_of_a_batch_are_described_one_by_one() -> None:
    first, second = members_of(read(entry_frame((1, 2), payload=batch(), num_messages_in_batch=2)))

    assert (first.partition_key, first.properties, first.payload_bytes) == ("k0", {"i": "0"}, 2)
    assert (second.partition_key, second.properties, second.payload_bytes) == ("k1", {"i": "1"}, 3)
    assert (second.ordering_key, second.event_ms, second.has_null_value) == (b"o", 9, False)


def test_a_null_value_in_a_batch_has_no_size() -> None:
    single = message("SingleMessageMetadata", payload_size=-1, null_value=True).SerializeToString()
    payload = struct.pack(">I", len(single)) + single
    (member,) = members_of(read(entry_frame((1, 2), payload=payload, num_messages_in_batch=1)))

    assert (member.has_null_value, member.payload_bytes) == (True, 0)


def test_what_is_no_batch_has_no_members() -> None:
    assert list(members_of(read(entry_frame((1, 2), payload=batch())))) == []


def test_a_batch_that_ends_early_is_refused_wherever_it_ends() -> None:
    whole = batch()
    for end in range(len(whole)):
        with pytest.raises(ProtocolViolation):
            list(members_of(read(entry_frame((1, 2), payload=whole[:end], num_messages_in_batch=2))))


def test_a_batch_that_claims_to_be_huge_ends_where_its_bytes_do() -> None:
    with pytest.raises(ProtocolViolation, match="cut off"):
        list(members_of(read(entry_frame((1, 2), payload=batch(), num_messages_in_batch=(1 << 31) - 1))))


@pytest.mark.parametrize(
    ("written", "keep_payload"),
    [
        ({"compression": 1}, True),
        ({"encryption_keys": [message("EncryptionKeys", key="k", value=b"v")]}, True),
        ({}, False),
    ],
)
def test_a_batch_that_cannot_be_seen_into_is_not_guessed_at(written: dict[str, Any], keep_payload: bool) -> None:
    entry = read(entry_frame((1, 2), payload=batch(), num_messages_in_batch=2, **written), keep_payload=keep_payload)

    with pytest.raises(ClientMisuse):
        list(members_of(entry))


def _rest(frame: bytes) -> bytes:
    """What stands behind the command."""
    command_size = int.from_bytes(frame[4:8], "big")
    return frame[8 + command_size :]


def _with_rest(rest: bytes) -> bytes:
    frame = entry_frame((1, 2))
    command = frame[8 : 8 + int.from_bytes(frame[4:8], "big")]
    return struct.pack(">II", 4 + len(command) + len(rest), len(command)) + command + rest

"""The messages of a batch, read from its entry: as clients write them, and nothing but an error from anything else."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timewheel.broker.admin.entries import BatchedMessage, BatchGarbled, messages_of_batch


def varint(number: int) -> bytes:
    found = b""
    while number >= 0x80:
        found += bytes([number & 0x7F | 0x80])
        number >>= 7
    return found + bytes([number])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def message(payload: bytes, properties: dict[str, str], key: str | None, more: bytes = b"") -> bytes:
    """As `SingleMessageMetadata` of PulsarApi.proto says: properties 1, partition_key 2, payload_size 3."""
    metadata = b"".join(
        field(1, field(1, name.encode()) + field(2, value.encode())) for name, value in properties.items()
    )
    metadata += b"" if key is None else field(2, key.encode())
    metadata += field(3, len(payload)) + more
    return struct.pack(">I", len(metadata)) + metadata + payload


PROPERTIES = st.dictionaries(st.text(max_size=20), st.text(max_size=300), max_size=4)


@given(st.lists(st.tuples(st.binary(max_size=300), PROPERTIES, st.none() | st.text(max_size=20)), max_size=5))
def test_what_was_put_into_a_batch_comes_out(messages: list[tuple[bytes, dict[str, str], str | None]]) -> None:
    # Other fields are skipped: event_time 5, sequence_id 8, a fixed64 and a fixed32 of a later version.
    more = field(5, 1_700_000_000_000) + field(8, 300) + varint(40 << 3 | 1) + b"8" * 8 + varint(41 << 3 | 5) + b"4" * 4
    batch = b"".join(message(*one, more) for one in messages)

    assert tuple(messages_of_batch(batch, len(messages))) == tuple(
        BatchedMessage(properties=properties, partition_key=key, payload_bytes=len(payload), payload=payload)
        for payload, properties, key in messages
    )


@pytest.mark.parametrize(
    "batch",
    [
        b"",
        b"\0\0\0\xff",  # metadata longer than what is there, and empty
        message(b"payload", {"a": "b"}, None)[:-1],
        struct.pack(">I", 2) + bytes([1 << 3 | 3, 0]),  # a kind that protobuf has no longer
        struct.pack(">I", 12) + b"\xff" * 12,  # a number without an end
        struct.pack(">I", 4) + field(2, b"\xff\xff"),  # no text
    ],
)
def test_what_is_no_batch_is_told(batch: bytes) -> None:
    with pytest.raises(BatchGarbled):
        list(messages_of_batch(batch, 1))


@given(st.binary(max_size=60), st.integers(0, 3))
def test_no_bytes_do_more_harm_than_that(batch: bytes, count: int) -> None:
    with suppress(BatchGarbled):
        assert len(list(messages_of_batch(batch, count))) == count


def test_a_null_value_has_no_size() -> None:
    (found,) = messages_of_batch(struct.pack(">I", 11) + field(3, (1 << 64) - 1), 1)

    assert (found.payload_bytes, found.payload) == (0, b"")


def test_an_absurd_count_costs_what_its_bytes_hold() -> None:
    found = messages_of_batch(message(b"payload", {}, None), (1 << 31) - 1)

    assert next(found).payload == b"payload"
    with pytest.raises(BatchGarbled):
        next(found)

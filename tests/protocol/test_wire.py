"""The encoding agrees with the library that defines it; what cannot be a field or a frame is refused."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pulsar_messages import message
from timewheel.broker.protocol import wire
from timewheel.broker.protocol.errors import ProtocolViolation

NUMBERS = st.integers(0, (1 << 64) - 1)


@given(request_id=NUMBERS, error=st.integers(-(1 << 31), (1 << 31) - 1), text=st.text())
def test_protobufs_bytes_are_read_as_what_they_mean(request_id: int, error: int, text: str) -> None:
    data = message("ERROR", request_id=request_id, error=error, message=text).SerializeToString()
    (first, number, _), (second, code, _), (third, _, words) = wire.fields_of(data, 0, len(data))
    assert (first, number) == (wire.number_tag(1), request_id)
    assert (second, wire.as_signed(code)) == (wire.number_tag(2), error)
    assert (third, wire.text_of(words)) == (wire.data_tag(3), text)


@given(request_id=NUMBERS, error=st.integers(-(1 << 31), (1 << 31) - 1), text=st.text())
def test_what_is_written_is_what_protobuf_reads(request_id: int, error: int, text: str) -> None:
    read = message("ERROR")
    read.MergeFromString(wire.number_field(1, request_id) + wire.number_field(2, error) + wire.data_field(3, text))
    assert (read.request_id, read.error, read.message) == (request_id, error, text)


@given(data=st.binary(max_size=60))
def test_any_bytes_are_fields_or_a_violation_and_never_end_beyond_the_end(data: bytes) -> None:
    behind = b"\x08\x01" * 40  # would be fields: nothing of it may be read
    try:
        found = list(wire.fields_of(data + behind, 0, len(data)))
    except ProtocolViolation:
        return
    assert list(wire.fields_of(data, 0, len(data))) == found
    assert sum(len(field) for _, _, field in found) <= len(data)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x08", "cut off"),  # a number that is missing
        (b"\x08\x80", "cut off"),  # one that goes on
        (b"\x80", "cut off"),  # a tag that goes on
        (b"\x12\x05abcd", "cut off"),  # four bytes of five
        (b"\x09" + b"x" * 7, "cut off"),  # seven of eight
        (b"\x0d" + b"x" * 3, "cut off"),  # three of four
        (b"\x12\xff\xff\xff\xff\x0fx", "cut off"),  # four gigabytes are announced, and one byte is there
        (b"\x08" + b"\xff" * 10 + b"\x01", "more than ten bytes"),
        (b"\x00\x01", "tag 0"),  # there is no field 0
        (b"\x0b", "tag 11"),  # a group, which Pulsar never had
        (b"\x0f", "tag 15"),  # a kind that does not exist
    ],
)
def test_what_is_no_message_is_refused_with_the_reason(data: bytes, said: str) -> None:
    with pytest.raises(ProtocolViolation, match=said):
        list(wire.fields_of(data, 0, len(data)))


@given(data=st.binary())
def test_a_text_that_is_no_utf_8_comes_back_byte_for_byte(data: bytes) -> None:
    assert wire.data_field(1, wire.text_of(data)) == wire.data_field(1, data)


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (struct.pack(">I", 0), "a frame of 0 bytes"),
        (struct.pack(">I", 4), "a frame of 4 bytes"),
        (struct.pack(">I", wire.DEFAULT_FRAME_BYTES + 1), f"the limit is {wire.DEFAULT_FRAME_BYTES}"),
        (b"\xff\xff\xff\xff", "a frame of 4294967295 bytes"),
        (b"\x15\x03\x03\x00", "this is TLS: use the scheme pulsar.ssl"),
        (b"\x16\x03\x01\x00", "this is TLS"),
        (b"HTTP", "this is a web service: use the service URL"),
    ],
)
def test_a_size_that_cannot_be_is_refused_before_anything_else_comes(head: bytes, said: str) -> None:
    frames = wire.Frames()
    frames.feed(head)
    with pytest.raises(ProtocolViolation, match=said):
        frames.next()


def test_a_command_that_is_longer_than_its_frame_is_refused() -> None:
    frames = wire.Frames()
    frames.feed(struct.pack(">II", 10, 7) + b"x" * 6)
    with pytest.raises(ProtocolViolation, match="a command of 7 bytes in a frame of 10"):
        frames.next()


def test_nothing_is_set_aside_for_a_frame_that_is_only_announced() -> None:
    frames = wire.Frames()
    tracemalloc.start()
    try:
        frames.feed(struct.pack(">II", wire.DEFAULT_FRAME_BYTES, 100) + b"x")
        assert frames.next() is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 10_000, "of the five megabytes that are announced"


def test_a_large_frame_in_tiny_pieces_does_not_cost_its_square() -> None:
    """A megabyte byte by byte: if every piece copied what is there, it were 500 gigabytes."""
    frames, command = wire.Frames(), b"c" * (1 << 20)
    stream = wire.frame_of(command)
    for at in range(len(stream) - 1):
        frames.feed(stream[at : at + 1])
        assert frames.next() is None
    frames.feed(stream[-1:])

    got = frames.next()
    assert got is not None
    assert got[0][wire.COMMAND_AT :] == command

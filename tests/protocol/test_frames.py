"""A stream is the same frames, in whatever pieces it comes; what cannot be one is refused at its first four bytes."""

from __future__ import annotations

import struct
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timewheel.broker.protocol.errors import FrameTooLarge, ProtocolViolation
from timewheel.broker.protocol.wire import COMMAND_AT, DEFAULT_FRAME_BYTES, Frames, frame_of


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """A stream in pieces, of which some are empty."""
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def commands(pieces: list[bytes]) -> list[bytes]:
    frames, found = Frames(), []
    for piece in pieces:
        frames.feed(piece)
        while (got := frames.next()) is not None:
            frame, end = got
            found.append(frame[COMMAND_AT:end])
    return found


@given(
    sent=st.lists(st.binary(min_size=1, max_size=50), max_size=8), places=st.lists(st.integers(0, 1_000), max_size=12)
)
def test_any_cut_of_a_stream_gives_the_same_frames(sent: list[bytes], places: list[int]) -> None:
    stream = b"".join(map(frame_of, sent))

    assert commands(cut(stream, places)) == sent
    assert commands([stream[at : at + 1] for at in range(len(stream))]) == sent


def test_what_follows_the_command_is_part_of_its_frame() -> None:
    frames = Frames()
    frames.feed(struct.pack(">II", 4 + 2 + 3, 2) + b"cc" + b"xyz")

    assert frames.next() == (b"\x00\x00\x00\x02ccxyz", COMMAND_AT + 2)


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (struct.pack(">I", 0), "a frame of 0 bytes"),
        (struct.pack(">I", 4), "a frame of 4 bytes"),
        (struct.pack(">I", DEFAULT_FRAME_BYTES + 1), f"the limit is {DEFAULT_FRAME_BYTES}"),
        (b"\xff\xff\xff\xff", "a frame of 4294967295 bytes"),
        (b"\x15\x03\x03\x00", "this is TLS: use the scheme pulsar.ssl"),
        (b"\x16\x03\x01\x00", "this is TLS"),
        (b"HTTP", "this is a web service: use the service URL"),
    ],
)
def test_a_size_that_cannot_be_is_refused_before_anything_else_comes(head: bytes, said: str) -> None:
    frames = Frames()
    frames.feed(head)

    with pytest.raises(ProtocolViolation, match=said):
        frames.next()


def test_the_largest_frame_is_taken_and_one_byte_more_is_not() -> None:
    command = b"c" * (DEFAULT_FRAME_BYTES - COMMAND_AT)
    assert commands([frame_of(command)]) == [command]

    with pytest.raises(FrameTooLarge) as refused:
        commands([frame_of(command + b"c")])
    assert (refused.value.size_bytes, refused.value.limit_bytes) == (DEFAULT_FRAME_BYTES + 1, DEFAULT_FRAME_BYTES)


def test_a_command_that_is_longer_than_its_frame_is_refused() -> None:
    frames = Frames()
    frames.feed(struct.pack(">II", 10, 7) + b"x" * 6)

    with pytest.raises(ProtocolViolation, match="a command of 7 bytes in a frame of 10"):
        frames.next()


def test_nothing_is_set_aside_for_a_frame_that_is_only_announced() -> None:
    frames = Frames()
    tracemalloc.start()
    try:
        frames.feed(struct.pack(">II", DEFAULT_FRAME_BYTES, 100) + b"x")
        assert frames.next() is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 10_000, "of the five megabytes that are announced"


def test_a_large_frame_in_tiny_pieces_does_not_cost_its_square() -> None:
    """A megabyte byte by byte: if every piece copied what is there, it were 500 gigabytes."""
    frames, command = Frames(), b"c" * (1 << 20)
    stream = frame_of(command)
    for at in range(len(stream) - 1):
        frames.feed(stream[at : at + 1])
        assert frames.next() is None
    frames.feed(stream[-1:])

    got = frames.next()
    assert got is not None
    assert got[0][COMMAND_AT:] == command

"""What a payload is opened to is as long as its metadata declare, and takes no more memory than that."""

from __future__ import annotations

import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stored_entry import entry_of
from timewheel.broker.protocol.entries import Compression, Entry
from timewheel.broker.protocol.wire import MAX_FRAME_BYTES
from timewheel.shadow.stored_entries import DamagedPayload, opened

COMPRESS: Mapping[Compression, Callable[[bytes], bytes]] = {
    Compression.LZ4: lambda data: bytes(cramjam.lz4.compress_block(data, store_size=False)),
    Compression.ZLIB: zlib.compress,
    Compression.ZSTD: lambda data: bytes(cramjam.zstd.compress(data)),
    Compression.SNAPPY: lambda data: bytes(cramjam.snappy.compress_raw(data)),
}
KINDS = pytest.mark.parametrize("kind", COMPRESS, ids=lambda kind: kind.name)


def stored(kind: int, payload: bytes, declared: int) -> Entry:
    return entry_of(1, 0, payload=payload, payload_bytes=len(payload), compression=kind, uncompressed_bytes=declared)


@KINDS
@pytest.mark.parametrize("data", [b"", b"x", b"hello " * 10_000])
def test_what_was_compressed_comes_back(kind: Compression, data: bytes) -> None:
    assert opened(stored(kind, COMPRESS[kind](data), len(data))) == data


@KINDS
@pytest.mark.parametrize("off", [-1_000, -1, 1, 1_000])
def test_a_size_that_lies_is_a_defect(kind: Compression, off: int) -> None:
    data = b"hello " * 1_000
    with pytest.raises(DamagedPayload):
        opened(stored(kind, COMPRESS[kind](data), len(data) + off))


@KINDS
def test_more_than_a_frame_may_hold_is_refused_before_it_is_opened(kind: Compression) -> None:
    with pytest.raises(DamagedPayload, match=str(MAX_FRAME_BYTES)):
        opened(stored(kind, COMPRESS[kind](b"x"), MAX_FRAME_BYTES + 1))


@given(kind=st.integers(0, 9), payload=st.binary(max_size=200), declared=st.integers(0, 1 << 64))
def test_any_bytes_are_opened_or_damaged(kind: int, payload: bytes, declared: int) -> None:
    try:
        found = opened(stored(kind, payload, declared))
    except DamagedPayload:
        return
    assert len(found) == (declared if kind else len(payload))


BOMB = """
import resource, sys
from tests.shadow.test_content import COMPRESS, Compression, DamagedPayload, opened, stored
kind = Compression(int(sys.argv[1]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
payload = open(sys.argv[2], "rb").read()
try:
    opened(stored(kind, payload, 1_000))
except DamagedPayload:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@KINDS
def test_a_bomb_costs_what_it_declares(kind: Compression, tmp_path_factory: pytest.TempPathFactory) -> None:
    """256 MB of zeros within some bytes that declare 1,000; in a process of its own, whose peak is its own."""
    bomb = tmp_path_factory.mktemp("bomb") / "payload"
    bomb.write_bytes(COMPRESS[kind](bytes(256 << 20)))
    done = subprocess.run(
        [sys.executable, "-c", BOMB, str(kind.value), str(bomb)], capture_output=True, text=True, check=True
    )
    grown_kb = int(done.stdout)
    assert grown_kb < bomb.stat().st_size // 1024 * 2 + 16 * 1024, "its own bytes, and a window"

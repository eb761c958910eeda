"""An entry's payload as its producer gave it, and the entry as a message that can be sent on."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping

import cramjam

from timewheel.broker.protocol.entries import Compression, Entry
from timewheel.broker.protocol.wire import MAX_FRAME_BYTES


class DamagedPayload(Exception):
    """A payload that does not decompress as its metadata declare."""


def opened(entry: Entry, *, max_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """Decompress the payload of an entry into as many bytes as its metadata declare, and no more.

    Args:
        entry: An entry with its payload, neither encrypted nor a batch.
        max_bytes: Limit of the declared size.

    Raises:
        DamagedPayload: It does not decompress, or its length differs from the declared length, or it is too long.
    """
    payload, size = entry.payload, entry.uncompressed_bytes
    assert payload is not None, "the reader was asked for payloads"
    if entry.compression == Compression.NONE:
        return payload
    if size > max_bytes:
        raise DamagedPayload(f"{size} bytes are declared, the limit is {max_bytes}")
    try:
        if entry.compression == Compression.ZLIB:
            content = zlib.decompressobj().decompress(payload, size + 1)
            length = len(content)
        elif (into := _INTO.get(entry.compression)) is not None:
            room = bytearray(size)
            length = into(payload, room)
            content = bytes(room)
        else:
            raise DamagedPayload(f"compression {entry.compression} is not known here")
    except (cramjam.DecompressionError, zlib.error) as error:
        raise DamagedPayload(f"compression {entry.compression} does not open it: {error}") from error
    if length != size:
        raise DamagedPayload(f"{length} bytes or more, and {size} are declared")
    return content


_INTO: Mapping[int, Callable[[bytes, bytearray], int]] = {
    Compression.LZ4: cramjam.lz4.decompress_block_into,
    Compression.ZSTD: cramjam.zstd.decompress_into,
    Compression.SNAPPY: cramjam.snappy.decompress_raw_into,
}
"""Functions that fill a buffer, and fail if they would need more."""


class Original:
    """An entry in the form of a received message, which `timewheel.client.native.carry` can send on.

    Args:
        entry: An entry with its payload.

    Raises:
        DamagedPayload: As for `opened`.
    """

    __slots__ = ("_content", "_entry")

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._content = b"" if entry.has_null_value else opened(entry)

    @property
    def size(self) -> int:
        """Bytes of its payload."""
        return len(self._content)

    def has_null_value(self) -> bool:
        return self._entry.has_null_value

    def data(self) -> bytes:
        return self._content

    def partition_key(self) -> str:
        return self._entry.partition_key or ""

    def ordering_key(self) -> str:
        return (self._entry.ordering_key or b"").decode()

    def event_timestamp(self) -> int:
        return self._entry.event_ms or 0

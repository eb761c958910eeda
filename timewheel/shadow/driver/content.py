"""An entry's payload as its producer gave it, and the entry as a message that can be sent on."""

from __future__ import annotations

import zlib

import cramjam

from timewheel.binary_protocol.entries import Compression, Entry

__all__ = ["DamagedPayload", "Original", "opened"]


class DamagedPayload(Exception):
    """A payload that does not open as its metadata say."""


def opened(entry: Entry) -> bytes:
    """The payload of an entry, decompressed.

    Args:
        entry: Read with its payload, neither encrypted nor a batch.

    Raises:
        DamagedPayload: It does not open, or is not as long as it says.
    """
    payload, size = entry.payload, entry.uncompressed_bytes
    assert payload is not None, "the reader was asked for payloads"
    try:
        match entry.compression:
            case Compression.NONE:
                return payload
            case Compression.LZ4:
                found = bytes(cramjam.lz4.decompress_block(payload, output_len=size))
            case Compression.ZLIB:
                # No more than it says, whatever it would make of itself.
                found = zlib.decompressobj().decompress(payload, size) if size else b""
            case Compression.ZSTD:
                found = bytes(cramjam.zstd.decompress(payload, output_len=size))
            case Compression.SNAPPY:
                found = bytes(cramjam.snappy.decompress_raw(payload))
            case other:
                raise DamagedPayload(f"compression {other} is not known here")
    except (cramjam.DecompressionError, zlib.error, ValueError) as error:
        raise DamagedPayload(f"compression {entry.compression} does not open it: {error}") from error
    if len(found) != size:
        raise DamagedPayload(f"{len(found)} bytes, and it says {size}")
    return found


class Original:
    """An entry in the form of a received message: what `timewheel.wire.native.carry` sends on.

    Args:
        entry: Read with its payload.

    Raises:
        DamagedPayload: As `opened`.
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

"""The checksum of an entry, CRC-32C: in C, since in Python it would take longer than all the rest."""

from __future__ import annotations

from timewheel.binary_protocol.errors import BinaryProtocolMissing

__all__ = ["crc32c"]

try:
    from google_crc32c import value as _value
except ModuleNotFoundError as missing:
    if missing.name != "google_crc32c":
        raise
    raise BinaryProtocolMissing from missing


def crc32c(data: bytes) -> int:
    """The checksum, 32 bits, unsigned."""
    return int(_value(data))

"""The checksum of an entry, CRC-32C: in C, because in Python it would take longer than all the rest."""

from __future__ import annotations

from google_crc32c import value as _value


def crc32c(data: bytes) -> int:
    """Return the checksum as an unsigned number of 32 bits."""
    return int(_value(data))

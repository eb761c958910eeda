"""The checksum of an entry, CRC-32C: in C, because in Python it would take longer than all the rest."""

from __future__ import annotations

from timewheel.core.extras import need_extras

__all__ = ["crc32c"]

need_extras("the brokers' own protocol", "shadow")
from google_crc32c import value as _value  # noqa: E402 - an extra, looked for before


def crc32c(data: bytes) -> int:
    """Return the checksum as an unsigned number of 32 bits."""
    return int(_value(data))

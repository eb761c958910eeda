"""Partition of a key, computed like the Java client does.

Python's and Java's clients agree on few keys (broker-facts: keys-and-partitions), so the SDK computes the partition
itself, with Java's string hash by default, and writes to partition topics: the same key meets the same partition from
either language.
"""

from __future__ import annotations

import sys
from array import array
from functools import lru_cache

_CACHED_KEYS = 16_384
_CACHED_CHARS = 256
"""Longest key that is cached: a broker takes keys of up to 5 MB."""


def java_string_hash(text: str) -> int:
    """Compute Java's ``String.hashCode()``, sign bit cleared: over UTF-16 code units, modulo 2**32."""
    units = array("H")
    units.frombytes(text.encode("utf-16-le", "surrogatepass"))
    if sys.byteorder == "big":
        units.byteswap()
    value = 0
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


def partition_for_key(key: str, partitions: int) -> int:
    """Return the partition of a key, 0 to ``partitions - 1``, like `JavaStringHash` routing."""
    return (_cached_hash if len(key) <= _CACHED_CHARS else java_string_hash)(key) % partitions


_cached_hash = lru_cache(maxsize=_CACHED_KEYS)(java_string_hash)

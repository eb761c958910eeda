"""Packing: integers in as few bytes as possible, because Spark stores, shuffles and hands bytes to Python.

Consecutive times differ by little, and delays are far shorter than the time since 1970: a send takes 6 bytes instead of
16. Each array is packed by itself, so that a long delay only enlarges its own piece.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["packed_ascending", "packed_spans", "unpacked_ascending", "unpacked_spans"]

Integers = NDArray[np.int64]

WIDTHS = (1, 2, 4, 8)
"""Bytes of a number; the first packed byte is the width."""


def packed_spans(values: Integers) -> bytes:
    """Pack numbers that are not negative."""
    most = int(values.max(initial=0))
    width = next(width for width in WIDTHS if most < 1 << (8 * width - (width == WIDTHS[-1])))
    return bytes([width]) + values.astype(f"<u{width}").tobytes()


def unpacked_spans(packed: memoryview) -> Integers:
    """Unpack the result of `packed_spans`."""
    return np.frombuffer(packed, f"<u{packed[0]}", offset=1).astype(np.int64)


def packed_ascending(values: Integers) -> bytes:
    """Pack an ascending sequence of at least one number; equal numbers are allowed."""
    return values[:1].astype("<i8").tobytes() + packed_spans(np.diff(values))


def unpacked_ascending(packed: memoryview) -> Integers:
    """Unpack the result of `packed_ascending`."""
    values = np.empty((len(packed) - 9) // packed[8] + 1, np.int64)
    values[0] = np.frombuffer(packed, "<i8", count=1)[0]
    np.cumsum(np.frombuffer(packed, f"<u{packed[8]}", offset=9), dtype=np.int64, out=values[1:])
    values[1:] += values[0]
    return values

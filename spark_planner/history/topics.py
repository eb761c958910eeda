"""Rows by topic."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["rows_by_topic"]


def rows_by_topic(topics: pa.ChunkedArray) -> tuple[list[str], Iterator[NDArray[np.int64] | slice]]:
    """Return the topics of some rows, and for each topic in turn its rows, in their order.

    Args:
        topics: The topic of each row.

    Returns:
        Distinct names; and for each name an index into the rows, computed when the first index is requested.
    """
    encoded = topics.combine_chunks().dictionary_encode()
    names = encoded.dictionary.to_pylist()
    return names, _rows(encoded.indices.to_numpy(), len(names))


def _rows(codes: NDArray[np.int64], names: int) -> Iterator[NDArray[np.int64] | slice]:
    if names == 1:
        yield slice(None)
        return
    # Narrow numbers are sorted by radix, several times faster.
    order = np.argsort(codes.astype(np.uint16) if names < 1 << 16 else codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=names))
    yield from np.split(order, ends[:-1])

"""Which values an array has, and how often: by a table where the values are small, which takes no sort."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["counted", "distinct"]

Integers = NDArray[np.int64]

DENSE = 4
"""A table is used for up to so many times as many possible values as there are values."""


def counted(values: Integers) -> tuple[Integers, Integers]:
    """The different values, ascending, and how often each is there; none is negative."""
    if not _is_dense(values):
        return np.unique(values, return_counts=True)
    counts = np.bincount(values)
    present = np.flatnonzero(counts)
    return present, counts[present]


def distinct(values: Integers) -> tuple[Integers, Integers]:
    """The different values, ascending, and for each value which of them it is; none is negative."""
    if not _is_dense(values):
        return np.unique(values, return_inverse=True)
    table = np.bincount(values)
    present = np.flatnonzero(table)
    table[present] = np.arange(len(present))
    return present, table[values]


def _is_dense(values: Integers) -> bool:
    return len(values) > 0 and int(values.max()) < DENSE * len(values)

"""Distinct values of an array and their counts: by a table if the values are small, which needs no sort."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["counted", "distinct"]

Integers = NDArray[np.int64]

DENSE = 4
"""A table is used for up to this ratio of possible values to values."""


def counted(values: Integers) -> tuple[Integers, Integers]:
    """Return the distinct values, ascending, and the count of each; no value may be negative."""
    if not _is_dense(values):
        return np.unique(values, return_counts=True)
    counts = np.bincount(values)
    present = np.flatnonzero(counts)
    return present, counts[present]


def distinct(values: Integers) -> tuple[Integers, Integers]:
    """Return the distinct values, ascending, and for each value its index among them; no value may be negative."""
    if not _is_dense(values):
        return np.unique(values, return_inverse=True)
    table = np.bincount(values)
    present = np.flatnonzero(table)
    table[present] = np.arange(len(present))
    return present, table[values]


def _is_dense(values: Integers) -> bool:
    return len(values) > 0 and int(values.max()) < DENSE * len(values)

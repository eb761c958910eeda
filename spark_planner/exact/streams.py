"""Frames whose rows come in order, without a shuffle where they already do, and without a window.

A history that was written in order of time needs no sorting: each task reads stretches of it, which are put in order
by their first and last times. Anything else is sorted by Spark in chunks of time, about as many rows in each, so that
neither a hot topic nor a busy hour makes one task longer than the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every user of PySpark knows

from timewheel.spark_planner.exact.pieces import ORDER_MS, SOURCE
from timewheel.spark_planner.exact.run_rows import FOUND_SCHEMA, Found, Pass, found_of

__all__ = ["INPUT_ORDER", "ROWS_PER_CHUNK", "Stream", "as_read", "in_order", "sorted_by"]

INPUT_ORDER = "input_order"
"""Where a row stands in the history as Spark reads it: the order of what was sent in the same millisecond. bigint."""

ROWS_PER_CHUNK = 1_000_000
"""A chunk is sorted by one task; the sort of a million rows fits into any executor's memory."""
MAX_CHUNKS = 1_024
_RANKS = 10_000
"""The accuracy of the chunks' borders: a chunk is at most this fraction of the rows longer than meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A frame with `ORDER_MS` whose tasks read stretches in order, each task's first row to its last.

    Args:
        frame: The rows.
        is_sorted: Whether it was sorted for that; if not, it may turn out not to be in order.
        has_turns: Whether partitions have yet to be found by turns; rows are then in the order of sends.
    """

    frame: DataFrame
    is_sorted: bool
    has_turns: bool = True

    def run(self, work: Pass) -> list[Found] | None:
        """Do one pass over all rows.

        Returns:
            What it found, runs in order; None: the rows are not in order.
        """
        found = found_of(self.frame.mapInArrow(work, FOUND_SCHEMA).toArrow())
        return None if found is None else in_order(found)


def in_order(found: Sequence[Found]) -> list[Found] | None:
    """Runs in the order of their times; None if two of them overlap, and rows would have to be merged."""
    ordered = sorted(found, key=lambda row: (row.first_ms, row.key))
    runs = list({row.key: row for row in ordered}.values())
    for before, after in pairwise(runs):
        # What was sent in the same millisecond is in the order of the input, which is the order of tasks.
        if (before.last_ms, before.key) >= (after.first_ms, after.key):
            return None
    return ordered


def as_read(frame: DataFrame) -> Stream:
    """A frame straight from its files, in case that they are in order of `ORDER_MS`."""
    if len(frame.inputFiles()) > 1:
        # Of one file each task reads one stretch.
        frame = frame.withColumn(SOURCE, F.xxhash64(F.input_file_name(), F.input_file_block_start()))
    return Stream(frame=frame, is_sorted=False)


def sorted_by(frame: DataFrame, *then: str, rows_per_chunk: int = ROWS_PER_CHUNK) -> Stream:
    """Sort by `ORDER_MS`, then by these columns, in chunks of time.

    Chunks are cut at quantiles of `ORDER_MS`, which one pass over that column finds; rows of one millisecond are never
    separated. The same frame is cut the same way each time, so that several passes see the same chunks.
    """
    borders = _borders(frame, rows_per_chunk)
    chunked = frame.repartitionById(len(borders) + 1, _chunk_of(F.col(ORDER_MS), borders))
    return Stream(frame=chunked.sortWithinPartitions(ORDER_MS, *then), is_sorted=True)


def _borders(frame: DataFrame, rows_per_chunk: int) -> list[int]:
    """Where chunks begin, ascending; the first begins before all."""
    rows = frame.count()
    tasks = int(frame.sparkSession.sparkContext.defaultParallelism)
    chunks = min(MAX_CHUNKS, max(-(-rows // rows_per_chunk), min(tasks, rows)))
    if chunks <= 1:
        return []
    ranks = [number / chunks for number in range(1, chunks)]
    (found,) = frame.agg(F.percentile_approx(ORDER_MS, ranks, _RANKS)).first() or ([],)
    return sorted(set(found))


def _chunk_of(order_ms: Column, borders: Sequence[int], first: int = 0) -> Column:
    """The number of the chunk, by halving."""
    if not borders:
        return F.lit(first)
    middle = len(borders) // 2
    return F.when(order_ms < F.lit(borders[middle]), _chunk_of(order_ms, borders[:middle], first)).otherwise(
        _chunk_of(order_ms, borders[middle + 1 :], first + middle + 1)
    )

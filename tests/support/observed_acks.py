"""Gap ranges from acknowledgements observed on a broker, by the position of each entry."""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every user of PySpark knows
from pyspark.sql.pandas.types import to_arrow_schema

from timewheel.spark_planner.errors import EmptyHistory
from timewheel.spark_planner.exact.ranges import NEVER_MS, GapCounts, GapTally, Grid, RangeCounter, Stitcher, distinct
from timewheel.spark_planner.exact.replay import one_row
from timewheel.spark_planner.history.columns import schema_of

Integers = NDArray[np.int64]

PARTITION = "partition"  # column: partition of the due topic. int.
LEDGER = "ledger"  # column: ledger id of the entry. bigint.
ENTRY = "entry"  # column: entry id in the ledger. bigint.
ACKNOWLEDGED_MS = "acknowledged_ms"  # column: acknowledgement time, UTC milliseconds; null: not acknowledged. bigint.


_FOUND = schema_of("found:bytes")


def count_acks(acks: DataFrame, *, grid: Grid | None = None) -> GapCounts:
    """Count gap ranges over time; each partition counts as a topic of its own, named by its number.

    Args:
        acks: DataFrame of `PARTITION` (int), `ENTRY` (bigint), optionally `LEDGER` (bigint; without it all entries are
            in a single ledger), and `ACKNOWLEDGED_MS` (bigint, UTC milliseconds; null: not acknowledged). No other
            column has nulls, and each position occurs once. A missing entry between two entries of a ledger, or before
            the first of a later ledger, counts as not acknowledged; entries before a partition's first row are taken as
            deleted.
        grid: Moments at which gaps are counted; None: 4,096 moments from the first acknowledgement to the last.

    Raises:
        EmptyHistory: There are no acknowledgements.
    """
    if grid is None:
        first_ms, last_ms = acks.agg(F.min(ACKNOWLEDGED_MS), F.max(ACKNOWLEDGED_MS)).first() or (None, None)
        if first_ms is None or last_ms is None:
            raise EmptyHistory
        grid = Grid.regular(first_ms, last_ms)
    ledger = F.col(LEDGER) if LEDGER in acks.columns else F.lit(0)
    placed = acks.select(
        F.col(PARTITION).cast("int").alias(PARTITION),
        ledger.cast("bigint").alias(LEDGER),
        F.col(ENTRY).cast("bigint").alias(ENTRY),
        F.col(ACKNOWLEDGED_MS).cast("bigint").alias(ACKNOWLEDGED_MS),
    ).orderBy(PARTITION, LEDGER, ENTRY)
    # Each task of a sorted DataFrame has one stretch of positions, in the order of its tasks.
    joined: defaultdict[int, Stitcher] = defaultdict(lambda: Stitcher(grid))
    for packed in placed.mapInArrow(_counting(grid), _FOUND).toArrow().column(0).to_pylist():
        for partition, part in pickle.loads(packed):
            joined[partition].add(part)
    tally = GapTally(grid, by_topic=True)
    for partition, own in joined.items():
        tally.add(str(partition), own.entries, own.changes())
    return tally.found()


def _counting(grid: Grid) -> Any:
    def kernel(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counter, numbers = RangeCounter(grid), dict[int, int]()
        for batch in batches:
            if not batch.num_rows:
                continue
            present, where = distinct(_integers(batch, PARTITION))
            for partition in present.tolist():
                if partition not in numbers:
                    numbers[partition] = len(numbers)
                    counter.open(numbers[partition])
            number = np.array([numbers[partition] for partition in present.tolist()], np.int64)[where]
            acknowledged_ms = batch.column(ACKNOWLEDGED_MS).fill_null(NEVER_MS).to_numpy(zero_copy_only=False)
            counter.feed(
                number, acknowledged_ms.astype(np.int64, copy=False), _integers(batch, LEDGER), _integers(batch, ENTRY)
            )
        yield one_row(to_arrow_schema(_FOUND), pickle.dumps(list(zip(numbers, counter.parts(), strict=True))))

    return kernel


def _integers(rows: pa.RecordBatch, name: str) -> Integers:
    values: Integers = rows.column(name).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return values

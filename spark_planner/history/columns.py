"""Names and schemas of the DataFrames that pass between the planner's parts."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, StringType, StructField, StructType

INT, LONG, TEXT, BYTES = IntegerType(), LongType(), StringType(), BinaryType()


def schema_of(nullable: Collection[str] = (), **kinds: DataType) -> StructType:
    """Build a schema of columns, of which only the named ones may be null."""
    return StructType([StructField(name, kind, nullable=name in nullable) for name, kind in kinds.items()])


# ----------------------------------------------------------------------------------------- a history, one row per timer
PUBLISH_MS = "publish_ms"  # send time of the timer, UTC milliseconds
DUE_MS = "due_ms"  # due time of the timer, UTC milliseconds; not before the send time
SIZE_BYTES = "size_bytes"  # size of the payload; 0: unknown
KEY = "key"  # the partition key, or null
TOPIC = "topic"  # the due topic of the timer; empty if the history has no topics
HISTORY_SCHEMA = schema_of({KEY}, publish_ms=LONG, due_ms=LONG, size_bytes=LONG, key=TEXT, topic=TEXT)
"""A normalised history: sound rows only, in the order of these columns."""
HISTORY_COLUMNS = tuple(HISTORY_SCHEMA.fieldNames())
# --------------------------------------------------------------------- an assessed history, with reasons and remarks
REASON = "reason"  # the reason why the row is quarantined (`read.REASONS`); null for a sound row
REMARK = "remark"  # a defect of a row that is used all the same (`read.REMARKS`); usually null
RAW = "raw"  # the original values of a row with a reason or a remark, as readable JSON text; null for all other rows
ASSESSED_SCHEMA = schema_of(
    {*HISTORY_COLUMNS, REASON, REMARK, RAW},
    **{field.name: field.dataType for field in HISTORY_SCHEMA},
    reason=TEXT,
    remark=TEXT,
    raw=TEXT,
)
"""Every row of a history, with the reason against it; null values only in rows with a reason."""
# ----------------------------------------------------------------------------------- cells: one row per cell of a topic
LEVEL, COUNT = "level", "count"
FACTS = (
    COUNT,
    "publish_min_ms",
    "publish_max_ms",
    "delay_min_ms",
    "delay_max_ms",
    "due_min_ms",
    "due_max_ms",
    SIZE_BYTES,
)
"""The stored facts of a cell, in this order, named like the attributes of `cells.Cells`; its slot and bucket follow."""
CELLS_SCHEMA = schema_of(topic=TEXT, level=INT, **dict.fromkeys(FACTS, LONG))
"""Rows of a topic are of a single level; a file of a statistic has these columns too."""
# --------------------------------------------------------------- results of tasks: cells and counts of the quarantine
TASK = "task"  # the task that made the row: the next stage groups by it
SAMPLES = "samples"
"""Some raw rows of a reason, as the JSON text of a list. Not an array: with nulls in an array, Spark 4 takes quadratic
time to fill a batch for Python (it measures the batch after every row, and its list vector starts from the front
again).
"""
PARTS_SCHEMA = StructType(
    [*schema_of({REASON, SAMPLES}, task=INT, reason=TEXT, samples=TEXT).fields, *CELLS_SCHEMA.fields]
)
"""A row with a null reason is a cell; a row with a reason counts the rows with that reason or remark (all facts except
the count are 0).
"""


def rows_by_topic(topics: pa.ChunkedArray) -> tuple[list[str], Iterator[NDArray[np.int64] | slice]]:
    """Return the topics of some rows, and for each topic in turn an index of its rows, computed on request."""
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

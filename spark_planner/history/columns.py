"""Names and schemas of the DataFrames that pass between the planner's parts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

_TYPES = {"int": IntegerType(), "long": LongType(), "text": StringType(), "bytes": BinaryType()}


def schema_of(columns: str) -> StructType:
    """Build a schema of columns such as ``size_bytes:long``; a question mark at the end: the column may be null."""
    named = (column.partition(":") for column in columns.split())
    return StructType([StructField(name, _TYPES[kind.rstrip("?")], kind.endswith("?")) for name, _, kind in named])


# ----------------------------------------------------------------------------------------- a history, one row per timer
PUBLISH_MS = "publish_ms"  # send time of the timer, UTC milliseconds
DUE_MS = "due_ms"  # due time of the timer, UTC milliseconds; not before the send time
SIZE_BYTES = "size_bytes"  # size of the payload; 0: unknown
KEY = "key"  # the partition key, or null
TOPIC = "topic"  # the due topic of the timer; empty if the history has no topics
HISTORY_SCHEMA = schema_of("publish_ms:long due_ms:long size_bytes:long key:text? topic:text")
"""A normalised history: sound rows only, in the order of these columns."""
HISTORY_COLUMNS = tuple(HISTORY_SCHEMA.fieldNames())
# --------------------------------------------------------------------- an assessed history, with reasons and remarks
REASON = "reason"  # the reason why the row is quarantined (`read.REASONS`); null for a sound row
REMARK = "remark"  # a defect of a row that is used all the same (`read.REMARKS`); usually null
RAW = "raw"  # the original values of a row with a reason or a remark, as readable JSON text; null for all other rows
ASSESSED_SCHEMA = schema_of(
    "publish_ms:long? due_ms:long? size_bytes:long? key:text? topic:text? reason:text? remark:text? raw:text?"
)
"""Every row of a history, with the reason against it; null values only in rows with a reason."""
# ----------------------------------------------------------------------------------- cells: one row per cell of a topic
LEVEL, COUNT = "level", "count"
_SPANS = tuple(f"{name}_{end}_ms" for name in ("publish", "delay", "due") for end in ("min", "max"))
FACTS = (COUNT, *_SPANS, SIZE_BYTES)
"""The stored facts of a cell, in this order, named like the attributes of `cells.Cells`; its slot and bucket follow."""
CELLS_SCHEMA = schema_of(f"topic:text level:int {' '.join(f'{name}:long' for name in FACTS)}")
"""Rows of a topic are of a single level; a file of a statistic has these columns too."""
TASK = "task"  # the task that made a row


def rows_by_topic(topics: pa.ChunkedArray) -> tuple[list[str], Iterator[NDArray[np.int64] | slice]]:
    """Return the topics of some rows, and for each topic in turn an index of its rows, computed on request."""
    encoded = topics.combine_chunks().dictionary_encode()
    names = encoded.dictionary.to_pylist()
    return names, _rows(encoded.indices.to_numpy(), len(names))


def _rows(codes: NDArray[np.int64], names: int) -> Iterator[NDArray[np.int64] | slice]:
    if names <= 1:
        yield from [slice(None)] * names
        return
    # Narrow numbers are sorted by radix, several times faster.
    order = np.argsort(codes.astype(np.uint16) if names < 1 << 16 else codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=names))
    yield from np.split(order, ends[:-1])

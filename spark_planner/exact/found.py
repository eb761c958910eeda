"""Results of a counting pass: rows of a DataFrame on Spark, and gap counts on the driver."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from timewheel.spark_planner.exact.grid import Grid
from timewheel.spark_planner.exact.ranges import Changes, Part, Place, stitched
from timewheel.spark_planner.exact.replay_result import DuePartition, GapCounts, PartitionGaps
from timewheel.spark_planner.history.columns import TOPIC

__all__ = [
    "FOUND_ARROW",
    "FOUND_SCHEMA",
    "HOPS",
    "HOPS_MAX",
    "NUMBER",
    "Found",
    "found_batch",
    "found_rows",
    "gap_counts",
    "one_row",
]

NUMBER = "number"
"""Number of the plan."""
PLACE, HOPS, HOPS_MAX = "place", "hops", "hops_max"

FOUND_SCHEMA = StructType(
    [
        StructField(NUMBER, IntegerType(), nullable=False),
        StructField(PLACE, IntegerType(), nullable=False),
        StructField(TOPIC, StringType(), nullable=False),
        StructField("interval", LongType(), nullable=False),
        StructField("partition", IntegerType(), nullable=False),
        StructField("entries", LongType(), nullable=False),
        StructField(HOPS, LongType(), nullable=False),
        StructField(HOPS_MAX, LongType(), nullable=False),
        StructField("part", BinaryType(), nullable=True),
    ]
)
"""A due partition of one place; places ascend with positions. Hops are those of the whole place, stored in one of its
rows. ``part`` is a `Part` in bytes; null: only entries were counted.
"""
FOUND_ARROW = to_arrow_schema(FOUND_SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Found:
    """A row of `FOUND_SCHEMA` on the driver."""

    number: int
    place: int
    due: DuePartition
    entries: int
    hops: int
    hops_max: int
    part: Part | None


def gap_counts(grid: Grid, found: Sequence[Found]) -> GapCounts:
    """Join the parts of each due partition."""
    parts: defaultdict[DuePartition, list[Part]] = defaultdict(list)
    for row in sorted(found, key=_position):
        assert row.part is not None, "a pass that counts hands on parts"
        parts[row.due].append(row.part)
    return GapCounts(
        grid=grid,
        partitions=tuple(
            PartitionGaps(due=due, entries=sum(part.entries for part in own), changes=stitched(grid, own))
            for due, own in sorted(parts.items())
        ),
    )


def _position(row: Found) -> tuple[int, Place]:
    return row.place, (row.part and row.part.first_place) or (0, 0)


def found_rows(table: pa.Table) -> list[Found]:
    """Read the rows of `FOUND_SCHEMA` on the driver."""
    return [
        Found(
            number=row[NUMBER],
            place=row[PLACE],
            due=DuePartition(topic=row[TOPIC], interval=row["interval"], partition=row["partition"]),
            entries=row["entries"],
            hops=row[HOPS],
            hops_max=row[HOPS_MAX],
            part=None if row["part"] is None else _part_of(row["part"]),
        )
        for row in table.to_pylist()
    ]


def found_batch(
    number: int,
    place: int,
    due: DuePartition,
    entries: int,
    part: Part | None,
    *,
    hops: int = 0,
    hops_max: int = 0,
) -> pa.RecordBatch:
    """Build a row of `FOUND_SCHEMA`."""
    packed = None if part is None else _bytes_of(part)
    return one_row(FOUND_ARROW, number, place, due.topic, due.interval, due.partition, entries, hops, hops_max, packed)


def one_row(schema: pa.Schema, *values: Any) -> pa.RecordBatch:
    """Build a batch of one row."""
    arrays = [pa.array([value], kind.type) for value, kind in zip(values, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _bytes_of(part: Part) -> bytes:
    changes = part.changes
    first, last = part.first_place or (-1, -1), part.last_place or (-1, -1)
    head = [part.first_ms, part.last_ms, part.greatest_ms, *first, *last, len(part.border_ms), len(changes.index)]
    arrays = (part.border_ms, part.border_until_ms, changes.index, changes.begun, changes.ended)
    return np.concatenate([np.array([part.entries, *head], np.int64), *arrays]).astype("<i8").tobytes()


def _part_of(data: bytes) -> Part:
    numbers = np.frombuffer(data, "<i8").astype(np.int64, copy=False)
    entries, first_ms, last_ms, greatest_ms, *places, borders, changes = numbers[:10].tolist()
    sizes = np.cumsum([10, borders, borders, changes, changes])
    border_ms, border_until_ms, index, begun, ended = np.split(numbers, sizes)[1:]
    has_places = places[0] >= 0
    return Part(
        entries=entries,
        first_ms=first_ms,
        last_ms=last_ms,
        greatest_ms=greatest_ms,
        first_place=(places[0], places[1]) if has_places else None,
        last_place=(places[2], places[3]) if has_places else None,
        border_ms=border_ms,
        border_until_ms=border_until_ms,
        changes=Changes(index=index, begun=begun, ended=ended),
    )

"""Pieces: stretches of a topic's sends in order of publish time, each a row of a DataFrame.

A row holds three packed arrays in bytes, and the facts that the driver needs. So half a million sends go through Spark
as two rows, and the cost of a pass over a stored history is almost only the counting. The place of a piece in the input
is stored in the piece, so that the result does not depend on the task that reads it later.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import TaskContext
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from timewheel.core.keys import java_string_hash
from timewheel.spark_planner.exact.packing import (
    packed_ascending,
    packed_spans,
    unpacked_ascending,
    unpacked_spans,
)
from timewheel.spark_planner.history.columns import DUE_MS, KEY, PUBLISH_MS, TOPIC
from timewheel.spark_planner.history.keys import LEAST_SHARE
from timewheel.spark_planner.history.topics import rows_by_topic

__all__ = [
    "NOTES",
    "NO_KEY",
    "PIECE",
    "PIECES_ARROW",
    "PIECES_SCHEMA",
    "PIECE_SENDS",
    "SOURCE",
    "TASK",
    "Piece",
    "Sends",
    "key_hashes",
    "piece_batch",
    "piece_of",
    "pieces",
    "repeated",
    "rows_of",
    "sends_of",
]

Integers = NDArray[np.int64]

PIECE_SENDS = 1 << 18
"""Sends of a piece. A piece and its numpy arrays take 20 MB of a task."""
MARKS = 64
"""Sends of a piece that the driver receives, evenly over the piece: these determine the chunks of time."""
NO_KEY = -1

TASK, PIECE = "task", "piece"
"""Columns: place of a piece in the input. Pieces of a lower task come before, and in a task pieces of a lower number.
"""
SOURCE = "source"
REPEATED = "repeated"
"""Column: number of a piece's sends that repeat another send in send time, due time and key."""
HEAVY = "heavy"
"""Column: heavy keys of a piece as read, with their numbers of sends: JSON; null: none, or already reported."""
FIRST_MS, LAST_MS, LAST_DUE_MS, SENDS, MARKED = "first_ms", "last_ms", "last_due_ms", "sends", "marked"
KEY_HASH, DELAY_MS = "key_hash", "delay_ms"

PIECES_SCHEMA = StructType(
    [
        StructField(TOPIC, StringType(), nullable=False),
        StructField(TASK, LongType(), nullable=False),
        StructField(PIECE, IntegerType(), nullable=False),
        StructField(FIRST_MS, LongType(), nullable=False),
        StructField(LAST_MS, LongType(), nullable=False),
        StructField(LAST_DUE_MS, LongType(), nullable=False),
        StructField(SENDS, LongType(), nullable=False),
        StructField(MARKED, BinaryType(), nullable=False),
        StructField(PUBLISH_MS, BinaryType(), nullable=False),
        StructField(DELAY_MS, BinaryType(), nullable=False),
        StructField(KEY_HASH, BinaryType(), nullable=False),
        StructField(HEAVY, StringType(), nullable=True),
        StructField(REPEATED, LongType(), nullable=False),
    ]
)
"""A piece: times are packed (`packing`), hashes of keys are 32-bit integers, empty if no send has a key."""
NOTES = (TOPIC, TASK, PIECE, FIRST_MS, LAST_MS, LAST_DUE_MS, SENDS, MARKED, HEAVY, REPEATED)

PIECES_ARROW = to_arrow_schema(PIECES_SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sends:
    """Sends of a topic, in order of publish time; sends of the same millisecond in the order of the input.

    Args:
        publish_ms: Send time of each, UTC milliseconds.
        due_ms: Due time of each, UTC milliseconds.
        key_hash: Java's hash of each key with the sign bit cleared; `NO_KEY`: no key. None: no send has a key.
    """

    publish_ms: Integers
    due_ms: Integers
    key_hash: Integers | None

    def __len__(self) -> int:
        return len(self.publish_ms)

    def at(self, index: Any) -> Sends:
        """Select sends by index."""
        key_hash = None if self.key_hash is None else self.key_hash[index]
        return Sends(publish_ms=self.publish_ms[index], due_ms=self.due_ms[index], key_hash=key_hash)

    def in_order(self) -> Sends:
        """Return the sends in order of publish time; ordered sends are returned as they are."""
        if bool((np.diff(self.publish_ms) >= 0).all()):
            return self
        return self.at(np.argsort(self.publish_ms, kind="stable"))

    @classmethod
    def joined(cls, several: Sequence[Sends]) -> Sends:
        """Concatenate several sends."""
        if len(several) == 1:
            return several[0]
        keyed = any(sends.key_hash is not None for sends in several)
        return cls(
            publish_ms=np.concatenate([sends.publish_ms for sends in several]),
            due_ms=np.concatenate([sends.due_ms for sends in several]),
            key_hash=np.concatenate([sends.key_hashes() for sends in several]) if keyed else None,
        )

    def key_hashes(self) -> Integers:
        """Return `key_hash`, filled with `NO_KEY` if it is None."""
        return np.full(len(self), NO_KEY, np.int64) if self.key_hash is None else self.key_hash


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The facts about a piece that the driver needs.

    Args:
        topic: Topic of the sends.
        place: (task, number in the task): the order of the input.
        first_ms: First publish time.
        last_ms: Last publish time.
        last_due_ms: Latest due time.
        sends: Number of sends.
        marks: (publish, due) of some sends, evenly over the piece: an array of two rows.
        heavy: The heaviest keys of the piece, as read.
        repeated: Sends that repeat an earlier send in send time, due time and key.
    """

    topic: str
    place: tuple[int, int]
    first_ms: int
    last_ms: int
    last_due_ms: int
    sends: int
    marks: Integers
    heavy: tuple[tuple[str, int], ...] = ()
    repeated: int = 0


def piece_of(row: Mapping[str, Any]) -> Piece:
    """Read a piece's facts from the columns `NOTES`."""
    return Piece(
        topic=row[TOPIC],
        place=(row[TASK], row[PIECE]),
        first_ms=row[FIRST_MS],
        last_ms=row[LAST_MS],
        last_due_ms=row[LAST_DUE_MS],
        sends=row[SENDS],
        marks=np.frombuffer(row[MARKED], "<i8").reshape(2, -1),
        heavy=() if row[HEAVY] is None else tuple((key, sends) for key, sends in json.loads(row[HEAVY])),
        repeated=row[REPEATED],
    )


def sends_of(row: Mapping[str, Any]) -> Sends:
    """Read the sends of a row of `PIECES_SCHEMA`."""
    key_hash = row[KEY_HASH]
    publish_ms = unpacked_ascending(memoryview(row[PUBLISH_MS]))
    return Sends(
        publish_ms=publish_ms,
        due_ms=publish_ms + unpacked_spans(memoryview(row[DELAY_MS])),
        key_hash=np.frombuffer(key_hash, "<i4").astype(np.int64) if key_hash.size else None,
    )


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Iterate over the rows of a batch; arrays in bytes are not copied."""
    columns = {name: batch.column(name) for name in batch.schema.names}
    for index in range(batch.num_rows):
        yield {
            name: column[index].as_buffer() if pa.types.is_binary(column.type) else column[index].as_py()
            for name, column in columns.items()
        }


def pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Convert rows of a history to pieces."""
    context = TaskContext.get()
    task, number = (0 if context is None else context.partitionId()), 0
    for table in _buffered(batches):
        for topic, sends, heavy in _by_topic(table):
            ordered = sends.in_order()
            yield piece_batch(topic, (task, number), ordered, heavy, repeated(ordered))
            number += 1


def _buffered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Buffer as many rows as fit into a piece, all of the same source."""
    waiting: list[pa.RecordBatch] = []
    rows, source = 0, None
    for batch in batches:
        for part, own in _by_source(batch):
            if waiting and (rows + part.num_rows > PIECE_SENDS or own != source):
                yield pa.Table.from_batches(waiting)
                waiting, rows = [], 0
            waiting.append(part)
            rows, source = rows + part.num_rows, own
    if waiting:
        yield pa.Table.from_batches(waiting)


def _by_source(batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, int]]:
    if not batch.num_rows:
        return
    if SOURCE not in batch.schema.names:
        yield batch, 0
        return
    source = batch.column(SOURCE).to_numpy()
    cuts = [0, *(np.flatnonzero(source[1:] != source[:-1]) + 1).tolist(), batch.num_rows]
    for low, high in pairwise(cuts):
        yield batch.slice(low, high - low), int(source[low])


def _by_topic(table: pa.Table) -> Iterator[tuple[str, Sends, str | None]]:
    sends = Sends(
        publish_ms=table[PUBLISH_MS].to_numpy().astype(np.int64, copy=False),
        due_ms=table[DUE_MS].to_numpy().astype(np.int64, copy=False),
        key_hash=key_hashes(table[KEY]),
    )
    names, rows_of_each = rows_by_topic(table[TOPIC])
    for name, rows in zip(names, rows_of_each, strict=True):
        yield name, sends.at(rows), None if sends.key_hash is None else heavy_keys(_rows(table[KEY], rows))


def _rows(column: pa.ChunkedArray, rows: Integers | slice) -> pa.ChunkedArray:
    return column if isinstance(rows, slice) else column.take(pa.array(rows))


def heavy_keys(keys: pa.ChunkedArray) -> str | None:
    """Return the keys with `LEAST_SHARE` of these sends or more, in the format of `HEAVY`; None: there are none."""
    counts = keys.drop_null().value_counts()
    least = max(LEAST_SHARE * len(keys), 2.0)
    heavy = counts.take(np.flatnonzero(counts.field("counts").to_numpy() >= least)).to_pylist()
    # An empty key counts as no key, as in the producer.
    return json.dumps([(one["values"], one["counts"]) for one in heavy if one["values"]]) if heavy else None


def key_hashes(keys: pa.ChunkedArray) -> Integers | None:
    """Compute Java's hash of each key; an empty key counts as no key, as in the producer."""
    if keys.null_count == len(keys):
        return None
    encoded = keys.combine_chunks().dictionary_encode()
    hashes = [java_string_hash(key) if key else NO_KEY for key in encoded.dictionary.to_pylist()]
    table = np.array([*hashes, NO_KEY], np.int64)
    found: Integers = table[encoded.indices.fill_null(len(hashes)).to_numpy(zero_copy_only=False)]
    return found


def repeated(sends: Sends) -> int:
    """Count the sends that repeat another send in send time, due time and key.

    Args:
        sends: In order. Keys are compared by hash.
    """
    together = np.diff(sends.publish_ms) == 0
    # Only sends of the same millisecond can be equal: usually few, and quickly sorted.
    some = np.flatnonzero(np.r_[together, False] | np.r_[False, together])
    if not len(some):
        return 0
    columns = [sends.publish_ms[some], sends.due_ms[some], sends.key_hashes()[some]]
    order = np.lexsort(columns[::-1])
    same = np.ones(len(some) - 1, np.bool_)
    for column in columns:
        same &= np.diff(column[order]) == 0
    return int(same.sum())


def piece_batch(
    topic: str, place: tuple[int, int], sends: Sends, heavy: str | None = None, repeats: int = 0
) -> pa.RecordBatch:
    some = np.unique(np.linspace(0, len(sends) - 1, min(MARKS, len(sends))).astype(np.int64))
    row: dict[str, Any] = {
        TOPIC: topic,
        TASK: place[0],
        PIECE: place[1],
        FIRST_MS: int(sends.publish_ms[0]),
        LAST_MS: int(sends.publish_ms[-1]),
        LAST_DUE_MS: int(sends.due_ms.max()),
        SENDS: len(sends),
        MARKED: np.stack([sends.publish_ms[some], sends.due_ms[some]]).astype("<i8").tobytes(),
        PUBLISH_MS: packed_ascending(sends.publish_ms),
        DELAY_MS: packed_spans(sends.due_ms - sends.publish_ms),
        KEY_HASH: b"" if sends.key_hash is None else sends.key_hash.astype("<i4").tobytes(),
        HEAVY: heavy,
        REPEATED: repeats,
    }
    return pa.RecordBatch.from_pylist([row], schema=PIECES_ARROW)

"""Reads a history: one pass over its rows makes its statistic and its sends, stored in order for every counting pass.

A piece is a stretch of a topic's sends in order of publish time, a row of a DataFrame: three packed arrays in bytes,
and the facts that the driver needs. So half a million sends go through Spark as two rows, and the cost of a pass over a
stored history is almost only the counting. The place of a piece in the input is stored in the piece, so that the result
does not depend on the task that reads it later.

Consecutive times differ by little, and delays are far shorter than the time since 1970: a packed send takes 6 bytes
instead of 16. Each array is packed by itself, so that a long delay only enlarges its own piece.

To extend a history, a stretch is cut out of the pieces in place, and its copies get places of their own behind all
sends. So nothing is sorted, and no send reaches the driver.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that every user of PySpark knows
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StructField, StructType

from timewheel.core.durations import DAY_MS
from timewheel.core.names import java_string_hash

from ..history.columns import (
    DUE_MS,
    KEY,
    PUBLISH_MS,
    RAW,
    REASON,
    REMARK,
    SIZE_BYTES,
    TASK,
    TOPIC,
    rows_by_topic,
    schema_of,
)
from ..history.keys import LEAST_SHARE, KeyShares
from ..history.read import SPARK_ERRORS, unreadable
from ..summary.cells import CELL_LIMIT, LEVELS, Cells, Integers
from ..summary.statistic import PART, PARTS_ARROW, PARTS_SCHEMA, TOPIC_LIMIT, Gathered, Statistic, gathered_from
from ..summary.survey import FINEST_STEP_MS, DailyGaps

WIDTHS = (1, 2, 4, 8)  # bytes of a number; the first packed byte is the width


def packed_spans(values: Integers) -> bytes:
    """Pack numbers that are not negative."""
    most = int(values.max(initial=0))
    width = next(width for width in WIDTHS if most < 1 << (8 * width - (width == WIDTHS[-1])))
    return bytes([width]) + values.astype(f"<u{width}").tobytes()


def unpacked_spans(packed: memoryview) -> Integers:
    return np.frombuffer(packed, f"<u{packed[0]}", offset=1).astype(np.int64)


def packed_ascending(values: Integers) -> bytes:
    """Pack an ascending sequence of at least one number; equal numbers are allowed."""
    return values[:1].astype("<i8").tobytes() + packed_spans(np.diff(values))


def unpacked_ascending(packed: memoryview) -> Integers:
    values = np.empty((len(packed) - 9) // packed[8] + 1, np.int64)
    values[0] = np.frombuffer(packed, "<i8", count=1)[0]
    np.cumsum(np.frombuffer(packed, f"<u{packed[8]}", offset=9), dtype=np.int64, out=values[1:])
    values[1:] += values[0]
    return values


PIECE_SENDS = 1 << 18  # sends of a piece. A piece and its numpy arrays take 20 MB of a task.
MARKS = 64  # sends of a piece that the driver receives, evenly over the piece: these determine the chunks of time
FEW_TOPICS = 64
"""Most topics whose pieces are made row by row. More topics that take turns in the rows make tiny pieces: these have a
single mark each, are never described to the driver, and are joined to pieces of whole topics.
"""
NO_KEY = -1
PIECE = "piece"
"""Columns `TASK` and this: place of a piece in the input. Pieces of a lower task come before, and in a task pieces of a
lower number.
"""
SOURCE = "source"
REPEATED = "repeated"  # column: number of a piece's sends that repeat another send in send time, due time and key
HEAVY = "heavy"
"""Column: heavy keys of a piece as read, with their numbers of sends: JSON; null: none, or already reported."""
FIRST_MS, LAST_MS, LAST_DUE_MS, MARKED = "first_ms", "last_ms", "last_due_ms", "marked"
SENDS, KEYED = "sends", "keyed"  # columns: number of a piece's sends, and of those with a key
KEY_HASH, DELAY_MS = "key_hash", "delay_ms"
PIECES_SCHEMA = schema_of(
    "topic:text task:long piece:int first_ms:long last_ms:long last_due_ms:long sends:long keyed:long "
    "marked:bytes publish_ms:bytes delay_ms:bytes key_hash:bytes heavy:text? repeated:long"
)
"""A piece, packed (`packed_sends`); hashes of keys are empty if no send has a key."""
NOTES = (TOPIC, TASK, PIECE, FIRST_MS, LAST_MS, LAST_DUE_MS, SENDS, KEYED, MARKED, HEAVY, REPEATED)
PIECES_ARROW = to_arrow_schema(PIECES_SCHEMA)
_READ_SCHEMA = StructType(
    [StructField(one.name, one.dataType) for one in PIECES_SCHEMA] + [StructField(PART, BinaryType())]
)
"""A piece or, in a task's last row, its `PART`; the other columns are null."""
_READ_ARROW = to_arrow_schema(_READ_SCHEMA)


@dataclass(frozen=True, slots=True, eq=False)
class Sends:
    """Sends of a topic, in order of publish time; sends of the same millisecond in the order of the input."""

    publish_ms: Integers  # send time of each, UTC milliseconds
    due_ms: Integers  # due time of each, UTC milliseconds
    # Java's hash of each key with the sign bit cleared; `NO_KEY`: no key. None: no send has a key.
    key_hash: Integers | None

    def __len__(self) -> int:
        return len(self.publish_ms)

    def at(self, index: Any) -> Sends:
        key_hash = None if self.key_hash is None else self.key_hash[index]
        return Sends(publish_ms=self.publish_ms[index], due_ms=self.due_ms[index], key_hash=key_hash)

    def in_order(self) -> Sends:
        """Return the sends in order of publish time; ordered sends are returned as they are."""
        if bool((np.diff(self.publish_ms) >= 0).all()):
            return self
        return self.at(np.argsort(self.publish_ms, kind="stable"))

    @classmethod
    def joined(cls, several: Sequence[Sends]) -> Sends:
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
    """The facts about a piece that the driver needs."""

    topic: str  # topic of the sends
    place: tuple[int, int]  # (task, number in the task): the order of the input
    first_ms: int  # first publish time
    last_ms: int  # last publish time
    last_due_ms: int  # latest due time
    sends: int  # number of sends
    keyed: int  # number of sends with a key
    marks: Integers  # (publish, due) of some sends, evenly over the piece: an array of two rows
    heavy: tuple[tuple[str, int], ...] = ()  # the heaviest keys of the piece, as read
    repeated: int = 0  # sends that repeat an earlier send in send time, due time and key


def piece_of(row: Mapping[str, Any]) -> Piece:
    return Piece(
        topic=row[TOPIC],
        place=(row[TASK], row[PIECE]),
        first_ms=row[FIRST_MS],
        last_ms=row[LAST_MS],
        last_due_ms=row[LAST_DUE_MS],
        sends=row[SENDS],
        keyed=row[KEYED],
        marks=np.frombuffer(row[MARKED], "<i8").reshape(2, -1),
        heavy=heavy_of(row),
        repeated=row[REPEATED],
    )


def heavy_of(row: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    return () if row[HEAVY] is None else tuple((key, sends) for key, sends in json.loads(row[HEAVY]))


def sends_of(row: Mapping[str, Any]) -> Sends:
    key_hash = row[KEY_HASH]
    publish_ms = unpacked_ascending(memoryview(row[PUBLISH_MS]))
    return Sends(
        publish_ms=publish_ms,
        due_ms=publish_ms + unpacked_spans(memoryview(row[DELAY_MS])),
        key_hash=unpacked_spans(memoryview(key_hash)) + NO_KEY if key_hash.size else None,
    )


def packed_sends(sends: Sends) -> dict[str, bytes]:
    return {
        PUBLISH_MS: packed_ascending(sends.publish_ms),
        DELAY_MS: packed_spans(sends.due_ms - sends.publish_ms),
        KEY_HASH: b"" if sends.key_hash is None else packed_spans(sends.key_hash - NO_KEY),
    }


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Iterate over the rows of a batch; arrays in bytes are not copied."""
    columns = {name: batch.column(name) for name in batch.schema.names}
    for index in range(batch.num_rows):
        yield {
            name: column[index].as_buffer() if pa.types.is_binary(column.type) else column[index].as_py()
            for name, column in columns.items()
        }


def _reading(none: Gathered | None) -> Any:
    """Map rows of `columns.ASSESSED_SCHEMA` to pieces, and to a task's cells and counts; None: sound rows to pieces."""
    # Topics that take turns share a longer buffer, up to 2 million rows: 160 MB of a task.
    buffer_rows = PIECE_SENDS if none is None or none.topic_limit <= FEW_TOPICS else 8 * PIECE_SENDS

    def kernel(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        task, number = (0 if context is None else context.partitionId()), 0
        found = None if none is None else replace(none, cells={}, quarantined={}, samples={})
        for table in _buffered(batches if found is None else map(found.sound, batches), buffer_rows):
            topics, rows_of_each = rows_by_topic(table[TOPIC])
            # Before anything is made for each: a column of ids has a name per row. No further row can help.
            if found is not None and found.has_too_many_topics(topics):
                break
            marks = MARKS if len(topics) <= FEW_TOPICS else 1
            sends = Sends(
                publish_ms=table[PUBLISH_MS].to_numpy().astype(np.int64, copy=False),
                due_ms=table[DUE_MS].to_numpy().astype(np.int64, copy=False),
                key_hash=key_hashes(table[KEY]),
            )
            size_bytes = table[SIZE_BYTES].to_numpy() if found is not None else None
            level, cells, pieces = 0 if found is None else found.level, {}, []
            for topic, rows in zip(topics, rows_of_each, strict=True):
                own, heavy = sends.at(rows), None
                if size_bytes is not None:
                    cells[topic] = Cells.of_timers(own.publish_ms, own.due_ms, size_bytes[rows], level=level)
                ordered = own.in_order()
                if sends.key_hash is not None:
                    keys = table[KEY]
                    heavy = heavy_keys(keys if isinstance(rows, slice) else keys.take(pa.array(rows)))
                for low in range(0, len(ordered), PIECE_SENDS):
                    part = ordered.at(slice(low, low + PIECE_SENDS))
                    pieces.append(piece_row(topic, (task, number), part, heavy, repeated(part), marks))
                    heavy, number = None, number + 1
            yield batch_of(pieces, _READ_ARROW)
            if found is not None:
                found.add_cells(cells)
        if found is not None:
            yield batch_of([{TASK: task, PART: found.packed()}], _READ_ARROW)

    return kernel


def _buffered(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[pa.Table]:
    """Buffer at most so many rows, all of the same source."""
    waiting: list[pa.RecordBatch] = []
    rows, source = 0, 0
    for batch in batches:
        sources, cuts = np.zeros(batch.num_rows, np.int64), [0, batch.num_rows]
        if SOURCE in batch.schema.names:
            sources = batch.column(SOURCE).to_numpy()
            cuts = [0, *(np.flatnonzero(sources[1:] != sources[:-1]) + 1).tolist(), batch.num_rows]
        for low, high in pairwise(cuts):
            if low == high:
                continue
            if waiting and (rows + high - low > most or sources[low] != source):
                yield pa.Table.from_batches(waiting)
                waiting, rows = [], 0
            waiting.append(batch.slice(low, high - low))
            rows, source = rows + high - low, sources[low]
    if waiting:
        yield pa.Table.from_batches(waiting)


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
    """Count the sends that repeat another send in send time, due time and key."""
    # Keys are compared by hash.
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


def piece_row(
    topic: str,
    place: tuple[int, int],
    sends: Sends,
    heavy: str | None = None,
    repeats: int = 0,
    marks: int = MARKS,
) -> dict[str, Any]:
    """Build a row of `PIECES_SCHEMA`."""
    some = np.unique(np.linspace(0, len(sends) - 1, min(marks, len(sends))).astype(np.int64))
    return {
        TOPIC: topic,
        TASK: place[0],
        PIECE: place[1],
        FIRST_MS: int(sends.publish_ms[0]),
        LAST_MS: int(sends.publish_ms[-1]),
        LAST_DUE_MS: int(sends.due_ms.max()),
        SENDS: len(sends),
        KEYED: 0 if sends.key_hash is None else int(np.count_nonzero(sends.key_hash != NO_KEY)),
        MARKED: np.stack([sends.publish_ms[some], sends.due_ms[some]]).astype("<i8").tobytes(),
        **packed_sends(sends),
        HEAVY: heavy,
        REPEATED: repeats,
    }


def batch_of(rows: Sequence[Mapping[str, Any]], schema: pa.Schema = PIECES_ARROW) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=schema)


SENDS_PER_CHUNK = 500_000  # a task sorts a chunk of time of about this many sends
_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
BATCH_BYTES = 1 << 25  # about eight pieces


class Marks(NamedTuple):
    """A sample of a topic's sends."""

    publish_ms: Integers  # send time of each
    due_ms: Integers  # due time of each
    weights: NDArray[np.float64]  # number of sends that each represents


@dataclass(frozen=True, kw_only=True, eq=False)
class CachedSends:
    """The stored sends of a history.

    Args:
        frame: DataFrame of `PIECES_SCHEMA`.
        pieces: Pieces of the DataFrame, in order of time; pieces of a topic do not overlap.
        was_sorted: True if the history was not in order, and Spark had to sort it.
        stored: The DataFrame in Spark's cache, of which ``frame`` are the pieces.
    """

    frame: DataFrame
    pieces: tuple[Piece, ...]
    was_sorted: bool
    stored: DataFrame

    def of(self, *topics: str) -> CachedSends:
        pieces = tuple(piece for piece in self.pieces if piece.topic in topics)
        frame = self.frame.where(F.col(TOPIC).isin(list(topics)))
        return replace(self, frame=frame, pieces=pieces)

    @cached_property
    def keys(self) -> Mapping[str, KeyShares]:
        """By topic, the heaviest keys."""
        return {
            topic: KeyShares.merged(KeyShares(piece.sends, piece.heavy) for piece in own)
            for topic, own in _pieces_by_topic(self.pieces).items()
        }

    @cached_property
    def keyed(self) -> Mapping[str, bool]:
        """By topic, whether every send has a key."""
        return {
            topic: all(piece.keyed == piece.sends for piece in own)
            for topic, own in _pieces_by_topic(self.pieces).items()
        }

    @cached_property
    def ranks(self) -> Mapping[tuple[str, int, int], int]:
        """The rank of each piece in time, by topic and place: tasks need not be in order of time."""
        return {(piece.topic, *piece.place): rank for rank, piece in enumerate(self.pieces)}

    @cached_property
    def sends_before(self) -> tuple[int, ...]:
        """Number of earlier sends of the same topic for each piece, by rank."""
        so_far: dict[str, int] = {}
        before: list[int] = []
        for piece in self.pieces:
            before.append(so_far.get(piece.topic, 0))
            so_far[piece.topic] = before[-1] + piece.sends
        return tuple(before)

    @cached_property
    def marks(self) -> Mapping[str, Marks]:
        """By topic, a sample of its sends."""
        return marks_of(self.pieces)

    def repeated(self, topic: str) -> int:
        """Count a topic's sends that repeat another send in send time, due time and key: duplicates or chance."""
        return sum(piece.repeated for piece in self.pieces if piece.topic == topic)

    def forget(self) -> None:
        """Release the cache."""
        self.stored.unpersist()


def read(
    history: DataFrame, *, cell_limit: int = CELL_LIMIT, topic_limit: int = TOPIC_LIMIT, source: str = "given"
) -> tuple[Statistic, DataFrame]:
    """Read every row of a history once.

    Args:
        history: `columns.ASSESSED_SCHEMA`.
        cell_limit: See `job.survey`.
        topic_limit: See `job.survey`.
        source: The history's name for errors.

    Returns:
        The statistic, and the sends for `in_order`, in Spark's cache. The same rows give the same statistic with any
        storage and partitioning.

    Raises:
        HistoryUnreadable: A file is damaged or was removed.
        PlannerError: See `Gathered.checked`.
    """
    # A task makes few cells of many topics. `cells_of` makes finer cells of stored sends.
    finest = 0 if topic_limit <= FEW_TOPICS else len(LEVELS) - 1
    none = Gathered(cell_limit=cell_limit, topic_limit=topic_limit, finest=finest)
    # Of a row in quarantine only the reason and the text are used, and its topic may be of any length.
    topic = F.when(F.col(REASON).isNull(), F.col(TOPIC)).alias(TOPIC)
    stored = _stored(history.select(PUBLISH_MS, DUE_MS, SIZE_BYTES, KEY, topic, REASON, REMARK, RAW), none)
    try:
        parts = stored.where(F.col(PART).isNotNull()).select(TASK, PART)
        parts.count()  # rows are read many at once, parts are gathered a few at a time
        with few_at_once(history.sparkSession):
            return gathered_from(parts, none).checked(), stored
    except Exception as error:
        stored.unpersist()
        if isinstance(error, SPARK_ERRORS) and _DAMAGED in str(error):
            raise unreadable(source, error) from None
        raise


_DAMAGED = "[FAILED_READ_FILE"  # start of Spark's error for a file that it cannot read during a job


_READINGS = count()
"""Number of each reading, which is part of its function: else Spark takes the stored rows of an earlier reading of the
same files, even if these have changed since.
"""


def _stored(wanted: DataFrame, none: Gathered | None) -> DataFrame:
    """Store what `_reading` makes of rows in Spark's cache."""
    if len(wanted.inputFiles()) > 1:
        # Two files may follow each other in a task although the times of a third file lie between theirs: so a piece
        # ends with its file.
        wanted = wanted.withColumn(SOURCE, F.xxhash64(F.input_file_name(), F.input_file_block_start()))
    kernel = _reading(none)
    vars(kernel)["reading"] = next(_READINGS)
    return wanted.mapInArrow(kernel, _READ_SCHEMA).persist()


def keep(history: DataFrame, *, sends_per_chunk: int = SENDS_PER_CHUNK) -> CachedSends:
    """Read a normalised history (`columns.HISTORY_SCHEMA`; sizes are not needed) once, and store its sends in order."""
    return in_order(_stored(history.select(PUBLISH_MS, DUE_MS, KEY, TOPIC), None), sends_per_chunk=sends_per_chunk)


def in_order(
    stored: DataFrame, timers: Mapping[str, int] | None = None, *, sends_per_chunk: int = SENDS_PER_CHUNK
) -> CachedSends:
    """Put stored sends in order.

    Args:
        stored: Result of `read`.
        timers: Number of sends of each topic; None: there are at most `FEW_TOPICS`. Sends of more topics are always
            sorted by topic.
        sends_per_chunk: Approximate number of sends that a task sorts, if the history is not in order.
    """
    frame = stored.where(F.col(PART).isNull()).drop(PART)
    if timers is not None and len(timers) > FEW_TOPICS:
        large = [topic for topic, sends in timers.items() if sends > sends_per_chunk]
        found = noted(frame.where(F.col(TOPIC).isin(large))) if large else ()
    else:
        found = noted(frame)
        # No two pieces of a topic overlap? Sends of the same millisecond are in the order of the input.
        if all(
            (before.last_ms, before.place) < (after.first_ms, after.place)
            for own in _pieces_by_topic(found).values()
            for before, after in pairwise(own)
        ):
            return CachedSends(frame=frame, pieces=found, was_sorted=False, stored=stored)
    with few_at_once(stored.sparkSession):
        sorted_frame = _sorted(frame, marks_of(found), sends_per_chunk).persist()
        cached = CachedSends(frame=sorted_frame, pieces=noted(sorted_frame), was_sorted=True, stored=sorted_frame)
    stored.unpersist()
    return cached


def cells_of(cached: CachedSends, cell_limit: int) -> dict[str, Cells]:
    """Return the cells of stored sends, at most ``cell_limit`` of each topic, without sizes."""
    topics = len({piece.topic for piece in cached.pieces})
    none = Gathered(cell_limit=cell_limit * topics, topic_limit=topics)

    def kernel(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        task, found = (0 if context is None else context.partitionId()), replace(none, cells={})
        for row in (row for batch in batches for row in rows_of(batch)):
            sends = sends_of(row)
            found.add_cells({row[TOPIC]: Cells.of_timers(sends.publish_ms, sends.due_ms, level=found.level)})
        yield batch_of([{TASK: task, PART: found.packed()}], PARTS_ARROW)

    with few_at_once(cached.frame.sparkSession):
        found = gathered_from(cached.frame.mapInArrow(kernel, PARTS_SCHEMA), none).cells
    return {topic: cells.bounded(cell_limit) for topic, cells in found.items()}


@contextmanager
def few_at_once(spark: SparkSession) -> Iterator[None]:
    """Hand pieces to Python a few at a time, although the session may hand over ten thousand rows: all pieces of a
    large file that cannot be split are in one task.
    """
    before = spark.conf.get(_BATCH_BYTES, None)
    spark.conf.set(_BATCH_BYTES, str(BATCH_BYTES))
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_BATCH_BYTES)
        else:
            spark.conf.set(_BATCH_BYTES, before)


def _pieces_by_topic(found: Sequence[Piece]) -> dict[str, list[Piece]]:
    of_topic: dict[str, list[Piece]] = {}
    for piece in found:
        of_topic.setdefault(piece.topic, []).append(piece)
    return of_topic


def marks_of(pieces: Sequence[Piece]) -> dict[str, Marks]:
    marks: dict[str, Marks] = {}
    for topic, own in _pieces_by_topic(pieces).items():
        publish_ms, due_ms = np.concatenate([piece.marks for piece in own], axis=1)
        weights = [np.full(piece.marks.shape[1], piece.sends / piece.marks.shape[1]) for piece in own]
        marks[topic] = Marks(publish_ms=publish_ms, due_ms=due_ms, weights=np.concatenate(weights))
    return marks


def noted(frame: DataFrame) -> tuple[Piece, ...]:
    """Collect the facts about pieces, in order of time; reads the DataFrame into its cache."""
    found = [piece_of(row) for row in frame.select(*NOTES).toArrow().to_pylist()]
    return tuple(sorted(found, key=lambda piece: (piece.first_ms, piece.place, piece.topic)))


def _sorted(frame: DataFrame, marks: Mapping[str, Marks], sends_per_chunk: int) -> DataFrame:
    """Sort the sends into pieces that follow each other: cut at moments, and sorted within each chunk of time."""
    # By topic, the moments at which chunks begin, except the first; a topic without marks is a single chunk.
    borders = {topic: quantile_borders(own.publish_ms, own.weights, sends_per_chunk) for topic, own in marks.items()}
    chunked = StructType([*PIECES_SCHEMA.fields, *schema_of("chunk:long").fields])
    chunked_arrow = to_arrow_schema(chunked)

    def cut(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            is_whole = np.array([topic not in borders for topic in batch.column(TOPIC).to_pylist()], np.bool_)
            whole = batch.filter(pa.array(is_whole))
            chunk = pa.array(np.zeros(len(whole), np.int64))
            yield pa.RecordBatch.from_arrays([*whole.columns, chunk], schema=chunked_arrow)
            for row in rows_of(batch.filter(pa.array(~is_whole))):
                sends, own, heavy = sends_of(row), borders[row[TOPIC]], row[HEAVY]
                cuts = [0, *np.searchsorted(sends.publish_ms, own, "left").tolist(), len(sends)]
                parts = []
                for chunk, (low, high) in enumerate(pairwise(cuts)):
                    if low < high:
                        part = piece_row(row[TOPIC], (row[TASK], row[PIECE]), sends.at(slice(low, high)), heavy)
                        parts.append({**part, "chunk": chunk})
                        heavy = None
                yield batch_of(parts, chunked_arrow)

    def merge(table: pa.Table) -> pa.Table:
        rows = sorted(
            (row for batch in table.to_batches() for row in rows_of(batch)), key=lambda row: (row[TASK], row[PIECE])
        )
        sends = Sends.joined([sends_of(row) for row in rows]).in_order()
        topic, chunk = rows[0][TOPIC], rows[0]["chunk"]
        keys = KeyShares.merged(KeyShares(row[SENDS], heavy_of(row)) for row in rows)
        heavy = json.dumps(keys.heavy) if keys.heavy else None
        # A row for each piece; all pieces of a chunk of time have consecutive places.
        found = []
        for number, low in enumerate(range(0, len(sends), PIECE_SENDS)):
            part = sends.at(slice(low, low + PIECE_SENDS))
            found.append(piece_row(topic, (chunk, number), part, heavy, repeated(part)))
            heavy = None
        return pa.Table.from_batches([batch_of(found)])

    return frame.mapInArrow(cut, chunked).groupBy(TOPIC, "chunk").applyInArrow(merge, PIECES_SCHEMA)


def quantile_borders(at_ms: Integers, weights: NDArray[np.float64], per_chunk: int) -> Integers:
    """Return moments that cut the sends into chunks of about ``per_chunk`` sends, ascending and distinct."""
    order = np.argsort(at_ms, kind="stable")
    reached = np.cumsum(weights[order])
    chunks = max(round(float(reached[-1]) / per_chunk), 1)
    wanted = reached[-1] * np.arange(1, chunks) / chunks
    return np.unique(at_ms[order][np.minimum(np.searchsorted(reached, wanted), len(order) - 1)])


class Stretch(NamedTuple):
    """Sends to be repeated at a later time."""

    from_ms: int  # start of their publish times
    until_ms: int  # end of their publish times, exclusive
    shift_ms: int  # time added to their publish times and due times


def extended(cached: CachedSends, stretches: Mapping[str, Sequence[Stretch]]) -> CachedSends:
    """Return the sends of some topics, followed by the copies of the topic's stretches."""
    # Each shifted stretch begins at the end of the previous one, the first after all sends. The caller releases the
    # cache of the result, and then that of ``cached``, from which it is computed.
    ranks = cached.ranks

    def copies(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for row in (row for batch in batches for row in rows_of(batch)):
            topic, rank, sends = row[TOPIC], ranks[row[TOPIC], row[TASK], row[PIECE]], sends_of(row)
            yield batch_of([piece_row(topic, (0, rank), sends, row[HEAVY])])
            for number, (from_ms, until_ms, shift_ms) in enumerate(stretches[topic], start=1):
                low, high = np.searchsorted(sends.publish_ms, [from_ms, until_ms], "left")
                if low < high:
                    part = sends.at(slice(low, high))
                    later = Sends(part.publish_ms + shift_ms, part.due_ms + shift_ms, part.key_hash)
                    yield batch_of([piece_row(topic, (number, rank), later)])

    with few_at_once(cached.frame.sparkSession):
        own = cached.frame.where(F.col(TOPIC).isin(list(stretches)))
        frame = own.mapInArrow(copies, PIECES_SCHEMA).persist()
        return CachedSends(frame=frame, pieces=noted(frame), was_sorted=cached.was_sorted, stored=frame)


MAX_CHANGES = 2_000_000  # changes of all topics and days together: 50 MB on the driver
MOMENTS_A_DAY = 4_096  # most moments for the timers of a day,
LEAST_MOMENTS = 64  # and fewest moments, for any number of topics and days
_DAY, _MOMENT, _CHANGE = "day", "moment", "change"
_SCHEMA = schema_of("topic:text day:long moment:long change:long")
_ARROW = to_arrow_schema(_SCHEMA)


def daily_gaps(cached: CachedSends) -> dict[str, DailyGaps]:
    """Count the native gaps of every topic on a single partition, by day; without gaps the result has no changes."""
    # The first timer of a piece is not compared with the timer before it: at most one gap per piece is missed.
    step_ms = _step_ms(cached)

    def kernel(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in rows_of(batch):
                sends = sends_of(row)
                found = DailyGaps.of_sends(sends.publish_ms, sends.due_ms, step_ms)
                named = pa.repeat(pa.scalar(row[TOPIC]), len(found))
                yield pa.RecordBatch.from_arrays(
                    [named, *map(pa.array, (found.day, found.moment, found.change))], schema=_ARROW
                )

    summed = (
        cached.frame.mapInArrow(kernel, _SCHEMA)
        .groupBy(TOPIC, _DAY, _MOMENT)
        .agg(F.sum(_CHANGE).alias(_CHANGE))
        .where(F.col(_CHANGE) != 0)
    )
    with few_at_once(cached.frame.sparkSession):
        table = summed.toArrow()
    names, rows_of_each = rows_by_topic(table[TOPIC])
    columns = [np.ascontiguousarray(table[name].to_numpy()) for name in (_DAY, _MOMENT, _CHANGE)]
    found = {}
    for name, rows in zip(names, rows_of_each, strict=True):
        day, moment, change = (column[rows] for column in columns)
        found[name] = DailyGaps.merged([DailyGaps(step_ms=step_ms, day=day, moment=moment, change=change)])
    return {piece.topic: found.get(piece.topic, DailyGaps.none(step_ms)) for piece in cached.pieces}


def _step_ms(cached: CachedSends) -> int:
    """Return the step that bounds the number of stored changes, for histories and delays of any length."""
    days = {
        (piece.topic, day)
        for piece in cached.pieces
        for day in range(piece.first_ms // DAY_MS, piece.last_ms // DAY_MS + 1)
    }
    moments = min(max(MAX_CHANGES // max(len(days), 1), LEAST_MOMENTS), MOMENTS_A_DAY)
    longest_ms = max((piece.last_due_ms - piece.first_ms for piece in cached.pieces), default=0)
    step_ms = FINEST_STEP_MS
    while step_ms * moments < longest_ms:
        step_ms *= 2
    return step_ms

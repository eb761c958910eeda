"""The sends of a history, stored in order: built once from its rows, and read by every counting pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that every user of PySpark knows
from pyspark.sql.types import LongType, StructField, StructType

from timewheel.spark_planner.exact.pieces import (
    NOTES,
    PIECE,
    PIECE_SENDS,
    PIECES_ARROW,
    PIECES_SCHEMA,
    SOURCE,
    TASK,
    Piece,
    Sends,
    piece_batch,
    piece_of,
    pieces,
    repeated,
    rows_of,
    sends_of,
)
from timewheel.spark_planner.history.columns import DUE_MS, KEY, PUBLISH_MS, TOPIC
from timewheel.spark_planner.history.keys import KeyShares

__all__ = ["SENDS_PER_CHUNK", "CachedSends", "few_at_once", "keep", "noted", "quantile_borders"]

Integers = NDArray[np.int64]

SENDS_PER_CHUNK = 500_000
"""A task sorts a chunk of time of about this many sends."""

_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
BATCH_BYTES = 1 << 25
"""About eight pieces."""


class Marks(NamedTuple):
    """A sample of a topic's sends.

    Args:
        publish_ms: Send time of each.
        due_ms: Due time of each.
        weights: Number of sends that each represents.
    """

    publish_ms: Integers
    due_ms: Integers
    weights: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class CachedSends:
    """The stored sends of a history.

    Args:
        frame: DataFrame of `PIECES_SCHEMA`, in Spark's cache.
        pieces: Pieces of the DataFrame, in order of time; pieces of a topic do not overlap.
        was_sorted: True if the history was not in order, and Spark had to sort it.
        keys: By topic, the heaviest keys.
    """

    frame: DataFrame
    pieces: tuple[Piece, ...]
    was_sorted: bool
    keys: Mapping[str, KeyShares]

    def of(self, topic: str) -> CachedSends:
        """Return the sends of one topic."""
        pieces = tuple(piece for piece in self.pieces if piece.topic == topic)
        frame = self.frame.where(F.col(TOPIC) == topic)
        return CachedSends(frame=frame, pieces=pieces, was_sorted=self.was_sorted, keys=self.keys)

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
        return _marks(self.pieces)

    def repeated(self, topic: str) -> int:
        """Count a topic's sends that repeat another send in send time, due time and key: duplicates or chance."""
        return sum(piece.repeated for piece in self.pieces if piece.topic == topic)

    def forget(self) -> None:
        """Release the cache."""
        self.frame.unpersist()


def keep(history: DataFrame, *, sends_per_chunk: int = SENDS_PER_CHUNK) -> CachedSends:
    """Read a history once and store its sends.

    Args:
        history: A normalised history (`columns.HISTORY_SCHEMA`; sizes are not needed).
        sends_per_chunk: Approximate number of sends that a task sorts, if the history is not in order.
    """
    wanted = history.select(PUBLISH_MS, DUE_MS, KEY, TOPIC)
    if len(wanted.inputFiles()) > 1:
        # Two files may follow each other in a task although the times of a third file lie between theirs: so a piece
        # ends with its file.
        wanted = wanted.withColumn(SOURCE, F.xxhash64(F.input_file_name(), F.input_file_block_start()))
    frame = wanted.mapInArrow(pieces, PIECES_SCHEMA).persist()
    found = noted(frame)
    keys = {topic: KeyShares.merged(map(_keys_of, own)) for topic, own in _by_topic(found).items()}
    if _is_in_order(found):
        return CachedSends(frame=frame, pieces=found, was_sorted=False, keys=keys)
    sorted_frame = _sorted(frame, found, sends_per_chunk).persist()
    with few_at_once(history.sparkSession):
        cached = CachedSends(frame=sorted_frame, pieces=noted(sorted_frame), was_sorted=True, keys=keys)
    frame.unpersist()
    return cached


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


def _is_in_order(found: Sequence[Piece]) -> bool:
    """Return whether no two pieces of a topic overlap; pieces come in order of time."""
    # Sends of the same millisecond are in the order of the input.
    return all(
        (before.last_ms, before.place) < (after.first_ms, after.place)
        for own in _by_topic(found).values()
        for before, after in pairwise(own)
    )


def _keys_of(piece: Piece) -> KeyShares:
    return KeyShares(piece.sends, piece.heavy)


def _by_topic(found: Sequence[Piece]) -> dict[str, list[Piece]]:
    of_topic: dict[str, list[Piece]] = {}
    for piece in found:
        of_topic.setdefault(piece.topic, []).append(piece)
    return of_topic


def _marks(found: Sequence[Piece]) -> dict[str, Marks]:
    marks: dict[str, Marks] = {}
    for topic, own in _by_topic(found).items():
        publish_ms, due_ms = np.concatenate([piece.marks for piece in own], axis=1)
        weights = [np.full(piece.marks.shape[1], piece.sends / piece.marks.shape[1]) for piece in own]
        marks[topic] = Marks(publish_ms=publish_ms, due_ms=due_ms, weights=np.concatenate(weights))
    return marks


def noted(frame: DataFrame) -> tuple[Piece, ...]:
    """Collect the facts about pieces, in order of time; reads the DataFrame into its cache."""
    found = [piece_of(row) for row in frame.select(*NOTES).toArrow().to_pylist()]
    return tuple(sorted(found, key=lambda piece: (piece.first_ms, piece.place, piece.topic)))


def _sorted(frame: DataFrame, found: Sequence[Piece], sends_per_chunk: int) -> DataFrame:
    """Sort the sends into pieces that follow each other: cut at moments, and sorted within each chunk of time."""
    # By topic, the moments at which chunks begin, except the first.
    borders = {
        topic: quantile_borders(marks.publish_ms, marks.weights, sends_per_chunk)
        for topic, marks in _marks(found).items()
    }

    def cut(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in rows_of(batch):
                sends, own = sends_of(row), borders[row[TOPIC]]
                cuts = [0, *np.searchsorted(sends.publish_ms, own, "left").tolist(), len(sends)]
                for chunk, (low, high) in enumerate(pairwise(cuts)):
                    if low < high:
                        part = piece_batch(row[TOPIC], (row[TASK], row[PIECE]), sends.at(slice(low, high)))
                        yield part.append_column("chunk", pa.array([chunk], pa.int64()))

    def merge(table: pa.Table) -> pa.Table:
        rows = sorted(
            (row for batch in table.to_batches() for row in rows_of(batch)), key=lambda row: (row[TASK], row[PIECE])
        )
        sends = Sends.joined([sends_of(row) for row in rows]).in_order()
        topic, chunk = rows[0][TOPIC], rows[0]["chunk"]
        # A row for each piece; all pieces of a chunk of time have consecutive places.
        parts = range(0, len(sends), PIECE_SENDS)
        return pa.Table.from_batches(
            [
                piece_batch(topic, (chunk, number), part, repeats=repeated(part))
                for number, part in enumerate(sends.at(slice(low, low + PIECE_SENDS)) for low in parts)
            ],
            PIECES_ARROW,
        )

    chunked = StructType([*PIECES_SCHEMA.fields, StructField("chunk", LongType(), nullable=False)])
    return frame.mapInArrow(cut, chunked).groupBy(TOPIC, "chunk").applyInArrow(merge, PIECES_SCHEMA)


def quantile_borders(at_ms: Integers, weights: NDArray[np.float64], per_chunk: int) -> Integers:
    """Return moments that cut the sends into chunks of about ``per_chunk`` sends, ascending and distinct.

    Args:
        at_ms: Moments of a sample of sends.
        weights: Number of sends that each represents.
        per_chunk: At least 1.
    """
    order = np.argsort(at_ms, kind="stable")
    reached = np.cumsum(weights[order])
    chunks = max(round(float(reached[-1]) / per_chunk), 1)
    wanted = reached[-1] * np.arange(1, chunks) / chunks
    return np.unique(at_ms[order][np.minimum(np.searchsorted(reached, wanted), len(order) - 1)])

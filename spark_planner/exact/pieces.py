"""What a Spark task does with Arrow batches of arrivals: runs, due partitions and turns, in numpy.

A task's rows come in pieces. A **run** is an unbroken stretch of them in order of arrival; rows that a task reads from
sorted files are one run, or a few where it reads several files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from timewheel.spark_planner.exact.distinct import distinct
from timewheel.spark_planner.exact.replay_result import DuePartition
from timewheel.spark_planner.history.columns import TOPIC

__all__ = [
    "MAX_RUNS",
    "ORDER_MS",
    "PARTITION",
    "SOURCE",
    "DueNumbers",
    "OutOfOrder",
    "Piece",
    "Run",
    "TopicNumbers",
    "Turns",
    "integers",
    "pieces_of",
]

Integers = NDArray[np.int64]

ORDER_MS = "order_ms"
"""By what the rows of a task are ordered; rows of the same moment are in order as they come."""
SOURCE = "source"
"""Which piece of which file a row is from, where a frame has that. Two files may follow each other in a task whose
times have a third one between them: so a run ends with its file. bigint."""
PARTITION = "partition"
"""Partition of the due topic; null where it has yet to be found by turns."""

MAX_RUNS = 64
"""Of one task; beyond it the rows are not in order, and sorting is cheaper than stitching."""


@dataclass(slots=True, kw_only=True)
class Run:
    """A stretch in order.

    Args:
        number: Within its task.
        source: See `SOURCE`.
        first_ms: When it begins.
        last_ms: When it ends, so far.
    """

    number: int
    source: int
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some rows of a run, in order."""

    run: Run
    rows: pa.RecordBatch


class OutOfOrder(Exception):
    """A task has more than `MAX_RUNS` runs."""


def pieces_of(batches: Iterable[pa.RecordBatch], *, split: bool = True) -> Iterator[Piece]:
    """The rows cut where the order breaks.

    Args:
        batches: With `ORDER_MS`, not null.
        split: Whether it may break; if not, all of a task is one run, and there need be no `ORDER_MS`.

    Raises:
        OutOfOrder: There are too many runs.
    """
    run: Run | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        if not split:
            run = run or Run(number=0, source=0, first_ms=0, last_ms=0)
            yield Piece(run=run, rows=batch)
            continue
        order_ms = integers(batch, ORDER_MS)
        is_break = order_ms[1:] < order_ms[:-1]
        source = integers(batch, SOURCE) if SOURCE in batch.schema.names else None
        if source is not None:
            is_break |= source[1:] != source[:-1]
        breaks = np.flatnonzero(is_break) + 1
        if len(breaks) > MAX_RUNS:
            raise OutOfOrder
        cuts = [0, *breaks.tolist(), len(order_ms)]
        for low, high in pairwise(cuts):
            own_source = 0 if source is None else int(source[low])
            if run is None or int(order_ms[low]) < run.last_ms or own_source != run.source:
                run = Run(
                    number=run.number + 1 if run else 0, source=own_source, first_ms=int(order_ms[low]), last_ms=0
                )
                if run.number >= MAX_RUNS:
                    raise OutOfOrder
            run.last_ms = int(order_ms[high - 1])
            yield Piece(run=run, rows=batch.slice(low, high - low) if len(cuts) > 2 else batch)


class TopicNumbers:
    """Numbers topics as they are met, from 0."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}

    def of(self, rows: pa.RecordBatch) -> Integers:
        """The number of each row's topic."""
        encoded = rows.column(TOPIC).dictionary_encode()
        table = np.array([self._number(name) for name in encoded.dictionary.to_pylist()], np.int64)
        found: Integers = table[encoded.indices.to_numpy(zero_copy_only=False)]
        return found

    def all_of(self, name: str, rows: int) -> Integers:
        """The number of one topic for so many rows."""
        return np.full(rows, self._number(name), np.int64)

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            self._numbers[name] = len(self.names)
            self.names.append(name)
        return self._numbers[name]


class DueNumbers:
    """Numbers due partitions as they are met, from 0."""

    def __init__(self) -> None:
        self.met: list[DuePartition] = []
        self._numbers: dict[DuePartition, int] = {}

    def of(self, topics: TopicNumbers, topic: Integers, interval: Integers, partition: Integers) -> Integers:
        """The number of each row's due partition."""
        least, intervals = int(interval.min()), int(interval.max() - interval.min()) + 1
        partitions = int(partition.max()) + 1
        # One number for all three; Python's integers say whether it fits.
        if len(topics.names) * intervals * partitions > np.iinfo(np.int64).max:
            raise OverflowError(f"{intervals} calendar intervals between the due times of one batch of rows")
        code = (topic * intervals + (interval - least)) * partitions + partition
        present, where = distinct(code)
        rest, own_partition = np.divmod(present, partitions)
        own_topic, own_interval = np.divmod(rest, intervals)
        numbers = [
            self.one(DuePartition(topic=topics.names[name], interval=least + number, partition=own))
            for name, number, own in zip(own_topic.tolist(), own_interval.tolist(), own_partition.tolist(), strict=True)
        ]
        found: Integers = np.array(numbers, np.int64)[where]
        return found

    def one(self, due: DuePartition) -> int:
        """The number of one due partition."""
        if due not in self._numbers:
            self._numbers[due] = len(self.met)
            self.met.append(due)
        return self._numbers[due]


class Turns:
    """Partitions of one run's rows: by key where there is one, else in turn, as the producer counts its sends.

    Args:
        partitions: Of the due topic.
        topics: Shared with whoever numbers the rows' topics.
        sends_before: For each topic how many sends come before this run.
    """

    def __init__(self, partitions: int, topics: TopicNumbers, sends_before: Mapping[str, int]) -> None:
        self._partitions = partitions
        self._topics = topics
        self._sends_before = sends_before
        self._sends = np.zeros(0, np.int64)

    def partitions_of(self, rows: pa.RecordBatch, topic: Integers) -> Integers:
        """The partition of each row; counts them all, since a send with a key takes its turn as well."""
        given = rows.column(PARTITION)
        if not given.null_count:
            return integers(rows, PARTITION)
        by_key = given.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        if self._partitions == 1:
            return np.where(by_key < 0, 0, by_key)
        for name in self._topics.names[len(self._sends) :]:
            self._sends = np.append(self._sends, self._sends_before.get(name, 0))
        counts = np.bincount(topic, minlength=len(self._sends))
        order = np.argsort(topic, kind="stable")
        turn = np.empty(len(topic), np.int64)
        begins = np.cumsum(counts) - counts
        turn[order] = np.arange(len(topic)) + np.repeat(self._sends - begins, counts)
        self._sends += counts
        return np.where(by_key < 0, turn % self._partitions, by_key)


def integers(rows: pa.RecordBatch, name: str) -> Integers:
    """A column without nulls."""
    values: Integers = rows.column(name).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return values

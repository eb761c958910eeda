"""The passes over arrivals that Spark runs in Python: rows in, a few rows for each run out.

Each pass is a generator for `DataFrame.mapInArrow`. What it hands on is `FOUND_SCHEMA`, whose rows `found_of` reads on
the driver. A task whose rows are not in order says so in one row, and reads no further.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from timewheel.spark_planner.exact.grid import NEVER_MS, Grid
from timewheel.spark_planner.exact.pieces import (
    PARTITION,
    DueNumbers,
    OutOfOrder,
    Piece,
    Run,
    TopicNumbers,
    Turns,
    integers,
    pieces_of,
)
from timewheel.spark_planner.exact.ranges import Changes, Part, RangeCounter
from timewheel.spark_planner.exact.replay_result import DuePartition
from timewheel.spark_planner.exact.routed import ACKNOWLEDGED_MS, INTERVAL
from timewheel.spark_planner.history.columns import TOPIC

__all__ = [
    "ENTRY",
    "FOUND_SCHEMA",
    "LEDGER",
    "Found",
    "Offsets",
    "RunKey",
    "counting",
    "found_of",
    "tallying",
    "turning",
]

Integers = NDArray[np.int64]
Batches = Iterable[pa.RecordBatch]
Pass = Callable[[Batches], Iterator[pa.RecordBatch]]
RunKey = tuple[int, int]
"""(task, run within it)."""

LEDGER = "ledger"
"""Number of an entry's ledger. bigint."""
ENTRY = "entry"
"""Number of an entry in its ledger. bigint."""

FOUND_SCHEMA = StructType(
    [
        StructField("task", IntegerType(), nullable=False),
        StructField("run", IntegerType(), nullable=False),
        StructField("run_first_ms", LongType(), nullable=False),
        StructField("run_last_ms", LongType(), nullable=False),
        StructField("topic", StringType(), nullable=False),
        StructField("interval", LongType(), nullable=False),
        StructField("partition", IntegerType(), nullable=False),
        StructField("entries", LongType(), nullable=False),
        StructField("part", BinaryType(), nullable=True),
    ]
)
"""One due partition of one run; ``run`` is -1 for a task whose rows are not in order. ``part`` is a `Part` in bytes."""

_ARROW_SCHEMA = pa.schema(
    [
        ("task", pa.int32()),
        ("run", pa.int32()),
        ("run_first_ms", pa.int64()),
        ("run_last_ms", pa.int64()),
        ("topic", pa.string()),
        ("interval", pa.int64()),
        ("partition", pa.int32()),
        ("entries", pa.int64()),
        ("part", pa.binary()),
    ]
)
_OUT_OF_ORDER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Offsets:
    """What comes before each run, where a pass has to know it.

    Args:
        sends: Sends of each topic.
        entries: Entries of each due partition.
    """

    sends: Mapping[RunKey, Mapping[str, int]] = field(default_factory=dict)
    entries: Mapping[RunKey, Mapping[DuePartition, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Found:
    """One due partition of one run, as the driver gets it.

    Args:
        key: Which run.
        first_ms: When the run begins.
        last_ms: When it ends.
        due: The due partition.
        entries: Its entries in the run.
        part: What was counted; None: it was only tallied.
    """

    key: RunKey
    first_ms: int
    last_ms: int
    due: DuePartition
    entries: int
    part: Part | None


def tallying(partitions: int, offsets: Offsets, *, topic: str = "", by_topic: bool = False) -> Pass:
    """A pass that counts entries only: of topics (their sends), or of due partitions.

    Args:
        partitions: Of the due topic.
        offsets: Sends before each run if it has rows whose turn it is.
        topic: Of all rows, where they have no such column.
        by_topic: Count sends.
    """

    def tally(batches: Batches) -> Iterator[pa.RecordBatch]:
        yield from _emitted(batches, lambda run: _Tally(run, partitions, offsets, topic, by_topic=by_topic))

    return tally


def counting(
    grid: Grid, partitions: int, offsets: Offsets, *, topic: str = "", ledger_entries: int = 0, split: bool = True
) -> Pass:
    """A pass that counts ranges on a grid.

    Args:
        grid: Where.
        partitions: Of the due topic.
        offsets: Sends before each run if it has rows whose turn it is; entries before it if there are ledgers.
        topic: Of all rows, where they have no such column.
        ledger_entries: Entries after which a ledger is closed; 0: `LEDGER` and `ENTRY` are there, or one ledger is all.
        split: Whether rows may be out of order.
    """

    def count(batches: Batches) -> Iterator[pa.RecordBatch]:
        yield from _emitted(
            batches, lambda run: _Count(run, grid, partitions, offsets, topic, ledger_entries), split=split
        )

    return count


def turning(partitions: int, offsets: Offsets, topic: str = "") -> Pass:
    """A pass that fills in `PARTITION` by turns, and keeps everything else."""

    def turn(batches: Batches) -> Iterator[pa.RecordBatch]:
        turns: dict[int, Turns] = {}
        topics = TopicNumbers()
        for piece in pieces_of(batches):
            number = piece.run.number
            if number not in turns:
                turns[number] = Turns(partitions, topics, offsets.sends.get((_task(), number), {}))
            rows = piece.rows
            numbers = topics.of(rows) if TOPIC in rows.schema.names else topics.all_of(topic, rows.num_rows)
            found = turns[number].partitions_of(rows, numbers)
            at = piece.rows.schema.get_field_index(PARTITION)
            yield piece.rows.set_column(at, piece.rows.schema.field(at), pa.array(found, pa.int32()))

    return turn


def found_of(table: pa.Table) -> list[Found] | None:
    """The rows of a pass on the driver; None: some task's rows are not in order."""
    found = []
    for row in table.to_pylist():
        if row["run"] == _OUT_OF_ORDER:
            return None
        found.append(
            Found(
                key=(row["task"], row["run"]),
                first_ms=row["run_first_ms"],
                last_ms=row["run_last_ms"],
                due=DuePartition(topic=row["topic"], interval=row["interval"], partition=row["partition"]),
                entries=row["entries"],
                part=None if row["part"] is None else _part_of(row["part"]),
            )
        )
    return found


class _Dues:
    """The due partition of each row of a run. A column that is not there says the same of every row: so a history of
    one topic is not slowed down by what it does not use.
    """

    def __init__(self, run: Run, partitions: int, offsets: Offsets, topic: str) -> None:
        self._topics = TopicNumbers()
        self._numbers = DueNumbers()
        self._turns = Turns(partitions, self._topics, offsets.sends.get((_task(), run.number), {}))
        self._topic = topic

    @property
    def met(self) -> list[DuePartition]:
        """In the order of their numbers."""
        return self._numbers.met

    def of(self, rows: pa.RecordBatch, *, by_topic: bool = False) -> Integers | int:
        """The number of each row's due partition, or of its topic; one number if it is the same for all."""
        names = set(rows.schema.names) - ({INTERVAL, PARTITION} if by_topic else set())
        if not names & {TOPIC, INTERVAL, PARTITION}:
            return self._numbers.one(DuePartition(topic=self._topic, interval=0, partition=0))
        nothing = np.zeros(rows.num_rows, np.int64)
        topic = self._topics.of(rows) if TOPIC in names else self._topics.all_of(self._topic, rows.num_rows)
        partition = self._turns.partitions_of(rows, topic) if PARTITION in names else nothing
        return self._numbers.of(
            self._topics, topic, integers(rows, INTERVAL) if INTERVAL in names else nothing, partition
        )


class _Tally:
    """Entries of one run."""

    def __init__(self, run: Run, partitions: int, offsets: Offsets, topic: str, *, by_topic: bool) -> None:
        self._by_topic = by_topic
        self._due = _Dues(run, partitions, offsets, topic)
        self._entries = np.zeros(0, np.int64)

    def feed(self, rows: pa.RecordBatch) -> None:
        number = self._due.of(rows, by_topic=self._by_topic)
        if isinstance(number, int):
            number = np.full(rows.num_rows, number)
        counts = np.bincount(number, minlength=len(self._due.met))
        counts[: len(self._entries)] += self._entries
        self._entries = counts

    def rows(self) -> Iterator[tuple[DuePartition, int, bytes | None]]:
        for due, entries in zip(self._due.met, self._entries.tolist(), strict=True):
            yield due, entries, None


class _Count:
    """Ranges of one run."""

    def __init__(
        self, run: Run, grid: Grid, partitions: int, offsets: Offsets, topic: str, ledger_entries: int
    ) -> None:
        self._due = _Dues(run, partitions, offsets, topic)
        self._entries_before = offsets.entries.get((_task(), run.number), {})
        self._counter = RangeCounter(grid, ledger_entries=ledger_entries)
        self._opened = 0

    def feed(self, rows: pa.RecordBatch) -> None:
        number = self._due.of(rows)
        for due in self._due.met[self._opened :]:
            self._counter.open(self._opened, self._entries_before.get(due, 0))
            self._opened += 1
        acknowledged_ms = integers_or_never(rows.column(ACKNOWLEDGED_MS))
        if LEDGER in rows.schema.names:
            self._counter.feed(number, acknowledged_ms, integers(rows, LEDGER), integers(rows, ENTRY))
        else:
            self._counter.feed(number, acknowledged_ms)

    def rows(self) -> Iterator[tuple[DuePartition, int, bytes | None]]:
        for due, part in zip(self._due.met, self._counter.parts(), strict=True):
            yield due, part.entries, _bytes_of(part)


def integers_or_never(column: pa.Array) -> Integers:
    """Times of acknowledgements; a null is none."""
    filled = column.fill_null(NEVER_MS) if column.null_count else column
    values: Integers = filled.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return values


def _emitted(
    batches: Batches, begin: Callable[[Run], _Tally | _Count], *, split: bool = True
) -> Iterator[pa.RecordBatch]:
    """Feed each run to a worker of its own, and hand on what it found when the run has ended."""
    run: Run | None = None
    worker: _Tally | _Count | None = None
    try:
        for piece in pieces_of(batches, split=split):
            if piece.run is not run:
                if run is not None and worker is not None:
                    yield _batch_of(run, worker)
                run, worker = piece.run, begin(piece.run)
            assert worker is not None
            _feed(worker, piece)
    except OutOfOrder:
        yield _batch([(_task(), _OUT_OF_ORDER, 0, 0, "", 0, 0, 0, None)])
        return
    if run is not None and worker is not None:
        yield _batch_of(run, worker)


def _feed(worker: _Tally | _Count, piece: Piece) -> None:
    worker.feed(piece.rows)


def _batch_of(run: Run, worker: _Tally | _Count) -> pa.RecordBatch:
    task = _task()
    return _batch(
        [
            (task, run.number, run.first_ms, run.last_ms, due.topic, due.interval, due.partition, entries, part)
            for due, entries, part in worker.rows()
        ]
    )


def _batch(rows: list[tuple[object, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, _ARROW_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA)


def _task() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


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

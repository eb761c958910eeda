"""The statistic of a history: all data for a plan, in a few megabytes, by a single pass on Spark.

`Statistic.save` writes a Parquet file, from which a plan can be made again without Spark and without the history.

Every row is read once. Each task makes cells of its rows; a few tasks gather these cells, and a last task gathers
theirs, each within the same limit. So neither a task nor the driver needs more memory for a longer history, and the
driver never holds a limit of cells per task.

The kernels receive Arrow batches from Spark, and return rows of `columns.PARTS_SCHEMA`. Both are the same fold: each
batch is merged into the cells so far, which are made coarser as soon as they exceed the limit. Since bounding does not
depend on the order (`cells.bounded_together`), the result does not depend on the order and partitioning of rows in
Spark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's world calls it
from pyspark.sql.pandas.types import to_arrow_schema

from ..errors import (
    EmptyHistory,
    NoSuchTopic,
    NoValidRows,
    SeveralTopics,
    StatisticUnreadable,
    TooManyTopics,
    remedy_of,
)
from ..history import columns
from ..history.columns import rows_by_topic
from ..history.read import COPY, REMARKS, SPARK_ERRORS, refuse_wrong_unit, unreadable
from .cells import CELL_LIMIT, LEVELS, Cells, Integers, bounded_together

FORMAT = 2
LEAST_USED = 0.95
"""Least share of the rows that an answer may be made from: gaps grow about as timers do, and a plan keeps a fifth of
the limit free by default.
"""
_NOTE = b"timewheel.statistic"
CELLS_ARROW = to_arrow_schema(columns.CELLS_SCHEMA)
PARTS_ARROW = to_arrow_schema(columns.PARTS_SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Statistic:
    """The summary of a history.

    Args:
        cells: By topic (the empty name if the history has no topics); all at the same level, each topic with timers.
        quarantined: Rows that could not be used, by reason (`read.REASONS`), the most frequent first.
        remarked: Rows that are used in spite of a defect, by remark (`read.REMARKS`).
        samples: A few such rows by reason or remark, as JSON text.
    """

    cells: Mapping[str, Cells]
    quarantined: Mapping[str, int] = field(default_factory=dict)
    remarked: Mapping[str, int] = field(default_factory=dict)
    samples: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def topic(self, wanted: str | None = None) -> str:
        """Return the topic to plan for: the wanted topic, or the only topic (empty: the history has no topics).

        Raises:
            NoSuchTopic: The history does not have the topic.
            SeveralTopics: There are several topics, and none was named.
        """
        topics = list(self.cells)
        if wanted is not None and wanted not in topics:
            raise NoSuchTopic(wanted, topics)
        if wanted is None and len(topics) > 1:
            raise SeveralTopics(topics)
        return topics[0] if wanted is None else wanted

    @property
    def timers(self) -> int:
        """Number of sound rows."""
        return sum(cells.timers for cells in self.cells.values())

    @property
    def rows(self) -> int:
        """All rows of the history: timers and quarantined."""
        return self.timers + sum(self.quarantined.values())

    @property
    def too_few(self) -> str:
        """The beginning of every verdict on fewer rows than `LEAST_USED`; empty: enough were used."""
        lost = {reason: count for reason, count in self.quarantined.items() if reason != COPY}
        count, rows = sum(lost.values()), self.timers + sum(lost.values())
        if count <= (1 - LEAST_USED) * rows:
            return ""
        return (
            f"NOT DECIDED, since {count:,} of {rows:,} rows ({100 * count / rows:.2g}%) were not used, and at most "
            f"{1 - LEAST_USED:.0%} may be left out: {remedy_of(lost)}. By the others: "
        )

    @property
    def first_publish_ms(self) -> int:
        """The earliest publish time, UTC milliseconds."""
        return min(int(cells.publish_min_ms.min()) for cells in self.cells.values())

    @property
    def last_publish_ms(self) -> int:
        """The latest publish time, UTC milliseconds."""
        return max(int(cells.publish_max_ms.max()) for cells in self.cells.values())

    @property
    def slot_ms(self) -> int:
        """Length of the cells' slots of publish times: the resolution that the limit of cells allowed."""
        return max(cells.slot_ms for cells in self.cells.values())

    def __len__(self) -> int:
        """Return the number of cells."""
        return sum(map(len, self.cells.values()))

    def save(self, path: Path | str) -> None:
        """Write a Parquet file of `columns.CELLS_SCHEMA`, with the quarantine in the file's metadata."""
        note = {"format": FORMAT, **self.note()}
        table = cells_table(self.cells).replace_schema_metadata({_NOTE: json.dumps(note).encode()})
        pq.write_table(table, str(path), compression="zstd")

    def note(self) -> dict[str, Any]:
        """Return all facts but the cells, for the metadata of a file."""
        return {name: dict(getattr(self, name)) for name in ("quarantined", "remarked", "samples")}

    @classmethod
    def of_note(cls, table: Any, note: Mapping[str, Any]) -> Statistic:
        """Read a ``pyarrow.Table`` with the columns of `CELLS_ARROW`, and the result of `note`."""
        samples = {reason: tuple(texts) for reason, texts in note["samples"].items()}
        return cls(
            cells=cells_by_topic(table), quarantined=note["quarantined"], remarked=note["remarked"], samples=samples
        )

    @classmethod
    def load(cls, path: Path | str) -> Statistic:
        """Read a file written by `save`.

        Raises:
            StatisticUnreadable: The file does not exist, or is not a statistic.
        """
        with readable(path, "no statistic"):
            return cls.of_note(*noted_table(path, _NOTE, FORMAT))


@contextmanager
def readable(path: Path | str, what: str) -> Iterator[None]:
    """Raise `StatisticUnreadable` for whatever a broken file causes."""
    try:
        yield
    except StatisticUnreadable:
        raise
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise StatisticUnreadable(str(path), f"{what} ({error})") from error


def noted_table(path: Path | str, name: bytes, version: int) -> tuple[Any, dict[str, Any]]:
    """Read a ``pyarrow.Table``, and the note of this name and format version in its metadata."""
    table = pq.read_table(str(path))
    note = json.loads((table.schema.metadata or {})[name])
    if note["format"] != version:
        raise StatisticUnreadable(str(path), f"it is of format {note['format']}, not {version}")
    return table, note


def cells_table(cells: Mapping[str, Cells]) -> Any:
    return table_by_topic(CELLS_ARROW, {topic: (of.level, of.facts()) for topic, of in cells.items()})


def table_by_topic(schema: Any, by_topic: Mapping[str, tuple[int, Sequence[Integers]]]) -> Any:
    """Build a ``pyarrow.Table`` of each topic's arrays, behind the topic and a number that all its rows have."""
    tables = [
        pa.table(
            [
                pa.repeat(pa.scalar(value, schema.types[column]), len(arrays[0]))
                for column, value in enumerate((topic, number))
            ]
            + list(arrays),
            schema=schema,
        )
        for topic, (number, arrays) in sorted(by_topic.items())
    ]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def cells_by_topic(table: Any) -> dict[str, Cells]:
    """Read the cells of a ``pyarrow.Table`` with the columns of `CELLS_ARROW`, with rows in any order."""
    levels = table[columns.LEVEL].to_numpy()
    if len(levels) == 0:
        return {}
    if not 0 <= levels.min() <= levels.max() < len(LEVELS):
        raise ValueError(f"no level {levels.max()}")
    names, rows_of_each = rows_by_topic(table[columns.TOPIC])
    facts = [table[name].to_numpy() for name in columns.FACTS]
    found = {}
    for name, mine in zip(names, rows_of_each, strict=True):
        # Rows of a topic may be of several levels if they come from several tasks: they are merged at the coarsest.
        found[name] = Cells.of_facts(int(levels[mine].max()), [np.ascontiguousarray(fact[mine]) for fact in facts])
    return found


SAMPLES_PER_REASON = 5
TOO_MANY_TOPICS = "too_many_topics"
"""A reason in the parts, with the topics as samples: a task that finds too many topics stops."""
BUFFER_ROWS = 262_144
"""Rows that are made into cells at once: few enough for 40 MB including numpy's temporary arrays, and enough that
merging them into the cells so far is not most of the work.
"""
BATCH_ROWS = 65_536  # rows of a batch that a kernel returns to Spark: 5 MB


@dataclass(slots=True, kw_only=True)
class Gathered:
    """Cells and counts of a task so far."""

    cell_limit: int  # the most cells, of all topics together
    topic_limit: int  # the most topics
    cells: dict[str, Cells] = field(default_factory=dict)
    quarantined: dict[str, int] = field(default_factory=dict)
    samples: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _waiting: dict[str, list[Cells]] = field(default_factory=dict, init=False)

    def add_cells(self, more: dict[str, Cells]) -> None:
        """Add cells; they are merged once they are half as many as the merged cells."""
        # Merging a few cells into two million would sort two million.
        for topic, cells in more.items():
            self._waiting.setdefault(topic, []).append(cells)
        topics = self.cells.keys() | self._waiting.keys()
        waiting = sum(len(cells) for own in self._waiting.values() for cells in own)
        if len(topics) > self.topic_limit:
            self.refuse_topics(topics)
        elif 2 * waiting >= sum(map(len, self.cells.values())):
            self.settle()

    def settle(self) -> None:
        for topic, waiting in self._waiting.items():
            own = [self.cells[topic], *waiting] if topic in self.cells else waiting
            self.cells[topic] = own[0] if len(own) == 1 else Cells.merged(own)
        self._waiting.clear()
        self.cells = bounded_together(self.cells, self.cell_limit)

    def add_quarantined(self, reason: str, count: int, samples: Iterable[str]) -> None:
        """Count rows with a reason or a remark; of the samples the first few in text order are stored."""
        self.quarantined[reason] = self.quarantined.get(reason, 0) + count
        some = {*self.samples.get(reason, ()), *samples}
        self.samples[reason] = tuple(sorted(some)[:SAMPLES_PER_REASON])

    def refuse_topics(self, some: Iterable[str]) -> None:
        """Record that there are too many topics, and drop the cells: no plan will be made from them."""
        self.add_quarantined(TOO_MANY_TOPICS, 0, some)
        self.cells.clear()
        self._waiting.clear()

    def parts(self, task: int) -> Iterator[Any]:
        if self.quarantined:
            zeros = [0] * len(self.quarantined)
            rows: dict[str, list[Any]] = {field.name: zeros for field in PARTS_ARROW}
            rows[columns.TASK] = [task] * len(zeros)
            rows[columns.REASON] = list(self.quarantined)
            rows[columns.SAMPLES] = [json.dumps(self.samples[reason]) for reason in self.quarantined]
            rows[columns.TOPIC] = [""] * len(zeros)
            rows[columns.COUNT] = list(self.quarantined.values())
            yield pa.RecordBatch.from_pydict(rows, schema=PARTS_ARROW)
        for batch in cells_table(self.cells).to_batches(max_chunksize=BATCH_ROWS):
            # The task's number for each, and nulls: a cell has no reason.
            named = [
                pa.repeat(pa.scalar(task, pa.int32()), len(batch)),
                pa.nulls(len(batch), PARTS_ARROW.field(columns.REASON).type),
                pa.nulls(len(batch), PARTS_ARROW.field(columns.SAMPLES).type),
            ]
            yield pa.RecordBatch.from_arrays([*named, *batch.columns], schema=PARTS_ARROW)


def gather_rows(batches: Iterable[Any], gathered: Gathered) -> Gathered:
    """Fold rows of an assessed history (`columns.ASSESSED_SCHEMA`, the key not needed) into ``gathered``."""
    for table in _buffered(_without_quarantined(batch, gathered) for batch in batches):
        gathered.add_cells(_cells_of_rows(table, gathered))
        if TOO_MANY_TOPICS in gathered.quarantined:  # no further row can help
            return gathered
    gathered.settle()
    return gathered


def gather_parts(batches: Iterable[Any], gathered: Gathered) -> Gathered:
    """Fold the results of other tasks (`columns.PARTS_SCHEMA`) into the task's cells and counts."""
    for table in _buffered(_cells_alone(batch, gathered) for batch in batches):
        gathered.add_cells(cells_by_topic(table))
    gathered.settle()
    return gathered


def _buffered(batches: Iterable[Any]) -> Iterator[Any]:
    """Join batches into tables of about `BUFFER_ROWS`."""
    waiting: list[Any] = []
    for batch in batches:
        waiting.append(batch)
        if sum(map(len, waiting)) >= BUFFER_ROWS:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if any(map(len, waiting)):
        yield pa.Table.from_batches(waiting)


def _cells_alone(batch: Any, gathered: Gathered) -> Any:
    """Return the cells of a batch; count the quarantined rows that it reports."""
    is_cell = batch[columns.REASON].is_null()
    for row in batch.filter(is_cell.cast(pa.int8()).to_numpy() == 0).to_pylist():
        gathered.add_quarantined(row[columns.REASON], row[columns.COUNT], json.loads(row[columns.SAMPLES]))
    return batch.filter(is_cell)


def _without_quarantined(batch: Any, gathered: Gathered) -> Any:
    """Return the sound rows of a batch; count the other rows, and those with a remark."""
    for name in (columns.REASON, columns.REMARK):
        said = batch[name]
        if said.null_count == len(batch):
            continue
        bad = batch.filter(said.is_valid())
        encoded = bad[name].dictionary_encode()
        codes = encoded.indices.to_numpy()
        raw = bad[columns.RAW]
        for code, reason in enumerate(encoded.dictionary.to_pylist()):
            rows = np.flatnonzero(codes == code)
            # All raw rows, since the stored samples must not depend on the order of rows.
            gathered.add_quarantined(reason, len(rows), raw.take(pa.array(rows)).unique().to_pylist())
    reasons = batch[columns.REASON]
    return batch if reasons.null_count == len(batch) else batch.filter(reasons.is_null())


def _cells_of_rows(table: Any, gathered: Gathered) -> dict[str, Cells]:
    publish_ms, due_ms, size_bytes = (
        table[name].to_numpy() for name in (columns.PUBLISH_MS, columns.DUE_MS, columns.SIZE_BYTES)
    )
    names, rows_of_each = rows_by_topic(table[columns.TOPIC])
    if len(names) > gathered.topic_limit:  # before cells are made for each: a column of ids has a name per row
        gathered.refuse_topics(names)
        return {}
    # Directly at the level reached so far: finer cells would be merged to this level at once.
    level = max((cells.level for cells in gathered.cells.values()), default=0)
    return {
        name: Cells.of_timers(publish_ms[rows], due_ms[rows], size_bytes[rows], level=level)
        for name, rows in zip(names, rows_of_each, strict=True)
    }


TOPIC_LIMIT = 64  # most topics of a history by default: a column of ids given by mistake is detected early
COARSEST_CELLS = 300  # most cells of a topic at the coarsest level
GATHERING_TASKS = 32
"""Tasks between the first tasks and the last: the last merges at most so many limits of cells, one after the other."""
_DAMAGED = "[FAILED_READ_FILE"  # start of Spark's error for a file that it cannot read during a job


def statistic_of(
    history: DataFrame, *, cell_limit: int = CELL_LIMIT, topic_limit: int = TOPIC_LIMIT, source: str = "given"
) -> Statistic:
    # The same rows give the same statistic with any storage and partitioning.
    if topic_limit < 1:
        raise ValueError(f"topic_limit = {topic_limit}: at least 1")
    if cell_limit < COARSEST_CELLS * topic_limit:
        raise ValueError(f"cell_limit = {cell_limit}: {topic_limit} topics may need {COARSEST_CELLS * topic_limit}")
    # The key is not needed: a key column in a columnar file is not even read.
    parts = (
        history.select(
            columns.PUBLISH_MS,
            columns.DUE_MS,
            columns.SIZE_BYTES,
            # Of a row in quarantine only the reason and the text are used, and its topic may be of any length.
            F.when(F.col(columns.REASON).isNull(), F.col(columns.TOPIC)).alias(columns.TOPIC),
            columns.REASON,
            columns.REMARK,
            columns.RAW,
        )
        .mapInArrow(_kernel(gather_rows, cell_limit, topic_limit), columns.PARTS_SCHEMA)
        .transform(_gathered_in(GATHERING_TASKS, cell_limit, topic_limit))
        .transform(_gathered_in(1, cell_limit, topic_limit))
    )
    try:
        table = parts.toArrow()
    except SPARK_ERRORS as error:
        if _DAMAGED in str(error):
            raise unreadable(source, error) from None
        raise
    # The last task's rows, read by the same fold.
    found = gather_parts(table.to_batches(), Gathered(cell_limit=cell_limit, topic_limit=topic_limit))
    return _checked(found, topic_limit)


def _checked(found: Gathered, topic_limit: int) -> Statistic:
    if TOO_MANY_TOPICS in found.quarantined:
        raise TooManyTopics(topic_limit, found.samples[TOO_MANY_TOPICS])
    by_count = sorted(found.quarantined.items(), key=lambda item: (-item[1], item[0]))
    statistic = Statistic(
        cells=dict(sorted(found.cells.items())),
        quarantined={reason: count for reason, count in by_count if reason not in REMARKS},
        remarked={remark: count for remark, count in by_count if remark in REMARKS},
        samples={reason: found.samples[reason] for reason, _ in by_count},
    )
    if statistic.rows == 0:
        raise EmptyHistory
    refuse_wrong_unit(statistic.rows, statistic.quarantined, statistic.samples)
    if statistic.timers == 0:
        raise NoValidRows(statistic.rows, statistic.quarantined, statistic.samples)
    return statistic


def _kernel(fold: Callable[[Iterable[Any], Gathered], Gathered], cell_limit: int, topic_limit: int) -> Any:
    def kernel(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None  # kernels run in tasks only
        yield from fold(batches, Gathered(cell_limit=cell_limit, topic_limit=topic_limit)).parts(context.partitionId())

    return kernel


def _gathered_in(tasks: int, cell_limit: int, topic_limit: int) -> Any:
    kernel = _kernel(gather_parts, cell_limit, topic_limit)

    # By number and not by hash: with few parts each task gets its share. More tasks than the session's shuffle
    # partitions would be started in vain.
    def transform(frame: DataFrame) -> DataFrame:
        number = min(tasks, int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 200))
        to = F.pmod(F.col(columns.TASK), F.lit(number))
        return frame.repartitionById(number, to).mapInArrow(kernel, columns.PARTS_SCHEMA)

    return transform

"""The statistic of a history: all data for a plan, in a few megabytes.

`Statistic.save` writes a Parquet file, from which a plan can be made again without Spark and without the history.

Each task makes cells of its rows (`sends.read`); a few tasks gather these cells, and a last task gathers theirs, each
within the same limit. So neither a task nor the driver needs more memory for a longer history, and the driver never
holds a limit of cells per task. All do the same fold: cells are merged into the cells so far, which are made coarser as
soon as they exceed the limit. Since bounding does not depend on the order (`cells.bounded_together`), the result does
not depend on the order and partitioning of rows in Spark.
"""

from __future__ import annotations

import json
import pickle
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
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
from ..history.read import COPY, REMARKS, refuse_wrong_unit
from .cells import COARSEST_CELLS, LEVELS, Cells, Integers, bounded_together

FORMAT = 2
LEAST_USED = 0.95
"""Least share of the rows that an answer may be made from: gaps grow about as timers do, and a plan keeps a fifth of
the limit free by default.
"""
_NOTE = b"timewheel.statistic"
CELLS_ARROW = to_arrow_schema(columns.CELLS_SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Statistic:
    """The summary of a history.

    Args:
        cells: By topic (the empty name if the history has no topics), each topic with timers; all at the same level,
            except those of `job.History.of`.
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
    def is_coarse(self) -> bool:
        """True if the cells are the coarsest, those of a history that may have many topics."""
        return all(cells.level == len(LEVELS) - 1 for cells in self.cells.values())

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
        """Length of the finest cells' slots of publish times: the resolution that the limit of cells allowed."""
        return min(cells.slot_ms for cells in self.cells.values())

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


@dataclass(slots=True, kw_only=True)
class Gathered:
    """Cells and counts of a task so far."""

    cell_limit: int  # the most cells, of all topics together
    topic_limit: int  # the most topics
    cells: dict[str, Cells] = field(default_factory=dict)
    quarantined: dict[str, int] = field(default_factory=dict)
    samples: dict[str, tuple[str, ...]] = field(default_factory=dict)
    finest: int = 0  # index into `LEVELS`: the finest level of cells
    _waiting: dict[str, list[Cells]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.topic_limit < 1:
            raise ValueError(f"topic_limit = {self.topic_limit}: at least 1")
        need = COARSEST_CELLS * self.topic_limit
        if self.cell_limit < need:
            raise ValueError(f"cell_limit = {self.cell_limit}: {self.topic_limit} topics may need {need}")

    @property
    def level(self) -> int:
        """The level reached so far: finer cells would be merged to this level at once."""
        return max((cells.level for cells in self.cells.values()), default=self.finest)

    def has_too_many_topics(self, topics: Collection[str] = ()) -> bool:
        """Return whether there are too many topics, so far or in ``topics``."""
        if len(topics) > self.topic_limit:
            self.refuse_topics(topics)
        return TOO_MANY_TOPICS in self.quarantined

    def add_cells(self, more: dict[str, Cells]) -> None:
        """Add cells; they are merged once they are half as many as the merged cells."""
        # Merging a few cells into two million would sort two million.
        for topic, cells in more.items():
            self._waiting.setdefault(topic, []).append(cells)
        topics = self.cells.keys() | self._waiting.keys()
        waiting = sum(len(cells) for own in self._waiting.values() for cells in own)
        if not self.has_too_many_topics(topics) and 2 * waiting >= sum(map(len, self.cells.values())):
            self.settle()

    def settle(self) -> None:
        so_far = {topic: [cells] for topic, cells in self.cells.items()}
        every = {topic: [*so_far.get(topic, ()), *self._waiting.get(topic, ())] for topic in so_far | self._waiting}
        self.cells = bounded_together(every, self.cell_limit)
        self._waiting.clear()

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

    def add(self, other: Gathered) -> None:
        """Add the result of another task."""
        for reason, count in other.quarantined.items():
            self.add_quarantined(reason, count, other.samples[reason])
        self.add_cells(other.cells)

    def packed(self) -> bytes:
        """Return the result of a task, in about a fourth of the arrays' bytes."""
        self.settle()
        return zlib.compress(pickle.dumps(self), 1)

    @staticmethod
    def unpacked(part: bytes) -> Gathered:
        found: Gathered = pickle.loads(zlib.decompress(part))  # noqa: S301 - of our tasks
        return found

    def sound(self, batch: Any) -> Any:
        """Return the sound rows of a batch of `columns.ASSESSED_SCHEMA`; count the others, and those with a remark."""
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
                self.add_quarantined(reason, len(rows), raw.take(pa.array(rows)).unique().to_pylist())
        reasons = batch[columns.REASON]
        return batch if reasons.null_count == len(batch) else batch.filter(reasons.is_null())

    def checked(self) -> Statistic:
        """Return the statistic of a history.

        Raises:
            TooManyTopics: There are more topics than the limit.
            EmptyHistory: There are no rows.
            NoValidRows: All rows are in quarantine.
            WrongTimeUnit: Nearly all rows are in quarantine because of the unit of their times.
        """
        if self.has_too_many_topics():
            raise TooManyTopics(self.topic_limit, self.samples[TOO_MANY_TOPICS])
        by_count = sorted(self.quarantined.items(), key=lambda item: (-item[1], item[0]))
        statistic = Statistic(
            cells=dict(sorted(self.cells.items())),
            quarantined={reason: count for reason, count in by_count if reason not in REMARKS},
            remarked={remark: count for remark, count in by_count if remark in REMARKS},
            samples={reason: self.samples[reason] for reason, _ in by_count},
        )
        if statistic.rows == 0:
            raise EmptyHistory
        refuse_wrong_unit(statistic.rows, statistic.quarantined, statistic.samples)
        if statistic.timers == 0:
            raise NoValidRows(statistic.rows, statistic.quarantined, statistic.samples)
        return statistic


TOPIC_LIMIT = 64  # most topics of a history by default: a column of ids given by mistake is detected early
GATHERING_TASKS = 32
"""Tasks between the first tasks and the last: the last merges at most so many limits of cells, one after the other."""
PART = "part"  # column: the `Gathered.packed` result of a task
PARTS_SCHEMA = columns.schema_of("task:long part:bytes")
PARTS_ARROW = to_arrow_schema(PARTS_SCHEMA)


def gathered_from(parts: DataFrame, none: Gathered) -> Gathered:
    """Merge the results of tasks, rows of `PARTS_SCHEMA`, into ``none``, an empty result."""

    def kernel(batches: Iterable[Any]) -> Iterator[Any]:
        found = replace(none, cells={}, quarantined={}, samples={})
        for part in (part for batch in batches for part in batch[PART].to_pylist()):
            found.add(Gathered.unpacked(part))
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        yield pa.RecordBatch.from_pylist([{columns.TASK: task, PART: found.packed()}], PARTS_ARROW)

    # By number and not by hash: with few parts each task gets its share. More tasks than the session's shuffle
    # partitions would be started in vain.
    for tasks in (GATHERING_TASKS, 1):
        number = min(tasks, int(parts.sparkSession.conf.get("spark.sql.shuffle.partitions") or 200))
        to = F.pmod(columns.TASK, F.lit(number)).cast("int")
        parts = parts.repartitionById(number, to).mapInArrow(kernel, PARTS_SCHEMA)
    found = parts.toArrow()[PART].to_pylist()
    return Gathered.unpacked(found[0]) if found else none

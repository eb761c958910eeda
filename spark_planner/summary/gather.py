"""The kernels of the single pass: they turn rows into cells, and merge cells into fewer cells, in bounded memory.

The kernels receive Arrow batches from Spark, and return rows of `columns.PARTS_SCHEMA`. Both kernels are the same fold:
each batch is merged into the cells so far, which are made coarser as soon as they exceed the limit. Since bounding does
not depend on the order (`cells.bounded_together`), the result does not depend on the order and partitioning of rows in
Spark.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from timewheel.spark_planner.history import columns
from timewheel.spark_planner.history.topics import rows_by_topic
from timewheel.spark_planner.summary.cells import Cells, bounded_together
from timewheel.spark_planner.summary.statistic import CELLS_ARROW, cells_by_topic, cells_table

__all__ = ["SAMPLES_PER_REASON", "TOO_MANY_TOPICS", "Gathered", "gather_parts", "gather_rows"]

Integers = NDArray[np.int64]

SAMPLES_PER_REASON = 5
TOO_MANY_TOPICS = "too_many_topics"
"""A reason in the parts, with the topics as samples: a task that finds too many topics stops."""
BUFFER_ROWS = 262_144
"""Rows that are made into cells at once: few enough for 40 MB including numpy's temporary arrays, and enough that
merging them into the cells so far is not most of the work.
"""
BATCH_ROWS = 65_536
"""Rows of a batch that a kernel returns to Spark: 5 MB."""

PARTS_ARROW = pa.schema(
    [
        pa.field(columns.TASK, pa.int32(), nullable=False),
        pa.field(columns.REASON, pa.string()),
        pa.field(columns.SAMPLES, pa.string()),
        *CELLS_ARROW,
    ]
)
"""`columns.PARTS_SCHEMA` as an Arrow schema."""


@dataclass(slots=True, kw_only=True)
class Gathered:
    """Cells and counts of a task so far.

    Args:
        cell_limit: The most cells, of all topics together.
        topic_limit: The most topics.
    """

    cell_limit: int
    topic_limit: int
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
        """Merge the added cells, within the limit."""
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

    @property
    def hopeless(self) -> bool:
        """True if there are too many topics, so that no further row can help."""
        return TOO_MANY_TOPICS in self.quarantined

    def parts(self, task: int) -> Iterator[Any]:
        """Iterate over record batches of `PARTS_ARROW`."""
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
    waiting: list[Any] = []
    waiting_rows = 0
    for batch in batches:
        sound = _without_quarantined(batch, gathered)
        waiting.append(sound)
        waiting_rows += len(sound)
        if waiting_rows >= BUFFER_ROWS:
            gathered.add_cells(_cells_of_rows(waiting, gathered))
            waiting, waiting_rows = [], 0
        if gathered.hopeless:
            return gathered
    if waiting_rows:
        gathered.add_cells(_cells_of_rows(waiting, gathered))
    gathered.settle()
    return gathered


def gather_parts(batches: Iterable[Any], gathered: Gathered) -> Gathered:
    """Fold the results of other tasks (`columns.PARTS_SCHEMA`) into the task's cells and counts."""
    waiting: list[Any] = []
    waiting_rows = 0
    for batch in batches:
        is_cell = batch[columns.REASON].is_null()
        for row in batch.filter(is_cell.cast(pa.int8()).to_numpy() == 0).to_pylist():
            gathered.add_quarantined(row[columns.REASON], row[columns.COUNT], json.loads(row[columns.SAMPLES]))
        waiting.append(batch.filter(is_cell))
        waiting_rows += len(waiting[-1])
        if waiting_rows >= BUFFER_ROWS:
            gathered.add_cells(cells_by_topic(pa.Table.from_batches(waiting)))
            waiting, waiting_rows = [], 0
    if waiting_rows:
        gathered.add_cells(cells_by_topic(pa.Table.from_batches(waiting)))
    gathered.settle()
    return gathered


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


def _cells_of_rows(batches: list[Any], gathered: Gathered) -> dict[str, Cells]:
    table = pa.Table.from_batches(batches)
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

"""The statistic of a history: all data for a plan, in a few megabytes for histories of any size.

`Statistic.save` writes a Parquet file, from which a plan can be made again without Spark and without the history.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from timewheel.spark_planner.errors import NoSuchTopic, SeveralTopics, StatisticUnreadable
from timewheel.spark_planner.history import columns
from timewheel.spark_planner.history.topics import rows_by_topic
from timewheel.spark_planner.summary.cells import LEVELS, Cells

__all__ = ["CELLS_ARROW", "Statistic", "cells_by_topic", "cells_table"]

FORMAT = 2
_NOTE = b"timewheel.statistic"

CELLS_ARROW = pa.schema(
    [
        pa.field(columns.TOPIC, pa.string(), nullable=False),
        pa.field(columns.LEVEL, pa.int32(), nullable=False),
        *(pa.field(name, pa.int64(), nullable=False) for name in columns.FACTS),
    ]
)
"""`columns.CELLS_SCHEMA` as an Arrow schema."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Statistic:
    """The summary of a history.

    Args:
        cells: By topic (the empty name if the history has no topics); all at the same level, each topic with timers.
        quarantined: Rows that could not be used, by reason (`quarantine.REASONS`), the most frequent first.
        remarked: Rows that are used in spite of a defect, by remark (`quarantine.REMARKS`).
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
        note = {
            "format": FORMAT,
            "quarantined": dict(self.quarantined),
            "remarked": dict(self.remarked),
            "samples": dict(self.samples),
        }
        table = cells_table(self.cells).replace_schema_metadata({_NOTE: json.dumps(note).encode()})
        pq.write_table(table, str(path), compression="zstd")

    @classmethod
    def load(cls, path: Path | str) -> Statistic:
        """Read a file written by `save`.

        Raises:
            StatisticUnreadable: The file does not exist, or is not a statistic.
        """
        try:
            table = pq.read_table(str(path))
            note = json.loads((table.schema.metadata or {})[_NOTE])
            if note["format"] != FORMAT:
                raise StatisticUnreadable(str(path), f"it is of format {note['format']}, not {FORMAT}")
            cells = cells_by_topic(table)
            samples = {reason: tuple(texts) for reason, texts in note["samples"].items()}
            return cls(cells=cells, quarantined=note["quarantined"], remarked=note["remarked"], samples=samples)
        except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
            if isinstance(error, StatisticUnreadable):
                raise
            raise StatisticUnreadable(str(path), f"no statistic ({error})") from error


def cells_table(cells: Mapping[str, Cells]) -> Any:
    """Build a ``pyarrow.Table`` of `CELLS_ARROW`: a row per cell, topics in order of their names."""
    tables = [
        pa.table(
            [pa.repeat(pa.scalar(topic), len(of)), pa.repeat(pa.scalar(of.level, pa.int32()), len(of)), *of.facts()],
            schema=CELLS_ARROW,
        )
        for topic, of in sorted(cells.items())
    ]
    return pa.concat_tables(tables) if tables else CELLS_ARROW.empty_table()


def cells_by_topic(table: Any) -> dict[str, Cells]:
    """Read the cells of a ``pyarrow.Table`` with the columns of `CELLS_ARROW`, with rows in any order.

    Raises:
        ValueError: The table has an unknown level.
    """
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

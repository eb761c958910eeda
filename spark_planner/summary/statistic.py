"""The statistic of a history: all that a plan is made from, in a few megabytes whatever the history's size.

It can be kept: `Statistic.save` writes one Parquet file, from which to plan again with neither Spark nor the history.
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
"""`columns.CELLS_SCHEMA`, as Arrow has it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Statistic:
    """What is kept of a history.

    Args:
        cells: By topic (the empty name where the history has none); all at one level, no topic without a timer.
        quarantined: Rows that could not be used, by reason (`quarantine.REASONS`), the most frequent first.
        remarked: Rows that are used though something is wrong with them, by remark (`quarantine.REMARKS`).
        samples: A few such rows by reason or remark, as JSON text.
    """

    cells: Mapping[str, Cells]
    quarantined: Mapping[str, int] = field(default_factory=dict)
    remarked: Mapping[str, int] = field(default_factory=dict)
    samples: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def topic(self, wanted: str | None = None) -> str:
        """The topic to plan for: the wanted one, or the only one (empty: the history names none).

        Raises:
            NoSuchTopic: The history does not have it.
            SeveralTopics: There is more than one, and none was named.
        """
        topics = list(self.cells)
        if wanted is not None and wanted not in topics:
            raise NoSuchTopic(wanted, topics)
        if wanted is None and len(topics) > 1:
            raise SeveralTopics(topics)
        return topics[0] if wanted is None else wanted

    @property
    def timers(self) -> int:
        """Rows that count."""
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
        """How many cells there are."""
        return sum(map(len, self.cells.values()))

    def save(self, path: Path | str) -> None:
        """Write it as one Parquet file of `columns.CELLS_SCHEMA`, the quarantine in the file's metadata."""
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
        """Read what `save` wrote.

        Raises:
            StatisticUnreadable: There is no such file, or something else is in it.
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
    """A ``pyarrow.Table`` of `CELLS_ARROW`: one row per cell, topics in order of their names."""
    tables = [
        pa.table(
            [pa.repeat(pa.scalar(topic), len(of)), pa.repeat(pa.scalar(of.level, pa.int32()), len(of)), *of.facts()],
            schema=CELLS_ARROW,
        )
        for topic, of in sorted(cells.items())
    ]
    return pa.concat_tables(tables) if tables else CELLS_ARROW.empty_table()


def cells_by_topic(table: Any) -> dict[str, Cells]:
    """The cells of a ``pyarrow.Table`` that has the columns of `CELLS_ARROW`, whatever the order of its rows.

    Raises:
        ValueError: A level that there is not.
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
        # Rows of one topic may be of several levels where tasks hand on theirs: they meet at the coarsest.
        found[name] = Cells.of_facts(int(levels[mine].max()), [np.ascontiguousarray(fact[mine]) for fact in facts])
    return found

"""Survey store: a folder with a pair of Parquet files for each day; a day's survey adds a pair, `rm` removes a pair.

``2026-11-01.cells.parquet`` has the rows of `columns.CELLS_SCHEMA`, and the other facts in its metadata;
``2026-11-01.gaps.parquet`` has the native gaps. Cells are written last: a day without cells does not exist.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from timewheel.spark_planner.errors import DaysAlreadyStored, StatisticUnreadable
from timewheel.spark_planner.history import columns
from timewheel.spark_planner.history.keys import KeyShares
from timewheel.spark_planner.history.topics import rows_by_topic
from timewheel.spark_planner.summary.daily_gaps import FINEST_STEP_MS, DailyGaps
from timewheel.spark_planner.summary.statistic import Statistic, cells_by_topic, cells_table
from timewheel.spark_planner.summary.survey import SURVEY_CELLS, Survey

__all__ = ["add_survey", "day_name", "drop_days_before", "load_survey", "stored_days"]

FORMAT = 1
_NOTE = b"timewheel.survey"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GAPS_ARROW = pa.schema(
    [pa.field(columns.TOPIC, pa.string()), *(pa.field(name, pa.int64()) for name in ("step_ms", "moment", "change"))]
)


def day_name(day: int) -> str:
    """Format a UTC day since 1970 as in file names."""
    return f"{_EPOCH + timedelta(days=day):%Y-%m-%d}"


def _day_named(name: str) -> int:
    return (datetime.strptime(name, "%Y-%m-%d").replace(tzinfo=UTC) - _EPOCH).days


def stored_days(folder: Path) -> dict[int, Path]:
    """Return the stored days, ascending, with the file of cells of each."""
    found = {}
    for path in folder.glob("*.cells.parquet"):
        named = re.fullmatch(r"(\d{4}-\d{2}-\d{2})\.cells\.parquet", path.name)
        if named:
            found[_day_named(named[1])] = path
    return dict(sorted(found.items()))


def add_survey(survey: Survey, folder: Path, existing: Literal["refuse", "replace", "add"] = "refuse") -> list[int]:
    """Write each day of a survey.

    Args:
        survey: A survey of at least one timer.
        folder: Created if missing; its parent has to exist.
        existing: Treatment of days that are already stored: ``refuse`` writes nothing at all, ``replace`` overwrites
            them, and ``add`` adds to them (timers of another region or of other topics; the same timers would count
            twice).

    Returns:
        The written days.

    Raises:
        DaysAlreadyStored: Some days are already stored, and ``existing`` is ``refuse``.
        StatisticUnreadable: A day to be added to cannot be read.
    """
    days = survey.by_day()
    there = stored_days(folder)
    both = sorted(days.keys() & there.keys())
    if both and existing == "refuse":
        raise DaysAlreadyStored(str(folder), [day_name(day) for day in both])
    if existing == "add":
        for day in both:
            days[day] = Survey.merged([_read_day(there[day]), days[day]])
    folder.mkdir(exist_ok=True)
    for day, own in days.items():
        _write_day(own, folder, day_name(day))
    return sorted(days)


def drop_days_before(folder: Path, day: int) -> list[int]:
    """Remove earlier days.

    Returns:
        The removed days.
    """
    dropped = [old for old in stored_days(folder) if old < day]
    for old in dropped:
        # The cells first: a day without cells does not exist.
        for kind in ("cells", "gaps"):
            (folder / f"{day_name(old)}.{kind}.parquet").unlink(missing_ok=True)
    return dropped


def load_survey(folder: Path | str, cell_limit: int = SURVEY_CELLS) -> Survey:
    """Read all days of a folder as one survey.

    Raises:
        StatisticUnreadable: The folder has no stored days, or a file is not a survey.
    """
    files = stored_days(Path(folder))
    if not files:
        raise StatisticUnreadable(str(folder), "there is no day of a survey in it (timewheel survey HISTORY -o FOLDER)")
    return Survey.merged([_read_day(path) for path in files.values()], cell_limit)


def _write_day(survey: Survey, folder: Path, name: str) -> None:
    statistic = survey.statistic
    note = {
        "format": FORMAT,
        "quarantined": dict(statistic.quarantined),
        "remarked": dict(statistic.remarked),
        "samples": dict(statistic.samples),
        "keys": {topic: [keys.timers, keys.heavy] for topic, keys in survey.keys.items()},
    }
    cells = cells_table(statistic.cells).replace_schema_metadata({_NOTE: json.dumps(note).encode()})
    for kind, table in (("gaps", _gaps_table(survey.gaps)), ("cells", cells)):
        path = folder / f"{name}.{kind}.parquet"
        new = path.with_name(f".{path.name}.new")
        pq.write_table(table, str(new), compression="zstd")
        new.replace(path)


def _gaps_table(gaps: Mapping[str, DailyGaps]) -> Any:
    tables = [
        pa.table(
            [
                pa.repeat(pa.scalar(topic), len(own)),
                pa.repeat(pa.scalar(own.step_ms, pa.int64()), len(own)),
                own.moment,
                own.change,
            ],
            schema=_GAPS_ARROW,
        )
        for topic, own in sorted(gaps.items())
    ]
    return pa.concat_tables(tables) if tables else _GAPS_ARROW.empty_table()


def _read_day(path: Path) -> Survey:
    try:
        cells = pq.read_table(str(path))
        note = json.loads((cells.schema.metadata or {})[_NOTE])
        if note["format"] != FORMAT:
            raise StatisticUnreadable(str(path), f"it is of format {note['format']}, not {FORMAT}")
        name = path.name.removesuffix(".cells.parquet")
        day = _day_named(name)
        statistic = Statistic(
            cells=cells_by_topic(cells),
            quarantined=note["quarantined"],
            remarked=note["remarked"],
            samples={reason: tuple(texts) for reason, texts in note["samples"].items()},
        )
        gaps = _gaps_of(pq.read_table(str(path.with_name(f"{name}.gaps.parquet"))), day)
        return Survey(
            statistic=statistic,
            gaps={topic: gaps.get(topic, DailyGaps.none()) for topic in statistic.cells},
            keys={
                topic: KeyShares(timers, tuple((key, count) for key, count in heavy))
                for topic, (timers, heavy) in note["keys"].items()
            },
        )
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        if isinstance(error, StatisticUnreadable):
            raise
        raise StatisticUnreadable(str(path), f"no day of a survey ({error})") from error


def _gaps_of(table: Any, day: int) -> dict[str, DailyGaps]:
    names, rows_of_each = rows_by_topic(table[columns.TOPIC])
    steps, moments, changes = (np.ascontiguousarray(table[name].to_numpy()) for name in ("step_ms", "moment", "change"))
    found = {}
    for name, rows in zip(names, rows_of_each, strict=True):
        own = moments[rows]
        step_ms = int(steps[rows].max(initial=FINEST_STEP_MS))
        found[name] = DailyGaps.merged(
            [DailyGaps(step_ms=step_ms, day=np.full(len(own), day), moment=own, change=changes[rows])]
        )
    return found

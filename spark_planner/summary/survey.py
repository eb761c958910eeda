"""Survey: the summary of a history by day, so that a day can be added, left out, or come from another region.

Under native delays on a single partition an entry has a range behind it from its own acknowledgement until that of the
entry before it, if that is later (`timewheel.core.gap_law`). So each timer changes the number of gaps at two moments,
and the changes by a day's timers can be stored separately, in a few kilobytes a day: the gaps of several days are the
sum of theirs. The result is exact at the stored moments, for any dependence between the delays of neighbours.

The store is a folder with a pair of Parquet files for each day; a day's survey adds a pair, `rm` removes a pair.
``2026-11-01.cells.parquet`` has the rows of `columns.CELLS_SCHEMA`, and the other facts in its metadata;
``2026-11-01.gaps.parquet`` has the native gaps. Cells are written last: a day without cells does not exist.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from timewheel.core.durations import DAY_MS

from ..errors import DaysAlreadyStored, StatisticUnreadable
from ..history import columns
from ..history.columns import rows_by_topic
from ..history.keys import EVEN, KeyShares
from .cells import Cells, Floats, Integers, bounded_together
from .statistic import Statistic, cells_table, noted_table, readable, table_by_topic

FINEST_STEP_MS = 1_000  # the broker's default tick. All other steps are this step, doubled one or more times.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DailyGaps:
    """Changes of the number of gaps at moments, by the day on which the timers were sent.

    All arrays have the same length, ordered by (day, moment), each pair once.
    """

    step_ms: int  # moments are multiples of it since 1970
    day: Integers  # UTC days since 1970 on which timers were sent
    moment: Integers
    change: Integers  # ranges that begin, less those that end, after the previous moment and up to this moment; not 0

    @classmethod
    def none(cls, step_ms: int = FINEST_STEP_MS) -> DailyGaps:
        empty = np.zeros(0, np.int64)
        return cls(step_ms=step_ms, day=empty, moment=empty, change=empty)

    @classmethod
    def of_sends(cls, publish_ms: Integers, due_ms: Integers, step_ms: int) -> DailyGaps:
        """Count the gaps of consecutive sends.

        Args:
            publish_ms: Send times, ascending, UTC milliseconds.
            due_ms: Due time of each send.
            step_ms: `FINEST_STEP_MS`, doubled any number of times.
        """
        later = np.flatnonzero(due_ms[1:] < due_ms[:-1]) + 1
        day = publish_ms[later] // DAY_MS
        ones = np.ones(len(later), np.int64)
        return _summed(
            step_ms,
            np.concatenate([day, day]),
            np.concatenate([_moment(due_ms[later], step_ms), _moment(due_ms[later - 1], step_ms)]),
            np.concatenate([ones, -ones]),
        )

    @classmethod
    def merged(cls, parts: Iterable[DailyGaps]) -> DailyGaps:
        """Merge several gap counts, at the longest of their steps."""
        found = list(parts)
        step_ms = max((part.step_ms for part in found), default=FINEST_STEP_MS)
        at_step = [part.coarsened(step_ms) for part in found] or [cls.none()]
        columns = zip(*((part.day, part.moment, part.change) for part in at_step), strict=True)
        return _summed(step_ms, *map(np.concatenate, columns))

    def coarsened(self, step_ms: int) -> DailyGaps:
        """Return the same gaps at fewer moments, a subset of these."""
        if step_ms == self.step_ms:
            return self
        if step_ms < self.step_ms or step_ms % self.step_ms:
            raise ValueError(f"moments {step_ms} ms apart are not among those {self.step_ms} ms apart")
        return _summed(step_ms, self.day, _moment(self.moment * self.step_ms, step_ms), self.change)

    def of_day(self, day: int) -> DailyGaps:
        """Return the changes by the timers of one day."""
        mine = self.day == day
        return DailyGaps(step_ms=self.step_ms, day=self.day[mine], moment=self.moment[mine], change=self.change[mine])

    def __len__(self) -> int:
        return len(self.change)

    @property
    def curve(self) -> tuple[Integers, Integers]:
        """(moments of changes, UTC milliseconds, ascending; gaps from each moment on)."""
        moments, index = np.unique(self.moment, return_inverse=True)
        changes = np.zeros(len(moments), np.int64)
        np.add.at(changes, index, self.change)
        return moments * self.step_ms, np.cumsum(changes)

    @property
    def peak(self) -> int:
        """The most gaps at any of the moments."""
        return int(self.curve[1].max(initial=0))

    def at(self, at_ms: Floats | Integers) -> Integers:
        """Return the gaps at any times; between two stored moments the gaps of the earlier."""
        moments_ms, gaps = self.curve
        found: Integers = np.r_[0, gaps][np.searchsorted(moments_ms, at_ms, "right")]
        return found


def _moment(at_ms: Integers, step_ms: int) -> Integers:
    """Return the first moment at or after each time."""
    found: Integers = -(-at_ms // step_ms)
    return found


def _summed(step_ms: int, day: Integers, moment: Integers, change: Integers) -> DailyGaps:
    order = np.lexsort((moment, day))
    day, moment, change = day[order], moment[order], change[order]
    is_first = np.ones(len(day), np.bool_)
    is_first[1:] = (day[1:] != day[:-1]) | (moment[1:] != moment[:-1])
    starts = np.flatnonzero(is_first)
    sums = np.add.reduceat(change, starts) if len(starts) else change
    cached = sums != 0
    return DailyGaps(step_ms=step_ms, day=day[starts][cached], moment=moment[starts][cached], change=sums[cached])


SURVEY_CELLS = 2_000_000  # most cells of all days and topics together, after merging: 180 MB


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Survey:
    """The summary of a history without its rows.

    Args:
        statistic: Statistic from which gaps are estimated under any plan.
        gaps: By topic, native gaps of a single partition, counted.
        keys: By topic, the heaviest keys.
    """

    statistic: Statistic
    gaps: Mapping[str, DailyGaps] = field(default_factory=dict)
    keys: Mapping[str, KeyShares] = field(default_factory=dict)

    @classmethod
    def merged(cls, parts: Iterable[Survey], cell_limit: int = SURVEY_CELLS) -> Survey:
        """Merge surveys of other days, other regions or other topics.

        If two have timers of the same topic and day, gaps are counted in each separately, as in separate topics.
        """
        found = list(parts)
        topics = sorted({topic for part in found for topic in part.statistic.cells})
        cells = {
            topic: [part.statistic.cells[topic] for part in found if topic in part.statistic.cells] for topic in topics
        }
        return cls(
            statistic=Statistic(
                cells=bounded_together(cells, cell_limit),
                quarantined=_summed_gaps(part.statistic.quarantined for part in found),
                remarked=_summed_gaps(part.statistic.remarked for part in found),
                samples={reason: texts for part in found for reason, texts in part.statistic.samples.items()},
            ),
            gaps={
                topic: DailyGaps.merged(part.gaps[topic] for part in found if topic in part.gaps) for topic in topics
            },
            keys={
                topic: KeyShares.merged(part.keys[topic] for part in found if topic in part.keys) for topic in topics
            },
        )

    @property
    def days(self) -> list[int]:
        """UTC days since 1970 on which timers were sent, ascending."""
        return sorted({day for cells in self.statistic.cells.values() for day in np.unique(_day_of(cells)).tolist()})

    def by_day(self) -> dict[int, Survey]:
        """Split the survey by the days on which timers were sent.

        The weights of keys are only known for the whole survey, so each day gets its share. Rows that were not used
        belong to the last day: some have no time.
        """
        found, days = {}, self.days
        for day in days:
            of_day = {topic: own.where(_day_of(own) == day) for topic, own in self.statistic.cells.items()}
            cells = {topic: own for topic, own in of_day.items() if len(own)}
            keys = {}
            for topic, own in cells.items():
                whole = self.keys.get(topic, EVEN)
                heavy = ((key, round(timers * own.timers / whole.timers)) for key, timers in whole.heavy)
                keys[topic] = KeyShares(own.timers, tuple(heavy))
            found[day] = Survey(
                statistic=replace(self.statistic, cells=cells) if day == days[-1] else Statistic(cells=cells),
                gaps={topic: self.gaps[topic].of_day(day) for topic in cells if topic in self.gaps},
                keys=keys,
            )
        return found


def _day_of(cells: Cells) -> Integers:
    return cells.middle_ms // DAY_MS


def _summed_gaps(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for count in counts:
        total.update(count)
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))


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
        **statistic.note(),
        "keys": {topic: [keys.timers, keys.heavy] for topic, keys in survey.keys.items()},
    }
    cells = cells_table(statistic.cells).replace_schema_metadata({_NOTE: json.dumps(note).encode()})
    gaps = {topic: (own.step_ms, (own.moment, own.change)) for topic, own in survey.gaps.items()}
    for kind, table in (("gaps", table_by_topic(_GAPS_ARROW, gaps)), ("cells", cells)):
        path = folder / f"{name}.{kind}.parquet"
        new = path.with_name(f".{path.name}.new")
        pq.write_table(table, str(new), compression="zstd")
        new.replace(path)


def _read_day(path: Path) -> Survey:
    with readable(path, "no day of a survey"):
        cells, note = noted_table(path, _NOTE, FORMAT)
        name = path.name.removesuffix(".cells.parquet")
        day = _day_named(name)
        statistic = Statistic.of_note(cells, note)
        gaps = _gaps_of(pq.read_table(str(path.with_name(f"{name}.gaps.parquet"))), day)
        return Survey(
            statistic=statistic,
            gaps={topic: gaps.get(topic, DailyGaps.none()) for topic in statistic.cells},
            keys={
                topic: KeyShares(timers, tuple((key, count) for key, count in heavy))
                for topic, (timers, heavy) in note["keys"].items()
            },
        )


def _gaps_of(table: Any, day: int) -> dict[str, DailyGaps]:
    names, rows_of_each = rows_by_topic(table[columns.TOPIC])
    steps, moments, changes = (np.ascontiguousarray(table[name].to_numpy()) for name in ("step_ms", "moment", "change"))
    found = {}
    for name, rows in zip(names, rows_of_each, strict=True):
        step_ms, moment = int(steps[rows].max(initial=FINEST_STEP_MS)), moments[rows]
        found[name] = _summed(step_ms, np.full(len(moment), day), moment, changes[rows])
    return found

"""Survey: the summary of a history by day, so that a day can be added, left out, or come from another region."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from timewheel.core.durations import DAY_MS
from timewheel.spark_planner.history.keys import EVEN, KeyShares
from timewheel.spark_planner.summary.cells import Cells, bounded_together
from timewheel.spark_planner.summary.daily_gaps import DailyGaps
from timewheel.spark_planner.summary.statistic import Statistic

__all__ = ["SURVEY_CELLS", "Survey"]

SURVEY_CELLS = 2_000_000
"""Most cells of all days and topics together, after merging: 180 MB."""


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
            topic: Cells.merged(part.statistic.cells[topic] for part in found if topic in part.statistic.cells)
            for topic in topics
        }
        return cls(
            statistic=Statistic(
                cells=bounded_together(cells, cell_limit),
                quarantined=_summed(part.statistic.quarantined for part in found),
                remarked=_summed(part.statistic.remarked for part in found),
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
        days = self.days
        return {day: self._of_day(day, is_last=day == days[-1]) for day in days}

    def _of_day(self, day: int, *, is_last: bool) -> Survey:
        cells = {topic: own.where(_day_of(own) == day) for topic, own in self.statistic.cells.items()}
        cells = {topic: own for topic, own in cells.items() if len(own)}
        lost = self.statistic if is_last else Statistic(cells={})
        return Survey(
            statistic=Statistic(
                cells=cells, quarantined=lost.quarantined, remarked=lost.remarked, samples=lost.samples
            ),
            gaps={topic: self.gaps[topic].of_day(day) for topic in cells if topic in self.gaps},
            keys={topic: _share(self.keys.get(topic, EVEN), own.timers) for topic, own in cells.items()},
        )


def _day_of(cells: Cells) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return cells.middle_ms // DAY_MS


def _share(keys: KeyShares, timers: int) -> KeyShares:
    return KeyShares(timers, tuple((key, round(own * timers / keys.timers)) for key, own in keys.heavy))


def _summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for count in counts:
        total.update(count)
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))

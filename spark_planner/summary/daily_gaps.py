"""Native gaps of a topic by the day of sending: counted, in a few kilobytes a day, and mergeable like cells.

Under native delays on a single partition an entry has a range behind it from its own acknowledgement until that of the
entry before it, if that is later (`timewheel.core.gap_law`). So each timer changes the number of gaps at two moments,
and the changes by a day's timers can be stored separately: the gaps of several days are the sum of theirs. The result
is exact at the stored moments, for any dependence between the delays of neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from timewheel.core.durations import DAY_MS

__all__ = ["FINEST_STEP_MS", "DailyGaps"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

FINEST_STEP_MS = 1_000
"""The broker's default tick. All other steps are this step, doubled one or more times."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DailyGaps:
    """Changes of the number of gaps at moments, by the day on which the timers were sent.

    All arrays have the same length, ordered by (day, moment), each pair once.

    Args:
        step_ms: Moments are multiples of it since 1970.
        day: UTC days since 1970 on which timers were sent.
        moment: Number of the moment.
        change: Ranges that begin, less those that end, after the previous moment and up to this moment; not 0.
    """

    step_ms: int
    day: Integers
    moment: Integers
    change: Integers

    @classmethod
    def none(cls, step_ms: int = FINEST_STEP_MS) -> DailyGaps:
        """No gaps."""
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
        return _summed(
            step_ms,
            np.concatenate([part.day for part in at_step]),
            np.concatenate([part.moment for part in at_step]),
            np.concatenate([part.change for part in at_step]),
        )

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

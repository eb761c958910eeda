"""The exact result of a plan, by playing every timer through it: positions, acknowledgements, ranges; in numpy.

Written independently of the planner's code, so that the two can be compared; verified against `Router.route` and
`tests.support.cursor`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from timewheel.core.plan import Plan
from timewheel.core.steps import steps

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Played:
    """Timers in order of (topic, partition, position)."""

    topic: Integers  # calendar interval, or 0
    partition: Integers
    arrival_ms: Integers
    acknowledged_ms: Integers
    hops: Integers

    def peak(self, *, per: str = "sum") -> int:
        """Peak gaps: ``sum`` of all at one moment, or the greatest of any ``topic`` or ``partition``."""
        after, before = self._descents()
        match per:
            case "topic":
                line = self.topic
            case "partition":
                line = self.topic * (int(self.partition.max()) + 1) + self.partition
            case _:
                line = np.zeros(len(self.topic), np.int64)
        lines = line[1:][after]
        begin, end = self.acknowledged_ms[1:][after], before
        peaks = [
            int(ranges_over_time(begin[lines == one], end[lines == one])[1].max(initial=0)) for one in np.unique(lines)
        ]
        return max(peaks, default=0)

    def gaps_at(self, at_ms: Floats) -> Integers:
        """Return the number of all ranges at these moments."""
        after, end = self._descents()
        times, counts = ranges_over_time(self.acknowledged_ms[1:][after], end)
        index = np.searchsorted(times, at_ms, "right")
        found: Integers = np.r_[0, counts][index]
        return found

    def pending_peak(self) -> int:
        """Return the highest number of unacknowledged entries in due topics at any moment."""
        return int(ranges_over_time(self.arrival_ms, self.acknowledged_ms)[1].max(initial=0))

    def _descents(self) -> tuple[NDArray[np.bool_], Integers]:
        same = (self.topic[1:] == self.topic[:-1]) & (self.partition[1:] == self.partition[:-1])
        after = same & (self.acknowledged_ms[1:] < self.acknowledged_ms[:-1])
        return after, self.acknowledged_ms[:-1][after]


def native_peak(due_ms: Integers) -> int:
    """Return the most gaps of native delays, by the definition: a gap begins at each entry that is acknowledged before
    its predecessor.

    Args:
        due_ms: Due times in order of sends, into one partition.
    """
    behind = due_ms[1:] < due_ms[:-1]
    return int(ranges_over_time(due_ms[1:][behind], due_ms[:-1][behind])[1].max(initial=0))


def ranges_over_time(begin_ms: Integers, end_ms: Integers) -> tuple[Integers, Integers]:
    """Return (times, number of spans ``[begin, end)`` that are open from each time on)."""
    times, index = np.unique(np.concatenate([begin_ms, end_ms]), return_inverse=True)
    change = np.concatenate([np.ones(len(begin_ms)), -np.ones(len(end_ms))])
    return times, np.cumsum(np.bincount(index, change, len(times))).astype(np.int64)


def play(plan: Plan, publish_ms: Integers, due_ms: Integers) -> Played:
    """Play every timer through the steps of a plan; publish times ascend."""
    table = steps(plan)
    at_ms = publish_ms.copy()
    hops = np.zeros(len(at_ms), np.int64)
    open_ = np.arange(len(at_ms))
    while len(open_):
        at, due = at_ms[open_], due_ms[open_]
        release = at.copy()
        undecided = np.ones(len(open_), np.bool_)
        for step in table:
            if step.kind == "tier":
                match = undecided & (due - at >= step.min_remaining_ms)
                release[match] = at[match] + step.stay_ms
            elif step.kind == "slot":
                start = due // step.slot_ms * step.slot_ms - step.headstart_ms
                match = undecided & (start > at)
                release[match] = start[match]
            else:
                break
            undecided &= ~match
        open_, release = open_[~undecided], release[~undecided]
        at_ms[open_] = release
        hops[open_] += 1
    interval_ms = table[-1].interval_ms
    topic = np.maximum(due_ms, at_ms) // interval_ms if interval_ms else np.zeros(len(at_ms), np.int64)
    partition = np.arange(len(at_ms)) % plan.partitions
    order = np.lexsort((np.arange(len(at_ms)), at_ms, partition, topic))
    return Played(
        topic=topic[order],
        partition=partition[order],
        arrival_ms=at_ms[order],
        acknowledged_ms=np.maximum(due_ms, at_ms)[order],
        hops=hops[order],
    )

"""Predict the gaps of a due topic from its entries, and compare them with the broker's counter.

A cursor's gap begins at an acknowledged entry that follows an unacknowledged entry, or is the first of its ledger. If
due entries are acknowledged and all others are not, the due times of two neighbours decide whether a gap begins between
them. A random sample of neighbours then gives the number of gaps, for any delays and any correlation of neighbours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

from timewheel.inspect.entries import Entries
from timewheel.inspect.plan_sample import Drawn, Part, PlanSample, StoredTimer

NORMAL_95 = 1.96  # standard errors on either side of an estimate that contain the true value in 95 of 100 samples
LATE_TICKS = 2.0
"""Delivery is up to a tick late, the acknowledgement up to a tick later (broker-facts: a-tick-early-or-late)."""
SHIFTS_TICKS = (-LATE_TICKS, -1.0, -0.5, -0.25, -0.1, 0.1, 0.25, 0.5, 1.0)
"""Shifts of the prediction, up to a tick early: with short stays the number of gaps rises and falls within a tick."""
TOLERANCE = 0.05
"""Fraction of the prediction: allows for consumers that take a while to handle a timer, and for clocks that differ."""
LEAST_TOLERANCE = 3.0  # gaps: allows for changes between two reads of a busy topic


@dataclass(frozen=True, slots=True, kw_only=True)
class GapComparison:
    """Predicted and counted gaps of a subscription on a partition, or on all partitions, when the counters were read.

    Args:
        name: The partition's full name; for several partitions, the plan's due topic.
        subscription: Name of the subscription.
        counted: Gaps by the broker's counter.
        predicted: Gaps if due entries are acknowledged, and no others.
        less: Decrease of `predicted` if timers are acknowledged earlier or later by any of `SHIFTS_TICKS`.
        more: Increase of `predicted` under the same shifts.
        error: Sampling error of `predicted`, at 95 %.
        pending: Entries that are not due yet.
        pending_error: Sampling error of `pending`, at 95 %.
        fresh: Entries that came due within the last `LATE_TICKS`, and may not be acknowledged yet.
        backlog: Unacknowledged entries, by the broker's counter.
    """

    name: str
    subscription: str
    counted: int
    predicted: float
    less: float
    more: float
    error: float
    pending: float
    pending_error: float
    fresh: float
    backlog: int

    @property
    def low(self) -> float:
        """Lowest count that agrees with the prediction."""
        return max(self.predicted - self.less - self._off, 0.0)

    @property
    def high(self) -> float:
        """Highest count that agrees with the prediction."""
        return self.predicted + self.more + self._off

    @property
    def agrees(self) -> bool:
        """True if the broker's count agrees with the prediction, within the error of the sample."""
        return self.low <= self.counted <= self.high

    @property
    def overdue(self) -> float:
        """Least number of entries that are due but not acknowledged; 0 if none was found."""
        waiting = self.pending + self.fresh
        return max(self.backlog - waiting - self.pending_error - TOLERANCE * waiting - LEAST_TOLERANCE, 0.0)

    @property
    def _off(self) -> float:
        return self.error + max(TOLERANCE * self.predicted, LEAST_TOLERANCE)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A sampled entry: its number in its partition, its ledger, and the latest due time of its messages."""

    number: int
    ledger: int
    due_ms: int


def comparisons(sample: PlanSample, tick_ms: int) -> tuple[GapComparison, ...]:
    """Return predicted and counted gaps for each subscription of the plan on each partition of its due topics."""
    parts = [part for topic in sample.due for part in topic.parts]
    mine = _by_part(parts, sample.in_due.timers)
    pairs = sum(sum(_is_pair(*both) for both in pairwise(entries)) for entries in mine.values())
    # A partition of n entries has n - 1 pairs.
    population = sum(max(part.entries - 1, 0) for part in parts)
    scale = population / pairs if pairs else 1.0
    return tuple(
        _comparison(part, mine[part.name], subscription, sample.in_due, scale, tick_ms)
        for subscription in sample.plan.subscriptions
        for part in parts
    )


def together(name: str, found: Iterable[GapComparison]) -> tuple[GapComparison, ...]:
    """Sum each subscription over all partitions, which were sampled together: the squares of their errors add up."""
    by_subscription: defaultdict[str, list[GapComparison]] = defaultdict(list)
    for one in found:
        by_subscription[one.subscription].append(one)
    return tuple(
        GapComparison(
            name=name,
            subscription=subscription,
            counted=sum(one.counted for one in parts),
            predicted=sum(one.predicted for one in parts),
            less=sum(one.less for one in parts),
            more=sum(one.more for one in parts),
            error=sqrt(sum(one.error**2 for one in parts)),
            pending=sum(one.pending for one in parts),
            pending_error=sqrt(sum(one.pending_error**2 for one in parts)),
            fresh=sum(one.fresh for one in parts),
            backlog=sum(one.backlog for one in parts),
        )
        for subscription, parts in by_subscription.items()
    )


def _by_part(parts: Sequence[Part], timers: Iterable[StoredTimer]) -> dict[str, list[_Entry]]:
    """Group the sampled entries by partition, in order."""
    stored = {part.name: Entries((part.name, run) for run in part.runs) for part in parts}
    found: dict[str, dict[int, _Entry]] = {part.name: {} for part in parts}
    for timer in timers:
        number = stored[timer.place.topic].number_of(timer.place.position)
        other = found[timer.place.topic].get(number)
        # An entry is acknowledged once all messages of its batch are.
        due_ms = timer.due_ms if other is None else max(timer.due_ms, other.due_ms)
        found[timer.place.topic][number] = _Entry(number, timer.place.position.ledger, due_ms)
    return {name: [entries[number] for number in sorted(entries)] for name, entries in found.items()}


def _is_pair(first: _Entry, second: _Entry) -> bool:
    return second.number == first.number + 1


def _comparison(
    part: Part, entries: Sequence[_Entry], subscription: str, drawn: Drawn, scale: float, tick_ms: int
) -> GapComparison:
    cursor = part.cursors[subscription]
    after = Entries((part.name, run) for run in part.runs).number_after(cursor.mark_delete)
    beyond = [entry for entry in entries if entry.number >= after]
    now_ms = part.at_ms
    begins = sum(_begins(beyond, now_ms))
    others = [sum(_begins(beyond, now_ms + shift * tick_ms)) * scale for shift in SHIFTS_TICKS]
    predicted = begins * scale
    waiting = sum(entry.due_ms > now_ms for entry in beyond)
    fresh = sum(now_ms - LATE_TICKS * tick_ms < entry.due_ms <= now_ms for entry in beyond)
    return GapComparison(
        name=part.name,
        subscription=subscription,
        counted=cursor.gap_count,
        predicted=predicted,
        less=max(predicted - min(others), 0.0),
        more=max(max(others) - predicted, 0.0),
        error=_error(begins, scale),
        pending=waiting * drawn.scale,
        pending_error=_error(waiting, drawn.scale),
        fresh=fresh * drawn.scale,
        backlog=cursor.backlog,
    )


def _begins(entries: Sequence[_Entry], at_ms: float) -> Iterator[bool]:
    """Yield for each pair of neighbours True if a gap begins at the second."""
    for first, second in pairwise(entries):
        if _is_pair(first, second):
            is_new = first.due_ms > at_ms or first.ledger != second.ledger
            yield is_new and second.due_ms <= at_ms


def _error(found: int, scale: float) -> float:
    """Return the error at 95 % of a count in a sample without replacement; 0 if every entry was read."""
    return NORMAL_95 * scale * sqrt((found + 1) * max(1 - 1 / scale, 0.0)) if scale > 1 else 0.0

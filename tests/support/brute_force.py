"""Gaps by brute force, from the definition: positions, acknowledgements, ranges of one partition. Times are in ms.

Shares nothing with the planner: not its routes, not its counting, not the step table of `timewheel.core`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from timewheel.core.plan import Calendar, Native, Plan, Tiered, Wheel

Integers = NDArray[np.int64]


class Arrivals(NamedTuple):
    """Timers in their due topics."""

    at_ms: Integers
    acknowledged_ms: Integers
    topic: Integers  # number of the calendar's topic; 0: there is one


def arrivals(plan: Plan, sent_ms: Integers, due_ms: Integers) -> Arrivals:
    """Send timers through a plan, one hop at a time."""
    at_ms, one_topic = sent_ms.copy(), np.zeros(len(sent_ms), np.int64)
    match plan.scheme:
        case Native():
            return Arrivals(at_ms, due_ms, one_topic)
        case Calendar(interval_ms=interval_ms):
            return Arrivals(at_ms, due_ms, due_ms // interval_ms)
        case Tiered(window_ms=window_ms, tiers_ms=tiers_ms):
            # The largest tier that ends a guard before the due time, until the timer is within the window.
            hopped = True
            while hopped:
                left_ms, waits = due_ms - at_ms, np.zeros(len(at_ms), np.bool_)
                for tier_ms in sorted(tiers_ms, reverse=True):
                    takes = ~waits & (left_ms > window_ms) & (left_ms >= tier_ms + plan.guard_ms)
                    at_ms[takes] += tier_ms
                    waits |= takes
                hopped = bool(waits.any())
        case Wheel(rings=rings):
            # Each ring, the coarsest first, until a head start before the slot begins, if that is still to come.
            for ring in sorted(rings, key=lambda ring: -ring.slot_ms):
                ahead_ms = plan.guard_ms if ring.headstart_ms is None else ring.headstart_ms
                at_ms = np.maximum(at_ms, due_ms // ring.slot_ms * ring.slot_ms - ahead_ms)
    return Arrivals(at_ms, np.maximum(due_ms, at_ms), one_topic)


def spans(acknowledged_ms: Integers, ledger: Integers | None = None) -> tuple[Integers, Integers]:
    """Return (begin, end) of every range of a partition, from its entries in order of position, with their ledgers."""
    before_ms, begin_ms = acknowledged_ms[:-1].copy(), acknowledged_ms[1:]
    if ledger is not None:
        # A ledger's first entry begins a range until all entries before it are acknowledged.
        first = np.flatnonzero(np.diff(ledger))
        before_ms[first] = np.maximum.accumulate(acknowledged_ms)[first]
    is_range = begin_ms < before_ms
    return begin_ms[is_range], before_ms[is_range]


def peak(begin_ms: Integers, end_ms: Integers) -> int:
    """Return the most ranges at one moment."""
    begin_ms, end_ms = np.sort(begin_ms), np.sort(end_ms)
    open_ = np.searchsorted(begin_ms, begin_ms, "right") - np.searchsorted(end_ms, begin_ms, "right")
    return int(open_.max(initial=0))


class Rollover(NamedTuple):
    """When a ledger closes: at the next entry once it is full and old enough, or too old."""

    entries: int
    min_age_ms: int
    max_age_ms: int

    def ledgers(self, at_ms: Integers) -> Integers:
        """Return the ledger of each entry of a partition."""
        found, number, size, opened_ms = [], 0, 0, int(at_ms[0])
        for moment_ms in at_ms.tolist():
            age_ms = moment_ms - opened_ms
            if (size >= self.entries and age_ms >= self.min_age_ms) or age_ms >= self.max_age_ms:
                number, size, opened_ms = number + 1, 0, moment_ms
            found.append(number)
            size += 1
        return np.array(found, np.int64)


def literal(acknowledged_ms: Integers, at_ms: int, ledger: Integers | None = None) -> int:
    """Count the ranges as a broker sees them at a moment: runs of acknowledged entries behind the mark-delete position,
    none of them over the end of a ledger.
    """
    done = acknowledged_ms <= at_ms
    behind = done[int(np.argmin(done)) :] if not done.all() else done[:0]
    begins = behind[1:] & ~behind[:-1]
    if ledger is not None:
        begins |= behind[1:] & (np.diff(ledger[len(done) - len(behind) :]) > 0)
    return int(np.count_nonzero(begins))


def java_hash(key: str) -> int:
    """Hash a key as Java hashes a string, without the sign."""
    value = 0
    for byte in key.encode("ascii"):
        value = (31 * value + byte) % 2**32
    return value % 2**31


def most_gaps(
    plan: Plan,
    sent_ms: Integers,
    due_ms: Integers,
    partition: Integers | None = None,
    rollover: Rollover | None = None,
) -> int:
    """Return the most gaps of any partition, of sends in order.

    Args:
        plan: Native delays, a calendar, tiers or rings.
        sent_ms: Times of the sends, ascending.
        due_ms: Their due times.
        partition: Their partitions; None: in turns.
        rollover: When ledgers close; None: never.
    """
    entries = entries_of(plan, sent_ms, due_ms, partition, rollover)
    return max(peak(*spans(acknowledged_ms, ledger)) for acknowledged_ms, ledger in entries)


def entries_of(
    plan: Plan, sent_ms: Integers, due_ms: Integers, partition: Integers | None, rollover: Rollover | None
) -> Iterator[tuple[Integers, Integers | None]]:
    """Return (times of acknowledgement, ledgers) of the entries of each due partition; arguments as in `most_gaps`."""
    partitions = max(plan.partitions, 1)
    at_ms, acknowledged_ms, topic = arrivals(plan, sent_ms, due_ms)
    line = topic * partitions + (np.arange(len(sent_ms)) % partitions if partition is None else partition)
    order = np.lexsort((at_ms, line))  # which leaves sends of one moment in their order
    borders = np.flatnonzero(np.diff(line[order])) + 1
    for own in np.split(order, borders):
        yield acknowledged_ms[own], None if rollover is None else rollover.ledgers(at_ms[own])

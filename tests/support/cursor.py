"""A broker's cursor by brute force: which entries are acknowledged, and its ranges; the oracle for the law of gaps."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple


class Stored(NamedTuple):
    """An entry of a partition, and when it is acknowledged; None: never."""

    ledger: int
    entry: int
    acknowledged_ms: int | None


def in_ledgers(acknowledged_ms: Sequence[int | None], ledger_entries: int = 0) -> list[Stored]:
    """Return entries in position order, with this number in each ledger; 0: all in the same ledger."""
    size = ledger_entries or len(acknowledged_ms) + 1
    return [Stored(index // size, index % size, time_ms) for index, time_ms in enumerate(acknowledged_ms)]


def ranges_at(entries: Sequence[Stored], at_ms: int) -> int:
    """Count ranges of acknowledged entries behind the mark-delete position.

    Args:
        entries: All entries of a partition, in position order; missing entries within or at the start of a ledger are
            not acknowledged.
        at_ms: The moment; acknowledgements at this moment are included.
    """
    acknowledged = {(ledger, entry) for ledger, entry, time_ms in entries if time_ms is not None and time_ms <= at_ms}
    marked = True  # all entries so far are acknowledged: the mark-delete position moves on
    ranges = 0
    previous: tuple[int, int] | None = None
    for ledger, entry, _ in entries:
        position = (ledger, entry)
        if previous is not None:
            expected = (ledger, previous[1] + 1) if previous[0] == ledger else (ledger, 0)
            marked = marked and position == expected
        if position not in acknowledged:
            marked = False
        elif not marked and (ledger, entry - 1) not in acknowledged:
            ranges += 1
        previous = position
    return ranges


def brute_force_peak(entries: Sequence[Stored]) -> int:
    """Return the highest number of ranges at any moment."""
    times_ms = {time_ms for _, _, time_ms in entries if time_ms is not None}
    return max((ranges_at(entries, time_ms) for time_ms in times_ms), default=0)


def exact_gaps(acknowledged_ms: Sequence[int], at_ms: Sequence[int]) -> list[int]:
    """Count gap ranges exactly.

    Args:
        acknowledged_ms: Acknowledgement time of each entry of **a single ledger**, in position order.
        at_ms: Moments at which to count, ascending.

    Returns:
        A count per moment. Only descents matter: +1 at ``a_i``, -1 at ``a_(i-1)``.
    """
    changes: defaultdict[int, int] = defaultdict(int)
    for before, after in pairwise(acknowledged_ms):
        if after < before:
            changes[after] += 1
            changes[before] -= 1
    times = sorted(changes)
    running, counts = 0, [0]
    for time_ms in times:
        running += changes[time_ms]
        counts.append(running)
    return [counts[bisect_right(times, moment_ms)] for moment_ms in at_ms]

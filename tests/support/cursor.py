"""A cursor as the broker keeps it, by brute force: which entries are acknowledged, walked range by range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Stored", "brute_force_peak", "in_ledgers", "ranges_at"]


class Stored(NamedTuple):
    """An entry of one partition, and when it is acknowledged; None: not at all."""

    ledger: int
    entry: int
    acknowledged_ms: int | None


def in_ledgers(acknowledged_ms: Sequence[int | None], ledger_entries: int = 0) -> list[Stored]:
    """Entries in position order, so many to a ledger; 0: all in one."""
    size = ledger_entries or len(acknowledged_ms) + 1
    return [Stored(index // size, index % size, time_ms) for index, time_ms in enumerate(acknowledged_ms)]


def ranges_at(entries: Sequence[Stored], at_ms: int) -> int:
    """Ranges of acknowledged entries behind the mark-delete position.

    Args:
        entries: All of a partition, in position order; what is missing within or at the start of a ledger is not
            acknowledged.
        at_ms: The moment, what is acknowledged then included.
    """
    acknowledged = {(ledger, entry) for ledger, entry, time_ms in entries if time_ms is not None and time_ms <= at_ms}
    marked = True  # so far everything is acknowledged: the mark-delete position moves along
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
    """The most ranges at any moment."""
    times_ms = {time_ms for _, _, time_ms in entries if time_ms is not None}
    return max((ranges_at(entries, time_ms) for time_ms in times_ms), default=0)

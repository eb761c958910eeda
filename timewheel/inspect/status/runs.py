"""Unacknowledged entries of a partition as runs: pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from timewheel.broker.admin.internals import CursorStats, EntryPosition, Ledger


class OpenRun(NamedTuple):
    """Consecutive entries of a ledger."""

    ledger: int
    first: int
    entries: int


def open_runs(cursor: CursorStats, ledgers: Sequence[Ledger]) -> tuple[OpenRun, ...]:
    """Return the entries after the mark-delete position and outside the acknowledged ranges, in topic order."""
    acked = cursor.acked_ranges()
    runs: list[OpenRun] = []
    at = 0
    for ledger in ledgers:
        first = cursor.mark_delete.entry + 1 if ledger.ledger_id == cursor.mark_delete.ledger else 0
        if ledger.ledger_id < cursor.mark_delete.ledger:
            continue
        while at < len(acked) and acked[at].upto.ledger < ledger.ledger_id:
            at += 1
        while at < len(acked) and acked[at].after.ledger <= ledger.ledger_id:
            begin = acked[at].after.entry + 1 if acked[at].after.ledger == ledger.ledger_id else 0
            runs += _run(ledger.ledger_id, first, begin)
            if acked[at].upto.ledger > ledger.ledger_id:
                first = ledger.entries  # the range continues in the next ledger
                break
            first = max(first, acked[at].upto.entry + 1)
            at += 1
        runs += _run(ledger.ledger_id, first, ledger.entries)
    return tuple(runs)


def positions_of(runs: Sequence[OpenRun], numbers: Sequence[int]) -> Iterator[EntryPosition]:
    """Yield the positions of the entries with these numbers, counted through all runs."""
    ends = list(accumulate(run.entries for run in runs))
    for number in numbers:
        which = bisect_right(ends, number)
        run = runs[which]
        yield EntryPosition(run.ledger, run.first + number - (ends[which] - run.entries))


def _run(ledger: int, first: int, until: int) -> list[OpenRun]:
    return [OpenRun(ledger, first, until - first)] if until > first else []

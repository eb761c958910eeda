"""Arithmetic of stored entries: runs of entries, acknowledged or open, and their numbers through all ledgers. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from timewheel.broker.admin.stats import AckedRange, CursorStats, Ledger
from timewheel.client.positions import EntryPosition


class Run(NamedTuple):
    """Entries of a ledger, from ``first`` to ``last`` inclusive."""

    ledger: int
    first: int
    last: int

    @property
    def entries(self) -> int:
        return self.last - self.first + 1


class Place(NamedTuple):
    """Location of an entry."""

    topic: str
    position: EntryPosition


class Entries:
    """Entries of runs, numbered from 0 through all runs.

    Args:
        runs: Runs with their topics (partitions, or topics without partitions), in order.
    """

    def __init__(self, runs: Iterable[tuple[str, Run]]) -> None:
        self._runs = tuple(runs)
        self._ends = tuple(accumulate(run.entries for _, run in self._runs))

    @classmethod
    def stored(cls, topic: str, ledgers: Iterable[Ledger]) -> Entries:
        """Return all stored entries of a partition."""
        return cls((topic, run) for run in ledger_runs(ledgers))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def place(self, number: int) -> Place:
        """Return the place of an entry."""
        which = bisect_right(self._ends, number)
        topic, run = self._runs[which]
        return Place(topic, EntryPosition(run.ledger, run.last + 1 + number - self._ends[which]))

    def places(self) -> Iterator[Place]:
        """Yield the places of all entries, in order."""
        return map(self.place, range(len(self)))

    def number_of(self, position: EntryPosition) -> int:
        """Return the number of the first entry at or after a position of the only topic; their count if none is."""
        which = bisect_left(self._runs, position, key=lambda one: EntryPosition(one[1].ledger, one[1].last))
        if which == len(self._runs):
            return len(self)
        run = self._runs[which][1]
        into = max(position.entry - run.first, 0) if position.ledger == run.ledger else 0
        return self._ends[which] - run.entries + into

    def number_after(self, position: EntryPosition) -> int:
        """Return the number of the first entry after a position, such as a mark-delete position."""
        return self.number_of(EntryPosition(position.ledger, position.entry + 1))


def ledger_runs(ledgers: Iterable[Ledger]) -> Iterator[Run]:
    """Yield the entries of each ledger that is not empty."""
    return (Run(ledger.ledger_id, 0, ledger.entries - 1) for ledger in ledgers if ledger.entries)


def runs_of(ranges: Iterable[AckedRange], ledgers: Sequence[Ledger]) -> Iterator[Run]:
    """Split ranges by ledger, in topic order. Brokers that cache bitmaps end a range with its ledger."""
    last_entry = {ledger.ledger_id: ledger.entries - 1 for ledger in ledgers}
    for after, upto in ranges:
        if after.ledger == upto.ledger:
            yield Run(after.ledger, after.entry + 1, upto.entry)
            continue
        if after.entry < last_entry.get(after.ledger, -1):
            yield Run(after.ledger, after.entry + 1, last_entry[after.ledger])
        for ledger_id, last in last_entry.items():
            if after.ledger < ledger_id < upto.ledger and last >= 0:
                yield Run(ledger_id, 0, last)
        yield Run(upto.ledger, 0, upto.entry)


def open_runs(cursor: CursorStats, ledgers: Sequence[Ledger]) -> Iterator[Run]:
    """Yield the entries after the mark-delete position and outside the acknowledged ranges, in topic order."""
    acked: defaultdict[int, list[Run]] = defaultdict(list)
    for run in runs_of(cursor.acked_ranges(), ledgers):
        acked[run.ledger].append(run)
    mark = cursor.mark_delete
    for ledger, _, last in ledger_runs(ledgers):
        if ledger < mark.ledger:
            continue
        first = mark.entry + 1 if ledger == mark.ledger else 0
        for run in acked[ledger]:
            if first < run.first:
                yield Run(ledger, first, run.first - 1)
            first = max(first, run.last + 1)
        if first <= last:
            yield Run(ledger, first, last)


def open_entries(topic: str, cursor: CursorStats, ledgers: Sequence[Ledger]) -> Entries:
    """Return the unacknowledged entries of a partition."""
    return Entries((topic, run) for run in open_runs(cursor, ledgers))


def holes_of(cursor: CursorStats, ledgers: Sequence[Ledger]) -> Iterator[Run]:
    """Yield the open entries before each range of acknowledged entries, in the range's ledger or in the ledger before.

    Ranges split only by the end of a ledger share a hole.
    """
    whole = [EntryPosition(ledger, last) for ledger, _, last in ledger_runs(ledgers)]
    before = {later.ledger: earlier for earlier, later in pairwise(whole)}
    ending = {EntryPosition(run.ledger, run.last): run for run in open_runs(cursor, ledgers)}
    for run in runs_of(cursor.acked_ranges(), ledgers):
        end = EntryPosition(run.ledger, run.first - 1) if run.first else before.get(run.ledger)
        if end in ending:
            yield ending[end]

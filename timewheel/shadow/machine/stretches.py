"""Selects the part of a topic to read if all of it would be too much: stretches at even distances."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from timewheel.broker.admin.stats import CursorStats, Ledger
from timewheel.client.positions import EntryPosition
from timewheel.inspect.entries import runs_of

PIECES = 20
"""Number of stretches of a topic that is read in part."""


class Stretch(NamedTuple):
    """Adjacent entries.

    Args:
        after: The entry before the first.
        upto: The last of them.
        entries: Their number.
    """

    after: EntryPosition
    upto: EntryPosition
    entries: int


def entries_after(ledgers: Iterable[Ledger], position: EntryPosition) -> int:
    """Count the entries behind a position."""
    return sum(
        max(ledger.entries - position.entry - 1, 0) if ledger.ledger_id == position.ledger else ledger.entries
        for ledger in ledgers
        if ledger.ledger_id >= position.ledger
    )


def acked_entries(cursor: CursorStats, ledgers: Sequence[Ledger]) -> int:
    """Count the entries behind its mark-delete position that a cursor has acknowledged."""
    return sum(run.entries for run in runs_of(cursor.acked_ranges(), ledgers))


def stretches_of(
    ledgers: Sequence[Ledger], after: EntryPosition, most: int, pieces: int = PIECES
) -> tuple[Stretch, ...]:
    """Select the stretches to read behind a position.

    Args:
        ledgers: Ledgers of the topic, in order.
        after: The position.
        most: Largest number of entries.
        pieces: Number of stretches, if there are more entries than that.

    Returns:
        A single stretch with all entries; or several, at even distances; none if there is no entry.
    """
    runs = [
        (ledger.ledger_id, after.entry + 1 if ledger.ledger_id == after.ledger else 0, ledger.entries)
        for ledger in ledgers
        if ledger.ledger_id >= after.ledger
    ]
    runs = [(ledger, first, end) for ledger, first, end in runs if end > first]
    ends = list(accumulate(end - first for _, first, end in runs))
    total = ends[-1] if ends else 0
    if not total or most < 1:
        return ()

    def place(number: int) -> EntryPosition:
        at = bisect_right(ends, number)
        ledger, _, end = runs[at]
        return EntryPosition(ledger, end - (ends[at] - number))

    def stretch(begin: int, count: int) -> Stretch:
        first = place(begin)
        return Stretch(EntryPosition(first.ledger, first.entry - 1), place(begin + count - 1), count)

    if total <= most:
        return (stretch(0, total),)
    pieces = min(pieces, most)
    count = most // pieces
    return tuple(stretch(number * (total - count) // max(pieces - 1, 1), count) for number in range(pieces))

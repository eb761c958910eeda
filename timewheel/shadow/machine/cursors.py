"""Arithmetic on a topic's cursors and ledgers: acknowledged entries, the gaps that stay, the stretches to read."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple, Self

from timewheel.broker.admin.stats import AckedRange, CursorStats, InternalStats, Ledger, TopicStats, is_users
from timewheel.client.positions import EntryPosition
from timewheel.inspect.entries import runs_of

_ENTRY_BITS = 40  # bits of an entry's number, which is far smaller: a ledger is closed after some ten thousand entries
_BEYOND_ALL = 1 << 200


class Acked:
    """The acknowledged entries of a cursor: all up to its mark-delete position, and the ranges behind that.

    ``position in acked`` is a search in a sorted list; for positions in the order of the topic it is one comparison or
    two. An object belongs to a single thread at a time, since it remembers its last search. Ranges are disjoint and in
    topic order, and may span ledgers.
    """

    __slots__ = ("_afters", "_begin", "_end", "_last", "_mark", "_uptos", "mark_delete")

    def __init__(self, mark_delete: EntryPosition, ranges: Iterable[AckedRange] = ()) -> None:
        self.mark_delete = mark_delete
        self._mark = _packed(mark_delete)
        # Numbers and not positions: a cursor may have 200,000 ranges.
        packed = [(_packed(after), _packed(upto)) for after, upto in ranges]
        self._afters, self._uptos = [after for after, _ in packed], [upto for _, upto in packed]
        # The last search: behind `_begin`, up to `_end`. Entries up to `_last` are acknowledged, those behind it
        # pending.
        self._begin = self._last = self._end = self._mark

    @classmethod
    def of(cls, cursor: CursorStats) -> Self:
        """Build the acknowledged entries of a subscription, from its cursor in the admin API."""
        return cls(cursor.mark_delete, cursor.acked_ranges())

    def __contains__(self, position: EntryPosition) -> bool:
        at = (position[0] << _ENTRY_BITS) + position[1] + 1
        if at <= self._mark:
            return True
        if not self._begin < at <= self._end:
            self._turn_to(at)
        return at <= self._last

    def _turn_to(self, at: int) -> None:
        """Find the stretch that contains a position: a range, and the pending entries behind it."""
        number = bisect_left(self._afters, at) - 1
        self._begin = self._afters[number] if number >= 0 else self._mark
        self._last = self._uptos[number] if number >= 0 else self._mark
        self._end = self._afters[number + 1] if number + 1 < len(self._afters) else _BEYOND_ALL


class AckedByAny:
    """Entries that at least one subscription has acknowledged. All others are pending on each, and may be moved."""

    def __init__(self, each: Iterable[Acked]) -> None:
        self._each = tuple(each)

    def __contains__(self, position: EntryPosition) -> bool:
        for acked in self._each:  # noqa: SIM110 - called for every entry, and a generator costs as much as the result
            if position in acked:
                return True
        return False


class AckedByAll(AckedByAny):
    """Entries that all subscriptions have acknowledged; an original among them is acknowledged."""

    def __contains__(self, position: EntryPosition) -> bool:
        return all(position in acked for acked in self._each)


def _packed(position: EntryPosition) -> int:
    """Encode a position as a number that compares like it; entry -1 is before the ledger's first."""
    return (position.ledger << _ENTRY_BITS) + position.entry + 1


class GapsLeft:
    """Counts as a broker does: the ranges behind the first entry that stays, each ended by the end of its ledger.

    Everything between two entries that stay counts as acknowledged, seen or not: a broker acknowledges its own markers
    itself. `count` has the gaps up to the last entry that stays.
    """

    def __init__(self, ledgers: Sequence[Ledger]) -> None:
        self._ids = [ledger.ledger_id for ledger in ledgers]
        self._lasts = [ledger.entries - 1 for ledger in ledgers]
        # Number of ledgers with entries before each ledger.
        self._used = [0]
        for ledger in ledgers:
            self._used.append(self._used[-1] + (ledger.entries > 0))
        self._stayed: EntryPosition | None = None
        self.count = 0

    def stays(self, position: EntryPosition) -> None:
        """Add an entry that stays; entries are added in topic order."""
        if self._stayed is not None:
            self.count += self._between(self._stayed, position)
        self._stayed = position

    def new_stretch(self) -> None:
        """Begin a new stretch: the next entry does not follow the last entry."""
        self._stayed = None

    def up_to(self, last: EntryPosition) -> int:
        """Return the gaps up to an existing entry behind the last entry that stays."""
        if self._stayed is None or last <= self._stayed:
            return self.count
        return self.count + self._between(self._stayed, EntryPosition(last.ledger, last.entry + 1))

    def _between(self, one: EntryPosition, other: EntryPosition) -> int:
        """Count the ranges between two entries."""
        if one.ledger == other.ledger:
            return int(other.entry - one.entry > 1)
        at, upto = bisect_right(self._ids, one.ledger) - 1, bisect_right(self._ids, other.ledger) - 1
        own = at >= 0 and self._ids[at] == one.ledger and one.entry < self._lasts[at]
        return int(own) + self._used[upto] - self._used[at + 1] + int(other.entry > 0)


PIECES = 20  # number of stretches of a topic that is read in part


class Stretch(NamedTuple):
    """Adjacent entries: from the entry behind `after` up to `upto`, and their number."""

    after: EntryPosition
    upto: EntryPosition
    entries: int


def entries_after(ledgers: Iterable[Ledger], position: EntryPosition) -> int:
    return sum(
        max(ledger.entries - position.entry - 1, 0) if ledger.ledger_id == position.ledger else ledger.entries
        for ledger in ledgers
        if ledger.ledger_id >= position.ledger
    )


def acked_entries(cursor: CursorStats, ledgers: Sequence[Ledger]) -> int:
    """Count the entries behind its mark-delete position that a cursor has acknowledged."""
    return sum(run.entries for run in runs_of(cursor.acked_ranges(), ledgers))


def pending_entries(cursor: CursorStats, ledgers: Sequence[Ledger]) -> int:
    """Count the entries that a cursor has not acknowledged."""
    return max(entries_after(ledgers, cursor.mark_delete) - acked_entries(cursor, ledgers), 0)


def cursors_in(internal: InternalStats, stats: TopicStats) -> dict[str, CursorStats]:
    """Return the cursors of the users' durable subscriptions of a partition, without those of readers."""
    return {
        name: internal.cursors[name]
        for name, subscription in sorted(stats.subscriptions.items())
        if subscription.is_durable and is_users(name) and name in internal.cursors
    }


def acked_in(internal: InternalStats, stats: TopicStats) -> dict[str, Acked]:
    """Return the acknowledged entries of each of these cursors."""
    return {name: Acked.of(cursor) for name, cursor in cursors_in(internal, stats).items()}


def stretches_of(
    ledgers: Sequence[Ledger], after: EntryPosition, most: int, pieces: int = PIECES
) -> tuple[Stretch, ...]:
    """Select the stretches to read behind a position: a single stretch with all entries; or several at even distances,
    if there are more than `most` entries; none if there is no entry.
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

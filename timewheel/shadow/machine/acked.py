"""The entries of a topic that a subscription has acknowledged, by its cursor."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Self

from timewheel.broker.admin.stats import AckedRange, CursorStats
from timewheel.client.positions import EntryPosition

_ENTRY_BITS = 40
"""Bits of an entry's number, which is far smaller: a ledger is closed after some ten thousand entries."""
_BEYOND_ALL = 1 << 200


class Acked:
    """The acknowledged entries of a cursor: all up to its mark-delete position, and the ranges behind that.

    ``position in acked`` is a search in a sorted list; for positions in the order of the topic it is one comparison or
    two. An object belongs to a single thread at a time, since it remembers its last search.

    Args:
        mark_delete: All entries up to here are acknowledged.
        ranges: Acknowledged ranges beyond that: disjoint, in topic order. A range may span ledgers.
    """

    __slots__ = ("_afters", "_begin", "_end", "_last", "_mark", "_uptos", "mark_delete")

    def __init__(self, mark_delete: EntryPosition, ranges: Iterable[AckedRange] = ()) -> None:
        self.mark_delete = mark_delete
        self._mark = _packed(mark_delete)
        # Numbers and not positions: a cursor may have 200,000 ranges.
        self._afters: list[int] = []
        self._uptos: list[int] = []
        for after, upto in ranges:
            self._afters.append(_packed(after))
            self._uptos.append(_packed(upto))
        # The last search: behind `_begin`, up to `_end`. Entries up to `_last` are acknowledged, those behind it
        # pending.
        self._begin = self._last = self._end = self._mark

    @classmethod
    def of(cls, cursor: CursorStats) -> Self:
        """Build the acknowledged entries of a subscription, from its cursor in the admin API."""
        return cls(cursor.mark_delete, cursor.acked_ranges())

    @property
    def gap_count(self) -> int:
        """Ranges beyond the mark-delete position."""
        return len(self._afters)

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

    __slots__ = ("_each",)

    def __init__(self, each: Iterable[Acked]) -> None:
        self._each = tuple(each)

    def __contains__(self, position: EntryPosition) -> bool:
        for acked in self._each:  # noqa: SIM110 - called for every entry, and a generator costs as much as the result
            if position in acked:
                return True
        return False


class AckedByAll:
    """Entries that all subscriptions have acknowledged; an original among them is acknowledged."""

    __slots__ = ("_each",)

    def __init__(self, each: Iterable[Acked]) -> None:
        self._each = tuple(each)

    def __contains__(self, position: EntryPosition) -> bool:
        return all(position in acked for acked in self._each)


def _packed(position: EntryPosition) -> int:
    """Encode a position as a number that compares like it; entry -1 is before the ledger's first."""
    return (position.ledger << _ENTRY_BITS) + position.entry + 1

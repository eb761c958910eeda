"""The audit of a shadow: it accounts for each copy in the journal, by the places where it is found."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from enum import Enum, unique
from typing import NamedTuple

from timewheel.client.positions import EntryPosition
from timewheel.shadow.machine.cursors import AckedByAll

BYTES_PER_COPY = 140
"""Memory of a copy, at most: four numbers, and three times as much while they are sorted (a million took 131 MB)."""
_SHIFT = 24


@unique
class Place(Enum):
    """Places of a copy."""

    JOURNAL = "to move on"
    HOLDING = "holding"
    DUE = "due topic"
    DEAD = "dead letters"
    GONE = "was due, and is gone"


_STAGES = tuple(Place)


@unique
class Wrong(Enum):
    """Defects of a timer."""

    LOST = "lost"  # a timer due in the future, whose original is acknowledged and whose copy is missing
    DOUBLE = "double"  # a timer with both its original and a copy pending, or two copies
    UNACKED_ORIGINALS = "unacked_originals"
    """A timer with a copy in the journal, whose original is not acknowledged on every subscription."""
    LEFT = "left"  # an entry far from due, pending everywhere, that could be moved and is not


class Trouble(NamedTuple):
    """A timer with a defect; its original and the journal's copy of it, if they are known."""

    wrong: Wrong
    key: int
    due_ms: int  # UTC milliseconds; 0: unknown
    original: EntryPosition | None
    copy: EntryPosition | None


class Audit:
    """The audit of a partition: first all copies of the journal, then the places of timers in the order of their route.

    A timer's key is a number of 64 bits, made of its id: two of a million timers share a key once in 40 million runs.
    """

    def __init__(self) -> None:
        self._keys, self._dues, self._originals, self._copies = (array("q") for _ in range(4))
        self._first, self._firm, self._soft = bytearray(), bytearray(), bytearray()

    def __len__(self) -> int:
        return len(self._keys)

    def holds(self, key: int, due_ms: int, original: EntryPosition, copy: EntryPosition) -> None:
        """Add a copy that the journal holds, with its timer's due time, UTC milliseconds, and its original."""
        self._keys.append(key)
        self._dues.append(due_ms)
        self._originals.append(_packed(original))
        self._copies.append(_packed(copy))

    def close_journal(self) -> None:
        """End the list of copies; from now on `meets` adds their places."""
        order = sorted(range(len(self._keys)), key=self._keys.__getitem__)
        for name in ("_keys", "_dues", "_originals", "_copies"):
            column = getattr(self, name)
            setattr(self, name, array("q", (column[number] for number in order)))
        self._first, self._firm, self._soft = (bytearray(len(order)) for _ in range(3))

    def meets(self, key: int, place: Place, *, may_have_moved: bool = False) -> None:
        """Add a place of a timer; a timer that the journal does not hold is ignored. A place that it may have left, or
        where it was acknowledged, counts only without any other place.
        """
        at = bisect_left(self._keys, key)
        while at < len(self._keys) and self._keys[at] == key:
            counts = self._soft if may_have_moved else self._firm
            counts[at] = min(counts[at] + 1, 255)
            if not may_have_moved or not self._first[at]:
                self._first[at] = _STAGES.index(place) + 1
            at += 1

    def places(self) -> dict[Place, int]:
        found = dict.fromkeys(Place, 0)
        for first in self._first:
            found[Place.GONE if not first else _STAGES[first - 1]] += 1
        return found

    def troubles(self, acked_originals: AckedByAll | set[EntryPosition], due_until_ms: int) -> Iterator[Trouble]:
        """Yield the timers with a defect.

        Args:
            acked_originals: Positions that every subscription has acknowledged, read after the journal.
            due_until_ms: Timers due until then may have been delivered, UTC milliseconds.
        """
        for at, key in enumerate(self._keys):
            original = _unpacked(self._originals[at])
            places = self._firm[at] or min(self._soft[at], 1)
            # The journal holds several copies of a timer that was moved again after a way out; it is reported once.
            is_again = at > 0 and self._keys[at - 1] == key
            wrong = None
            if original not in acked_originals:
                wrong = Wrong.UNACKED_ORIGINALS
            elif not places and self._dues[at] > due_until_ms and not is_again:
                wrong = Wrong.LOST
            elif places > 1 and not is_again:
                wrong = Wrong.DOUBLE
            if wrong is not None:
                yield Trouble(wrong, key, self._dues[at], original, _unpacked(self._copies[at]))


def _packed(position: EntryPosition) -> int:
    return (position.ledger << _SHIFT) + position.entry


def _unpacked(number: int) -> EntryPosition:
    return EntryPosition(number >> _SHIFT, number & ((1 << _SHIFT) - 1))

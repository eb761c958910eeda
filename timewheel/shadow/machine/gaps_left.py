"""The gaps of a cursor once some pending entries are acknowledged: counted from the entries that stay."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from timewheel.broker.admin.stats import Ledger
from timewheel.client.positions import EntryPosition


class GapsLeft:
    """Counts as a broker does: the ranges behind the first entry that stays, each ended by the end of its ledger.

    Everything between two entries that stay counts as acknowledged, seen or not: a broker acknowledges its own markers
    itself.

    Args:
        ledgers: Ledgers of the topic, in order.

    Attributes:
        count: Gaps up to the last entry that stays.
    """

    __slots__ = ("_ids", "_lasts", "_stayed", "_used", "count")

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

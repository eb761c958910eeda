"""What a partition holds, entry by entry: fates, delays, and the gaps of each subscription before and after."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from timewheel.admin.internals import Ledger
from timewheel.binary_protocol.entries import Entry
from timewheel.shadow.machine.acked import Acked
from timewheel.shadow.machine.gaps_left import GapsLeft
from timewheel.shadow.machine.lifting import Fate, Lifting
from timewheel.wire.positions import EntryPosition

__all__ = ["PARTLY", "Heap", "Tally"]

PARTLY = "acknowledged_by_some"
"""The fate of an entry that is pending on some subscriptions only: it stays, since its copy would reach all."""


@dataclass(slots=True)
class Heap:
    """So many entries, of so many bytes of payload."""

    entries: int = 0
    size_bytes: int = 0

    def add(self, entry: Entry) -> None:
        """One more."""
        self.entries += 1
        self.size_bytes += entry.payload_bytes

    def __add__(self, other: Heap) -> Heap:
        return Heap(self.entries + other.entries, self.size_bytes + other.size_bytes)


@dataclass(slots=True)
class _Cursor:
    acked: Acked
    now: GapsLeft
    afterwards: GapsLeft


@dataclass(slots=True)
class Tally:
    """Of one partition. Entries come in topic order, each once.

    Args:
        lifting: Decides.
        acked: By durable subscription.
        ledgers: Of the partition.
        now_ms: At which fates are told, UTC milliseconds.

    Attributes:
        seen: Entries.
        settled: Of these, those that every subscription has acknowledged.
        fates: Of all others: what becomes of them.
        delays_ms: Of those with a time of delivery: from the publish to that.
        remaining_ms: Of those that are lifted: from now to that.
    """

    lifting: Lifting
    acked: Mapping[str, Acked]
    ledgers: Sequence[Ledger]
    now_ms: int
    seen: int = 0
    settled: int = 0
    fates: dict[str, Heap] = field(default_factory=dict)
    delays_ms: array[int] = field(default_factory=lambda: array("q"))
    remaining_ms: array[int] = field(default_factory=lambda: array("q"))
    _cursors: dict[str, _Cursor] = field(init=False)

    def __post_init__(self) -> None:
        self._cursors = {
            name: _Cursor(acked, GapsLeft(self.ledgers), GapsLeft(self.ledgers)) for name, acked in self.acked.items()
        }

    def see(self, entry: Entry) -> None:
        """Take an entry into account."""
        self.seen += 1
        position = entry.position
        pending = [one for one in self._cursors.values() if position not in one.acked]
        if not pending:
            self.settled += 1
            return
        fate = PARTLY
        if len(pending) == len(self._cursors):
            fate = self.lifting.fate(entry, self.now_ms).value
        self.fates.setdefault(fate, Heap()).add(entry)
        if entry.deliver_at_ms:
            self.delays_ms.append(max(entry.deliver_at_ms - entry.publish_ms, 0))
        leaves = fate == Fate.LIFT.value
        if leaves:
            self.remaining_ms.append((entry.deliver_at_ms or 0) - self.now_ms)
        for one in pending:
            one.now.stays(position)
            if not leaves:
                one.afterwards.stays(position)

    def new_stretch(self) -> None:
        """What comes next does not follow on what came last."""
        for one in self._cursors.values():
            one.now.new_stretch()
            one.afterwards.new_stretch()

    def gaps(self, subscription: str, last: EntryPosition | None) -> tuple[int, int]:
        """Gaps now, and once all that is lifted is acknowledged; as they follow from what was seen.

        Args:
            subscription: Which one.
            last: The topic's last entry, if all up to it was seen; None: it was seen in stretches.
        """
        one = self._cursors[subscription]
        if last is None:
            return one.now.count, one.afterwards.count
        return one.now.up_to(last), one.afterwards.up_to(last)

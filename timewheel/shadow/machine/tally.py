"""The entries of a partition: fates, delays, and the gaps of each subscription before and after lifting."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from timewheel.admin.internals import Ledger
from timewheel.binary_protocol.entries import Entry
from timewheel.core.envelope import TIMER_PROPERTY
from timewheel.shadow.machine.acked import Acked
from timewheel.shadow.machine.gaps_left import GapsLeft
from timewheel.shadow.machine.lifting import Fate, Lifting
from timewheel.wire.positions import EntryPosition

__all__ = ["PARTLY", "Heap", "Tally"]

_STAYS = -1
PARTLY = "acknowledged_by_some"
"""The fate of an entry that is pending on some subscriptions only: it stays, since its copy would reach all."""


@dataclass(slots=True)
class Heap:
    """A number of entries, and the bytes of their payloads."""

    entries: int = 0
    size_bytes: int = 0

    def add(self, entry: Entry) -> None:
        """Add an entry."""
        self.entries += 1
        self.size_bytes += entry.payload_bytes

    def __add__(self, other: Heap) -> Heap:
        return Heap(self.entries + other.entries, self.size_bytes + other.size_bytes)


@dataclass(slots=True)
class _Cursor:
    acked: Acked
    now: GapsLeft
    pending: array[int] = field(default_factory=lambda: array("q"))
    """Indices of the pending entries among all entries that were added."""


@dataclass(slots=True)
class Tally:
    """The tally of a partition. Entries are added in topic order, each once.

    Args:
        lifting: Decides about entries.
        acked: Acknowledged entries by durable subscription.
        ledgers: Ledgers of the partition.
        now_ms: Time of the decisions, UTC milliseconds.

    Attributes:
        seen: Number of entries.
        settled: Of these, those that every subscription has acknowledged.
        fates: All others, by fate.
        delays_ms: Delays from publish to delivery, of the entries with a delivery time.
        remaining_ms: Remaining times to delivery, of the entries to be lifted.
        sent_for_ms: Time since the first of the entries was sent; 0: none, or a producer's clock is fast.
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
    sent_for_ms: int = 0
    _native: int = 0
    _cursors: dict[str, _Cursor] = field(init=False)
    _ledger_ids: array[int] = field(default_factory=lambda: array("q"))
    _entry_ids: array[int] = field(default_factory=lambda: array("q"))
    _liftable_ms: array[int] = field(default_factory=lambda: array("q"))
    """The remaining time of each pending entry; `_STAYS`: it cannot be lifted."""
    _stretches: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._cursors = {name: _Cursor(acked, GapsLeft(self.ledgers)) for name, acked in self.acked.items()}

    def see(self, entry: Entry) -> None:
        """Add an entry."""
        if not self.seen:
            self.sent_for_ms = max(self.now_ms - entry.publish_ms, 0)
        elif 0 < (entry.deliver_at_ms or 0) - entry.publish_ms < self.lifting.far_ms:
            # A timer that has been lifted and is back was sent long before.
            self._native += 0 if TIMER_PROPERTY in entry.properties else entry.message_count
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
        liftable_ms, remaining_ms = _STAYS, (entry.deliver_at_ms or 0) - self.now_ms
        if fate == Fate.LIFT.value:
            self.remaining_ms.append(remaining_ms)
            liftable_ms = remaining_ms
        elif fate == Fate.NEAR.value and self.lifting.fate(entry, self.now_ms, 0) is Fate.LIFT:
            liftable_ms = remaining_ms
        for one in pending:
            one.now.stays(position)
            one.pending.append(len(self._liftable_ms))
        self._ledger_ids.append(position.ledger)
        self._entry_ids.append(position.entry)
        self._liftable_ms.append(liftable_ms)

    @property
    def native_per_ms(self) -> float:
        """Messages sent per millisecond with a delay too short for lifting, acknowledged or not.

        A topic keeps everything that was sent after its first pending entry. That entry itself begins the time, and is
        not counted: a message with a long delay is more often the first.
        """
        return self._native / self.sent_for_ms if self.sent_for_ms else 0.0

    def new_stretch(self) -> None:
        """Begin a new stretch: the next entry does not follow the last entry."""
        self._stretches.append(len(self._liftable_ms))
        for one in self._cursors.values():
            one.now.new_stretch()

    def gaps(self, subscription: str, last: EntryPosition | None, far_ms: int | None = None) -> tuple[int, int]:
        """Return the gaps now, and once all liftable entries are acknowledged, as they follow from the entries.

        Args:
            subscription: Name of the subscription.
            last: The topic's last entry, if all entries up to it were added; None: they were added in stretches.
            far_ms: Remaining time from which an entry is lifted; None: the plan's.
        """
        now, afterwards = self._cursors[subscription].now, self._afterwards(subscription, far_ms or self.lifting.far_ms)
        if last is None:
            return now.count, afterwards.count
        return now.up_to(last), afterwards.up_to(last)

    def stays(self, far_ms: int) -> int:
        """Count the pending entries that stay, if entries with at least this remaining time are lifted."""
        return sum(one < far_ms for one in self._liftable_ms)

    def _afterwards(self, subscription: str, far_ms: int) -> GapsLeft:
        found, stretches = GapsLeft(self.ledgers), deque(self._stretches)
        for number in self._cursors[subscription].pending:
            while stretches and number >= stretches[0]:
                stretches.popleft()
                found.new_stretch()
            if self._liftable_ms[number] < far_ms:
                found.stays(EntryPosition(self._ledger_ids[number], self._entry_ids[number]))
        return found

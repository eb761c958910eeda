"""What a partition holds, entry by entry: fates, delays, and the gaps of each subscription before and after."""

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
    pending: array[int] = field(default_factory=lambda: array("q"))
    """Which of the entries that were seen."""


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
        native_per_ms: So many messages a millisecond are sent with a delay that is too short to be lifted. A message
            is pending for as long as its delay, so each that is seen stands for one in so long a time.
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
    native_per_ms: float = 0.0
    _cursors: dict[str, _Cursor] = field(init=False)
    _ledger_ids: array[int] = field(default_factory=lambda: array("q"))
    _entry_ids: array[int] = field(default_factory=lambda: array("q"))
    _liftable_ms: array[int] = field(default_factory=lambda: array("q"))
    """The remaining time of each pending entry; `_STAYS`: it cannot be lifted."""
    _stretches: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._cursors = {name: _Cursor(acked, GapsLeft(self.ledgers)) for name, acked in self.acked.items()}

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
        liftable_ms, remaining_ms = _STAYS, (entry.deliver_at_ms or 0) - self.now_ms
        delay_ms = (entry.deliver_at_ms or 0) - entry.publish_ms
        # Neither what should have been handled already nor what has been lifted and is back.
        if remaining_ms > 0 and 0 < delay_ms < self.lifting.far_ms and TIMER_PROPERTY not in entry.properties:
            self.native_per_ms += 1 / delay_ms
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

    def new_stretch(self) -> None:
        """What comes next does not follow on what came last."""
        self._stretches.append(len(self._liftable_ms))
        for one in self._cursors.values():
            one.now.new_stretch()

    def gaps(self, subscription: str, last: EntryPosition | None, far_ms: int | None = None) -> tuple[int, int]:
        """Gaps now, and once all that is lifted is acknowledged; as they follow from what was seen.

        Args:
            subscription: Which one.
            last: The topic's last entry, if all up to it was seen; None: it was seen in stretches.
            far_ms: With so much time left an entry is lifted; None: as the plan says.
        """
        now, afterwards = self._cursors[subscription].now, self._afterwards(subscription, far_ms or self.lifting.far_ms)
        if last is None:
            return now.count, afterwards.count
        return now.up_to(last), afterwards.up_to(last)

    def stays(self, far_ms: int) -> int:
        """How many pending entries stay, if those with so much time left are lifted."""
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

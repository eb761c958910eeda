"""What becomes of the entries of a partition, and which of them should have been lifted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from timewheel.binary_protocol.entries import Entry
from timewheel.shadow.machine.acked import Acked, AckedByAll, AckedByAny
from timewheel.shadow.machine.lifting import Fate, Lifting
from timewheel.shadow.machine.tally import PARTLY
from timewheel.wire.positions import EntryPosition

__all__ = ["ARRIVED_MS", "ORDINARY", "Pending"]

ARRIVED_MS = 10_000
"""What came later may not have been lifted yet."""
ORDINARY = frozenset(
    {Fate.LIFT.value, Fate.NEAR.value, Fate.UNDELAYED.value, Fate.MARKER.value, PARTLY, Fate.STIR.value}
)
"""Fates of which nothing must be said: all else is far from due and stays."""


@dataclass(slots=True)
class Pending:
    """Of one partition; entries come in topic order, each once.

    Args:
        lifting: Decides.
        cursors: What each subscription has acknowledged.
        now_ms: At which fates are told, UTC milliseconds.
        arrived_ms: See `ARRIVED_MS`.
        lifted: Where originals stand whose copies are stored: they are acknowledged soon.

    Attributes:
        acked: Entries that every subscription has acknowledged.
        fates: All others, by what becomes of them.
        left: Of these, those that should have been lifted by now.
    """

    lifting: Lifting
    cursors: Iterable[Acked]
    now_ms: int
    arrived_ms: int = ARRIVED_MS
    lifted: Collection[EntryPosition] = ()
    acked: int = 0
    left: int = 0
    fates: Counter[str] = field(default_factory=Counter)
    _by_all: AckedByAll = field(init=False)
    _by_any: AckedByAny = field(init=False)

    def __post_init__(self) -> None:
        self.cursors = tuple(self.cursors)
        self._by_all, self._by_any = AckedByAll(self.cursors), AckedByAny(self.cursors)

    def see(self, entry: Entry) -> bool:
        """Take an entry into account.

        Returns:
            It should have been lifted by now.
        """
        position = entry.position
        if position in self._by_all:
            self.acked += 1
            return False
        fate = PARTLY if position in self._by_any else self.lifting.fate(entry, self.now_ms).value
        self.fates[fate] += 1
        is_left = (
            fate == Fate.LIFT.value and entry.publish_ms < self.now_ms - self.arrived_ms and position not in self.lifted
        )
        self.left += is_left
        return is_left

    @property
    def stays(self) -> dict[str, int]:
        """What is far from due and cannot be lifted, by the reason."""
        return {fate: count for fate, count in self.fates.most_common() if fate not in ORDINARY}

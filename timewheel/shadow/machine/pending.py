"""The pending entries of a partition by decision, and those that should have been lifted."""

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
"""Entries that arrived within this time may not have been lifted yet."""
ORDINARY = frozenset(
    {Fate.LIFT.value, Fate.NEAR.value, Fate.UNDELAYED.value, Fate.MARKER.value, PARTLY, Fate.STIR.value}
)
"""Fates that are not reported: all other entries are far from due and stay."""


@dataclass(slots=True)
class Pending:
    """The pending entries of a partition; entries are added in topic order, each once.

    Args:
        lifting: Decides about entries.
        cursors: Acknowledged entries of each subscription.
        now_ms: Time of the decisions, UTC milliseconds.
        arrived_ms: See `ARRIVED_MS`.
        lifted: Positions of originals whose copies are stored: they are acknowledged soon.

    Attributes:
        acked: Entries that every subscription has acknowledged.
        fates: All others, by fate.
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
        """Add an entry.

        Returns:
            True if it should have been lifted by now.
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
    def not_lifted(self) -> int:
        """Entries far from due that should have been lifted, or cannot be."""
        return self.left + sum(self.stays.values())

    @property
    def stays(self) -> dict[str, int]:
        """Entries far from due that cannot be lifted, by the reason."""
        return {fate: count for fate, count in self.fates.most_common() if fate not in ORDINARY}

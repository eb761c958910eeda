"""The pending entries of a partition by decision, and those that should have been moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from timewheel.broker.protocol.entries import Entry
from timewheel.client.positions import EntryPosition
from timewheel.shadow.machine.acked import Acked, AckedByAll, AckedByAny
from timewheel.shadow.machine.move_decider import MoveDecider, MoveDecision
from timewheel.shadow.machine.survey_counters import PARTLY

ARRIVED_MS = 10_000
"""Entries that arrived within this time may not have been moved yet."""
ORDINARY = frozenset(
    {
        MoveDecision.MOVE.value,
        MoveDecision.NEAR.value,
        MoveDecision.UNDELAYED.value,
        MoveDecision.MARKER.value,
        PARTLY,
        MoveDecision.NUDGE.value,
    }
)
"""Fates that are not reported: all other entries are far from due and stay."""


@dataclass(slots=True)
class Pending:
    """The pending entries of a partition; entries are added in topic order, each once.

    Args:
        move_decider: Decides about entries.
        cursors: Acknowledged entries of each subscription.
        now_ms: Time of the decisions, UTC milliseconds.
        arrived_ms: See `ARRIVED_MS`; None: nothing is moved, so an entry counts however new it is.
        moved: Positions of originals whose copies are stored: they are acknowledged soon.

    Attributes:
        acked: Entries that every subscription has acknowledged.
        decisions: All others, by decision.
        left: Of these, those that should have been moved by now.
    """

    move_decider: MoveDecider
    cursors: Iterable[Acked]
    now_ms: int
    arrived_ms: int | None = ARRIVED_MS
    moved: Collection[EntryPosition] = ()
    acked: int = 0
    left: int = 0
    decisions: Counter[str] = field(default_factory=Counter)
    _by_all: AckedByAll = field(init=False)
    _by_any: AckedByAny = field(init=False)

    def __post_init__(self) -> None:
        self.cursors = tuple(self.cursors)
        self._by_all, self._by_any = AckedByAll(self.cursors), AckedByAny(self.cursors)

    def see(self, entry: Entry) -> bool:
        """Add an entry.

        Returns:
            True if it should have been moved by now.
        """
        position = entry.position
        if position in self._by_all:
            self.acked += 1
            return False
        decision = PARTLY if position in self._by_any else self.move_decider.decision(entry, self.now_ms).value
        self.decisions[decision] += 1
        is_left = (
            decision == MoveDecision.MOVE.value
            and (self.arrived_ms is None or entry.publish_ms < self.now_ms - self.arrived_ms)
            and position not in self.moved
        )
        self.left += is_left
        return is_left

    @property
    def not_moved(self) -> int:
        """Entries far from due that should have been moved, or cannot be."""
        return self.left + sum(self.stays.values())

    @property
    def stays(self) -> dict[str, int]:
        """Entries far from due that cannot be moved, by the reason."""
        return {decision: count for decision, count in self.decisions.most_common() if decision not in ORDINARY}

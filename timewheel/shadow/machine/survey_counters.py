"""The pending entries of a partition by decision: in full with delays and gaps, for a survey, or counted alone."""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field

from timewheel.broker.admin.stats import Ledger
from timewheel.broker.protocol.entries import Entry
from timewheel.client.positions import EntryPosition
from timewheel.core.envelope import TIMER_PROPERTY
from timewheel.shadow.machine.cursors import Acked, AckedByAll, AckedByAny, GapsLeft
from timewheel.shadow.machine.move_decider import TIMELESS, MoveDecider, MoveDecision

_STAYS = -1
_DECISIONS = tuple(MoveDecision)
PARTLY = "acknowledged_by_some"
"""The decision of an entry that is pending on some subscriptions only: it stays, since its copy would reach all."""


@dataclass(slots=True)
class Amount:
    """A number of entries, and the bytes of their payloads."""

    entries: int = 0
    size_bytes: int = 0

    def add(self, payload_bytes: int) -> None:
        self.entries += 1
        self.size_bytes += payload_bytes

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.entries + other.entries, self.size_bytes + other.size_bytes)


def _numbers() -> array[int]:
    return array("q")


@dataclass(slots=True)
class _Cursor:
    acked: Acked
    now: GapsLeft
    pending: array[int] = field(default_factory=_numbers)  # indices among the pending entries of all cursors


@dataclass(slots=True)
class SurveyCounters:
    """The counters of a partition; entries are added in topic order, each once."""

    move_decider: MoveDecider
    acked: Mapping[str, Acked]
    ledgers: Sequence[Ledger]
    now_ms: int
    seen: int = 0
    settled: int = 0  # entries that every subscription has acknowledged
    decisions: dict[str, Amount] = field(default_factory=dict)  # all others, by decision
    delays_ms: array[int] = field(default_factory=_numbers)
    """Delays from publish to delivery, of the pending entries with a delivery time."""
    remaining_ms: array[int] = field(default_factory=_numbers)
    """Remaining times to delivery, of the entries to be moved."""
    sent_for_ms: int = 0  # time since the first of the entries was sent; 0: none, or a producer's clock is fast
    _cursors: dict[str, _Cursor] = field(init=False)
    # Of each pending entry:
    _ledger_ids: array[int] = field(default_factory=_numbers)
    _entry_ids: array[int] = field(default_factory=_numbers)
    _bytes: array[int] = field(default_factory=_numbers)
    _left_ms: array[int] = field(default_factory=_numbers)  # remaining time
    _movable_ms: array[int] = field(default_factory=_numbers)  # remaining time; `_STAYS`: it cannot be moved
    _far_decisions: array[int] = field(default_factory=lambda: array("b"))
    """Decision as if far from due, as its place in `_DECISIONS`; `_STAYS`: `PARTLY`."""
    # Of each entry behind the first that a client sent with a delay, acknowledged or not: delay, messages.
    _sent_ms: array[int] = field(default_factory=_numbers)
    _sent_messages: array[int] = field(default_factory=_numbers)
    _stretches: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._cursors = {name: _Cursor(acked, GapsLeft(self.ledgers)) for name, acked in self.acked.items()}

    def see(self, entry: Entry) -> None:
        """Add an entry."""
        remaining_ms, delay_ms = (entry.deliver_at_ms or 0) - self.now_ms, (entry.deliver_at_ms or 0) - entry.publish_ms
        if not self.seen:
            self.sent_for_ms = max(self.now_ms - entry.publish_ms, 0)
        elif delay_ms > 0 and TIMER_PROPERTY not in entry.properties:
            # A timer that has been moved and is back was sent long before.
            self._sent_ms.append(delay_ms)
            self._sent_messages.append(entry.message_count)
        self.seen += 1
        position = entry.position
        pending = [one for one in self._cursors.values() if position not in one.acked]
        if not pending:
            self.settled += 1
            return
        if entry.deliver_at_ms:
            self.delays_ms.append(max(delay_ms, 0))
        is_whole = len(pending) == len(self._cursors)
        for one in pending:
            one.now.stays(position)
            one.pending.append(len(self._left_ms))
        self._ledger_ids.append(position.ledger)
        self._entry_ids.append(position.entry)
        self._far_decisions.append(_DECISIONS.index(self.move_decider.far_decision(entry)) if is_whole else _STAYS)
        self._left_ms.append(remaining_ms)
        self._bytes.append(entry.payload_bytes)
        self._decide(len(self._left_ms) - 1)

    def under(self, move_decider: MoveDecider) -> SurveyCounters:
        """Return the tally of the same entries by the decisions of another plan of the topic."""
        found = copy(self)
        found.move_decider, found.decisions = move_decider, {}
        found.remaining_ms, found._movable_ms = _numbers(), _numbers()  # noqa: SLF001 - of its own class
        for number in range(len(self._left_ms)):
            found._decide(number)  # noqa: SLF001 - of its own class
        return found

    def _decide(self, number: int) -> None:
        """Decide about a pending entry by the plan."""
        place, remaining_ms = self._far_decisions[number], self._left_ms[number]
        decision, is_movable = PARTLY, False
        if place != _STAYS:
            decision = self.move_decider.at(_DECISIONS[place], remaining_ms).value
            is_movable = self.move_decider.at(_DECISIONS[place], remaining_ms, 0) is MoveDecision.MOVE
        self.decisions.setdefault(decision, Amount()).add(self._bytes[number])
        if decision == MoveDecision.MOVE.value:
            self.remaining_ms.append(remaining_ms)
        self._movable_ms.append(remaining_ms if is_movable else _STAYS)

    @property
    def native_per_ms(self) -> float:
        """Messages sent per millisecond with a delay too short for moving, acknowledged or not.

        A topic keeps everything that was sent after its first pending entry. That entry itself begins the time, and is
        not counted: a message with a long delay is more often the first.
        """
        far_ms = self.move_decider.far_ms
        sent = sum(
            count for delay_ms, count in zip(self._sent_ms, self._sent_messages, strict=True) if delay_ms < far_ms
        )
        return sent / self.sent_for_ms if self.sent_for_ms else 0.0

    def new_stretch(self) -> None:
        """Begin a new stretch: the next entry does not follow the last entry."""
        self._stretches.append(len(self._movable_ms))
        for one in self._cursors.values():
            one.now.new_stretch()

    def gaps(self, subscription: str, last: EntryPosition | None, far_ms: int | None = None) -> tuple[int, int]:
        """Return the gaps now, and once all movable entries are acknowledged, as they follow from the entries.

        Args:
            subscription: Name of the subscription.
            last: The topic's last entry, if all entries up to it were added; None: they were added in stretches.
            far_ms: Remaining time from which an entry is moved; None: the plan's.
        """
        cursor, far_ms = self._cursors[subscription], far_ms or self.move_decider.far_ms
        after, stretches = GapsLeft(self.ledgers), deque(self._stretches)
        for number in cursor.pending:
            while stretches and number >= stretches[0]:
                stretches.popleft()
                after.new_stretch()
            if self._movable_ms[number] < far_ms:
                after.stays(EntryPosition(self._ledger_ids[number], self._entry_ids[number]))
        if last is None:
            return cursor.now.count, after.count
        return cursor.now.up_to(last), after.up_to(last)

    def stays(self, far_ms: int) -> int:
        """Count the pending entries that stay, if entries with at least this remaining time are moved."""
        return sum(one < far_ms for one in self._movable_ms)


ARRIVED_MS = 10_000  # entries that arrived within this time may not have been moved yet
ORDINARY = frozenset(
    {PARTLY, *(one.value for one in (TIMELESS - {MoveDecision.DEFECT}) | {MoveDecision.MOVE, MoveDecision.NEAR})}
)
"""Decisions that are not reported: all other entries are far from due and stay."""


@dataclass(slots=True)
class Pending:
    """The pending entries of a partition; entries are added in topic order, each once."""

    move_decider: MoveDecider
    cursors: Iterable[Acked]
    now_ms: int
    arrived_ms: int | None = ARRIVED_MS  # None: nothing is moved, so an entry counts however new it is
    moved: Collection[EntryPosition] = ()  # originals whose copies are stored: they are acknowledged soon
    acked: int = 0
    left: int = 0  # entries that should have been moved by now
    decisions: Counter[str] = field(default_factory=Counter)
    _by_all: AckedByAll = field(init=False)
    _by_any: AckedByAny = field(init=False)

    def __post_init__(self) -> None:
        self.cursors = tuple(self.cursors)
        self._by_all, self._by_any = AckedByAll(self.cursors), AckedByAny(self.cursors)

    def see(self, entry: Entry) -> bool:
        """Add an entry; return whether it should have been moved by now."""
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

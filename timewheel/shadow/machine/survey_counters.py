"""The entries of a partition: decisions, delays, and the gaps of each subscription before and after moving."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field

from timewheel.broker.admin.stats import Ledger
from timewheel.broker.protocol.entries import Entry
from timewheel.client.positions import EntryPosition
from timewheel.core.envelope import TIMER_PROPERTY
from timewheel.shadow.machine.acked import Acked
from timewheel.shadow.machine.gaps_left import GapsLeft
from timewheel.shadow.machine.move_decider import MoveDecider, MoveDecision

_STAYS = -1
_DECISIONS = tuple(MoveDecision)
PARTLY = "acknowledged_by_some"
"""The decision of an entry that is pending on some subscriptions only: it stays, since its copy would reach all."""


@dataclass(slots=True)
class Heap:
    """A number of entries, and the bytes of their payloads."""

    entries: int = 0
    size_bytes: int = 0

    def add(self, payload_bytes: int) -> None:
        """Add an entry."""
        self.entries += 1
        self.size_bytes += payload_bytes

    def __add__(self, other: Heap) -> Heap:
        return Heap(self.entries + other.entries, self.size_bytes + other.size_bytes)


@dataclass(slots=True)
class _Cursor:
    acked: Acked
    now: GapsLeft
    pending: array[int] = field(default_factory=lambda: array("q"))
    """Indices of the pending entries among all entries that were added."""


@dataclass(slots=True)
class SurveyCounters:
    """The tally of a partition. Entries are added in topic order, each once.

    Args:
        move_decider: Decides about entries.
        acked: Acknowledged entries by durable subscription.
        ledgers: Ledgers of the partition.
        now_ms: Time of the decisions, UTC milliseconds.

    Attributes:
        seen: Number of entries.
        settled: Of these, those that every subscription has acknowledged.
        decisions: All others, by decision.
        delays_ms: Delays from publish to delivery, of the entries with a delivery time.
        remaining_ms: Remaining times to delivery, of the entries to be moved.
        sent_for_ms: Time since the first of the entries was sent; 0: none, or a producer's clock is fast.
    """

    move_decider: MoveDecider
    acked: Mapping[str, Acked]
    ledgers: Sequence[Ledger]
    now_ms: int
    seen: int = 0
    settled: int = 0
    decisions: dict[str, Heap] = field(default_factory=dict)
    delays_ms: array[int] = field(default_factory=lambda: array("q"))
    remaining_ms: array[int] = field(default_factory=lambda: array("q"))
    sent_for_ms: int = 0
    _cursors: dict[str, _Cursor] = field(init=False)
    _ledger_ids: array[int] = field(default_factory=lambda: array("q"))
    _entry_ids: array[int] = field(default_factory=lambda: array("q"))
    _far_decisions: array[int] = field(default_factory=lambda: array("b"))
    """The decision of each pending entry as if far from due, as its place in `_DECISIONS`; `_STAYS`: `PARTLY`."""
    _left_ms: array[int] = field(default_factory=lambda: array("q"))
    """The remaining time of each pending entry."""
    _sent_ms: array[int] = field(default_factory=lambda: array("q"))
    """The delay of each entry behind the first that a client sent with a delay, acknowledged or not."""
    _sent_messages: array[int] = field(default_factory=lambda: array("q"))
    """The messages of these entries."""
    _bytes: array[int] = field(default_factory=lambda: array("q"))
    _movable_ms: array[int] = field(default_factory=lambda: array("q"))
    """The remaining time of each pending entry; `_STAYS`: it cannot be moved."""
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
        found.remaining_ms, found._movable_ms = array("q"), array("q")  # noqa: SLF001 - of its own class
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
        self.decisions.setdefault(decision, Heap()).add(self._bytes[number])
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
        now, send_outcome = (
            self._cursors[subscription].now,
            self._send_outcome(subscription, far_ms or self.move_decider.far_ms),
        )
        if last is None:
            return now.count, send_outcome.count
        return now.up_to(last), send_outcome.up_to(last)

    def stays(self, far_ms: int) -> int:
        """Count the pending entries that stay, if entries with at least this remaining time are moved."""
        return sum(one < far_ms for one in self._movable_ms)

    def _send_outcome(self, subscription: str, far_ms: int) -> GapsLeft:
        found, stretches = GapsLeft(self.ledgers), deque(self._stretches)
        for number in self._cursors[subscription].pending:
            while stretches and number >= stretches[0]:
                stretches.popleft()
                found.new_stretch()
            if self._movable_ms[number] < far_ms:
                found.stays(EntryPosition(self._ledger_ids[number], self._entry_ids[number]))
        return found

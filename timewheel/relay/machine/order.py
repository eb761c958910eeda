"""The order of positions: contiguity, sequence ids, beginnings, bounds of arrival, and the messages under way.

The client skips unreadable messages in silence, and a later cumulative acknowledgement then destroys them
(broker-facts: holes-in-positions). So every position is compared with the position before it: within a batch the next
index, behind a batch's last the next entry, behind a ledger's last the first entry of a later ledger (only reading the
topic shows which of its entries was the last).
"""

from __future__ import annotations

from collections import deque
from enum import Enum, unique
from typing import Any, Literal, NamedTuple

from timewheel.client.positions import Position

NO_SEQUENCE_ID = 0  # for positions outside the ranges of `sequence_id`; the client itself takes 0 for "none"

_MAX_LEDGER = 1 << 31
_MAX_ENTRY = 1 << 20
_MAX_BATCH_INDEX = 4_094


class Spot(NamedTuple):
    """A position, and the number of messages in its entry (0: unbatched, or unknown)."""

    position: Position
    batch_size: int


@unique
class Sight(Enum):
    """The relation of a position to those seen before."""

    NEXT = "next"
    NEXT_LEDGER = "next_ledger"
    """The first of a later ledger. The number of entries in a ledger is unknown: some may be missing at its end."""
    AGAIN = "again"  # not above the highest seen: received again after a reload
    HOLE = "hole"  # a message between the highest seen and this position was not delivered


class Contiguity:
    """The highest position seen; None accepts any first position."""

    def __init__(self, known: Spot | None = None) -> None:
        self.highest: Spot | None = known

    def see(self, spot: Spot, first: Position | None = None) -> Sight:
        """Classify the spot of a message, and remember it if it is the next.

        Of a chunked message it is that of the last chunk; ``first`` is then the position of its first.
        """
        highest = self.highest
        if highest is None or follows(highest, first or spot.position):
            self.highest = spot
            same = highest is None or highest.position.ledger == spot.position.ledger
            return Sight.NEXT if same else Sight.NEXT_LEDGER
        return Sight.AGAIN if spot.position <= highest.position else Sight.HOLE


def follows(spot: Spot, position: Position) -> bool:
    """True if a position may stand right behind a spot."""
    (ledger, entry, index), batch_size = spot
    if position.ledger == ledger:
        if index >= 0 and index < batch_size - 1:
            return position.entry == entry and position.batch_index == index + 1
        if index >= 0 and batch_size == 0 and position.entry == entry:
            return position.batch_index == index + 1  # a batch of unknown size continues
        return position.entry == entry + 1 and position.batch_index <= 0
    # The number of entries in a closed ledger is unknown, but a batch that was cut short is visible.
    complete = index < 0 or index >= batch_size - 1
    return complete and position.ledger > ledger and position.entry == 0 and position.batch_index <= 0


def begins_ledger(after: Spot, position: Position) -> bool:
    """True if a position is the first of a later ledger."""
    return position.ledger > after.position.ledger and position.entry == 0 and position.batch_index <= 0


def is_hidden(after: Spot, before: Position, first: Position, found: Position, *, is_gone: bool) -> bool:
    """Return whether the client hides a message behind ``after``: neither the subscription nor a separate reader got
    it.

    That is proven where a ledger's entries are counted without a gap. The subscription received ``before`` next; the
    reader's next message begins at ``first`` and has the position ``found``. Where the ledger of ``after`` is gone
    (trimmed), all its messages are done with: this excuses messages missing at its end, but not those of a later
    ledger.
    """
    return not (found > before or follows(after, first) or (is_gone and begins_ledger(after, first)))


def sequence_id(position: Position) -> int:
    """Return the sequence id of a hop from this position: the same after every crash, ascending with the position.

    It is ``ledger << 32 | entry << 12 | (batch index + 1)``, or `NO_SEQUENCE_ID` where a part is out of its range: such
    a message is forwarded without deduplication rather than under the number of another message.
    """
    ledger, entry, index = position
    if ledger >= _MAX_LEDGER or entry >= _MAX_ENTRY or index > _MAX_BATCH_INDEX:
        return NO_SEQUENCE_ID
    return ledger << 32 | entry << 12 | (index + 1)


def highest_number(last: Position) -> int:
    """Return the highest sequence id of a hop from a topic, by its last position (entry -1: an empty ledger)."""
    return (last.ledger << 32) + (min(last.entry + 1, _MAX_ENTRY) << 12) - 1


WINDOW_BYTES = 16_000_000
"""Maximum bytes under way, exceeded only by a single larger message (broker-facts: windows-in-bytes)."""

Outcome = Literal["forwarded", "late", "dead", "refiled", "dropped", "probe"]


class Item:
    """A message from its arrival to its confirmation; a single object for both, to save time per message."""

    __slots__ = ("outcome", "reading", "receipt", "size", "spot")

    def __init__(self, spot: Spot, reading: Any, receipt: Any, size: int = 0) -> None:
        self.spot = spot
        self.reading = reading
        self.receipt = receipt
        self.size = size
        self.outcome: Outcome = "forwarded"


class Window:
    """Messages under way, in the order of their positions, numbered by ordinals from 0; ``size`` is their bytes.

    Confirmations come in any order. A cumulative acknowledgement covers all messages before it, so it may only name the
    end of the contiguous confirmed prefix (broker-facts: holes-in-positions).
    """

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._base = 0
        self._confirmed: set[int] = set()
        self._failed: set[int] = set()
        self.size = 0

    def __len__(self) -> int:
        """Messages not in the confirmed prefix."""
        return len(self._items)

    @property
    def unanswered(self) -> int:
        """Messages of which it is unknown whether they are stored."""
        return len(self._items) - len(self._confirmed) - len(self._failed)

    @property
    def confirmed(self) -> list[Item]:
        """The confirmed messages behind the confirmed prefix."""
        return [self._items[ordinal - self._base] for ordinal in self._confirmed]

    def push(self, item: Item) -> int:
        """Add the newest message; return its ordinal."""
        self._items.append(item)
        self.size += item.size
        return self._base + len(self._items) - 1

    def withdraw(self) -> None:
        """Take the newest message out again; its ordinal is given to the next."""
        self.size -= self._items.pop().size

    def fail(self, ordinal: int) -> Item:
        """Record that a message is not stored: the confirmed prefix ends before it."""
        self._failed.add(ordinal)
        return self._items[ordinal - self._base]

    def confirm(self, ordinal: int) -> list[Item]:
        """Record a confirmation; return the messages by which the confirmed prefix grew, in order, each once."""
        if ordinal != self._base:
            if ordinal > self._base:
                self._confirmed.add(ordinal)
            return []
        grown = [self._items.popleft()]
        self._base += 1
        while self._base in self._confirmed:
            self._confirmed.remove(self._base)
            grown.append(self._items.popleft())
            self._base += 1
        for item in grown:
            self.size -= item.size
        return grown


LEAST_EVERY_MS = 1_000
MARKS_A_STAY = 256
MAX_MARKS = 1_024


class Arrivals:
    """Bounds the time at which a message can have arrived, over all subscriptions of a partition.

    The "entered" time of a message is its sender's word, and so is its publish time. A message that is not behind the
    end that a topic had at some time was stored by then (broker-facts: clocks-too-fast). A bound may be too high by
    ``skew_ms``, or by a small part of the stay; without a stay bounds are of no use.
    """

    def __init__(self, stay_ms: int, skew_ms: int) -> None:
        self._every_ms = max(skew_ms, stay_ms // MARKS_A_STAY, LEAST_EVERY_MS) if stay_ms else 0
        self._marked_ms: int | None = None
        self._marks: deque[tuple[Position, int]] = deque()

    def wants_end(self, now_ms: int) -> bool:
        """Return whether it is time to ask for the topic's last position."""
        last_ms = self._marked_ms
        return bool(self._every_ms) and (last_ms is None or not 0 <= now_ms - last_ms < self._every_ms)

    def ended(self, last: Position | None, now_ms: int) -> None:
        """Record the topic's last position, after its request was answered; None: there was no answer."""
        self._marked_ms = now_ms
        marks = self._marks
        if last is None or (marks and last <= marks[-1][0]):
            return
        marks.append((last._replace(batch_index=1 << 31), now_ms))  # at any index of a batch
        if len(marks) > MAX_MARKS:
            self._marks = deque(mark for number, mark in enumerate(marks) if number % 2)

    def arrived_by(self, position: Position, now_ms: int) -> int:
        """Return a time by which a received message had arrived, UTC milliseconds; earlier messages are forgotten."""
        marks = self._marks
        while marks and marks[0][0] < position:
            marks.popleft()
        return min(marks[0][1], now_ms) if marks else now_ms


ASK_AGAIN_MS = 1_500
"""A request may go unheard (while the broker delays going back); the next request follows after this time."""
MEETINGS = 2
MEETINGS_OVER_SUBSCRIPTIONS = 4
"""Chance decides whether another relay meets the same messages again in between: with 2 meetings, 13 of 3,000 worlds of
two such relays lost timers, with 3 one world, with 4 none.
"""


@unique
class Sign(Enum):
    """The significance of a message for the beginning."""

    ASK = "ask"  # a beginning for the first time: ask for all messages again
    WAIT = "wait"  # behind a beginning that is not believed yet: it is redelivered, so ignore it
    BEGUN = "begun"  # the same beginning twice: this message is the first


class Beginning:
    """Watches positions until the beginning of a subscription can be believed (broker-facts: false-beginning).

    The first delivered message need not be the first unacknowledged message. When the active consumer of a Failover
    subscription changes, the broker goes back to the mark-delete position only a second later
    (``activeConsumerFailoverDelayTimeMillis``), and until then may give the new consumer messages behind the old
    consumer's last message (seen on 4.0.7). If a relay began there, the old consumer's messages in flight would be
    lost: later sequence ids would shut them out, and a cumulative acknowledgement would end them. So the broker is
    asked to redeliver all unacknowledged messages, and a beginning is believed when it is met twice, or more often if
    the relay has subscribed anew in between.
    """

    def __init__(self) -> None:
        self._meetings_needed = MEETINGS
        self._meetings = 0
        self._candidate: Position | None = None
        self._last: Position | None = None
        self._asked_ms: int | None = None

    def see(self, position: Position, now_ms: int) -> Sign:
        """Judge the next message; a jump of the clock costs another request or some time, no more."""
        last, self._last = self._last, position
        if last is not None and position > last:
            is_unheard = self._asked_ms is None or not 0 <= now_ms - self._asked_ms < ASK_AGAIN_MS
            return Sign.ASK if is_unheard else Sign.WAIT
        if position != self._candidate:
            self._candidate, self._meetings = position, 0
        self._meetings += 1
        return Sign.BEGUN if self._meetings >= self._meetings_needed else Sign.ASK

    def outlives(self) -> None:
        """Record that this process ends the subscription, and another follows.

        In between the broker may go back for another relay, and give it the messages before a false beginning once
        more: the next subscription then meets the false beginning again.
        """
        self._meetings_needed = MEETINGS_OVER_SUBSCRIPTIONS

    def asked(self, now_ms: int) -> None:
        self._asked_ms = now_ms

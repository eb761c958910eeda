"""The order of positions: whether a message stands right behind the message before it, and sequence ids of positions.

The client skips unreadable messages in silence, and a later cumulative acknowledgement then destroys them
(broker-facts: holes-in-positions). So every position is compared with the position before it: within a batch the next
index, behind a batch's last the next entry, behind a ledger's last the first entry of a later ledger (only reading the
topic shows which of its entries was the last).
"""

from __future__ import annotations

from enum import Enum, unique
from typing import NamedTuple

from timewheel.client.positions import Position

NO_SEQUENCE_ID = 0
"""For positions outside the ranges of `sequence_id`; the client itself takes 0 for "none"."""

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
    AGAIN = "again"
    """Not above the highest seen: received again after a reload."""
    HOLE = "hole"
    """A message between the highest seen and this position was not delivered."""


class Contiguity:
    """Remembers the highest position seen.

    Args:
        known: The highest position that is already done with, from before a reload; None accepts any first position.
    """

    __slots__ = ("highest",)

    def __init__(self, known: Spot | None = None) -> None:
        self.highest: Spot | None = known

    def see(self, spot: Spot, first: Position | None = None) -> Sight:
        """Classify a position, and remember it if it is the next.

        Args:
            spot: Spot of the message; of a chunked message, its last chunk.
            first: Position of a chunked message's first chunk.
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
    """Return whether the client hides a message that is stored behind another.

    It is hidden if neither the subscription nor a separate reader received it. That is proven where a ledger's entries
    are counted without a gap.

    Args:
        after: The message before.
        before: Position that the subscription received next.
        first: Position at which the reader's next message begins; of a chunked message, its first chunk.
        found: Position of the reader's next message.
        is_gone: Whether the ledger of the message before is trimmed: then all its messages are done with. This excuses
            messages missing at its end, but not those of a later ledger.
    """
    return not (found > before or follows(after, first) or (is_gone and begins_ledger(after, first)))


def sequence_id(position: Position) -> int:
    """Return the sequence id of a hop from this position: the same after every crash, ascending with the position.

    Returns:
        ``ledger << 32 | entry << 12 | (batch index + 1)``, or `NO_SEQUENCE_ID` where a part is out of its range: such a
        message is forwarded without deduplication rather than under the number of another message.
    """
    ledger, entry, index = position
    if ledger >= _MAX_LEDGER or entry >= _MAX_ENTRY or index > _MAX_BATCH_INDEX:
        return NO_SEQUENCE_ID
    return ledger << 32 | entry << 12 | (index + 1)


def highest_number(last: Position) -> int:
    """Return the highest sequence id that a hop from a topic can have, by the topic's last position.

    Args:
        last: The last position; its entry is -1 in an empty ledger.
    """
    return (last.ledger << 32) + (min(last.entry + 1, _MAX_ENTRY) << 12) - 1

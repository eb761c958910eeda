"""Whether a message stands right behind the one before it (broker-facts: holes-in-positions), and what number its
position makes.

The client skips what it cannot read without a word, and a later cumulative acknowledgement then destroys it. So every
position is compared with the one before it: within a batch the next index, behind a batch's last the next entry, behind
a ledger's last the first entry of a later ledger (which of its entries was the last, only a look at the topic tells).
"""

from __future__ import annotations

from enum import Enum, unique
from typing import NamedTuple

from timewheel.wire.positions import Position

__all__ = [
    "NO_SEQUENCE_ID",
    "Contiguity",
    "Sight",
    "Spot",
    "begins_ledger",
    "follows",
    "highest_number",
    "is_hidden",
    "sequence_id",
]

NO_SEQUENCE_ID = 0
"""For positions outside the ranges of `sequence_id`; the client itself takes 0 for "none"."""

_MAX_LEDGER = 1 << 31
_MAX_ENTRY = 1 << 20
_MAX_BATCH_INDEX = 4_094


class Spot(NamedTuple):
    """A position, and how many messages its entry holds (0: unbatched, or unknown)."""

    position: Position
    batch_size: int


@unique
class Sight(Enum):
    """How a position stands to those seen before."""

    NEXT = "next"
    NEXT_LEDGER = "next_ledger"
    """The first of a later ledger. How many entries a ledger has is not told: something may be missing at its end."""
    AGAIN = "again"
    """Not above the highest seen: received once more after a reload."""
    HOLE = "hole"
    """Something between the highest seen and this one was not handed out."""


class Contiguity:
    """Remembers the highest position seen.

    Args:
        known: The highest position that is already done with, from before a reload; None: take the first as it comes.
    """

    __slots__ = ("highest",)

    def __init__(self, known: Spot | None = None) -> None:
        self.highest: Spot | None = known

    def see(self, spot: Spot, first: Position | None = None) -> Sight:
        """Classify a position, and remember it if it is the next.

        Args:
            spot: Of the message; of one in chunks its last.
            first: Of a message in chunks its first.
        """
        highest = self.highest
        if highest is None or follows(highest, first or spot.position):
            self.highest = spot
            same = highest is None or highest.position.ledger == spot.position.ledger
            return Sight.NEXT if same else Sight.NEXT_LEDGER
        return Sight.AGAIN if spot.position <= highest.position else Sight.HOLE


def follows(spot: Spot, position: Position) -> bool:
    """Whether a position may stand right behind another one."""
    (ledger, entry, index), batch_size = spot
    if position.ledger == ledger:
        if index >= 0 and index < batch_size - 1:
            return position.entry == entry and position.batch_index == index + 1
        if index >= 0 and batch_size == 0 and position.entry == entry:
            return position.batch_index == index + 1  # a batch of unknown size goes on
        return position.entry == entry + 1 and position.batch_index <= 0
    # How many entries a closed ledger has is not told; that a batch in it was cut short is.
    complete = index < 0 or index >= batch_size - 1
    return complete and position.ledger > ledger and position.entry == 0 and position.batch_index <= 0


def begins_ledger(after: Spot, position: Position) -> bool:
    """Whether a position is the first of a later ledger."""
    return position.ledger > after.position.ledger and position.entry == 0 and position.batch_index <= 0


def is_hidden(after: Spot, before: Position, first: Position, found: Position, *, is_gone: bool) -> bool:
    """Whether the client hides what stands behind a message: it is stored, and neither the subscription nor a reader of
    its own got it. That is proven where a ledger's entries are counted without a gap.

    Args:
        after: The message.
        before: What the subscription got next.
        first: Where that begins which a reader got next; of a message in chunks its first.
        found: Where that stands.
        is_gone: Whether the message's ledger is trimmed: whatever was in it is done with. It excuses what is missing at
            its end, and nothing of a later one.
    """
    return not (found > before or follows(after, first) or (is_gone and begins_ledger(after, first)))


def sequence_id(position: Position) -> int:
    """The sequence id of a hop from this position: the same after every crash, ascending with the position.

    Returns:
        ``ledger << 32 | entry << 12 | (batch index + 1)``, or `NO_SEQUENCE_ID` where a part is out of its range: such
        a message is forwarded without deduplication rather than under another one's number.
    """
    ledger, entry, index = position
    if ledger >= _MAX_LEDGER or entry >= _MAX_ENTRY or index > _MAX_BATCH_INDEX:
        return NO_SEQUENCE_ID
    return ledger << 32 | entry << 12 | (index + 1)


def highest_number(last: Position) -> int:
    """The highest sequence id that a hop from a topic can have, by the topic's last position.

    Args:
        last: Its entry is -1 in a ledger that is empty.
    """
    return (last.ledger << 32) + (min(last.entry + 1, _MAX_ENTRY) << 12) - 1

"""Messages under way, in the order of their positions: confirmations come in any order, acknowledgements must not.

A cumulative acknowledgement covers all messages before it, so it may only name the end of the contiguous confirmed
prefix (broker-facts: holes-in-positions).
"""

from __future__ import annotations

from collections import deque
from typing import Any, Literal

from timewheel.relay.machine.order import Spot

WINDOW_BYTES = 16_000_000
"""Maximum bytes under way, exceeded only by a single larger message (broker-facts: windows-in-bytes)."""

Outcome = Literal["forwarded", "late", "dead", "refiled", "dropped", "probe"]


class Item:
    """A message from its arrival to its confirmation; a single object for both, to save time per message.

    Args:
        spot: Its spot in the holding topic.
        reading: Its envelope, or its error; opaque here.
        receipt: The receipt that acknowledges it; opaque here.
        size: Its bytes.

    Attributes:
        outcome: Its decision, once that is decided.
    """

    __slots__ = ("outcome", "reading", "receipt", "size", "spot")

    def __init__(self, spot: Spot, reading: Any, receipt: Any, size: int = 0) -> None:
        self.spot = spot
        self.reading = reading
        self.receipt = receipt
        self.size = size
        self.outcome: Outcome = "forwarded"


class Window:
    """The messages between the acknowledged and the newest, numbered in order by ordinals that count from 0.

    Attributes:
        size: Their bytes.
    """

    __slots__ = ("_base", "_confirmed", "_failed", "_items", "size")

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
        """Add the newest message.

        Returns:
            Its ordinal.
        """
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
        """Record a confirmation.

        Returns:
            The messages by which the confirmed prefix grew, in order; each message is returned once.
        """
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

"""Positions in a topic as comparable values, independent of the client's message ids."""

from __future__ import annotations

from typing import NamedTuple

from timewheel.client.surface import MessageIdLike


class Position(NamedTuple):
    """(ledger, entry, batch index); compares in topic order. The batch index is -1 for an unbatched message."""

    ledger: int
    entry: int
    batch_index: int

    @classmethod
    def of(cls, message_id: MessageIdLike) -> Position:
        # For each message: the constructor of a NamedTuple costs twice as much.
        return tuple.__new__(cls, (message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()))

    @property
    def text(self) -> str:
        """The position as brokers write it, with the index in its batch if it has one: ``"90:3"``, ``"90:3:7"``."""
        return f"{self.ledger}:{self.entry}" + (f":{self.batch_index}" if self.batch_index >= 0 else "")


class EntryPosition(NamedTuple):
    """(ledger, entry), comparable within a topic. Entry -1: before the ledger's first entry."""

    ledger: int
    entry: int

    @classmethod
    def parse(cls, text: str) -> EntryPosition:
        """Parse the form that brokers write: ``"90:3"``."""
        ledger, _, entry = text.partition(":")
        return cls(int(ledger), int(entry))

    @property
    def text(self) -> str:
        """The position as brokers write it: ``"90:3"``."""
        return f"{self.ledger}:{self.entry}"

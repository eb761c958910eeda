"""Stored entries of a due topic: as a plain client stores one, or of what a test says about it."""

from __future__ import annotations

from typing import Any

from timewheel.broker.protocol.entries import Entry
from timewheel.client.positions import EntryPosition

SOMEWHERE = EntryPosition(7, 11)


def native_entry(publish_ms: int, due_ms: int, position: EntryPosition = SOMEWHERE) -> Entry:
    """Make an entry of a single message, unbatched and delayed.

    Args:
        publish_ms: When it was sent, UTC milliseconds.
    """
    return Entry(
        consumer_id=0, position=position, redeliveries=0, properties={}, publish_ms=publish_ms, deliver_at_ms=due_ms
    )


def entry_of(ledger: int, number: int, **changes: Any) -> Entry:
    """A plain entry without a delay, but for what is said."""
    fields: dict[str, Any] = dict.fromkeys(Entry._fields)
    fields |= {
        "consumer_id": 1, "redeliveries": 0, "publish_ms": 0, "batch_size": 0, "properties": {}, "key_is_base64": False,
        "producer": "p", "sequence_id": number, "compression": 0, "is_encrypted": False, "has_null_value": False,
        "payload_bytes": 10, "uncompressed_bytes": 10, "position": EntryPosition(ledger, number),
    }  # fmt: skip
    return Entry(**(fields | changes))

"""An entry of a due topic, as a plain client stores it."""

from __future__ import annotations

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

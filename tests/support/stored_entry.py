"""An entry of a due topic, as a plain client stores it."""

from __future__ import annotations

from typing import Any

from timewheel.broker.protocol.entries import Compression, Entry
from timewheel.client.positions import EntryPosition

SOMEWHERE = EntryPosition(7, 11)


def native_entry(publish_ms: int, due_ms: int, position: EntryPosition = SOMEWHERE) -> Entry:
    """Make an entry of a single message, unbatched and delayed.

    Args:
        publish_ms: When it was sent, UTC milliseconds.
    """
    nothing: Any = [None] * len(Entry._fields)
    return Entry(*nothing)._replace(
        position=position,
        publish_ms=publish_ms,
        deliver_at_ms=due_ms,
        batch_size=0,
        properties={},
        key_is_base64=False,
        compression=Compression.NONE,
        is_encrypted=False,
        payload_bytes=0,
        uncompressed_bytes=0,
    )

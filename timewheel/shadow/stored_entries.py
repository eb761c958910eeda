"""Single entries for commands: read by the binary protocol, and decompressed here, within limits.

The admin API decompresses a payload before it returns an entry, into as many bytes as its producer declared: a few
kilobytes can end a broker that way.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from timewheel.broker.admin.entries import LEAST_BYTES, StoredEntry
from timewheel.broker.protocol.dialing import Dialer
from timewheel.broker.protocol.entries import Entry
from timewheel.broker.protocol.errors import BinaryProtocolError, BrokerLost, BrokerRefused, LookupFailed
from timewheel.client.positions import EntryPosition
from timewheel.core.envelope import MAX_TIME_MS
from timewheel.core.errors import AdminDenied, AdminError, AdminMissing, AdminUnreachable
from timewheel.shadow.driver.content import DamagedPayload, opened
from timewheel.shadow.peeking import PEEK_MS, EntryPeeker

MAX_OPENED_BYTES = 16 << 20
"""Limit of an entry: several entries are in memory at once."""


class StoredEntries:
    """An `timewheel.broker.admin.entries.EntrySource` over the binary protocol.

    Args:
        dial: Returns the dialer for the broker of a topic.
    """

    def __init__(self, dial: Callable[[str], Dialer]) -> None:
        self._peeker = EntryPeeker(dial)
        self._is_reached = False
        self._is_out_of_reach = False

    def entry(self, topic: str, position: EntryPosition) -> StoredEntry | None:
        """Read an entry; None: the binary protocol cannot be used here.

        Raises:
            AdminMissing: The entry does not exist, or the broker delivers it to no consumer.
            AdminUnreachable: No answer came.
            AdminError: The entry cannot be read.
        """
        if self._is_out_of_reach:
            return None
        call = f"READ {topic} {position.text}"
        try:
            found = self._peeker.peek(topic, position)
        except (AdminDenied, BrokerRefused):
            return None  # the admin API may allow a role that is denied here
        except BinaryProtocolError as error:
            if self._is_reached or not isinstance(error, BrokerLost | LookupFailed):
                raise AdminUnreachable(call, str(error), sent=True) from error
            self._is_out_of_reach = True
            return None
        self._is_reached = True
        if found is None or found.position != position:
            raise _missing(call, position, found)
        try:
            return _stored(found)
        except (DamagedPayload, ValueError) as error:
            raise AdminError(HTTPStatus.OK, call, f"the entry cannot be read: {error}") from error

    def close(self) -> None:
        """Close all connections."""
        self._peeker.close()


def _missing(call: str, position: EntryPosition, found: Entry | None) -> AdminMissing:
    if found is None:
        return AdminMissing(HTTPStatus.OK, call, f"the broker handed out nothing from there on in {PEEK_MS} ms")
    if found.position.ledger == position.ledger and found.position > position:
        return AdminMissing(HTTPStatus.OK, call, "the broker delivers it to no consumer, as a marker of its own")
    return AdminMissing(HTTPStatus.NOT_FOUND, call, "there is no such entry")


def _stored(entry: Entry) -> StoredEntry:
    """Convert an entry; raises DamagedPayload, or ValueError, if no reader could interpret it."""
    if entry.defect is not None:
        raise ValueError(entry.defect)
    for name, at_ms in (("delivery", entry.deliver_at_ms), ("event", entry.event_ms)):
        if not 0 <= (at_ms or 0) <= MAX_TIME_MS:
            raise ValueError(f"a time of {name} of {at_ms} ms; the latest is {MAX_TIME_MS}")
    # To decompress an encrypted entry or a chunk, a key or the other chunks are needed.
    is_closed = entry.is_encrypted or entry.is_chunked
    payload = (entry.payload or b"") if is_closed else opened(entry, max_bytes=MAX_OPENED_BYTES)
    if entry.batch_size and not is_closed and entry.batch_size * LEAST_BYTES > len(payload):
        raise ValueError(f"a batch of {entry.batch_size} messages in {len(payload)} bytes")
    return StoredEntry(
        position=entry.position,
        payload=payload,
        publish_at_ms=entry.publish_ms,
        event_at_ms=entry.event_ms,
        deliver_at_ms=entry.deliver_at_ms,
        properties={_text(name): _text(value) for name, value in entry.properties.items()},
        producer=_text(entry.producer),
        sequence_id=entry.sequence_id,
        partition_key=None if entry.partition_key is None else _text(entry.partition_key),
        ordering_key=entry.ordering_key,
        batch_messages=entry.batch_size or None,
        null_payload=entry.has_null_value,
        encrypted=entry.is_encrypted,
        is_replicated=entry.replicated_from is not None,
    )


def _text(text: str) -> str:
    """Replace characters that are not text: files and answers do not accept them."""
    return text.encode("utf-8", "replace").decode()

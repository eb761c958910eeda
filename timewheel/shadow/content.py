"""The content of a stored entry: its payload as its producer gave it, a message that can be sent on, its timers."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

import cramjam

from timewheel.broker.admin.entries import BatchGarbled, messages_of_batch
from timewheel.broker.protocol.entries import Compression, Entry
from timewheel.broker.protocol.wire import MAX_FRAME_BYTES
from timewheel.client.positions import EntryPosition
from timewheel.core.envelope import FROM_PROPERTY, MAX_TIMER_ID_CHARS, Envelope
from timewheel.core.errors import EnvelopeError
from timewheel.shadow.machine.move_decider import moved_from, position_in


class DamagedPayload(Exception):
    """A payload that does not decompress as its metadata declare."""


def opened(entry: Entry, *, max_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """Decompress the payload of an entry into as many bytes as its metadata declare, and no more.

    Raises DamagedPayload if it does not decompress, its length differs from the declared length, or that is above
    `max_bytes`.
    """
    payload, size = entry.payload, entry.uncompressed_bytes
    assert payload is not None, "the reader was asked for payloads"
    if entry.compression == Compression.NONE:
        return payload
    if size > max_bytes:
        raise DamagedPayload(f"{size} bytes are declared, the limit is {max_bytes}")
    try:
        if entry.compression == Compression.ZLIB:
            content = zlib.decompressobj().decompress(payload, size + 1)
            length = len(content)
        elif (into := _INTO.get(entry.compression)) is not None:
            room = bytearray(size)
            length = into(payload, room)
            content = bytes(room)
        else:
            raise DamagedPayload(f"compression {entry.compression} is not known here")
    except (cramjam.DecompressionError, zlib.error) as error:
        raise DamagedPayload(f"compression {entry.compression} does not open it: {error}") from error
    if length != size:
        raise DamagedPayload(f"{length} bytes or more, and {size} are declared")
    return content


_INTO: Mapping[int, Callable[[bytes, bytearray], int]] = {
    Compression.LZ4: cramjam.lz4.decompress_block_into,
    Compression.ZSTD: cramjam.zstd.decompress_into,
    Compression.SNAPPY: cramjam.snappy.decompress_raw_into,
}
"""Functions that fill a buffer, and fail if they would need more."""


class Original:
    """An entry in the form of a received message, which `timewheel.client.native.carry` can send on; raises
    DamagedPayload.
    """

    __slots__ = ("_content", "_entry")

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._content = b"" if entry.has_null_value else opened(entry)

    @property
    def size(self) -> int:
        return len(self._content)

    def has_null_value(self) -> bool:
        return self._entry.has_null_value

    def data(self) -> bytes:
        return self._content

    def partition_key(self) -> str:
        return self._entry.partition_key or ""

    def ordering_key(self) -> str:
        return (self._entry.ordering_key or b"").decode()

    def event_timestamp(self) -> int:
        return self._entry.event_ms or 0


class StoredTimer(NamedTuple):
    """A timer of a plan's topic.

    Args:
        due_ms: Its due time, UTC milliseconds.
        original: Position of the original; only of a copy in the journal.
        published_ms: Publish time of the original, UTC milliseconds; 0: it has none.
    """

    timer_id: str
    due_ms: int
    original: EntryPosition | None = None
    published_ms: int = 0


def key_of(timer_id: str) -> int:
    """Return a number for an id, the same in every process; signed, of 64 bits."""
    digest = hashlib.blake2b(timer_id.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def original_of(timer_id: str, part: str) -> EntryPosition | None:
    """Return the position of a timer's original, from its id; None: no shadow of this partition of the due topic gives
    such an id.
    """
    head, _, entry = timer_id.rpartition(":")
    head, _, ledger = head.rpartition(":")
    is_its = head == part or (len(timer_id) == MAX_TIMER_ID_CHARS and part.endswith(head))
    return position_in(f"{ledger}:{entry}") if is_its else None


def properties_in(entry: Entry) -> Iterator[Mapping[str, str]]:
    """Yield the properties of each message. An entry that does not decompress yields nothing, and a batch nothing from
    its first unreadable message on.
    """
    if (entry.is_encrypted and entry.batch_size) or entry.defect is not None:
        return
    if not entry.batch_size:
        yield entry.properties
        return
    with suppress(BatchGarbled, DamagedPayload):
        for message in messages_of_batch(opened(entry), entry.batch_size):
            yield message.properties


def timers_in(entry: Entry) -> Iterator[StoredTimer]:
    """Yield the timers of an entry of a topic of the plan, with the positions of the copies' originals."""
    for properties in properties_in(entry):
        try:
            envelope = Envelope.read(properties)
        except EnvelopeError:
            continue
        if envelope is not None:
            found = moved_from(properties.get(FROM_PROPERTY, "")) or (None, 0)
            yield StoredTimer(envelope.timer_id, envelope.due_ms, *found)

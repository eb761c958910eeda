"""Stored entries, read by the binary protocol and consumed by nobody: single entries for commands, decompressed here
within limits, and stretches of a partition; their content: payloads, messages that can be sent on, timers.

The admin API decompresses a payload before it returns an entry, into as many bytes as its producer declared: a few
kilobytes can end a broker that way. By the binary protocol the broker decompresses none.
"""

from __future__ import annotations

import hashlib
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import NamedTuple

import cramjam

from timewheel.broker.admin.entries import LEAST_BYTES, BatchGarbled, StoredEntry, messages_of_batch
from timewheel.broker.protocol.commands import ConsumerClosed, SubscriptionType
from timewheel.broker.protocol.consumers import EntryReader, look_name
from timewheel.broker.protocol.dialing import Dialer
from timewheel.broker.protocol.entries import Compression, Entry
from timewheel.broker.protocol.errors import (
    BinaryProtocolError,
    BrokerLost,
    BrokerRefused,
    BrokerSilent,
    ConsumerLost,
    LookupFailed,
)
from timewheel.broker.protocol.session import Session
from timewheel.broker.protocol.wire import MAX_FRAME_BYTES
from timewheel.client.positions import EntryPosition
from timewheel.core.clock import Clock, SystemClock, pause
from timewheel.core.envelope import FROM_PROPERTY, MAX_TIME_MS, MAX_TIMER_ID_CHARS, Envelope
from timewheel.core.errors import AdminDenied, AdminError, AdminMissing, AdminUnreachable, EnvelopeError
from timewheel.core.rng import system_random
from timewheel.shadow.machine.cursors import Stretch
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
    """An entry as a received message, which `timewheel.client.native.carry` can send on; raises DamagedPayload."""

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
    """A timer of a plan's topic."""

    timer_id: str
    due_ms: int  # its due time, UTC milliseconds
    original: EntryPosition | None = None  # position of the original; only of a copy in the journal
    published_ms: int = 0  # publish time of the original, UTC milliseconds; 0: it has none


def key_of(timer_id: str) -> int:
    """Return a number for an id, the same in every process; signed, of 64 bits."""
    digest = hashlib.blake2b(timer_id.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def original_of(timer_id: str, part: str) -> EntryPosition | None:
    """Return the position of a timer's original, from its id; None: no shadow of this partition gives such an id."""
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


PEEK_MS = 5_000
"""Time-out of an entry. None comes if the broker has only its own markers left, or messages of open transactions."""
MAX_IDLE = 16  # connections that are kept for the next read
MAX_OPENED_BYTES = 16 << 20  # limit of an entry: several entries are in memory at once
QUIET_MS = 3_000
"""Silence after which a stretch counts as read to its end: a broker does not deliver its own entries, nor messages
behind an open transaction."""
TRIES = 8  # times that a topic may move in a row without an entry in between
PAUSE_MS = 500


class StoredEntries:
    """An `timewheel.broker.admin.entries.EntrySource` over the binary protocol: each entry is read by a reader with a
    single permit. Safe to share between threads.

    Args:
        dial: Returns the dialer for the broker of a topic.
    """

    def __init__(self, dial: Callable[[str], Dialer]) -> None:
        self._dial = dial
        self._clock = SystemClock()
        # Shown in the topic's stats.
        self._name = look_name(system_random())
        self._lock = threading.Lock()
        self._looks = 0
        self._idle: deque[tuple[str, Session]] = deque()
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
            found = self._peek(topic, position)
        except (AdminDenied, BrokerRefused):
            return None  # the admin API may allow a role that is denied here
        except BinaryProtocolError as error:
            if self._is_reached or not isinstance(error, BrokerLost | LookupFailed):
                raise AdminUnreachable(call, str(error), sent=True) from error
            self._is_out_of_reach = True
            return None
        self._is_reached = True
        if found is None:
            raise AdminMissing(HTTPStatus.OK, call, f"the broker handed out nothing from there on in {PEEK_MS} ms")
        if found.position != position:
            if found.position.ledger == position.ledger and found.position > position:
                raise AdminMissing(HTTPStatus.OK, call, "the broker delivers it to no consumer, as a marker of its own")
            raise AdminMissing(HTTPStatus.NOT_FOUND, call, "there is no such entry")
        try:
            return _stored(found)
        except (DamagedPayload, ValueError) as error:
            raise AdminError(HTTPStatus.OK, call, f"the entry cannot be read: {error}") from error

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, deque()
        for _, session in idle:
            session.close()

    def _peek(self, topic: str, position: EntryPosition) -> Entry | None:
        """Return the entry at a position, or the next that consumers receive; None: there is none."""
        with self._lock:
            kept = next((one for one in self._idle if one[0] == topic), None)
            if kept is not None:
                self._idle.remove(kept)
        if kept is not None:
            try:
                return self._first(kept[1], topic, position)
            except BinaryProtocolError:
                kept[1].close()  # it may have been idle for too long, or the topic has moved
        session = self._dial(topic).reach(topic, keep_payload=True)
        try:
            return self._first(session, topic, position)
        except BaseException:
            session.close()
            raise

    def _first(self, session: Session, topic: str, position: EntryPosition) -> Entry | None:
        with self._lock:
            self._looks += 1
            name = f"{self._name}-{self._looks}"
        request_id, reader = session.connection.subscribe(
            topic, name, SubscriptionType.EXCLUSIVE, name=name, start=position
        )
        session.answer(request_id, topic=topic, consumer_id=reader)
        session.connection.grant(reader, 1)
        entry, until_ms = None, self._clock.monotonic_ms() + PEEK_MS
        while entry is None and (left_ms := until_ms - self._clock.monotonic_ms()) > 0:
            for event in session.events(left_ms):
                if isinstance(event, ConsumerClosed) and event.consumer_id == reader:
                    raise ConsumerLost(topic, event.reason)
                if isinstance(event, Entry) and event.consumer_id == reader:
                    entry = event
                    break
        session.answer(session.connection.close_consumer(reader), topic=topic)
        with self._lock:
            self._idle.append((topic, session))
            oldest = self._idle.popleft()[1] if len(self._idle) > MAX_IDLE else None
        if oldest is not None:
            oldest.close()
        return entry


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
        position=entry.position, payload=payload, publish_at_ms=entry.publish_ms, event_at_ms=entry.event_ms,
        deliver_at_ms=entry.deliver_at_ms,
        properties={_text(name): _text(value) for name, value in entry.properties.items()},
        producer=_text(entry.producer), sequence_id=entry.sequence_id,
        partition_key=None if entry.partition_key is None else _text(entry.partition_key),
        ordering_key=entry.ordering_key, batch_messages=entry.batch_size or None, null_payload=entry.has_null_value,
        encrypted=entry.is_encrypted, is_replicated=entry.replicated_from is not None,
    )  # fmt: skip


def _text(text: str) -> str:
    """Replace characters that are not text: files and answers do not accept them."""
    return text.encode("utf-8", "replace").decode()


def entries_in(
    dialer: Dialer, part: str, stretch: Stretch, clock: Clock, *, keep_payload: bool = False, quiet_ms: int = QUIET_MS
) -> Iterator[list[Entry]]:
    """Yield the entries of a stretch of a partition, or of a topic without partitions, in topic order, some at a time;
    if the topic moves, go on behind the last entry.

    Raises:
        BinaryProtocolError: The stretch cannot be read.
    """
    after, failures = stretch.after, 0
    while True:
        try:
            with EntryReader(dialer, part, after=after, keep_payload=keep_payload) as reader:
                while entries := reader.read(quiet_ms):
                    after, failures = entries[-1].position, 0
                    if after < stretch.upto:
                        yield entries
                        continue
                    yield [entry for entry in entries if entry.position <= stretch.upto]
                    return
                return
        except (BrokerLost, ConsumerLost, BrokerSilent, BrokerRefused) as error:
            failures += 1
            if failures >= TRIES or (isinstance(error, BrokerRefused) and not error.is_passing):
                raise
            pause(clock, PAUSE_MS)

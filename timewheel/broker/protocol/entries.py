"""A stored entry, as a broker delivers it: its position, and the metadata that its producer wrote.

The payload is left as it is: compressed, encrypted, a chunk of a larger message, or a batch of many. The delivery time
of a batch stands once, in its entry: the messages in the batch have no such field.

A producer may store any bytes as metadata. Invalid metadata makes an entry with a `defect`, never an error: only that
entry is affected, and a reader of the topic continues behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from google_crc32c import value as crc32c

from timewheel.broker.protocol.errors import ProtocolViolation
from timewheel.broker.protocol.wire import as_signed, data_tag, fields_of, number_at, number_tag, text_of
from timewheel.client.positions import EntryPosition
from timewheel.core.envelope import MAX_TIME_MS

_CHECKSUM_MAGIC = b"\x0e\x01"
_BROKER_METADATA_MAGIC = b"\x0e\x02"
_SIZE_BYTES = 4
_VERSION_BYTES = 8


class Compression(IntEnum):
    """Compression of a payload."""

    NONE = 0
    LZ4 = 1
    ZLIB = 2
    ZSTD = 3
    SNAPPY = 4


class Marker(IntEnum):
    """Entries that brokers write into topics for their own use, and never deliver to consumers on purpose."""

    SNAPSHOT_REQUEST = 10
    SNAPSHOT_RESPONSE = 11
    SNAPSHOT = 12
    SUBSCRIPTION_UPDATE = 13
    TRANSACTION_COMMITTING = 20
    TRANSACTION_COMMIT = 21
    TRANSACTION_ABORT = 22


class Entry(NamedTuple):
    """A stored entry. Values that are None were not written.

    A named tuple, not a dataclass: a tuple is made for every entry, and takes a third of the time.
    """

    consumer_id: int  # consumer of the connection that the entry was delivered to
    position: EntryPosition  # position in the topic
    redeliveries: int  # how often the broker has delivered the entry before, as far as it remembers
    # properties of the message; of a batch those that its client put on the batch, mostly none
    properties: dict[str, str]
    publish_ms: int = 0  # time when its producer sent it, UTC milliseconds
    deliver_at_ms: int | None = None  # requested delivery time, UTC milliseconds
    batch_size: int = 0  # messages in it; 0: a single message and no batch. A batch may hold one message.
    partition_key: str | None = None  # key as it is written; see `key_is_base64`
    key_is_base64: bool = False  # whether the key is bytes, written as a text in base 64
    ordering_key: bytes | None = None  # key that Key_Shared prefers to the partition key
    event_ms: int | None = None  # event time that the producer set, UTC milliseconds
    producer: str = ""  # name of the producer
    sequence_id: int = 0  # the producer's sequence id of this entry
    replicated_from: str | None = None  # the cluster where the entry was published first
    schema_version: bytes | None = None  # the broker's version number, big-endian, 8 bytes
    compression: int = 0  # a member of `Compression`, or an unknown number
    is_encrypted: bool = False  # whether the payload is encrypted
    chunk: int | None = None  # index of this chunk in a larger message, from 0
    chunk_count: int | None = None  # number of chunks of that message
    marker: int | None = None  # a member of `Marker`, or an unknown number
    has_null_value: bool = False  # whether the message has no value, which removes its key from a compacted topic
    transaction: tuple[int, int] | None = None  # the two halves of the transaction id, most significant first
    payload: bytes | None = None  # payload as stored; None: the reader does not keep payloads
    payload_bytes: int = 0  # size of the payload
    uncompressed_bytes: int = 0  # size before compression, according to the producer; 0 if the producer wrote none
    # why the metadata cannot be read; None: it can. With a defect all metadata here is empty, except the number of
    # messages that a broker counts, and the payload is the whole entry.
    defect: str | None = None

    @property
    def message_count(self) -> int:
        """Number of messages by which the entry reduces a consumer's permits."""
        return self.batch_size or 1

    @property
    def is_chunked(self) -> bool:
        """True if the entry is a chunk of a larger message."""
        return (self.chunk_count or 0) > 1


# Fields of MessageMetadata in PulsarApi.proto.
_PRODUCER = data_tag(1)
_SEQUENCE_ID = number_tag(2)
_PUBLISH_TIME = number_tag(3)
_PROPERTY = data_tag(4)
_REPLICATED_FROM = data_tag(5)
_PARTITION_KEY = data_tag(6)
_COMPRESSION = number_tag(8)
_UNCOMPRESSED_SIZE = number_tag(9)
_MESSAGES_IN_BATCH = number_tag(11)
_EVENT_TIME = number_tag(12)
_ENCRYPTION_KEY = data_tag(13)
_SCHEMA_VERSION = data_tag(16)
_KEY_IS_BASE64 = number_tag(17)
_ORDERING_KEY = data_tag(18)
_DELIVER_AT = number_tag(19)
_MARKER = number_tag(20)
_TRANSACTION_LEAST = number_tag(22)
_TRANSACTION_MAX = number_tag(23)
_NULL_VALUE = number_tag(25)
_CHUNK_COUNT = number_tag(27)
_CHUNK = number_tag(29)
_NUMBERS = frozenset(
    {
        _SEQUENCE_ID, _PUBLISH_TIME, _COMPRESSION, _UNCOMPRESSED_SIZE, _MESSAGES_IN_BATCH, _EVENT_TIME, _KEY_IS_BASE64,
        _DELIVER_AT, _MARKER, _TRANSACTION_LEAST, _TRANSACTION_MAX, _NULL_VALUE, _CHUNK_COUNT, _CHUNK,
    }
)  # fmt: skip
_DATAS = frozenset({_PRODUCER, _REPLICATED_FROM, _PARTITION_KEY, _ENCRYPTION_KEY, _SCHEMA_VERSION, _ORDERING_KEY})
# Fields of KeyValue.
_NAME = data_tag(1)
_VALUE = data_tag(2)


def read_entry(
    frame: bytes, start: int, position: EntryPosition, consumer_id: int, redeliveries: int, *, keep_payload: bool
) -> Entry:
    """Read the entry that begins behind the command that delivers it; unreadable metadata gives it a `defect`."""
    numbers: dict[int, int] = {}
    datas: dict[int, bytes] = {}
    properties: dict[str, str] = {}
    try:
        at, end = _metadata_in(frame, start)
        for tag, number, data in fields_of(frame, at, end):
            if tag in _NUMBERS:
                numbers[tag] = number
            elif tag == _PROPERTY:
                name, value = _property(data)
                properties[name] = value
            elif tag in _DATAS:
                datas[tag] = data
        batch_size = _checked(numbers, datas, len(frame) - end)
    except ProtocolViolation as error:
        return Entry(
            consumer_id=consumer_id,
            position=position,
            redeliveries=redeliveries,
            batch_size=_counted(frame, start),
            properties={},
            payload=frame[start:] if keep_payload else None,
            payload_bytes=len(frame) - start,
            defect=error.fact,
        )
    deliver_at = numbers.get(_DELIVER_AT)
    replicated_from = datas.get(_REPLICATED_FROM)
    partition_key = datas.get(_PARTITION_KEY)
    transaction = numbers.get(_TRANSACTION_MAX)
    return Entry(
        consumer_id=consumer_id,
        position=position,
        redeliveries=redeliveries,
        publish_ms=numbers[_PUBLISH_TIME],
        deliver_at_ms=None if deliver_at is None else as_signed(deliver_at),
        batch_size=batch_size,
        properties=properties,
        partition_key=None if partition_key is None else text_of(partition_key),
        key_is_base64=bool(numbers.get(_KEY_IS_BASE64)),
        ordering_key=datas.get(_ORDERING_KEY),
        event_ms=numbers.get(_EVENT_TIME),
        producer=text_of(datas[_PRODUCER]),
        sequence_id=numbers[_SEQUENCE_ID],
        replicated_from=None if replicated_from is None else text_of(replicated_from),
        schema_version=datas.get(_SCHEMA_VERSION) or None,
        compression=numbers.get(_COMPRESSION, 0),
        is_encrypted=_ENCRYPTION_KEY in datas,
        chunk=numbers.get(_CHUNK),
        chunk_count=numbers.get(_CHUNK_COUNT),
        marker=numbers.get(_MARKER),
        has_null_value=bool(numbers.get(_NULL_VALUE)),
        transaction=None if transaction is None else (transaction, numbers.get(_TRANSACTION_LEAST, 0)),
        payload=frame[end:] if keep_payload else None,
        payload_bytes=len(frame) - end,
        uncompressed_bytes=numbers.get(_UNCOMPRESSED_SIZE, 0),
    )


def _metadata_in(frame: bytes, start: int) -> tuple[int, int]:
    """Return the begin and end of the metadata, after the checksum was found correct."""
    stored, at = _checksum_in(frame, start)
    if stored is not None and stored != (computed := int(crc32c(frame[at:]))):
        raise ProtocolViolation(f"an entry with checksum {stored:#010x}", f"its bytes have {computed:#010x}")
    return _sized(frame, at)


def _checksum_in(frame: bytes, start: int) -> tuple[int | None, int]:
    """Return the checksum of an entry, and its end; None: a very old client has sent no checksum."""
    at = start
    if frame.startswith(_BROKER_METADATA_MAGIC, at):  # broker metadata: not requested, and not needed
        _, at = _sized(frame, at + len(_BROKER_METADATA_MAGIC))
    if not frame.startswith(_CHECKSUM_MAGIC, at):
        return None, at
    at += len(_CHECKSUM_MAGIC)
    return int.from_bytes(frame[at : at + _SIZE_BYTES], "big"), at + _SIZE_BYTES


def _sized(frame: bytes, at: int) -> tuple[int, int]:
    """Return the begin and end of data that follows its size."""
    begin = at + _SIZE_BYTES
    end = begin + int.from_bytes(frame[at:begin], "big")
    if end > len(frame) or begin > len(frame):
        raise ProtocolViolation("an entry that is cut off", "an entry is as long as it says")
    return begin, end


def _checked(numbers: dict[int, int], datas: dict[int, bytes], payload_bytes: int) -> int:
    """Return the number of messages in the batch, 0: no batch; after a check that each field is in its range."""
    if _PUBLISH_TIME not in numbers or _SEQUENCE_ID not in numbers or _PRODUCER not in datas:
        raise ProtocolViolation("an entry without its producer, number or time", "each entry has all three")
    if numbers[_PUBLISH_TIME] > MAX_TIME_MS:
        raise ProtocolViolation(f"an entry of {numbers[_PUBLISH_TIME]} ms", f"the latest time is {MAX_TIME_MS}")
    version = datas.get(_SCHEMA_VERSION)
    if version and (len(version) != _VERSION_BYTES or version[0] > 0x7F):
        raise ProtocolViolation(f"a schema version of {len(version)} bytes", "one is a signed number of 64 bits")
    size = numbers.get(_MESSAGES_IN_BATCH)
    if size is None:
        return 0
    room = max(payload_bytes, numbers.get(_UNCOMPRESSED_SIZE, 0))
    if not 0 < size * _SIZE_BYTES <= room:  # a message in a batch stands behind its size
        raise ProtocolViolation(f"a batch of {as_signed(size)} messages", f"it has {room} bytes")
    return size


def _counted(frame: bytes, start: int) -> int:
    """Return the number of messages that a broker counts in an entry that cannot be read here, modulo 2^32; 0: the
    entry has no such number.

    Brokers check no field against the end of its message, and accept a field without a number. The permits that an
    entry used must be granted again as the broker counted them.
    """
    try:
        at, end = _sized(frame, _checksum_in(frame, start)[1])
        return _walked(frame, at, end, _NESTED)[1] % (1 << 32)
    except ProtocolViolation:
        return 0  # no broker delivers such an entry


class _Nest(NamedTuple):
    """The fields of a message that are messages themselves."""

    inner: Mapping[int, _Nest]


_PAIR = _Nest({})
_NESTED = _Nest({_PROPERTY: _PAIR, _ENCRYPTION_KEY: _Nest({data_tag(3): _PAIR})})
_SKIPPED = {1: 8, 5: 4}  # sizes in bytes of fixed-size numbers, by kind


def _walked(frame: bytes, at: int, end: int, nest: _Nest) -> tuple[int, int]:
    """Return the end of a message as a broker parses it, and the number of messages in it."""
    count = 0
    while at < end:
        tag, at = number_at(frame, at)
        kind = tag & 7
        if kind in _SKIPPED:
            at += _SKIPPED[kind]
            continue
        number, at = number_at(frame, at)
        if (inner := nest.inner.get(tag)) is not None:
            at, _ = _walked(frame, at, at + number, inner)
        elif kind == 2:
            at += number
        elif tag == _MESSAGES_IN_BATCH:
            count = number
    return at, count


def _property(data: bytes) -> tuple[str, str]:
    name = value = b""
    for tag, _, text in fields_of(data, 0, len(data)):
        if tag == _NAME:
            name = text
        elif tag == _VALUE:
            value = text
    return text_of(name), text_of(value)

"""One stored entry, as a broker delivers it: where it is, and what its producer wrote beside the payload.

The payload is left as it is. It may be compressed, encrypted, one part of a larger message, or a batch of many; nothing
here opens it, but `members_of` reads the descriptions in a batch that is neither compressed nor encrypted. What a batch
was asked to be delivered at stands once, in its entry: the messages in it have no such field.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from timewheel.binary_protocol.checksum import crc32c
from timewheel.binary_protocol.errors import ChecksumMismatch, ProtocolViolation
from timewheel.binary_protocol.fields import as_signed, data_tag, fields_of, number_tag, text_of
from timewheel.core.errors import ClientMisuse
from timewheel.wire.positions import EntryPosition

__all__ = ["Compression", "Entry", "Marker", "Member", "members_of", "read_entry"]

_CHECKSUM_MAGIC = b"\x0e\x01"
_BROKER_METADATA_MAGIC = b"\x0e\x02"
_SIZE_BYTES = 4
_BATCHES_END = 1 << 31
"""The number of messages in a batch is a signed number of 32 bits."""


class Compression(IntEnum):
    """How a payload is compressed."""

    NONE = 0
    LZ4 = 1
    ZLIB = 2
    ZSTD = 3
    SNAPPY = 4


class Marker(IntEnum):
    """What brokers write into topics for themselves, and deliver to nobody but by mistake."""

    SNAPSHOT_REQUEST = 10
    SNAPSHOT_RESPONSE = 11
    SNAPSHOT = 12
    SUBSCRIPTION_UPDATE = 13
    TRANSACTION_COMMITTING = 20
    TRANSACTION_COMMIT = 21
    TRANSACTION_ABORT = 22


class Entry(NamedTuple):
    """One entry. What is None was not written.

    A named tuple, not a dataclass: it is made for every entry, and costs a third.

    Attributes:
        consumer_id: Whose it is, of one connection.
        position: Where it is stored.
        redeliveries: How often the broker has delivered it before, by its memory.
        publish_ms: When its producer sent it, UTC milliseconds.
        deliver_at_ms: What delivery was asked for, UTC milliseconds.
        batch_size: Messages in it; 0: it is one message and no batch. A batch of one is a batch.
        properties: Of the message; of a batch those that its client put there, mostly none.
        partition_key: As it is written; see `key_is_base64`.
        key_is_base64: Whether the key is bytes, written as a text in base 64.
        ordering_key: Which goes before the partition key where Key_Shared distributes.
        event_ms: The time that the producer gave, UTC milliseconds.
        producer: Its name.
        sequence_id: Its number for this entry.
        replicated_from: The cluster where it was published first.
        schema_version: As the broker counts it, big-endian.
        compression: A member of `Compression`, or a number that is not known here.
        is_encrypted: Whether its payload is.
        chunk: Which part of a larger message it is, from 0.
        chunk_count: How many parts that has.
        marker: A member of `Marker`, or a number that is not known here.
        has_null_value: Whether the message has no value, which removes its key from a compacted topic.
        transaction: Its two halves, most significant first.
        payload: As it is stored; None: the reader was not asked for it.
        payload_bytes: Its size.
        uncompressed_bytes: Its size before it was compressed; what its producer says of it, 0 where it says nothing.
    """

    consumer_id: int
    position: EntryPosition
    redeliveries: int
    publish_ms: int
    deliver_at_ms: int | None
    batch_size: int
    properties: dict[str, str]
    partition_key: str | None
    key_is_base64: bool
    ordering_key: bytes | None
    event_ms: int | None
    producer: str
    sequence_id: int
    replicated_from: str | None
    schema_version: bytes | None
    compression: int
    is_encrypted: bool
    chunk: int | None
    chunk_count: int | None
    marker: int | None
    has_null_value: bool
    transaction: tuple[int, int] | None
    payload: bytes | None
    payload_bytes: int
    uncompressed_bytes: int

    @property
    def message_count(self) -> int:
        """How many messages it counts for a consumer's permits."""
        return self.batch_size or 1

    @property
    def is_chunked(self) -> bool:
        """Whether it is one part of a larger message."""
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
_TRANSACTION_MOST = number_tag(23)
_NULL_VALUE = number_tag(25)
_CHUNK_COUNT = number_tag(27)
_CHUNK = number_tag(29)
_NUMBERS = frozenset(
    {
        _SEQUENCE_ID, _PUBLISH_TIME, _COMPRESSION, _UNCOMPRESSED_SIZE, _MESSAGES_IN_BATCH, _EVENT_TIME, _KEY_IS_BASE64,
        _DELIVER_AT, _MARKER, _TRANSACTION_LEAST, _TRANSACTION_MOST, _NULL_VALUE, _CHUNK_COUNT, _CHUNK,
    }
)  # fmt: skip
_DATAS = frozenset({_PRODUCER, _REPLICATED_FROM, _PARTITION_KEY, _ENCRYPTION_KEY, _SCHEMA_VERSION, _ORDERING_KEY})
# Of SingleMessageMetadata.
_MEMBER_PROPERTY = data_tag(1)
_MEMBER_KEY = data_tag(2)
_MEMBER_PAYLOAD_BYTES = number_tag(3)
_MEMBER_EVENT_TIME = number_tag(5)
_MEMBER_KEY_IS_BASE64 = number_tag(6)
_MEMBER_ORDERING_KEY = data_tag(7)
_MEMBER_NULL_VALUE = number_tag(9)
_MEMBER_NUMBERS = frozenset({_MEMBER_PAYLOAD_BYTES, _MEMBER_EVENT_TIME, _MEMBER_KEY_IS_BASE64, _MEMBER_NULL_VALUE})
_MEMBER_DATAS = frozenset({_MEMBER_KEY, _MEMBER_ORDERING_KEY})
# Of KeyValue.
_NAME = data_tag(1)
_VALUE = data_tag(2)


def read_entry(
    frame: bytes, start: int, position: EntryPosition, consumer_id: int, redeliveries: int, *, keep_payload: bool
) -> Entry:
    """The entry in the rest of a frame, behind the command that delivers it.

    Args:
        frame: The whole frame.
        start: Where the rest begins.
        position: What the command says.
        consumer_id: The same.
        redeliveries: The same.
        keep_payload: Whether the entry has its payload.

    Raises:
        ProtocolViolation: There is no entry, or it is cut off.
        ChecksumMismatch: Metadata or payload are not as they were sent.
    """
    at, end = _metadata_in(frame, start, position)
    numbers: dict[int, int] = {}
    datas: dict[int, bytes] = {}
    properties: dict[str, str] = {}
    for tag, number, data in fields_of(frame, at, end):
        if tag in _NUMBERS:
            numbers[tag] = number
        elif tag == _PROPERTY:
            name, value = _property(data)
            properties[name] = value
        elif tag in _DATAS:
            datas[tag] = data
    if _PUBLISH_TIME not in numbers or _SEQUENCE_ID not in numbers or _PRODUCER not in datas:
        where = f"entry {position.ledger}:{position.entry}"
        raise ProtocolViolation(f"{where} without its producer, number or time", "each entry has all three")
    deliver_at = numbers.get(_DELIVER_AT)
    replicated_from = datas.get(_REPLICATED_FROM)
    partition_key = datas.get(_PARTITION_KEY)
    transaction = numbers.get(_TRANSACTION_MOST)
    return Entry(
        consumer_id=consumer_id,
        position=position,
        redeliveries=redeliveries,
        publish_ms=numbers[_PUBLISH_TIME],
        deliver_at_ms=None if deliver_at is None else as_signed(deliver_at),
        batch_size=_batch_size(numbers),
        properties=properties,
        partition_key=None if partition_key is None else text_of(partition_key),
        key_is_base64=bool(numbers.get(_KEY_IS_BASE64)),
        ordering_key=datas.get(_ORDERING_KEY),
        event_ms=numbers.get(_EVENT_TIME),
        producer=text_of(datas[_PRODUCER]),
        sequence_id=numbers[_SEQUENCE_ID],
        replicated_from=None if replicated_from is None else text_of(replicated_from),
        schema_version=datas.get(_SCHEMA_VERSION),
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


def _metadata_in(frame: bytes, start: int, position: EntryPosition) -> tuple[int, int]:
    """Where the metadata begins and ends, when the checksum has been found right."""
    at = start
    if frame.startswith(_BROKER_METADATA_MAGIC, at):  # of the broker's own; it is not asked for, and not needed
        _, at = _sized(frame, at + len(_BROKER_METADATA_MAGIC))
    # A client that is very old sends none.
    if frame.startswith(_CHECKSUM_MAGIC, at):
        at += len(_CHECKSUM_MAGIC)
        told, at = int.from_bytes(frame[at : at + _SIZE_BYTES], "big"), at + _SIZE_BYTES
        computed = crc32c(frame[at:])
        if told != computed:
            raise ChecksumMismatch(*position, told=told, computed=computed)
    return _sized(frame, at)


def _sized(frame: bytes, at: int) -> tuple[int, int]:
    """Where something begins and ends that comes behind its size."""
    begin = at + _SIZE_BYTES
    end = begin + int.from_bytes(frame[at:begin], "big")
    if end > len(frame) or begin > len(frame):
        raise ProtocolViolation("an entry that is cut off", "an entry is as long as it says")
    return begin, end


def _batch_size(numbers: dict[int, int]) -> int:
    """0: no batch. A number that no batch can have, which a broker stores all the same, counts as one message."""
    size = numbers.get(_MESSAGES_IN_BATCH)
    if size is None:
        return 0
    return size if 1 <= size < _BATCHES_END else 1


def _property(data: bytes) -> tuple[str, str]:
    name = value = b""
    for tag, _, text in fields_of(data, 0, len(data)):
        if tag == _NAME:
            name = text
        elif tag == _VALUE:
            value = text
    return text_of(name), text_of(value)


class Member(NamedTuple):
    """What stands in a batch beside one message of it.

    Attributes:
        properties: Of the message.
        partition_key: As it is written; see `key_is_base64`.
        key_is_base64: Whether the key is bytes, written as a text in base 64.
        ordering_key: As in `Entry`.
        event_ms: As in `Entry`.
        has_null_value: As in `Entry`.
        payload_bytes: Its size.
    """

    properties: dict[str, str]
    partition_key: str | None
    key_is_base64: bool
    ordering_key: bytes | None
    event_ms: int | None
    has_null_value: bool
    payload_bytes: int


def members_of(entry: Entry) -> Iterator[Member]:
    """What stands in a batch, message by message; nothing for an entry that is no batch.

    Args:
        entry: Read with its payload, and neither compressed nor encrypted.

    Raises:
        ClientMisuse: It is not so.
        ProtocolViolation: The batch is cut off.
    """
    if not entry.batch_size:
        return
    if entry.payload is None:
        raise ClientMisuse("this entry was read without its payload: open the reader with keep_payload=True")
    if entry.compression or entry.is_encrypted:
        raise ClientMisuse("a compressed or encrypted batch is not opened here: read it with pulsar-client")
    data, at = entry.payload, 0
    for _ in range(entry.batch_size):
        begin, end = _sized(data, at)
        member = _member(data, begin, end)
        at = end + member.payload_bytes
        if at > len(data):
            raise ProtocolViolation("a batch that is cut off", "a batch is as long as it says")
        yield member


def _member(data: bytes, begin: int, end: int) -> Member:
    properties: dict[str, str] = {}
    numbers: dict[int, int] = {}
    datas: dict[int, bytes] = {}
    for tag, number, inner in fields_of(data, begin, end):
        if tag == _MEMBER_PROPERTY:
            name, value = _property(inner)
            properties[name] = value
        elif tag in _MEMBER_NUMBERS:
            numbers[tag] = number
        elif tag in _MEMBER_DATAS:
            datas[tag] = inner
    key, size = datas.get(_MEMBER_KEY), as_signed(numbers.get(_MEMBER_PAYLOAD_BYTES, 0))
    return Member(
        properties=properties,
        partition_key=None if key is None else text_of(key),
        key_is_base64=bool(numbers.get(_MEMBER_KEY_IS_BASE64)),
        ordering_key=datas.get(_MEMBER_ORDERING_KEY),
        event_ms=numbers.get(_MEMBER_EVENT_TIME),
        has_null_value=bool(numbers.get(_MEMBER_NULL_VALUE)),
        payload_bytes=max(size, 0),  # -1 is what some clients write for a null value
    )

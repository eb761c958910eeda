"""The messages of a batch, read from its stored entry.

A batch entry holds, for each message, four bytes with the length of its metadata, the metadata
(``SingleMessageMetadata`` of ``PulsarApi.proto``), and the payload. Only a few fields of that schema are read here: too
few to justify a protobuf library and a generated module.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_PROPERTIES, _PARTITION_KEY, _PAYLOAD_SIZE = 1, 2, 3
_KEY, _VALUE = 1, 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
"""Bytes of the longest number that protobuf writes."""

Field = tuple[int, int | bytes]


class BatchGarbled(ValueError):
    """The bytes are no batch: they are encrypted, or of a later format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchedMessage:
    """A message of a batch.

    Args:
        properties: The message's own properties.
        partition_key: None if it has no key.
        payload_bytes: Size of its payload.
        payload: Its payload.
    """

    properties: Mapping[str, str]
    partition_key: str | None
    payload_bytes: int
    payload: bytes = b""


def messages_of_batch(payload: bytes, count: int) -> Iterator[BatchedMessage]:
    """Read a batch, message by message.

    Args:
        payload: Payload of the entry, decompressed.
        count: Number of messages according to the entry's metadata.

    Raises:
        BatchGarbled: A message cannot be read; raised when the iteration reaches it.
    """
    at = 0
    try:
        for _ in range(count):
            (length,) = struct.unpack_from(">I", payload, at)
            at += 4 + length
            properties, partition_key, size = _metadata(payload[at - length : at])
            if at + size > len(payload):
                raise BatchGarbled(f"a message ends at byte {at + size} of {len(payload)}")
            content = payload[at : at + size]
            at += size
            yield BatchedMessage(
                properties=properties, partition_key=partition_key, payload_bytes=size, payload=content
            )
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise BatchGarbled(str(error)) from error


def _metadata(metadata: bytes) -> tuple[Mapping[str, str], str | None, int]:
    """Return properties, partition key, and size of the payload."""
    properties: dict[str, str] = {}
    partition_key, size = None, 0
    for number, value in _fields(metadata):
        if number == _PROPERTIES and isinstance(value, bytes):
            pair = dict(_fields(value))
            properties[_text(pair.get(_KEY))] = _text(pair.get(_VALUE))
        elif number == _PARTITION_KEY:
            partition_key = _text(value)
        elif number == _PAYLOAD_SIZE and isinstance(value, int):
            size = 0 if value >> 63 else value  # some clients write -1 for a null value
    return properties, partition_key, size


def _text(value: int | bytes | None) -> str:
    if not isinstance(value, bytes):
        raise BatchGarbled(f"{value!r} stands where a text should")
    return value.decode("utf-8")


def _fields(data: bytes) -> Iterator[Field]:
    """Yield each field's number and value: a varint as a number, any other kind as bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        value: int | bytes
        if kind == _VARINT:
            value, at = _varint(data, at)
        else:
            if kind == _BYTES:
                length, at = _varint(data, at)
            elif kind in (_FIXED32, _FIXED64):
                length = 4 if kind == _FIXED32 else 8
            else:
                raise BatchGarbled(f"field {number} is of kind {kind}")
            value = data[at : at + length]
            if len(value) < length:
                raise BatchGarbled(f"field {number} ends too soon")
            at += length
        yield number, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and the index of its end."""
    number = 0
    for turn in range(_LONGEST_VARINT):
        byte = data[at + turn]
        number |= (byte & 0x7F) << (7 * turn)
        if byte < 0x80:
            return number, at + turn + 1
    raise BatchGarbled("a number without an end")

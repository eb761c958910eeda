"""A stored entry, read without a consumer."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import httpx

from timewheel.broker.admin.stats import utc_ms
from timewheel.broker.protocol.errors import ProtocolViolation
from timewheel.broker.protocol.wire import data_tag, fields_of, number_tag
from timewheel.client.positions import EntryPosition
from timewheel.core.errors import AdminError

_PROPERTY, _PARTITION_KEY, _PAYLOAD_SIZE = data_tag(1), data_tag(2), number_tag(3)
"""Fields of ``SingleMessageMetadata`` in PulsarApi.proto."""
_KEY, _VALUE = data_tag(1), data_tag(2)


class BatchGarbled(ValueError):
    """The bytes are no batch: they are encrypted, or of a later format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchedMessage:
    """A message of a batch, with its own properties; None: it has no key."""

    properties: Mapping[str, str]
    partition_key: str | None
    payload_bytes: int
    payload: bytes = b""


def messages_of_batch(payload: bytes, count: int) -> Iterator[BatchedMessage]:
    """Read a batch, message by message, from its decompressed payload and the number of messages in its metadata.

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
    except ProtocolViolation as error:
        raise BatchGarbled(error.fact) from error
    except (struct.error, UnicodeDecodeError) as error:
        raise BatchGarbled(str(error)) from error


def _metadata(metadata: bytes) -> tuple[Mapping[str, str], str | None, int]:
    """Return properties, partition key, and size of the payload."""
    properties: dict[str, str] = {}
    partition_key, size = None, 0
    for tag, number, data in fields_of(metadata, 0, len(metadata)):
        if tag == _PROPERTY:
            pair = {field: text.decode() for field, _, text in fields_of(data, 0, len(data)) if field in {_KEY, _VALUE}}
            if _KEY not in pair or _VALUE not in pair:
                raise BatchGarbled("a property has no key or no value")
            properties[pair[_KEY]] = pair[_VALUE]
        elif tag == _PARTITION_KEY:
            partition_key = data.decode()
        elif tag == _PAYLOAD_SIZE:
            size = 0 if number >> 63 else number  # some clients write -1 for a null value
    return properties, partition_key, size


LEAST_BYTES = 4  # smallest size of a message in a batch: the four bytes of its length
_PROPERTIES_HEADER = "X-Pulsar-PROPERTY"
_ONE_PROPERTY = b"x-pulsar-property-"
"""Prefix of a property's header from brokers up to 3.x; the property's key follows, in its own upper and lower case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEntry:
    """An entry as stored in a ledger, from the admin API's headers.

    Headers carry Latin-1 only: brokers replace other characters of keys and properties by spaces. The metadata of a
    batch is that of the whole batch: messages in it have properties and keys of their own, inside ``payload``.
    """

    position: EntryPosition  # position in the topic
    payload: bytes  # payload as stored, decompressed; of a batch, all messages with their metadata
    publish_at_ms: int  # UTC milliseconds
    event_at_ms: int | None  # UTC milliseconds; None if the producer set no event time
    deliver_at_ms: int | None  # UTC milliseconds; None if it is not delayed
    properties: Mapping[str, str]  # properties of the message; empty for a batch
    producer: str  # name of the producer
    sequence_id: int  # sequence id of the message, or of the batch's first message
    partition_key: str | None  # None if it has no key
    ordering_key: bytes | None  # None if it has no ordering key
    batch_messages: int | None  # messages in the batch; None if it is no batch
    null_payload: bool  # it was sent without a payload, which differs from an empty payload
    encrypted: bool  # its producer encrypted it; the payload cannot be read here
    # it came from another cluster, as far as the source shows that; its publish time is then of that cluster
    is_replicated: bool = False


class EntrySource(Protocol):
    """Another source of single entries than the admin API, for which the broker opens no entry."""

    def entry(self, topic: str, position: EntryPosition) -> StoredEntry | None:
        """Read an entry of a partition; None: this source cannot. Raises AdminError, as `Topics.entry` does."""

    def close(self) -> None:
        """Close all connections."""


def read_entry(response: httpx.Response) -> StoredEntry:
    """Build the entry from the broker's answer; AdminError: the producer's metadata holds an invalid date or batch."""
    try:
        headers = httpx.Headers(response.headers.raw, encoding="iso-8859-1")  # httpx would try UTF-8 first
        ordering_key = headers.get("X-Pulsar-Base64-ordering-key")
        batch_messages, size = headers.get("X-Pulsar-num-batch-message"), len(response.content)
        if batch_messages is not None and not 0 < int(batch_messages) * LEAST_BYTES <= size:
            raise ValueError(f"a batch of {batch_messages} messages in {size} bytes")  # noqa: TRY301
        return StoredEntry(
            position=EntryPosition.parse(headers["X-Pulsar-Message-ID"]),
            payload=response.content,
            publish_at_ms=_ms(headers["X-Pulsar-publish-time"]),
            event_at_ms=_optional_ms(headers.get("X-Pulsar-event-time")),
            deliver_at_ms=_optional_ms(headers.get("X-Pulsar-deliver-at-time")),
            properties=_read_properties(headers),
            producer=headers.get("X-Pulsar-producer-name", ""),
            sequence_id=int(headers.get("X-Pulsar-sequence-id", "0")),
            partition_key=headers.get("X-Pulsar-partition-key"),
            ordering_key=None if ordering_key is None else base64.b64decode(ordering_key),
            batch_messages=None if batch_messages is None else int(batch_messages),
            null_payload=headers.get("X-Pulsar-null-value") == "true",
            encrypted=headers.get("X-Pulsar-Is-Encrypted") == "true",
            is_replicated="X-Pulsar-replicated-from" in headers,
        )
    except (KeyError, ValueError) as error:
        endpoint = f"{response.request.method} {response.request.url.path}"
        raise AdminError(response.status_code, endpoint, f"the entry cannot be read: {error}") from error


def _read_properties(headers: httpx.Headers) -> Mapping[str, str]:
    """Read the properties: a header of JSON, or up to 3.x one for each (broker-facts: reading-a-stored-entry)."""
    in_one = headers.get(_PROPERTIES_HEADER)
    if in_one is not None:
        found: Mapping[str, str] = json.loads(in_one)
        return found
    # Not by name: the names of headers ignore case, the names of properties do not.
    return {
        name[len(_ONE_PROPERTY) :].decode("iso-8859-1"): value.decode("iso-8859-1")
        for name, value in headers.raw
        if name.lower().startswith(_ONE_PROPERTY)
    }


def _ms(text: str) -> int:
    # Brokers write ISO 8601 with an offset and without trailing zeros; exact, since no float is used.
    return utc_ms(datetime.fromisoformat(text))


def _optional_ms(text: str | None) -> int | None:
    return None if text is None else _ms(text)

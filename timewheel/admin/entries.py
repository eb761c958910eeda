"""One stored entry, looked at without a consumer."""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import httpx

from timewheel.admin.internals import EntryPosition
from timewheel.core.errors import AdminError

__all__ = ["EntrySource", "StoredEntry"]

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
LEAST_BYTES = 4
"""Of a message in a batch: it stands behind its size."""
_PROPERTIES = "X-Pulsar-PROPERTY"
_ONE_PROPERTY = b"x-pulsar-property-"
"""How a header of brokers up to 3.x begins; what follows is the property's key, in the letters that it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEntry:
    """An entry as it lies in a ledger, from the admin API's headers.

    Headers carry Latin-1 only: brokers replace other characters of keys and properties by spaces. The metadata of a
    batch is that of the whole batch: messages in it have properties and keys of their own, inside ``payload``.

    Args:
        position: Where it lies.
        payload: As stored, decompressed; for a batch, all messages with their metadata.
        publish_at_ms: UTC milliseconds.
        event_at_ms: UTC milliseconds; None if the producer set none.
        deliver_at_ms: UTC milliseconds; None if it is not delayed.
        properties: Of the message; empty for a batch.
        producer: Name of the producer.
        sequence_id: Of the message, or of the batch's first.
        partition_key: None if it has none.
        ordering_key: None if it has none.
        batch_messages: Messages in the batch; None if it is no batch.
        null_payload: It was sent without a payload, which is not an empty one.
        encrypted: By its producer; the payload cannot be read here.
        is_replicated: It came from another cluster, when that was to be had; its publish time is of there.
    """

    position: EntryPosition
    payload: bytes
    publish_at_ms: int
    event_at_ms: int | None
    deliver_at_ms: int | None
    properties: Mapping[str, str]
    producer: str
    sequence_id: int
    partition_key: str | None
    ordering_key: bytes | None
    batch_messages: int | None
    null_payload: bool
    encrypted: bool
    is_replicated: bool = False


class EntrySource(Protocol):
    """Another way to single entries than the admin API's, on which the broker opens nothing."""

    def entry(self, topic: str, position: EntryPosition) -> StoredEntry | None:
        """One entry of a partition; None: this way leads nowhere. Raises AdminError, as `Topics.entry`."""

    def close(self) -> None:
        """Close all connections."""


def read_entry(response: httpx.Response) -> StoredEntry:
    """The entry from the broker's answer.

    Raises:
        AdminError: What its producer wrote is no date, or no batch.
    """
    try:
        return _read_entry(response)
    except (KeyError, ValueError) as error:
        endpoint = f"{response.request.method} {response.request.url.path}"
        raise AdminError(response.status_code, endpoint, f"the entry cannot be read: {error}") from error


def _read_entry(response: httpx.Response) -> StoredEntry:
    headers = httpx.Headers(response.headers.raw, encoding="iso-8859-1")  # httpx would guess UTF-8 first
    ordering_key = headers.get("X-Pulsar-Base64-ordering-key")
    batch_messages, size = headers.get("X-Pulsar-num-batch-message"), len(response.content)
    if batch_messages is not None and not 0 < int(batch_messages) * LEAST_BYTES <= size:
        raise ValueError(f"a batch of {batch_messages} messages in {size} bytes")
    return StoredEntry(
        position=EntryPosition.parse(headers["X-Pulsar-Message-ID"]),
        payload=response.content,
        publish_at_ms=_read_ms(headers["X-Pulsar-publish-time"]),
        event_at_ms=_read_optional_ms(headers.get("X-Pulsar-event-time")),
        deliver_at_ms=_read_optional_ms(headers.get("X-Pulsar-deliver-at-time")),
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


def _read_properties(headers: httpx.Headers) -> Mapping[str, str]:
    """All in one header as JSON, or up to 3.x a header for each (broker-facts: reading-a-stored-entry)."""
    in_one = headers.get(_PROPERTIES)
    if in_one is not None:
        found: Mapping[str, str] = json.loads(in_one)
        return found
    # Not by name: names of headers have no case, and those of properties do.
    return {
        name[len(_ONE_PROPERTY) :].decode("iso-8859-1"): value.decode("iso-8859-1")
        for name, value in headers.raw
        if name.lower().startswith(_ONE_PROPERTY)
    }


def _read_ms(text: str) -> int:
    """Brokers write ISO 8601 with an offset and as many digits as are not zero; exact, since no float is in between."""
    return (dt.datetime.fromisoformat(text) - _EPOCH) // dt.timedelta(milliseconds=1)


def _read_optional_ms(text: str | None) -> int | None:
    return None if text is None else _read_ms(text)

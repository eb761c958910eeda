"""Use of pulsar-client (3.13) beyond its public API. No other module of timewheel relies on such internals.

- A message's schema version as a number: the client's own `Message.schema_version` returns text that cannot be decoded
  from version 128 on.
- A schema's definition by version: there is no public call, and an SDK has no admin URL.
- The size of a payload: the client's own calls copy it first.
- The number of messages of an entry: only the serialized message id contains it.
- Sending a batch now without waiting for its outcome: the client's own `Producer.flush` waits for it.
- Opening a producer without waiting for it: a wait of a relay's thread would delay hops to other topics.
- Receiving without a thread that waits: there is a public call for asyncio alone.
- Sending a message without a callback: each callback takes the interpreter's lock on the client's thread, which costs a
  relay a quarter of its speed where one callback for a thousand messages is enough.

Each function documents its result for another client, such as a wrapper in a test.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import _pulsar
import pulsar

from timewheel.client.positions import Position
from timewheel.client.reopening import Trial
from timewheel.client.results import is_served
from timewheel.client.surface import SendCallback

_BYTES = 2  # wire type of protobuf fields of bytes; a message id has these and numbers
NO_SCHEMA = -1  # schema version of a message that was written without a schema

_BATCH_SIZE_FIELD = 6
_FIRST_CHUNK_FIELD = 7  # `batch_size` and `first_chunk_message_id` of `MessageIdData` in PulsarApi.proto


def schema_version_of(message: Any) -> int:
    """Return the version, in its topic, of the schema that a message was written with; -1: without a schema."""
    raw = getattr(message, "_message", None)
    if raw is not None:
        return int(raw.int_schema_version())
    version: str = message.schema_version()
    return int.from_bytes(version.encode("latin-1"), "big") if version else NO_SCHEMA


def fetch_schema_info(client: Any, topic: str, version: int) -> Any:
    """Fetch a schema version of a topic from the broker, as the client's `SchemaInfo`."""
    return client._client.get_schema_info(topic, version)  # noqa: SLF001 - this module's purpose


def decryption_failed(message: Any) -> bool:
    """Return whether a message arrived encrypted, since the consumer has no key for it."""
    context = getattr(message, "encryption_context", None)
    if context is None:
        return False
    found = context()
    return found is not None and bool(found.is_decryption_failed())


def batch_size_of(message_id: Any) -> int:
    """Return how many messages the entry of a message id holds; 0: unbatched, or the client does not report it."""
    size = _field(message_id, _BATCH_SIZE_FIELD)
    return size if isinstance(size, int) else 0


def first_chunk_of(message_id: Any) -> Position | None:
    """Return the position of a chunked message's first chunk, whose id names the last chunk; None: it has no chunks."""
    first = _field(message_id, _FIRST_CHUNK_FIELD)
    if not isinstance(first, bytes):
        return None
    found = dict(_fields(first))
    return Position(int(found[1]), int(found[2]), -1)


def uncounted_of(message: Any) -> int:
    """Return how many messages of its entry the broker counts as sent, and the client does not as received.

    A client without the key hands out an encrypted batch as one message (broker-facts: encrypted-batches). So many
    permits of its queue are gone until it subscribes anew.
    """
    return max(int(message.encryption_context().batch_size()) - 1, 0) if decryption_failed(message) else 0


def encryption_of(message: Any) -> str:
    """Return all that decrypts a message that arrived encrypted, except the private key: JSON, bytes in Base64."""
    context = message.encryption_context()
    keys = {key.key: _base64(key.value) for key in context.keys()}  # noqa: SIM118 - it is not a dict
    return json.dumps(
        {
            "algorithm": context.algorithm(),
            "param": _base64(context.param()),
            "keys": keys,
            "compression": context.compression_type().name,
            "uncompressed_size": context.uncompressed_message_size(),
            "batch_size": context.batch_size(),
        }
    )


def keys_of(message: Any) -> tuple[str | bytes, str | bytes]:
    """Return partition key and ordering key of a message, as bytes if they are not UTF-8. Empty: no key."""
    return _text(message.partition_key), _text(message.ordering_key)


def _text(read: Callable[[], str]) -> str | bytes:
    try:
        return read()
    except UnicodeDecodeError as error:
        return bytes(error.object)


class Entries:
    """Facts that all messages of an entry share, read once per entry: together they cost as much as a receive.

    Attributes:
        batch_size: Number of messages in the entry; 0: it is unbatched, or the client does not report it.
        schema_version: Schema version, as by `schema_version_of`.
        is_encrypted: True if the entry could not be decrypted, as by `decryption_failed`.
        uncounted: See `uncounted_of`.
    """

    __slots__ = ("_entry", "batch_size", "is_encrypted", "schema_version", "uncounted")

    def __init__(self) -> None:
        self._entry = (-1, -1)
        self.batch_size = 0
        self.schema_version = NO_SCHEMA
        self.is_encrypted = False
        self.uncounted = 0

    def see(self, position: Position, message: Any, message_id: Any) -> None:
        """Read the facts of a message's entry, unless it is the present entry."""
        ledger, entry, index = position
        if index > 0 and self._entry == (ledger, entry):
            return
        self._entry = ledger, entry
        self.batch_size = batch_size_of(message_id) if index >= 0 else 0
        self.schema_version = schema_version_of(message)
        self.is_encrypted = decryption_failed(message)
        self.uncounted = uncounted_of(message) if self.is_encrypted else 0


def size_of(message: Any) -> int:
    """Return the size of a message's payload in bytes, without copying it."""
    raw = getattr(message, "_message", None)
    return len(message.data()) if raw is None else int(raw.length())


def properties_size(properties: dict[str, str]) -> int:
    """Return the size of all names and values in characters."""
    return sum(map(len, properties)) + sum(map(len, properties.values()))


def carry(
    producer: Any,
    message: Any,
    callback: SendCallback | None,
    properties: dict[str, str],
    *,
    deliver_at_ms: int = 0,
    sequence_id: int = 0,
) -> None:
    """Send a received message on, unchanged except for its properties (broker-facts: byte-for-byte).

    Without a sequence id the client chooses one; without a delivery time (UTC milliseconds) it is delivered at once.
    """
    if type(producer) is not pulsar.Producer:
        producer.send_async(
            None if message.has_null_value() else message.data(),
            callback or _unheard,
            properties=properties,
            partition_key=message.partition_key() or None,
            ordering_key=message.ordering_key() or None,
            sequence_id=sequence_id or None,
            # A replicated hop would be made once per cluster (broker-facts: policies-of-topics).
            disable_replication=True,
            event_timestamp=message.event_timestamp() or None,
            deliver_at=deliver_at_ms or None,
        )
        return
    # The same without the client's checks of each argument: they come from a message of its own.
    received: Any = getattr(message, "_message", message)
    try:
        key, ordering_key = received.partition_key(), received.ordering_key()
    except UnicodeDecodeError:
        key, ordering_key = keys_of(received)
    building = _pulsar.MessageBuilder()
    if received.has_null_value():
        building.set_null_value()
    else:
        building.content(received.data())
    building.properties(properties)
    building.disable_replication(True)
    if key:
        building.partition_key(key)
    if ordering_key:
        building.ordering_key(ordering_key)
    if event_ms := received.event_timestamp():
        building.event_timestamp(event_ms)
    if sequence_id:
        building.sequence_id(sequence_id)
    if deliver_at_ms:
        building.deliver_at(deliver_at_ms)
    inner: Any = vars(producer)["_producer"]
    inner.send_async(building.build(), callback)


Came = Callable[[Exception | None, Any], None]
"""``came(failure, message)``, of which one is None; runs on another thread and must never raise."""


def requesting(consumer: Any, came: Came) -> Callable[[], None]:
    """Return a function that requests the next message of a consumer, which ``came`` gets; one request at a time.

    After a failure, no request is answered. Another client is asked on a thread of its own.
    """
    if type(consumer) is not pulsar.Consumer:
        requests: SimpleQueue[None] = SimpleQueue()
        threading.Thread(target=_read, args=(consumer, came, requests), name="timewheel-read", daemon=True).start()
        return lambda: requests.put(None)
    # Any: pulsar ships no types.
    inner, schema = vars(consumer)["_consumer"], vars(consumer)["_schema"]

    def ended(result: Any, received: Any) -> None:
        if result.value:
            came(getattr(pulsar, result.name, pulsar.PulsarException)(f"receive: {result.name}"), None)
            return
        message: Any = pulsar.Message()
        message._message, message._schema = received, schema  # noqa: SLF001 - this module's purpose
        came(None, message)

    return lambda: inner.receive_async(ended)


def _read(consumer: Any, came: Came, requests: SimpleQueue[None]) -> None:
    while True:
        requests.get()
        try:
            message = consumer.receive()
        except Exception as failure:  # noqa: BLE001 - whatever another client raises, it is raised where it is received
            came(failure, None)
            return
        came(None, message)


def tells_entries(producer: Any) -> bool:
    """Return whether a producer takes messages without a callback, and `batch_size_of` knows its entries."""
    return type(producer) is pulsar.Producer


def flush_soon(producer: Any) -> None:
    """Send a producer's pending batch; the callbacks of its sends report the outcome.

    Only for a producer that no other thread uses (broker-facts: callbacks-in-c). A client without such a call flushes,
    which waits for a round trip.
    """
    flush_async = getattr(getattr(producer, "_producer", None), "flush_async", None)
    if flush_async is None:
        producer.flush()
    else:
        flush_async(_unheard)


def try_opening(client: Any, trial: Trial) -> None:
    """Open a producer on a trial's topic and close it; the trial learns on the client's thread if a broker serves it.

    Waits for neither. For a client without such a call, a broker always serves it.
    """
    inner: Any = getattr(client, "_client", None)
    if not hasattr(inner, "create_producer_async"):
        trial.is_served = True
        return

    def on_opened(result: Any, producer: Any) -> None:
        if result.value == 0:
            producer.close_async(_unheard)
        trial.is_served |= is_served(result)

    inner.create_producer_async(trial.topic, _pulsar.ProducerConfiguration(), on_opened)


def _unheard(*_: Any) -> None:
    """Ignore the outcome: the client requires a callback."""


def _field(message_id: Any, number: int) -> int | bytes | None:
    serialize = getattr(message_id, "serialize", None)
    return (
        None if serialize is None else next((value for field, value in _fields(serialize()) if field == number), None)
    )


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        value, position = _varint(data, position)
        if tag & 7 == _BYTES:
            yield tag >> 3, data[position : position + value]
            position += value
        else:
            yield tag >> 3, value


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7

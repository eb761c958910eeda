"""The commands that are sent to a broker, as frames."""

from __future__ import annotations

from collections.abc import Iterable

from timewheel.broker.protocol.command_types import SPOKEN_VERSION, CommandType, SubscriptionType
from timewheel.broker.protocol.fields import data_field, number_field
from timewheel.broker.protocol.frames import frame_of
from timewheel.client.positions import EntryPosition

CLIENT_VERSION = "timewheel"
_EARLIEST = 1
"""``InitialPosition``: the start of a new subscription, and of a reader whose position no longer exists."""
_AUTO_SPLIT = 0
"""``KeySharedMode`` that clients use by default."""
_INDIVIDUAL, _CUMULATIVE = 0, 1
"""``AckType``."""


def _command(kind: CommandType, body: bytes) -> bytes:
    return frame_of(number_field(1, kind) + data_field(kind, body))


def _message_id(position: EntryPosition) -> bytes:
    return number_field(1, position.ledger) + number_field(2, position.entry)


def connect(*, method: str, data: bytes, broker: str | None) -> bytes:
    """Authenticate with the broker.

    Args:
        method: Name of the authentication method; ``none``: no authentication.
        data: Its credentials.
        broker: ``HOST:PORT`` of the broker that a proxy shall connect to; None: no proxy.
    """
    # The feature flags: no broker metadata of entries; the broker may ask for a token again.
    flags = number_field(1, 1) + number_field(2, 0)
    body = data_field(1, CLIENT_VERSION) + data_field(3, data) + number_field(4, SPOKEN_VERSION) + data_field(5, method)
    if broker is not None:
        body += data_field(6, broker)
    return _command(CommandType.CONNECT, body + data_field(10, flags))


def auth_response(*, method: str, data: bytes) -> bytes:
    """Send the credentials again."""
    shown = data_field(1, method) + data_field(2, data)
    body = data_field(1, CLIENT_VERSION) + data_field(2, shown) + number_field(3, SPOKEN_VERSION)
    return _command(CommandType.AUTH_RESPONSE, body)


def lookup(request_id: int, topic: str, *, is_authoritative: bool) -> bytes:
    """Ask which broker serves a topic."""
    body = data_field(1, topic) + number_field(2, request_id) + number_field(3, is_authoritative)
    return _command(CommandType.LOOKUP, body)


def subscribe(
    request_id: int,
    consumer_id: int,
    topic: str,
    subscription: str,
    kind: SubscriptionType,
    *,
    name: str,
    start: EntryPosition | None,
) -> bytes:
    """Open a consumer. With a start it is a reader: the broker stores nothing about it.

    Args:
        request_id: Id in this connection.
        consumer_id: Id in this connection.
        topic: A partition, or a topic without partitions; a missing topic is not created.
        subscription: A missing subscription is created.
        kind: Its type.
        name: Name of the consumer.
        start: The entry to begin with, or else the next existing entry; None: the subscription is durable.
    """
    body = (
        data_field(1, topic)
        + data_field(2, subscription)
        + number_field(3, kind)
        + number_field(4, consumer_id)
        + number_field(5, request_id)
        + data_field(6, name)
        + number_field(8, start is None)
    )
    if start is not None:
        body += data_field(9, _message_id(start))
    body += number_field(13, _EARLIEST) + number_field(15, 0)
    if kind is SubscriptionType.KEY_SHARED:
        body += data_field(17, number_field(1, _AUTO_SPLIT))
    return _command(CommandType.SUBSCRIBE, body)


def flow(consumer_id: int, permits: int) -> bytes:
    """Allow the broker to deliver this many more messages."""
    return _command(CommandType.FLOW, number_field(1, consumer_id) + number_field(2, permits))


def ack(request_id: int, consumer_id: int, positions: Iterable[EntryPosition]) -> bytes:
    """Acknowledge entries individually and as a whole, and ask for an answer."""
    ids = b"".join(data_field(3, _message_id(position)) for position in positions)
    body = number_field(1, consumer_id) + number_field(2, _INDIVIDUAL) + ids + number_field(8, request_id)
    return _command(CommandType.ACK, body)


def ack_up_to(consumer_id: int, position: EntryPosition) -> bytes:
    """Acknowledge an entry and all before it, without an answer."""
    body = number_field(1, consumer_id) + number_field(2, _CUMULATIVE) + data_field(3, _message_id(position))
    return _command(CommandType.ACK, body)


def close_consumer(request_id: int, consumer_id: int) -> bytes:
    return _command(CommandType.CLOSE_CONSUMER, number_field(1, consumer_id) + number_field(2, request_id))


def get_last_message_id(request_id: int, consumer_id: int) -> bytes:
    return _command(CommandType.GET_LAST_MESSAGE_ID, number_field(1, consumer_id) + number_field(2, request_id))


def ping() -> bytes:
    return _command(CommandType.PING, b"")


def pong() -> bytes:
    return _command(CommandType.PONG, b"")

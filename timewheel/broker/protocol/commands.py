"""The numbers of PulsarApi.proto, and the commands of a broker, parsed into events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from timewheel.broker.protocol.entries import Entry, read_entry
from timewheel.broker.protocol.errors import BinaryProtocolError, BrokerRefused, ProtocolViolation, shown_text
from timewheel.broker.protocol.wire import COMMAND_AT, as_signed, data_tag, fields_of, number_tag, text_of
from timewheel.client.positions import EntryPosition

SPOKEN_VERSION = 21
"""Protocol version sent to brokers, that of Pulsar 4.0. A broker answers with the same or a lower version."""
LOWEST_VERSION = 19
"""Version of Pulsar 2.10, the oldest broker that was tested. Version 17 introduced answers to acknowledgements."""


class CommandType(IntEnum):
    """Commands that are sent or received here. A command's body is the field with the command's number."""

    CONNECT = 2
    CONNECTED = 3
    SUBSCRIBE = 4
    MESSAGE = 9
    ACK = 10
    FLOW = 11
    SUCCESS = 13
    ERROR = 14
    CLOSE_CONSUMER = 16
    PING = 18
    PONG = 19
    LOOKUP = 23
    LOOKUP_RESPONSE = 24
    GET_LAST_MESSAGE_ID = 29
    GET_LAST_MESSAGE_ID_RESPONSE = 30
    AUTH_CHALLENGE = 36
    AUTH_RESPONSE = 37
    ACK_RESPONSE = 38
    TOPIC_MIGRATED = 68


class SubscriptionType(IntEnum):
    """Types of a subscription: how it distributes its messages to consumers."""

    EXCLUSIVE = 0
    SHARED = 1
    KEY_SHARED = 3


class ServerError(IntEnum):
    """Errors, by their names in the protocol."""

    UnknownError = 0
    MetadataError = 1
    PersistenceError = 2
    AuthenticationError = 3
    AuthorizationError = 4
    ConsumerBusy = 5
    ServiceNotReady = 6
    ProducerBlockedQuotaExceededError = 7
    ProducerBlockedQuotaExceededException = 8
    ChecksumError = 9
    UnsupportedVersionError = 10
    TopicNotFound = 11
    SubscriptionNotFound = 12
    ConsumerNotFound = 13
    TooManyRequests = 14
    TopicTerminatedError = 15
    ProducerBusy = 16
    InvalidTopicName = 17
    IncompatibleSchema = 18
    ConsumerAssignError = 19
    TransactionCoordinatorNotFound = 20
    InvalidTxnStatus = 21
    NotAllowedError = 22
    TransactionConflict = 23
    TransactionNotFound = 24
    ProducerFenced = 25


PASSING_ERRORS = frozenset(
    {
        ServerError.MetadataError,
        ServerError.PersistenceError,
        ServerError.ServiceNotReady,
        ServerError.TooManyRequests,
        ServerError.ConsumerNotFound,
    }
)
"""Errors of a topic that moves or of a broker under load: after a new lookup the same request may be answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """The broker has accepted the connection; None: it did not send the size of its largest message."""

    server: str
    version: int
    max_message_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialsAsked:
    """The broker asks for the credentials again: a token is about to expire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedUp:
    """The broker that serves a topic, or a broker to ask next."""

    request_id: int  # id of the lookup request
    is_redirect: bool  # whether to repeat the lookup at the named broker, which may not serve the topic itself
    url: str | None  # that broker's URL without TLS; None: the broker has none
    tls_url: str | None  # its URL with TLS; None: the broker has none
    is_authoritative: bool  # to be passed on with the next lookup
    through_service: bool  # whether the broker is reached through the service URL only, by a proxy


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A request without a more specific answer was carried out."""

    request_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """All positions of one command are acknowledged."""

    request_id: int
    consumer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LastPosition:
    """The position of the last entry of a topic; entry -1: the ledger is empty."""

    request_id: int
    position: EntryPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The broker answered a request with an error."""

    request_id: int
    error: BrokerRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerClosed:
    """The broker has closed a consumer. It will never answer requests about that consumer that were under way."""

    consumer_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """The connection cannot be used any more; always the last event."""

    error: BinaryProtocolError


Event = (
    Acknowledged
    | Broken
    | Connected
    | ConsumerClosed
    | CredentialsAsked
    | Done
    | Entry
    | LastPosition
    | LookedUp
    | Refused
)


MAX_COMMAND_BYTES = 1024 * 1024
"""Limit of a command without the entry behind it: answers are short, and the longest hold a broker's error text."""

_TYPE = number_tag(1)
_CONSUMER_ID = number_tag(1)
_MESSAGE_ID = data_tag(2)
_REDELIVERIES = number_tag(3)
_LEDGER = number_tag(1)
_ENTRY = number_tag(2)
_REDIRECT, _CONNECT, _FAILED = range(3)
_CONSUMER_RESOURCE = 1


def command_in(frame: bytes, end: int) -> tuple[int, bytes]:
    """Return type and body of the command in a frame, as `Frames.next` returns it.

    Raises:
        ProtocolViolation: The bytes are no command, or it is too long.
    """
    if end - COMMAND_AT > MAX_COMMAND_BYTES:
        raise ProtocolViolation(f"a command of {end - COMMAND_AT} bytes", f"the limit is {MAX_COMMAND_BYTES}")
    kind, body = 0, b""
    for tag, number, data in fields_of(frame, COMMAND_AT, end):
        if tag == _TYPE:
            kind = number
        elif tag >> 3 == kind:
            body = data
    if not kind:
        raise ProtocolViolation("a command without a type", "each command tells its type first")
    return kind, body


def entry_in(body: bytes, frame: bytes, rest: int, *, keep_payload: bool) -> Entry:
    """Parse the entry that a MESSAGE command delivers, and which begins at an index of its frame.

    Raises:
        ProtocolViolation: The bytes are no entry.
    """
    consumer_id = redeliveries = 0
    message_id: bytes | None = None
    for tag, number, data in fields_of(body, 0, len(body)):
        if tag == _CONSUMER_ID:
            consumer_id = number
        elif tag == _MESSAGE_ID:
            message_id = data
        elif tag == _REDELIVERIES:
            redeliveries = number
    if message_id is None:
        raise ProtocolViolation("an entry without its position", "each entry has one")
    return read_entry(frame, rest, _position(message_id), consumer_id, redeliveries, keep_payload=keep_payload)


def _position(message_id: bytes) -> EntryPosition:
    ledger = entry = -1
    for tag, number, _ in fields_of(message_id, 0, len(message_id)):
        if tag == _LEDGER:
            ledger = as_signed(number)
        elif tag == _ENTRY:
            entry = as_signed(number)
    return EntryPosition(ledger, entry)


class _Body:
    """The fields of a rare command, by number."""

    def __init__(self, kind: CommandType, body: bytes) -> None:
        self._name = kind.name
        self._numbers: dict[int, int] = {}
        self._datas: dict[int, bytes] = {}
        for tag, number, data in fields_of(body, 0, len(body)):
            if tag == number_tag(tag >> 3):
                self._numbers[tag >> 3] = number
            else:
                self._datas[tag >> 3] = data

    def number(self, field: int, default: int | None = None) -> int:
        found = self._numbers.get(field, default)
        if found is None:
            raise self._without(field)
        return found

    def maybe(self, field: int) -> int | None:
        return self._numbers.get(field)

    def data(self, field: int) -> bytes:
        if field not in self._datas:
            raise self._without(field)
        return self._datas[field]

    def text(self, field: int) -> str | None:
        data = self._datas.get(field)
        return None if data is None else text_of(data)

    def _without(self, field: int) -> ProtocolViolation:
        return ProtocolViolation(f"{self._name} without its field {field}", "that field is required")


Asked = Callable[[int], str]  # describes the request of a request id, for an error


def _connected(body: _Body, _: Asked) -> Connected:
    limit = body.maybe(3)
    return Connected(
        server=body.text(1) or "",
        version=as_signed(body.number(2, 0)),
        max_message_bytes=None if limit is None else as_signed(limit),
    )


def _looked_up(body: _Body, asked: Asked) -> LookedUp | Refused:
    request_id, kind = body.number(4), body.number(3, _FAILED)
    if kind not in {_REDIRECT, _CONNECT} or body.maybe(6) is not None:
        return _refused(request_id, asked, body.number(6, ServerError.UnknownError), body.text(7))
    return LookedUp(
        request_id=request_id,
        is_redirect=kind == _REDIRECT,
        url=body.text(1) or None,
        tls_url=body.text(2) or None,
        is_authoritative=bool(body.number(5, 0)),
        through_service=bool(body.number(8, 0)),
    )


def _acknowledged(body: _Body, asked: Asked) -> Acknowledged | Refused:
    code = body.maybe(4)
    if code is not None:
        return _refused(body.number(6, 0), asked, code, body.text(5))
    return Acknowledged(request_id=body.number(6, 0), consumer_id=body.number(1))


def _migrated(body: _Body, _: Asked) -> ConsumerClosed | None:
    if body.number(2) != _CONSUMER_RESOURCE:
        return None
    to = shown_text(body.text(4) or body.text(3) or "another cluster")
    return ConsumerClosed(consumer_id=body.number(1), reason=f"the topic has migrated to {to}")


def _refused(request_id: int, asked: Asked, code: int, reason: str | None) -> Refused:
    try:
        error: ServerError | None = ServerError(code)
    except ValueError:
        error = None
    name = f"error {code}" if error is None else error.name
    refused = BrokerRefused(
        asked(request_id), code, name, reason or "without a reason", is_passing=error in PASSING_ERRORS
    )
    return Refused(request_id=request_id, error=refused)


Reported = (
    Acknowledged | Connected | ConsumerClosed | CredentialsAsked | Done | LastPosition | LookedUp | Refused | None
)
_MADE_BY: Mapping[CommandType, Callable[[_Body, Asked], Reported]] = {
    CommandType.CONNECTED: _connected,
    CommandType.AUTH_CHALLENGE: lambda _body, _asked: CredentialsAsked(),
    CommandType.LOOKUP_RESPONSE: _looked_up,
    CommandType.SUCCESS: lambda body, _: Done(request_id=body.number(1)),
    CommandType.ERROR: lambda body, asked: _refused(body.number(1), asked, body.number(2), body.text(3)),
    CommandType.ACK_RESPONSE: _acknowledged,
    CommandType.GET_LAST_MESSAGE_ID_RESPONSE: lambda body, _: LastPosition(
        request_id=body.number(2), position=_position(body.data(1))
    ),
    CommandType.CLOSE_CONSUMER: lambda body, _: ConsumerClosed(
        consumer_id=body.number(1), reason="the broker closed the consumer"
    ),
    CommandType.TOPIC_MIGRATED: _migrated,
}


def reported_by(kind: CommandType, body: bytes, asked: Asked) -> Reported:
    """Parse a command of any type but MESSAGE; None: the command does not concern this client.

    ``asked`` describes a request, for errors.

    Raises:
        ProtocolViolation: The body does not fit the type.
    """
    make = _MADE_BY.get(kind)
    return None if make is None else make(_Body(kind, body), asked)

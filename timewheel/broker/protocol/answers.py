"""The broker's commands, parsed from frames into events.

Required fields must be present; unknown fields are skipped. `connection` decides which command a broker may send when.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from timewheel.broker.protocol.command_types import PASSING_ERRORS, CommandType, ServerError
from timewheel.broker.protocol.entries import Entry, read_entry
from timewheel.broker.protocol.errors import BrokerRefused, ProtocolViolation, shown_text
from timewheel.broker.protocol.events import (
    Acknowledged,
    Connected,
    ConsumerClosed,
    CredentialsAsked,
    Done,
    LastPosition,
    LookedUp,
    Refused,
)
from timewheel.broker.protocol.fields import as_signed, data_tag, fields_of, number_tag, text_of
from timewheel.broker.protocol.frames import COMMAND_AT
from timewheel.client.positions import EntryPosition

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
    """Return the type of a frame's command, and the command's body.

    Args:
        frame: A frame as `Frames.next` returns it.
        end: Index of the command's end.

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
    """Parse the entry that a MESSAGE command delivers.

    Args:
        body: Body of the command.
        frame: The frame of the command.
        rest: Index in the frame at which the entry begins.
        keep_payload: Whether the entry keeps its payload.

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

    __slots__ = ("_datas", "_name", "_numbers")

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


Asked = Callable[[int], str]
"""Describes the request of a request id, for an error."""


def _connected(body: _Body, _: Asked) -> Connected:
    limit = body.maybe(3)
    return Connected(
        server=body.text(1) or "",
        version=as_signed(body.number(2, 0)),
        max_message_bytes=None if limit is None else as_signed(limit),
    )


def _credentials_asked(_body: _Body, _: Asked) -> CredentialsAsked:
    return CredentialsAsked()


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


def _done(body: _Body, _: Asked) -> Done:
    return Done(request_id=body.number(1))


def _error(body: _Body, asked: Asked) -> Refused:
    return _refused(body.number(1), asked, body.number(2), body.text(3))


def _acknowledged(body: _Body, asked: Asked) -> Acknowledged | Refused:
    code = body.maybe(4)
    if code is not None:
        return _refused(body.number(6, 0), asked, code, body.text(5))
    return Acknowledged(request_id=body.number(6, 0), consumer_id=body.number(1))


def _last_position(body: _Body, _: Asked) -> LastPosition:
    return LastPosition(request_id=body.number(2), position=_position(body.data(1)))


def _consumer_closed(body: _Body, _: Asked) -> ConsumerClosed:
    return ConsumerClosed(consumer_id=body.number(1), reason="the broker closed the consumer")


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
    CommandType.AUTH_CHALLENGE: _credentials_asked,
    CommandType.LOOKUP_RESPONSE: _looked_up,
    CommandType.SUCCESS: _done,
    CommandType.ERROR: _error,
    CommandType.ACK_RESPONSE: _acknowledged,
    CommandType.GET_LAST_MESSAGE_ID_RESPONSE: _last_position,
    CommandType.CLOSE_CONSUMER: _consumer_closed,
    CommandType.TOPIC_MIGRATED: _migrated,
}


def reported_by(kind: CommandType, body: bytes, asked: Asked) -> Reported:
    """Parse a command of any type but MESSAGE; None: the command does not concern this client.

    Args:
        kind: Type of the command.
        body: Body of the command.
        asked: Describes requests, for errors.

    Raises:
        ProtocolViolation: The body does not fit the type.
    """
    make = _MADE_BY.get(kind)
    return None if make is None else make(_Body(kind, body), asked)

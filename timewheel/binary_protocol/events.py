"""What a connection tells: what the broker answered or did. Entries are events too, see `entries`."""

from __future__ import annotations

from dataclasses import dataclass

from timewheel.binary_protocol.entries import Entry
from timewheel.binary_protocol.errors import BinaryProtocolError, BrokerRefused
from timewheel.wire.positions import EntryPosition

__all__ = [
    "Acknowledged",
    "Broken",
    "Connected",
    "ConsumerClosed",
    "CredentialsAsked",
    "Done",
    "Event",
    "LastPosition",
    "LookedUp",
    "Refused",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """The broker has let us in.

    Attributes:
        server: What it calls itself.
        version: Of the protocol that both speak.
        max_message_bytes: What it takes at most; None: it does not tell.
    """

    server: str
    version: int
    max_message_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialsAsked:
    """The broker wants to see the credentials again: a token is about to expire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedUp:
    """Where a topic is served, or who knows.

    Attributes:
        request_id: Of the question.
        is_redirect: Whether the broker named is to be asked, and not connected to for good.
        url: Of that broker, without TLS; None: it has none.
        tls_url: With TLS; None: it has none.
        is_authoritative: To be handed on with the question.
        through_service: Whether the broker is reached through the service URL only: there is a proxy.
    """

    request_id: int
    is_redirect: bool
    url: str | None
    tls_url: str | None
    is_authoritative: bool
    through_service: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A request that has no other answer was carried out."""

    request_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """All positions of one command are acknowledged."""

    request_id: int
    consumer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LastPosition:
    """The last entry of a topic.

    Attributes:
        request_id: Of the question.
        position: Entry -1: the ledger is empty.
    """

    request_id: int
    position: EntryPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A request was answered with an error."""

    request_id: int
    error: BrokerRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerClosed:
    """The broker has closed a consumer. Requests about it that were under way will never be answered."""

    consumer_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """The connection is of no use any more, whatever comes; always the last event."""

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

"""Events of a connection: the broker's answers and actions. Entries are events too, see `entries`."""

from __future__ import annotations

from dataclasses import dataclass

from timewheel.broker.protocol.entries import Entry
from timewheel.broker.protocol.errors import BinaryProtocolError, BrokerRefused
from timewheel.client.positions import EntryPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """The broker has accepted the connection.

    Attributes:
        server: The broker's version text.
        version: The protocol version that both sides speak.
        max_message_bytes: The broker's largest message; None: the broker did not send it.
    """

    server: str
    version: int
    max_message_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialsAsked:
    """The broker asks for the credentials again: a token is about to expire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedUp:
    """The broker that serves a topic, or a broker to ask next.

    Attributes:
        request_id: Id of the lookup request.
        is_redirect: Whether to repeat the lookup at the named broker, which may not serve the topic itself.
        url: That broker's URL without TLS; None: the broker has none.
        tls_url: Its URL with TLS; None: the broker has none.
        is_authoritative: To be passed on with the next lookup.
        through_service: Whether the broker is reached through the service URL only, by a proxy.
    """

    request_id: int
    is_redirect: bool
    url: str | None
    tls_url: str | None
    is_authoritative: bool
    through_service: bool


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
    """The last entry of a topic.

    Attributes:
        request_id: Id of the request.
        position: Entry -1: the ledger is empty.
    """

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

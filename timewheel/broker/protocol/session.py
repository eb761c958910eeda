"""A connection driven by a transport and by its caller. It has no thread of its own.

A session belongs to a single thread at a time, which calls it at least every `CALL_EVERY_MS`: a broker drops a client
that sent nothing for twice its ``keepAliveIntervalSeconds``. A caller that is late gets `BrokerLost` from its next
call; nothing else happens.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from timewheel.broker.protocol.commands import (
    Broken,
    Connected,
    ConsumerClosed,
    CredentialsAsked,
    Event,
    LookedUp,
    Refused,
)
from timewheel.broker.protocol.connection import KEEP_ALIVE_MS, Connection
from timewheel.broker.protocol.errors import BinaryProtocolError, BrokerLost, BrokerSilent, ConsumerLost
from timewheel.core.clock import Clock
from timewheel.core.errors import BadConnection


@dataclass(frozen=True, slots=True)
class Authentication:
    """A way to authenticate with a broker."""

    # name of the method in the protocol: ``token``, ``tls`` (by the certificate, which the broker has already seen),
    # ``none``
    method: str = "none"
    # returns the current credentials; called at every connect, and when a broker asks for them again
    data: Callable[[], bytes] = field(default=bytes, repr=False)

    @classmethod
    def by_token(cls, source: Callable[[], str]) -> Authentication:
        """Authenticate by the current token, which the source returns."""
        return cls("token", lambda: source().encode())


_PLAIN, _TLS = "pulsar", "pulsar+ssl"
_PORTS = {_PLAIN: 6650, _TLS: 6651}


class Address(NamedTuple):
    """A port of a host."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ServiceUrl(NamedTuple):
    """A parsed service URL: at least one address, in no order; all or none of them use TLS."""

    addresses: tuple[Address, ...]
    is_tls: bool

    @classmethod
    def parse(cls, text: str) -> ServiceUrl:
        """Parse a service URL such as ``pulsar+ssl://one:6651,two:6651``.

        Raises:
            BadConnection: The text is no service URL. The error does not repeat it: it may hold a password.
        """
        scheme, separator, rest = text.partition("://")
        if not separator or scheme not in _PORTS:
            raise BadConnection("service_url", f"must begin with {_PLAIN}:// or {_TLS}://")
        hosts = rest.rstrip("/").split(",")
        return cls(tuple(_address(host, _PORTS[scheme]) for host in hosts), scheme == _TLS)


def _address(text: str, default_port: int) -> Address:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise BadConnection("service_url", "has a host or a port that is none") from error
    if not host or parts.username is not None or parts.path or parts.query or parts.fragment:
        raise BadConnection("service_url", "has something else in it than hosts and ports")
    return Address(host, default_port if port is None else port)


RECEIVE_BYTES = 256 * 1024
"""Bytes received at once: some thousand entries, and the most that is read ahead of the caller."""
_CLOSED = "it was closed by the other side"
_SHORTEST_S = 0.000_001  # a socket takes 0 as "never wait", which TLS cannot distinguish from a lost connection


class Transport(Protocol):
    """A stream of bytes in both directions."""

    @property
    def address(self) -> Address: ...

    def send(self, data: bytes, timeout_ms: int) -> None:
        """Send all of the data, or raise BrokerLost if that is impossible in this time."""
        ...

    def receive(self, timeout_ms: int) -> bytes:
        """Return received bytes, empty if none came in this time; BrokerLost: the connection was lost."""
        ...

    def close(self) -> None:
        """Close the stream at once."""
        ...


class SocketTransport:
    """A connection to an address; if the TLS settings ask for it, the name is checked against the host.

    ``timeout_ms`` is for connecting, and again for TLS. Raises BrokerLost if that fails.
    """

    def __init__(self, address: Address, *, tls: ssl.SSLContext | None, timeout_ms: int) -> None:
        self.address = address
        timeout_s = timeout_ms / 1000
        try:
            plain = socket.create_connection(address, timeout=timeout_s)
        except (OSError, UnicodeError) as error:  # UnicodeError: the host cannot be a name
            raise BrokerLost(str(self.address), _said(error), "is a broker there, and is this its own port?") from error
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = plain if tls is None else tls.wrap_socket(plain, server_hostname=address.host)
        except (OSError, ValueError) as error:
            plain.close()
            raise BrokerLost(str(self.address), _said(error), _remedy(error)) from error

    def send(self, data: bytes, timeout_ms: int) -> None:
        try:
            self._socket.settimeout(max(timeout_ms / 1000, _SHORTEST_S))
            self._socket.sendall(data)
        except OSError as error:
            raise BrokerLost(str(self.address), _said(error)) from error

    def receive(self, timeout_ms: int) -> bytes:
        try:
            self._socket.settimeout(max(timeout_ms / 1000, _SHORTEST_S))
            data = self._socket.recv(RECEIVE_BYTES)
        except (TimeoutError, ssl.SSLWantReadError):
            return b""
        except OSError as error:
            raise BrokerLost(str(self.address), _said(error)) from error
        if not data:
            raise BrokerLost(str(self.address), _CLOSED)
        return data

    def close(self) -> None:
        self._socket.close()


def _said(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    return str(error) or type(error).__name__


def _remedy(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "trust its authority (tls_trust_certs_file_path), and use a host that its certificate names"
    if isinstance(error, ssl.SSLError):
        return "does it speak TLS at this port, and does it trust this client's certificate?"
    return "connect again"


CONNECT_MS = 10_000
"""Time-out of each step of a connection: connecting, TLS, the broker's welcome. As in pulsar-client."""
REQUEST_MS = 30_000  # Time-out of an answer, as in pulsar-client. A broker that loads a large topic takes some seconds.
CALL_EVERY_MS = KEEP_ALIVE_MS


class Session:
    """An open connection to a broker; the transport is closed with it, and if the broker does not accept the
    connection.

    Args:
        transport: Bytes to and from the broker.
        authentication: The client's credentials.
        clock: For time-outs.
        broker: Address of the broker that the proxy at the other end shall connect to; None: no proxy.
        keep_payload: Whether entries keep their payloads.
        connect_ms: Time-out of the broker's welcome.
        request_ms: Time-out of an answer.

    Attributes:
        server: The broker's version text.
        address: Host and port of the other side.
    """

    def __init__(
        self,
        transport: Transport,
        authentication: Authentication,
        *,
        clock: Clock,
        broker: str | None = None,
        keep_payload: bool = False,
        connect_ms: int = CONNECT_MS,
        request_ms: int = REQUEST_MS,
    ) -> None:
        self._transport = transport
        self.address = transport.address
        self._authentication = authentication
        self._clock = clock
        self._request_ms = request_ms
        self.connection = Connection(keep_payload=keep_payload)
        self._aside: list[Event] = []
        self._failure: BinaryProtocolError | None = None
        try:
            self.server = self._shake_hands(broker, connect_ms).server
        except BaseException:
            self.close()
            raise

    def _shake_hands(self, broker: str | None, timeout_ms: int) -> Connected:
        method, data = self._authentication.method, self._authentication.data()
        self.connection.connect(self._clock.monotonic_ms(), method=method, data=data, broker=broker)
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while True:
            for event in self._turn(deadline_ms):
                if isinstance(event, Connected):
                    return event
            if self._clock.monotonic_ms() >= deadline_ms:
                raise BrokerSilent("answer to CONNECT", timeout_ms)

    def look_up(self, topic: str, *, is_authoritative: bool, timeout_ms: int) -> LookedUp:
        """Ask which broker serves a topic; BinaryProtocolError: no answer came, or an error."""
        request_id = self.connection.look_up(topic, is_authoritative=is_authoritative)
        found = self.answer(request_id, topic=topic, timeout_ms=timeout_ms)
        assert isinstance(found, LookedUp), "the connection has seen to that"
        return found

    def events(self, timeout_ms: int) -> list[Event]:
        """Return new events, and wait for the first if there are none; 0: do not wait.

        One turn, so rarely more than `RECEIVE_BYTES` of them.
        """
        if self._aside:
            events, self._aside = self._aside, []
            return events
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while True:
            events = self._turn(deadline_ms)
            if events or self._clock.monotonic_ms() >= deadline_ms:
                return events

    def put_back(self, events: list[Event]) -> None:
        """Put events back: `events` returns them before newer events."""
        self._aside = events + self._aside

    def answer(
        self, request_id: int, *, topic: str, consumer_id: int | None = None, timeout_ms: int | None = None
    ) -> Event:
        """Wait for the answer to a request, or for the end of a consumer; other events are kept for `events`.

        Raises:
            BinaryProtocolError: No answer came, or an error.
        """
        timeout_ms = self._request_ms if timeout_ms is None else timeout_ms
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        events, self._aside = self._aside, []
        while True:
            for at, event in enumerate(events):
                if isinstance(event, ConsumerClosed) and event.consumer_id == consumer_id:
                    raise ConsumerLost(topic, event.reason)
                if getattr(event, "request_id", None) == request_id:
                    self._aside += events[at + 1 :]
                    if isinstance(event, Refused):
                        raise event.error
                    return event
                self._aside.append(event)
            if self._clock.monotonic_ms() >= deadline_ms:
                raise BrokerSilent("answer", timeout_ms)
            events = self._turn(deadline_ms)

    def flush(self) -> None:
        """Send the requests so far, without waiting for an answer; BrokerLost: they cannot be sent."""
        if self._failure is not None:
            raise self._failure
        if data := self.connection.to_send():
            try:
                self._transport.send(data, self._request_ms)
            except BrokerLost as error:
                raise self._fail(error) from error

    def close(self) -> None:
        """Close the connection without a command, which a broker understands."""
        if self._failure is None:
            self._fail(BrokerLost(str(self.address), "it was closed here", "open another one"))

    def _turn(self, deadline_ms: int) -> list[Event]:
        """Send, wait for bytes once, and return their events."""
        self.flush()
        now_ms = self._clock.monotonic_ms()
        wait_ms = min(deadline_ms, self.connection.wake_ms()) - now_ms
        try:
            data = self._transport.receive(max(wait_ms, 0))
        except BrokerLost as error:
            raise self._fail(error) from error
        now_ms = self._clock.monotonic_ms()
        events = self.connection.receive(data, now_ms) if data else []
        events += self.connection.on_time(now_ms)
        events = list(self._seen(events))
        if self._failure is None:
            self.flush()
        elif not events:
            raise self._failure
        return events

    def _seen(self, events: Iterable[Event]) -> Iterable[Event]:
        """Handle the events that concern the session itself, and yield the others."""
        for event in events:
            if isinstance(event, Broken):
                self._fail(event.error)
            elif isinstance(event, CredentialsAsked):
                self.connection.show_credentials(method=self._authentication.method, data=self._authentication.data())
            else:
                yield event

    def _fail(self, error: BinaryProtocolError) -> BinaryProtocolError:
        self._failure = error
        self.connection.end(error)
        self._transport.close()
        return error

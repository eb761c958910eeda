"""Connects to the broker that serves a topic: lookups, redirects, proxies."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from timewheel.broker.protocol.commands import LookedUp
from timewheel.broker.protocol.errors import (
    BinaryProtocolError,
    BrokerLost,
    BrokerRefused,
    BrokerSilent,
    LookupFailed,
    shown_text,
)
from timewheel.broker.protocol.session import (
    CONNECT_MS,
    REQUEST_MS,
    Address,
    Authentication,
    ServiceUrl,
    Session,
    SocketTransport,
    Transport,
)
from timewheel.core.clock import Clock, SystemClock
from timewheel.core.errors import BadConnection

_T = TypeVar("_T")

MAX_REDIRECTS = 20  # limit of redirects between brokers for a topic, as in other clients; one redirect is usual


class Ask(NamedTuple):
    """The next step: ask a broker at any of its addresses; the authority is to be passed on with the lookup."""

    addresses: tuple[Address, ...]
    is_authoritative: bool


class Target(NamedTuple):
    """The result: any of the addresses; a proxy there shall connect to the broker ``HOST:PORT``. None: no proxy."""

    addresses: tuple[Address, ...]
    broker: str | None

    def is_at(self, address: Address) -> bool:
        """Return whether the broker itself has this address, even if a proxy is named
        (broker-facts: standalone-as-its-own-proxy).
        """
        return str(address) == self.broker or (self.broker is None and address in self.addresses)


def next_step(service: ServiceUrl, topic: str, answer: LookedUp) -> Ask | Target:
    """Return what follows from a broker's answer to the lookup of a topic.

    A broker answers with itself, with the owner, with another broker to ask, or with the service URL if a proxy is
    there. With TLS only addresses with TLS are used: credentials never follow a redirect to a connection without TLS.
    A proxy's brokers may have no TLS: the client connects to the proxy, and the address only names the broker.

    Raises:
        LookupFailed: The answer leads to no broker.
    """
    url, kind = (answer.tls_url, "with TLS") if service.is_tls else (answer.url, "without TLS")
    if url is None:
        remedy = "use the scheme that its brokers advertise"
        raise LookupFailed(topic, f"its broker advertises no address {kind}; {remedy}")
    advertised = f"its broker advertises {shown_text(url)!r}"
    try:
        found = ServiceUrl.parse(url)
    except BadConnection as error:
        raise LookupFailed(topic, f"{advertised}, which is no address: {error.problem}") from error
    addresses = found.addresses[:1]
    if answer.through_service and not answer.is_redirect:
        return Target(service.addresses, str(addresses[0]))
    if found.is_tls != service.is_tls:
        raise LookupFailed(topic, f"{advertised} as its address {kind}")
    return Ask(addresses, answer.is_authoritative) if answer.is_redirect else Target(addresses, None)


HOST_MS = 3_000
"""Time-out of each step at a host of the service URL while another host is left: a frozen broker accepts connections,
and its neighbours know the owner of a topic as well as it does.
"""


def _may_another_know(error: BinaryProtocolError) -> bool:
    """Return whether another host may answer where this host did not."""
    return isinstance(error, BrokerLost | BrokerSilent) or (isinstance(error, BrokerRefused) and error.is_passing)


class Dialer:
    """The configuration of a client of a cluster; opens connections on demand, and keeps none. Safe to share between
    threads.

    Args:
        service_url: ``pulsar://`` or ``pulsar+ssl://``, and one or several hosts, which are tried in turn, from
            the host that answered last.
        authentication: None: no credentials are sent.
        tls: Settings, or a function that returns the current settings, called at every connect: certificates are
            renewed. None: the system's authorities are trusted, and names are checked.
        clock: None: the system's clock.
        connect_ms: Time-out of each step of a connection.
        request_ms: Time-out of each answer.
        open_transport: Connects to an address within a time-out; None: through a socket.
        url_hint: Where the service URL came from, and how to give another; an error without a connection ends with it.
        mistake_in: Returns the mistake in a URL, as `timewheel.client.port_probe.mistake_in`; None: no search.

    Raises:
        BadConnection: The URL is no service URL.
    """

    def __init__(
        self,
        service_url: str,
        *,
        authentication: Authentication | None = None,
        tls: ssl.SSLContext | Callable[[], ssl.SSLContext] | None = None,
        clock: Clock | None = None,
        connect_ms: int = CONNECT_MS,
        request_ms: int = REQUEST_MS,
        open_transport: Callable[[Address, int], Transport] | None = None,
        url_hint: str = "",
        mistake_in: Callable[[str, str, int], str] | None = None,
    ) -> None:
        self._url_hint = url_hint
        self._mistake_in = mistake_in
        self._service = ServiceUrl.parse(service_url)
        self._hosts = self._service.addresses
        self._authentication = authentication or Authentication()
        self._tls = (tls or ssl.create_default_context()) if self._service.is_tls else None
        self._clock = clock or SystemClock()
        self._connect_ms = connect_ms
        self._request_ms = request_ms
        self._open_transport = open_transport or self._open_socket

    def responds(self) -> bool:
        """Return whether the first host answers a connection at all within `HOST_MS`, be it with a refusal."""
        try:
            self._connect(self._hosts[0], HOST_MS).close()
        except BinaryProtocolError as error:
            return not isinstance(error, BrokerSilent) and not isinstance(error.__cause__, TimeoutError)
        return True

    def reach(self, topic: str, *, keep_payload: bool = False) -> Session:
        """Open a session with the broker that serves a topic; the caller closes it.

        Args:
            topic: A partition, or a topic without partitions, by its full name.
            keep_payload: Whether entries keep their payloads.

        Raises:
            BinaryProtocolError: No session could be opened.
        """
        found = self._by_any_host(lambda host, limit_ms: self._find(host, topic, limit_ms, keep_payload=keep_payload))
        if isinstance(found, Session):
            return found
        broker, (address, *_) = found.broker, found.addresses
        if broker is None:
            return self._connect(address, keep_payload=keep_payload)
        return self._by_any_host(
            lambda host, limit_ms: self._connect(host, limit_ms, broker=broker, keep_payload=keep_payload)
        )

    def _by_any_host(self, attempt: Callable[[Address, int], _T]) -> _T:
        """Return the result of the first host whose attempt succeeds, within the given time-out of each step."""
        hosts = self._hosts
        for at, host in enumerate(hosts):
            is_last = at == len(hosts) - 1
            try:
                result = attempt(host, REQUEST_MS if is_last else HOST_MS)
            except BinaryProtocolError as error:
                if is_last or not _may_another_know(error):
                    raise self._explained(error, host) from error.__cause__
            else:
                self._hosts = hosts[at:] + hosts[:at]
                return result
        raise AssertionError("a service URL has at least one address")

    def _find(self, host: Address, topic: str, limit_ms: int, *, keep_payload: bool) -> Session | Target:
        """Return who serves a topic, by the answer of a host: a session, if it serves the topic itself."""
        step: Ask | Target = Ask((host,), is_authoritative=False)
        asked = 0
        while isinstance(step, Ask):
            if asked > MAX_REDIRECTS:
                reason = f"brokers sent the question on {asked} times, the limit is {MAX_REDIRECTS}"
                raise LookupFailed(topic, f"{reason}; is a cluster's metadata in order?")
            asked += 1
            session = self._connect(step.addresses[0], limit_ms, keep_payload=keep_payload)
            try:
                found = session.look_up(
                    topic, is_authoritative=step.is_authoritative, timeout_ms=min(limit_ms, self._request_ms)
                )
                step = next_step(self._service, topic, found)
                if isinstance(step, Target) and step.is_at(session.address):
                    return session
            except BaseException:
                session.close()
                raise
            session.close()
        return step

    def _connect(
        self, address: Address, limit_ms: int = REQUEST_MS, *, broker: str | None = None, keep_payload: bool = False
    ) -> Session:
        connect_ms = min(limit_ms, self._connect_ms)
        return Session(
            self._open_transport(address, connect_ms),
            self._authentication,
            clock=self._clock,
            broker=broker,
            keep_payload=keep_payload,
            connect_ms=connect_ms,
            request_ms=self._request_ms,
        )

    def _explained(self, error: BinaryProtocolError, host: Address) -> BinaryProtocolError:
        """Return the error, with the mistake in the service URL if its host cannot be connected to."""
        if not isinstance(error, BrokerLost) or error.address != str(host):
            return error
        is_certificate = isinstance(error.__cause__, ssl.SSLCertVerificationError)
        no_tls = isinstance(error.__cause__, ssl.SSLError) and not is_certificate
        if self._mistake_in is not None and (no_tls or not self._service.is_tls):
            scheme = "pulsar+ssl" if self._service.is_tls else "pulsar"
            if mistake := self._mistake_in(scheme, *host):
                return BrokerLost(error.address, mistake, self._url_hint)
        # A refused certificate has a remedy of its own.
        if self._url_hint and not isinstance(error.__cause__, ssl.SSLError):
            return BrokerLost(error.address, error.reason, f"is the service URL that of a broker? {self._url_hint}")
        return error

    def _open_socket(self, address: Address, timeout_ms: int) -> Transport:
        tls = self._tls() if callable(self._tls) else self._tls
        return SocketTransport(address, tls=tls, timeout_ms=timeout_ms)

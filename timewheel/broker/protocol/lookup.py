"""The lookup of a topic's broker: question by question, pure.

A broker answers with itself, with the owner, with another broker to ask, or with the service URL if a proxy is there.
With TLS only addresses with TLS are used: credentials never follow a redirect to a connection without TLS.
"""

from __future__ import annotations

from typing import NamedTuple

from timewheel.broker.protocol.addresses import Address, ServiceUrl
from timewheel.broker.protocol.errors import LookupFailed, shown_text
from timewheel.broker.protocol.events import LookedUp
from timewheel.core.errors import BadConnection

MAX_REDIRECTS = 20
"""Limit of redirects between brokers for a topic, as in other clients; one redirect is usual."""


class Ask(NamedTuple):
    """The next step: ask a broker.

    Attributes:
        addresses: Addresses of the broker; any of them may be used.
        is_authoritative: To be passed on with the lookup.
    """

    addresses: tuple[Address, ...]
    is_authoritative: bool


class Target(NamedTuple):
    """The result: the address to connect to.

    Attributes:
        addresses: Any of them may be used.
        broker: ``HOST:PORT`` of the broker that the proxy there shall connect to; None: the address is the broker's
            own.
    """

    addresses: tuple[Address, ...]
    broker: str | None

    def is_at(self, address: Address) -> bool:
        """Return whether the broker itself has this address, even if a proxy is named
        (broker-facts: standalone-as-its-own-proxy).
        """
        return str(address) == self.broker or (self.broker is None and address in self.addresses)


class Lookup:
    """The lookup of a topic.

    Args:
        service: Service URL to begin with.
        topic: For errors.
    """

    __slots__ = ("_redirects", "_service", "_topic", "first")

    def __init__(self, service: ServiceUrl, topic: str) -> None:
        self._service = service
        self._topic = topic
        self._redirects = 0
        self.first = Ask(service.addresses, is_authoritative=False)

    def answered(self, answer: LookedUp) -> Ask | Target:
        """Return the next step after an answer.

        Raises:
            LookupFailed: The answer leads to no broker.
        """
        address = self._address(answer)
        if not answer.is_redirect:
            if answer.through_service:
                return Target(self._service.addresses, str(address))
            return Target((address,), None)
        self._redirects += 1
        if self._redirects > MAX_REDIRECTS:
            reason = f"brokers sent the question on {self._redirects} times, the limit is {MAX_REDIRECTS}"
            raise LookupFailed(self._topic, f"{reason}; is a cluster's metadata in order?")
        return Ask((address,), answer.is_authoritative)

    def _address(self, answer: LookedUp) -> Address:
        secure = self._service.is_tls
        url = answer.tls_url if secure else answer.url
        kind = "with TLS" if secure else "without TLS"
        if url is None:
            remedy = "use the scheme that its brokers advertise"
            raise LookupFailed(self._topic, f"its broker advertises no address {kind}; {remedy}")
        try:
            found = ServiceUrl.parse(url)
        except BadConnection as error:
            raise LookupFailed(
                self._topic, f"its broker advertises {shown_text(url)!r}, which is no address: {error.problem}"
            ) from error
        if found.is_tls != secure:
            raise LookupFailed(self._topic, f"its broker advertises {shown_text(url)!r} as its address {kind}")
        return found.addresses[0]

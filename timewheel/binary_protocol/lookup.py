"""Which broker serves a topic: question by question, pure.

A broker answers with itself, with the owner, with another broker that is to be asked, or that all goes through the
service URL, where a proxy is. With TLS only addresses with TLS count: credentials never follow a redirect into the
clear.
"""

from __future__ import annotations

from typing import NamedTuple

from timewheel.binary_protocol.addresses import Address, ServiceUrl
from timewheel.binary_protocol.errors import LookupFailed, shown_text
from timewheel.binary_protocol.events import LookedUp
from timewheel.core.errors import BadConnection

__all__ = ["MAX_REDIRECTS", "Ask", "Lookup", "Target"]

MAX_REDIRECTS = 20
"""From broker to broker for one topic, as other clients have it; one is usual."""


class Ask(NamedTuple):
    """Ask a broker.

    Attributes:
        addresses: Of the broker; of several any will do.
        is_authoritative: To be handed on with the question.
    """

    addresses: tuple[Address, ...]
    is_authoritative: bool


class Target(NamedTuple):
    """Where to connect to.

    Attributes:
        addresses: Any will do.
        broker: ``HOST:PORT`` of the broker that the proxy there shall connect to; None: it is the broker itself.
    """

    addresses: tuple[Address, ...]
    broker: str | None

    def is_at(self, address: Address) -> bool:
        """Whether the broker itself has this address, even if a proxy is named
        (broker-facts: standalone-as-its-own-proxy).
        """
        return str(address) == self.broker or (self.broker is None and address in self.addresses)


class Lookup:
    """One lookup of one topic.

    Args:
        service: Where it begins.
        topic: For errors.
    """

    __slots__ = ("_redirects", "_service", "_topic", "first")

    def __init__(self, service: ServiceUrl, topic: str) -> None:
        self._service = service
        self._topic = topic
        self._redirects = 0
        self.first = Ask(service.addresses, is_authoritative=False)

    def answered(self, answer: LookedUp) -> Ask | Target:
        """What follows from an answer.

        Raises:
            LookupFailed: It leads nowhere.
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

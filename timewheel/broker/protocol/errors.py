"""Errors of the binary protocol: refused requests, invalid bytes, lost brokers."""

from __future__ import annotations

from timewheel.core.errors import TimewheelError, says

_SHOWN_CHARS = 300
"""Limit of a broker's text in an error message."""


def shown_text(text: str) -> str:
    """Shorten a text from outside to one line, for a message."""
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_CHARS else f"{line[:_SHOWN_CHARS]}..."


class BinaryProtocolError(TimewheelError):
    """A failure of the binary protocol between timewheel and a broker."""


@says("the broker sent {fact}; {limit}; {remedy}")
class ProtocolViolation(BinaryProtocolError, ValueError):
    """Bytes that Pulsar's protocol does not allow.

    The connection is not used any more.
    """

    fact: str
    """Description of the bytes."""
    limit: str
    """The rule that they break."""
    remedy: str = "connect again; if it stays, is this the broker's own port?"


class FrameTooLarge(ProtocolViolation):
    """A frame that announces too many bytes.

    Attributes:
        size_bytes: The announced size.
        limit_bytes: The largest size that is read.
    """

    def __init__(self, size_bytes: int, limit_bytes: int, remedy: str) -> None:
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        super().__init__(f"a frame of {size_bytes} bytes", f"the limit is {limit_bytes}", remedy)


class BrokerTooOld(BinaryProtocolError):
    """The broker speaks too old a version of the protocol.

    Attributes:
        server: The broker's version text.
        version: Its protocol version.
        needed: The lowest supported version.
    """

    def __init__(self, server: str, version: int, needed: int) -> None:
        self.server = server
        self.version = version
        self.needed = needed
        super().__init__(
            f"{shown_text(server)!r} speaks version {version} of the protocol, {needed} is needed: "
            "use a broker of Pulsar 2.10 or later"
        )


class BrokerRefused(BinaryProtocolError):
    """The broker answered a request with an error.

    Attributes:
        request: Description of the request.
        code: The broker's number for the error.
        name: Name of the error in the protocol.
        reason: The broker's error text.
        is_passing: Whether the same request may succeed after a new lookup.
    """

    def __init__(self, request: str, code: int, name: str, reason: str, *, is_passing: bool) -> None:
        self.request = request
        self.code = code
        self.name = name
        self.reason = reason
        self.is_passing = is_passing
        remedy = "look the topic up again" if is_passing else "trying again will not help by itself"
        if name == "AuthorizationError":
            remedy = "it takes the permission consume"
        super().__init__(f"the broker refused to {request} ({name}): {shown_text(reason)}; {remedy}")


@says("no connection to {address}: {reason}; {remedy}")
class BrokerLost(BinaryProtocolError, ConnectionError):
    """The connection to the broker failed or was lost.

    Unconfirmed requests may have been carried out or not.
    """

    address: str
    """Host and port."""
    reason: str
    """How the connection ended."""
    remedy: str = "connect again"


@says("the broker gave no {awaited} within {waited_ms} ms; it may have done it: connect again")
class BrokerSilent(BinaryProtocolError, TimeoutError):
    """The broker sent nothing within a time-out."""

    awaited: str
    """The expected answer."""
    waited_ms: int


@says("{topic}: {reason}; what it had not confirmed may be done or not: look the topic up, and open it again")
class ConsumerLost(BinaryProtocolError, ConnectionError):
    """The broker closed a consumer: the topic moves, was unloaded, or is gone. It answers no more requests about it."""

    topic: str
    reason: str


@says("{topic}: {reason}")
class LookupFailed(BinaryProtocolError, LookupError):
    """No broker was found that serves a topic."""

    topic: str
    reason: str


@says("{count} {what} at once, the limit is {limit}: wait for answers, or send fewer")
class TooManyRequests(BinaryProtocolError, ValueError):
    """More requests at once than a connection holds."""

    what: str
    """The kind of item that exceeds its limit."""
    count: int
    limit: int

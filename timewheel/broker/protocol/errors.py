"""Errors of the binary protocol: refused requests, invalid bytes, lost brokers."""

from __future__ import annotations

from timewheel.core.errors import TimewheelError

_SHOWN_CHARS = 300
"""Limit of a broker's text in an error message."""


def shown_text(text: str) -> str:
    """Shorten a text from outside to one line, for a message."""
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_CHARS else f"{line[:_SHOWN_CHARS]}..."


class BinaryProtocolError(TimewheelError):
    """A failure of the binary protocol between timewheel and a broker."""


class ProtocolViolation(BinaryProtocolError, ValueError):
    """Bytes that Pulsar's protocol does not allow.

    The connection is not used any more.

    Attributes:
        fact: Description of the bytes.
        limit: The rule that they break.
    """

    def __init__(
        self, fact: str, limit: str, remedy: str = "connect again; if it stays, is this the broker's own port?"
    ) -> None:
        self.fact = fact
        self.limit = limit
        super().__init__(f"the broker sent {fact}; {limit}; {remedy}")


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


class BrokerLost(BinaryProtocolError, ConnectionError):
    """The connection to the broker failed or was lost.

    Unconfirmed requests may have been carried out or not.

    Attributes:
        address: Host and port.
        reason: How the connection ended.
    """

    def __init__(self, address: object, reason: str, remedy: str = "connect again") -> None:
        self.address = str(address)
        self.reason = reason
        super().__init__(f"no connection to {address}: {reason}; {remedy}")


class BrokerSilent(BinaryProtocolError, TimeoutError):
    """The broker sent nothing within a time-out.

    Attributes:
        awaited: The expected answer.
        waited_ms: The time-out.
    """

    def __init__(self, awaited: str, waited_ms: int) -> None:
        self.awaited = awaited
        self.waited_ms = waited_ms
        super().__init__(f"the broker gave no {awaited} within {waited_ms} ms; it may have done it: connect again")


class ConsumerLost(BinaryProtocolError, ConnectionError):
    """The broker closed a consumer: the topic moves, was unloaded, or is gone. It answers no more requests about it.

    Attributes:
        topic: The consumer's topic.
        reason: The broker's reason.
    """

    def __init__(self, topic: str, reason: str) -> None:
        self.topic = topic
        self.reason = reason
        super().__init__(
            f"{topic}: {reason}; what it had not confirmed may be done or not: look the topic up, and open it again"
        )


class LookupFailed(BinaryProtocolError, LookupError):
    """No broker was found that serves a topic.

    Attributes:
        topic: The topic.
        reason: Why the lookup failed.
    """

    def __init__(self, topic: str, reason: str) -> None:
        self.topic = topic
        self.reason = reason
        super().__init__(f"{topic}: {reason}")


class TooManyRequests(BinaryProtocolError, ValueError):
    """More requests at once than a connection holds.

    Attributes:
        what: The kind of item that exceeds its limit.
        count: Number of items.
        limit: The largest number allowed.
    """

    def __init__(self, what: str, count: int, limit: int) -> None:
        self.what = what
        self.count = count
        self.limit = limit
        super().__init__(f"{count} {what} at once, the limit is {limit}: wait for answers, or send fewer")

"""Errors of the binary protocol: what a broker refused, what it sent and must not, brokers that are lost."""

from __future__ import annotations

from timewheel.core.errors import TimewheelError

__all__ = [
    "BinaryProtocolError",
    "BrokerLost",
    "BrokerRefused",
    "BrokerSilent",
    "BrokerTooOld",
    "ConsumerLost",
    "FrameTooLarge",
    "LookupFailed",
    "ProtocolViolation",
    "TooManyRequests",
    "shown_text",
]

_SHOWN_CHARS = 300
"""Of a text that a broker sent, in a message."""


def shown_text(text: str) -> str:
    """A stranger's text for a message: short and on one line."""
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_CHARS else f"{line[:_SHOWN_CHARS]}..."


class BinaryProtocolError(TimewheelError):
    """Something went wrong between timewheel and a broker's own port."""


class ProtocolViolation(BinaryProtocolError, ValueError):
    """Bytes that Pulsar's protocol does not allow; the connection is not used any more.

    Attributes:
        fact: What came.
        limit: What may come.
    """

    def __init__(
        self, fact: str, limit: str, remedy: str = "connect again; if it stays, is this the broker's own port?"
    ) -> None:
        self.fact = fact
        self.limit = limit
        super().__init__(f"the broker sent {fact}; {limit}; {remedy}")


class FrameTooLarge(ProtocolViolation):
    """A frame that announces more bytes than are read.

    Attributes:
        size_bytes: What it announces.
        limit_bytes: What is read at most.
    """

    def __init__(self, size_bytes: int, limit_bytes: int, remedy: str) -> None:
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        super().__init__(f"a frame of {size_bytes} bytes", f"the limit is {limit_bytes}", remedy)


class BrokerTooOld(BinaryProtocolError):
    """The broker speaks a version of the protocol that lacks what is needed.

    Attributes:
        server: What the broker calls itself.
        version: Of its protocol.
        needed: The lowest version that will do.
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
        request: What was asked.
        code: The broker's number for the error.
        name: Its name in the protocol.
        reason: The broker's own words.
        is_passing: Whether the same request may be answered after a new lookup.
    """

    def __init__(self, request: str, code: int, name: str, reason: str, *, is_passing: bool) -> None:
        self.request = request
        self.code = code
        self.name = name
        self.reason = reason
        self.is_passing = is_passing
        remedy = "look the topic up again" if is_passing else "trying again will not help by itself"
        super().__init__(f"the broker refused to {request} ({name}): {shown_text(reason)}; {remedy}")


class BrokerLost(BinaryProtocolError, ConnectionError):
    """There is no connection to the broker, or none any more; what it had not confirmed may be done or not.

    Attributes:
        address: Host and port.
        reason: How it ended.
    """

    def __init__(self, address: object, reason: str, remedy: str = "connect again") -> None:
        self.address = str(address)
        self.reason = reason
        super().__init__(f"no connection to {address}: {reason}; {remedy}")


class BrokerSilent(BinaryProtocolError, TimeoutError):
    """Nothing came from the broker for as long as was waited.

    Attributes:
        awaited: What should have come.
        waited_ms: For how long.
    """

    def __init__(self, awaited: str, waited_ms: int) -> None:
        self.awaited = awaited
        self.waited_ms = waited_ms
        super().__init__(f"the broker gave no {awaited} within {waited_ms} ms; it may have done it: connect again")


class ConsumerLost(BinaryProtocolError, ConnectionError):
    """The broker closed a consumer: the topic moves, was unloaded, or is gone. It answers nothing about it any more.

    Attributes:
        topic: Whose consumer it was.
        reason: What the broker told.
    """

    def __init__(self, topic: str, reason: str) -> None:
        self.topic = topic
        self.reason = reason
        super().__init__(
            f"{topic}: {reason}; what it had not confirmed may be done or not: look the topic up, and open it again"
        )


class LookupFailed(BinaryProtocolError, LookupError):
    """No broker could be found that serves a topic.

    Attributes:
        topic: Which one.
        reason: Why.
    """

    def __init__(self, topic: str, reason: str) -> None:
        self.topic = topic
        self.reason = reason
        super().__init__(f"{topic}: {reason}")


class TooManyRequests(BinaryProtocolError, ValueError):
    """More was asked at once than a connection holds.

    Attributes:
        what: What there is too much of.
        count: How much.
        limit: How much there may be.
    """

    def __init__(self, what: str, count: int, limit: int) -> None:
        self.what = what
        self.count = count
        self.limit = limit
        super().__init__(f"{count} {what} at once, the limit is {limit}: wait for answers, or send fewer")

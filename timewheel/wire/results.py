"""What a result of the client means for a message: the one place that reads the client's result codes.

The same code means different things before and after a message was handed to the client. Opening a producer hands
nothing over, so its failures are definite. A message that the client had in hand may have been written before the
connection broke, whatever the code says now: only what the client itself refused is known not to be stored.
"""

from __future__ import annotations

from enum import Enum, unique
from typing import Any

__all__ = [
    "SEEN_BEFORE",
    "Outcome",
    "cause_of",
    "is_of_message",
    "is_producer_closed",
    "outcome_of_error",
    "outcome_of_result",
]


@unique
class Outcome(Enum):
    """What became of one message, or of opening a producer for it."""

    OK = "ok"
    """Stored."""
    UNKNOWN = "unknown"
    """May or may not be stored: only the same timer id, or the same sequence id, may be sent again."""
    REFUSED = "refused"
    """Not stored."""
    TOO_LARGE = "too_large"
    """Not stored: over the broker's message size."""
    ROUTE_AGAIN = "route_again"
    """The topic is terminated or gone: never retried, routed again (broker-facts: removing-a-topic)."""
    REOPEN = "reopen"
    """Not stored: this producer was closed before, by its broker or its client; another one may take it."""
    DROPPED = "dropped"
    """Ok, and no place: the broker dropped it as seen before. It was, if the client sent it twice; it was not, if
    somebody else used the producer's name (broker-facts: numbers-of-others). So nobody knows, and it is sent again,
    under the same timer id and by another producer."""
    BUSY = "busy"
    """Somebody else holds the producer's name: back off (broker-facts: named-producers)."""


SEEN_BEFORE = "the broker dropped it, as seen before of this producer"
"""What an answer Ok without a place says."""

_OK = 0  # Result.Ok.value; comparing the enum itself costs four times as much per message

_ROUTE_AGAIN = frozenset({"TopicTerminated", "TopicNotFound"})
_BUSY = frozenset({"ProducerBusy", "ProducerFenced"})
_CLOSED = frozenset({"AlreadyClosed", "ProducerNotInitialized"})
_OF_MESSAGE = frozenset({"MessageTooBig", "InvalidMessage", "IncompatibleSchema"})
_REFUSED_BY_CLIENT = frozenset(
    {
        "ChecksumError",
        "CryptoError",
        "IncompatibleSchema",
        "InvalidConfiguration",
        "InvalidMessage",
        "MemoryBufferIsFull",
        "OperationNotSupported",
        "ProducerQueueIsFull",
    }
)


def is_of_message(name: str) -> bool:
    """Whether a result, by its name, refuses this very message, and would for ever: others may go on."""
    return name in _OF_MESSAGE


def outcome_of_result(result: Any, message_id: Any, *, handed_over: bool = True) -> Outcome:
    """Classify what a send callback was given.

    Args:
        result: A `pulsar.Result`.
        message_id: A `pulsar.MessageId`; says something only if the result is Ok.
        handed_over: False if the callback ran inside the call that should have handed the message over: the client
            refused it on the spot, so nothing was written.
    """
    if result.value == _OK:
        return Outcome.DROPPED if message_id.ledger_id() < 0 else Outcome.OK
    return _outcome_of_name(result.name, maybe_stored=handed_over)


def outcome_of_error(error: BaseException) -> Outcome:
    """Classify an exception raised while a producer was opened; no message was handed over, so it is never unknown."""
    outcome = _outcome_of_name(type(error).__name__, maybe_stored=False)
    # What could not be opened is not opened again at once: AlreadyClosed means that the user's client is closed.
    return Outcome.REFUSED if outcome is Outcome.REOPEN else outcome


def is_producer_closed(result: Any) -> bool:
    """Whether a result says that its producer will never send again."""
    name = result.name
    return name in _CLOSED or name in _ROUTE_AGAIN or name == "ProducerFenced"


def cause_of(result: Any) -> str:
    """A result or an exception of the client as words for an error message; Ok is one only where nothing was stored."""
    if isinstance(result, BaseException):
        return str(result) or type(result).__name__
    return SEEN_BEFORE if result.value == _OK else str(result.name)


def _outcome_of_name(name: str, *, maybe_stored: bool) -> Outcome:
    if name in _ROUTE_AGAIN:
        return Outcome.ROUTE_AGAIN
    if name in _BUSY:
        return Outcome.BUSY
    if name == "MessageTooBig":
        return Outcome.TOO_LARGE
    if name in _CLOSED and not maybe_stored:
        return Outcome.REOPEN
    if name in _REFUSED_BY_CLIENT or not maybe_stored:
        return Outcome.REFUSED
    return Outcome.UNKNOWN

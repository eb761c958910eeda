"""Outcomes of the client's results for a message: the only module that reads the client's result codes.

The same code has different meanings before and after a message was handed over to the client. Opening a producer hands
no message over, so its failures are definite. A message that was handed over may have been written before the
connection broke, whatever the code: only messages that the client itself refused are known not to be stored.
"""

from __future__ import annotations

from enum import Enum, unique
from typing import Any

import _pulsar

NO_RESULT = _pulsar.Result.Timeout
"""Result of a message whose client called nothing back in time; the same as the client's own time-out."""


@unique
class Outcome(Enum):
    """Outcome of a message, or of opening a producer for it."""

    OK = "ok"  # the message is stored
    UNKNOWN = "unknown"
    """The message may or may not be stored: send it again only under the same timer id, or the same sequence id."""
    REFUSED = "refused"  # the message is not stored
    TOO_LARGE = "too_large"  # the message is not stored: it exceeds the broker's message size
    ROUTE_AGAIN = "route_again"
    """The topic is terminated or deleted: route the message again, never retry it (broker-facts: removing-a-topic)."""
    REOPEN = "reopen"
    """The message is not stored: the producer was closed before, by its broker or its client; open another."""
    DROPPED = "dropped"
    """Ok without a position: the broker dropped the message as a repeat. It is a repeat if the client sent it twice;
    it is not if another client used the producer's name (broker-facts: numbers-of-others). The outcome is unknown, so
    the message is sent again, under the same timer id and by another producer."""
    BUSY = "busy"  # another client holds the producer's name: back off (broker-facts: named-producers)


SEEN_BEFORE = "the broker dropped it, as seen before of this producer"
"""Cause that errors name for an Ok without a position."""

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

_UNSERVED = frozenset(
    {
        "AlreadyClosed",
        "BrokerMetadataError",
        "BrokerPersistenceError",
        "ConnectError",
        "LookupError",
        "NotConnected",
        "ServiceUnitNotReady",
        "Timeout",
        "TooManyLookupRequestException",
        "UnknownError",
    }
)


def is_served(result: Any) -> bool:
    """Return whether a result of opening a topic is the answer of a broker that serves it, which may be a refusal."""
    return result.name not in _UNSERVED


def is_of_message(name: str) -> bool:
    """Return whether a result, by its name, refuses this message alone, for ever: other messages may succeed."""
    return name in _OF_MESSAGE


def fails_alone(name: str) -> bool:
    """Return whether a result, by its name, means that this message is not stored, though later ones may be."""
    return name in _OF_MESSAGE or name == "ChecksumError"


def outcome_of_result(result: Any, message_id: Any, *, handed_over: bool = True) -> Outcome:
    """Classify the arguments of a send callback. Not ``handed_over``: it ran inside the call that should have handed
    the message over, so the client refused it on the spot, and it was not written.
    """
    if result.value == _OK:
        return Outcome.DROPPED if message_id.ledger_id() < 0 else Outcome.OK
    return _outcome_of_name(result.name, maybe_stored=handed_over)


def outcome_of_error(error: BaseException) -> Outcome:
    """Classify an exception of opening a producer; no message was handed over, so the outcome is never unknown."""
    outcome = _outcome_of_name(type(error).__name__, maybe_stored=False)
    # A failed opening is not repeated at once: AlreadyClosed means that the user's client is closed.
    return Outcome.REFUSED if outcome is Outcome.REOPEN else outcome


def is_producer_closed(result: Any) -> bool:
    """Return whether a result means that its producer will never send again."""
    name = result.name
    return name in _CLOSED or name in _ROUTE_AGAIN or name == "ProducerFenced"


def cause_of(result: Any) -> str:
    """Render a result or an exception of the client for an error message; Ok is a cause only if nothing was stored."""
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

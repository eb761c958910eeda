"""Every error that timewheel raises on purpose.

One root, families by whose fault it is, and the fitting builtin beside it, so that ``except ValueError`` and
``except TimeoutError`` do what a reader expects. Facts are attributes; the message names the fact, the limit and
what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "AdminDenied",
    "AdminError",
    "AdminMissing",
    "AdminUnreachable",
    "BadArgument",
    "BadConnection",
    "BadDueTime",
    "BadName",
    "BadTimerId",
    "CancelFailed",
    "CancelOutcomeUnknown",
    "CancelRefused",
    "ClientMisuse",
    "CutOffUnreadable",
    "DurationError",
    "EnvelopeError",
    "PayloadTooLarge",
    "PlanError",
    "ProfileError",
    "ReservedProperty",
    "SendFailed",
    "SendOutcomeUnknown",
    "SendRefused",
    "TimewheelError",
    "TokenNotGiven",
    "TopologyError",
    "UnsupportedAcknowledgement",
]


_SHOWN_CHARS = 200
"""Of a caller's value in a message; all of it stays in the attribute."""


def _shown(value: object) -> str:
    """A value for a message: short, and never an error of its own (``repr`` of a huge integer is one)."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a stranger's __repr__ may raise anything, and must not hide our error
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


class TimewheelError(Exception):
    """Root of all errors raised by timewheel.

    They cross process borders (``multiprocessing``, Spark, a task queue) with all their attributes.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        # The default calls the class with the finished message, which no constructor below accepts.
        return _restore, (type(self), self.args, dict(self.__dict__))


def _restore(kind: type[TimewheelError], args: tuple[Any, ...], facts: Mapping[str, Any]) -> TimewheelError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(facts)
    return error


class DurationError(TimewheelError, ValueError):
    """A duration text such as ``"90s"`` could not be read."""

    def __init__(self, text: object, reason: str) -> None:
        self.text = text
        self.reason = reason
        super().__init__(
            f"not a duration: {_shown(text)}: {reason}; write a whole number and a unit, like 90s, 12h or 5d"
        )


class PlanError(TimewheelError, ValueError):
    """A plan breaks a rule.

    Attributes:
        field: The key in the plan file, dotted (``tiered.window``).
        value: What was given.
        limit: The rule that it breaks, as a sentence without a full stop.
    """

    def __init__(self, field: str, value: object, limit: str) -> None:
        self.field = field
        self.value = value
        self.limit = limit
        super().__init__(f"plan: {field} = {_shown(value)}: {limit}")


class ProfileError(TimewheelError, ValueError):
    """A broker profile has a number that no broker could have, or a field that none has.

    Attributes:
        field: The field, or the broker's own setting.
        value: What was given.
        limit: What it must be, as a sentence without a full stop.
    """

    def __init__(self, field: str, value: object, limit: str) -> None:
        self.field = field
        self.value = value
        self.limit = limit
        super().__init__(f"broker profile: {field} = {_shown(value)}: {limit}")


class EnvelopeError(TimewheelError, ValueError):
    """A message's timewheel properties are missing, garbled or of an unknown version."""

    def __init__(self, reason: str, found: object = None) -> None:
        self.reason = reason
        self.found = found
        super().__init__(f"envelope: {reason}" + ("" if found is None else f" (found {_shown(found)})"))


class EnvelopeTooNew(EnvelopeError):
    """A message was written by a later version of timewheel, which may mean something else by it.

    Attributes:
        version: Of the envelope.
    """

    def __init__(self, version: int, readable: int, found: object = None) -> None:
        self.version = version
        super().__init__(f"version {version}, this timewheel reads version {readable}; upgrade it", found)


class TopologyError(TimewheelError):
    """A topic, subscription or policy on the broker is not as the plan needs it."""

    def __init__(self, topic: str, problem: str, remedy: str) -> None:
        self.topic = topic
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{topic}: {problem}; {remedy}")


class ClientMisuse(TimewheelError, RuntimeError):
    """The SDK was used in a way that would lose or repeat messages (after close, after a fork, ...)."""


class UnsupportedAcknowledgement(TimewheelError, TypeError):
    """An acknowledgement that the subscription type forbids, such as a cumulative one on Shared."""


class SendRefused(TimewheelError, ValueError):
    """The caller's arguments cannot be sent; nothing was sent."""


class BadArgument(SendRefused):
    """An argument of a send that no message can carry: a property that is no text, a negative event time, ..."""

    def __init__(self, name: str, value: object, reason: str) -> None:
        self.name = name
        self.value = value
        self.reason = reason
        super().__init__(f"bad {name} {_shown(value)}: {reason}")


class BadDueTime(SendRefused):
    """The due time is no point in time: naive, NaN, negative, out of range, or given twice."""

    def __init__(self, value: object, reason: str) -> None:
        self.value = value
        self.reason = reason
        super().__init__(f"bad due time {_shown(value)}: {reason}")


class PayloadTooLarge(SendRefused):
    """Payload, keys and properties together pass the broker's message size.

    Attributes:
        size_bytes: What they take.
        limit_bytes: What the producer was told that the broker takes; None: the broker refused it by a limit of its
            own.
    """

    def __init__(self, size_bytes: int, limit_bytes: int | None) -> None:
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        limit = "they pass the broker's maxMessageSize" if limit_bytes is None else f"the limit is {limit_bytes}"
        super().__init__(
            f"payload, keys and properties take {size_bytes} bytes, {limit} "
            "(with room for metadata): store the payload elsewhere and send a reference"
        )


class ReservedProperty(SendRefused):
    """A user property under the prefix that timewheel keeps for its envelope."""

    def __init__(self, name: str, prefix: str) -> None:
        self.name = name
        self.prefix = prefix
        super().__init__(f"property {name!r}: names that begin with {prefix!r} belong to timewheel; rename it")


class BadTimerId(SendRefused):
    """A timer id that is empty, too long, or no text."""

    def __init__(self, value: object, reason: str) -> None:
        self.value = value
        self.reason = reason
        super().__init__(f"bad timer id {_shown(value)}: {reason}")


class SendFailed(TimewheelError, ConnectionError):
    """The broker did not take the message; it was not stored, and may be sent again."""

    def __init__(self, timer_id: str, topic: str, cause: str) -> None:
        self.timer_id = timer_id
        self.topic = topic
        self.cause = cause
        super().__init__(f"timer {timer_id!r} was not stored in {topic}: {cause}; it may be sent again")


class SendOutcomeUnknown(TimewheelError, TimeoutError):
    """The broker may or may not have stored the message.

    Sending it again **under the same timer id** is safe: consumers drop the second copy.
    """

    def __init__(self, timer_id: str, topic: str, cause: str) -> None:
        self.timer_id = timer_id
        self.topic = topic
        self.cause = cause
        super().__init__(
            f"timer {timer_id!r} may or may not be stored in {topic}: {cause}; "
            f"send it again with timer_id={timer_id!r}, never with a new one"
        )


class CancelRefused(TimewheelError, ValueError):
    """What was to be cancelled cannot be: no id, a timer of another topic, no ``[cancel]`` in the plan.

    Nothing was done.
    """

    def __init__(self, what: object, reason: str) -> None:
        self.what = what
        self.reason = reason
        super().__init__(f"cannot cancel {_shown(what)}: {reason}")


class CancelFailed(TimewheelError, ConnectionError):
    """The cut-off was not stored, so the timer will come; it may be tried again."""

    def __init__(self, name: str, topic: str, cause: str) -> None:
        self.name = name
        self.topic = topic
        self.cause = cause
        super().__init__(f"{name!r} was not cancelled, {topic} did not take it: {cause}; it may be tried again")


class CancelOutcomeUnknown(TimewheelError, TimeoutError):
    """The broker may or may not have stored the cut-off; trying again is always safe."""

    def __init__(self, name: str, topic: str, cause: str) -> None:
        self.name = name
        self.topic = topic
        self.cause = cause
        super().__init__(
            f"{name!r} may or may not be cancelled, {topic} did not answer: {cause}; try it again, which is always safe"
        )


class CutOffUnreadable(TimewheelError, ValueError):
    """A message in the log of cut-offs that timewheel did not write, or with such a line in it.

    Attributes:
        data: The message.
        reason: What is wrong with it.
        readable: The `CutOff` of each of its other lines.
    """

    def __init__(self, data: bytes, reason: str, readable: Sequence[Any] = ()) -> None:
        self.data = data
        self.reason = reason
        self.readable = readable
        super().__init__(f"no cut-off: {reason} (found {_shown(data)})")


class AdminError(TimewheelError):
    """A call to the broker's admin API failed.

    Attributes:
        status: HTTP status, or None when no answer came.
        endpoint: Method and path.
        reason: The broker's own words.
    """

    def __init__(self, status: int | None, endpoint: str, reason: str) -> None:
        self.status = status
        self.endpoint = endpoint
        self.reason = reason
        super().__init__(f"admin call {endpoint} failed ({status or 'no answer'}): {reason}")


class AdminDenied(AdminError, PermissionError):
    """The admin API refused the caller's role."""


class AdminMissing(AdminError, LookupError):
    """The tenant, namespace, topic, subscription or entry does not exist."""


class AdminUnreachable(AdminError, ConnectionError):
    """No broker answered the admin call.

    Attributes:
        sent: Whether the call may have reached a broker; if so, its outcome is unknown.
    """

    def __init__(self, endpoint: str, reason: str, *, sent: bool) -> None:
        self.sent = sent
        super().__init__(None, endpoint, reason)


class BadName(TimewheelError, ValueError):
    """A name that no topic, namespace, tenant or subscription can have."""

    def __init__(self, kind: str, name: object, reason: str) -> None:
        self.kind = kind
        self.name = name
        self.reason = reason
        super().__init__(f"{name!r} is no {kind} name: {reason}")


class BadConnection(TimewheelError, ValueError):
    """What is said of a connection cannot be so. The message never repeats a value, which may be a secret.

    Attributes:
        field: What it is about.
        problem: What is wrong.
    """

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        self.problem = problem
        super().__init__(f"connection: {field} {problem}")


class TokenNotGiven(TimewheelError, ConnectionError):
    """An authorization server gave no token.

    Attributes:
        issuer_url: Of the server.
        reason: Its own words, or why there are none.
    """

    def __init__(self, issuer_url: str, reason: str) -> None:
        self.issuer_url = issuer_url
        self.reason = reason
        super().__init__(f"no token from {issuer_url}: {reason}")

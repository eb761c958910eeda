"""Errors that timewheel raises on purpose.

All errors have a common root, and form a family for each party at fault. Most also derive from the fitting builtin
error, so that ``except ValueError`` and ``except TimeoutError`` work as expected. Facts are attributes; the message
states the fact, the limit and the remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from string import Formatter
from typing import Any, ClassVar, TypeVar, dataclass_transform

E = TypeVar("E", bound="TimewheelError")

_SHOWN_CHARS = 200  # characters of a caller's value in a message; the attribute holds the whole value
_SHOWN_NAMES = 12  # most names in a message; the attribute has all of them


def _shown(value: object) -> str:
    """Shorten a value for a message, without raising an error (``repr`` of a huge integer raises)."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a foreign __repr__ may raise anything, and must not hide our error
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def some(names: Sequence[str]) -> str:
    """List names for a message, as many as it has room for."""
    shown = ", ".join(repr(name) for name in names[:_SHOWN_NAMES])
    rest = len(names) - _SHOWN_NAMES
    return (shown or "none at all") + (f" and {rest} more" if rest > 0 else "")


class TimewheelError(Exception):
    """Root of all errors raised by timewheel.

    They can be pickled, with all attributes: they cross process borders (``multiprocessing``, Spark, a task queue).
    """

    _template: ClassVar[str] = ""

    def __post_init__(self) -> None:
        super().__init__(_MESSAGE.vformat(self._template, (), vars(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        # The default calls the class with the finished message, which no constructor below accepts.
        return _restore, (type(self), self.args, dict(self.__dict__))


def _restore(kind: type[TimewheelError], args: tuple[Any, ...], facts: Mapping[str, Any]) -> TimewheelError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(facts)
    return error


class _Message(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        shorten = _FORMATS.get(format_spec)
        return str(super().format_field(value, format_spec)) if shorten is None else shorten(value)


_FORMATS: Mapping[str, Callable[[Any], str]] = {"shown": _shown, "some": some}
_MESSAGE = _Message()


@dataclass_transform(eq_default=False)
def says(template: str) -> Callable[[type[E]], type[E]]:
    """Make an error's constructor and message of fields; ``{field:shown}`` is shortened, ``{field:some}`` are names."""

    def decorate(kind: type[E]) -> type[E]:
        kind._template = template  # noqa: SLF001 - of the root above
        return dataclass(eq=False, repr=False)(kind)

    return decorate


@says("not a duration: {text:shown}: {reason}; write a whole number and a unit, like 90s, 12h or 5d")
class DurationError(TimewheelError, ValueError):
    """A duration text such as ``"90s"`` could not be read."""

    text: object
    reason: str


class PlanError(TimewheelError, ValueError):
    """A plan breaks a rule.

    Attributes:
        field: The key in the plan file, dotted (``tiered.window``).
        value: The given value.
        limit: The broken rule, as a sentence without a full stop.
        is_missing: Whether the key is not in the file; then there is no value.
        file: The plan's file; empty: the plan comes from no file.
    """

    def __init__(self, field: str, value: object, limit: str, *, is_missing: bool = False) -> None:
        self.field = field
        self.value = value
        self.limit = limit
        self.is_missing = is_missing
        self.file = ""
        super().__init__(self._message())

    def in_file(self, file: object) -> PlanError:
        """Name the plan's file in the message, and return this error."""
        self.file = str(file)
        self.args = (self._message(),)
        return self

    def _message(self) -> str:
        plan = f"plan {self.file}" if self.file else "plan"
        found = " is missing" if self.is_missing else f" = {_shown(self.value)}"
        return f"{plan}: {self.field}{found}: {self.limit}"


@says("broker profile: {field} = {value:shown}: {limit}")
class ProfileError(TimewheelError, ValueError):
    """A broker profile has an impossible number or an unknown field."""

    field: str
    """The field, or the broker's own setting."""
    value: object
    """The given value."""
    limit: str
    """The allowed values, as a sentence without a full stop."""


class EnvelopeError(TimewheelError, ValueError):
    """A message's timewheel properties are missing, garbled or of an unknown version."""

    def __init__(self, reason: str, found: object = None) -> None:
        self.reason = reason
        self.found = found
        super().__init__(f"envelope: {reason}" + ("" if found is None else f" (found {_shown(found)})"))


class EnvelopeTooNew(EnvelopeError):
    """A later version of timewheel wrote the message.

    Its properties may have another meaning.

    Attributes:
        version: Version of the envelope.
    """

    def __init__(self, version: int, readable: int, found: object = None) -> None:
        self.version = version
        super().__init__(f"version {version}, this timewheel reads version {readable}; upgrade it", found)


@says("{topic}: {problem}; {remedy}")
class TopologyError(TimewheelError):
    """A topic, subscription or policy on the broker differs from the plan."""

    topic: str
    problem: str
    remedy: str


class ClientMisuse(TimewheelError, RuntimeError):
    """A use of the SDK that would lose or repeat messages, as after close or after a fork."""


class UnsupportedAcknowledgement(TimewheelError, TypeError):
    """The subscription type forbids the acknowledgement, as a cumulative acknowledgement on Shared."""


class SendRefused(TimewheelError, ValueError):
    """The caller's arguments cannot be sent; nothing was sent."""


@says("bad {name} {value:shown}: {reason}")
class BadArgument(SendRefused):
    """An argument is of the wrong kind, or no message can carry it.

    Examples: a path in place of a plan, a property that is not text, a negative event time.
    """

    name: str
    value: object
    reason: str


@says("bad due time {value:shown}: {reason}")
class BadDueTime(SendRefused):
    """The due time is not a point in time: naive, NaN, negative, out of range, or given twice."""

    value: object
    reason: str


class PayloadTooLarge(SendRefused):
    """Payload, keys and properties together exceed the broker's message size.

    Attributes:
        size_bytes: Size of payload, keys and properties.
        limit_bytes: Limit that the broker announced to the producer; None: the broker refused the message by a limit of
            its own.
    """

    def __init__(self, size_bytes: int, limit_bytes: int | None) -> None:
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        limit = "they pass the broker's maxMessageSize" if limit_bytes is None else f"the limit is {limit_bytes}"
        super().__init__(
            f"payload, keys and properties take {size_bytes} bytes, {limit} "
            "(with room for metadata): store the payload elsewhere and send a reference"
        )


@says("property {name!r}: names that begin with {prefix!r} belong to timewheel; rename it")
class ReservedProperty(SendRefused):
    """A user property begins with timewheel's reserved prefix."""

    name: str
    prefix: str


@says("bad timer id {value:shown}: {reason}")
class BadTimerId(SendRefused):
    """A timer id is empty, too long, or not text."""

    value: object
    reason: str


@says("timer {timer_id!r} was not stored in {topic}: {cause}; it may be sent again")
class SendFailed(TimewheelError, ConnectionError):
    """The broker did not take the message. It was not stored, and may be sent again."""

    timer_id: str
    topic: str
    cause: str


@says(
    "timer {timer_id!r} may or may not be stored in {topic}: {cause}; send it again with timer_id={timer_id!r}, "
    "never with a new one"
)
class SendOutcomeUnknown(TimewheelError, TimeoutError):
    """The broker may or may not have stored the message.

    Sending it again **under the same timer id** is safe: consumers drop the second copy.
    """

    timer_id: str
    topic: str
    cause: str


@says("cannot cancel {what:shown}: {reason}")
class CancelRefused(TimewheelError, ValueError):
    """The timer or group cannot be cancelled: no id, another topic's timer, no ``[cancel]`` in the plan.

    Nothing was done.
    """

    what: object
    reason: str


@says("{name!r} was not cancelled, {topic} did not accept the cancellation: {cause}; it may be tried again")
class CancelFailed(TimewheelError, ConnectionError):
    """The cancellation was not stored, so the timer will be delivered. The cancel may be tried again."""

    name: str
    topic: str
    cause: str


@says("{name!r} may or may not be cancelled, {topic} did not answer: {cause}; try it again, which is always safe")
class CancelOutcomeUnknown(TimewheelError, TimeoutError):
    """The broker may or may not have stored the cancellation. Trying again is always safe."""

    name: str
    topic: str
    cause: str


@says("no cancellation: {reason} (found {data:shown})")
class CancellationUnreadable(TimewheelError, ValueError):
    """A message in the log of cancellations is foreign or has an unreadable line."""

    data: bytes
    """The message."""
    reason: str
    """Reason why it is unreadable."""
    readable: Sequence[Any] = ()
    """The `Cancellation` of each readable line."""


class AdminError(TimewheelError):
    """A call to the broker's admin API failed.

    Attributes:
        status: HTTP status; None: no answer came.
        endpoint: Method and path.
        reason: The broker's message.
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
        sent: True if the call may have reached a broker, so that its outcome is unknown.
        wrong_url: True if the port of the URL speaks another protocol, so that a repeated call would fail too.
    """

    def __init__(self, endpoint: str, reason: str, *, sent: bool, wrong_url: bool = False) -> None:
        self.sent = sent
        self.wrong_url = wrong_url
        super().__init__(None, endpoint, reason)


OWNER_DIED = (
    "if that broker has died, try again when its session has timed out (30 s by default) and another has its topics"
)
"""Remedy if the broker that another one has named does not answer."""


class OwnerUnreachable(AdminError, ConnectionError):
    """The owner of the topic, by the asked broker, does not answer: it has died or hangs, and the cluster has not given
    its topics to another one yet.

    Attributes:
        sent: True if the call may have reached the owner, so that its outcome is unknown.
    """

    def __init__(self, endpoint: str, reason: str, *, sent: bool) -> None:
        self.sent = sent
        super().__init__(None, endpoint, reason)


@says("{name!r} is no {kind} name: {reason}")
class BadName(TimewheelError, ValueError):
    """A name is invalid for a topic, namespace, tenant or subscription."""

    kind: str
    name: object
    reason: str


@says("connection: {field} {problem}")
class BadConnection(TimewheelError, ValueError):
    """Connection settings are invalid. The message never repeats a value, which may be a secret."""

    field: str
    """Name of the setting."""
    problem: str
    """The problem."""


@says("no token from {issuer_url}: {reason}")
class TokenNotGiven(TimewheelError, ConnectionError):
    """An authorization server issued no token."""

    issuer_url: str
    """URL of the server."""
    reason: str
    """The server's message, or the reason why there is no message."""


def did_you_mean(given: object, known: Iterable[str], place: str = "") -> str:
    """Return a clause with the nearest known word, for the end of an error's limit; empty if no word is near."""
    if not isinstance(given, str):
        return ""
    by_lower = {word.lower(): word for word in known}
    near = get_close_matches(given.lower(), by_lower, 1)
    return f"; did you mean {by_lower[near[0]]}{place}?" if near else ""

"""A message as received, a timer in flight in a consumer, and a message as a handler sees it.

docs/state-machines.txt has the table of stages and events with their effects, drawn from the engine.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from enum import Enum, unique
from typing import Any, NamedTuple, Protocol

from timewheel.client.positions import Position
from timewheel.core.clock import Clock
from timewheel.core.durations import format_duration, spelled
from timewheel.core.envelope import FIRST_LIFE, FOR_PROPERTY, NUDGE_PROPERTY, PREFIX, Envelope
from timewheel.core.errors import EnvelopeError, EnvelopeTooNew
from timewheel.core.ids import native_id

MAX_REASON_CHARS = 1_000  # longest reason and error; properties are metadata, and a broker limits their size


class ToRetry(NamedTuple):
    """To be handled again by the same subscription."""

    due_ms: int


class Parked(NamedTuple):
    """To wait for an operator."""

    reason: str
    error: str = ""


Redirect = ToRetry | Parked


def too_late_to_know(late_ms: int, keep_ms: int) -> Parked:
    """Park a timer that came too late to know whether it was cancelled."""
    return Parked(
        f"it came {spelled(late_ms)} after its due time, and cancellations are kept for {format_duration(keep_ms)}: "
        "it may have been cancelled"
    )


@unique
class Stage(Enum):
    """The stage of a timer that is in flight."""

    HELD = "held"
    TOO_EARLY = "too early"
    REPUBLISHING = "republishing"
    CLEARING = "clearing"
    HANDED = "handed"
    BEGUN = "begun"


_AT_HANDLER = frozenset({Stage.HANDED, Stage.BEGUN})


@unique
class Mark(Enum):
    """Marks messages that differ from the timers that an SDK sends."""

    TOO_NEW = "too_new"  # written by a later version of timewheel
    NATIVE = "native"
    """Sent by a plain client, beside a shadow: its envelope is made up here. Its id is its position, as in the shadow's
    copy; its due time, which clients cannot see, is the time of its arrival.
    """
    NUDGE = "nudge"  # sent by a shadow for the broker's sake: not for a handler


class Arrival(NamedTuple):
    """A message as received."""

    message: Any  # the client's message
    origin: Any  # the `Partition` it was received from, which acknowledges it; the engine only compares it
    position: Position  # position of the message in its topic
    envelope: Envelope | None  # the envelope; None for a message without a readable envelope
    # the reason why its envelope is unreadable; None if the envelope is good or missing
    envelope_error: str | None = None
    mark: Mark | None = None  # how the message differs from a timer that an SDK sends; None if no difference is known
    session: int | None = 0  # the session of its origin in which it came; None if that one had ended

    @property
    def place_key(self) -> str:
        """The key of a message whose envelope cannot be read; never a timer's key, since those begin with a digit."""
        return f"@{self.position}"

    @property
    def redeliveries(self) -> int:
        """Number of redeliveries, as the broker counts them, in memory."""
        return int(self.message.redelivery_count())


@dataclass(slots=True, eq=False)
class InFlight:
    """A timer in flight; a new object each time it is handed out, so that late outcomes differ from current ones."""

    key: str  # (timer id, generation) as text; the position of a message without an envelope
    # the newest copy received from its position. Acknowledging the newest copy matters in a batch, where each delivery
    # counts its own acknowledgements.
    arrival: Arrival
    received_ms: int  # time of receipt, on the monotonic clock
    stage: Stage = Stage.HELD
    extras: dict[Position, Arrival] = field(default_factory=dict)  # copies of the timer at other positions
    redirect: Redirect | None = None  # how the timer is published; None to publish it under its due time, unchanged
    postponed_ms: int = 0  # time at which its handler put it off, UTC milliseconds
    not_before_ms: int = 0  # end of that delay
    failures: int = 0  # failed publishes of the timer in a row
    handed_ms: int = 0  # time of the decision to hand it out, UTC milliseconds; 0 before the timer could be judged

    def postponed_for_ms(self, now_ms: int) -> int:
        """Return how long its handler still puts it off; a clock that was set back ends the delay."""
        return max(self.not_before_ms - now_ms, 0) if now_ms >= self.postponed_ms else 0

    def timed_out(self, arrival: Arrival, monotonic_ms: int, ack_timeout_ms: int | None) -> bool:
        """True if the client redelivers it because its handler exceeded ``ack_timeout_ms`` (None: no timeout)."""
        return (
            ack_timeout_ms is not None
            and self.stage in _AT_HANDLER
            and arrival.position == self.arrival.position
            and monotonic_ms - self.received_ms >= ack_timeout_ms
        )

    @property
    def arrivals(self) -> tuple[Arrival, ...]:
        """All copies of it that are in flight."""
        return (self.arrival, *self.extras.values())

    @property
    def due_ms(self) -> int:
        """The due time, UTC milliseconds; 0 without an envelope."""
        return self.arrival.envelope.due_ms if self.arrival.envelope else 0


class Reading(Protocol):
    """Reads a message that came from a `Partition`, in a session of it (None: that one had ended)."""

    def __call__(self, message: Any, origin: Any, session: int | None = 0, /) -> Arrival: ...


class DelayedMessage:
    """A timer that is due. Pulsar's accessors are methods, as on `pulsar.Message`; timewheel's are attributes.

    Attributes:
        hops: Number of times that it was published again on its way; 0 without an envelope.
        timer_id: The sender's id or a generated id. For a plain producer's message its position, where the plan has an
            intake: the copy that a shadow may have made has the same id. Else None without an envelope.
        generation: 0, and higher after a reschedule; None without a timer id.
        envelope_error: The reason why the envelope could not be read; None if the envelope is good or missing.
        attempt: Number of earlier times that a handler of this subscription had it and wanted it tried again; 0 at
            first.
        handle: Opaque: identifies the timer to its consumer when it is acknowledged.
    """

    __slots__ = (
        "_due_ms",
        "_handed_ms",
        "_message",
        "_notes",
        "attempt",
        "envelope_error",
        "generation",
        "handle",
        "hops",
        "timer_id",
    )

    def __init__(self, timer: InFlight, handed_ms: int) -> None:
        arrival = timer.arrival
        self.handle = timer
        self._message = arrival.message
        self._notes: dict[str, Any] | None = None
        envelope = arrival.envelope
        self.envelope_error = arrival.envelope_error
        self._due_ms: int | None = None
        self._handed_ms = handed_ms
        self.timer_id: str | None = None
        self.generation: int | None = None
        self.hops = 0
        self.attempt = 0
        if envelope is not None:
            if arrival.mark is not Mark.NATIVE:
                self._due_ms = envelope.due_ms
            self.timer_id = envelope.timer_id
            self.generation = envelope.generation
            self.hops = envelope.hops
            self.attempt = envelope.life.attempt

    @property
    def due_at(self) -> dt.datetime | None:
        """Due time (aware, UTC); None for a message without a readable envelope, since clients cannot see the due time
        that a plain producer set.
        """
        return None if self._due_ms is None else _EPOCH + dt.timedelta(milliseconds=self._due_ms)

    @property
    def lateness(self) -> dt.timedelta | None:
        """Time from the due time until it was handed out; None without a due time, never negative."""
        return None if self._due_ms is None else dt.timedelta(milliseconds=max(self._handed_ms - self._due_ms, 0))

    @property
    def notes(self) -> dict[str, Any]:
        """A dict, empty at first, in which an `Middleware` keeps values until the handler is done."""
        if self._notes is None:
            self._notes = {}
        return self._notes

    def data(self) -> bytes:
        """Return the payload's bytes; empty for a null value."""
        payload: bytes = self._message.data()
        return payload

    def value(self) -> Any:
        """Return the payload, decoded by the consumer's schema."""
        return self._message.value()

    def has_null_value(self) -> bool:
        """True if the payload is null, which is not the same as empty."""
        return bool(self._message.has_null_value())

    def properties(self) -> dict[str, str]:
        """Return the sender's properties, without timewheel's own."""
        found: dict[str, str] = self._message.properties()
        return {name: value for name, value in found.items() if not name.startswith(PREFIX)}

    def partition_key(self) -> str:
        """Return the partition key; empty without a key, as in pulsar-client."""
        return str(self._message.partition_key())

    def ordering_key(self) -> str:
        """Return the ordering key; empty without a key."""
        return str(self._message.ordering_key())

    def event_timestamp(self) -> int:
        """Return the sender's event time, UTC milliseconds; 0 if it is not set."""
        return int(self._message.event_timestamp())

    def publish_timestamp(self) -> int:
        """Return the publish time in the topic that it was read from: of its last hop, not its first send; UTC ms."""
        return int(self._message.publish_timestamp())

    def message_id(self) -> Any:
        """Return its position in the topic that it was read from; changes with every hop, unlike `timer_id`."""
        return self._message.message_id()

    def topic_name(self) -> str:
        """Return the partition that it was read from."""
        return str(self._message.topic_name())

    def redelivery_count(self) -> int:
        """Return the broker's count of redeliveries, kept in memory: a reload forgets it."""
        return int(self._message.redelivery_count())

    def schema_version(self) -> str:
        """Return the version of the schema that it was written with."""
        version: str = self._message.schema_version()
        return version

    def __repr__(self) -> str:
        return f"<DelayedMessage {self.timer_id!r} due {self.due_at} from {self.topic_name()}>"


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def key_of(message: Any) -> str:
    """Return the key whose timers `run` keeps on one worker: ordering key, else partition key, as in Key_Shared.

    Empty without a key.
    """
    try:
        return str(message.ordering_key() or message.partition_key())
    except UnicodeDecodeError:
        return ""


def reading_of(mine: str = "") -> Reading:
    """Return a reader of messages' envelopes."""

    def read(message: Any, origin: Any, session: int | None = 0) -> Arrival:
        envelope: Envelope | None = None
        error: str | None = None
        mark: Mark | None = None
        try:
            properties = message.properties()
            envelope = Envelope.read(properties)
            if envelope is None:
                mark = Mark.NUDGE if NUDGE_PROPERTY in properties else None
            elif (life := envelope.life) is not FIRST_LIFE and life.only_for and life.only_for != mine:
                reason = f"{FOR_PROPERTY} names another subscription, or one without retries"
                envelope, error = None, str(EnvelopeError(reason, life.only_for))
        except EnvelopeTooNew as problem:
            error, mark = str(problem), Mark.TOO_NEW
        except (EnvelopeError, UnicodeDecodeError) as problem:
            # Clients of other languages can write properties that are no text; no message may stop the receiving
            # thread.
            error = str(problem)
        return Arrival(message, origin, Position.of(message.message_id()), envelope, error, mark, session)

    return read


arrival_of = reading_of()  # the reader where no subscription has a retry topic


def beside_shadow(clock: Clock, mine: str = "") -> Reading:
    """Return a reader for a due topic that plain producers write to and from which a shadow moves timers.

    A plain message and its copy are one timer. A shadow makes no copies of messages in a batch.
    """
    read_any = reading_of(mine)

    def read(message: Any, origin: Any, session: int | None = 0) -> Arrival:
        arrival = read_any(message, origin, session)
        position = arrival.position
        is_plain = arrival.envelope is None and arrival.envelope_error is None and arrival.mark is None
        if not is_plain:
            return arrival
        now_ms = clock.now_ms()
        envelope = Envelope(native_id(message.topic_name(), position, position.batch_index), now_ms, now_ms)
        return arrival._replace(envelope=envelope, mark=Mark.NATIVE)

    return read

"""A message as a handler sees it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

from timewheel.consumers.in_hand import Arrival, InHand, Mark
from timewheel.core.clock import Clock
from timewheel.core.envelope import FIRST_LIFE, FOR_PROPERTY, PREFIX, STIR_PROPERTY, Envelope
from timewheel.core.errors import EnvelopeError, EnvelopeTooNew
from timewheel.core.ids import native_id
from timewheel.wire.positions import Position

__all__ = ["DelayedMessage", "Reading", "arrival_of", "beside_shadow", "key_of", "reading_of"]

Reading = Callable[[Any, Any], Arrival]
"""Reads a received message; the second argument is whom to acknowledge it to."""


class DelayedMessage:
    """A timer that is due. Pulsar's accessors are methods, as on `pulsar.Message`; timewheel's are attributes.

    Attributes:
        due_at: When it was due (aware, UTC); None for a message that carries no readable envelope, for clients are not
            shown when a plain producer wanted it.
        lateness: How much after that it was handed out; None likewise, never negative.
        hops: How often it was published again on its way; 0 without an envelope.
        timer_id: The sender's or a generated one. Of a plain producer's message its place, where the plan has an
            intake: the copy that a shadow may have made of it has the same id. Else None without an envelope.
        generation: 0, and higher after a reschedule; None without a timer id.
        envelope_error: Why the envelope could not be read; None if there is none or a good one.
        attempt: How often a handler of this subscription had it before and wanted it tried again; 0 at first.
        handle: Opaque: by what its consumer knows it when it is acknowledged.
    """

    __slots__ = (
        "_message",
        "_notes",
        "attempt",
        "due_at",
        "envelope_error",
        "generation",
        "handle",
        "hops",
        "lateness",
        "timer_id",
    )

    def __init__(self, timer: InHand, handed_ms: int) -> None:
        arrival = timer.arrival
        self.handle = timer
        self._message = arrival.message
        self._notes: dict[str, Any] | None = None
        envelope = arrival.envelope
        self.envelope_error = arrival.envelope_error
        self.due_at: dt.datetime | None = None
        self.lateness: dt.timedelta | None = None
        self.timer_id: str | None = None
        self.generation: int | None = None
        self.hops = 0
        self.attempt = 0
        if envelope is not None:
            if arrival.mark is not Mark.NATIVE:
                self.due_at = _EPOCH + dt.timedelta(milliseconds=envelope.due_ms)
                self.lateness = dt.timedelta(milliseconds=max(handed_ms - envelope.due_ms, 0))
            self.timer_id = envelope.timer_id
            self.generation = envelope.generation
            self.hops = envelope.hops
            self.attempt = envelope.life.attempt

    @property
    def notes(self) -> dict[str, Any]:
        """Empty at first: for what stands around a handler and wants to keep something until the handler is done."""
        if self._notes is None:
            self._notes = {}
        return self._notes

    def data(self) -> bytes:
        """The payload's bytes; empty for a null value."""
        payload: bytes = self._message.data()
        return payload

    def value(self) -> Any:
        """The payload, decoded by the consumer's schema."""
        return self._message.value()

    def has_null_value(self) -> bool:
        """Whether the payload is null, which is not the same as empty."""
        return bool(self._message.has_null_value())

    def properties(self) -> dict[str, str]:
        """The sender's properties; timewheel's own are left out."""
        found: dict[str, str] = self._message.properties()
        return {name: value for name, value in found.items() if not name.startswith(PREFIX)}

    def partition_key(self) -> str:
        """The key; empty without one, as in pulsar-client."""
        return str(self._message.partition_key())

    def ordering_key(self) -> str:
        """The ordering key; empty without one."""
        return str(self._message.ordering_key())

    def event_timestamp(self) -> int:
        """The sender's event time, UTC milliseconds; 0 without one."""
        return int(self._message.event_timestamp())

    def publish_timestamp(self) -> int:
        """When it was published into the topic that it was read from: its last hop, not its first send; UTC ms."""
        return int(self._message.publish_timestamp())

    def message_id(self) -> Any:
        """Its position in the topic that it was read from; changes with every hop, `timer_id` does not."""
        return self._message.message_id()

    def topic_name(self) -> str:
        """The partition that it was read from."""
        return str(self._message.topic_name())

    def redelivery_count(self) -> int:
        """As the broker counts it, in memory: a reload forgets it."""
        return int(self._message.redelivery_count())

    def schema_version(self) -> str:
        """The version of the schema that it was written with."""
        version: str = self._message.schema_version()
        return version

    def __repr__(self) -> str:
        return f"<DelayedMessage {self.timer_id!r} due {self.due_at} from {self.topic_name()}>"


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def key_of(message: Any) -> str:
    """What `run` keeps on one worker: the ordering key, else the partition key, as Key_Shared does it; else empty."""
    try:
        return str(message.ordering_key() or message.partition_key())
    except UnicodeDecodeError:
        return ""


def reading_of(mine: str = "") -> Reading:
    """Reads a message's envelope.

    Args:
        mine: The subscription, where that has a topic for what it tries again; a timer for one subscription alone comes
            by that topic, and nowhere else.
    """

    def read(message: Any, origin: Any) -> Arrival:
        envelope: Envelope | None = None
        error: str | None = None
        mark: Mark | None = None
        try:
            properties = message.properties()
            envelope = Envelope.read(properties)
            if envelope is None:
                mark = Mark.STIR if STIR_PROPERTY in properties else None
            elif (life := envelope.life) is not FIRST_LIFE and life.only_for and life.only_for != mine:
                reason = f"{FOR_PROPERTY} names another subscription, or one without retries"
                envelope, error = None, str(EnvelopeError(reason, life.only_for))
        except EnvelopeTooNew as problem:
            error, mark = str(problem), Mark.TOO_NEW
        except (EnvelopeError, UnicodeDecodeError) as problem:
            # Clients of other languages can write properties that are no text; no message may stop the receiving
            # thread.
            error = str(problem)
        return Arrival(message, origin, Position.of(message.message_id()), envelope, error, mark)

    return read


arrival_of = reading_of()
"""Where no subscription has a topic for what it tries again."""


def beside_shadow(clock: Clock, mine: str = "") -> Reading:
    """Reads messages of a due topic that plain producers write to and a shadow lifts from.

    A plain one and its copy are one timer. Of what came in a batch a shadow makes no copies.

    Args:
        clock: Of the consumer.
        mine: As of `reading_of`.
    """
    read_any = reading_of(mine)

    def read(message: Any, origin: Any) -> Arrival:
        arrival = read_any(message, origin)
        position = arrival.position
        is_plain = arrival.envelope is None and arrival.envelope_error is None and arrival.mark is None
        if not is_plain:
            return arrival
        now_ms = clock.now_ms()
        envelope = Envelope(native_id(message.topic_name(), position, position.batch_index), now_ms, now_ms)
        return arrival._replace(envelope=envelope, mark=Mark.NATIVE)

    return read

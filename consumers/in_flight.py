"""A message as received, and a timer in flight in a consumer.

docs/state-machines.txt has the table of stages and events with their effects, drawn from the engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, unique
from typing import Any, NamedTuple

from timewheel.client.positions import Position
from timewheel.consumers.redirect import Redirect
from timewheel.core.envelope import Envelope


@unique
class Stage(Enum):
    """The stage of a timer that is in flight."""

    HELD = "held"
    TOO_EARLY = "too early"
    REPUBLISHING = "republishing"
    CLEARING = "clearing"
    HANDED = "handed"


@unique
class Mark(Enum):
    """Marks messages that differ from the timers that an SDK sends."""

    TOO_NEW = "too_new"
    """Written by a later version of timewheel."""
    NATIVE = "native"
    """Sent by a plain client, beside a shadow: its envelope is made up here. Its id is its position, as in the shadow's
    copy; its due time, which clients cannot see, is the time of its arrival.
    """
    NUDGE = "nudge"
    """Sent by a shadow for the broker's sake: not for a handler."""


class Arrival(NamedTuple):
    """A message as received.

    Args:
        message: The client's message.
        origin: The open consumer that acknowledges it; the engine only passes it on.
        position: Position of the message in its topic.
        envelope: The envelope; None for a message without a readable envelope.
        envelope_error: The reason why its envelope is unreadable; None if the envelope is good or missing.
        mark: How the message differs from a timer that an SDK sends; None if no difference is known.
    """

    message: Any
    origin: Any
    position: Position
    envelope: Envelope | None
    envelope_error: str | None = None
    mark: Mark | None = None

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
    """A timer in flight; a new object for each time it is handed out, so that late outcomes differ from current ones.

    Args:
        key: (timer id, generation) as text; the position of a message without an envelope.
        arrival: The newest copy received from its position. Acknowledging the newest copy matters in a batch, where
            each delivery counts its own acknowledgements.
        received_ms: Time of receipt, on the monotonic clock.
        extras: Copies of the timer at other positions.
        redirect: How the timer is published; None to publish it under its due time, unchanged.
        postponed_ms: Time at which its handler put it off, UTC milliseconds.
        not_before_ms: End of that delay.
        failures: Failed publishes of the timer in a row.
        handed_ms: Time of the decision to hand it out, UTC milliseconds; 0 before the timer could be judged.
    """

    key: str
    arrival: Arrival
    received_ms: int
    stage: Stage = Stage.HELD
    extras: dict[Position, Arrival] = field(default_factory=dict)
    redirect: Redirect | None = None
    postponed_ms: int = 0
    not_before_ms: int = 0
    failures: int = 0
    handed_ms: int = 0

    def postponed_for_ms(self, now_ms: int) -> int:
        """Return how long its handler still puts it off; a clock that was set back ends the delay."""
        return max(self.not_before_ms - now_ms, 0) if now_ms >= self.postponed_ms else 0

    def timed_out(self, arrival: Arrival, monotonic_ms: int, ack_timeout_ms: int | None) -> bool:
        """True if the client redelivers it because its handler exceeded ``ack_timeout_ms`` (None: no timeout)."""
        return (
            ack_timeout_ms is not None
            and self.stage is Stage.HANDED
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

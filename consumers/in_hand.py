"""A message as it came, and a timer as one consumer has it in hand.

ARCHITECTURE.md has the table of what follows at which stage from which event, drawn from the engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, unique
from typing import Any, NamedTuple

from timewheel.consumers.onward import Onward
from timewheel.core.envelope import Envelope
from timewheel.wire.positions import Position

__all__ = ["Arrival", "InHand", "Mark", "Stage"]


@unique
class Stage(Enum):
    """Where a timer that is in hand stands."""

    HELD = "held"
    TOO_EARLY = "too early"
    REPUBLISHING = "republishing"
    CLEARING = "clearing"
    HANDED = "handed"


@unique
class Mark(Enum):
    """What sets a message apart from timers that an SDK has sent."""

    TOO_NEW = "too_new"
    """A later version of timewheel wrote it."""
    NATIVE = "native"
    """A plain client has sent it, beside a shadow: its envelope is made up here. Its id is its place, as the shadow's
    copy has it; its due time, which clients are not shown, is when it came."""
    STIR = "stir"
    """A shadow has put it there for the broker's sake: for nobody."""


class Arrival(NamedTuple):
    """One message as received.

    Args:
        message: The client's.
        origin: Whom to acknowledge it to; the engine only passes it on.
        position: Where it is stored.
        envelope: None for a message without a readable one.
        envelope_error: Why its envelope is unreadable; None if it has none or a good one.
        mark: None: it is a timer that an SDK has sent, or nothing that is known.
    """

    message: Any
    origin: Any
    position: Position
    envelope: Envelope | None
    envelope_error: str | None = None
    mark: Mark | None = None

    @property
    def place_key(self) -> str:
        """What it is known by if its envelope cannot be read; a digit begins every timer's key, so none meets it."""
        return f"@{self.position}"

    @property
    def redeliveries(self) -> int:
        """How often the broker has delivered it again; as it counts, in memory."""
        return int(self.message.redelivery_count())


@dataclass(slots=True, eq=False)
class InHand:
    """A timer in hand; one object per time that it is handed out, so that a late answer is told from a current one.

    Args:
        key: (timer id, generation) as text; for a message without an envelope its position.
        arrival: The newest copy received from its position. Acknowledging the newest matters in a batch, where each
            delivery counts its own acknowledgements.
        received_ms: When, on the monotonic clock.
        extras: Copies of it at other positions.
        onward: As what it is published; None: under its due time, as it came.
        postponed_ms: When its handler wanted it later, UTC milliseconds.
        not_before_ms: Until when it waits for that.
        failures: Publishes of it in a row that failed.
        handed_ms: When it was decided that a handler may have it, UTC milliseconds; 0: before it could be judged.
    """

    key: str
    arrival: Arrival
    received_ms: int
    stage: Stage = Stage.HELD
    extras: dict[Position, Arrival] = field(default_factory=dict)
    onward: Onward | None = None
    postponed_ms: int = 0
    not_before_ms: int = 0
    failures: int = 0
    handed_ms: int = 0

    def postponed_for_ms(self, now_ms: int) -> int:
        """How long its handler wants it to wait yet; a clock that was set back ends that."""
        return max(self.not_before_ms - now_ms, 0) if now_ms >= self.postponed_ms else 0

    def timed_out(self, arrival: Arrival, monotonic_ms: int, ack_timeout_ms: int | None) -> bool:
        """Whether the client delivers it again since its handler has not answered for so long; None: it never does."""
        return (
            ack_timeout_ms is not None
            and self.stage is Stage.HANDED
            and arrival.position == self.arrival.position
            and monotonic_ms - self.received_ms >= ack_timeout_ms
        )

    @property
    def arrivals(self) -> tuple[Arrival, ...]:
        """All copies of it that are in hand."""
        return (self.arrival, *self.extras.values())

    @property
    def due_ms(self) -> int:
        """UTC milliseconds; 0 without an envelope."""
        return self.arrival.envelope.due_ms if self.arrival.envelope else 0

"""Arrivals made up by a test."""

from __future__ import annotations

from typing import Any

from timewheel.client.positions import Position
from timewheel.consumers.engine import (
    Acknowledge,
    Command,
    Deliver,
    Drop,
    Engine,
    HandledWindow,
    Lost,
    NegativeAcknowledge,
    Release,
    Republish,
)
from timewheel.consumers.message import Arrival, InFlight
from timewheel.core.envelope import Envelope

NOW_MS = 1_000_000
BOUND_MS = 6_000


def engine(**options: Any) -> Engine:
    return Engine(**{"hold_bound_ms": BOUND_MS, "max_held": 10, "handled": HandledWindow(100), **options})


def arrival(
    entry: int,
    timer_id: str | None,
    due_ms: int = 0,
    *,
    generation: int = 0,
    copy: object = None,
    origin: object = None,
) -> Arrival:
    """A message at one position; without a timer id: a foreign one."""
    envelope = None if timer_id is None else Envelope(timer_id, due_ms, 0, generation=generation)
    return Arrival(copy, origin, Position(1, entry, -1), envelope)


def said(commands: list[Command]) -> list[tuple[str, int]]:
    """Commands as (kind, entry), to compare with a table."""
    names = {
        Deliver: "hand",
        Acknowledge: "ack",
        NegativeAcknowledge: "nack",
        Republish: "republish",
        Release: "let go",
        Drop: "drop",
        Lost: "lost",
    }
    return [(names[type(command)], _arrival(command).position.entry) for command in commands]


def handed(commands: list[Command]) -> InFlight:
    """The timer of the one command, which hands it out."""
    (command,) = commands
    assert isinstance(command, Deliver)
    return command.timer


def republished(commands: list[Command]) -> InFlight:
    """The timer of the one command, which publishes it again."""
    (command,) = commands
    assert isinstance(command, Republish)
    return command.timer


def _arrival(command: Command) -> Arrival:
    return command.timer.arrival if isinstance(command, Deliver | Republish | Release) else command.arrival

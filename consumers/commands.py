"""Commands of the consumer's engine; the receiver executes them."""

from __future__ import annotations

from typing import NamedTuple

from timewheel.consumers.in_hand import Arrival, InHand

__all__ = ["Acknowledge", "Command", "Drop", "Hand", "LetGo", "NegativeAcknowledge", "Republish", "let_go"]


class Hand(NamedTuple):
    """Give a timer to a handler."""

    timer: InHand


class Acknowledge(NamedTuple):
    """Acknowledge a message."""

    arrival: Arrival


class NegativeAcknowledge(NamedTuple):
    """Have a message redelivered."""

    arrival: Arrival


class Republish(NamedTuple):
    """Publish a timer again, under its due time or to be parked, and report the outcome; acknowledge only then."""

    timer: InHand


class LetGo(NamedTuple):
    """Release the claim on a timer that is not tried again or parked after all, at least not by its copy in flight."""

    timer: InHand


class Drop(NamedTuple):
    """Ignore a message."""

    arrival: Arrival


Command = Hand | Acknowledge | NegativeAcknowledge | Republish | LetGo | Drop


def let_go(timer: InHand | None) -> list[Command]:
    """Return the command for a timer that was to be tried again or parked, and ends otherwise."""
    return [] if timer is None or timer.onward is None else [LetGo(timer)]

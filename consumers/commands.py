"""What the consumer's engine wants done; the receiver does it."""

from __future__ import annotations

from typing import NamedTuple

from timewheel.consumers.in_hand import Arrival, InHand

__all__ = ["Acknowledge", "Command", "Drop", "Hand", "LetGo", "NegativeAcknowledge", "Republish", "let_go"]


class Hand(NamedTuple):
    """Give it to a handler."""

    timer: InHand


class Acknowledge(NamedTuple):
    """Acknowledge one message."""

    arrival: Arrival


class NegativeAcknowledge(NamedTuple):
    """Have one message delivered again."""

    arrival: Arrival


class Republish(NamedTuple):
    """Publish it again, under its due time or to be parked, and report the outcome; acknowledging comes after that."""

    timer: InHand


class LetGo(NamedTuple):
    """It was to be tried again or parked, and is not, at least not by what is in hand: whoever keeps it claimed for
    that lets it go.
    """

    timer: InHand


class Drop(NamedTuple):
    """Do nothing with one message."""

    arrival: Arrival


Command = Hand | Acknowledge | NegativeAcknowledge | Republish | LetGo | Drop


def let_go(timer: InHand | None) -> list[Command]:
    """What follows where a timer that was to be tried again or parked ends otherwise."""
    return [] if timer is None or timer.onward is None else [LetGo(timer)]

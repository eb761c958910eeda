"""Commands of the consumer's engine; the receiver executes them."""

from __future__ import annotations

from typing import NamedTuple

from timewheel.consumers.in_flight import Arrival, InFlight


class Deliver(NamedTuple):
    """Give a timer to a handler."""

    timer: InFlight


class Acknowledge(NamedTuple):
    """Acknowledge a message."""

    arrival: Arrival


class NegativeAcknowledge(NamedTuple):
    """Have a message redelivered."""

    arrival: Arrival


class Republish(NamedTuple):
    """Publish a timer again, under its due time or to be parked, and report the outcome; acknowledge only then."""

    timer: InFlight


class Release(NamedTuple):
    """Release the claim on a timer that is not tried again or parked after all, at least not by its copy in flight."""

    timer: InFlight


class Drop(NamedTuple):
    """Ignore a message."""

    arrival: Arrival


Command = Deliver | Acknowledge | NegativeAcknowledge | Republish | Release | Drop


def let_go(timer: InFlight | None) -> list[Command]:
    """Return the command for a timer that was to be tried again or parked, and ends otherwise."""
    return [] if timer is None or timer.redirect is None else [Release(timer)]

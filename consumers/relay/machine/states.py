"""What the relay of one partition is doing: the states of its machine."""

from __future__ import annotations

from enum import Enum, unique

__all__ = ["State"]


@unique
class State(Enum):
    """Of one subscription; its table is in ARCHITECTURE.md."""

    RECEIVING = "receiving"
    """Waits for the next message, briefly."""
    CLEARING = "clearing"
    """Nothing came: what is confirmed is acknowledged, names are given back, a slot is swept and left."""
    IDLE = "idle"
    """Nothing is to be done: waits for the next message for long."""
    HOLDING = "holding"
    """The head waits for its release."""
    SWEEPING = "sweeping"
    """The head waits, and a sweep is due: asks where the topic ends."""
    CROWDED = "crowded"
    """The head may go, but waits for confirmations: for room, or before it changes to the other lane."""
    WAITING_FOR_LEASE = "waiting_for_lease"
    """Another relay has the name of the producer that the head needs."""
    LOOKING = "looking"
    """Something may be missing before the head: looks, and names what the client hides."""
    DRAINING = "draining"
    """Told to stop: takes nothing new, and waits for what is under way."""
    STOPPED = "stopped"
    """At a hole that can be read: acknowledges what is before it, and ends."""
    LEFT = "left"
    """Over: the slot has nothing left, or all is drained."""

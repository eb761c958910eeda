"""The states of the machine of a partition's relay."""

from __future__ import annotations

from enum import Enum, unique


@unique
class State(Enum):
    """The state of a subscription; its table is in docs/state-machines.txt."""

    RECEIVING = "receiving"
    """Waits for the next message, briefly."""
    CLEARING = "clearing"
    """No message came: confirmed messages are acknowledged, names are given back, a slot is swept and left."""
    IDLE = "idle"
    """No work is left: waits long for the next message."""
    HOLDING = "holding"
    """The head waits for its release."""
    SWEEPING = "sweeping"
    """The head waits, and a sweep is due: asks for the topic's last position."""
    CROWDED = "crowded"
    """The head may go, but waits for confirmations: for room, or before it changes to the other lane."""
    WAITING_FOR_LEASE = "waiting_for_lease"
    """Another relay has the name of the producer that the head needs."""
    LOOKING = "looking"
    """A message may be missing before the head: looks, and names the messages that the client hides."""
    DRAINING = "draining"
    """Stopping: takes no new messages, and waits for sends under way."""
    STOPPED = "stopped"
    """At a readable hole: acknowledges the messages before it, and ends."""
    LEFT = "left"
    """Ended: the slot is empty, or all messages are drained."""

"""What goes into a relay's machine and what comes out: what a message says, and what the shell is told to do."""

from __future__ import annotations

from typing import NamedTuple

from timewheel.consumers.relay.machine.order import Spot
from timewheel.core.envelope import PREFIX, Envelope
from timewheel.core.errors import EnvelopeError
from timewheel.wire.positions import Position

__all__ = [
    "PROBE",
    "PROBE_PROPERTY",
    "RECEIVE",
    "AskAgain",
    "AwaitAll",
    "AwaitRoom",
    "Command",
    "DeadLetter",
    "Forward",
    "HoldUntil",
    "Look",
    "Probe",
    "Reading",
    "Receive",
    "Refile",
    "Stop",
    "Unreadable",
    "judged",
]


class Unreadable(NamedTuple):
    """A message whose content the client could not decrypt."""

    reason: str


class Probe(NamedTuple):
    """A message by which a relay learns that it was given all that waits: it put it at the end itself
    (broker-facts: empty-needs-proof).
    """


PROBE = Probe()
PROBE_PROPERTY = f"{PREFIX}probe"
"""Marks a probe; its value names the relay."""

Reading = Envelope | EnvelopeError | Unreadable | Probe | None
"""What a message's properties say; None: nothing of ours."""


class Receive(NamedTuple):
    """Hand in the next message."""


RECEIVE = Receive()
"""The only one that is needed: it is asked for once per message."""


class AskAgain(NamedTuple):
    """Ask the broker for all that is unacknowledged again, then hand in the next message (see `beginning`)."""


class HoldUntil(NamedTuple):
    """The head may not leave before ``at_ms`` (UTC milliseconds): ask again then."""

    at_ms: int


class AwaitAll(NamedTuple):
    """The head goes by another lane: ask again when all that is under way is confirmed (broker-facts: late-lane)."""


class AwaitRoom(NamedTuple):
    """As many as allowed are under way: ask again after some confirmations."""


class Forward(NamedTuple):
    """Publish the head to the source's own partition of ``topic``.

    Args:
        ordinal: What to confirm it with.
        topic: Destination, without a partition suffix.
        deliver_at_ms: What to ask the broker for; 0: at once.
        sequence_id: For the named producer; `NO_SEQUENCE_ID`: by an unnamed one.
        envelope: The next one.
    """

    ordinal: int
    topic: str
    deliver_at_ms: int
    sequence_id: int
    envelope: Envelope


class DeadLetter(NamedTuple):
    """Publish the head to the dead-letter topic, and say why."""

    ordinal: int
    reason: str


class Refile(NamedTuple):
    """Publish the head again to the tail of its own topic partition, as it is (broker-facts: slot-sweep)."""

    ordinal: int


class Look(NamedTuple):
    """A ledger has ended: see whether ``before`` stands right behind ``after``, and say so by `Machine.proven`."""

    after: Spot
    before: Position


class Stop(NamedTuple):
    """Never acknowledge past ``after``: what comes behind it was not handed out, or cannot be read
    (broker-facts: holes-in-positions).
    """

    reason: str
    after: Spot | None
    before: Position


Command = Receive | AskAgain | HoldUntil | AwaitAll | AwaitRoom | Forward | DeadLetter | Refile | Look | Stop


def judged(properties: dict[str, str]) -> Envelope | EnvelopeError | Probe | None:
    """A message's envelope, or what is wrong with it, as a value."""
    try:
        envelope = Envelope.read(properties)
    except EnvelopeError as error:
        return error
    return PROBE if envelope is None and PROBE_PROPERTY in properties else envelope

"""What goes into a relay's machine and what comes out: what a message says, and what the shell is told to do.

Each is one thing to do. `HoldUntil`, `AwaitAll` and `AwaitRoom` pass between the machine's own parts: a shell is told
to `Wait`. Those without fields are no tuples: empty tuples are all equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from timewheel.consumers.relay.machine.order import NO_SEQUENCE_ID, Spot
from timewheel.core.envelope import PROBE_PROPERTY, Envelope
from timewheel.core.errors import EnvelopeError
from timewheel.core.grouping import LARGEST_BATCH
from timewheel.wire.positions import Position

__all__ = [
    "AWAIT_MS",
    "FOREIGN",
    "IDLE_MS",
    "LEAVE",
    "LINGER_MS",
    "NEVER",
    "PASSED_OVER",
    "PROBE",
    "PROBED",
    "RECEIVE",
    "RECEIVE_IDLE",
    "SEND_GROUPS",
    "Acknowledge",
    "AskAgain",
    "AskLast",
    "AwaitAll",
    "AwaitRoom",
    "Command",
    "DeadLetter",
    "Decision",
    "Forward",
    "GiveBack",
    "HoldUntil",
    "Leave",
    "Look",
    "PassedOver",
    "Probe",
    "PutProbe",
    "Reading",
    "Receive",
    "Refile",
    "SendGroups",
    "Stop",
    "Unreadable",
    "Wait",
    "judged",
    "of_large_batch",
    "why_dead",
]


class Unreadable(NamedTuple):
    """A message that this relay can neither read nor carry."""

    reason: str


@dataclass(frozen=True, slots=True)
class Probe:
    """A message by which a relay learns that it was given all that waits: it put it at the end itself
    (broker-facts: empty-needs-proof).
    """


PROBE = Probe()


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A message of an entry that is set aside as a whole, but for its last, which stands for them all."""


PASSED_OVER = PassedOver()

Reading = Envelope | EnvelopeError | Unreadable | Probe | PassedOver | None
"""What a message's properties say; None: nothing of ours."""


LINGER_MS = 20
"""How long a receive waits while confirmations or an acknowledgement are outstanding."""
IDLE_MS = 1_000
"""How long a receive waits when nothing else is to be done; also how soon a stop is noticed then."""


class Receive(NamedTuple):
    """Wait so long for the next message, and hand it in; or say that nothing came."""

    wait_ms: int = LINGER_MS


RECEIVE = Receive()
"""What follows a hop unless it asks: a shell need not."""
RECEIVE_IDLE = Receive(IDLE_MS)


@dataclass(frozen=True, slots=True)
class AskAgain:
    """Ask the broker for all that is unacknowledged again (see `beginning`, `silence`)."""


class HoldUntil(NamedTuple):
    """The head may not leave before ``at_ms`` (UTC milliseconds): ask again then, or up to ``slack_ms`` later."""

    at_ms: int
    slack_ms: int


@dataclass(frozen=True, slots=True)
class AwaitAll:
    """The head goes by another lane: ask again when all that is under way is confirmed (broker-facts: late-lane)."""


@dataclass(frozen=True, slots=True)
class AwaitRoom:
    """As many as allowed are under way: ask again after some confirmations."""


class Forward(NamedTuple):
    """Publish the head to the source's own partition of ``topic``, or add it to the group that goes there.

    Args:
        ordinal: What to confirm it with.
        topic: Destination, without a partition suffix.
        deliver_at_ms: What to ask the broker for; 0: at once.
        sequence_id: For the named producer; `NO_SEQUENCE_ID`: by an unnamed one.
        envelope: The next one.
        in_group: It goes with others, as one entry (broker-facts: batched-hops).
        asks: `RECEIVE` does not follow by itself: ask what does.
        batches: The client may send it in a batch; else it may be delayed by the broker, or goes to consumers.
        leaves_plan: As of `timewheel.core.next_hop.Hop`: its named producer is another one.
    """

    ordinal: int
    topic: str
    deliver_at_ms: int
    sequence_id: int
    envelope: Envelope
    in_group: bool = False
    asks: bool = False
    batches: bool = False
    leaves_plan: bool = False

    @property
    def named(self) -> bool:
        """Whether it goes by the named producer."""
        return self.sequence_id != NO_SEQUENCE_ID


@dataclass(frozen=True, slots=True)
class SendGroups:
    """Hand all groups over to the client, whatever their size."""


SEND_GROUPS = SendGroups()


class DeadLetter(NamedTuple):
    """Publish the head to the dead-letter topic, and say why."""

    ordinal: int
    reason: str


class Refile(NamedTuple):
    """Publish the head again to the tail of its own topic partition (broker-facts: slot-sweep).

    It counts as a hop, so that one whose due time never comes ends as a dead letter.
    """

    ordinal: int
    envelope: Envelope


class Look(NamedTuple):
    """Between the two something was not handed out, or a ledger has ended: say which position can be read right behind
    ``after``, once a dead letter names what the client hides before that.
    """

    after: Spot
    before: Position


class Stop(NamedTuple):
    """Begin anew, and do not acknowledge past ``after``: what comes behind it was not handed out, and can be read
    (broker-facts: holes-in-positions).
    """

    reason: str
    after: Spot
    before: Position


AWAIT_MS = 2_000
"""Confirmations are waited for this long at a time; a send without an answer fails by its own time-out."""
NEVER = 1 << 60
"""More confirmations than can be under way."""


class Wait(NamedTuple):
    """Wait until so many outcomes of sends are in, or the time is over, or a stop; less is no harm.

    Args:
        timeout_ms: May be long: the shell shortens it.
        wake_at: How many outcomes end it; `NEVER`: none do.
    """

    timeout_ms: int
    wake_at: int


class Acknowledge(NamedTuple):
    """What is done with for good.

    Args:
        receipts: As handed in. Relay-held topics: one, cumulatively. Broker-held ones: each by itself.
    """

    receipts: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class AskLast:
    """Ask the broker for the topic's last position."""


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Close all producers, so that other relays can have their names (broker-facts: named-producers)."""


@dataclass(frozen=True, slots=True)
class PutProbe:
    """Publish a probe to the tail of the topic, and report it as the outcome of `PROBED`."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Over: close the consumer."""


LEAVE = Leave()

PROBED = -1
"""The ordinal of probes."""

Decision = Receive | AskAgain | HoldUntil | AwaitAll | AwaitRoom | Forward | DeadLetter | Refile | Look | Stop
"""What is to be done with a message (`forwarding`)."""
Command = (
    Receive
    | AskAgain
    | Forward
    | SendGroups
    | DeadLetter
    | Refile
    | Look
    | Stop
    | Wait
    | Acknowledge
    | AskLast
    | GiveBack
    | PutProbe
    | Leave
)
"""What a shell is told to do."""


FOREIGN = "no envelope: a foreign producer's message"


def why_dead(reading: Reading) -> str:
    """Why a message that is no timer goes to the dead-letter topic, as a sentence."""
    if isinstance(reading, Unreadable):
        return reading.reason
    return str(reading) if isinstance(reading, EnvelopeError) else FOREIGN


def of_large_batch(batch_index: int, batch_size: int) -> Unreadable | PassedOver | None:
    """What becomes of a message by the size of its batch, whatever it says; None: that is up to what it says."""
    if batch_size <= LARGEST_BATCH:
        return None
    if batch_index < batch_size - 1:
        return PASSED_OVER
    return Unreadable(
        f"a batch of {batch_size} messages, set aside as a whole: a relay takes {LARGEST_BATCH} in one entry at most; "
        "let its producer put fewer into a batch (batchingMaxMessages), and send anew what were timers"
    )


def judged(properties: dict[str, str]) -> Reading:
    """A message's envelope, or what is wrong with it, as a value."""
    try:
        envelope = Envelope.read(properties)
    except EnvelopeError as error:
        return error
    return PROBE if envelope is None and PROBE_PROPERTY in properties else envelope

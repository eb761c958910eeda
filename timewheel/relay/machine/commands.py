"""Inputs and outputs of a relay's machine: the readings of messages, and the commands to the driver.

Each command is a single action. `HoldUntil`, `AwaitAll` and `AwaitRoom` pass between the machine's own parts: a driver
receives `Wait`. Commands without fields are no tuples: empty tuples are all equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from timewheel.client.positions import Position
from timewheel.core.envelope import PROBE_PROPERTY, Envelope
from timewheel.core.errors import EnvelopeError
from timewheel.core.grouping import LARGEST_BATCH
from timewheel.relay.machine.order import NO_SEQUENCE_ID, Spot


class Unreadable(NamedTuple):
    """A message that this relay can neither read nor carry."""

    reason: str


@dataclass(frozen=True, slots=True)
class Probe:
    """A relay's own message at a topic's end: once received, so are all before it (broker-facts: empty-needs-proof)."""


PROBE = Probe()


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A message of an entry that is set aside as a whole; the entry's last message stands for all of them."""


PASSED_OVER = PassedOver()

Reading = Envelope | EnvelopeError | Unreadable | Probe | PassedOver | None
"""The reading of a message's properties; None if they contain no envelope."""


LINGER_MS = 20
"""Time that a receive waits while confirmations or an acknowledgement are outstanding."""
IDLE_MS = 1_000
"""Time that a receive waits when no other work is left; also how soon a stop is noticed then."""


class Receive(NamedTuple):
    """Wait this long for the next message, and pass it in; or report that none arrived."""

    wait_ms: int = LINGER_MS


RECEIVE = Receive()
"""The command after a hop unless `Forward.asks`: a driver need not ask for it."""
RECEIVE_IDLE = Receive(IDLE_MS)


@dataclass(frozen=True, slots=True)
class AskAgain:
    """Ask the broker to redeliver all unacknowledged messages (see `beginning`, `silence`)."""


class HoldUntil(NamedTuple):
    """Hold the head until ``at_ms`` (UTC milliseconds): ask again then, or up to ``slack_ms`` later."""

    at_ms: int
    slack_ms: int


@dataclass(frozen=True, slots=True)
class AwaitAll:
    """Wait for all sends under way, since the head goes by another lane; then ask again (broker-facts: late-lane)."""


@dataclass(frozen=True, slots=True)
class AwaitRoom:
    """Wait for some confirmations, since the window is full; then ask again."""


class Forward(NamedTuple):
    """Publish the head to the source's own partition of ``topic``, or add it to the group for that topic.

    Args:
        ordinal: Identifies its confirmation.
        topic: Destination, without a partition suffix.
        deliver_at_ms: Delivery time to ask the broker for; 0 for at once.
        sequence_id: Sequence id for the named producer; `NO_SEQUENCE_ID` for an unnamed producer.
        envelope: The next envelope.
        in_group: Whether it leaves with others, as one entry (broker-facts: batched-hops).
        asks: Whether the driver must ask for the next command, since it is not `RECEIVE`.
        batches: Whether the client may send it in a batch; else it may be delayed by the broker, or goes to consumers.
        leaves_plan: As in `timewheel.core.next_hop.Hop`: its named producer is another.
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
        """True if it is sent by the named producer."""
        return self.sequence_id != NO_SEQUENCE_ID


@dataclass(frozen=True, slots=True)
class SendGroups:
    """Hand all groups over to the client, at any size."""


SEND_GROUPS = SendGroups()


class StoreDeadLetter(NamedTuple):
    """Publish the head to the dead-letter topic, with the reason."""

    ordinal: int
    reason: str


class Refile(NamedTuple):
    """Publish the head again to the tail of its own topic partition (broker-facts: slot-sweep).

    It counts as a hop, so that a timer whose due time never comes ends as a dead letter.
    """

    ordinal: int
    envelope: Envelope


class Examine(NamedTuple):
    """Examine a gap between two messages, or the end of a ledger.

    Report the position that can be read right behind ``after``, once a dead letter names the messages that the client
    hides before that.
    """

    after: Spot
    before: Position


class Stop(NamedTuple):
    """Begin anew, and do not acknowledge past ``after``: the readable messages behind it were not delivered
    (broker-facts: holes-in-positions).
    """

    reason: str
    after: Spot
    before: Position


AWAIT_MS = 2_000
"""Longest single wait for confirmations; a send without an answer fails by its own timeout."""
NEVER = 1 << 60
"""More confirmations than can be under way."""


class Wait(NamedTuple):
    """Wait until this many outcomes of sends are in, or the time is over, or a stop; waking earlier does no harm.

    Args:
        timeout_ms: May be long: the driver shortens it.
        wake_at: Number of outcomes that end the wait; `NEVER` for none.
    """

    timeout_ms: int
    wake_at: int


class Acknowledge(NamedTuple):
    """Acknowledge messages that are done with for good.

    Args:
        receipts: As passed in. For relay-held topics a single receipt, acknowledged cumulatively; for broker-held
            topics each receipt individually.
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
    """End: close the consumer."""


LEAVE = Leave()

PROBED = -1
"""The ordinal of probes."""

Decision = Receive | AskAgain | HoldUntil | AwaitAll | AwaitRoom | Forward | StoreDeadLetter | Refile | Examine | Stop
"""A decision about a message (`forwarding`)."""
Command = (
    Receive
    | AskAgain
    | Forward
    | SendGroups
    | StoreDeadLetter
    | Refile
    | Examine
    | Stop
    | Wait
    | Acknowledge
    | AskLast
    | GiveBack
    | PutProbe
    | Leave
)
"""A command to the driver."""


FOREIGN = "no envelope: a foreign producer's message"


def why_dead(reading: Reading) -> str:
    """Return why a message that is no timer goes to the dead-letter topic, as a sentence."""
    if isinstance(reading, Unreadable):
        return reading.reason
    return str(reading) if isinstance(reading, EnvelopeError) else FOREIGN


def of_large_batch(batch_index: int, batch_size: int) -> Unreadable | PassedOver | None:
    """Return the reading of a message in an oversized batch, whatever its content; None if the content decides."""
    if batch_size <= LARGEST_BATCH:
        return None
    if batch_index < batch_size - 1:
        return PASSED_OVER
    return Unreadable(
        f"a batch of {batch_size} messages, set aside as a whole: a relay takes {LARGEST_BATCH} in one entry at most; "
        "let its producer put fewer into a batch (batchingMaxMessages), and send those timers again"
    )


def judged(properties: dict[str, str]) -> Reading:
    """Return a message's envelope, or its error as a value."""
    try:
        envelope = Envelope.read(properties)
    except EnvelopeError as error:
        return error
    return PROBE if envelope is None and PROBE_PROPERTY in properties else envelope

"""The interface of a machine to its driver: states, counters, and events in, commands out.

`HoldUntil`, `AwaitAll` and `AwaitRoom` pass between the parts of `relay_held`: a driver receives `Wait`. Commands
without fields are no tuples: empty tuples are all equal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, unique
from typing import Any, ClassVar, NamedTuple

from timewheel.client.positions import Position
from timewheel.core.envelope import Envelope
from timewheel.relay.machine.order import NO_SEQUENCE_ID, Arrivals, Outcome, Spot
from timewheel.relay.machine.readings import Reading
from timewheel.relay.machine.visits import Visit


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


@dataclass(slots=True, kw_only=True)
class Counts:
    """Messages since the relay was started, as in `PartitionStatus`; written by the partition's own threads.

    Late hops include on-time hops that follow closely on a late hop.
    """

    forwarded: int = 0
    late: int = 0
    dead: int = 0
    refiled: int = 0
    dropped: int = 0
    skipped: int = 0
    deduplicated: int = 0
    jumps: int = 0
    failures: int = 0
    entries: int = 0

    @property
    def done(self) -> int:
        """Number of messages that are done with, with any outcome."""
        return self.forwarded + self.late + self.dead + self.refiled + self.dropped

    def add(self, outcome: Outcome) -> None:
        """Count a confirmed message; a probe is not counted."""
        if outcome != "probe":
            setattr(self, outcome, getattr(self, outcome) + 1)


LINGER_MS = 20  # time that a receive waits while confirmations or an acknowledgement are outstanding
IDLE_MS = 1_000  # time that a receive waits when no other work is left; also how soon a stop is noticed then


class Receive(NamedTuple):
    """Wait this long for the next message, and pass it in; or report that none arrived."""

    wait_ms: int = LINGER_MS


RECEIVE = Receive()  # the command after a hop unless `Forward.asks`: a driver need not ask for it
RECEIVE_IDLE = Receive(IDLE_MS)


@dataclass(frozen=True, slots=True)
class AskAgain:
    """Ask the broker to redeliver all unacknowledged messages (see `Beginning`, `Silence`)."""


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


class Nominal(NamedTuple):
    """The named lane of a hop that goes by the unnamed lane: an earlier attempt may be stored there. Then it goes by
    that lane once more, where the broker drops a repeat of a stored message (broker-facts: late-lane).
    """

    topic: str
    deliver_at_ms: int
    sequence_id: int
    in_group: bool


class Forward(NamedTuple):
    """Publish the head to the source's own partition of ``topic``, or add it to the group for that topic."""

    ordinal: int  # identifies its confirmation
    topic: str  # destination, without a partition suffix
    deliver_at_ms: int  # delivery time to ask the broker for; 0 for at once
    sequence_id: int  # sequence id for the named producer; `NO_SEQUENCE_ID` for an unnamed producer
    envelope: Envelope
    in_group: bool = False  # whether it leaves with others, as one entry (broker-facts: batched-hops)
    asks: bool = False  # whether the driver must ask for the next command, since it is not `RECEIVE`
    # whether the client may send it in a batch; else it may be delayed by the broker, or goes to consumers
    batches: bool = False
    leaves_plan: bool = False  # as in `timewheel.core.next_hop.Hop`: its named producer is another
    nominal: Nominal | None = None

    @property
    def named(self) -> bool:
        return self.sequence_id != NO_SEQUENCE_ID

    def nominally(self) -> Forward:
        """Return the same by the named lane, for a message that may be stored there."""
        assert self.nominal is not None, "it is by the named lane already"
        return self._replace(**self.nominal._asdict(), nominal=None)


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


AWAIT_MS = 2_000  # longest single wait for confirmations; a send without an answer fails by its own timeout
NEVER = 1 << 60  # more confirmations than can be under way


class Wait(NamedTuple):
    """Wait until this many outcomes of sends are in (`NEVER`: none), or the time is over, or a stop; waking earlier
    does no harm.

    The time may be long: the driver shortens it.
    """

    timeout_ms: int
    wake_at: int


class Acknowledge(NamedTuple):
    """Acknowledge messages that are done with: by a single receipt cumulatively, or individually if broker-held."""

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

PROBED = -1  # the ordinal of probes

Decision = Receive | AskAgain | HoldUntil | AwaitAll | AwaitRoom | Forward | StoreDeadLetter | Refile | Examine | Stop
"""A decision about a message (`Forwarding`)."""
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


class Machine(ABC):
    """A subscription of a partition of a holding topic, from its begin to its end: `RelayHeld` or `BrokerHeld`.

    Every event but `confirmed` and `lease_taken` returns the next command. The driver begins with `done`.

    Attributes:
        confirmed_to: The spot up to which all messages are confirmed; outlives the subscription. None if there is none,
            or messages are not in order.
    """

    cumulative: ClassVar[bool]  # True if a receipt also acknowledges all messages before it

    state: State
    left: Visit | None  # the visit that was over when it left; None without a visit
    begins_anew: bool  # whether it left for another subscription to follow: what this one has may be old

    @property
    @abstractmethod
    def confirmed_to(self) -> Spot | None: ...

    @property
    @abstractmethod
    def head_release_ms(self) -> int | None: ...

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """Messages that are unconfirmed, or confirmed behind an unconfirmed message."""

    @property
    def arrivals(self) -> Arrivals:
        """Bounds the times at which messages arrived; of use while the head is held."""
        return Arrivals(0, 0)

    @abstractmethod
    def received(
        self, position: Position, batch_size: int, reading: Reading, receipt: Any, now_ms: int, size: int = 0
    ) -> Command:
        """Take a message after `Receive`: its position, the number of messages in its entry (0: unbatched), its
        reading, the driver's means to acknowledge it, and its approximate bytes.

        The command is mostly `Forward`. The command after that is `RECEIVE`, and need not be asked for.
        """

    @abstractmethod
    def nothing_came(self, now_ms: int) -> Command:
        """Take note that no message came, after `Receive`."""

    @abstractmethod
    def confirmed(self, ordinals: Iterable[int]) -> Acknowledge | None:
        """Take confirmations that the publishes of these commands are stored; called at any time.

        It may return an acknowledgement to execute in between, at any point.
        """

    @abstractmethod
    def failed(self, ordinal: int) -> Position:
        """Take note that the publish of this command is not stored, and never will be; called at any time.

        The subscription is to end: the next subscription finds a verdict about the message, whose position is returned.
        """

    @abstractmethod
    def refused(self, reason: str, now_ms: int) -> Command:
        """Send the message of the last command, `Forward` or `Refile`, to the dead letters: it cannot be sent."""

    @abstractmethod
    def done(self, now_ms: int) -> Command:
        """Take note that the last command is executed, or its wait is over."""

    @abstractmethod
    def stopping(self, left_ms: int, undone: Command | None = None) -> Command:
        """Take a request to stop, with the time for which confirmations may still be awaited; called instead of `done`
        then.

        The first call names the command that was not executed.
        """

    def last_position(self, last: Position, now_ms: int) -> Command:
        """Take the answer to `AskLast`."""
        raise self._out_of_table(last, now_ms)

    def no_last_position(self) -> Command:
        """Take note that `AskLast` was not answered, as while a topic moves to another broker: it is repeated later."""
        raise self._out_of_table()

    def found(self, position: Position, now_ms: int) -> Command:
        """Take the answer to `Examine`: the first readable position behind the named position."""
        raise self._out_of_table(position, now_ms)

    def lease_held(self) -> Command:
        """Take note that `Forward` was not executed: another relay has the name of its producer."""
        raise self._out_of_table()

    def lease_taken(self) -> None:
        """Take note that `Forward` was executed while the state was `WAITING_FOR_LEASE`."""
        raise self._out_of_table()

    def _out_of_table(self, *event: object) -> AssertionError:
        return AssertionError(f"{type(self).__name__} gives no command that this answers: {self.state}, {event}")

"""The partition that a relay reads: its state that threads share, and the tools that all partitions share."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, unique
from typing import Any

from timewheel.client.hooks import Alarms, Hooks
from timewheel.client.positions import Position
from timewheel.client.surface import ConsumerLike
from timewheel.core.clock import Clock, wait_until
from timewheel.core.durations import MINUTE_MS
from timewheel.core.envelope import Envelope
from timewheel.core.names import Names, partition_topic
from timewheel.core.rng import Random
from timewheel.core.routing import Router
from timewheel.core.steps import Step
from timewheel.core.topology import HoldingTopic
from timewheel.relay.machine.interface import Counts
from timewheel.relay.machine.order import WINDOW_BYTES


class SessionFailed(Exception):
    """A send, a receive or the connection failed: drop consumer and producers, restart (broker-facts: exact-hops)."""


class HoleFound(Exception):
    """A readable message between two positions was not delivered: begin anew, without the known positions
    (broker-facts: holes-in-positions).

    Attributes:
        after: The last position that was delivered.
    """

    def __init__(self, reason: str, after: Position) -> None:
        self.after = after
        super().__init__(reason)


@unique
class PartitionState(Enum):
    """The activity of a partition's relay."""

    STARTING = "starting"
    """Not subscribed yet."""
    RUNNING = "running"
    """Subscribed; forwards, or waits for messages."""
    HOLDING = "holding"
    """The head waits for its release."""
    WAITING_FOR_LEASE = "waiting_for_lease"
    """Another relay has the name of the producer that the head needs."""
    BACKING_OFF = "backing_off"
    """An error occurred; it begins anew shortly."""
    RESTING = "resting"
    """A slot of a ring between its sweeps: no consumer is needed."""
    CLOSED = "closed"
    """The relay was stopped."""


WORKING = frozenset(
    {PartitionState.RUNNING, PartitionState.HOLDING, PartitionState.WAITING_FOR_LEASE, PartitionState.RESTING}
)
"""States of a partition that is being relayed."""
AT_REST = frozenset({PartitionState.RESTING, PartitionState.CLOSED})
"""States without a thread that could send heartbeats."""


HELD_MS = 3 * MINUTE_MS
"""No relay that has lost its partition keeps a name for so long: it gives names back when idle, and a broker closes the
producers of a connection that does not answer."""
PAUSE_MS = MINUTE_MS  # after a longer time without a refusal the name may have been free meanwhile
MAX_NAMES = 1_000


class HeldNames:
    """Names of a partition's producers that other clients hold, over all its subscriptions.

    A name can be held by every client that may produce to the destination (broker-facts: names-held-by-others).
    """

    def __init__(self) -> None:
        self._refused: dict[str, tuple[int, int]] = {}

    def is_strangers(self, name: str, now_ms: int) -> bool:
        """Record that the broker has refused a name at a monotonic time; True: no relay holds a name for so long."""
        first_ms, last_ms = self._refused.pop(name, (now_ms, now_ms))
        if last_ms - first_ms < HELD_MS and now_ms - last_ms > PAUSE_MS:
            first_ms = now_ms
        self._refused[name] = first_ms, now_ms
        if len(self._refused) > MAX_NAMES:
            del self._refused[next(iter(self._refused))]
        return now_ms - first_ms >= HELD_MS

    def is_free(self, name: str) -> None:
        """Record that the broker has given the name."""
        self._refused.pop(name, None)


class Handle:
    """The state that a partition's thread shares with others; only its thread writes the attributes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._deadline_ms = 0
        self.changed = threading.Condition()  # notified when the thread should wake from a wait
        self.stopping = False
        self.state = PartitionState.STARTING
        self.reason: str | None = None
        self.counts = Counts()
        self.in_flight = 0
        self.head_release_ms: int | None = None
        self.consumer: ConsumerLike | None = None  # the client's consumer; None between subscriptions
        self.heartbeat_ms = clock.monotonic_ms()
        self.reported_of_hops = False
        self.held_names = HeldNames()

    @property
    def connected(self) -> bool:
        """True if its consumer is connected, as far as the client knows (broker-facts: readiness-asks-connections)."""
        consumer = self.consumer  # its thread may set it to None meanwhile
        return consumer is None or bool(consumer.is_connected())

    def beat(self) -> None:
        """Record that the thread is alive; called at least every few seconds."""
        self.heartbeat_ms = self._clock.monotonic_ms()

    def stop(self, drain_ms: int) -> None:
        """Ask the thread to take no new messages, and to leave those that are unconfirmed after ``drain_ms``."""
        with self.changed:
            self._deadline_ms = self._clock.monotonic_ms() + drain_ms
            self.stopping = True
            self.changed.notify_all()

    def drain_left_ms(self) -> int:
        """Return how long the thread may still wait for confirmations, once it is to stop."""
        return max(self._deadline_ms - self._clock.monotonic_ms(), 0)

    def pause(self, timeout_ms: int) -> None:
        """Wait, unless the thread is to stop."""
        with self.changed:
            wait_until(self._clock, self.changed, lambda: self.stopping, timeout_ms)
        self.beat()


MEMORY_BYTES = 512 << 20
LEAST_WINDOW_BYTES = 256 << 10


class Memory:
    """A relay's memory budget, shared by its partitions; safe from any number of threads.

    Two things grow with the traffic: messages that the client has received ahead of the relay, and sends under way.
    Each gets half of a partition's share. The client counts received entries and not bytes (broker-facts:
    queues-count-entries), so a share is converted to entries by the size of the largest entry met. If the budget is too
    small for an entry each, the partitions exceed it by that.
    """

    def __init__(self, budget_bytes: int = MEMORY_BYTES) -> None:
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._readers = 0

    def share_with(self, readers: int) -> None:
        """Add partitions that are read at once. Shares already in use shrink when their sessions end."""
        with self._lock:
            self._readers += readers

    def resize(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes

    def window_bytes(self) -> int:
        """Return the bytes that may be under way out of one partition; a larger message is sent alone."""
        return min(max(self._half_bytes(), LEAST_WINDOW_BYTES), WINDOW_BYTES)

    def queue_entries(self, entry_bytes: int, most: int) -> int:
        """Return how many entries of the largest size met or expected the client may receive ahead: 1 to ``most``."""
        return min(max(self._half_bytes() // max(entry_bytes, 1), 1), most)

    def _half_bytes(self) -> int:
        return self._budget_bytes // (2 * max(self._readers, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A partition of a holding topic, of the plan or of an earlier plan, which may be removed once it is empty."""

    holding: HoldingTopic
    partition: int
    is_former: bool = False

    @property
    def topic(self) -> str:
        """Full name of the holding topic, without a partition suffix."""
        return self.holding.name

    @property
    def name(self) -> str:
        """Full name of the partition."""
        return partition_topic(self.holding.name, self.partition)

    @property
    def step(self) -> Step:
        """The step of the topic: a tier, a ring, the intake or the journal."""
        return self.holding.step

    @property
    def is_intake(self) -> bool:
        """True if timers arrive there that no SDK has routed."""
        return self.holding.step.kind == "intake"

    @property
    def is_journal(self) -> bool:
        """True if a shadow's copies arrive there."""
        return self.holding.step.kind == "journal"


JournalGate = Callable[[Source, ConsumerLike, Handle], ConsumerLike]
"""Stands between a journal's partition and its relay: returns a consumer that hands out the received messages that may
move on. The handle holds the relay's stop request; long waits record heartbeats on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The tools that all partitions of a relay share; the limits are those of `timewheel.relay.Relay`."""

    client: Any
    router: Router
    names: Names
    relay_id: str
    clock: Clock
    rng: Random
    hooks: Hooks
    alarms: Alarms  # receive events about single messages, limited in rate
    max_in_flight: int
    send_timeout_ms: int
    lease_idle_ms: int  # a longer pause gives the names of producers back (broker-facts: named-producers)
    hop_linger_ms: int  # time that a hop waits for others that leave with it as one entry (broker-facts: batched-hops)
    memory: Memory
    # returns whether a timer is known to be cancelled or replaced; None if timers cannot be cancelled
    is_cancelled: Callable[[Envelope], bool] | None = None
    # wraps the consumer of a journal's partition, so that it hands out only messages that may move on; None without a
    # journal
    gate: JournalGate | None = None
    drains_from_ms: int | None = None  # as for `timewheel.core.next_hop.NextHop`


def consumer_name(relay_id: str, topic: str) -> str:
    """Return a consumer's name on a Failover subscription.

    Of several relays the broker gives partition ``p`` to the relay at ``p modulo n`` in the order of their names
    (broker-facts: failover-and-takeover). So a relay's name is the same on all partitions of a topic, which spreads
    them, and sorts differently from topic to topic, which spreads topics with a single partition too.
    """
    order = hashlib.sha256(f"{relay_id}|{topic}".encode()).hexdigest()[:8]
    return f"{order}-{relay_id}"

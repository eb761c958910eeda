"""The state that a partition's thread shares with others: the stop request, the heartbeat, the partition's state."""

from __future__ import annotations

import threading
from enum import Enum, unique

from timewheel.client.surface import ConsumerLike
from timewheel.core.clock import Clock, wait_until
from timewheel.relay.machine.counts import Counts
from timewheel.relay.machine.held_names import HeldNames


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


class Handle:
    """The shared state of a partition; only its thread writes the attributes.

    Args:
        clock: The relay's clock.
    """

    __slots__ = (
        "_clock",
        "_deadline_ms",
        "changed",
        "consumer",
        "counts",
        "head_release_ms",
        "heartbeat_ms",
        "held_names",
        "in_flight",
        "reason",
        "reported_of_hops",
        "state",
        "stopping",
    )

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._deadline_ms = 0
        self.changed = threading.Condition()
        """Notified when the thread should wake from a wait."""
        self.stopping = False
        self.state = PartitionState.STARTING
        self.reason: str | None = None
        self.counts = Counts()
        self.in_flight = 0
        self.head_release_ms: int | None = None
        self.consumer: ConsumerLike | None = None
        """The client's consumer; None between subscriptions."""
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

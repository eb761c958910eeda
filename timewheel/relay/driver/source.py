"""The partition that a relay reads, and the tools that it works with."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from timewheel.client.hooks import Alarms, Hooks
from timewheel.client.surface import ConsumerLike
from timewheel.core.clock import Clock
from timewheel.core.envelope import Envelope
from timewheel.core.names import Names, partition_topic
from timewheel.core.rng import Random
from timewheel.core.routing import Router
from timewheel.core.steps import Step
from timewheel.core.topology import HoldingTopic
from timewheel.relay.driver.handle import Handle
from timewheel.relay.driver.memory import Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A partition of a holding topic.

    Args:
        holding: The holding topic, of the plan or of an earlier plan.
        partition: Index of the partition.
        is_former: Whether it belongs to an earlier plan, and may be removed once it is empty.
    """

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


class JournalGate(Protocol):
    """Stands between a journal's partition and its relay."""

    def __call__(self, source: Source, consumer: ConsumerLike, handle: Handle) -> ConsumerLike:
        """Return a consumer that hands out the received messages that may move on.

        Args:
            source: The partition.
            consumer: The client's consumer.
            handle: Holds the relay's stop request; long waits record heartbeats on it.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The tools that all partitions of a relay share.

    Args:
        client: The user's `pulsar.Client`.
        router: The plan's router.
        names: Topic names of the plan.
        relay_id: Id of this relay, unique among relays that run at once.
        clock: Source of time.
        rng: Randomness for `Backoff`.
        hooks: Receive events.
        alarms: Receive events about single messages, limited in rate.
        max_in_flight: Maximum number of hops under way, per partition.
        send_timeout_ms: Time without an answer after which a send has failed.
        lease_idle_ms: A longer pause gives the names of producers back (broker-facts: named-producers).
        hop_linger_ms: Time that a hop waits for others that leave with it as one entry (broker-facts: batched-hops).
        memory: Memory budget of the partitions.
        is_dead: Returns whether a timer is known to be cancelled or replaced; None if timers cannot be cancelled.
        gate: Wraps the consumer of a journal's partition, so that it hands out only messages that may move on; None
            without a journal.
        drains_from_ms: As for `timewheel.core.next_hop.NextHop`.
    """

    client: Any
    router: Router
    names: Names
    relay_id: str
    clock: Clock
    rng: Random
    hooks: Hooks
    alarms: Alarms
    max_in_flight: int
    send_timeout_ms: int
    lease_idle_ms: int
    hop_linger_ms: int
    memory: Memory
    is_dead: Callable[[Envelope], bool] | None = None
    gate: JournalGate | None = None
    drains_from_ms: int | None = None


def consumer_name(relay_id: str, topic: str) -> str:
    """Return a consumer's name on a Failover subscription.

    Of several relays the broker gives partition ``p`` to the relay at ``p modulo n`` in the order of their names
    (broker-facts: failover-and-takeover). So a relay's name is the same on all partitions of a topic, which spreads
    them, and sorts differently from topic to topic, which spreads topics with a single partition too.
    """
    order = hashlib.sha256(f"{relay_id}|{topic}".encode()).hexdigest()[:8]
    return f"{order}-{relay_id}"

"""Which partition a relay reads, and what it works with."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from timewheel.consumers.relay.driver.handle import Handle
from timewheel.consumers.relay.driver.memory import Memory
from timewheel.core.chance import Chance
from timewheel.core.clock import Clock
from timewheel.core.envelope import Envelope
from timewheel.core.names import Names, partition_topic
from timewheel.core.routing import Router
from timewheel.core.steps import Step
from timewheel.core.topology import HoldingTopic
from timewheel.wire.alarms import Alarms
from timewheel.wire.hooks import Hooks
from timewheel.wire.surface import ConsumerLike

__all__ = ["Gate", "Source", "Tools", "consumer_name"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One partition of one holding topic.

    Args:
        holding: The holding topic: the plan's, or an earlier plan's.
        partition: Which of its partitions.
        is_former: Whether it is an earlier plan's, which may be removed once it is empty.
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
        """The topic's tier or ring, or the intake's or the journal's."""
        return self.holding.step

    @property
    def is_intake(self) -> bool:
        """Whether it is where timers come in that no SDK has routed."""
        return self.holding.step.kind == "intake"

    @property
    def is_journal(self) -> bool:
        """Whether a shadow's copies come in there."""
        return self.holding.step.kind == "journal"


class Gate(Protocol):
    """Stands between a journal's partition and its relay."""

    def __call__(self, source: Source, consumer: ConsumerLike, handle: Handle) -> ConsumerLike:
        """A consumer that hands out, of what that one receives, what may move on.

        Args:
            source: The partition.
            consumer: The client's.
            handle: Says whether the relay is to stop; waits show signs of life there.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What all partitions of a relay share.

    Args:
        client: The user's `pulsar.Client`.
        router: The plan's.
        names: The plan's.
        relay_id: Of this relay, unique among those that run at once.
        clock: Time.
        chance: For `Backoff`.
        hooks: Whom to tell.
        alarms: The same, of single messages.
        max_in_flight: Hops under way at most, per partition.
        send_timeout_ms: After this time without an answer a send has failed.
        lease_idle_ms: A pause longer than this gives the names of producers back (broker-facts: named-producers).
        hop_linger_ms: How long a hop waits for others that go with it as one entry (broker-facts: batched-hops).
        memory: How much of it each partition may take.
        is_dead: Whether a timer is known to be cancelled or replaced; None: none can be.
        gate: Wraps the consumer of a journal's partition, so that it hands out only what may move on; None: there is
            no journal.
        drains_from_ms: As of `timewheel.core.next_hop.NextHop`.
    """

    client: Any
    router: Router
    names: Names
    relay_id: str
    clock: Clock
    chance: Chance
    hooks: Hooks
    alarms: Alarms
    max_in_flight: int
    send_timeout_ms: int
    lease_idle_ms: int
    hop_linger_ms: int
    memory: Memory
    is_dead: Callable[[Envelope], bool] | None = None
    gate: Gate | None = None
    drains_from_ms: int | None = None


def consumer_name(relay_id: str, topic: str) -> str:
    """A consumer's name on a Failover subscription.

    Of several relays the broker gives partition ``p`` to the one at ``p modulo n`` in the order of their names
    (broker-facts: failover-and-takeover). So a relay's name is the same on all partitions of a topic, which spreads
    them, and sorts differently from topic to topic, which spreads topics of one partition too.
    """
    order = hashlib.sha256(f"{relay_id}|{topic}".encode()).hexdigest()[:8]
    return f"{order}-{relay_id}"

"""The status of a relay."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from timewheel.relay.driver.handle import PartitionState


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """The status of a partition of a holding topic, at a moment in time.

    Args:
        topic: Full name of the partition.
        state: State of its relay.
        connected: Whether its consumer is connected to the broker; a slot at rest has no consumer and needs none.
        alive: Whether its thread had a recent heartbeat; a stuck thread cannot report itself (broker-facts:
            lost-hosts-stuck-threads).
        head_release_ms: Release time of the held head, UTC milliseconds; None without a held head.
        newest_release_ms: Release time of the newest message in flight, the head or a message under way; None if there
            is none. Its age is the lag of the relay, also while no head is held.
        in_flight: Hops under way.
        in_flight_bytes: Their payloads and properties.
        forwarded: Hops on time.
        late: Hops by the late lane, after an outage.
        dead: Messages moved to the dead-letter topic.
        refiled: Timers in a ring that were moved to the tail of their slot.
        dropped: Timers not moved on, since they were cancelled or replaced.
        skipped: Messages received again after a reload.
        deduplicated: Sends that the broker dropped as duplicates.
        jumps: Times that readable messages were left out: processed by others, or given to others first.
        failures: Subscriptions given up and begun anew.
        entries: Entries that brokers have stored for it; a group of hops is a single entry.
        reason: Reason why it last began anew; None if it never did.
    """

    topic: str
    state: PartitionState
    connected: bool
    alive: bool
    head_release_ms: int | None
    newest_release_ms: int | None
    in_flight: int
    in_flight_bytes: int
    forwarded: int
    late: int
    dead: int
    refiled: int
    dropped: int
    skipped: int
    deduplicated: int
    jumps: int
    failures: int
    entries: int
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayStatus:
    """The status of a relay at a moment in time.

    Args:
        relay_id: Id of the relay.
        ready: Whether every partition is subscribed and connected (for a ring's slots: their keeper has checked them
            and is alive), none is stuck, and no topic is unreadable.
        partitions: Status of each partition of the plan's holding topics, and of earlier plans' topics that it drains.
        unreadable: Topics of earlier plans in which timers wait, and that it cannot drain: see the event
            ``relay_former_topic_unreadable``.
    """

    relay_id: str
    ready: bool
    partitions: tuple[PartitionStatus, ...]
    unreadable: tuple[str, ...] = ()

    def total(self, count: str) -> int:
        """Return the sum of a counter over all partitions, by its name."""
        return sum(getattr(partition, count) for partition in self.partitions)

    def story(self) -> dict[str, Any]:
        """Return the status for JSON."""
        return {
            "relay_id": self.relay_id,
            "ready": self.ready,
            "unreadable": list(self.unreadable),
            "partitions": [{**asdict(partition), "state": partition.state.value} for partition in self.partitions],
        }

"""What a relay says about itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from timewheel.consumers.relay.driver.handle import PartitionState

__all__ = ["PartitionStatus", "RelayStatus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """One partition of one holding topic, at one moment.

    Args:
        topic: Full name of the partition.
        state: What its thread is doing.
        connected: Whether its consumer has a connection to the broker; a slot at rest has no consumer and needs none.
        alive: Whether the thread gave a sign of life lately; a stuck one cannot say so itself
            (broker-facts: lost-hosts-stuck-threads).
        head_release_ms: When the held head may leave, UTC milliseconds; None: no head is held.
        newest_release_ms: When the newest message in hand, the head or one under way, may leave; None: it has none. How
            long ago that was tells how far it lags, also while no head is held.
        in_flight: Hops under way.
        in_flight_bytes: Their payloads and properties.
        forwarded: Hops on time.
        late: Hops by the late lane, after an outage.
        dead: Moved to the dead-letter topic.
        refiled: Of a ring: moved to the tail of their slot.
        dropped: Not moved on, since they were cancelled or replaced.
        skipped: Received again after a reload.
        deduplicated: Sends that the broker dropped as seen before.
        jumps: Times that messages which can be read were left out: done by others, or given to others first.
        failures: Subscriptions given up and begun anew.
        entries: That brokers have stored for it; a group of hops is one.
        reason: Why it last began anew; None: it never had to.
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
    """A relay at one moment.

    Args:
        relay_id: Which one.
        ready: Every partition is subscribed and connected (a ring's slots: looked after), none is stuck, and
            nothing is unreadable.
        partitions: One each, of the plan's holding topics and of those of earlier plans that it drains.
        unreadable: Topics of earlier plans in which timers wait, and that it cannot drain: see the event
            ``relay_former_topic_unreadable``.
    """

    relay_id: str
    ready: bool
    partitions: tuple[PartitionStatus, ...]
    unreadable: tuple[str, ...] = ()

    def total(self, count: str) -> int:
        """The sum of one of the counts over all partitions, by its name."""
        return sum(getattr(partition, count) for partition in self.partitions)

    def story(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "relay_id": self.relay_id,
            "ready": self.ready,
            "unreadable": list(self.unreadable),
            "partitions": [{**asdict(partition), "state": partition.state.value} for partition in self.partitions],
        }

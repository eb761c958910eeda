"""The stats of a topic as typed values: gaps, backlog, delayed index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DELAYING_TYPES = frozenset({"Shared", "Key_Shared"})
"""Types of subscriptions on which brokers delay (broker-facts: delays-need-shared)."""
IN_ORDER_TYPES = frozenset({"Exclusive", "Failover"})
"""Types of subscriptions on which a single consumer receives all messages, at once and in order."""

SHADOW_ACKER = "timewheel-shadow"
"""Name of the consumers by which shadows acknowledge originals: they receive no messages."""

_OWN_CURSORS = ("pulsar.", "__")
"""Prefixes of the broker's own cursors."""


def is_users(subscription: str) -> bool:
    """Return whether a subscription is a user's and not the broker's own."""
    return not subscription.startswith(_OWN_CURSORS)


CHEAP_QUERY: Mapping[str, str] = {
    "getPreciseBacklog": "false",
    "subscriptionBacklogSize": "false",
    "getEarliestTimeInBacklog": "false",
    "excludePublishers": "true",
    "excludeConsumers": "true",
}
"""Counters that cost the broker nothing; the first three, if true, make it walk cursors and read entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStats:
    """A connected consumer.

    Args:
        name: Its consumer name.
        address: Address of its connection; empty in sums over partitions.
        unacked: Messages delivered to it and not acknowledged.
        permits: Messages that it would accept now.
        blocked: It has too many unacknowledged messages and gets no more.
        last_acked_at_ms: Time of its last acknowledgement, UTC milliseconds; 0: never.
        connected_since: Time as the broker writes it.
        key_ranges: Hash ranges of keys assigned to it (Key_Shared), as the broker writes them.
        client: Its client version, such as ``Pulsar-Java-v4.0.7``; empty: it sent none, or in sums over partitions.
        properties: Properties from its subscribe request; none in sums over partitions.
    """

    name: str
    address: str
    unacked: int
    permits: int
    blocked: bool
    last_acked_at_ms: int = 0
    connected_since: str = ""
    key_ranges: tuple[str, ...] = ()
    client: str = ""
    properties: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerStats:
    """A connected producer.

    Args:
        name: Its producer name.
        address: Address of its connection; empty in sums over partitions.
        client: Its client version, as in `ConsumerStats`.
    """

    name: str
    address: str
    client: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionStats:
    """A subscription of a topic, or of all partitions of a topic together.

    Args:
        type: ``Shared``, ``Failover``, ...; ``None`` (a text) while no consumer has connected since the topic was
            loaded, and in sums over partitions.
        gap_count: Ranges of acknowledged entries behind the mark-delete position.
        gap_bytes: Size of those ranges when they are written to the cursor.
        backlog: Entries not acknowledged; from counters, and walked only if a precise backlog was requested.
        delayed: Messages that the broker holds until their delivery time.
        delayed_index_bytes: Memory of the index of delayed messages.
        unacked: Messages delivered and not acknowledged.
        expired: Messages dropped by TTL since the topic was loaded.
        expired_per_s: Rate of messages dropped by TTL.
        redelivered_per_s: Rate of redeliveries.
        delivered: Messages delivered since the topic was loaded, redeliveries included.
        blocked: Too many messages are unacknowledged: delivery has stopped.
        active_consumer: Name of the consumer that gets messages (Failover, Exclusive).
        consumers: The connected consumers; None if they were not requested.
        is_durable: Its cursor is stored; the cursors of readers are not.
        asked_at_ms: Time when a consumer last granted permits, by the broker's clock; 0: none has since the topic was
            loaded.
    """

    type: str
    gap_count: int
    gap_bytes: int
    backlog: int
    delayed: int
    delayed_index_bytes: int
    unacked: int
    expired: int
    expired_per_s: float
    redelivered_per_s: float
    delivered: int
    blocked: bool
    active_consumer: str | None
    consumers: tuple[ConsumerStats, ...] | None
    is_durable: bool = True
    asked_at_ms: int = 0

    @property
    def is_consumed(self) -> bool:
        """True if any consumer but a shadow's is connected; the consumers must have been requested."""
        return any(one.name != SHADOW_ACKER for one in self.consumers or ())

    @property
    def stale_entries(self) -> int:
        """Lower bound of the delayed messages that are acknowledged (broker-facts: stale-index-entries-starve)."""
        return max(self.delayed - self.backlog, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStats:
    """A partition, a topic without partitions, or all partitions of a topic together.

    Args:
        published: Messages accepted since the topic was loaded; a reload restarts at 0.
        published_bytes: Their size as stored.
        storage_bytes: Size on disk, acknowledged or not.
        delayed_index_bytes: Sum over all subscriptions.
        deduplication: ``Enabled`` only when it is in force; empty in sums over partitions.
        owner: Broker that serves the topic; empty in sums over partitions.
        publishers: Number of connected producers; None if they were not requested.
        subscriptions: By name.
        producers: The connected producers; empty if they were not requested.
    """

    published: int
    published_bytes: int
    storage_bytes: int
    delayed_index_bytes: int
    deduplication: str
    owner: str
    publishers: int | None
    subscriptions: Mapping[str, SubscriptionStats]
    producers: tuple[ProducerStats, ...] = ()

    @property
    def gap_count(self) -> int:
        """Gaps over all subscriptions."""
        return sum(subscription.gap_count for subscription in self.subscriptions.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionedStats:
    """A partitioned topic: the sum, and each partition by its full name.

    A partition that no broker has loaded yet is missing from ``partitions``, and its counts from the sum.
    """

    partition_count: int
    total: TopicStats
    partitions: Mapping[str, TopicStats]


def stats_query(*, precise_backlog: bool, clients: bool) -> dict[str, str]:
    """Build a query that costs the broker no more than requested."""
    query = dict(CHEAP_QUERY)
    if precise_backlog:
        query["getPreciseBacklog"] = "true"
    if clients:
        del query["excludePublishers"], query["excludeConsumers"]
    return query


def read_topic_stats(stored: Mapping[str, Any], *, clients: bool) -> TopicStats:
    """Parse stats from the broker's JSON; a field that this broker's version lacks counts as 0."""
    return TopicStats(
        published=stored.get("msgInCounter", 0),
        published_bytes=stored.get("bytesInCounter", 0),
        storage_bytes=stored.get("storageSize", 0),
        delayed_index_bytes=stored.get("delayedMessageIndexSizeInBytes", 0),
        deduplication=stored.get("deduplicationStatus") or "",
        owner=stored.get("ownerBroker") or "",
        publishers=len(stored.get("publishers", ())) if clients else None,
        subscriptions={
            name: _subscription(subscription, clients=clients)
            for name, subscription in stored.get("subscriptions", {}).items()
        },
        producers=tuple(map(_producer, stored.get("publishers", ()))) if clients else (),
    )


def read_partitioned_stats(stored: Mapping[str, Any], *, clients: bool) -> PartitionedStats:
    """Parse stats of a partitioned topic from the broker's JSON."""
    return PartitionedStats(
        partition_count=stored["metadata"]["partitions"],
        total=read_topic_stats(stored, clients=clients),
        partitions={
            name: read_topic_stats(partition, clients=clients)
            for name, partition in sorted(stored.get("partitions", {}).items())
        },
    )


def _subscription(stored: Mapping[str, Any], *, clients: bool) -> SubscriptionStats:
    return SubscriptionStats(
        type=stored.get("type") or "None",
        gap_count=stored.get("nonContiguousDeletedMessagesRanges", 0),
        gap_bytes=stored.get("nonContiguousDeletedMessagesRangesSerializedSize", 0),
        backlog=stored.get("msgBacklog", 0),
        delayed=stored.get("msgDelayed", 0),
        delayed_index_bytes=stored.get("delayedMessageIndexSizeInBytes", 0),
        unacked=stored.get("unackedMessages", 0),
        expired=stored.get("totalMsgExpired", 0),
        expired_per_s=stored.get("msgRateExpired", 0.0),
        redelivered_per_s=stored.get("msgRateRedeliver", 0.0),
        delivered=stored.get("msgOutCounter", 0),
        blocked=stored.get("blockedSubscriptionOnUnackedMsgs", False),
        active_consumer=stored.get("activeConsumerName") or None,
        consumers=tuple(map(_consumer, stored.get("consumers", ()))) if clients else None,
        is_durable=stored.get("durable", True),
        asked_at_ms=stored.get("lastConsumedFlowTimestamp") or 0,
    )


def _producer(stored: Mapping[str, Any]) -> ProducerStats:
    return ProducerStats(
        name=stored.get("producerName") or "",
        address=stored.get("address") or "",
        client=stored.get("clientVersion") or "",
    )


def _consumer(stored: Mapping[str, Any]) -> ConsumerStats:
    return ConsumerStats(
        name=stored.get("consumerName") or "",
        address=stored.get("address") or "",
        unacked=stored.get("unackedMessages", 0),
        permits=stored.get("availablePermits", 0),
        blocked=stored.get("blockedConsumerOnUnackedMsgs", False),
        last_acked_at_ms=stored.get("lastAckedTimestamp") or 0,
        connected_since=stored.get("connectedSince") or "",
        key_ranges=tuple(map(str, stored.get("keyHashRanges") or ())),
        client=stored.get("clientVersion") or "",
        properties=stored.get("metadata") or {},
    )

"""Access to all partitions of a topic, partitioned or not: the admin API has a call for each kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.stats import DEDUPLICATION, SubscriptionStats, TopicStats
from timewheel.core.errors import AdminError, AdminUnreachable
from timewheel.core.names import DRAINS_PROPERTY, RELAY_CONSUMER, RELAY_SUBSCRIPTION, namespace_of, partition_of
from timewheel.core.topology import TopicSpec

ANEW_MS = 15_000  # a relay whose partition has failed waits ten seconds at most, and then subscribes again


def partitioned_among(admin: AdminClient, names: Iterable[str]) -> frozenset[str]:
    """Return the partitioned topics among whose partitions these names are.

    A name alone does not decide: a client that produces to ``x-partition-1`` creates a topic of that name, whether
    ``x`` exists or not. Takes a request for each namespace, or for each topic if the role may not list.
    """
    topics = {topic for topic, number in map(partition_of, names) if number >= 0}
    found: set[str] = set()
    for namespace in {namespace_of(topic) for topic in topics}:
        try:
            found |= topics & set(admin.topics.list_partitioned(namespace))
        except AdminUnreachable:
            raise
        except AdminError:
            own = {topic for topic in topics if namespace_of(topic) == namespace}
            found |= {topic for topic in own if admin.topics.partitions(topic)}
    return frozenset(found)


def whole_topic(admin: AdminClient, name: str) -> str:
    """Return the partitioned topic of a partition, or else the name itself."""
    return next(iter(partitioned_among(admin, [name])), name)


def loaded_parts(admin: AdminClient, spec: TopicSpec) -> Mapping[str, TopicStats]:
    """Return stats by full name; a partition that no broker has loaded is missing."""
    if spec.partitions:
        return admin.topics.partitioned_stats(spec.name).partitions
    return {spec.name: admin.topics.stats(spec.name)}


def relays_of(stats: TopicStats, *, drains: bool = False) -> frozenset[str]:
    """Return the ids of the relays that are connected to a partition of a holding topic, by its stats with clients.

    Or only the relays whose own plan no longer names the topic.
    """
    relays = stats.subscriptions.get(RELAY_SUBSCRIPTION)
    consumers = () if relays is None else relays.consumers or ()
    wanted = (
        RELAY_CONSUMER.fullmatch(one.name) for one in consumers if not drains or DRAINS_PROPERTY in one.properties
    )
    return frozenset(name[1] for name in wanted if name)


def begins_anew(relays: SubscriptionStats, now_ms: int) -> bool:
    """Return whether a partition of a holding topic had a relay a moment ago and has none now: the relay fails
    repeatedly, or has just stopped. The stats must include clients.
    """
    return not relays.consumers and relays.asked_at_ms > 0 and abs(now_ms - relays.asked_at_ms) < ANEW_MS


def producer_names(admin: AdminClient, spec: TopicSpec) -> int:
    """Return the number of producer names that the broker remembers for the fullest partition."""
    parts = (
        admin.topics.partitioned_internal_stats(spec.name).values()
        if spec.partitions
        else [admin.topics.internal_stats(spec.name)]
    )
    cursors = [part.cursors[DEDUPLICATION] for part in parts if DEDUPLICATION in part.cursors]
    return max((cursor.property_count for cursor in cursors), default=0)

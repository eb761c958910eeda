"""All parts of a topic, whether it is partitioned or not: the admin API has a call for each kind."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from timewheel.admin.client import AdminClient
from timewheel.admin.internals import DEDUPLICATION, InternalStats
from timewheel.admin.stats import SubscriptionStats, TopicStats
from timewheel.core.errors import AdminError, AdminUnreachable
from timewheel.core.names import DRAINS_PROPERTY, RELAY_CONSUMER, RELAY_SUBSCRIPTION, namespace_of, partition_of
from timewheel.core.topology import TopicSpec

__all__ = ["begins_anew", "loaded_parts", "partitioned_among", "producer_names", "relays_of", "whole_topic"]

ANEW_MS = 15_000
"""A relay whose partition has failed waits for ten seconds at most, and then subscribes again."""


def partitioned_among(admin: AdminClient, names: Iterable[str]) -> frozenset[str]:
    """The partitioned topics whose partitions these names are.

    A name does not say it: a client that produces to ``x-partition-1`` makes a topic of that name, be there an ``x`` or
    not. One request for each namespace, and one for each topic where the role may not list.
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
    """The topic that a name means: the partitioned one of a partition, else the name itself."""
    return next(iter(partitioned_among(admin, [name])), name)


def loaded_parts(admin: AdminClient, spec: TopicSpec) -> Mapping[str, TopicStats]:
    """Stats by full name; a partition that no broker has loaded is missing."""
    if spec.partitions:
        return admin.topics.partitioned_stats(spec.name).partitions
    return {spec.name: admin.topics.stats(spec.name)}


def relays_of(stats: TopicStats, *, drains: bool = False) -> frozenset[str]:
    """Ids of the relays that are connected to one part of a holding topic; its stats are those with clients.

    Args:
        stats: Of that part.
        drains: Only those whose own plan no longer names the topic.
    """
    relays = stats.subscriptions.get(RELAY_SUBSCRIPTION)
    consumers = () if relays is None else relays.consumers or ()
    wanted = (
        RELAY_CONSUMER.fullmatch(one.name) for one in consumers if not drains or DRAINS_PROPERTY in one.properties
    )
    return frozenset(name[1] for name in wanted if name)


def begins_anew(relays: SubscriptionStats, now_ms: int) -> bool:
    """Whether no relay is connected to a part of a holding topic, and one was a moment ago: it fails again and again,
    or has just ended. Its stats are those with clients.
    """
    return not relays.consumers and relays.asked_at_ms > 0 and abs(now_ms - relays.asked_at_ms) < ANEW_MS


def producer_names(admin: AdminClient, spec: TopicSpec) -> int:
    """How many producers' names the broker remembers of the fullest part."""
    cursors = [part.cursors[DEDUPLICATION] for part in _stored(admin, spec) if DEDUPLICATION in part.cursors]
    return max((cursor.property_count for cursor in cursors), default=0)


def _stored(admin: AdminClient, spec: TopicSpec) -> Collection[InternalStats]:
    if spec.partitions:
        return admin.topics.partitioned_internal_stats(spec.name).values()
    return [admin.topics.internal_stats(spec.name)]

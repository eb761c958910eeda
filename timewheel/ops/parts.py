"""Stats of all parts of a topic, whether it is partitioned or not: the admin API has a call for each kind."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from timewheel.admin.client import AdminClient
from timewheel.admin.internals import DEDUPLICATION, InternalStats
from timewheel.admin.stats import TopicStats
from timewheel.core.topology import TopicSpec

__all__ = ["loaded_parts", "producer_names"]


def loaded_parts(admin: AdminClient, spec: TopicSpec) -> Mapping[str, TopicStats]:
    """Stats by full name; a partition that no broker has loaded is missing."""
    if spec.partitions:
        return admin.topics.partitioned_stats(spec.name).partitions
    return {spec.name: admin.topics.stats(spec.name)}


def producer_names(admin: AdminClient, spec: TopicSpec) -> int:
    """How many producers' names the broker remembers of the fullest part."""
    cursors = [part.cursors[DEDUPLICATION] for part in _stored(admin, spec) if DEDUPLICATION in part.cursors]
    return max((cursor.property_count for cursor in cursors), default=0)


def _stored(admin: AdminClient, spec: TopicSpec) -> Collection[InternalStats]:
    if spec.partitions:
        return admin.topics.partitioned_internal_stats(spec.name).values()
    return [admin.topics.internal_stats(spec.name)]

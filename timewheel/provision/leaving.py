"""Delete a topic that may have connected clients (broker-facts: removing-a-topic, end-of-a-topic)."""

from __future__ import annotations

from collections.abc import Iterable

from timewheel.broker.admin.client import AdminClient
from timewheel.core.clock import pause
from timewheel.core.durations import SECOND_MS
from timewheel.core.errors import AdminError, AdminMissing

RECONNECT_MS = 3 * SECOND_MS
"""A client that loses its connection reconnects after 0.1 to 1.1 s (measured with pulsar-client 3.13)."""


def connected_clients(admin: AdminClient, topic: str) -> int:
    """Count the producers and consumers that are connected to a partitioned topic."""
    try:
        partitions = admin.topics.partitioned_stats(topic, clients=True).partitions.values()
    except AdminMissing:
        return 0
    return sum(
        (partition.publishers or 0)
        + sum(len(subscription.consumers or ()) for subscription in partition.subscriptions.values())
        for partition in partitions
    )


def delete_once_left(admin: AdminClient, topics: Iterable[str]) -> frozenset[str]:
    """Delete partitioned topics, unforced, except those with a client that is connected or about to reconnect.

    A client whose topic was terminated drops its connection and reconnects. A delete in that moment would succeed, and
    the client would create the topic anew. So two reads in a row must find no client.

    Returns:
        The deleted topics.
    """
    left = [topic for topic in topics if not connected_clients(admin, topic)]
    if left:
        pause(admin.clock, RECONNECT_MS)
    return frozenset(topic for topic in left if not connected_clients(admin, topic) and _delete(admin, topic))


def _delete(admin: AdminClient, topic: str) -> bool:
    try:
        admin.topics.delete(topic)  # never forced
    except AdminError as error:
        if error.status != 412:  # Precondition Failed: producers or consumers are connected
            raise
        return False
    return True

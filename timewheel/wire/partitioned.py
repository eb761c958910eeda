"""Whether a partitioned topic exists; asking does not create it."""

from __future__ import annotations

import pulsar

from timewheel.core.names import partition_of
from timewheel.wire.surface import ClientLike

__all__ = ["partition_count"]


def partition_count(client: ClientLike, topic: str) -> int:
    """How many partitions a topic has; 0: there is none of that name, or it is not partitioned.

    Raises:
        pulsar.PulsarException: The broker did not answer.
    """
    try:
        # An unpartitioned or missing topic is answered with its own name alone.
        names = client.get_topic_partitions(topic)
    except pulsar.TopicNotFound:
        return 0
    return sum(partition_of(name)[1] >= 0 for name in names)

"""Whether a plan's topics are there, as far as a client can tell; asking does not create them."""

from __future__ import annotations

import pulsar

from timewheel.core.errors import TopologyError
from timewheel.core.names import Names, partition_of
from timewheel.wire.surface import ClientLike

__all__ = ["partition_count", "unpartitioned_problem"]


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


def unpartitioned_problem(client: ClientLike, names: Names, topic: str) -> TopologyError | None:
    """Why a due topic that the plan says is not partitioned cannot be used; None: it can.

    Whether it is there no client can tell (broker-facts: unpartitioned-topics). So it is looked whether provisioning
    has come past it.

    Args:
        client: The user's.
        names: The plan's.
        topic: The due topic.

    Raises:
        pulsar.PulsarException: The broker did not answer.
    """
    if not partition_count(client, names.dead_letter):
        return TopologyError(
            topic,
            f"was not made for this plan: {names.dead_letter}, which is made after it, does not exist",
            "run: timewheel topics ensure PLAN",
        )
    partitions = partition_count(client, topic)
    if not partitions:
        return None
    return TopologyError(
        topic,
        f"has {partitions} partition{'s' if partitions > 1 else ''}, and the plan says partitions = 0: that it is not "
        "partitioned",
        f"write partitions = {partitions} in the plan",
    )

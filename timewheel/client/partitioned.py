"""Checks that a plan's topics exist, as far as a client can detect it, without creating them."""

from __future__ import annotations

import pulsar

from timewheel.client.surface import ClientLike
from timewheel.core.errors import TopologyError
from timewheel.core.names import Names, partition_of


def partition_count(client: ClientLike, topic: str) -> int:
    """Return the number of partitions of a topic; 0: the topic does not exist, or is not partitioned.

    Raises:
        pulsar.PulsarException: The broker did not answer.
    """
    try:
        # For an unpartitioned or missing topic the answer is the topic's own name.
        names = client.get_topic_partitions(topic)
    except pulsar.TopicNotFound:
        return 0
    return sum(partition_of(name)[1] >= 0 for name in names)


def unpartitioned_problem(client: ClientLike, names: Names, topic: str) -> TopologyError | None:
    """Return the problem of a due topic that the plan declares unpartitioned; None: the topic is usable.

    No client can detect whether an unpartitioned topic exists (broker-facts: unpartitioned-topics). So this checks for
    the dead-letter topic, which provisioning creates after it.

    Args:
        client: The user's client.
        names: Names of the plan's topics.
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

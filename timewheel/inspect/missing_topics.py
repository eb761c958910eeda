"""The reason why a topic is not there: its namespace is missing, or its name is misspelt."""

from __future__ import annotations

from timewheel.broker.admin.client import AdminClient
from timewheel.core.errors import AdminError, AdminMissing
from timewheel.core.names import namespace_of, partition_of
from timewheel.core.near_words import did_you_mean

NO_TOPIC = "there is no such topic"
MAX_NAMES = 10_000
"""Limit of names that are compared: a comparison takes some 50 microseconds."""


def no_such_topic(admin: AdminClient, topic: str) -> str:
    """Return the problem with a topic that does not exist, with the most similar name in its namespace if there is one.

    Args:
        admin: Client whose role may list the namespace; if it may not, only the fact is stated.
        topic: Full name, without a partition suffix.
    """
    namespace = namespace_of(topic)
    try:
        names = {partition_of(name)[0] for name in admin.topics.list(namespace)}
    except AdminMissing:
        return f"{NO_TOPIC}, and no namespace {namespace}: correct the name"
    except AdminError:
        return NO_TOPIC
    near = did_you_mean(topic, sorted(names)[:MAX_NAMES])
    return NO_TOPIC + (near or f"; {namespace} has {len(names):,} others")

"""A topic that is not there, with the reason, and a topic that has a shadow, by the properties of its journal."""

from __future__ import annotations

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.http import asked
from timewheel.broker.admin.stats import ProducerStats, TopicStats
from timewheel.core.errors import AdminError, AdminMissing, did_you_mean
from timewheel.core.names import MOVER_PREFIX, STATE_PROPERTY, journal_topic, namespace_of, partition_of

NO_TOPIC = "there is no such topic"
MAX_NAMES = 10_000  # limit of names that are compared: a comparison takes some 50 microseconds


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


MOVING = "shadowing"
UNDER_WAY = frozenset({MOVING, "paused", "draining"})
"""States in which the journal may contain the only copy of a timer."""
ENDS = frozenset({"draining", "native"})
"""States in which all timers go back, and no new timer is moved: the plan is being left, or was."""


def shadow_of(admin: AdminClient, topic: str) -> str | None:
    """Return the desired state of a topic's shadow, in `UNDER_WAY`; None without a shadow, or without permission.

    Raises:
        AdminUnreachable: No broker answers.
    """
    properties = asked(lambda: admin.topics.properties(journal_topic(topic)), lambda _: None) or {}
    state = properties.get(STATE_PROPERTY, "").partition(" ")[0]
    return state if state in UNDER_WAY else None


def mover_in(journal: TopicStats) -> ProducerStats | None:
    """Return the mover that is connected to a partition of the journal, in whichever state; None: there is none.

    Args:
        journal: Stats of the partition, with its clients.
    """
    return next((one for one in journal.producers if one.name.startswith(MOVER_PREFIX)), None)

"""The facts about a topic before any timer moves: those that the doctor reads, and those that only a shadow needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.policies import COMPACTION_BYTES, REPLICATION_CLUSTERS
from timewheel.broker.admin.stats import TERMINATED, CursorStats, InternalStats, TopicStats, is_users
from timewheel.core.names import parts_of
from timewheel.core.plan import Plan
from timewheel.inspect.doctor import Seen, Unread, inspect_topic
from timewheel.inspect.doctor.seen import Asking, SeenTopic, Source
from timewheel.shadow.machine.acked import Acked

COMPACTION_CURSOR = "__compaction"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts by which the checks decide.

    Args:
        plan: The plan for the topic's shadow.
        seen: The doctor's view of the due topic as an ordinary topic.
        parts: Internal stats of each existing partition.
        compaction_bytes: The threshold in force; None: unknown, or not set anywhere.
        replicated_to: Clusters by the topic's own policy; None: it has none, or it may not be read.
        unread: Facts that could not be read, by the doctor or here.
    """

    plan: Plan
    seen: Seen
    parts: Mapping[str, InternalStats] = field(default_factory=dict)
    compaction_bytes: int | None = None
    replicated_to: tuple[str, ...] | None = None
    unread: tuple[Unread, ...] = ()

    @property
    def topic(self) -> SeenTopic:
        """The due topic."""
        return self.seen.topics[0]

    @property
    def partitions(self) -> int:
        """Number of partitions of the topic; 0: it is not partitioned."""
        return self.topic.state.partitions or 0

    @property
    def types(self) -> Mapping[str, frozenset[str]]:
        """Types of each durable subscription, over all partitions: ``None`` (a text) without a known consumer."""
        found: dict[str, set[str]] = {}
        for _, name, subscription in self.topic.subscriptions():
            found.setdefault(name, set()).add(subscription.type)
        return {name: frozenset(types) for name, types in sorted(found.items()) if is_users(name)}

    @property
    def is_ended(self) -> bool:
        """True if the topic is terminated."""
        return any(part.state == TERMINATED for part in self.parts.values())


def cursors_in(internal: InternalStats, stats: TopicStats) -> dict[str, CursorStats]:
    """Return the cursors of the users' durable subscriptions, without those of readers.

    Args:
        internal: Internal stats of a partition.
        stats: Stats of the same partition.
    """
    return {
        name: internal.cursors[name]
        for name, subscription in sorted(stats.subscriptions.items())
        if subscription.is_durable and is_users(name) and name in internal.cursors
    }


def acked_in(internal: InternalStats, stats: TopicStats) -> dict[str, Acked]:
    """Return the acknowledged entries of each of these cursors."""
    return {name: Acked.of(cursor) for name, cursor in cursors_in(internal, stats).items()}


def facts_about(admin: AdminClient, plan: Plan, *, target: str) -> Facts:
    """Read all facts; refused calls are recorded.

    Args:
        admin: Its role may see the topic's stats; a role that administers the tenant sees more, a superuser all.
        plan: Names the topic.
        target: Name of the plan as the user typed it.

    Raises:
        NoSuchTarget: The topic does not exist.
        AdminUnreachable: No broker answers.
    """
    seen = inspect_topic(admin, plan.due_topic)
    asking = Asking()
    topic = seen.topics[0]
    parts = {
        name: found
        for name in parts_of(topic.name, topic.state.partitions or 0)
        if (found := asking.ask(Source.TOPICS, name, partial(admin.topics.internal_stats, name))) is not None
    }
    compaction = replicated = None
    if seen.has_topic_policies:
        policies = admin.topic_policies
        compaction = asking.ask(
            Source.POLICIES, topic.name, lambda: policies.get(topic.name, COMPACTION_BYTES, applied=True)
        )
        replicated = asking.ask(Source.POLICIES, topic.name, lambda: policies.get(topic.name, REPLICATION_CLUSTERS))
    unread = {(one.source, one.subject): one for one in (*seen.unread, *asking.unread)}
    return Facts(
        plan=plan,
        seen=replace(seen, target=target),
        parts=parts,
        compaction_bytes=compaction,
        replicated_to=replicated,
        unread=tuple(unread.values()),
    )

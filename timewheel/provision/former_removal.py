"""Remove topics of earlier plans once they are empty.

As with calendar topics (broker-facts: removing-a-topic), a topic is **terminated**, so that no message can be added;
then its backlog is read again; and only then it is deleted, unforced. All of this happens while no client is connected:
relays let go of topics that they find empty.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum

from timewheel.broker.admin.client import AdminClient
from timewheel.core.clock import pause
from timewheel.core.durations import SECOND_MS
from timewheel.core.names import partition_of
from timewheel.core.plan import Plan
from timewheel.core.plurals import counted
from timewheel.core.topology import FormerTopic
from timewheel.provision.former_topics import FormerTopics, former_names
from timewheel.provision.leaving import connected_clients, delete_once_left

LET_GO_MS = 150 * SECOND_MS
"""Relays let go of a topic that they find empty twice, a minute apart."""
LOOK_AGAIN_MS = 2 * SECOND_MS


class RemovalStage(Enum):
    """Progress of removing a topic of an earlier plan."""

    WAITS = "waits"
    """Timers wait in the topic."""
    IN_USE = "in use"
    """The topic is empty, but has connected clients: relays that still watch it, or clients of the earlier plan."""
    EMPTY = "empty"
    """The topic can be removed; only in a dry run."""
    REMOVED = "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Removal of a topic of an earlier plan.

    Args:
        topic: Full name.
        stage: Present stage.
        backlog: Waiting entries.
        clients: Connected producers and consumers.
    """

    topic: str
    stage: RemovalStage
    backlog: int = 0
    clients: int = 0

    def __str__(self) -> str:
        match self.stage:
            case RemovalStage.WAITS:
                return f"{counted(self.backlog, 'entry waits', 'entries wait')} there"
            case RemovalStage.IN_USE:
                return (
                    f"empty, but {counted(self.clients, 'client is', 'clients are')} connected: "
                    "run this again when they have gone"
                )
            case RemovalStage.EMPTY:
                return "empty: would be removed"
            case RemovalStage.REMOVED:
                return "removed"


def remove_drained(
    admin: AdminClient,
    plan: Plan,
    *,
    dry_run: bool = False,
    let_go_ms: int = LET_GO_MS,
    waits_for: Callable[[Removal], None] | None = None,
) -> tuple[Removal, ...]:
    """Remove the topics of earlier plans that are empty and have no connected client.

    An interruption or a concurrent run does no harm. No waiting entry is removed, and no client is disconnected.

    Args:
        admin: Client of the cluster; its role must administer the tenant.
        plan: The present plan.
        dry_run: Change nothing.
        let_go_ms: Time to wait for relays to let go.
        waits_for: Called once for each topic that is waited for.

    Returns:
        All topics of earlier plans, by name.

    Raises:
        AdminDenied, AdminError: A call failed; run it again.
    """
    inspect = FormerTopics(admin, plan)
    deadline_ms = admin.clock.monotonic_ms() + let_go_ms
    removed: dict[str, Removal] = {}
    told: set[str] = set()
    while True:
        # A topic without partitions is left to its owner: the topics of timewheel are partitioned.
        found = [_removal(admin, topic) for topic in inspect() if topic.is_partitioned]
        if dry_run:
            break
        empty = [removal.topic for removal in found if removal.stage is RemovalStage.EMPTY]
        for topic in _remove(admin, plan, empty):
            removed[topic] = Removal(topic=topic, stage=RemovalStage.REMOVED)
        found = [removal for removal in found if removal.topic not in removed]
        in_use = [removal for removal in found if removal.stage is not RemovalStage.WAITS]
        if not in_use or admin.clock.monotonic_ms() >= deadline_ms:
            break
        for removal in in_use:
            if waits_for is not None and removal.topic not in told:
                waits_for(removal)
            told.add(removal.topic)
        pause(admin.clock, LOOK_AGAIN_MS)
    return tuple(sorted([*found, *removed.values()], key=lambda removal: removal.topic))


def _removal(admin: AdminClient, topic: FormerTopic) -> Removal:
    if topic.backlog:
        return Removal(topic=topic.name, stage=RemovalStage.WAITS, backlog=topic.backlog)
    clients = connected_clients(admin, topic.name)
    stage = RemovalStage.IN_USE if clients else RemovalStage.EMPTY
    return Removal(topic=topic.name, stage=stage, clients=clients)


def _remove(admin: AdminClient, plan: Plan, topics: Collection[str]) -> frozenset[str]:
    """Remove topics that are empty and have no connected client.

    Returns:
        The removed topics; the state of the others has changed meanwhile.
    """
    orphans = {topic for topic in topics if admin.topics.partitions(topic) is None}
    if orphans:
        # Partitions without their topic, as created by a client that connects to a topic during its removal.
        for name in former_names(admin, plan):
            if partition_of(name)[0] in orphans:
                admin.topics.delete_unpartitioned(name)
    ended = {*topics} - orphans
    for topic in ended:
        admin.topics.terminate(topic)
    if ended:
        # Read after termination: before it, a backlog of 0 could still grow.
        ended -= {topic.name for topic in FormerTopics(admin, plan)() if topic.backlog}
    return frozenset(orphans) | delete_once_left(admin, sorted(ended))

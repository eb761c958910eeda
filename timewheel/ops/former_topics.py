"""What still waits in topics of earlier plans, asked of the broker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from timewheel.admin.client import AdminClient
from timewheel.core.errors import AdminMissing
from timewheel.core.former_topics import FormerTopic, former_topics
from timewheel.core.names import namespace_of, partition_of
from timewheel.core.plan import Plan

__all__ = ["FormerTopics", "waiting"]


class FormerTopics:
    """Looks for timers outside a plan; hand it to the plan's `Relay`, which then refuses to leave them behind.

    Args:
        admin: Client of the cluster; its role must be able to list the plan's namespaces.
        plan: The plan.
        beside: Plans whose relays and consumers run beside this one's.
    """

    def __init__(self, admin: AdminClient, plan: Plan, *, beside: Iterable[Plan] = ()) -> None:
        self._admin = admin
        self._plan = plan
        self._beside = tuple(beside)

    def __call__(self) -> tuple[FormerTopic, ...]:
        """Those in which something waits.

        Raises:
            AdminError: The broker did not tell.
        """
        names: list[str] = []
        for namespace in _namespaces(self._plan):
            try:
                names += self._admin.topics.list(namespace)
            except AdminMissing:
                continue  # nothing can wait in a namespace that is not there
        return waiting(self._admin, self._plan, names, beside=self._beside)


def waiting(
    admin: AdminClient, plan: Plan, names: Sequence[str], *, beside: Iterable[Plan] = ()
) -> tuple[FormerTopic, ...]:
    """Of the topics that are listed, the former ones in which something waits.

    Args:
        admin: Client of the cluster.
        plan: The plan.
        names: All topics of its namespaces, each partition by its own name.
        beside: Plans whose relays and consumers run beside this one's.
    """
    former = set(former_topics(plan, names, beside=beside))
    backlogs: defaultdict[str, int] = defaultdict(int)
    for name in names:
        topic = partition_of(name)[0]
        if topic in former:
            backlogs[topic] += _backlog(admin, name)
    return tuple(FormerTopic(name=name, backlog=backlogs[name]) for name in sorted(backlogs) if backlogs[name])


def _backlog(admin: AdminClient, topic: str) -> int:
    """What waits in one partition, which this loads: in a sum over partitions one that nobody has loaded counts 0."""
    try:
        stats = admin.topics.stats(topic, precise_backlog=True)
    except AdminMissing:
        return 0  # removed since it was listed
    return max((subscription.backlog for subscription in stats.subscriptions.values()), default=0)


def _namespaces(plan: Plan) -> tuple[str, ...]:
    due = namespace_of(plan.due_topic)
    return tuple(sorted({due, plan.holding_namespace or due}))

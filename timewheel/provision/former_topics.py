"""Find topics of earlier plans and their backlogs on the broker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.parts import relays_of
from timewheel.core.errors import AdminError, AdminMissing, AdminUnreachable
from timewheel.core.names import PARKED_SUBSCRIPTION, RELAY_SUBSCRIPTION, Names, partition_of
from timewheel.core.plan import Plan
from timewheel.core.topology import FormerTopic, former_topics, topology
from timewheel.provision.provisioned import provisioned, with_noted_namespaces


class FormerTopics:
    """Finds topics of earlier plans; passed to the plan's `Relay`, which then drains them.

    Args:
        admin: Client of the cluster; its role must be able to list the plan's namespaces.
        plan: The plan.
        beside: Plans whose relays and consumers run beside those of this plan.
    """

    def __init__(self, admin: AdminClient, plan: Plan, *, beside: Iterable[Plan] = ()) -> None:
        self._admin = admin
        self._plan = plan
        self._beside = tuple(beside)

    def __call__(self) -> tuple[FormerTopic, ...]:
        """Return all topics of earlier plans, empty ones included: clients of an earlier plan may still send to them.

        Raises:
            AdminError: A call failed.
        """
        return look_into(self._admin, self._plan, former_names(self._admin, self._plan), beside=self._beside)


def former_names(admin: AdminClient, plan: Plan, *, besides: Iterable[str] = ()) -> list[str]:
    """List all topics of the namespaces that may contain topics of the plan or of an earlier plan.

    Args:
        admin: Client of the cluster.
        plan: The plan.
        besides: Namespaces to leave out, since their topics are known already.
    """
    names: list[str] = []
    for namespace in sorted({*Names(plan).namespaces} - {*besides}):
        with suppress(AdminMissing):  # a missing namespace has no waiting timers
            names += admin.topics.list(namespace)
    return names


def look_into(
    admin: AdminClient, plan: Plan, names: Sequence[str], *, beside: Iterable[Plan] = ()
) -> tuple[FormerTopic, ...]:
    """Select the topics of earlier plans from a list, each with its backlog.

    Args:
        admin: Client of the cluster.
        plan: The plan.
        names: All topics of its namespaces, each partition under its own name.
        beside: Plans whose relays and consumers run beside those of this plan.
    """
    partitions: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        partitions[partition_of(name)[0]].append(name)
    found: list[FormerTopic] = []
    for topic in former_topics(plan, names, beside=beside):
        seen = [_waiting(admin, name, _readers_of(plan, topic)) for name in partitions[topic.name]]
        waits = [part.drained_by for part in seen if part.backlog]
        found.append(
            replace(
                topic,
                backlog=sum(part.backlog for part in seen),
                producers=sum(part.producers for part in seen),
                relays=_sorted(part.relays for part in seen),
                drained_by=_sorted(waits) if all(waits) else (),
            )
        )
    return tuple(found)


def waiting_in_former(
    admin: AdminClient, plan: Plan, cannot: Callable[[str, AdminError], None]
) -> tuple[FormerTopic, ...]:
    """Return topics of earlier plans with a backlog, also in namespaces that the plan does not name.

    Args:
        admin: Client of the cluster.
        plan: The plan.
        cannot: Called with each subject that could not be read, and the error.

    Raises:
        AdminUnreachable: No broker answers.
    """
    found: list[FormerTopic] = []
    whole = plan
    try:
        whole = with_noted_namespaces(plan, provisioned(admin, plan.due_topic))
    except AdminUnreachable:
        raise
    except AdminError as error:
        cannot(f"what is noted beside {plan.due_topic}", error)
    for namespace in Names(whole).namespaces:
        try:
            found += [topic for topic in look_into(admin, whole, admin.topics.list(namespace)) if topic.backlog]
        except AdminMissing:
            continue  # a missing namespace has no waiting timers
        except AdminUnreachable:
            raise
        except AdminError as error:
            cannot(f"topics of earlier plans in {namespace}", error)
    return tuple(found)


def _readers_of(plan: Plan, topic: FormerTopic) -> set[str]:
    """Return the subscriptions that must exist; without them, no entry has been acknowledged."""
    if topic.holding is not None:
        return {RELAY_SUBSCRIPTION}
    if topic.parked_by is not None:
        return {PARKED_SUBSCRIPTION}
    return {*plan.subscriptions} if topic.is_due else set()


def held_backlog(admin: AdminClient, plan: Plan, *, with_former: bool = False) -> int:
    """Count the entries that wait in the holding topics of a plan.

    Args:
        admin: Client of the cluster.
        plan: The plan.
        with_former: Include the holding topics of earlier plans.

    Raises:
        AdminError: A call failed.
    """
    names = former_names(admin, plan)
    holding = {topic.name for topic in topology(plan, admin.clock.now_ms()).holding}
    if with_former:
        holding |= {topic.name for topic in former_topics(plan, names) if topic.holding is not None}
    partitions = [name for name in names if partition_of(name)[0] in holding]
    return sum(_waiting(admin, name, {RELAY_SUBSCRIPTION}).backlog for name in partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    backlog: int = 0
    producers: int = 0
    relays: frozenset[str] = frozenset()
    drained_by: frozenset[str] = frozenset()


def _sorted(relays: Iterable[frozenset[str]]) -> tuple[str, ...]:
    return tuple(sorted(frozenset[str]().union(*relays)))


def _waiting(admin: AdminClient, topic: str, wanted: AbstractSet[str]) -> _Part:
    """Read a partition's backlog and clients, which loads the partition: in a sum, an unloaded partition counts 0."""
    try:
        stats = admin.topics.stats(topic, precise_backlog=True, clients=True)
        subscriptions, producers = stats.subscriptions, stats.publishers or 0
        if not subscriptions or not wanted <= subscriptions.keys():
            # No consumer acknowledged anything for a missing subscription.
            return _Part(backlog=admin.topics.internal_stats(topic).entries, producers=producers)
    except AdminMissing:
        return _Part()  # removed since it was listed
    return _Part(
        backlog=max(subscription.backlog for subscription in subscriptions.values()),
        producers=producers,
        relays=relays_of(stats),
        drained_by=relays_of(stats, drains=True),
    )

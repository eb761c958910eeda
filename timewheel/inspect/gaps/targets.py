"""Resolve targets named by a user to topics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.names import DOMAINS
from timewheel.core.errors import AdminDenied, AdminError, AdminMissing, AdminUnreachable
from timewheel.core.names import partition_of, parts_of
from timewheel.core.plan import Plan
from timewheel.core.topology import topology
from timewheel.inspect.errors import NoSuchTarget
from timewheel.inspect.gaps.snapshot import Unseen
from timewheel.inspect.missing_topics import no_such_topic

EVERYTHING = "*"
"""A target that stands for every tenant."""
_SLASHES_OF_A_TOPIC = 2
_OWN_TOPIC = "__"
"""Prefix of the topics that the broker reserves for itself in each namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Topics to read.

    Args:
        topics: Full names of partitions, and of topics without partitions; each once, in order.
        unseen: Targets that do not exist or may not be read; namespaces and tenants within others whose topics may not
            be listed.
        missing: Topics of plans that do not exist.
        named: Full names of the topics that the user named, directly or by a plan; without a partition suffix.
    """

    topics: tuple[str, ...]
    unseen: tuple[Unseen, ...]
    missing: tuple[str, ...] = ()
    named: frozenset[str] = frozenset()


def topics_of(admin: AdminClient, names: Iterable[str], plans: Iterable[Plan] = ()) -> Targets:
    """Resolve names and plans to topics. A target that does not exist, or may not be read, hides no other.

    Args:
        admin: Client that lists topics.
        names: Each a topic (``persistent://tenant/namespace/topic``, or without the scheme), a partition, a namespace
            (``tenant/namespace``), a tenant, or `EVERYTHING`.
        plans: Plans with all their topics.

    Raises:
        NoSuchTarget: The only target does not exist, or its name is invalid.
        AdminUnreachable: No broker answers.
        AdminError: The only target may not be read.
    """
    wanted, of_plans = list(names), list(plans)
    is_alone = len(wanted) + len(of_plans) == 1
    found: dict[str, None] = {}
    unseen: list[Unseen] = []
    missing: list[str] = []
    named: set[str] = set()
    for name in wanted:
        try:
            topics = _topics_in(admin, name, unseen)
        except AdminUnreachable:
            raise
        except (AdminError, NoSuchTarget) as error:
            if is_alone:
                raise
            reason = error.reason if isinstance(error, AdminError) else error.problem
            unseen.append(Unseen(what=name, reason=reason, is_target=True))
            continue
        found |= dict.fromkeys(topics)
        if _is_topic(name):
            named |= {partition_of(topic)[0] for topic in topics}
    for plan in of_plans:
        of_plan = _of_plan(admin, plan, unseen, missing)
        named |= {partition_of(topic)[0] for topic in of_plan}
        found |= dict.fromkeys(of_plan)
    return Targets(
        topics=tuple(found), unseen=tuple(unseen), missing=tuple(dict.fromkeys(missing)), named=frozenset(named)
    )


def _of_plan(admin: AdminClient, plan: Plan, unseen: list[Unseen], missing: list[str]) -> list[str]:
    found: list[str] = []
    for topic in topology(plan, admin.clock.now_ms()).topics:
        try:
            found += _parts(admin, topic.name)
        except AdminUnreachable:
            raise
        except NoSuchTarget:
            missing.append(topic.name)
        except AdminError as error:
            unseen.append(Unseen(what=topic.name, reason=error.reason, is_target=True))
    return found


def _topics_in(admin: AdminClient, name: str, unseen: list[Unseen]) -> list[str]:
    if _is_topic(name):
        return _parts(admin, full_name(name))
    namespaces = _namespaces_in(admin, name, unseen)
    return [topic for own in namespaces for topic in _listed(admin, own, unseen, only=own == name)]


def _is_topic(name: str) -> bool:
    return "://" in name or name.count("/") == _SLASHES_OF_A_TOPIC


def full_name(name: str) -> str:
    """Return a topic's full name, also from ``tenant/namespace/topic``.

    Raises:
        NoSuchTarget: The topic is not persistent.
    """
    topic = name if "://" in name else f"{DOMAINS[0]}://{name}"
    domain = topic.partition("://")[0]
    if domain != DOMAINS[0]:
        problem = "a topic that is not persistent has no cursors that could be lost"
        raise NoSuchTarget(name, problem if domain in DOMAINS else f"a topic's name begins with {DOMAINS[0]}://")
    return topic


def _namespaces_in(admin: AdminClient, name: str, unseen: list[Unseen]) -> list[str]:
    """Return the namespaces of a target that is not a topic."""
    if name == EVERYTHING:
        try:
            tenants = admin.tenants.list()
        except AdminDenied as error:
            raise NoSuchTarget("all tenants", f"only a superuser may list them ({error.reason}); name yours") from None
        return [namespace for tenant in tenants for namespace in _of_tenant(admin, tenant, unseen, only=False)]
    return [name] if "/" in name else _of_tenant(admin, name, unseen, only=True)


def _of_tenant(admin: AdminClient, tenant: str, unseen: list[Unseen], *, only: bool) -> list[str]:
    try:
        return list(admin.namespaces.list(tenant))
    except AdminMissing:
        if only:
            raise NoSuchTarget(tenant, "there is no such tenant") from None
        return []
    except AdminUnreachable:
        raise
    except AdminError as error:
        if only:
            raise
        unseen.append(Unseen(what=tenant, reason=error.reason))
        return []


def _listed(admin: AdminClient, namespace: str, unseen: list[Unseen], *, only: bool) -> list[str]:
    """List the topics of a namespace, each partition under its own name, without the broker's own topics."""
    try:
        topics = admin.topics.list(namespace)
    except AdminMissing:
        if only:
            raise NoSuchTarget(namespace, "there is no such namespace") from None
        return []
    except AdminUnreachable:
        raise
    except AdminError as error:
        if only:
            raise
        unseen.append(Unseen(what=namespace, reason=error.reason))
        return []
    return sorted((topic for topic in topics if not topic.rpartition("/")[2].startswith(_OWN_TOPIC)), key=partition_of)


def _parts(admin: AdminClient, topic: str) -> list[str]:
    """Return the partitions of a topic, or the topic itself if it has none."""
    partitions = admin.topics.partitions(topic)
    if partitions is None:
        raise NoSuchTarget(topic, no_such_topic(admin, topic))
    # Older brokers report 0 partitions for a missing topic: the read then finds nothing.
    return list(parts_of(topic, partitions))

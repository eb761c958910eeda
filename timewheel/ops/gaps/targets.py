"""Targets: what a user names, as the topics that are looked at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from timewheel.admin.client import AdminClient
from timewheel.admin.names import DOMAINS
from timewheel.core.errors import AdminDenied, AdminError, AdminMissing, AdminUnreachable
from timewheel.core.names import partition_of, parts_of
from timewheel.core.plan import Plan
from timewheel.core.topology import topology
from timewheel.ops.errors import NoSuchTarget
from timewheel.ops.gaps.looking import Unseen

__all__ = ["EVERYTHING", "Targets", "full_name", "topics_of"]

EVERYTHING = "*"
"""Instead of names: every tenant."""
_SLASHES_OF_A_TOPIC = 2
_OWN_TOPIC = "__"
"""How the names of topics begin that the broker keeps for itself in each namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Topics to look at.

    Args:
        topics: Full names of partitions, and of topics without partitions; each once, in order.
        unseen: Targets that are not there or may not be looked at; namespaces and tenants within others whose topics
            may not be listed.
        missing: Topics of plans that are not there.
        named: Full names of the topics that were asked for by name, or by a plan; without a partition suffix.
    """

    topics: tuple[str, ...]
    unseen: tuple[Unseen, ...]
    missing: tuple[str, ...] = ()
    named: frozenset[str] = frozenset()


def topics_of(admin: AdminClient, names: Iterable[str], plans: Iterable[Plan] = ()) -> Targets:
    """The topics that are meant. A target that is not there, or may not be looked at, hides no other.

    Args:
        admin: Asked for what is there.
        names: Each a topic (``persistent://tenant/namespace/topic``, or without the scheme), one of its partitions, a
            namespace (``tenant/namespace``), a tenant, or `EVERYTHING`.
        plans: With all their topics.

    Raises:
        NoSuchTarget: There is no such topic, namespace or tenant, or it is no name; and nothing else was asked for.
        AdminUnreachable: No broker answers.
        AdminError: The one thing that was asked for may not be looked at.
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
    """A topic's full name, also from ``tenant/namespace/topic``.

    Raises:
        NoSuchTarget: It is not persistent.
    """
    topic = name if "://" in name else f"{DOMAINS[0]}://{name}"
    if not topic.startswith(f"{DOMAINS[0]}://"):
        raise NoSuchTarget(name, "a topic that is not persistent has no cursors that could be lost")
    return topic


def _namespaces_in(admin: AdminClient, name: str, unseen: list[Unseen]) -> list[str]:
    """The namespaces that are meant by a name that is not a topic's."""
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
    """Its topics, each partition for itself, without those of the broker."""
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
    """The partitions of a topic, or itself."""
    partitions = admin.topics.partitions(topic)
    if partitions is None:
        raise NoSuchTarget(topic, "there is no such topic")
    # Older brokers say of a topic that is not there that it has no partitions: the look finds nothing then.
    return list(parts_of(topic, partitions))

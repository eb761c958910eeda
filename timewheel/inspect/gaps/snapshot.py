"""Resolve targets named by a user, read their subscriptions concurrently, and list the topics that cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from itertools import islice

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.names import DOMAINS
from timewheel.broker.admin.parts import partitioned_among
from timewheel.broker.admin.stats import SubscriptionStats, TopicStats
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.errors import AdminDenied, AdminError, AdminMissing, AdminUnreachable
from timewheel.core.names import partition_of, parts_of
from timewheel.core.plan import Plan
from timewheel.core.topology import topology
from timewheel.inspect.errors import NoSuchTarget
from timewheel.inspect.gaps.gap_status import (
    GapStatus,
    Level,
    SubscriptionGaps,
    by_subscription,
    gap_status_of,
    may_have_shadow,
)
from timewheel.inspect.missing_topics import no_such_topic, shadow_of

NO_CURSOR = "the broker lists no cursor of it, so its gaps are not known"
DEFAULT_AT_ONCE = 16
"""Concurrent requests over all brokers; each takes some milliseconds of a broker's web threads."""

MAX_ASKED = 100
"""Number of topics near their limit, the worst first, whose shadows are looked up."""

ProgressCallback = Callable[[int, int], None]
"""Progress callback: called with the number of topics read, and of all topics to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """A target that could not be read.

    Args:
        what: A topic, namespace or tenant.
        reason: The broker's reason.
        is_target: True if the user named it, and nothing of it was read.
    """

    what: str
    reason: str
    is_target: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GapSnapshot:
    """The gaps of some topics at a moment.

    Args:
        at_ms: Start of the snapshot, UTC milliseconds.
        subscriptions: Subscriptions, the worst first.
        topics: Number of topics read; each partition counts.
        bare: Topics read that have no durable subscription.
        gone: Topics that did not exist, and partitions that were never used.
        unseen: Targets that could not be read.
        missing: Topics of plans that do not exist: they were never created.
        shadowed: Desired states of shadows, by topic (`with_shadows`).
    """

    at_ms: int
    subscriptions: tuple[SubscriptionGaps, ...]
    topics: int
    bare: tuple[str, ...]
    gone: tuple[str, ...]
    unseen: tuple[Unseen, ...]
    missing: tuple[str, ...] = ()
    shadowed: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """True if every named topic existed and was read, and every named namespace and tenant was listed."""
        return not self.missing and not any(one.is_target for one in self.unseen)

    @property
    def level(self) -> Level:
        """The worst level among the subscriptions read."""
        return max((one.level for one in self.subscriptions), default=Level.OK)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    topic: str
    gap_statuses: tuple[GapStatus, ...] = ()
    unseen: tuple[Unseen, ...] = ()
    is_gone: bool = False


def inspect_gaps(
    admin: AdminClient,
    topics: Sequence[str],
    profile: BrokerProfile,
    *,
    unseen: Iterable[Unseen] = (),
    missing: Iterable[str] = (),
    at_once: int = DEFAULT_AT_ONCE,
    on_progress: ProgressCallback = lambda _done, _total: None,
) -> GapSnapshot:
    """Read all durable subscriptions of these topics.

    Each topic takes a request, another if it has gaps, and another if entries are neither delayed nor in flight. A
    topic that no broker has loaded is loaded by the read, as by any use of it.

    Args:
        admin: Client whose role may read the topics' stats.
        topics: Full names: partitions, and topics without partitions.
        profile: The broker's limit and format.
        unseen: Targets that were found unreadable before; included in the snapshot.
        missing: Topics of plans that were found missing before; included in the snapshot.
        at_once: Concurrent requests, at least 1.
        on_progress: Progress callback; called in the caller's thread.

    Raises:
        AdminUnreachable: No broker answers any more.
    """
    at_ms = admin.clock.now_ms()
    gap_statuses: list[GapStatus] = []
    hidden = list(unseen)
    bare: list[str] = []
    gone: list[str] = []
    on_progress(0, len(topics))
    for done, seen in enumerate(_seen(admin, topics, profile, at_once), start=1):
        gap_statuses += seen.gap_statuses
        hidden += seen.unseen
        if seen.is_gone:
            gone.append(seen.topic)
        elif not seen.gap_statuses and not seen.unseen:
            bare.append(seen.topic)
        on_progress(done, len(topics))
    return GapSnapshot(
        at_ms=at_ms,
        subscriptions=by_subscription(gap_statuses, partitioned_among(admin, (one.topic for one in gap_statuses))),
        topics=len({gap_status.topic for gap_status in gap_statuses}) + len(bare),
        bare=tuple(sorted(bare)),
        gone=tuple(sorted(gone)),
        unseen=tuple(sorted(hidden, key=lambda one: one.what)),
        missing=tuple(missing),
    )


def with_lost(snapshot: GapSnapshot, named: AbstractSet[str]) -> GapSnapshot:
    """Return the snapshot with those topics counted as unread that the user named and of which nothing exists any more.

    Args:
        snapshot: The snapshot.
        named: Full names of the topics that the user named, without a partition suffix.
    """
    others = [one.topic for one in snapshot.subscriptions] + [*snapshot.bare, *(one.what for one in snapshot.unseen)]
    lost = {partition_of(name)[0] for name in snapshot.gone} & named - {partition_of(name)[0] for name in others}
    unseen = [
        Unseen(what=name, reason="it is not there, or was removed while it was looked at", is_target=True)
        for name in sorted(lost)
    ]
    return replace(
        snapshot,
        unseen=(*snapshot.unseen, *unseen),
        gone=tuple(name for name in snapshot.gone if partition_of(name)[0] not in lost),
    )


def with_shadows(admin: AdminClient, snapshot: GapSnapshot) -> GapSnapshot:
    """Return the snapshot with the shadows of topics near their limit; takes a request for each of the worst.

    Raises:
        AdminUnreachable: No broker answers any more.
    """
    near = list(dict.fromkeys(one.topic for one in snapshot.subscriptions if may_have_shadow(one)))[:MAX_ASKED]
    states = {topic: shadow_of(admin, topic) for topic in near}
    return replace(snapshot, shadowed={topic: state for topic, state in states.items() if state is not None})


def _seen(admin: AdminClient, topics: Iterable[str], profile: BrokerProfile, at_once: int) -> Iterator[_Seen]:
    """Yield each topic once it has been read, with a bounded number of concurrent requests."""
    left = iter(topics)
    pool = ThreadPoolExecutor(at_once, thread_name_prefix="timewheel-gaps")
    try:
        under_way: set[Future[_Seen]] = set()
        while True:
            under_way |= {pool.submit(_look, admin, topic, profile) for topic in islice(left, at_once - len(under_way))}
            if not under_way:
                return
            ended, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            for future in ended:
                yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _durable(stats: TopicStats) -> dict[str, SubscriptionStats]:
    return {name: one for name, one in stats.subscriptions.items() if one.is_durable}


def _look(admin: AdminClient, topic: str, profile: BrokerProfile) -> _Seen:
    try:
        durable = _durable(admin.topics.stats(topic))
        if any(stats.backlog > stats.delayed + stats.unacked for stats in durable.values()):
            durable = _durable(admin.topics.stats(topic, clients=True))
        has_gaps = any(stats.gap_count for stats in durable.values())
        internal = admin.topics.internal_stats(topic) if has_gaps else None
        lost: set[str] = set()
        if internal is not None:
            lost = {name for name, stats in durable.items() if stats.gap_count} - internal.cursors.keys()
        # A subscription that was removed meanwhile is lost for a good reason.
        hidden = lost & admin.topics.stats(topic).subscriptions.keys() if lost else lost
    except AdminMissing:
        return _Seen(topic=topic, is_gone=True)  # deleted meanwhile, or a partition that was never used
    except AdminUnreachable:
        raise
    except AdminError as error:
        return _Seen(topic=topic, unseen=(Unseen(what=topic, reason=error.reason),))
    return _Seen(
        topic=topic,
        gap_statuses=tuple(
            gap_status_of(topic, name, stats, internal, profile) for name, stats in durable.items() if name not in lost
        ),
        unseen=tuple(
            Unseen(what=f"{topic}, subscription {name}", reason=NO_CURSOR, is_target=True) for name in sorted(hidden)
        ),
    )


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

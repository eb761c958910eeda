"""Read the subscriptions of many topics concurrently, and list the topics that cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from itertools import islice

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.parts import partitioned_among
from timewheel.broker.admin.stats import SubscriptionStats, TopicStats
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.errors import AdminError, AdminMissing, AdminUnreachable
from timewheel.core.names import partition_of
from timewheel.inspect.gaps.first_aid import may_have_shadow
from timewheel.inspect.gaps.gap_status import GapStatus, Level, SubscriptionGaps, by_subscription, gap_status_of
from timewheel.inspect.missing_topics import shadow_of

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

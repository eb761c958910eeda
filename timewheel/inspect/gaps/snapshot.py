"""The gaps of topics at a moment: resolve targets named by a user, read their subscriptions concurrently, and list the
topics that cannot be read; a log of snapshots, from which growth is read; snapshots as values for JSON and CSV.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.entries import StoredEntry
from timewheel.broker.admin.names import DOMAINS
from timewheel.broker.admin.parts import partitioned_among
from timewheel.broker.admin.stats import SubscriptionStats, TopicStats
from timewheel.broker.admin.topics import Topics
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import HOUR_MS, MINUTE_MS
from timewheel.core.envelope import TIMER_PROPERTY
from timewheel.core.errors import AdminDenied, AdminError, AdminMissing, AdminUnreachable
from timewheel.core.names import partition_of, parts_of
from timewheel.core.plan import Plan
from timewheel.core.slope import LEAST_POINTS, slope_of
from timewheel.core.topology import topology
from timewheel.inspect.entries import Entries, Place
from timewheel.inspect.errors import GapLogUnreadable, NoSuchTarget
from timewheel.inspect.gaps.gap_status import (
    GapStatus,
    Level,
    SubscriptionGaps,
    by_subscription,
    gap_status_of,
    may_have_shadow,
)
from timewheel.inspect.json_log import append_lines, read_lines
from timewheel.inspect.missing_topics import no_such_topic, shadow_of
from timewheel.inspect.profile import Limit
from timewheel.inspect.reader import AT_ONCE, ProgressCallback, Reader, Unseen, each, no_report
from timewheel.inspect.sample import draw, error_of_mean, inspect

NO_CURSOR = "the broker lists no cursor of it, so its gaps are not known"
MAX_ASKED = 100  # number of topics near their limit, the worst first, whose shadows are looked up


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


def inspect_gaps(
    admin: AdminClient,
    topics: Sequence[str],
    profile: BrokerProfile,
    *,
    unseen: Iterable[Unseen] = (),
    missing: Iterable[str] = (),
    at_once: int = AT_ONCE,
    on_progress: ProgressCallback = no_report,
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
    reader, at_ms = Reader(admin), admin.clock.now_ms()
    gap_statuses: list[GapStatus] = []
    bare: list[str] = []
    gone: list[str] = []
    on_progress(0, len(topics))
    looks = each(lambda topic: reader.ask(topic, partial(_gaps_of, admin.topics, topic, profile)), topics, at_once)
    for done, (topic, found) in enumerate(looks, start=1):
        statuses, hidden = found or ([], ())
        gap_statuses += statuses
        for name in sorted(hidden):
            reader.lost(f"{topic}, subscription {name}", NO_CURSOR, is_target=True)
        if found is None and not reader.is_unseen(topic):
            gone.append(topic)  # deleted meanwhile, or a partition that was never used
        elif found == ([], set()):
            bare.append(topic)
        on_progress(done, len(topics))
    return GapSnapshot(
        at_ms=at_ms,
        subscriptions=by_subscription(gap_statuses, partitioned_among(admin, (one.topic for one in gap_statuses))),
        topics=len({gap_status.topic for gap_status in gap_statuses}) + len(bare),
        bare=tuple(sorted(bare)),
        gone=tuple(sorted(gone)),
        unseen=tuple(sorted((*unseen, *reader.unseen), key=lambda one: one.what)),
        missing=tuple(missing),
    )


def with_lost(snapshot: GapSnapshot, named: AbstractSet[str]) -> GapSnapshot:
    """Return the snapshot with those topics counted as unread that the user named, and of which nothing exists any more
    or a partition could not be read. Names are without a partition suffix.
    """
    others = [one.topic for one in snapshot.subscriptions] + [*snapshot.bare, *(one.what for one in snapshot.unseen)]
    lost = {partition_of(name)[0] for name in snapshot.gone} & named - {partition_of(name)[0] for name in others}
    unseen = [
        Unseen(what=name, reason="it is not there, or was removed while it was looked at", is_target=True)
        for name in sorted(lost)
    ]
    return replace(
        snapshot,
        unseen=(
            *(replace(one, is_target=one.is_target or partition_of(one.what)[0] in named) for one in snapshot.unseen),
            *unseen,
        ),
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


def _durable(stats: TopicStats) -> dict[str, SubscriptionStats]:
    return {name: one for name, one in stats.subscriptions.items() if one.is_durable}


def _gaps_of(topics: Topics, topic: str, profile: BrokerProfile) -> tuple[list[GapStatus], AbstractSet[str]]:
    """Return the durable subscriptions of a topic, and the names of those whose gaps are not known."""
    durable = _durable(topics.stats(topic))
    if any(stats.backlog > stats.delayed + stats.unacked for stats in durable.values()):
        durable = _durable(topics.stats(topic, clients=True))
    with_gaps = {name for name, stats in durable.items() if stats.gap_count}
    internal = topics.internal_stats(topic) if with_gaps else None
    lost = set[str]() if internal is None else with_gaps - internal.cursors.keys()
    # A subscription that was removed meanwhile is lost for a good reason.
    hidden = lost & topics.stats(topic).subscriptions.keys() if lost else lost
    seen = [(name, stats) for name, stats in durable.items() if name not in lost]
    return [gap_status_of(topic, name, stats, internal, profile) for name, stats in seen], hidden


EVERYTHING = "*"  # a target that stands for every tenant
_SLASHES_OF_A_TOPIC = 2
_OWN_TOPIC = "__"  # prefix of the topics that the broker reserves for itself in each namespace


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
    found: list[str] = []
    for own in _namespaces_in(admin, name, unseen):
        listed = _listed(admin.topics.list, "namespace", own, unseen, only=own == name)
        # The topics that the broker reserves for itself are left out.
        found += sorted((one for one in listed if not one.rpartition("/")[2].startswith(_OWN_TOPIC)), key=partition_of)
    return found


def _is_topic(name: str) -> bool:
    return "://" in name or name.count("/") == _SLASHES_OF_A_TOPIC


def full_name(name: str) -> str:
    """Return a topic's full name, also from ``tenant/namespace/topic``. NoSuchTarget: the topic is not persistent."""
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
        return [one for tenant in tenants for one in _listed(admin.namespaces.list, "tenant", tenant, unseen)]
    return [name] if "/" in name else _listed(admin.namespaces.list, "tenant", name, unseen, only=True)


def _listed(
    list_all: Callable[[str], Iterable[str]], kind: str, name: str, unseen: list[Unseen], *, only: bool = False
) -> list[str]:
    """List a tenant or a namespace; if it is the only target, a failure is raised."""
    try:
        return list(list_all(name))
    except AdminMissing:
        if only:
            raise NoSuchTarget(name, f"there is no such {kind}") from None
    except AdminError as error:
        if only or isinstance(error, AdminUnreachable):
            raise
        unseen.append(Unseen(what=name, reason=error.reason))
    return []


def _parts(admin: AdminClient, topic: str) -> list[str]:
    """Return the partitions of a topic, or the topic itself if it has none."""
    partitions = admin.topics.partitions(topic)
    if partitions is None:
        raise NoSuchTarget(topic, no_such_topic(admin, topic))
    # Older brokers report 0 partitions for a missing topic: the read then finds nothing.
    return list(parts_of(topic, partitions))


LEAST_SPAN_MS = MINUTE_MS
"""From the first snapshot to the last: ticks of brokers and batches of consumers change the gaps within seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GapGrowth:
    """Growth of the gaps of the worst partition.

    Args:
        per_hour: Gaps per hour; 0 if no growth was found.
        gap_count: Gaps at the last snapshot.
        gap_limit: The broker's limit.
        snapshots: Number of snapshots.
        span_ms: Time from the first snapshot to the last.
    """

    per_hour: float
    gap_count: int
    gap_limit: int
    snapshots: int
    span_ms: int

    @property
    def hours_to_limit(self) -> float | None:
        """Hours until the gaps reach the limit at this growth; None if never, 0 at or beyond the limit."""
        if self.gap_count >= self.gap_limit:
            return 0.0
        return (self.gap_limit - self.gap_count) / self.per_hour if self.per_hour > 0 else None


def growth_of(snapshots: Sequence[tuple[int, int]], gap_limit: int) -> GapGrowth | None:
    """Fit a line through the gaps of several snapshots.

    Args:
        snapshots: (UTC milliseconds, gaps of the worst partition), in order of time.
        gap_limit: The broker's limit.

    Returns:
        The growth; None if the snapshots are too few or too close together.
    """
    if len(snapshots) < LEAST_POINTS or snapshots[-1][0] - snapshots[0][0] < LEAST_SPAN_MS:
        return None
    hours = [(at_ms - snapshots[0][0]) / HOUR_MS for at_ms, _ in snapshots]
    slope = slope_of(hours, [float(gaps) for _, gaps in snapshots])
    return GapGrowth(
        per_hour=slope.value if slope.is_up else 0.0,
        gap_count=snapshots[-1][1],
        gap_limit=gap_limit,
        snapshots=len(snapshots),
        span_ms=snapshots[-1][0] - snapshots[0][0],
    )


MAX_SNAPSHOTS = 240  # snapshots kept per subscription: four hours at one per minute, ten days at one per hour


class GapHistory:
    """Gaps of each subscription's worst partition over time; the last `MAX_SNAPSHOTS` values."""

    def __init__(self) -> None:
        self._of: defaultdict[tuple[str, str], deque[tuple[int, int]]] = defaultdict(
            lambda: deque(maxlen=MAX_SNAPSHOTS)
        )

    def add(self, snapshot: GapSnapshot) -> None:
        """Add a later snapshot."""
        for one in snapshot.subscriptions:
            self.note(snapshot.at_ms, one.topic, one.subscription, one.worst.gap_count)

    def note(self, at_ms: int, topic: str, subscription: str, gap_count: int) -> None:
        """Add a single value."""
        own = self._of[topic, subscription]
        if not own or own[-1][0] < at_ms:
            own.append((at_ms, gap_count))

    def growth(self, one: SubscriptionGaps) -> GapGrowth | None:
        """Return the growth of a subscription's gaps; None if not known yet."""
        return growth_of(self._of.get((one.topic, one.subscription), ()), one.worst.gap_limit)


def read_snapshots(path: Path) -> GapHistory:
    """Read the snapshots in a log; empty if the file does not exist.

    Raises:
        GapLogUnreadable: The file cannot be read, or is not a log of snapshots.
    """
    snapshots = GapHistory()

    def parse(found: Mapping[str, Any]) -> tuple[int, str, str, int]:
        return int(found["at_ms"]), str(found["topic"]), str(found["subscription"]), int(found["gap_count"])

    for line in read_lines(path, parse, "snapshot", GapLogUnreadable):
        snapshots.note(*line)
    return snapshots


def append_snapshot(path: Path, snapshot: GapSnapshot) -> None:
    """Append a snapshot to a log; creates the file, but no folder. Subscriptions without gaps are left out.

    Raises:
        GapLogUnreadable: The file cannot be written.
    """
    lines = (
        {
            "at_ms": snapshot.at_ms,
            "topic": one.topic,
            "subscription": one.subscription,
            "gap_count": one.worst.gap_count,
            "again_entries": one.again_entries,
        }
        for one in snapshot.subscriptions
        if one.gap_count
    )
    append_lines(path, lines, GapLogUnreadable)


def snapshot_facts(
    snapshot: GapSnapshot, limit: Limit, snapshots: GapHistory, messages: Mapping[tuple[str, str], AgainMessages]
) -> dict[str, Any]:
    """Return all values of a snapshot."""
    return {
        "at_ms": snapshot.at_ms,
        "level": snapshot.level.word,
        "gap_limit": limit.profile.gap_limit_ranges,
        "gap_limit_source": limit.source,
        "topics": snapshot.topics,
        "subscriptions": [
            {
                **subscription_facts(one, snapshots),
                "shadow": snapshot.shadowed.get(one.topic),
                **_again_facts(messages.get((one.topic, one.subscription))),
                "partitions": [_part(part) for part in one.parts],
            }
            for one in snapshot.subscriptions
        ],
        "without_subscription": list(snapshot.bare),
        "gone": list(snapshot.gone),
        "missing": list(snapshot.missing),
        "unseen": [asdict(one) for one in snapshot.unseen],
    }


def subscription_facts(one: SubscriptionGaps, snapshots: GapHistory) -> dict[str, Any]:
    """Return a row: sums over partitions, and the worst partition."""
    growth, worst = snapshots.growth(one), one.worst
    return {
        "topic": one.topic,
        "subscription": one.subscription,
        "type": worst.type,
        "level": one.level.word,
        "worst": worst.topic,
        "gaps_of_worst": worst.gap_count,
        "share_of_worst": round(worst.share, 4),
        "form_of_worst": worst.form,
        "gaps": one.gap_count,
        **_entry_facts(one),
        "pinned_bytes": one.pinned_bytes,
        "again_entries": one.again_entries,
        "growth_per_hour": None if growth is None else round(growth.per_hour, 1),
        "hours_to_limit": None if growth is None or growth.hours_to_limit is None else round(growth.hours_to_limit, 2),
    }


def _part(part: GapStatus) -> dict[str, Any]:
    own = {
        "topic": part.topic,
        "level": part.level.word,
        "gaps": part.gap_count,
        "share": round(part.share, 4),
        "acked_entries": part.acked_entries,
        "span_entries": part.span_entries,
    }
    stored = {
        "written_bytes": part.written_bytes,
        "form": part.form,
        "keeps_parts_of_batches": part.keeps_parts,
        "pinned_ledgers": part.pinned_ledgers,
    }
    return own | _entry_facts(part) | stored | {"pinned_bytes": part.pinned_bytes, "again_entries": part.again_entries}


def _entry_facts(gaps: GapStatus | SubscriptionGaps) -> dict[str, Any]:
    return {
        "backlog": gaps.backlog,
        "delayed": gaps.delayed,
        "stale_at_least": gaps.stale_entries,
        "unacked": gaps.unacked,
        "ready": gaps.ready,
        "unknown": gaps.unknown,
        "index_bytes": gaps.index_bytes,
    }


def _again_facts(found: AgainMessages | None) -> dict[str, Any]:
    if found is None:
        return {}
    return {"again_messages": found.messages, "again_messages_error": found.error, "again_originals": found.originals}


MAX_READ = 2_000
"""Entries to read; of more entries a sample. Each takes a call of some milliseconds, eight concurrently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainMessages:
    """Messages that a reload would deliver again."""

    messages: int  # number of messages
    error: int  # error of `messages` at 95 %; 0 if all entries were read
    read: int  # entries read
    # messages among these that a shadow has moved and that are not due yet: only a shadow acknowledges a message
    # before it is due, and it acknowledges these messages again before a consumer gets them
    originals: int = 0


def messages_again(
    admin: AdminClient, one: SubscriptionGaps, *, shadowed: bool = False, max_read: int = MAX_READ
) -> AgainMessages:
    """Read the entries that a reload would deliver again. Originals of a topic with a shadow are counted separately.
    All entries are read up to ``max_read``.

    Raises:
        NothingToSample: More than a tenth of the entries disappeared too soon.
        AdminError: A call failed for another reason.
    """
    again = Entries((part.topic, run) for part in one.parts for run in part.again)
    total = len(again)
    if not total:
        return AgainMessages(messages=0, error=0, read=0)
    now_ms = admin.clock.now_ms()

    def read(_place: Place, entry: StoredEntry) -> tuple[int, bool]:
        is_plain = TIMER_PROPERTY not in entry.properties
        return entry.batch_messages or 1, shadowed and is_plain and (entry.deliver_at_ms or 0) > now_ms

    places = [again.place(number) for number in sorted(draw(total, max_read, 0))]
    found, _ = inspect(admin, one.topic, places, len(places), read)
    sizes = [size for size, _ in found]
    originals = round(total * sum(is_original for _, is_original in found) / len(found))
    mean = sum(sizes) / len(sizes)
    if len(sizes) == total:
        return AgainMessages(messages=sum(sizes), error=0, read=total, originals=originals)
    error = round(total * error_of_mean(sizes, total))
    return AgainMessages(messages=round(total * mean), error=error, read=len(sizes), originals=originals)

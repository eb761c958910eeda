"""Explain the gaps of a subscription: their causes with shares, the evidence, and remedies.

Every gap follows a *hole*: entries that are still open. The reason that keeps a hole open is the cause of its gap, and
four kinds exist (those of Tencent's article on message gaps). The entry itself shows whether it is not due yet or
ready. For a ready entry, the subscription type decides among the other three.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.entries import StoredEntry
from timewheel.broker.admin.parts import whole_topic
from timewheel.broker.admin.stats import IN_ORDER_TYPES, ConsumerStats, Ledger, TopicStats
from timewheel.client.positions import EntryPosition
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.errors import AdminMissing
from timewheel.core.names import parts_of
from timewheel.inspect.errors import NoSuchTarget, NothingToSample
from timewheel.inspect.gaps.gap_status import GapStatus, SubscriptionGaps, gap_status_of
from timewheel.inspect.gaps.reload import Run, runs_of
from timewheel.inspect.gaps.snapshot import NO_CURSOR
from timewheel.inspect.missing_topics import no_such_topic, shadow_of
from timewheel.inspect.sample import Place, ProgressCallback, inspect, sample
from timewheel.inspect.sample_figures import SampleFigures, figures_of

BY_KEY = "Key_Shared"
WAITING_SHARE = 0.1
"""Fraction of the ready entries in holes from which they wait for more than acknowledgements of messages in flight."""
HOT_SHARE = 0.3
"""Fraction of the ready entries in holes with the same key from which the key is hot or slow."""
LEAST_INSPECTED = 5
"""Least number of entries from which the share of a key is estimated."""


class Cause(Enum):
    """Cause of an entry's staying open while later entries are acknowledged."""

    DELAYS = "mixed delays"
    """The entry is not due yet, and later entries were due."""
    UNACKNOWLEDGED = "unacknowledged messages"
    """Consumers have the entry in flight, and acknowledge others first."""
    KEYS = "hot or slow keys"
    """The entry's key waits for a busy consumer; other keys proceed."""
    SINGLE = "single acknowledgements"
    """A single consumer gets all entries in order, and does not acknowledge all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """Open entries right before a range of acknowledged entries.

    Args:
        topic: A partition, or a topic without partitions.
        run: The open entries within the range's ledger, or within the ledger before.
    """

    topic: str
    run: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEntry:
    """A stored entry of a hole.

    Args:
        hole_entries: Number of entries in the hole.
        deliver_at_ms: Delivery time, UTC milliseconds; None if not delayed.
        publish_at_ms: Publish time, UTC milliseconds.
        key: Key; None without a key.
    """

    hole_entries: int
    deliver_at_ms: int | None
    publish_at_ms: int
    key: str | None

    def is_delayed(self, now_ms: int) -> bool:
        return self.deliver_at_ms is not None and self.deliver_at_ms > now_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A cause's share of the gaps.

    Args:
        cause: The cause.
        share: Fraction of the gaps.
        error: Error of `share` at 95 %; 0 if every hole was read.
    """

    cause: Cause
    share: float
    error: float


def holes_of(topic: str, mark_delete: EntryPosition, runs: Sequence[Run], ledgers: Sequence[Ledger]) -> Iterator[Hole]:
    """Yield the hole before each range of acknowledged entries. Ranges split only by the end of a ledger share a hole.

    Args:
        topic: Topic of the ranges.
        mark_delete: Everything up to this position is acknowledged.
        runs: Acknowledged entries beyond it, in topic order.
        ledgers: Ledgers of the topic, in order.
    """
    entries = {ledger.ledger_id: ledger.entries for ledger in ledgers if ledger.entries}
    before = {later: earlier for earlier, later in zip(entries, list(entries)[1:], strict=False)}
    acked_upto = {mark_delete.ledger: mark_delete.entry}
    for run in runs:
        first = acked_upto.get(run.ledger, -1) + 1
        if first < run.first:
            yield Hole(topic=topic, run=Run(run.ledger, first, run.first - 1))
        elif not run.first and (earlier := before.get(run.ledger)) is not None and earlier >= mark_delete.ledger:
            first = acked_upto.get(earlier, -1) + 1
            if first < entries[earlier]:
                yield Hole(topic=topic, run=Run(earlier, first, entries[earlier] - 1))
        acked_upto[run.ledger] = run.last


def cause_of(subscription_type: str, *, ready_entries: float, unacked: int, hottest: float) -> Cause:
    """Decide why ready entries stay open.

    Args:
        subscription_type: Type as the broker writes it.
        ready_entries: Estimated number of ready entries in all holes.
        unacked: Messages that consumers have in flight.
        hottest: Share of these entries with the most frequent key; 0 if unknown.
    """
    if subscription_type in IN_ORDER_TYPES:
        return Cause.SINGLE
    if subscription_type != BY_KEY:
        return Cause.UNACKNOWLEDGED
    waits = ready_entries * (1 - WAITING_SHARE) > unacked
    return Cause.KEYS if waits or hottest >= HOT_SHARE else Cause.UNACKNOWLEDGED


def shares_of(
    inspected: Sequence[OpenEntry], holes: int, subscription_type: str, unacked: int, now_ms: int
) -> tuple[Share, ...]:
    """Return the causes that were found, the greatest share first.

    Args:
        inspected: An entry of each sampled hole; each hole had the same chance.
        holes: Number of all holes.
        subscription_type: Type as the broker writes it.
        unacked: Messages that consumers have in flight.
        now_ms: Present time, UTC milliseconds.
    """
    if not inspected:
        return ()
    ready = [entry for entry in inspected if not entry.is_delayed(now_ms)]
    counts: Counter[Cause] = Counter()
    if ready:
        scale = holes / len(inspected)
        cause = cause_of(
            subscription_type,
            ready_entries=scale * sum(entry.hole_entries for entry in ready),
            unacked=unacked,
            hottest=hottest_of(entry.key for entry in ready)[1],
        )
        counts[cause] += len(ready)
    counts[Cause.DELAYS] += len(inspected) - len(ready)
    return tuple(
        Share(cause=cause, share=count / len(inspected), error=_error(count, len(inspected), holes))
        for cause, count in counts.most_common()
        if count
    )


def hottest_of(keys: Iterable[str | None]) -> tuple[str, float]:
    """Return the most frequent key and its share of all entries; ("", 0) if the entries are too few or have no keys."""
    found = list(keys)
    named = Counter(key for key in found if key)
    if len(found) < LEAST_INSPECTED or not named:
        return "", 0.0
    ((key, count),) = named.most_common(1)
    return key, count / len(found)


def _error(count: int, inspected: int, holes: int) -> float:
    """Return the error of a share at 95 %, by Agresti and Coull, which holds for shares near 0 and 1 as well."""
    if inspected >= holes:
        return 0.0
    share = (count + 2) / (inspected + 4)
    return 1.96 * math.sqrt(share * (1 - share) / (inspected + 4))


DEFAULT_HOLES = 400
"""Holes to sample: the error of a share of 50 % is then at most 5 points, in 95 of 100 samples."""
DEFAULT_ENTRIES = 2_000
"""Entries of the topic to sample for their delays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A connected consumer on a partition.

    Args:
        topic: The partition.
        consumer: The broker's stats of the consumer.
    """

    topic: str
    consumer: ConsumerStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """Explanation of a subscription's gaps.

    Args:
        at_ms: Time of the read, UTC milliseconds.
        whole: The topic as a plan would name it: for a partition, its partitioned topic.
        shadow: Desired state of the topic's shadow; None without a shadow.
        gaps: Gaps of the subscription.
        holes: Number of runs of open entries before gaps.
        inspected: Number of sampled holes whose drawn entry was read.
        unreadable: Number of sampled holes whose drawn entry exists but could not be read.
        shares: Causes, the greatest share first; empty without gaps.
        hottest_key: The most frequent key among ready entries in holes; empty if no key stands out.
        hottest_share: The key's share of those entries.
        oldest_ms: Publish time of the oldest ready entry that was read, UTC milliseconds; None if none was read.
        delayed: Number of delayed entries among those read.
        first_due_ms: Due time of the first of the delayed entries, UTC milliseconds; None if none was read.
        holders: Connected consumers, those with the most messages in flight first.
        figures: Figures of a sample of the topic; None if it could not be sampled.
    """

    at_ms: int
    whole: str
    shadow: str | None
    gaps: SubscriptionGaps
    holes: int
    inspected: int
    unreadable: int
    shares: tuple[Share, ...]
    hottest_key: str
    hottest_share: float
    oldest_ms: int | None
    delayed: int
    first_due_ms: int | None
    holders: tuple[Holder, ...]
    figures: SampleFigures | None


def explain(
    admin: AdminClient,
    topic: str,
    subscription: str | None,
    profile: BrokerProfile,
    *,
    holes: int = DEFAULT_HOLES,
    entries: int = DEFAULT_ENTRIES,
    seed: int = 0,
    on_progress: ProgressCallback = lambda _done, _total: None,
) -> Explained:
    """Read a subscription's holes, its consumers, and the delays of its topic. Nothing is consumed.

    Args:
        admin: Client whose role may read the topic's stats and peek at its messages.
        topic: Full name, partitioned or not.
        subscription: Name of the subscription; defaults to the subscription with the most gaps.
        profile: The broker's limit and format.
        holes: Number of holes to sample; all if fewer exist.
        entries: Number of the topic's entries to sample for delays.
        seed: Seed of the samples.
        on_progress: Progress callback.

    Raises:
        NoSuchTarget: The topic or subscription does not exist.
        NothingToSample: More than a tenth of the entries disappeared too soon.
        AdminError: A call failed for another reason.
    """
    parts = _parts(admin, topic)
    name = subscription or _fullest(topic, parts)
    now_ms = admin.clock.now_ms()
    gap_statuses: list[GapStatus] = []
    found: list[Hole] = []
    holders: list[Holder] = []
    removed: list[str] = []
    for part, stats in parts.items():
        own = stats.subscriptions.get(name)
        if own is None:
            continue
        try:
            internal = admin.topics.internal_stats(part)
        except AdminMissing:
            removed.append(part)
            continue
        cursor = internal.cursors.get(name)
        if cursor is None:
            raise NoSuchTarget(f"{part}, subscription {name}", NO_CURSOR)
        gap_statuses.append(gap_status_of(part, name, own, internal, profile))
        holders += [Holder(topic=part, consumer=consumer) for consumer in own.consumers or ()]
        runs = list(runs_of(cursor.acked_ranges(), internal.ledgers))
        found += holes_of(part, cursor.mark_delete, runs, internal.ledgers)
    if removed:
        raise NoSuchTarget(topic, f"{removed[0]} was removed while it was looked at")
    if not gap_statuses:
        raise NoSuchTarget(f"{topic}, subscription {name}", "there is no such subscription")
    gaps = SubscriptionGaps(topic=topic, subscription=name, parts=tuple(gap_statuses))
    inspected, unreadable = _looked_into(admin, topic, found, holes, seed, on_progress)
    ready = [entry for entry in inspected if not entry.is_delayed(now_ms)]
    dues = [entry.deliver_at_ms for entry in inspected if entry.deliver_at_ms is not None and entry.is_delayed(now_ms)]
    key, share = hottest_of(entry.key for entry in ready)
    whole = whole_topic(admin, topic)
    return Explained(
        at_ms=now_ms,
        whole=whole,
        shadow=shadow_of(admin, whole),
        gaps=gaps,
        holes=len(found),
        inspected=len(inspected),
        unreadable=unreadable,
        shares=shares_of(inspected, len(found), _type(gaps), gaps.unacked, now_ms),
        hottest_key=key,
        hottest_share=share,
        oldest_ms=min((entry.publish_at_ms for entry in ready), default=None),
        delayed=len(dues),
        first_due_ms=min(dues, default=None),
        holders=tuple(sorted(holders, key=lambda one: -one.consumer.unacked)),
        figures=_figures(admin, topic, entries, seed, now_ms),
    )


def _parts(admin: AdminClient, topic: str) -> dict[str, TopicStats]:
    partitions = admin.topics.partitions(topic)
    if partitions is None:
        raise NoSuchTarget(topic, no_such_topic(admin, topic))
    found: dict[str, TopicStats] = {}
    for part in parts_of(topic, partitions):
        try:
            found[part] = admin.topics.stats(part, clients=True)
        except AdminMissing:
            continue  # brokers create a partition at its first use
    if not found:
        raise NoSuchTarget(topic, f"{no_such_topic(admin, topic)}, or nothing has used it yet")
    return found


def _fullest(topic: str, parts: dict[str, TopicStats]) -> str:
    gaps: dict[str, int] = {}
    for stats in parts.values():
        for name, own in stats.subscriptions.items():
            if own.is_durable:
                gaps[name] = gaps.get(name, 0) + own.gap_count
    if not gaps:
        raise NoSuchTarget(topic, "it has no durable subscription")
    return max(gaps, key=lambda name: (gaps[name], name))


def _type(gaps: SubscriptionGaps) -> str:
    """Return the subscription's type; the broker does not know it for partitions without a connected consumer."""
    return next((part.type for part in gaps.parts if part.type != "None"), "None")


def _looked_into(
    admin: AdminClient, topic: str, holes: Sequence[Hole], most: int, seed: int, on_progress: ProgressCallback
) -> tuple[list[OpenEntry], int]:
    """Return a random entry of each sampled hole, and the number of unreadable entries."""
    if not holes:
        return [], 0
    rng = random.Random(seed)  # noqa: S311 - a fair draw, not a secret
    drawn = list(holes) if len(holes) <= most else rng.sample(list(holes), most)
    sizes: dict[Place, int] = {}
    for hole in drawn:
        entry = rng.randint(hole.run.first, hole.run.last)
        sizes[Place(hole.topic, EntryPosition(hole.run.ledger, entry))] = hole.run.entries

    def read(place: Place, entry: StoredEntry) -> OpenEntry:
        return OpenEntry(
            hole_entries=sizes[place],
            deliver_at_ms=entry.deliver_at_ms,
            publish_at_ms=entry.publish_at_ms,
            key=entry.partition_key,
        )

    found, unread = inspect(admin, topic, list(sizes), len(sizes), read, on_progress)
    return found, unread.unreadable


def _figures(admin: AdminClient, topic: str, entries: int, seed: int, now_ms: int) -> SampleFigures | None:
    try:
        return figures_of(sample(admin, topic, now_ms=now_ms, samples=entries, seed=seed))
    except NothingToSample:
        return None

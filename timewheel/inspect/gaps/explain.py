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
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.entries import StoredEntry
from timewheel.broker.admin.parts import whole_topic
from timewheel.broker.admin.stats import IN_ORDER_TYPES, ConsumerStats, TopicStats
from timewheel.client.positions import EntryPosition
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import SECOND_MS, rounded_up
from timewheel.core.errors import AdminMissing
from timewheel.core.escapes import pulsar_admin, timewheel_command
from timewheel.core.names import parts_of
from timewheel.inspect.entries import Place, Run, holes_of
from timewheel.inspect.errors import NoSuchTarget, NothingToSample
from timewheel.inspect.gaps.gap_status import (
    FIRST_AID,
    FOR_GOOD,
    GapStatus,
    SubscriptionGaps,
    gap_status_of,
    shadow_helps,
    stale_index_words,
)
from timewheel.inspect.gaps.snapshot import NO_CURSOR
from timewheel.inspect.missing_topics import no_such_topic, shadow_of
from timewheel.inspect.reader import ProgressCallback, no_report, used_parts
from timewheel.inspect.sample import NORMAL_95, SampleFigures, figures_of, inspect, sample
from timewheel.provision.shadow_commands import is_lone_partition, is_own, shadow_commands

BY_KEY = "Key_Shared"
WAITING_SHARE = 0.1
"""Fraction of the ready entries in holes from which they wait for more than acknowledgements of messages in flight."""
HOT_SHARE = 0.3  # fraction of the ready entries in holes with the same key from which the key is hot or slow
LEAST_INSPECTED = 5  # least number of entries from which the share of a key is estimated


class Cause(Enum):
    """Cause of an entry's staying open while later entries are acknowledged."""

    DELAYS = "mixed delays"  # the entry is not due yet, and later entries were due
    UNACKNOWLEDGED = "unacknowledged messages"  # consumers have the entry in flight, and acknowledge others first
    KEYS = "hot or slow keys"  # the entry's key waits for a busy consumer; other keys proceed
    SINGLE = "single acknowledgements"  # a single consumer gets all entries in order, and does not acknowledge all


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEntry:
    """A stored entry of a hole, with the number of entries in the hole; times are UTC milliseconds."""

    hole_entries: int
    deliver_at_ms: int | None
    publish_at_ms: int
    key: str | None

    def is_delayed(self, now_ms: int) -> bool:
        return self.deliver_at_ms is not None and self.deliver_at_ms > now_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A cause's share of the gaps, as a fraction, with its error at 95 %; the error is 0 if every hole was read."""

    cause: Cause
    share: float
    error: float


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
    """Return the causes that were found, the greatest share first. Each hole had the same chance to be inspected."""
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
    return NORMAL_95 * math.sqrt(share * (1 - share) / (inspected + 4))


DEFAULT_HOLES = 400  # holes to sample: the error of a share of 50 % is then at most 5 points, in 95 of 100 samples
DEFAULT_ENTRIES = 2_000  # entries of the topic to sample for their delays


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A connected consumer on a partition."""

    topic: str
    consumer: ConsumerStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """Explanation of a subscription's gaps."""

    at_ms: int  # time of the read, UTC milliseconds
    whole: str  # the topic as a plan would name it: for a partition, its partitioned topic
    shadow: str | None  # desired state of the topic's shadow; None without a shadow
    gaps: SubscriptionGaps  # gaps of the subscription
    holes: int  # number of runs of open entries before gaps
    inspected: int  # number of sampled holes whose drawn entry was read
    unreadable: int  # number of sampled holes whose drawn entry exists but could not be read
    shares: tuple[Share, ...]  # causes, the greatest share first; empty without gaps
    hottest_key: str  # the most frequent key among ready entries in holes; empty if no key stands out
    hottest_share: float  # the key's share of those entries
    # publish time of the oldest ready entry that was read, UTC milliseconds; None if none was read
    oldest_ms: int | None
    delayed: int  # number of delayed entries among those read
    first_due_ms: int | None  # due time of the first of the delayed entries, UTC milliseconds; None if none was read
    holders: tuple[Holder, ...]  # connected consumers, those with the most messages in flight first
    figures: SampleFigures | None  # figures of a sample of the topic; None if it could not be sampled


def explain(
    admin: AdminClient,
    topic: str,
    subscription: str | None,
    profile: BrokerProfile,
    *,
    holes: int = DEFAULT_HOLES,
    entries: int = DEFAULT_ENTRIES,
    seed: int = 0,
    on_progress: ProgressCallback = no_report,
) -> Explained:
    """Read a subscription's holes, its consumers, and the delays of its topic. Nothing is consumed. Without a
    subscription, that with the most gaps is explained. Samples of holes and of entries are read; all if fewer exist.

    Raises:
        NoSuchTarget: The topic or subscription does not exist.
        NothingToSample: More than a tenth of the entries disappeared too soon.
        AdminError: A call failed for another reason.
    """
    parts = _parts(admin, topic)
    name = subscription or _fullest(topic, parts)
    now_ms = admin.clock.now_ms()
    gap_statuses: list[GapStatus] = []
    found: list[tuple[str, Run]] = []
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
        found += ((part, hole) for hole in holes_of(cursor, internal.ledgers))
    if removed:
        raise NoSuchTarget(topic, f"{removed[0]} was removed while it was looked at")
    if not gap_statuses:
        raise NoSuchTarget(f"{topic}, subscription {name}", "there is no such subscription")
    gaps = SubscriptionGaps(topic=topic, subscription=name, parts=tuple(gap_statuses))
    inspected, unreadable = _looked_into(admin, topic, found, holes, seed, on_progress)
    ready = [entry for entry in inspected if not entry.is_delayed(now_ms)]
    dues = [entry.deliver_at_ms for entry in inspected if entry.deliver_at_ms is not None and entry.is_delayed(now_ms)]
    key, share = hottest_of(entry.key for entry in ready)
    # The broker does not know the type for partitions without a connected consumer.
    kind = next((part.type for part in gaps.parts if part.type != "None"), "None")
    figures = None
    with suppress(NothingToSample):
        figures = figures_of(sample(admin, topic, now_ms=now_ms, samples=entries, seed=seed))
    whole = whole_topic(admin, topic)
    return Explained(
        at_ms=now_ms,
        whole=whole,
        shadow=shadow_of(admin, whole),
        gaps=gaps,
        holes=len(found),
        inspected=len(inspected),
        unreadable=unreadable,
        shares=shares_of(inspected, len(found), kind, gaps.unacked, now_ms),
        hottest_key=key,
        hottest_share=share,
        oldest_ms=min((entry.publish_at_ms for entry in ready), default=None),
        delayed=len(dues),
        first_due_ms=min(dues, default=None),
        holders=tuple(sorted(holders, key=lambda one: -one.consumer.unacked)),
        figures=figures,
    )


def _parts(admin: AdminClient, topic: str) -> dict[str, TopicStats]:
    partitions = admin.topics.partitions(topic)
    if partitions is None:
        raise NoSuchTarget(topic, no_such_topic(admin, topic))
    found = dict(used_parts(parts_of(topic, partitions), partial(admin.topics.stats, clients=True)))
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


def _looked_into(
    admin: AdminClient,
    topic: str,
    holes: Sequence[tuple[str, Run]],
    most: int,
    seed: int,
    on_progress: ProgressCallback,
) -> tuple[list[OpenEntry], int]:
    """Return a random entry of each sampled hole, and the number of unreadable entries."""
    if not holes:
        return [], 0
    rng = random.Random(seed)  # noqa: S311 - a fair draw, not a secret
    drawn = list(holes) if len(holes) <= most else rng.sample(list(holes), most)
    sizes: dict[Place, int] = {}
    for part, hole in drawn:
        sizes[Place(part, EntryPosition(hole.ledger, rng.randint(hole.first, hole.last)))] = hole.entries

    def read(place: Place, entry: StoredEntry) -> OpenEntry:
        return OpenEntry(
            hole_entries=sizes[place],
            deliver_at_ms=entry.deliver_at_ms,
            publish_at_ms=entry.publish_at_ms,
            key=entry.partition_key,
        )

    found, unread = inspect(admin, topic, list(sizes), len(sizes), read, on_progress)
    return found, unread.unreadable


MAX_HOLDERS = 3
UNDELAYED_SHARE = 0.02  # fraction of a topic's entries from which undelayed entries deserve a topic of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """Commands that build on each other, and when to run them; empty if there is no alternative."""

    when: str
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Advice on a cause: evidence and remedies, in sentences, and alternatives to begin with."""

    share: Share
    evidence: tuple[str, ...]
    helps: tuple[str, ...]
    tries: tuple[Try, ...]

    @property
    def commands(self) -> tuple[str, ...]:
        """Commands of all alternatives."""
        return tuple(command for one in self.tries for command in one.commands)


def advice_on(
    found: Explained, profile: BrokerProfile, *, gap_limit: int | None = None, reached_by: Sequence[str] = ()
) -> tuple[Advice, ...]:
    """Return advice on each cause that was found, the greatest share first. Commands repeat a limit that the user gave
    because the role may not read it.
    """
    sampling = [*([] if gap_limit is None else ["--gap-limit", str(gap_limit)]), *reached_by]
    return tuple(
        Advice(
            share=share,
            evidence=tuple(_evidence(share.cause, found)),
            helps=tuple(_helps(share.cause, found, profile)),
            tries=tuple(_tries(share.cause, found, reached_by, sampling)),
        )
        for share in found.shares
    )


def _evidence(cause: Cause, found: Explained) -> Iterator[str]:
    if cause is Cause.DELAYS:
        yield from _delays(found)
        return
    if found.oldest_ms is not None:
        age = _ago(found.at_ms - found.oldest_ms)
        yield f"the oldest open entry that was seen is {age} old, and it is due"
    unacked = found.gaps.unacked
    if not found.holders:
        yield "no consumer is connected"
    for holder in found.holders[:MAX_HOLDERS]:
        consumer = holder.consumer
        acked = "has acknowledged nothing yet"
        if consumer.last_acked_at_ms:
            since = _ago(found.at_ms - consumer.last_acked_at_ms)
            acked = f"acknowledged last {since} ago"
        flow = "is blocked" if consumer.blocked else f"would take {max(consumer.permits, 0):,} more"
        where = f" on {holder.topic.rpartition('/')[2]}" if len(found.gaps.parts) > 1 else ""
        yield f"{consumer.name or consumer.address}{where} has {consumer.unacked:,} in flight, {acked}, {flow}"
    left = len(found.holders) - MAX_HOLDERS
    if left > 0:
        yield f"{left:,} more consumers have less in flight; all together have {unacked:,}"
    if cause is Cause.KEYS and found.hottest_key:
        yield f"key {found.hottest_key!r} has {100 * found.hottest_share:.0f} % of the open entries that were seen"


def _delays(found: Explained) -> Iterator[str]:
    if found.first_due_ms is not None:
        first = _ago(found.first_due_ms - found.at_ms)
        yield (
            f"of {found.inspected:,} sampled open entries {found.delayed:,} are delayed; the first of "
            f"these is due in {first}"
        )
    if found.gaps.unknown:
        yield "the number of delayed messages in the broker is unknown, since no consumer is connected"
    else:
        held = f"{'at most ' if found.gaps.stale_entries else ''}{found.gaps.delayed:,} delayed messages"
        yield f"the broker holds {held} of this subscription{stale_index_words(found.gaps)}"
    figures = found.figures
    if figures is None:
        return
    half, longest = (rounded_up(delay_ms) for delay_ms in (figures.delay_p50_ms, figures.delay_max_ms))
    yield f"half of {figures.rows:,} sampled entries have a delay of up to {half}, the longest is {longest}"
    if figures.law_gaps is not None and figures.law_gaps_error is not None:
        yield (
            f"such delays, if they do not depend on the time of sending, leave {figures.law_gaps:,.0f} +- "
            f"{figures.law_gaps_error:,.0f} gaps; there are {found.gaps.gap_count:,}"
        )
    if figures.undelayed > UNDELAYED_SHARE * figures.rows:
        part = f"{100 * figures.undelayed / figures.rows:.0f} %"
        yield f"{part} of the sampled entries have no delay, and are acknowledged before earlier, delayed entries"


def _helps(cause: Cause, found: Explained, profile: BrokerProfile) -> Iterator[str]:
    match cause:
        case Cause.DELAYS:
            if not is_own(found.whole):
                yield shadow_helps(found.whole, found.shadow)
            figures = found.figures
            if figures is not None and figures.undelayed > UNDELAYED_SHARE * figures.rows:
                yield "send messages without a delay to a topic of their own"
            if found.shadow is None:
                yield "for good: keep timers where no gaps arise until near their time; let the planner choose a plan"
            yield "or send timers with equal delays to a topic of their own, or spread them over more partitions"
        case Cause.UNACKNOWLEDGED:
            if found.holders:
                yield "find out why the consumers above acknowledge late: a slow handler, a full thread pool"
            else:
                yield "no consumer is connected: start one, and see why the last one ended"
            yield (
                "give back messages that cannot be handled (negative_acknowledge, or an acknowledgement time-out); "
                "gaps of this kind are bounded by the broker's limit on unacknowledged messages"
            )
            yield "lower that limit if it is above the limit on gaps"
        case Cause.KEYS:
            yield "use more keys, with an even share of messages: one key is handled by one consumer, in order"
            yield "make its handler faster; more consumers help only if several keys are behind"
        case Cause.SINGLE:
            yield "acknowledge cumulatively (acknowledge_cumulative): such a subscription then has no gaps at all"
            yield "or acknowledge every message: here the broker sets no limit on unacknowledged messages"
    if found.gaps.worst.gap_count >= profile.gap_limit_ranges:
        yield "until then make handlers idempotent: the next reload of the topic delivers messages again"


def _tries(cause: Cause, found: Explained, reached_by: Sequence[str], sampling: Sequence[str]) -> Iterator[Try]:
    topic = found.gaps.topic
    namespace = topic.partition("://")[2].rpartition("/")[0]
    match cause:
        case Cause.DELAYS:
            shadow = shadow_commands(found.whole, found.shadow, reached_by)
            if shadow:
                yield Try(when=FIRST_AID, commands=shadow)
            if found.shadow is None and not is_lone_partition(found.whole):
                sample = timewheel_command("sample", found.whole, "-o", "delays.parquet", *sampling)
                plan = timewheel_command("plan", "delays.parquet", "-o", "plan.toml")
                yield Try(when=FOR_GOOD if shadow else "", commands=(sample, plan))
        case Cause.UNACKNOWLEDGED:
            enough = max(min(found.gaps.worst.gap_limit // 2, 5_000), 1)
            lower = pulsar_admin("namespaces", "set-max-unacked-messages-per-consumer", namespace, "-c", enough)
            yield Try(when="", commands=(lower,))
        case Cause.KEYS:
            yield Try(when="", commands=(pulsar_admin("topics", "stats", topic),))
        case Cause.SINGLE:
            return


def _ago(span_ms: int) -> str:
    return rounded_up(max(span_ms, SECOND_MS) // SECOND_MS * SECOND_MS)

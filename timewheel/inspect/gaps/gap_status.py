"""State of a subscription: its gaps against the broker's limit, its backlog, the ledgers that it pins, and the entries
that a reload repeats; and first aid: a shadow, which moves timers that are far from due out of the topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import IntEnum

from timewheel.broker.admin.stats import DELAYING_TYPES, IN_ORDER_TYPES, CursorStats, InternalStats, SubscriptionStats
from timewheel.core.broker_profile import AckFormat, BrokerProfile
from timewheel.core.escapes import admin_options, timewheel_command
from timewheel.core.gap_law import WATCH_SHARE
from timewheel.core.names import partition_of
from timewheel.inspect.gaps.reload import Reload, Run, reload_of
from timewheel.provision.shadow_commands import is_lone_partition, is_own


class Level(IntEnum):
    """Level of a subscription, the worst last."""

    OK = 0
    WATCH = 1
    """`WATCH_SHARE` of the limit is reached."""
    ALARM = 2
    """The limit is reached, or a reload would deliver acknowledged entries again."""

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class GapStatus:
    """A subscription on a partition, or on a topic without partitions.

    Args:
        topic: Full name, with the partition's suffix.
        subscription: Name of the subscription.
        type: ``Shared``, ``Key_Shared``, ...; the string ``None`` if no consumer has connected since the topic was
            loaded.
        gap_count: Ranges of acknowledged entries beyond the mark-delete position.
        gap_limit: The broker stores this many ranges, plus 1.
        backlog: Unacknowledged entries.
        delayed: Entries of the backlog that the broker holds until they are due. The broker reads on behalf of
            consumers: without a consumer it knows no delayed entries, or only those that it knew when the last consumer
            left. An upper bound if `stale_entries` is not 0.
        stale_entries: Least number of further entries that the broker counts as delayed although they are acknowledged:
            originals that a shadow has moved. The broker forgets them when they are due, or at an unload.
        unacked: Messages that consumers have in flight.
        index_bytes: The broker's memory for delayed entries; 0 if not reported.
        written_bytes: Size of the ranges when the broker last wrote them; 0 if not reported.
        knows_delays: True if the broker knows the delayed entries: a consumer is connected (a shadow's consumer, which
            takes nothing, does not count), or the subscription type has no delays.
        span_entries: Entries from the first unacknowledged entry to the last acknowledged entry.
        acked_entries: Acknowledged entries among these.
        pinned_ledgers: Ledgers that cannot be deleted before this subscription proceeds.
        pinned_bytes: Size of these ledgers.
        form: Form in which a reload would write the cursor.
        keeps_parts: True if acknowledgements inside batches would be kept; see `reload.Reload`.
        limit_share: Fraction of the limit by that form's count: ranges, or acknowledged entries.
        again: Entries that a reload right now would deliver again, in topic order.
    """

    topic: str
    subscription: str
    type: str
    gap_count: int
    gap_limit: int
    backlog: int
    delayed: int
    unacked: int
    index_bytes: int
    written_bytes: int
    stale_entries: int = 0
    knows_delays: bool = True
    span_entries: int = 0
    acked_entries: int = 0
    pinned_ledgers: int = 0
    pinned_bytes: int = 0
    form: AckFormat = "ranges"
    keeps_parts: bool = False
    limit_share: float = 0.0
    again: tuple[Run, ...] = ()

    @property
    def share(self) -> float:
        """Fraction of the limit: by gaps, as dashboards show it, or by the form's count, whichever is greater."""
        return max(self.gap_count / max(self.gap_limit, 1), self.limit_share)

    @property
    def again_entries(self) -> int:
        return sum(run.entries for run in self.again)

    @property
    def ready(self) -> int:
        """Entries of the backlog that are neither delayed nor in a consumer's hand; for batches an estimate."""
        return self._others if self.knows_delays else 0

    @property
    def unknown(self) -> int:
        """Entries that are delayed or ready; without a consumer, the broker cannot distinguish them."""
        return 0 if self.knows_delays else self._others

    @property
    def _others(self) -> int:
        return max(self.backlog - self.delayed - self.unacked, 0)

    @property
    def level(self) -> Level:
        if self.again or self.gap_count >= self.gap_limit:
            return Level.ALARM
        return Level.WATCH if self.share >= WATCH_SHARE else Level.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionGaps:
    """A subscription of a topic with all partitions; every partition has a cursor and a limit of its own.

    Args:
        topic: Full name without a partition's suffix.
        subscription: Name of the subscription.
        parts: At least one partition, in order.
    """

    topic: str
    subscription: str
    parts: tuple[GapStatus, ...]

    @property
    def worst(self) -> GapStatus:
        """The partition that is nearest to its limit, or beyond it."""
        return max(self.parts, key=lambda part: (part.level, part.share, part.gap_count))

    @property
    def level(self) -> Level:
        return self.worst.level

    @property
    def gap_count(self) -> int:
        return sum(part.gap_count for part in self.parts)

    @property
    def backlog(self) -> int:
        return sum(part.backlog for part in self.parts)

    @property
    def delayed(self) -> int:
        return sum(part.delayed for part in self.parts)

    @property
    def stale_entries(self) -> int:
        return sum(part.stale_entries for part in self.parts)

    @property
    def unacked(self) -> int:
        return sum(part.unacked for part in self.parts)

    @property
    def ready(self) -> int:
        return sum(part.ready for part in self.parts)

    @property
    def unknown(self) -> int:
        return sum(part.unknown for part in self.parts)

    @property
    def index_bytes(self) -> int:
        return sum(part.index_bytes for part in self.parts)

    @property
    def pinned_bytes(self) -> int:
        return sum(part.pinned_bytes for part in self.parts)

    @property
    def again_entries(self) -> int:
        return sum(part.again_entries for part in self.parts)


def gap_status_of(
    topic: str, subscription: str, stats: SubscriptionStats, internal: InternalStats | None, profile: BrokerProfile
) -> GapStatus:
    """Derive the state of a subscription from the broker's stats.

    Args:
        topic: A partition, or a topic without partitions.
        subscription: Name of the subscription.
        stats: Stats of the subscription; may lack its consumers if no entry can be delayed or ready.
        internal: Internal stats of the topic; None if they were not read because the subscription has no gaps. With
            gaps they must contain the subscription's cursor, from which the repeated entries of a reload are computed.
        profile: The broker.
    """
    gap_status = GapStatus(
        topic=topic,
        subscription=subscription,
        type=stats.type,
        gap_count=stats.gap_count,
        gap_limit=profile.gap_limit_ranges,
        backlog=stats.backlog,
        delayed=stats.delayed - stats.stale_entries,
        stale_entries=stats.stale_entries,
        unacked=stats.unacked,
        index_bytes=stats.delayed_index_bytes,
        written_bytes=stats.gap_bytes,
        knows_delays=stats.consumers is None or stats.is_consumed or stats.type in IN_ORDER_TYPES,
    )
    if internal is None or (subscription not in internal.cursors and not stats.gap_count):
        return gap_status
    cursor = internal.cursors[subscription]
    return _with_cursor(gap_status, cursor, internal, reload_of(cursor, internal.ledgers, profile))


def _with_cursor(gap_status: GapStatus, cursor: CursorStats, internal: InternalStats, reload: Reload) -> GapStatus:
    pinned = [ledger for ledger in internal.ledgers if ledger.ledger_id >= cursor.mark_delete.ledger and ledger.entries]
    if pinned and (pinned[0].ledger_id, pinned[0].entries - 1) <= cursor.mark_delete:
        pinned = pinned[1:]  # the whole ledger is acknowledged
    return replace(
        gap_status,
        # Read at the same moment as the ranges.
        gap_count=cursor.gap_count,
        span_entries=reload.span_entries,
        acked_entries=reload.acked_entries,
        pinned_ledgers=len(pinned),
        pinned_bytes=sum(ledger.size_bytes for ledger in pinned),
        form=reload.form,
        keeps_parts=not reload.in_metadata_store,
        limit_share=reload.counted_to_limit / max(gap_status.gap_limit, 1),
        again=reload.forgotten,
    )


def stale_index_words(gaps: SubscriptionGaps) -> str:
    """Describe the entries that the broker counts as delayed beyond the backlog, as the end of a sentence."""
    if not gaps.stale_entries:
        return ""
    return (
        f"; beside them it counts {gaps.stale_entries:,} as delayed that are acknowledged "
        "(stale index entries, such as originals that a shadow has moved), until they are due or the topic is unloaded"
    )


def by_subscription(
    gap_statuses: Iterable[GapStatus], partitioned: AbstractSet[str] | None = None
) -> tuple[SubscriptionGaps, ...]:
    """Group partitions by subscription, the worst subscription first.

    Args:
        gap_statuses: States on partitions, and on topics without partitions.
        partitioned: The partitioned topics among them; any other topic with a partition's name stands alone. None:
            decide by the names.
    """
    found: dict[tuple[str, str], list[tuple[int, GapStatus]]] = {}
    for gap_status in gap_statuses:
        topic, partition = partition_of(gap_status.topic)
        if partitioned is not None and topic not in partitioned:
            topic = gap_status.topic
        found.setdefault((topic, gap_status.subscription), []).append((partition, gap_status))
    together = [
        SubscriptionGaps(
            topic=topic,
            subscription=subscription,
            parts=tuple(part for _, part in sorted(parts, key=lambda numbered: numbered[0])),
        )
        for (topic, subscription), parts in found.items()
    ]
    return tuple(
        sorted(together, key=lambda one: (-one.level, -one.worst.share, -one.gap_count, one.topic, one.subscription))
    )


SHADOW_HELPS = (
    "first aid: a shadow moves timers far from due out of the topic, and brings them back in time; no producer and no "
    "consumer has to change"
)
NO_SHADOW_HELPS = (
    "no shadow helps, and no plan can name the topic: its name is that of a partition, and no partitioned topic has "
    "that name; send to another topic"
)
BESIDE_SHADOW = (
    "the topic has its first aid already, a shadow ({state}): timewheel shadow status PLAN, with the plan file that it "
    "was started with, shows the timers that it has left here, and why"
)
PLAN_HELPS = "the plan leaves too many: a shorter window, or more partitions"
"""For a topic of a plan for timewheel's clients, which a shadow cannot stand beside."""
FIRST_AID = "now, with no change to any service: a shadow, by a plan of its own"
FOR_GOOD = "in place of a shadow, never beside it, where all services use timewheel's clients: another plan"
MAY_DELAY = DELAYING_TYPES | {"None"}
"""Types that may delay; the broker does not know the type of a partition without a connected consumer."""


def may_need_shadow(gaps: SubscriptionGaps) -> bool:
    """Return whether a subscription is near or past its limit, and delays may be the cause."""
    return (
        gaps.level is not Level.OK
        and gaps.delayed + gaps.unknown > 0
        and all(part.type in MAY_DELAY for part in gaps.parts)
        and not is_own(gaps.topic)
    )


def may_have_shadow(gaps: SubscriptionGaps) -> bool:
    """Return whether a shadow of the subscription's topic would matter."""
    return gaps.level is not Level.OK and not is_own(gaps.topic)


def shadow_helps(topic: str, shadow: str | None = None) -> str:
    """State in a sentence whether a shadow is first aid.

    Args:
        topic: Full name of a whole topic (`timewheel.broker.admin.parts.whole_topic`).
        shadow: Desired state of its shadow; None without a shadow.
    """
    if shadow is not None:
        return BESIDE_SHADOW.format(state=shadow)
    return NO_SHADOW_HELPS if is_lone_partition(topic) else SHADOW_HELPS


def plan_command(file: str, reached_by: Sequence[str] = ()) -> str:
    """Return the command that looks for a change of an SDK's plan that keeps the limit on gaps.

    Args:
        file: The plan file.
        reached_by: Options by which a command connects to the cluster.
    """
    words = ["--broker" if word == "--admin-url" else word for word in admin_options(reached_by)]
    return timewheel_command("plan", "check", file, *words)

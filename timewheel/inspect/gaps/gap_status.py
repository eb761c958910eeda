"""State of a subscription: its gaps against the broker's limit, its backlog, the ledgers that it pins, and the entries
that a reload repeats; and first aid: a shadow, which moves timers that are far from due out of the topic.

A reload is predicted: the acknowledged ranges that a broker would store if it unloaded a topic now, and the entries
that it would deliver again.

A cursor is written in either of two forms when its topic is unloaded (broker-facts: persisted-ranges):

- as ranges: the first ``limit + 1`` ranges;
- as a bitmap: whole ledgers, the oldest first, as long as the acknowledged entries of earlier ledgers are within the
  limit. This form is used only with more ranges than the metadata store accepts, and only in the cursor's own ledger: a
  cursor without an open ledger, as after a reload without an acknowledgement since, is written as ranges.

Acknowledged entries that are not written are delivered again. The prediction is exact for whole entries. The admin API
does not show acknowledgements inside a batch; brokers restore them if the cursor was in its own ledger, but not from
the metadata store (broker-facts: parts-of-batches).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import accumulate
from operator import attrgetter

from timewheel.broker.admin.stats import (
    DELAYING_TYPES,
    IN_ORDER_TYPES,
    CursorStats,
    InternalStats,
    Ledger,
    SubscriptionStats,
)
from timewheel.client.positions import EntryPosition
from timewheel.core.broker_profile import AckFormat, BrokerProfile
from timewheel.core.escapes import admin_options, timewheel_command
from timewheel.core.gap_law import WATCH_SHARE
from timewheel.core.names import partition_of
from timewheel.inspect.entries import Entries, Run, runs_of
from timewheel.provision.shadow_commands import is_lone_partition, is_own

NO_LEDGER = "NoLedger"  # state of a cursor that has been loaded but not written since


@dataclass(frozen=True, slots=True, kw_only=True)
class Reload:
    """Effect that an unload would have on a cursor right now.

    Args:
        form: Form in which the cursor would be written.
        in_metadata_store: True if it would be written to the metadata store instead of the cursor's own ledger. Then
            acknowledged messages inside a partly acknowledged batch are delivered again, too.
        acked_entries: Acknowledged entries beyond the mark-delete position.
        span_entries: Entries from the first after that position to the last acknowledged entry.
        counted_to_limit: Count to compare with the limit, by `form`: ranges less 1, or acknowledged entries before the
            last ledger with any; up to the limit nothing is forgotten.
        forgotten: Acknowledged entries that would not be written, in topic order.
    """

    form: AckFormat
    in_metadata_store: bool
    acked_entries: int
    span_entries: int
    counted_to_limit: int
    forgotten: tuple[Run, ...]

    @property
    def again_entries(self) -> int:
        """Acknowledged entries that would be delivered again."""
        return sum(run.entries for run in self.forgotten)

    @property
    def kept_entries(self) -> int:
        """Acknowledged entries that would not be delivered again."""
        return self.acked_entries - self.again_entries


def reload_of(cursor: CursorStats, ledgers: Sequence[Ledger], profile: BrokerProfile) -> Reload:
    """Predict the effect that an unload would have on a cursor right now.

    Args:
        cursor: Cursor with its ranges.
        ledgers: Ledgers of the topic, in order.
        profile: The broker's limit, format and rule.
    """
    runs = list(runs_of(cursor.acked_ranges(), ledgers))
    in_metadata_store = (
        len(runs) <= profile.metadata_store_limit_ranges or cursor.cursor_ledger < 0 or cursor.state == NO_LEDGER
    )
    # The metadata store accepts ranges only.
    form: AckFormat = "ranges" if in_metadata_store else _form(runs, profile)
    acked = sum(run.entries for run in runs)
    stored = Entries.stored("", ledgers)
    last = EntryPosition(runs[-1].ledger, runs[-1].last) if runs else cursor.mark_delete
    kept, counted = (_kept_as_bitmap if form == "bitmap" else _kept_as_ranges)(runs, profile)
    return Reload(
        form=form,
        in_metadata_store=in_metadata_store,
        acked_entries=acked,
        span_entries=stored.number_after(last) - stored.number_after(cursor.mark_delete),
        counted_to_limit=counted,
        forgotten=tuple(runs[kept:]),
    )


def _form(runs: Sequence[Run], profile: BrokerProfile) -> AckFormat:
    if profile.ack_format == "bitmap" and not _kept_as_bitmap(runs, profile)[0]:
        # Pulsar 5.0 development: if the first ledger alone exceeds the limit, only ranges can be written.
        return "ranges"
    return profile.ack_format


def _kept_as_ranges(runs: Sequence[Run], profile: BrokerProfile) -> tuple[int, int]:
    """Return (number of kept runs, count to compare with the limit)."""
    return profile.gap_limit_ranges + 1, max(len(runs) - 1, 0)


def _kept_as_bitmap(runs: Sequence[Run], profile: BrokerProfile) -> tuple[int, int]:
    acked: Counter[int] = Counter()
    for run in runs:
        acked[run.ledger] += run.entries
    with_it = list(accumulate(acked.values()))
    before = [0, *with_it[:-1]]
    compared = before if profile.keeps_crossing_ledger else with_it
    kept = {ledger for ledger, entries in zip(acked, compared, strict=True) if entries <= profile.gap_limit_ranges}
    return sum(run.ledger in kept for run in runs), compared[-1] if compared else 0


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
        keeps_parts: True if acknowledgements inside batches would be kept; see `Reload`.
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


class _Sum:
    """A value of the partitions, summed."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._of = attrgetter(name)

    def __get__(self, gaps: SubscriptionGaps, owner: type) -> int:
        return sum(map(self._of, gaps.parts))


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

    gap_count = _Sum()
    backlog = _Sum()
    delayed = _Sum()
    stale_entries = _Sum()
    unacked = _Sum()
    ready = _Sum()
    unknown = _Sum()
    index_bytes = _Sum()
    pinned_bytes = _Sum()
    again_entries = _Sum()


def gap_status_of(
    topic: str, subscription: str, stats: SubscriptionStats, internal: InternalStats | None, profile: BrokerProfile
) -> GapStatus:
    """Derive the state of a subscription from the broker's stats. Internal stats are None if the subscription has no
    gaps; with gaps they must contain its cursor. The stats may lack its consumers if no entry can be delayed or
    ready.
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
    reload = reload_of(cursor, internal.ledgers, profile)
    mark = cursor.mark_delete
    pinned = [one for one in internal.ledgers if one.entries and (one.ledger_id, one.entries - 1) > mark]
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
    """Group partitions by subscription, the worst subscription first. A topic with a partition's name that is not among
    the partitioned topics stands alone; None: decide by the names.
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
    """State in a sentence whether a shadow is first aid."""
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

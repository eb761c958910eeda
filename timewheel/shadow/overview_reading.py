"""Inspects the standing of a shadow: nothing is consumed or changed, at some dozen requests for each partition."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.stats import DELAYING_TYPES, InternalStats, SubscriptionStats, TopicStats
from timewheel.broker.protocol.dialing import Dialer
from timewheel.broker.protocol.entries import Entry
from timewheel.client.positions import EntryPosition
from timewheel.core.envelope import PROBE_PROPERTY
from timewheel.core.names import (
    DEAD_LETTER_SUBSCRIPTION,
    JOURNAL_SUBSCRIPTION,
    RELAY_SUBSCRIPTION,
    Names,
    partition_topic,
)
from timewheel.core.plan import Plan
from timewheel.core.topology import HoldingTopic, topology
from timewheel.inspect.doctor.seen import Asking, Source
from timewheel.inspect.missing_topics import mover_in
from timewheel.inspect.profile import limit_of
from timewheel.inspect.status.places import of_pieces, timers_held
from timewheel.shadow.curing import Excess
from timewheel.shadow.driver.inspector import refusal_of
from timewheel.shadow.facts import acked_in, cursors_in
from timewheel.shadow.former_holding import former_backlogs
from timewheel.shadow.machine.move_decider import MoveDecider
from timewheel.shadow.machine.pending import ARRIVED_MS, Pending
from timewheel.shadow.machine.states import DesiredState, State, caught_up_in, desired_in, drains, moves
from timewheel.shadow.machine.stretches import Stretch, acked_entries, entries_after, stretches_of
from timewheel.shadow.overview import (
    BEGUN_MS,
    Lag,
    PartitionOverview,
    Phase,
    Queue,
    ShadowOverview,
    SubscriptionOverview,
)
from timewheel.shadow.stored_timers import properties_in, timers_in
from timewheel.shadow.surveying import read_topic, writes_of
from timewheel.shadow.walking import entries_in

SAMPLE = 2_000
"""Entries of each partition that are read."""
SAMPLE_PIECES = 10
COPIES = 1_000
"""Copies of which the lag is computed."""
TAIL_ENTRIES = 200
"""Entries of the journal in which those copies are searched: most entries hold several copies."""


@dataclass(frozen=True, slots=True)
class _Tail:
    """The newest copies of a partition: lags, and times from move to due, milliseconds; positions of their originals;
    and
    the number of sessions that have begun there lately.
    """

    lags_ms: Sequence[int] = ()
    remaining_ms: Sequence[int] = ()
    originals: frozenset[EntryPosition] = frozenset()
    begun: int = 0

    def lag(self) -> Lag | None:
        found = sorted(self.lags_ms)
        if not found:
            return None
        return Lag(copies=len(found), p50_ms=found[len(found) // 2], p99_ms=found[len(found) * 99 // 100])


def overview_of(
    admin: AdminClient,
    dialer: Dialer,
    plan: Plan,
    *,
    target: str = "PLAN",
    reached_by: tuple[str, ...] = (),
    sample: int = SAMPLE,
    arrived_ms: int = ARRIVED_MS,
) -> ShadowOverview:
    """Inspect a plan's shadow.

    Args:
        admin: Admin client of any broker.
        dialer: Dialer of the binary protocol, by which entries are read.
        plan: A plan with an intake.
        target: Name of the plan as the user typed it.
        reached_by: Options by which a command reaches the cluster.
        sample: Entries of each partition that are searched for entries that were not moved.
        arrived_ms: See `timewheel.shadow.machine.pending.ARRIVED_MS`.

    Raises:
        AdminMissing: There is no journal.
        AdminUnreachable: No broker answers.
        BinaryProtocolError: Entries cannot be read.
    """
    return replace(_Look(admin, dialer, plan, target, sample, arrived_ms).run(), reached_by=reached_by)


class _Look:
    def __init__(
        self, admin: AdminClient, dialer: Dialer, plan: Plan, target: str, sample: int, arrived_ms: int
    ) -> None:
        self._admin = admin
        self._dialer = dialer
        self._plan = plan
        self._target = target
        self._sample = sample
        self._arrived_ms = arrived_ms
        self._names = Names(plan)
        self._move_decider = MoveDecider(plan)
        self._asking = Asking()
        self._at_ms = admin.clock.now_ms()

    def run(self) -> ShadowOverview:
        plan = self._plan
        properties = self._admin.topics.properties(self._names.journal)
        desired = desired_in(properties)
        stats: dict[str, TopicStats] = {}
        parts: list[PartitionOverview] = []
        remaining_ms: list[int] = []
        for number in range(plan.own_partitions):
            native = self._names.part(plan.due_topic, number)
            found = self._stats(native)
            if found is not None:
                stats[native] = found
            tail = self._tail(number, desired.since_ms)
            remaining_ms += tail.remaining_ms
            part = self._part(number, native, found, desired, properties, tail)
            if part is not None:
                parts.append(part)
        gap_limit = limit_of(self._admin).profile.gap_limit_ranges
        holding, former = self._holding(), former_backlogs(self._admin, plan, self._asking)
        held = sorted((*holding.items(), *former.items()), key=lambda one: -one[1])
        return ShadowOverview(
            plan=plan,
            at_ms=self._at_ms,
            desired=desired,
            refusal=refusal_of(plan, stats, self._target),
            far_ms=self._move_decider.far_ms,
            gap_limit=gap_limit,
            excess=self._excess(desired, parts, gap_limit),
            target=self._target,
            parts=tuple(parts),
            holding={topic.name: entries for topic, entries in holding.items()},
            former={topic.name: entries for topic, entries in former.items()},
            timers=timers_held(self._admin, plan, (topic for topic, _ in held)),
            dead_letters=self._dead_letters(),
            writes=writes_of(plan, self._at_ms, remaining_ms) if remaining_ms else None,
            unread=self._asking.unread,
        )

    def _excess(self, desired: DesiredState, parts: Sequence[PartitionOverview], limit: int) -> Excess | None:
        """Find the excess like a dry run. So many entries are read only if gaps are beyond the limit."""
        if not moves(desired.state) or not any(one.gaps > limit for part in parts for one in part.subscriptions):
            return None
        return read_topic(self._admin, self._dialer, self._plan, target=self._target).survey(self._plan).excess

    # Calls that may be refused

    def _stats(self, part: str) -> TopicStats | None:
        return self._asking.ask(
            Source.TOPICS, part, partial(self._admin.topics.stats, part, clients=True), was_there=True
        )

    def _internal(self, part: str) -> InternalStats | None:
        return self._asking.ask(Source.TOPICS, part, partial(self._admin.topics.internal_stats, part), was_there=True)

    # A partition

    def _part(
        self,
        number: int,
        native: str,
        stats: TopicStats | None,
        desired: DesiredState,
        properties: Mapping[str, str],
        tail: _Tail,
    ) -> PartitionOverview | None:
        journal_part = partition_topic(self._names.journal, number)
        intake_part = partition_topic(self._names.intake, number)
        internal, copies, clients = self._internal(native), self._internal(journal_part), self._stats(journal_part)
        intake = self._internal(intake_part)
        if stats is None or internal is None or copies is None or clients is None or intake is None:
            return None
        mover = mover_in(clients)
        relay = clients.subscriptions.get(RELAY_SUBSCRIPTION)
        caught_up_ms = caught_up_in(properties, number, desired)
        cursors = cursors_in(internal, stats)
        journal = self._queue(journal_part, copies, JOURNAL_SUBSCRIPTION)
        arrived_ms = self._arrived_ms if moves(desired.state) else None
        return PartitionOverview(
            topic=native,
            phase=_phase(desired, is_moved=mover is not None, is_caught_up=caught_up_ms is not None),
            mover=None if mover is None else mover.address,
            relay=None if relay is None else _holder(relay),
            caught_up_ms=caught_up_ms,
            lag=tail.lag(),
            intake=self._queue(intake_part, intake, RELAY_SUBSCRIPTION),
            copies=self._queue(journal_part, copies, RELAY_SUBSCRIPTION),
            journal=journal,
            pinned_by=min(cursors, key=lambda name: cursors[name].mark_delete) if cursors and journal.entries else None,
            subscriptions=tuple(_subscription(name, internal, stats.subscriptions.get(name)) for name in cursors),
            **self._not_moved(native, internal, stats, tail.originals, arrived_ms=arrived_ms),
            begun=tail.begun,
        )

    def _queue(self, part: str, stats: InternalStats, subscription: str) -> Queue:
        cursor = stats.cursors.get(subscription)
        if cursor is None:
            self._asking.lost(Source.TOPICS, part, f"it has no subscription {subscription}")
            return Queue(entries=0, oldest_ms=None)
        waiting = entries_after(stats.ledgers, cursor.mark_delete)
        oldest_ms = None
        for first in stretches_of(stats.ledgers, cursor.mark_delete, 1, 1):
            entry = self._asking.ask(Source.ENTRIES, part, partial(self._admin.topics.entry, part, first.upto))
            oldest_ms = None if entry is None else max(self._at_ms - entry.publish_at_ms, 0)
        return Queue(entries=waiting - acked_entries(cursor, stats.ledgers), oldest_ms=oldest_ms)

    def _tail(self, number: int, since_ms: int) -> _Tail:
        """Read the newest copies, acknowledged or not, as far as the topic still has them; lags only of messages since
        then.
        """
        part = partition_topic(self._names.journal, number)
        stats = self._internal(part)
        if stats is None:
            return _Tail()
        lags: deque[int] = deque(maxlen=COPIES)
        remaining: deque[int] = deque(maxlen=COPIES)
        originals: deque[EntryPosition] = deque(maxlen=COPIES)
        stretch, begun = _tail_of(stats), 0
        for entries in (
            () if stretch is None else entries_in(self._dialer, part, stretch, self._admin.clock, keep_payload=True)
        ):
            for entry in entries:
                begun += self._is_beginning(entry)
                for timer in timers_in(entry):
                    if timer.original is None:
                        continue
                    originals.append(timer.original)
                    remaining.append(max(timer.due_ms - entry.publish_ms, 0))
                    if timer.published_ms >= since_ms:
                        lags.append(max(entry.publish_ms - timer.published_ms, 0))
        return _Tail(lags, remaining, frozenset(originals), begun)

    def _is_beginning(self, entry: Entry) -> bool:
        """Return whether a session began with this entry lately: each stores a fence without a schema version."""
        if entry.batch_size > 1 or entry.schema_version is not None or self._at_ms - entry.publish_ms > BEGUN_MS:
            return False
        return any(PROBE_PROPERTY in properties for _, properties in properties_in(entry))

    def _not_moved(
        self,
        part: str,
        stats: InternalStats,
        counters: TopicStats,
        moved: Collection[EntryPosition],
        *,
        arrived_ms: int | None,
    ) -> dict[str, Any]:
        """Count the entries that were read, and estimate those that are far from due and were not moved."""
        cursors = acked_in(stats, counters).values()
        after = min((one.mark_delete for one in cursors), default=stats.last_confirmed)
        pending, sampled, last = Pending(self._move_decider, cursors, self._at_ms, arrived_ms, moved), 0, after
        counts: list[int] = []
        stretches = stretches_of(stats.ledgers, after, self._sample, SAMPLE_PIECES)
        for stretch in stretches:
            for entries in entries_in(self._dialer, part, stretch, self._admin.clock):
                sampled += len(entries)
                for entry in entries:
                    pending.see(entry)
                    last = entry.position
            counts.append(pending.not_moved - sum(counts))
        total = entries_after(stats.ledgers, after)
        # Of a whole topic all is read, but for the broker's own entries; a slow broker may end the reading before.
        is_whole = total <= self._sample and (sampled == total or last == stretches[-1].upto)
        scale = 1.0 if is_whole else total / max(sampled, 1)
        return {
            "sampled": sampled,
            "is_whole": is_whole,
            "left": round(pending.left * scale),
            "stays": {decision: round(count * scale) for decision, count in pending.stays.items()},
            "error": 0 if is_whole else round(of_pieces(counts, sampled, total).error),
        }

    # All partitions

    def _holding(self) -> dict[HoldingTopic, int]:
        """Count the waiting entries by topic, without empty topics."""
        found: dict[HoldingTopic, int] = {}
        for topic in topology(self._plan, self._at_ms).holding:
            stats = self._asking.ask(
                Source.TOPICS,
                topic.name,
                partial(self._admin.topics.partitioned_stats, topic.name, per_partition=False),
                was_there=True,
            )
            relay = None if stats is None else stats.total.subscriptions.get(RELAY_SUBSCRIPTION)
            if relay is not None and relay.backlog:
                found[topic] = relay.backlog
        return found

    def _dead_letters(self) -> int | None:
        stats = self._stats(partition_topic(self._names.dead_letter, 0))
        found = None if stats is None else stats.subscriptions.get(DEAD_LETTER_SUBSCRIPTION)
        return None if found is None else found.backlog


def _phase(desired: DesiredState, *, is_moved: bool, is_caught_up: bool) -> Phase:
    if drains(desired.state):
        return Phase.DRAINING if desired.state is State.DRAINING else Phase.IDLE
    if not moves(desired.state):
        return Phase.IDLE
    if not is_moved:
        return Phase.NOBODY
    return Phase.SHADOWING if is_caught_up else Phase.CATCHING_UP


def _holder(subscription: SubscriptionStats) -> str | None:
    """Return the consumer that receives its messages."""
    return subscription.active_consumer or next((one.name for one in subscription.consumers or ()), None)


def _subscription(name: str, internal: InternalStats, stats: SubscriptionStats | None) -> SubscriptionOverview:
    cursor = internal.cursors[name]
    pending = max(entries_after(internal.ledgers, cursor.mark_delete) - acked_entries(cursor, internal.ledgers), 0)
    delayed = 0 if stats is None else stats.delayed
    return SubscriptionOverview(
        name=name,
        type=_type_of(stats),
        pending=pending,
        gaps=cursor.gap_count,
        delayed=delayed,
        stale_entries=max(delayed - pending, 0),
    )


def _type_of(stats: SubscriptionStats | None) -> str:
    # Without other consumers, the type that the broker reports is the one of the shadow's own acknowledger.
    if stats is None or (stats.type in DELAYING_TYPES and not stats.is_consumed):
        return "None"
    return stats.type


def _tail_of(stats: InternalStats) -> Stretch | None:
    """Return the last entries of a topic."""
    first = stats.ledgers[0].ledger_id if stats.ledgers else 0
    whole = stretches_of(stats.ledgers, EntryPosition(first, -1), 1 << 62)
    if not whole:
        return None
    skipped = max(whole[0].entries - TAIL_ENTRIES, 0)
    for ledger in stats.ledgers:
        if skipped < ledger.entries:
            return Stretch(EntryPosition(ledger.ledger_id, skipped - 1), whole[0].upto, whole[0].entries)
        skipped -= ledger.entries
    return None

"""The standing of a shadow: its state, its progress, and warnings.

Nothing is consumed or changed; it takes some dozen requests for each partition.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum, unique
from functools import partial
from typing import Any

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.stats import DELAYING_TYPES, InternalStats, SubscriptionStats, TopicStats
from timewheel.broker.protocol.dialing import Dialer
from timewheel.broker.protocol.entries import Entry
from timewheel.client.positions import EntryPosition
from timewheel.core.durations import MINUTE_MS, span
from timewheel.core.envelope import PROBE_PROPERTY
from timewheel.core.escapes import admin_options, pulsar_admin, timewheel_command
from timewheel.core.gap_law import WATCH_SHARE
from timewheel.core.names import (
    DEAD_LETTER_SUBSCRIPTION,
    JOURNAL_SUBSCRIPTION,
    RELAY_SUBSCRIPTION,
    Names,
    partition_topic,
    parts_of,
)
from timewheel.core.plan import Plan
from timewheel.core.plurals import counted
from timewheel.core.topology import HoldingTopic, topology
from timewheel.inspect.missing_topics import mover_in
from timewheel.inspect.profile import limit_of
from timewheel.inspect.reader import Reader, Source, Unseen
from timewheel.inspect.status import Amount
from timewheel.inspect.status.places import of_pieces, summed, timers_held
from timewheel.shadow.curing import Excess
from timewheel.shadow.desired_state import DesiredState, State, caught_up_in, desired_in, drains, moves
from timewheel.shadow.draining import former_backlogs
from timewheel.shadow.driver.inspector import refusal_of
from timewheel.shadow.machine.cursors import Stretch, acked_in, cursors_in, entries_after, pending_entries, stretches_of
from timewheel.shadow.machine.move_decider import MoveDecider
from timewheel.shadow.machine.survey_counters import ARRIVED_MS, Pending
from timewheel.shadow.stored_entries import entries_in, properties_in, timers_in
from timewheel.shadow.survey import read_topic, writes_of

STUCK_MS = MINUTE_MS
"""A timer leaves the intake at once, a copy the journal at once, and a timer a holding topic before it is due: after
this much more time it counts as stuck."""
JOURNAL_SLACK_MS = 10 * MINUTE_MS
"""The journal keeps a copy until the topic has passed its original, and some minutes longer."""
BEGUN_MS = 5 * MINUTE_MS
MAX_BEGUN = 10  # a takeover, a reload, or a new schema version begins a session; these are few
STALE_ENTRIES = 50_000  # with this many in order a broker may stop reading (broker-facts: starved-due-topic)


@unique
class Phase(Enum):
    """Phases of a partition."""

    IDLE = "not moving"
    NOBODY = "no mover"  # moving is desired, and no mover is connected
    CATCHING_UP = "catching up"
    SHADOWING = "shadowing"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The entries that a subscription of the intake or the journal has not acknowledged."""

    entries: int
    oldest_ms: int | None  # how long the oldest has waited, milliseconds; None: none waits, or it could not be read


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Time from an original's publish to that of its copy, of the newest copies since the start, milliseconds."""

    copies: int
    p50_ms: int
    p99_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionOverview:
    """A subscription of a partition of the due topic."""

    name: str
    type: str  # ``Shared``, ...; ``None`` (a text): no consumer is connected
    pending: int
    gaps: int  # ranges of acknowledged entries behind the first pending entry
    delayed: int  # delayed messages by the broker's count
    # lower bound of those that are acknowledged: the broker forgets them when they are due, or at an unload
    stale_entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOverview:
    """A partition."""

    topic: str
    phase: Phase
    mover: str | None  # address of the connected mover; None: there is none
    relay: str | None  # name of the relay's consumer of the journal; None: there is none
    caught_up_ms: int | None  # when the backlog had been processed, UTC milliseconds; None: not yet
    lag: Lag | None  # none: there is no copy of a message that came since the start
    intake: Queue  # timers from clients of any language that have not moved on from the intake
    copies: Queue  # copies that have not moved on from the journal
    journal: Queue  # copies that are kept until the acknowledgements in the topic are safe
    pinned_by: str | None  # the subscription with the lowest mark-delete position, if the journal waits for it
    subscriptions: tuple[SubscriptionOverview, ...]
    sampled: int
    # estimated number of entries far from due that could have been moved; without the newest, while a shadow is to move
    left: int
    # estimated number of entries far from due that cannot be moved, by the reason
    stays: Mapping[str, int] = field(default_factory=dict)
    is_whole: bool = True  # all entries were read: both numbers are exact
    error: int = 0  # error of the sum of both at 95 %
    # how often a mover began in the last `BEGUN_MS`: a session that meets the same failure again and again moves
    # nothing
    begun: int = 0

    @property
    def not_moved(self) -> Amount:
        """Entries far from due that were not moved."""
        return Amount(float(self.left + sum(self.stays.values())), float(self.error))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowOverview:
    """The standing of a shadow."""

    plan: Plan
    at_ms: int  # time of the snapshot, UTC milliseconds
    desired: DesiredState
    refusal: str  # why no timer may be moved; empty: there is no obstacle
    far_ms: int  # remaining time from which an entry is moved
    gap_limit: int
    parts: tuple[PartitionOverview, ...]
    holding: Mapping[str, int]  # waiting entries by holding topic
    dead_letters: int | None  # number of entries, each of one or many letters; None: unknown
    writes: float | None  # mean writes for each moved timer; None: no timer was moved lately
    unread: tuple[Unseen, ...]
    # waiting entries in holding topics of earlier plans, by topic: relays of this plan drain them
    former: Mapping[str, int] = field(default_factory=dict)
    excess: Excess | None = None  # gaps beyond the limit that it leaves however long it runs; None: none
    # number of timers in the waiting entries, by holding topic of this plan or an earlier plan; None, or missing:
    # unknown
    timers: Mapping[str, Amount | None] = field(default_factory=dict)
    target: str = "PLAN"  # name of the plan as the user typed it
    reached_by: tuple[str, ...] = ()  # options by which a command reaches the cluster

    @property
    def not_moved(self) -> Amount:
        """Entries far from due that were not moved, of all partitions."""
        return summed(part.not_moved for part in self.parts)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Problems that need attention, in sentences, each with a command at its end."""
        return tuple(warnings_of(self))

    @property
    def asked_by(self) -> tuple[str, ...]:
        """Options for a command that uses the admin API alone."""
        return admin_options(self.reached_by)


def warnings_of(found: ShadowOverview) -> Iterator[str]:
    """Describe the problems that need attention, in sentences, each with a command at its end."""
    run = timewheel_command("shadow", "run", found.target, *found.reached_by)
    dry_run = timewheel_command("shadow", "start", found.target, "--dry-run", *found.reached_by)
    if found.refusal and found.desired.state is State.SHADOWING:
        yield f"Nothing is moved: {found.refusal}. What stands against it, with its cure: {dry_run}"
    for part in found.parts:
        if part.phase is Phase.NOBODY:
            remedy = "run" if part.relay is None else f"see the log of {part.relay}, the relay here; then restart it"
            yield f"{part.topic}: no mover runs; {remedy}: {run}"
        yield from _of_movers(part, run, timewheel_command("doctor", found.target, *found.asked_by))
        journal_ms = found.far_ms + JOURNAL_SLACK_MS
        if part.journal.oldest_ms is not None and part.journal.oldest_ms > journal_ms:
            by = ("--subscription", part.pinned_by) if part.pinned_by else ()
            pinned = f", since subscription {part.pinned_by} has an old message pending" if by else ""
            waited = f"the journal's oldest copy has waited for {span(part.journal.oldest_ms)}{pinned}"
            words = timewheel_command("gaps", "explain", found.plan.due_topic, *by, *found.asked_by)
            yield f"{part.topic}: {waited}. To find the message: {words}"
        if part.phase is Phase.SHADOWING and part.left:
            verify = timewheel_command("shadow", "verify", found.target, *found.reached_by)
            yield f"{part.topic}: about {part.left:,} entries are far from due and were not moved. Which: {verify}"
        yield from _of_subscriptions(part, found.gap_limit, "" if found.excess else dry_run)
    if found.excess:
        cure = found.excess.cure_in(found.target, found.reached_by) or "more partitions, or a higher limit"
        yield f"{found.excess.topic}: {found.excess.read}. To put it right: {cure}"
    # A shadow that ends is needed until its journals are empty.
    kept = sum(part.journal.entries for part in found.parts if part.mover is None)
    if kept and drains(found.desired.state):
        entries = counted(kept, "entry", "entries")
        why = "a broker that is killed may deliver originals again, and no process would acknowledge them"
        yield f"The journal still has {entries}: {why}. Until it is empty, run: {run}"
    waits = any(found.holding.values()) or any(found.former.values())
    if drains(found.desired.state) and waits and not any(part.relay for part in found.parts):
        yield f"Timers in holding topics are to go back, and no relay is connected; run: {run}"


def _of_movers(part: PartitionOverview, run: str, doctor: str) -> Iterator[str]:
    if part.begun > MAX_BEGUN:
        where = f" at {part.mover}" if part.mover else ""
        yield (
            f"{part.topic}: the mover makes no progress, it began {part.begun} times in {span(BEGUN_MS)}; see "
            f"shadow_move_failed in the log of the mover{where}, and the findings of: {doctor}"
        )
    for place, queue in (("intake", part.intake), ("journal", part.copies)):
        if part.relay is None and queue.entries:
            wait = counted(queue.entries, "entry waits", "entries wait")
            yield f"{part.topic}: {wait} in the {place}, and no relay is connected; run: {run}"
        elif queue.oldest_ms is not None and queue.oldest_ms > STUCK_MS:
            waited = f"its first entry has waited for {span(queue.oldest_ms)}"
            logs = f"see the log of relay {part.relay}, and the findings of: {doctor}"
            yield f"{part.topic}: the {place} makes no progress, {waited}; {logs}"


def _of_subscriptions(part: PartitionOverview, gap_limit: int, dry_run: str) -> Iterator[str]:
    for one in part.subscriptions:
        if dry_run and one.gaps >= WATCH_SHARE * gap_limit:
            gaps = f"subscription {one.name} has {one.gaps:,} gaps, and the broker keeps {gap_limit:,}"
            yield f"{part.topic}: {gaps}. To see the gaps that a shadow would leave, by window: {dry_run}"
        if one.stale_entries >= STALE_ENTRIES:
            when = "an unload" if part.caught_up_ms else "once caught up, an unload"
            yield (
                f"{part.topic}: the broker counts {one.stale_entries:,} messages of subscription {one.name} as delayed "
                "that are acknowledged; in the order of their due times this many may keep it from reading on; "
                f"{when} removes them: {pulsar_admin('topics', 'unload', part.topic)}"
            )


def overview_facts(found: ShadowOverview) -> dict[str, Any]:
    """Return a standing as plain values, for JSON."""
    return {
        "due_topic": found.plan.due_topic,
        "at_ms": found.at_ms,
        "state": found.desired.state.value,
        "since_ms": found.desired.since_ms,
        "refusal": found.refusal,
        "far_ms": found.far_ms,
        "gap_limit": found.gap_limit,
        "warnings": list(found.warnings),
        "partitions": [_part(part) for part in found.parts],
        "holding": dict(found.holding),
        "former": dict(found.former),
        "timers": {
            topic: {"count": round(amount.count), "error": round(amount.error)}
            for topic, amount in found.timers.items()
            if amount is not None
        },
        "dead_letters": found.dead_letters,
        "writes_per_moved": None if found.writes is None else round(found.writes, 2),
        "unseen": [asdict(one) for one in found.unread],
    }


def _part(part: PartitionOverview) -> dict[str, Any]:
    facts, lag = asdict(part), part.lag
    for one in facts["subscriptions"]:
        one["stale_at_least"] = one.pop("stale_entries")
    facts["left_about"], facts["stays_about"] = facts.pop("left"), facts.pop("stays")
    del facts["lag"]
    facts["lag_ms"] = None if lag is None else {"copies": lag.copies, "p50": lag.p50_ms, "p99": lag.p99_ms}
    return {**facts, "phase": part.phase.name.lower()}


SAMPLE = 2_000  # entries of each partition that are read
SAMPLE_PIECES = 10
COPIES = 1_000  # copies of which the lag is computed
TAIL_ENTRIES = 200  # entries of the journal in which those copies are searched: most entries hold several copies


@dataclass(frozen=True, slots=True)
class _Tail:
    """The newest copies of a partition: lags, and times from move to due, milliseconds; positions of their originals;
    and the number of sessions that have begun there lately.
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
    """Inspect the shadow of a plan with an intake; ``sample`` entries of each partition are searched for entries that
    were not moved, if they did not arrive within ``arrived_ms``. ``target`` and ``reached_by`` are those of
    `ShadowOverview`.

    Raises:
        AdminMissing: There is no journal.
        AdminUnreachable: No broker answers.
        BinaryProtocolError: Entries cannot be read.
    """
    properties = admin.topics.properties(Names(plan).journal)
    look = _Look(admin, dialer, plan, properties, sample, arrived_ms)
    desired = look.desired
    stats: dict[str, TopicStats] = {}
    parts: list[PartitionOverview] = []
    remaining_ms: list[int] = []
    for number, native in enumerate(parts_of(plan.due_topic, plan.partitions)):
        if (found := look.stats(native)) is not None:
            stats[native] = found
        tail = look.tail(number)
        remaining_ms += tail.remaining_ms
        if (part := look.part(number, native, found, tail)) is not None:
            parts.append(part)
    gap_limit = limit_of(admin).profile.gap_limit_ranges
    holding, former = look.holding(), former_backlogs(look.reads, plan)
    held = sorted((*holding.items(), *former.items()), key=lambda one: -one[1])
    # Like a dry run, which reads so many entries: only if gaps are beyond the limit.
    is_over = moves(desired.state) and any(one.gaps > gap_limit for part in parts for one in part.subscriptions)
    letters = look.stats(partition_topic(Names(plan).dead_letter, 0))
    dead = None if letters is None else letters.subscriptions.get(DEAD_LETTER_SUBSCRIPTION)
    return ShadowOverview(
        plan=plan, at_ms=look.at_ms, desired=desired, refusal=refusal_of(plan, stats, target),
        far_ms=look.move_decider.far_ms, gap_limit=gap_limit,
        excess=read_topic(admin, dialer, plan, target=target).survey(plan).excess if is_over else None,
        target=target, reached_by=reached_by, parts=tuple(parts),
        holding={topic.name: entries for topic, entries in holding.items()},
        former={topic.name: entries for topic, entries in former.items()},
        timers=timers_held(admin, plan, (topic for topic, _ in held)),
        dead_letters=None if dead is None else dead.backlog,
        writes=writes_of(plan, look.at_ms, remaining_ms) if remaining_ms else None, unread=look.reads.unseen,
    )  # fmt: skip


@dataclass
class _Look:
    admin: AdminClient
    dialer: Dialer
    plan: Plan
    properties: Mapping[str, str]
    sample: int
    arrived_ms: int | None

    def __post_init__(self) -> None:
        self.names, self.move_decider, self.reads = Names(self.plan), MoveDecider(self.plan), Reader(self.admin)
        self.desired, self.at_ms = desired_in(self.properties), self.admin.clock.now_ms()
        if not moves(self.desired.state):
            self.arrived_ms = None

    def stats(self, part: str) -> TopicStats | None:
        return self.reads.ask(part, partial(self.admin.topics.stats, part, clients=True), was_there=True)

    def _internal(self, part: str) -> InternalStats | None:
        return self.reads.ask(part, partial(self.admin.topics.internal_stats, part), was_there=True)

    def part(self, number: int, native: str, stats: TopicStats | None, tail: _Tail) -> PartitionOverview | None:
        journal_part = partition_topic(self.names.journal, number)
        intake_part = partition_topic(self.names.intake, number)
        internal, copies, clients = self._internal(native), self._internal(journal_part), self.stats(journal_part)
        intake = self._internal(intake_part)
        if stats is None or internal is None or copies is None or clients is None or intake is None:
            return None
        mover = mover_in(clients)
        relay = clients.subscriptions.get(RELAY_SUBSCRIPTION)
        # The consumer that receives the messages.
        names = [] if relay is None else [relay.active_consumer, *(one.name for one in relay.consumers or ())]
        caught_up_ms = caught_up_in(self.properties, number, self.desired)
        cursors = cursors_in(internal, stats)
        journal = self._queue(journal_part, copies, JOURNAL_SUBSCRIPTION)
        return PartitionOverview(
            topic=native,
            phase=_phase(self.desired.state, is_moved=mover is not None, is_caught_up=caught_up_ms is not None),
            mover=None if mover is None else mover.address, relay=next(filter(None, names), None),
            caught_up_ms=caught_up_ms, lag=tail.lag(), intake=self._queue(intake_part, intake, RELAY_SUBSCRIPTION),
            copies=self._queue(journal_part, copies, RELAY_SUBSCRIPTION), journal=journal,
            pinned_by=min(cursors, key=lambda name: cursors[name].mark_delete) if cursors and journal.entries else None,
            subscriptions=tuple(_subscription(name, internal, stats.subscriptions.get(name)) for name in cursors),
            **self._not_moved(native, internal, stats, tail.originals), begun=tail.begun,
        )  # fmt: skip

    def _queue(self, part: str, stats: InternalStats, subscription: str) -> Queue:
        cursor = stats.cursors.get(subscription)
        if cursor is None:
            self.reads.lost(part, f"it has no subscription {subscription}")
            return Queue(entries=0, oldest_ms=None)
        oldest_ms = None
        for first in stretches_of(stats.ledgers, cursor.mark_delete, 1, 1):
            entry = self.reads.ask(part, partial(self.admin.topics.entry, part, first.upto), Source.ENTRIES)
            oldest_ms = None if entry is None else max(self.at_ms - entry.publish_at_ms, 0)
        return Queue(entries=pending_entries(cursor, stats.ledgers), oldest_ms=oldest_ms)

    def tail(self, number: int) -> _Tail:
        """Read the newest copies, acknowledged or not, as far as the topic still has them; lags only of messages that
        came since the desired state.
        """
        part = partition_topic(self.names.journal, number)
        stats = self._internal(part)
        if stats is None:
            return _Tail()
        lags: deque[int] = deque(maxlen=COPIES)
        remaining: deque[int] = deque(maxlen=COPIES)
        originals: deque[EntryPosition] = deque(maxlen=COPIES)
        begun = 0
        for stretch in _tail_of(stats):
            for entry in self._entries(part, stretch, keep_payload=True):
                begun += self._is_beginning(entry)
                for timer in timers_in(entry):
                    if timer.original is None:
                        continue
                    originals.append(timer.original)
                    remaining.append(max(timer.due_ms - entry.publish_ms, 0))
                    if timer.published_ms >= self.desired.since_ms:
                        lags.append(max(entry.publish_ms - timer.published_ms, 0))
        return _Tail(lags, remaining, frozenset(originals), begun)

    def _is_beginning(self, entry: Entry) -> bool:
        """Return whether a session began with this entry lately: each stores a fence without a schema version."""
        if entry.batch_size > 1 or entry.schema_version is not None or self.at_ms - entry.publish_ms > BEGUN_MS:
            return False
        return any(PROBE_PROPERTY in properties for properties in properties_in(entry))

    def _entries(self, part: str, stretch: Stretch, *, keep_payload: bool = False) -> Iterator[Entry]:
        for entries in entries_in(self.dialer, part, stretch, self.admin.clock, keep_payload=keep_payload):
            yield from entries

    def _not_moved(
        self, part: str, stats: InternalStats, counters: TopicStats, moved: Collection[EntryPosition]
    ) -> dict[str, Any]:
        """Count the entries that were read, and estimate those that are far from due and were not moved."""
        cursors = acked_in(stats, counters).values()
        after = min((one.mark_delete for one in cursors), default=stats.last_confirmed)
        pending, sampled, last = Pending(self.move_decider, cursors, self.at_ms, self.arrived_ms, moved), 0, after
        counts: list[int] = []
        stretches = stretches_of(stats.ledgers, after, self.sample, SAMPLE_PIECES)
        for stretch in stretches:
            for entry in self._entries(part, stretch):
                sampled += 1
                pending.see(entry)
                last = entry.position
            counts.append(pending.not_moved - sum(counts))
        total = entries_after(stats.ledgers, after)
        # Of a whole topic all is read, but for the broker's own entries; a slow broker may end the reading before.
        is_whole = total <= self.sample and (sampled == total or last == stretches[-1].upto)
        scale = 1.0 if is_whole else total / max(sampled, 1)
        return {
            "sampled": sampled,
            "is_whole": is_whole,
            "left": round(pending.left * scale),
            "stays": {decision: round(count * scale) for decision, count in pending.stays.items()},
            "error": 0 if is_whole else round(of_pieces(counts, sampled, total).error),
        }

    def holding(self) -> dict[HoldingTopic, int]:
        """Count the waiting entries by topic, without empty topics."""
        found: dict[HoldingTopic, int] = {}
        for topic in topology(self.plan, self.at_ms).holding:
            stats = self.reads.ask(
                topic.name,
                partial(self.admin.topics.partitioned_stats, topic.name, per_partition=False),
                was_there=True,
            )
            relay = None if stats is None else stats.total.subscriptions.get(RELAY_SUBSCRIPTION)
            if relay is not None and relay.backlog:
                found[topic] = relay.backlog
        return found


def _phase(state: State, *, is_moved: bool, is_caught_up: bool) -> Phase:
    if not moves(state):
        return Phase.DRAINING if state is State.DRAINING else Phase.IDLE
    if not is_moved:
        return Phase.NOBODY
    return Phase.SHADOWING if is_caught_up else Phase.CATCHING_UP


def _subscription(name: str, internal: InternalStats, stats: SubscriptionStats | None) -> SubscriptionOverview:
    cursor = internal.cursors[name]
    pending = pending_entries(cursor, internal.ledgers)
    delayed = 0 if stats is None else stats.delayed
    # Without other consumers, the type that the broker reports is the one of the shadow's own acknowledger.
    is_known = stats is not None and (stats.type not in DELAYING_TYPES or stats.is_consumed)
    return SubscriptionOverview(
        name=name,
        type=stats.type if stats is not None and is_known else "None",
        pending=pending,
        gaps=cursor.gap_count,
        delayed=delayed,
        stale_entries=max(delayed - pending, 0),
    )


def _tail_of(stats: InternalStats) -> Iterator[Stretch]:
    """Yield the last entries of a topic; nothing if it is empty."""
    first = stats.ledgers[0].ledger_id if stats.ledgers else 0
    for whole in stretches_of(stats.ledgers, EntryPosition(first, -1), 1 << 62):
        skipped = max(whole.entries - TAIL_ENTRIES, 0)
        for ledger in stats.ledgers:
            if skipped < ledger.entries:
                yield Stretch(EntryPosition(ledger.ledger_id, skipped - 1), whole.upto, whole.entries)
                return
            skipped -= ledger.entries

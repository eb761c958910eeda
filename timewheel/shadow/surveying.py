"""Surveys a topic before any timer moves: movable entries, the effect on gaps, costs, and obstacles.

Nothing is consumed or changed.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.stats import InternalStats, TopicStats
from timewheel.broker.protocol.dialing import Dialer
from timewheel.core.clock import Clock
from timewheel.core.durations import HOUR_MS
from timewheel.core.plan import Plan, Tiered
from timewheel.core.routing import Hold, Router, release_at
from timewheel.core.steps import far_ms, steps
from timewheel.shadow.curing import Excess, curing, neighbours, windows
from timewheel.shadow.facts import Facts, acked_in, facts_about
from timewheel.shadow.machine.move_decider import MoveDecider, MoveDecision
from timewheel.shadow.machine.pending import ORDINARY
from timewheel.shadow.machine.stretches import acked_entries, entries_after, stretches_of
from timewheel.shadow.machine.survey_counters import SurveyCounters
from timewheel.shadow.refusing import findings_on
from timewheel.shadow.survey import Amount, Cost, Delays, PartSurvey, SubscriptionSurvey, Survey, summed
from timewheel.shadow.walking import entries_in

DEFAULT_ENTRIES = 100_000
"""Limit of entries that are read in each partition."""
PROCESS_BYTES = 90_000_000
"""Memory of a mover that moves nothing."""
BYTES_PER_PARTITION = 40_000_000
"""Most memory while a partition is caught up: entries in flight, and entries that are read ahead."""
BYTES_PER_GAP = 80
"""Memory of a cursor's range, for each subscription."""
WORK_PER_MOVED = 3.0
"""Moving an entry takes as long as reading this many: it is sent, read back, acknowledged and sent on."""
DRAWN = 1_000
"""Number of timers whose route through the plan is followed."""

ProgressCallback = Callable[[int, int], None]
"""Called with the progress: entries read, entries to read."""


@dataclass(slots=True)
class _Read:
    """The data that was read of a partition."""

    stats: InternalStats
    entries: int
    tally: SurveyCounters
    wanted: int
    is_whole: bool

    @property
    def scale(self) -> float:
        """Number of entries that each entry that was read stands for."""
        return self.entries / self.wanted if self.wanted else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRead:
    """A topic as it was read, from which it is surveyed by any plan.

    Args:
        facts: The facts about it.
        reads: The data of each partition.
        at_ms: When it was read, UTC milliseconds.
        took_ms: How long the read took.
    """

    facts: Facts
    reads: Mapping[str, _Read]
    at_ms: int
    took_ms: int

    def survey(self, plan: Plan) -> Survey:
        """Survey the topic by a plan."""
        move_decider, facts = MoveDecider(plan), replace(self.facts, plan=plan)
        reads = {name: replace(read, tally=read.tally.under(move_decider)) for name, read in self.reads.items()}
        parts = tuple(_part(facts, name, read) for name, read in reads.items())
        gap_limit = facts.seen.profile.gap_limit_ranges
        fitting = curing(plan, gap_limit, partial(_max_after, reads)) if plan.holds_in_relay else None
        excess = _excess(plan, parts, reads, gap_limit, fitting)
        delays = _delays([read.tally.delays_ms for read in reads.values()])
        decisions = summed(part.decisions for part in parts)
        stays = {decision: amount.entries for decision, amount in decisions.items() if decision not in ORDINARY}
        per_s = sum(read.tally.seen for read in reads.values()) * 1_000 / self.took_ms
        return Survey(
            plan=plan,
            at_ms=self.at_ms,
            far_ms=move_decider.far_ms,
            gap_limit=gap_limit,
            parts=parts,
            delays=delays,
            cost=_cost(plan, parts, reads.values(), per_s, self.at_ms) if per_s else None,
            findings=findings_on(facts, None if delays is None else delays.longest_ms, stays, excess),
            excess=excess,
            fitting=fitting,
            native_per_hour=_native_per_hour(reads.values()),
            native_seen_ms=max((read.tally.sent_for_ms for read in reads.values()), default=0),
            gaps_with=_gaps_with(plan, reads),
        )


def read_topic(
    admin: AdminClient,
    dialer: Dialer,
    plan: Plan,
    *,
    target: str,
    most: int = DEFAULT_ENTRIES,
    on_progress: ProgressCallback = lambda _done, _total: None,
) -> TopicRead:
    """Read a plan's due topic.

    Args:
        admin: Admin client of any broker.
        dialer: Dialer of the binary protocol, by which entries are read.
        plan: The plan for the topic's shadow.
        target: Name of the plan as the user typed it.
        most: Limit of entries that are read in each partition; of a larger partition a sample is read, at even
            distances.
        on_progress: Called with the progress.

    Raises:
        NoSuchTarget: The topic does not exist.
        AdminUnreachable: No broker answers.
        BinaryProtocolError: Entries cannot be read.
    """
    facts = facts_about(admin, plan, target=target)
    at_ms, clock = admin.clock.now_ms(), admin.clock
    move_decider = MoveDecider(plan)
    of_stats = {part.name: part.stats for part in facts.topic.parts}
    reads = {
        name: _prepared(internal, of_stats[name], move_decider, at_ms, most)
        for name, internal in facts.parts.items()
        if name in of_stats
    }
    began_ms = clock.monotonic_ms()
    _read_all(dialer, clock, reads, most, on_progress)
    return TopicRead(facts=facts, reads=reads, at_ms=at_ms, took_ms=max(clock.monotonic_ms() - began_ms, 1))


def _prepared(internal: InternalStats, stats: TopicStats, move_decider: MoveDecider, at_ms: int, most: int) -> _Read:
    acked = acked_in(internal, stats)
    entries = 0
    if acked:
        entries = entries_after(internal.ledgers, min(one.mark_delete for one in acked.values()))
    return _Read(
        stats=internal,
        entries=entries,
        tally=SurveyCounters(move_decider, acked, internal.ledgers, at_ms),
        wanted=min(entries, most),
        is_whole=entries <= most,
    )


def _read_all(
    dialer: Dialer, clock: Clock, reads: Mapping[str, _Read], most: int, on_progress: ProgressCallback
) -> None:
    total, done = sum(read.wanted for read in reads.values()), 0
    on_progress(0, total)
    for name, read in reads.items():
        tally = read.tally
        if not tally.acked:
            continue
        lowest = min(one.mark_delete for one in tally.acked.values())
        for stretch in stretches_of(read.stats.ledgers, lowest, most):
            for entries in entries_in(dialer, name, stretch, clock):
                for entry in entries:
                    tally.see(entry)
                done += len(entries)
                on_progress(done, total)
            if not read.is_whole:
                tally.new_stretch()


def _part(facts: Facts, name: str, read: _Read) -> PartSurvey:
    tally, stats = read.tally, read.stats
    scale = read.scale
    of_stats = next((part.stats.subscriptions for part in facts.topic.parts if part.name == name), {})
    subscriptions = []
    for subscription, acked in tally.acked.items():
        cursor = stats.cursors[subscription]
        behind, settled = entries_after(stats.ledgers, acked.mark_delete), acked_entries(cursor, stats.ledgers)
        subscriptions.append(
            SubscriptionSurvey(
                name=subscription,
                type=of_stats[subscription].type if subscription in of_stats else "None",
                pending=max(behind - settled, 0),
                acked=settled,
                gaps=cursor.gap_count,
                gaps_after=_gaps_after(read, subscription),
            )
        )
    return PartSurvey(
        topic=name,
        entries=read.entries,
        read=tally.seen,
        is_whole=read.is_whole,
        subscriptions=tuple(subscriptions),
        decisions={
            decision: Amount(entries=round(heap.entries * scale), size_bytes=round(heap.size_bytes * scale))
            for decision, heap in sorted(tally.decisions.items(), key=lambda one: -one[1].entries)
        },
    )


def _gaps_after(read: _Read, subscription: str, far_ms: int | None = None) -> int:
    """Return the gaps once all entries with at least this remaining time are moved."""
    now, after = read.tally.gaps(subscription, read.stats.last_confirmed if read.is_whole else None, far_ms)
    if read.is_whole:
        return after
    # Of a sample only the relative change counts, applied to the broker's own count of current gaps.
    gap_count = read.stats.cursors[subscription].gap_count
    return round(gap_count * after / now if now else after * read.entries / read.wanted)


def _max_after(reads: Mapping[str, _Read], far_ms: int) -> int:
    """Return the gaps of the worst subscription once all entries with at least this remaining time are moved."""
    every = (_gaps_after(read, name, far_ms) for read in reads.values() for name in read.tally.acked)
    return max(every, default=0)


def _native_per_hour(reads: Collection[_Read]) -> float:
    """Return the hourly number of messages that are due too soon; a partition where nothing is pending counts like the
    others.
    """
    known = [read.tally.native_per_ms * read.scale for read in reads if read.tally.sent_for_ms]
    return HOUR_MS * len(reads) * sum(known) / len(known) if known else 0.0


def _gaps_with(plan: Plan, reads: Mapping[str, _Read]) -> dict[int, int]:
    if not plan.holds_in_relay:
        return {}
    others = [(one.scheme, far_ms(one)) for one in neighbours(plan)]
    return {scheme.window_ms: _max_after(reads, far) for scheme, far in others if isinstance(scheme, Tiered)}


def _excess(
    plan: Plan, parts: Sequence[PartSurvey], reads: Mapping[str, _Read], limit: int, cure: Plan | None
) -> Excess | None:
    """Return the excess of the worst subscription; None: the broker keeps all remaining gaps, or the plan moves
    nothing.
    """
    every = [(one.gaps_after, part.topic, one) for part in parts for one in part.subscriptions]
    after, topic, worst = max(every, key=lambda one: one[0], default=(0, "", None))
    if worst is None or after <= limit or not plan.holds_in_relay:
        return None

    tally, shortest_ms = reads[topic].tally, min(map(far_ms, windows(plan)), default=far_ms(plan))
    return Excess(
        topic=topic,
        subscription=worst.name,
        gaps=worst.gaps,
        gaps_after=after,
        limit=limit,
        cure=cure,
        shortest_ms=shortest_ms,
        stays=tally.stays(shortest_ms),
        pending=tally.stays(1 << 62),
    )


def _delays(every: Sequence[array[int]]) -> Delays | None:
    found = sorted(delay for one in every for delay in one)
    if not found:
        return None
    at = [found[min(len(found) * share // 100, len(found) - 1)] for share in (50, 90, 99)]
    return Delays(p50_ms=at[0], p90_ms=at[1], p99_ms=at[2], longest_ms=found[-1])


def _cost(plan: Plan, parts: Sequence[PartSurvey], reads: Iterable[_Read], per_s: float, at_ms: int) -> Cost:
    moved = sum(
        part.decisions[MoveDecision.MOVE.value].entries for part in parts if MoveDecision.MOVE.value in part.decisions
    )
    remaining = [one for read in reads for one in read.tally.remaining_ms]
    drawn = remaining[:: max(len(remaining) // DRAWN, 1)]
    gaps = sum(max(one.gaps, one.gaps_after) for part in parts for one in part.subscriptions)
    work = sum(part.entries for part in parts) + moved * WORK_PER_MOVED
    return Cost(
        memory_bytes=PROCESS_BYTES + BYTES_PER_PARTITION * len(parts) + BYTES_PER_GAP * gaps,
        entries_per_s=per_s,
        catch_up_ms=round(work * 1_000 / per_s),
        writes=writes_of(plan, at_ms, drawn),
    )


def writes_of(plan: Plan, at_ms: int, remaining_ms: Iterable[int]) -> float:
    """Compute how often a moved timer is written, on average: into the journal, into each hold, back into the due
    topic.

    Args:
        plan: The plan that holds the timers.
        at_ms: When they are moved, UTC milliseconds.
        remaining_ms: Times until they are due.

    Returns:
        0: there are no timers, or the plan holds none.
    """
    if not plan.needs_relay:
        return 0.0
    router, steps_by_topic = Router(plan), {}
    for step in steps(plan):
        for name in router.names.of_step(step):
            steps_by_topic[name] = step
    writes, timers = 0, 0
    for remaining in remaining_ms:
        timers += 1
        writes += 2
        now_ms, due_ms = at_ms, at_ms + remaining
        while isinstance(route := router.route(due_ms, now_ms), Hold):
            writes += 1
            now_ms = release_at(steps_by_topic[route.topic], due_ms, now_ms)
    return writes / timers if timers else 0.0

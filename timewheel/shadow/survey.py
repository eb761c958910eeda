"""Surveys a topic before any timer moves: movable entries, the effect on gaps, costs, and obstacles.

Nothing is consumed or changed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.stats import InternalStats
from timewheel.broker.protocol.dialing import Dialer
from timewheel.core.durations import HOUR_MS, format_duration
from timewheel.core.plan import Plan, Tiered
from timewheel.core.routing import Hold, Router
from timewheel.core.steps import far_ms, spare_ms
from timewheel.inspect.doctor import Finding
from timewheel.inspect.reader import ProgressCallback, no_report
from timewheel.shadow.curing import Excess, curing, neighbours, windows
from timewheel.shadow.machine.cursors import acked_entries, acked_in, entries_after, pending_entries, stretches_of
from timewheel.shadow.machine.move_decider import MoveDecider, MoveDecision
from timewheel.shadow.machine.survey_counters import ORDINARY, Amount, SurveyCounters
from timewheel.shadow.refusing import Facts, facts_about, findings_on, is_refused
from timewheel.shadow.stored_entries import entries_in


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionSurvey:
    """A subscription of a partition."""

    name: str
    type: str  # ``Shared``, ...; ``None`` (a text): no consumer is connected
    pending: int
    acked: int  # entries behind its mark-delete position that it has acknowledged
    gaps: int  # gaps now, by the broker's count
    gaps_after: int  # gaps once all moved entries are acknowledged


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSurvey:
    """A partition."""

    topic: str
    entries: int  # entries behind the lowest mark-delete position
    read: int  # number of them that were read
    is_whole: bool  # all were read: figures are exact, as of the moment of the survey
    subscriptions: tuple[SubscriptionSurvey, ...]
    decisions: Mapping[str, Amount]  # entries that any subscription has pending, by decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """Delays of the pending entries that were read, from publish to delivery, milliseconds."""

    p50_ms: int
    p90_ms: int
    p99_ms: int
    longest_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Estimated costs of the mover.

    Args:
        memory_bytes: Memory of its process.
        entries_per_s: Rate at which entries were read just now.
        catch_up_ms: Time to read all entries and to move those that are moved.
        writes: Mean writes for each moved timer: into the journal, from hold to hold, back into the topic.
    """

    memory_bytes: int
    entries_per_s: float
    catch_up_ms: int
    writes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """A topic before any timer moves.

    Args:
        far_ms: Remaining time from which an entry is moved.
        delays: None: no entry that was read has a delay.
        cost: None: no entry could be read.
        findings: Obstacles, and facts worth knowing; the worst first.
        excess: Gaps beyond the limit that the shadow would leave; None: there are none.
        fitting: The plan itself, or with the longest shorter window that leaves so few gaps that the broker keeps them
            with room to spare; None: no window does.
        native_per_hour: Number of delayed messages an hour that are sent too short before they are due to be moved.
        native_seen_ms: Time over which these were counted: since the oldest pending entry was sent.
        gaps_with: Gaps of the worst subscription once the shadow has caught up, with the next shorter and the next
            longer window, by the window, milliseconds.
    """

    plan: Plan
    at_ms: int
    far_ms: int
    gap_limit: int
    parts: tuple[PartSurvey, ...]
    delays: Delays | None
    cost: Cost | None
    findings: tuple[Finding, ...]
    excess: Excess | None = None
    fitting: Plan | None = None
    native_per_hour: float = 0.0
    native_seen_ms: int = 0
    gaps_with: Mapping[int, int] = field(default_factory=dict)

    @property
    def is_refused(self) -> bool:
        return is_refused(self.findings)

    @property
    def is_whole(self) -> bool:
        """True if every entry was read."""
        return all(part.is_whole for part in self.parts)

    @property
    def decisions(self) -> Mapping[str, Amount]:
        """Entries by decision, over all partitions."""
        return summed(part.decisions for part in self.parts)

    @property
    def moved(self) -> Amount:
        """Entries that would be moved now."""
        return self.decisions.get(MoveDecision.MOVE.value, Amount())


def summed(every: Iterable[Mapping[str, Amount]]) -> dict[str, Amount]:
    """Sum amounts by decision over several partitions, the largest first."""
    found: dict[str, Amount] = {}
    for decisions in every:
        for name, amount in decisions.items():
            found[name] = found[name] + amount if name in found else amount
    return dict(sorted(found.items(), key=lambda one: -one[1].entries))


def survey_facts(found: Survey) -> dict[str, Any]:
    """Return a survey as plain values, for JSON."""
    delays, cost = found.delays, found.cost
    return {
        "due_topic": found.plan.due_topic,
        "at_ms": found.at_ms,
        "is_refused": found.is_refused,
        "is_whole": found.is_whole,
        "far_ms": found.far_ms,
        "spare_ms": spare_ms(found.plan),
        "native_per_hour": round(found.native_per_hour),
        "native_seen_ms": found.native_seen_ms,
        "gaps_after_with": {format_duration(window_ms): gaps for window_ms, gaps in found.gaps_with.items()},
        "gap_limit": found.gap_limit,
        "decisions": _amounts(found.decisions),
        "delays_ms": None
        if delays is None
        else {name.removesuffix("_ms"): delay_ms for name, delay_ms in asdict(delays).items()},
        "estimates": None
        if cost is None
        else {
            "memory_bytes": cost.memory_bytes,
            "entries_per_s": round(cost.entries_per_s),
            "catch_up_ms": cost.catch_up_ms,
            "writes_per_moved": round(cost.writes, 2),
        },
        "partitions": [{**asdict(part), "decisions": _amounts(part.decisions)} for part in found.parts],
        "findings": [one.facts() for one in found.findings],
    }


def _amounts(decisions: Mapping[str, Amount]) -> dict[str, dict[str, int]]:
    return {name: {"entries": amount.entries, "bytes": amount.size_bytes} for name, amount in decisions.items()}


DEFAULT_ENTRIES = 100_000  # limit of entries that are read in each partition
PROCESS_BYTES = 90_000_000  # memory of a mover that moves nothing
BYTES_PER_PARTITION = 40_000_000
"""Most memory while a partition is caught up: entries in flight, and entries that are read ahead."""
BYTES_PER_GAP = 80  # memory of a cursor's range, for each subscription
WORK_PER_MOVED = 3.0
"""Moving an entry takes as long as reading this many: it is sent, read back, acknowledged and sent on."""
DRAWN = 1_000  # number of timers whose route through the plan is followed


@dataclass(slots=True)
class _Read:
    """The data that was read of a partition."""

    stats: InternalStats
    entries: int
    counters: SurveyCounters
    wanted: int
    is_whole: bool

    @property
    def scale(self) -> float:
        """Number of entries that each entry that was read stands for."""
        return self.entries / self.wanted if self.wanted else 1.0

    def gaps_after(self, subscription: str, far_ms: int | None = None) -> int:
        """Return the gaps once all entries with at least this remaining time are moved."""
        now, after = self.counters.gaps(subscription, self.stats.last_confirmed if self.is_whole else None, far_ms)
        if self.is_whole:
            return after
        # Of a sample only the relative change counts, applied to the broker's own count of current gaps.
        gap_count = self.stats.cursors[subscription].gap_count
        return round(gap_count * after / now if now else after * self.entries / self.wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRead:
    """A topic as it was read, from which it is surveyed by any plan."""

    facts: Facts
    reads: Mapping[str, _Read]
    at_ms: int
    took_ms: int

    def survey(self, plan: Plan) -> Survey:
        """Survey the topic by a plan."""
        move_decider, facts = MoveDecider(plan), replace(self.facts, plan=plan)
        reads = {name: replace(read, counters=read.counters.under(move_decider)) for name, read in self.reads.items()}
        parts = tuple(_part(facts, name, read) for name, read in reads.items())
        gap_limit = facts.seen.profile.gap_limit_ranges
        fitting, gaps_with = None, {}
        if plan.holds_in_relay:
            fitting = curing(plan, gap_limit, partial(_max_after, reads))
            others = [(one.scheme, far_ms(one)) for one in neighbours(plan)]
            gaps_with = {one.window_ms: _max_after(reads, far) for one, far in others if isinstance(one, Tiered)}
        excess = _excess(plan, parts, reads, gap_limit, fitting)
        # By the partitions where anything is pending; the others count like them.
        known = [read.counters.native_per_ms * read.scale for read in reads.values() if read.counters.sent_for_ms]
        delays = _delays([read.counters.delays_ms for read in reads.values()])
        decisions = summed(part.decisions for part in parts)
        stays = {decision: amount.entries for decision, amount in decisions.items() if decision not in ORDINARY}
        per_s = sum(read.counters.seen for read in reads.values()) * 1_000 / self.took_ms
        return Survey(
            plan=plan, at_ms=self.at_ms, far_ms=move_decider.far_ms, gap_limit=gap_limit, parts=parts, delays=delays,
            cost=_cost(plan, parts, reads.values(), per_s, self.at_ms) if per_s else None,
            findings=findings_on(facts, None if delays is None else delays.longest_ms, stays, excess), excess=excess,
            fitting=fitting, native_per_hour=HOUR_MS * len(reads) * sum(known) / len(known) if known else 0.0,
            native_seen_ms=max((read.counters.sent_for_ms for read in reads.values()), default=0),
            gaps_with=gaps_with,
        )  # fmt: skip


def read_topic(
    admin: AdminClient,
    dialer: Dialer,
    plan: Plan,
    *,
    target: str,
    most: int = DEFAULT_ENTRIES,
    on_progress: ProgressCallback = no_report,
) -> TopicRead:
    """Read a plan's due topic, by the binary protocol; of a partition with more than ``most`` entries a sample, at even
    distances. ``target`` is the name of the plan as the user typed it.

    Raises:
        NoSuchTarget: The topic does not exist.
        AdminUnreachable: No broker answers.
        BinaryProtocolError: Entries cannot be read.
    """
    facts = facts_about(admin, plan, target=target)
    at_ms, clock = admin.clock.now_ms(), admin.clock
    move_decider = MoveDecider(plan)
    of_stats, reads = {part.name: part.stats for part in facts.topic.parts}, {}
    for name, internal in facts.parts.items():
        if name in of_stats:
            acked = acked_in(internal, of_stats[name])
            entries = entries_after(internal.ledgers, min(one.mark_delete for one in acked.values())) if acked else 0
            counters = SurveyCounters(move_decider, acked, internal.ledgers, at_ms)
            reads[name] = _Read(internal, entries, counters, wanted=min(entries, most), is_whole=entries <= most)
    began_ms = clock.monotonic_ms()
    total, done = sum(read.wanted for read in reads.values()), 0
    on_progress(0, total)
    for name, read in reads.items():
        if not read.wanted:
            continue
        lowest = min(one.mark_delete for one in read.counters.acked.values())
        for stretch in stretches_of(read.stats.ledgers, lowest, most):
            for found in entries_in(dialer, name, stretch, clock):
                for entry in found:
                    read.counters.see(entry)
                done += len(found)
                on_progress(done, total)
            if not read.is_whole:
                read.counters.new_stretch()
    return TopicRead(facts=facts, reads=reads, at_ms=at_ms, took_ms=max(clock.monotonic_ms() - began_ms, 1))


def _part(facts: Facts, name: str, read: _Read) -> PartSurvey:
    counters, stats, scale = read.counters, read.stats, read.scale
    of_stats = next((part.stats.subscriptions for part in facts.topic.parts if part.name == name), {})
    return PartSurvey(
        topic=name,
        entries=read.entries,
        read=counters.seen,
        is_whole=read.is_whole,
        subscriptions=tuple(
            SubscriptionSurvey(
                name=subscription,
                type=of_stats[subscription].type if subscription in of_stats else "None",
                pending=pending_entries(stats.cursors[subscription], stats.ledgers),
                acked=acked_entries(stats.cursors[subscription], stats.ledgers),
                gaps=stats.cursors[subscription].gap_count,
                gaps_after=read.gaps_after(subscription),
            )
            for subscription in counters.acked
        ),
        decisions={
            decision: Amount(round(amount.entries * scale), round(amount.size_bytes * scale))
            for decision, amount in sorted(counters.decisions.items(), key=lambda one: -one[1].entries)
        },
    )


def _max_after(reads: Mapping[str, _Read], far_ms: int) -> int:
    """Return the gaps of the worst subscription once all entries with at least this remaining time are moved."""
    every = (read.gaps_after(name, far_ms) for read in reads.values() for name in read.counters.acked)
    return max(every, default=0)


def _excess(
    plan: Plan, parts: Sequence[PartSurvey], reads: Mapping[str, _Read], limit: int, cure: Plan | None
) -> Excess | None:
    """Return the excess of the worst subscription; None: the broker keeps all remaining gaps, or nothing moves."""
    every = [(one.gaps_after, part.topic, one) for part in parts for one in part.subscriptions]
    after, topic, worst = max(every, key=lambda one: one[0], default=(0, "", None))
    if worst is None or after <= limit or not plan.holds_in_relay:
        return None

    counters, shortest_ms = reads[topic].counters, min(map(far_ms, windows(plan)), default=far_ms(plan))
    return Excess(
        topic=topic, subscription=worst.name, gaps=worst.gaps, gaps_after=after, limit=limit, cure=cure,
        shortest_ms=shortest_ms, stays=counters.stays(shortest_ms), pending=counters.stays(1 << 62),
    )  # fmt: skip


def _delays(every: Sequence[array[int]]) -> Delays | None:
    found = sorted(delay for one in every for delay in one)
    if not found:
        return None
    at = [found[min(len(found) * share // 100, len(found) - 1)] for share in (50, 90, 99)]
    return Delays(p50_ms=at[0], p90_ms=at[1], p99_ms=at[2], longest_ms=found[-1])


def _cost(plan: Plan, parts: Sequence[PartSurvey], reads: Iterable[_Read], per_s: float, at_ms: int) -> Cost:
    moved = sum(part.decisions.get(MoveDecision.MOVE.value, Amount()).entries for part in parts)
    remaining = [one for read in reads for one in read.counters.remaining_ms]
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
    topic. 0: there are no timers, or the plan holds none. They are moved at ``at_ms``, UTC milliseconds, and due in
    ``remaining_ms``.
    """
    if not plan.needs_relay:
        return 0.0
    router, writes, timers = Router(plan), 0, 0
    for remaining in remaining_ms:
        timers, writes, route = timers + 1, writes + 2, router.route(at_ms + remaining, at_ms)
        while isinstance(route, Hold):
            writes, route = writes + 1, router.route(at_ms + remaining, route.release_at_ms)
    return writes / timers if timers else 0.0

"""The standing of a shadow, as values: its state, its progress, and warnings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, unique
from typing import Any

from timewheel.core.durations import MINUTE_MS, span
from timewheel.core.escapes import admin_options, pulsar_admin, timewheel_command
from timewheel.core.gap_law import WATCH_SHARE
from timewheel.core.plan import Plan
from timewheel.core.plurals import counted
from timewheel.inspect.doctor import Unread
from timewheel.inspect.status import Amount
from timewheel.inspect.status.places import summed
from timewheel.shadow.curing import Excess
from timewheel.shadow.machine.states import DesiredState, State, drains

STUCK_MS = MINUTE_MS
"""A timer leaves the intake at once, a copy the journal at once, and a timer a holding topic before it is due: after
this
much more time it counts as stuck."""
JOURNAL_SLACK_MS = 10 * MINUTE_MS
"""The journal keeps a copy until the topic has passed its original, and some minutes longer."""
BEGUN_MS = 5 * MINUTE_MS
MAX_BEGUN = 10
"""A takeover, a reload, or a new schema version begins a session; these are few."""
STALE_ENTRIES = 50_000
"""With this many in order a broker may stop reading (broker-facts: starved-due-topic)."""


@unique
class Phase(Enum):
    """Phases of a partition."""

    IDLE = "not moving"
    NOBODY = "no mover"
    """Moving is desired, and no mover is connected."""
    CATCHING_UP = "catching up"
    SHADOWING = "shadowing"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The entries that a subscription of the intake or the journal has not acknowledged.

    Args:
        entries: Their number.
        oldest_ms: How long the oldest has waited, milliseconds; None: none waits, or it could not be read.
    """

    entries: int
    oldest_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Time from an original's publish to that of its copy: of the newest copies, without the backlog from before the
    start.

    Args:
        copies: Number of copies that were read.
        p50_ms: Median, milliseconds.
        p99_ms: 99th percentile, milliseconds.
    """

    copies: int
    p50_ms: int
    p99_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionOverview:
    """A subscription of a partition of the due topic.

    Args:
        name: Its name.
        type: ``Shared``, ...; ``None`` (a text): no consumer is connected.
        pending: Entries that it has not acknowledged.
        gaps: Ranges of acknowledged entries behind the first pending entry.
        delayed: Delayed messages by the broker's count.
        stale_entries: Lower bound of those that are acknowledged: the broker forgets them when they are due, or at an
            unload.
    """

    name: str
    type: str
    pending: int
    gaps: int
    delayed: int
    stale_entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOverview:
    """A partition.

    Args:
        topic: Full name, of the due topic.
        phase: Its phase.
        mover: Address of the connected mover; None: there is none.
        relay: Name of the relay's consumer of the journal; None: there is none.
        caught_up_ms: When the backlog had been processed, UTC milliseconds; None: not yet.
        lag: None: there is no copy of a message that came since the start.
        intake: Timers from clients of any language that have not moved on from the intake.
        copies: Copies that have not moved on from the journal.
        journal: Copies that are kept until the acknowledgements in the topic are safe.
        pinned_by: The subscription with the lowest mark-delete position, if the journal waits for it.
        subscriptions: Subscriptions of the topic.
        sampled: Number of entries that were read.
        left: Estimated number of entries far from due that could have been moved; without the newest, while a shadow is
            to move.
        stays: Estimated number of entries far from due that cannot be moved, by the reason.
        is_whole: All entries were read: both numbers are exact.
        error: Error of the sum of both at 95 %.
        begun: How often a mover began in the last `BEGUN_MS`: a session that meets the same failure again and again
            moves nothing.
    """

    topic: str
    phase: Phase
    mover: str | None
    relay: str | None
    caught_up_ms: int | None
    lag: Lag | None
    intake: Queue
    copies: Queue
    journal: Queue
    pinned_by: str | None
    subscriptions: tuple[SubscriptionOverview, ...]
    sampled: int
    left: int
    stays: Mapping[str, int] = field(default_factory=dict)
    is_whole: bool = True
    error: int = 0
    begun: int = 0

    @property
    def not_moved(self) -> Amount:
        """Entries far from due that were not moved."""
        return Amount(float(self.left + sum(self.stays.values())), float(self.error))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowOverview:
    """The standing of a shadow.

    Args:
        plan: Its plan.
        at_ms: Time of the snapshot, UTC milliseconds.
        desired: The desired state, and since when.
        refusal: Why no timer may be moved; empty: there is no obstacle.
        far_ms: Remaining time from which an entry is moved.
        gap_limit: The broker's limit.
        parts: By partition.
        holding: Waiting entries by holding topic.
        dead_letters: Number of entries, each of one or many letters; None: unknown.
        writes: Mean writes for each moved timer; None: no timer was moved lately.
        unread: Topics that could not be read.
        former: Waiting entries in holding topics of earlier plans, by topic: relays of this plan drain them.
        excess: Gaps beyond the limit that it leaves however long it runs; None: none.
        timers: Number of timers in the waiting entries, by holding topic of this plan or an earlier plan; None, or
            missing: unknown.
        target: Name of the plan as the user typed it.
        reached_by: Options by which a command reaches the cluster.
    """

    plan: Plan
    at_ms: int
    desired: DesiredState
    refusal: str
    far_ms: int
    gap_limit: int
    parts: tuple[PartitionOverview, ...]
    holding: Mapping[str, int]
    dead_letters: int | None
    writes: float | None
    unread: tuple[Unread, ...]
    former: Mapping[str, int] = field(default_factory=dict)
    excess: Excess | None = None
    timers: Mapping[str, Amount | None] = field(default_factory=dict)
    target: str = "PLAN"
    reached_by: tuple[str, ...] = ()

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
    yield from _of_journals(found, run)
    waits = any(found.holding.values()) or any(found.former.values())
    if drains(found.desired.state) and waits and not any(part.relay for part in found.parts):
        yield f"Timers in holding topics are to go back, and no relay is connected; run: {run}"


def _of_journals(found: ShadowOverview, run: str) -> Iterator[str]:
    """Warn of a shadow that ends while its journals hold copies: it is needed until they are empty."""
    kept = sum(part.journal.entries for part in found.parts if part.mover is None)
    if kept and drains(found.desired.state):
        entries = counted(kept, "entry", "entries")
        why = "a broker that is killed may deliver originals again, and no process would acknowledge them"
        yield f"The journal still has {entries}: {why}. Until it is empty, run: {run}"


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
        "unseen": [{"what": one.subject, "source": one.source.value, "reason": one.reason} for one in found.unread],
    }


def _part(part: PartitionOverview) -> dict[str, Any]:
    lag = part.lag
    return {
        "topic": part.topic,
        "phase": part.phase.name.lower(),
        "mover": part.mover,
        "relay": part.relay,
        "caught_up_ms": part.caught_up_ms,
        "lag_ms": None if lag is None else {"copies": lag.copies, "p50": lag.p50_ms, "p99": lag.p99_ms},
        "intake": {"entries": part.intake.entries, "oldest_ms": part.intake.oldest_ms},
        "copies": {"entries": part.copies.entries, "oldest_ms": part.copies.oldest_ms},
        "journal": {"entries": part.journal.entries, "oldest_ms": part.journal.oldest_ms},
        "pinned_by": part.pinned_by,
        "subscriptions": [
            {
                "name": one.name,
                "type": one.type,
                "pending": one.pending,
                "gaps": one.gaps,
                "delayed": one.delayed,
                "stale_at_least": one.stale_entries,
            }
            for one in part.subscriptions
        ],
        "sampled": part.sampled,
        "left_about": part.left,
        "stays_about": dict(part.stays),
        "is_whole": part.is_whole,
        "error": part.error,
        "begun": part.begun,
    }

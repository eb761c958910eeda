"""Sample all topics of a plan through the admin API; nothing is consumed.

Due topics and holding topics are sampled separately, each with equal chances for its entries: in a plan with long tiers
nearly all timers are in holding topics, so a joint sample would contain too few entries of the due topics, whose gaps
are to be judged. In due topics, pairs of neighbours are drawn: a gap is a property of two consecutive entries, and
correlations between neighbours ("a thousand reminders for the same hour") are lost if entries are drawn singly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.entries import BatchedMessage, BatchGarbled, StoredEntry, messages_of_batch
from timewheel.broker.admin.stats import InternalStats
from timewheel.client.positions import EntryPosition
from timewheel.core.clock import Clock
from timewheel.core.envelope import NUDGE_PROPERTY, PROBE_PROPERTY, TIMER_PROPERTY, Envelope, due_in
from timewheel.core.errors import AdminError, AdminMissing
from timewheel.core.grouping import LARGEST_BATCH
from timewheel.core.names import RELAY_SUBSCRIPTION, parts_of
from timewheel.core.plan import Calendar, Plan
from timewheel.core.routing import release_at
from timewheel.core.steps import Step
from timewheel.core.topology import HoldingTopic, calendar_intervals, topology
from timewheel.inspect.entries import Entries, Place, Run, ledger_runs
from timewheel.inspect.errors import NothingToSample, NotOfThisPlan
from timewheel.inspect.missing_topics import no_such_topic
from timewheel.inspect.reader import ProgressCallback, no_report, used_parts
from timewheel.inspect.sample import DEFAULT_SAMPLES, MAX_SAMPLES, draw, envelope_in, inspect

FEW_PROBES = 8
"""Number of entries that are searched for the first timer of a partition: each relay may have left a probe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A subscription on a partition, with unacknowledged entries (``backlog``) and ranges by the broker's own counter.

    The counter is ``totalNonContiguousDeletedMessagesRange`` of the internal stats, which is
    ``nonContiguousDeletedMessagesRanges`` of the stats.
    """

    mark_delete: EntryPosition
    gap_count: int
    backlog: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A partition, or a topic without partitions."""

    name: str  # full name, with the partition's suffix
    at_ms: int  # time of the read, UTC milliseconds
    runs: tuple[Run, ...]  # entries of each ledger, in order; empty ledgers are left out
    first_stored_ms: int | None  # publish time of the first stored entry; None if the partition is empty
    cursors: Mapping[str, Cursor]  # cursors of the plan's subscriptions (of the relay's, for a holding topic)

    @property
    def entries(self) -> int:
        """Number of stored entries, acknowledged or not."""
        return sum(run.entries for run in self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTopic:
    """An existing topic of the plan, with the partitions that were ever used; without partitions, the topic itself.

    A due topic has no step, other topics than those of a calendar have no start of an interval (UTC milliseconds).
    """

    name: str
    parts: tuple[Part, ...]
    partitions: int
    step: Step | None = None
    slot: int = 0
    interval_start_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTimer:
    """A message stored in a topic of the plan."""

    place: Place  # place of the entry; messages of a batch share it
    stored_ms: int  # publish time of the entry, UTC milliseconds
    # time at which a producer accepted the timer, or the nominal time of its last hop; `stored_ms` without an
    # envelope
    entered_ms: int
    due_ms: int  # due time; not before `entered_ms`
    size_bytes: int  # size of the payload
    key: str | None  # partition key
    hops: int | None  # number of moves by relays; None without an envelope
    envelope: Envelope | None = None  # the stored envelope; None without an envelope

    @property
    def is_first(self) -> bool:
        """True if the timer is still where its producer sent it; exactly one copy of a timer is."""
        return not self.hops


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A sample of the entries of some topics, without replacement and with equal chances.

    Some of the sampled entries had disappeared or were unreadable (``unread``). A batch has several timers.
    """

    population: int
    inspected: int
    unread: int
    timers: tuple[StoredTimer, ...]

    @property
    def scale(self) -> float:
        """Number of entries that each read entry stands for."""
        return self.population / self.inspected if self.inspected else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSample:
    """The topics of a plan at a moment (the first read, UTC milliseconds), and samples of both kinds.

    Of a calendar, the due topics are those from the running interval on.
    """

    plan: Plan
    at_ms: int
    due: tuple[PlanTopic, ...]
    holding: tuple[PlanTopic, ...]
    missing: tuple[str, ...]
    in_due: Drawn
    in_holding: Drawn


def timers_of(place: Place, entry: StoredEntry, *, in_intake: bool = False) -> tuple[StoredTimer, ...]:
    """Return the timers in an entry: as many as its batch has messages. A relay's probe or a shadow's nudge is no
    timer. Due times of the intake are in properties.
    """
    messages: Iterable[BatchedMessage] = (
        BatchedMessage(
            properties=entry.properties, partition_key=entry.partition_key, payload_bytes=len(entry.payload)
        ),
    )
    if entry.batch_messages is not None:
        try:
            messages = tuple(islice(messages_of_batch(entry.payload, entry.batch_messages), LARGEST_BATCH))
        except BatchGarbled:
            # Encrypted: only the entry is visible.
            messages = (BatchedMessage(properties={}, partition_key=None, payload_bytes=len(entry.payload)),)
    return tuple(
        _timer(place, entry, one, in_intake=in_intake)
        for one in messages
        if TIMER_PROPERTY in one.properties or not one.properties.keys() & {PROBE_PROPERTY, NUDGE_PROPERTY}
    )


def first_timers(
    places: Iterable[Place], timers_at: Callable[[Place], tuple[StoredTimer, ...] | None]
) -> tuple[Place, tuple[StoredTimer, ...]] | None:
    """Return the first entry with timers, after any probes.

    Returns None if the first entries contain no timer, or if an entry before the first timer could not be read.
    """
    for place in islice(places, FEW_PROBES):
        timers = timers_at(place)
        if timers or timers is None:
            return None if timers is None else (place, timers)
    return None


def leaves_ms(step: Step, timer: StoredTimer) -> int:
    """Return when a timer is to leave its topic, UTC milliseconds."""
    if step.kind == "due":
        return timer.due_ms
    # An original may have been sent days before its copy was stored.
    entered_ms = timer.stored_ms if step.kind in ("intake", "journal") else timer.entered_ms
    return release_at(step, timer.due_ms, entered_ms)


def _timer(place: Place, entry: StoredEntry, message: BatchedMessage, *, in_intake: bool) -> StoredTimer:
    stored_ms = entry.publish_at_ms
    due_ms = stored_ms if entry.deliver_at_ms is None else entry.deliver_at_ms
    if in_intake and (own_ms := due_in(message.properties)) is not None:
        due_ms = own_ms
    entered_ms, hops = stored_ms, None
    envelope = envelope_in(message.properties)
    if envelope is not None:
        due_ms, entered_ms, hops = envelope.due_ms, envelope.entered_ms, envelope.hops
    return StoredTimer(
        place=place,
        stored_ms=stored_ms,
        entered_ms=entered_ms,
        due_ms=max(due_ms, entered_ms),
        size_bytes=message.payload_bytes,
        key=message.partition_key,
        hops=hops,
        envelope=envelope,
    )


FIRST_ENTRIES = 8  # number of a ledger's entries that are tried to find the ledger's start time


def sample_plan(
    admin: AdminClient,
    plan: Plan,
    clock: Clock,
    *,
    samples: int = DEFAULT_SAMPLES,
    seed: int = 0,
    on_progress: ProgressCallback = no_report,
) -> PlanSample:
    """Read random timers in the topics of a plan; nothing is consumed. Samples are drawn from the due topics, and again
    from the holding topics; all entries if fewer exist.

    Raises:
        ValueError: The number of samples is out of range.
        NothingToSample: No due topic exists, all topics are empty, or entries disappeared too soon.
        NotOfThisPlan: A due topic lacks the plan's subscriptions.
        AdminError: A call failed for another reason.
    """
    if not 1 <= samples <= MAX_SAMPLES:
        raise ValueError(f"from 1 to {MAX_SAMPLES:,} samples, not {samples}")
    at_ms = clock.now_ms()
    due, missing = _due(admin, plan, clock, at_ms)
    holding = []
    for held in topology(plan, at_ms).holding:
        found = _topic(admin, clock, held.name, (RELAY_SUBSCRIPTION,), held=held)
        if found is None:
            missing.append(held.name)
        else:
            holding.append(found)
    total = sum(min(samples, _entries(topics)) for topics in (due, holding))
    in_due = _drawn(admin, plan, due, draw_pairs, samples, seed, lambda done, _: on_progress(min(done, total), total))
    already = min(samples, in_due.population)
    in_holding = _drawn(
        admin, plan, holding, draw, samples, seed, lambda done, _: on_progress(min(already + done, total), total)
    )
    if not in_due.population and not in_holding.population:
        raise NothingToSample(plan.due_topic, "no topic of the plan stores an entry: nothing was sent, or all is done")
    return PlanSample(
        plan=plan,
        at_ms=at_ms,
        due=tuple(due),
        holding=tuple(holding),
        missing=tuple(missing),
        in_due=in_due,
        in_holding=in_holding,
    )


def draw_pairs(population: int, samples: int, seed: int) -> list[int]:
    """Draw numbers below a population as pairs of neighbours; all numbers if they are no more than the samples.

    Each number has the same chance, except the first and the last, which have a single neighbour. Pairs that meet share
    a number, so the result has up to ``samples`` numbers.
    """
    if population <= samples or samples < 2:
        return draw(population, samples, seed)
    heads = draw(population - 1, samples // 2, seed)
    return list(dict.fromkeys(number for head in heads for number in (head, head + 1)))


def _due(admin: AdminClient, plan: Plan, clock: Clock, at_ms: int) -> tuple[list[PlanTopic], list[str]]:
    """Return the existing due topics, each with all subscriptions of the plan, and the names of missing due topics."""
    due, missing = [], []
    for name, start_ms in due_topics(plan, at_ms):
        found = _topic(admin, clock, name, plan.subscriptions, interval_start_ms=start_ms)
        if found is None:
            missing.append(name)
            continue
        for part in found.parts:
            lacking = [subscription for subscription in plan.subscriptions if subscription not in part.cursors]
            if lacking:
                raise NotOfThisPlan(part.name, lacking, admin.subscriptions.list(part.name))
        due.append(found)
    if not due:
        raise NothingToSample(missing[0], f"{no_such_topic(admin, missing[0])}; is this the plan of another cluster?")
    if not any(topic.parts for topic in due):
        makes = "`timewheel topics ensure PLAN` makes them"
        raise NothingToSample(plan.due_topic, f"no partition of it was ever used; {makes}")
    return due, missing


def due_topics(plan: Plan, at_ms: int) -> Iterator[tuple[str, int | None]]:
    """Yield the due topics, those of a calendar with the start of their interval, UTC milliseconds."""
    names = [spec.name for spec in topology(plan, at_ms).topics if spec.role == "due"]
    if isinstance(plan.scheme, Calendar):
        starts_ms = [interval * plan.scheme.interval_ms for interval in calendar_intervals(plan, at_ms)]
        yield from zip(names, starts_ms, strict=True)
    else:
        yield from ((name, None) for name in names)


def _topic(
    admin: AdminClient,
    clock: Clock,
    name: str,
    subscriptions: Sequence[str],
    *,
    held: HoldingTopic | None = None,
    interval_start_ms: int | None = None,
) -> PlanTopic | None:
    partitions = admin.topics.partitions(name)
    if partitions is None:
        return None
    parts = tuple(
        part for _, part in used_parts(parts_of(name, partitions), partial(_part, admin, clock, subscriptions))
    )
    if not parts and not partitions:
        return None
    return PlanTopic(
        name=name,
        parts=parts,
        partitions=partitions,
        step=None if held is None else held.step,
        slot=0 if held is None else held.slot,
        interval_start_ms=interval_start_ms,
    )


def _part(admin: AdminClient, clock: Clock, subscriptions: Sequence[str], name: str) -> Part:
    stats = admin.topics.internal_stats(name)
    at_ms = clock.now_ms()
    backlogs = admin.topics.stats(name).subscriptions
    return Part(
        name=name,
        at_ms=at_ms,
        runs=tuple(ledger_runs(stats.ledgers)),
        first_stored_ms=_first_stored_ms(admin, name, stats),
        cursors={
            one: Cursor(
                mark_delete=cursor.mark_delete,
                gap_count=cursor.gap_count,
                backlog=backlogs[one].backlog if one in backlogs else 0,
            )
            for one in subscriptions
            if (cursor := stats.cursors.get(one)) is not None
        },
    )


def _first_stored_ms(admin: AdminClient, part: str, stats: InternalStats) -> int | None:
    """Return the publish time of the first stored entry: ledgers are deleted from the front."""
    unread: AdminError | None = None
    for ledger in stats.ledgers:
        for number in range(min(ledger.entries, FIRST_ENTRIES)):
            try:
                return admin.topics.entry(part, EntryPosition(ledger.ledger_id, number)).publish_at_ms
            except AdminMissing:
                break  # deleted meanwhile, so the next ledger is the first
            except AdminError as error:
                unread = error  # a producer may store entries that cannot be read
    if unread is not None:
        raise NothingToSample(part, f"its first entries could not be read ({unread.reason})") from unread
    return None


def _entries(topics: Sequence[PlanTopic]) -> int:
    return sum(part.entries for topic in topics for part in topic.parts)


def _drawn(
    admin: AdminClient,
    plan: Plan,
    topics: Sequence[PlanTopic],
    choose: Callable[[int, int, int], list[int]],
    samples: int,
    seed: int,
    on_progress: ProgressCallback,
) -> Drawn:
    stored = Entries((part.name, run) for topic in topics for part in topic.parts for run in part.runs)
    population = len(stored)
    if not population:
        return Drawn(population=0, inspected=0, unread=0, timers=())
    places = [stored.place(number) for number in choose(population, samples, seed)]
    found, unread = inspect(admin, plan.due_topic, places, len(places), timers_of, on_progress)
    timers = tuple(timer for entry in found for timer in entry)
    return Drawn(population=population, inspected=len(found), unread=unread.all, timers=timers)

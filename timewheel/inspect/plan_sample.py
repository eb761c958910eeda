"""Sample all topics of a plan through the admin API; nothing is consumed.

Due topics and holding topics are sampled separately, each with equal chances for its entries: in a plan with long tiers
nearly all timers are in holding topics, so a joint sample would contain too few entries of the due topics, whose gaps
are to be judged. In due topics, pairs of neighbours are drawn: a gap is a property of two consecutive entries, and
correlations between neighbours ("a thousand reminders for the same hour") are lost if entries are drawn singly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.internals import EntryPosition, InternalStats
from timewheel.core.clock import Clock
from timewheel.core.errors import AdminError, AdminMissing
from timewheel.core.names import RELAY_SUBSCRIPTION, parts_of
from timewheel.core.plan import Calendar, Plan
from timewheel.core.topology import HoldingTopic, calendar_intervals, topology
from timewheel.inspect.errors import NothingToSample, NotOfThisPlan
from timewheel.inspect.missing_topics import no_such_topic
from timewheel.inspect.plan_stored import Cursor, Drawn, Part, PlanSample, PlanTopic, timers_of
from timewheel.inspect.sample import (
    DEFAULT_SAMPLES,
    MAX_SAMPLES,
    ProgressCallback,
    Stretch,
    draw,
    inspect,
    places_of,
)

FIRST_ENTRIES = 8
"""Number of a ledger's entries that are tried to find the ledger's start time."""


def sample_plan(
    admin: AdminClient,
    plan: Plan,
    clock: Clock,
    *,
    samples: int = DEFAULT_SAMPLES,
    seed: int = 0,
    on_progress: ProgressCallback = lambda _done, _total: None,
) -> PlanSample:
    """Read random timers in the topics of a plan; nothing is consumed.

    Args:
        admin: Client whose role may read the topics' stats and peek at their messages.
        plan: Plan of any scheme; its topics need not be timewheel's own.
        clock: Clock for the time of each read.
        samples: Number of entries to sample from the due topics, and again from the holding topics; all if fewer exist.
        seed: Seed of the sample.
        on_progress: Progress callback; called in the caller's thread.

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
    for name, start_ms in _due_topics(plan, at_ms):
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


def _due_topics(plan: Plan, at_ms: int) -> Iterator[tuple[str, int | None]]:
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
    parts = []
    for part in parts_of(name, partitions):
        try:
            stats = admin.topics.internal_stats(part)
            at_ms = clock.now_ms()
            backlogs = admin.topics.stats(part).subscriptions
        except AdminMissing:
            continue  # brokers create a partition at its first use
        cursors = {
            subscription: Cursor(
                mark_delete=stats.cursors[subscription].mark_delete,
                gap_count=stats.cursors[subscription].gap_count,
                backlog=backlogs[subscription].backlog if subscription in backlogs else 0,
            )
            for subscription in subscriptions
            if subscription in stats.cursors
        }
        ledgers = tuple((ledger.ledger_id, ledger.entries) for ledger in stats.ledgers if ledger.entries)
        parts.append(
            Part(
                name=part,
                at_ms=at_ms,
                ledgers=ledgers,
                first_stored_ms=_first_stored_ms(admin, part, stats),
                cursors=cursors,
            )
        )
    if not parts and not partitions:
        return None
    return PlanTopic(
        name=name,
        parts=tuple(parts),
        partitions=partitions,
        step=None if held is None else held.step,
        slot=0 if held is None else held.slot,
        interval_start_ms=interval_start_ms,
    )


def _first_stored_ms(admin: AdminClient, part: str, stats: InternalStats) -> int | None:
    """Return the publish time of the first stored entry: ledgers are deleted whole and from the front, so all later
    sends are still stored.
    """
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
    stretches = [
        Stretch(part.name, ledger, entries)
        for topic in topics
        for part in topic.parts
        for ledger, entries in part.ledgers
    ]
    population = _entries(topics)
    if not population:
        return Drawn(population=0, inspected=0, unread=0, timers=())
    places = list(places_of(choose(population, samples, seed), stretches))
    found, unread = inspect(admin, plan.due_topic, places, len(places), timers_of, on_progress)
    timers = tuple(timer for entry in found for timer in entry)
    return Drawn(population=population, inspected=len(found), unread=unread.all, timers=timers)

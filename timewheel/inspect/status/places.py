"""Status of a plan's topics at a moment: counters of every partition, its head, and a sample of its waiting timers, by
stretches of due times that grow with their distance.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Literal

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.parts import begins_anew
from timewheel.broker.admin.stats import SubscriptionStats
from timewheel.client.positions import EntryPosition
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.envelope import Envelope
from timewheel.core.errors import AdminDenied, AdminError, AdminMissing, AdminUnreachable
from timewheel.core.names import (
    DEAD_LETTER_SUBSCRIPTION,
    PARKED_SUBSCRIPTION,
    RELAY_CONSUMER,
    RELAY_SUBSCRIPTION,
    Names,
    partition_of,
    partition_topic,
    parts_of,
)
from timewheel.core.plan import Calendar, Plan
from timewheel.core.steps import Step
from timewheel.core.topology import FormerTopic, HoldingTopic, entrances_of, topology
from timewheel.inspect.entries import Entries, Place, open_entries
from timewheel.inspect.plan_sample import StoredTimer, due_topics, first_timers, leaves_ms, timers_of
from timewheel.inspect.reader import ProgressCallback, Reader, Unseen, each, no_report
from timewheel.inspect.sample import draw, error_of_mean
from timewheel.provision.former_topics import left_behind, waiting_in_former


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of timers.

    Args:
        count: The number; an estimate if `error` is not 0.
        error: Error of `count` at 95 %; 0 if exact.
    """

    count: float = 0.0
    error: float = 0.0

    def __add__(self, other: Amount) -> Amount:
        """Add an amount that was sampled independently."""
        return Amount(self.count + other.count, (self.error**2 + other.error**2) ** 0.5)

    @property
    def text(self) -> str:
        """The amount as "2,937", or "2,937 +- 12"."""
        return f"{self.count:,.0f}" + (f" +- {self.error:,.0f}" if self.error else "")

    def counted(self, noun: str, several: str | None = None) -> str:
        """Return the amount with its noun, as `timewheel.core.plurals.counted` does; an estimate takes the plural."""
        return f"{self.text} {noun if self.text == '1' else several or f'{noun}s'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A stretch of due times.

    Args:
        name: ``overdue``, ``next minute``, ``next hour``, ``next day``, ``day 2`` (the second from now), ...
        from_ms: First due time, UTC milliseconds; None if unbounded.
        until_ms: End of the stretch, exclusive.
    """

    name: str
    from_ms: int | None
    until_ms: int


class Horizon:
    """The stretches from a moment on.

    Args:
        now_ms: The moment, UTC milliseconds.
        longest_ms: Longest time ahead at which timers can be due.
    """

    def __init__(self, now_ms: int, longest_ms: int) -> None:
        days = max(-(-longest_ms // DAY_MS), 1)
        ends = [0, MINUTE_MS, HOUR_MS, *(day * DAY_MS for day in range(1, days + 1))]
        names = ["overdue", "next minute", "next hour", "next day", *(f"day {day}" for day in range(2, days + 1))]
        self._ends = [now_ms + end for end in ends]
        self.buckets = tuple(
            Bucket(name=name, from_ms=None if not number else self._ends[number - 1], until_ms=self._ends[number])
            for number, name in enumerate(names)
        )

    def number_of(self, due_ms: int) -> int:
        """Return the number of a due time's stretch; later due times count to the last stretch."""
        return min(bisect_right(self._ends, due_ms), len(self._ends) - 1)

    def numbers_of(self, first_ms: int, until_ms: int) -> range:
        """Return the numbers of the stretches that due times from the first to before the second moment are in."""
        return range(self.number_of(first_ms), self.number_of(until_ms - 1) + 1)


Kind = Literal["tier", "slot", "due", "retry", "intake", "journal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The first unacknowledged entry of a partition with a timer: a relay's probe may be before it.

    Args:
        position: Position of the entry.
        due_ms: Due time of its first timer, UTC milliseconds.
        leaves_ms: Release from a holding topic, entry into the intake or the journal, or due time in a due topic, UTC
            milliseconds.
        late_ms: Time since then; 0 if it is in the future.
    """

    position: EntryPosition
    due_ms: int
    leaves_ms: int
    late_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayHold:
    """A consumer of a partition.

    Args:
        name: Name of the consumer, which contains the id of a relay.
        address: Address of its connection.
        is_active: True if it receives the messages (on a Failover subscription, only one consumer does).
        unacked: Messages that it has in flight.
    """

    name: str
    address: str
    is_active: bool
    unacked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceStatus:
    """Status of a partition of the plan.

    Args:
        topic: Full name, with the partition's suffix.
        kind: Kind of the topic.
        subscription: Subscription whose acknowledgements count; of several, that with the largest backlog.
        entries: Unacknowledged entries; a batch is a single entry.
        timers: Timers in these entries.
        by_stretch: Timers by due time, for each stretch of the horizon.
        cancelled: Timers known to be cancelled or replaced.
        head: The first entry; None if the partition is drained, or the entry was removed before it was read.
        consumers: Connected consumers of the subscription.
        begins_anew: True if no consumer is connected, and a relay was a moment ago.
    """

    topic: str
    kind: Kind
    subscription: str
    entries: int
    timers: Amount
    by_stretch: tuple[Amount, ...]
    cancelled: Amount
    head: Head | None
    consumers: tuple[RelayHold, ...]
    begins_anew: bool = False

    @property
    def is_held(self) -> bool:
        """True if relays move the timers of this topic."""
        return self.is_entrance or self.kind in ("tier", "slot")

    @property
    def is_entrance(self) -> bool:
        """True if the timers of this topic move at once."""
        return self.kind in ("intake", "journal")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatus:
    """Sums over all partitions of a topic; the lateness is that of the latest head."""

    topic: str
    kind: Kind
    entries: int
    timers: Amount
    by_stretch: tuple[Amount, ...]
    late_ms: int
    consumers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Status of a plan at a moment.

    Args:
        plan: The plan.
        at_ms: Start of the read, UTC milliseconds.
        horizon: Stretches of due times from then on.
        places: Every existing partition that could be read.
        missing: Missing topics of the plan, and missing partitions of others.
        dead_letters: Unacknowledged entries in the dead-letter topic; None if it does not exist or could not be read.
        parked: The same for the topics of parked timers, over all subscriptions.
        former: Topics of earlier plans with a backlog; not included in ``places``.
        read: Entries read.
        knows_cancelled: True if the cancelled timers are known.
        unseen: Topics that could not be read.
    """

    plan: Plan
    at_ms: int
    horizon: Horizon
    places: tuple[PlaceStatus, ...]
    missing: tuple[str, ...]
    dead_letters: int | None
    parked: int | None
    former: tuple[FormerTopic, ...]
    read: int
    knows_cancelled: bool
    unseen: tuple[Unseen, ...]

    @property
    def timers(self) -> Amount:
        """All timers."""
        return summed(place.timers for place in self.places)

    @property
    def cancelled(self) -> Amount | None:
        """Timers known to be cancelled or replaced; None if unknown."""
        return summed(place.cancelled for place in self.places) if self.knows_cancelled else None

    @property
    def former_entries(self) -> int:
        """Entries that wait in topics of earlier plans; a batch is a single entry."""
        return sum(topic.backlog for topic in self.former)

    def by_stretch(self) -> tuple[Amount, ...]:
        """Return all timers by due time."""
        return _columns(self.places, len(self.horizon.buckets))

    def topics(self) -> tuple[TopicStatus, ...]:
        """Return the status by topic, in the order of the plan: the longest stays first."""
        found: defaultdict[str, list[PlaceStatus]] = defaultdict(list)
        for place in self.places:
            found[partition_of(place.topic)[0]].append(place)
        return tuple(
            TopicStatus(
                topic=topic,
                kind=parts[0].kind,
                entries=sum(part.entries for part in parts),
                timers=summed(part.timers for part in parts),
                by_stretch=_columns(parts, len(self.horizon.buckets)),
                late_ms=max(_late_ms(part) for part in parts),
                consumers=connected(part.consumers for part in parts),
            )
            for topic, parts in found.items()
        )

    @property
    def relay_late_ms(self) -> int:
        """Time since the latest head of a holding topic should have left it; 0 if all are on time."""
        return max((_late_ms(place) for place in self.places if place.is_held), default=0)

    def relays(self) -> dict[str, tuple[PlaceStatus, ...]]:
        """Return the partitions of holding topics that each connected relay reads, by relay id."""
        found: defaultdict[str, list[PlaceStatus]] = defaultdict(list)
        for place in self.places:
            if place.is_held:
                for consumer in place.consumers:
                    if consumer.is_active:
                        found[_relay_of(consumer.name)].append(place)
        return {name: tuple(found[name]) for name in sorted(found)}

    def late(self, limit_ms: int = 0) -> tuple[PlaceStatus, ...]:
        """Return the partitions whose head is later than a limit."""
        return tuple(place for place in self.places if _late_ms(place) > limit_ms)

    def unattended(self, limit_ms: int = 0) -> tuple[PlaceStatus, ...]:
        """Return the partitions of holding topics whose head is later than a limit, and that have no connected relay.

        The intake and the journal are without a limit: their timers move at once.
        """
        return tuple(
            place
            for place in self.places
            if place.is_held and not place.consumers and _late_ms(place) > (0 if place.is_entrance else limit_ms)
        )


def connected(parts: Iterable[Iterable[RelayHold]]) -> int:
    """Return the number of consumers of a topic, by those of its partitions.

    A consumer has the same name on all partitions, or none, and an address for each broker; without a name it is
    counted on the partition with most of them.
    """
    names: set[str] = set()
    unnamed = 0
    for consumers in parts:
        found = [consumer.name for consumer in consumers]
        names.update(filter(None, found))
        unnamed = max(unnamed, found.count(""))
    return len(names) + unnamed


def _relay_of(consumer: str) -> str:
    match = RELAY_CONSUMER.fullmatch(consumer)
    return match[1] if match else consumer


def summed(amounts: Iterable[Amount]) -> Amount:
    """Add amounts that were sampled independently."""
    return sum(amounts, Amount())


def _columns(places: Iterable[PlaceStatus], stretches: int) -> tuple[Amount, ...]:
    listed = list(places)
    return tuple(summed(place.by_stretch[number] for place in listed) for number in range(stretches))


def _late_ms(place: PlaceStatus) -> int:
    return 0 if place.head is None else place.head.late_ms


def status_facts(found: Status) -> dict[str, Any]:
    """Return everything known about a plan."""
    horizon = found.horizon
    return {
        "due_topic": found.plan.due_topic,
        "at_ms": found.at_ms,
        "timers": _amount(found.timers),
        "cancelled": None if found.cancelled is None else _amount(found.cancelled),
        "horizon": _stretches(found.by_stretch(), horizon, empty=True),
        "topics": [
            {
                "topic": one.topic,
                "kind": one.kind,
                "entries": one.entries,
                "timers": _amount(one.timers),
                "horizon": _stretches(one.by_stretch, horizon),
                "late_ms": one.late_ms,
                "consumers": one.consumers,
            }
            for one in found.topics()
        ],
        "partitions": [_place(place, horizon) for place in found.places],
        "relay_late_ms": found.relay_late_ms,
        "relays": {name: [place.topic for place in places] for name, places in found.relays().items()},
        "unattended": [place.topic for place in found.unattended()],
        "dead_letters": found.dead_letters,
        "parked": found.parked,
        "former": [
            {"topic": one.name, "entries": one.backlog, "left_behind": one in left_behind(found.plan, found.former)}
            for one in found.former
        ],
        "missing": list(found.missing),
        "read": found.read,
        "unseen": [asdict(one) for one in found.unseen],
    }


def _place(place: PlaceStatus, horizon: Horizon) -> dict[str, Any]:
    head = place.head
    return {
        "topic": place.topic,
        "kind": place.kind,
        "subscription": place.subscription,
        "entries": place.entries,
        "timers": _amount(place.timers),
        "horizon": _stretches(place.by_stretch, horizon),
        "head": None
        if head is None
        else {
            "position": head.position.text,
            "due_ms": head.due_ms,
            "leaves_ms": head.leaves_ms,
            "late_ms": head.late_ms,
        },
        "consumers": [asdict(one) for one in place.consumers],
    }


def _stretches(amounts: tuple[Amount, ...], horizon: Horizon, *, empty: bool = False) -> list[dict[str, Any]]:
    return [
        {"name": bucket.name, "from_ms": bucket.from_ms, "until_ms": bucket.until_ms, **_amount(amount)}
        for bucket, amount in zip(horizon.buckets, amounts, strict=True)
        if empty or amount.count or amount.error
    ]


def _amount(amount: Amount) -> dict[str, int]:
    return {"count": round(amount.count), "error": round(amount.error)}


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedTopic:
    """A topic of the plan, with the due times that its name permits: from the first to before the second."""

    name: str
    step: Step
    subscriptions: tuple[str, ...]
    is_retry: bool = False
    from_ms: int | None = None
    until_ms: int | None = None


def topics_of(plan: Plan, now_ms: int) -> list[WatchedTopic]:
    """Return holding topics with their steps, then due topics; slots and intervals with their due times."""
    whole = topology(plan, now_ms)
    found = []
    for held in whole.holding:
        from_ms = until_ms = None
        if held.step.kind == "slot":
            # The coming turn of the ring: a slot that starts before now is being swept, or late.
            turn_ms = held.step.slots * held.step.slot_ms
            start_ms = now_ms // turn_ms * turn_ms + held.slot * held.step.slot_ms
            from_ms = start_ms if start_ms + held.step.slot_ms > now_ms else start_ms + turn_ms
            until_ms = from_ms + held.step.slot_ms
        found.append(_of_relays(held.name, held.step, from_ms, until_ms))
    found += [_of_relays(topic.name, topic.step) for topic in entrances_of(plan)]
    length_ms = plan.scheme.interval_ms if isinstance(plan.scheme, Calendar) else 0
    found += [
        WatchedTopic(
            name=name,
            step=Step(kind="due", interval_ms=length_ms),
            subscriptions=plan.subscriptions,
            from_ms=start_ms,
            until_ms=None if start_ms is None else start_ms + length_ms,
        )
        for name, start_ms in due_topics(plan, now_ms)
    ]
    found += [
        WatchedTopic(name=spec.name, step=Step(kind="due"), subscriptions=spec.subscriptions, is_retry=True)
        for spec in whole.topics
        if spec.role == "retry"
    ]
    return found


def _of_relays(name: str, step: Step, from_ms: int | None = None, until_ms: int | None = None) -> WatchedTopic:
    return WatchedTopic(name=name, step=step, subscriptions=(RELAY_SUBSCRIPTION,), from_ms=from_ms, until_ms=until_ms)


RARE = 3.0  # a property of none or all of n sampled entries holds for all but 3 / n of the others, in 95 of 100 samples


def total(inspected: Sequence[Sequence[int]], entries: int) -> Amount:
    """Estimate the timers in a place. At least one entry was inspected."""
    return _scaled([len(due) for due in inspected], entries)


def by_stretch(
    inspected: Sequence[Sequence[int]], entries: int, horizon: Horizon, known: range | None = None
) -> tuple[Amount, ...]:
    """Estimate the timers in a place for each stretch of the horizon, from a sample of its entries.

    An entry contains a timer or a batch of timers. The entries of a place are drawn with equal chances, so the estimate
    for a stretch is the mean number of its timers in an entry, times the number of entries. The topic's name may permit
    some stretches only (``known``).
    """
    counts = [[0] * len(inspected) for _ in horizon.buckets]
    for number, due in enumerate(inspected):
        for due_ms in due:
            counts[horizon.number_of(due_ms)][number] += 1
    if known is not None and len(known) == 1 and all(not any(one) for n, one in enumerate(counts) if n not in known):
        # All timers are in this stretch, independent of the draw: only the number of timers in an entry is an estimate.
        whole = total(inspected, entries)
        return tuple(whole if number in known else Amount() for number in range(len(counts)))
    return tuple(
        Amount() if known is not None and number not in known and not any(one) else _scaled(one, entries)
        for number, one in enumerate(counts)
    )


def of_pieces(counts: Sequence[int], drawn: int, entries: int) -> Amount:
    """Estimate a number of entries from pieces of adjacent entries: neighbours are alike, so the pieces are the sample.

    Args:
        counts: Entries that count, by piece.
        drawn: Number of entries in all pieces.
        entries: Number of all entries.
    """
    drawn = max(drawn, 1)
    if drawn >= entries:
        return Amount(float(sum(counts)))
    by_piece = _scaled(counts, round(len(counts) * entries / drawn)).error if len(set(counts)) > 1 else 0.0
    return Amount(sum(counts) * entries / drawn, max(by_piece, RARE / drawn * (entries - drawn)))


def _scaled(counts: Sequence[int], entries: int) -> Amount:
    drawn = len(counts)
    mean = sum(counts) / drawn
    if drawn >= entries:
        return Amount(float(sum(counts)))
    if len(set(counts)) == 1 and counts[0]:
        return Amount(mean * entries, RARE / drawn * mean * (entries - drawn))
    if not any(counts):
        return Amount(0.0, RARE / drawn * (entries - drawn))
    return Amount(mean * entries, error_of_mean(counts, entries) * entries)


DEFAULT_READS = 2_000
"""Entries to read over all topics, in addition to the head of each partition."""
FEWEST = 8  # least number of entries to read in a partition, if it has that many: a smaller sample would be meaningless
HELD_READS = 400  # entries to read if only the number of timers is needed
MAX_TOPICS = 20  # topics to read for that number: a wheel has hundreds
FIRST_REFUSAL = 400  # an entry exists, even if it cannot be read, when the broker answers with a lower status

IsDead = Callable[[Envelope], bool]  # returns whether a timer is known to be cancelled or replaced
Timers = tuple[StoredTimer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A partition with its counters."""

    topic: WatchedTopic
    name: str
    subscription: str
    stats: SubscriptionStats
    waiting: Entries

    @property
    def entries(self) -> int:
        return len(self.waiting)


def status_of(
    admin: AdminClient,
    plan: Plan,
    *,
    reads: int = DEFAULT_READS,
    seed: int = 0,
    is_cancelled: IsDead | None = None,
    on_progress: ProgressCallback = no_report,
) -> Status:
    """Read the status of a plan. Nothing is consumed or changed.

    The cost does not grow with the backlog: two requests for each partition, a request for its head, and ``reads``; and
    a list of each namespace, with a request for each partition of an earlier plan's topics in it.

    Args:
        admin: Client whose role may read the topics' stats and peek at their messages.
        plan: Plan of any scheme.
        reads: Limit of entries to read; if the backlog is within it, all entries are read and every figure is exact.
        seed: Seed of the sample.
        is_cancelled: Returns whether a timer is cancelled, as `CancellationTable.is_cancelled` does; None
            if unknown.
        on_progress: Progress callback; called in the caller's thread.

    Raises:
        AdminUnreachable: No broker answers.
    """
    return _Look(admin, plan, seed, is_cancelled, on_progress).run(reads)


def timers_held(
    admin: AdminClient, plan: Plan, holding: Iterable[HoldingTopic], *, most: int | None = MAX_TOPICS
) -> dict[str, Amount | None]:
    """Estimate the timers that wait in holding topics: an entry may contain many. Nothing is consumed or changed. Up to
    `HELD_READS` entries are read: if there are no more, every figure is exact. Only the first ``most`` topics are
    read.

    Returns:
        The amount by existing topic; None if no entry of a partition could be read.

    Raises:
        AdminUnreachable: No broker answers.
    """
    return _Look(admin, plan).timers_in([_of_relays(topic.name, topic.step) for topic in islice(holding, most)])


@dataclass
class _Look(Reader):
    _plan: Plan
    _seed: int = 0
    _is_cancelled: IsDead | None = None
    _report: ProgressCallback = no_report
    _absent: list[str] = field(default_factory=list)
    _timers: dict[Place, Timers | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._intake, self._at_ms = Names(self._plan).intake, self.admin.clock.now_ms()
        self._horizon = Horizon(self._at_ms, self._plan.max_delay_ms)

    def run(self, reads: int) -> Status:
        topics = topics_of(self._plan, self._at_ms)
        # Other topics, for letters and cancellations, are only checked for existence.
        others = topology(self._plan, self._at_ms).topics
        names = list(dict.fromkeys([*(one.name for one in topics), *(spec.name for spec in others)]))
        counts = dict(each(self._partitions, names))
        inspected = self._inspected({topic: counts[topic.name] for topic in topics}, reads)
        read = sum(found is not None for found in self._timers.values())
        dead = next(one for one in topology(self._plan, 0, drains=True).topics if one.role == "dead_letter")
        parked = [part for spec in topology(self._plan, 0).topics if spec.role == "parked" for part in spec.parts]
        return Status(
            plan=self._plan,
            at_ms=self._at_ms,
            horizon=self._horizon,
            places=tuple(self._place(part, drawn) for part, drawn in inspected),
            missing=(
                *(name for name, count in counts.items() if count is None and not self.is_unseen(name)),
                *sorted(self._absent, key=partition_of),
            ),
            dead_letters=self._backlog([partition_topic(dead.name, 0)], DEAD_LETTER_SUBSCRIPTION),
            parked=self._backlog(parked, PARKED_SUBSCRIPTION),
            former=waiting_in_former(self.admin, self._plan, self.cannot),
            read=read,
            knows_cancelled=self._is_cancelled is not None,
            unseen=self.unseen,
        )

    def timers_in(self, topics: Sequence[WatchedTopic]) -> dict[str, Amount | None]:
        counts = dict(each(lambda topic: self._partitions(topic.name), topics))
        amounts: dict[str, list[Amount]] = {topic.name: [] for topic, count in counts.items() if count is not None}
        unread = {topic.name for topic in topics if self.is_unseen(topic.name)}
        for part, drawn in self._inspected(counts, HELD_READS):
            if drawn:
                amounts[part.topic.name].append(total(_dues(drawn), part.entries))
            elif part.entries:
                unread.add(part.topic.name)
        return {name: summed(some) for name, some in amounts.items()} | dict.fromkeys(unread)

    def _inspected(self, counts: Mapping[WatchedTopic, int | None], reads: int) -> list[tuple[_Part, list[Timers]]]:
        """Return each readable partition with its drawn entries."""
        names = [
            (topic, part)
            for topic, count in counts.items()
            if count is not None
            for part in parts_of(topic.name, count)
        ]
        parts = [part for _, part in each(self._part, names) if part is not None]
        entries = sum(part.entries for part in parts)
        chosen = [self._chosen(part, reads, entries) for part in parts]
        places = [place for some in chosen for place in some]
        for done, (place, found) in enumerate(each(self._timers_at, places), start=1):
            self._timers[place] = found
            self._report(done, len(places))
        return [(part, self._drawn(part, some)) for part, some in zip(parts, chosen, strict=True)]

    def _partitions(self, topic: str) -> int | None:
        return self.ask(topic, lambda: self.admin.topics.partitions(topic))

    def _part(self, named: tuple[WatchedTopic, str]) -> _Part | None:
        topic, name = named
        internal = self.ask(name, lambda: self.admin.topics.internal_stats(name))
        if internal is None:
            if not self.is_unseen(name):
                self._absent.append(name)
            return None
        found = self.ask(name, lambda: self.admin.topics.stats(name, clients=True))
        if found is None:
            if not self.is_unseen(name):
                self.lost(name, "it was removed while it was looked at")
            return None
        stats = found.subscriptions
        known = [one for one in topic.subscriptions if one in stats and one in internal.cursors]
        if lacking := [one for one in topic.subscriptions if one not in known]:
            self.lost(name, f"it has no subscription {', '.join(lacking)}")
        if not known:
            return None
        waiting = {one: open_entries(name, internal.cursors[one], internal.ledgers) for one in known}
        slowest = max(known, key=lambda one: len(waiting[one]))
        return _Part(topic=topic, name=name, subscription=slowest, stats=stats[slowest], waiting=waiting[slowest])

    def _chosen(self, part: _Part, reads: int, entries: int) -> list[Place]:
        """Return the head, and a number of sampled entries in proportion to the partition's entries."""
        if not part.entries:
            return []
        count = max(reads * part.entries // max(entries, 1), FEWEST)
        numbers = draw(part.entries, count, self._seed)
        return [part.waiting.place(number) for number in (0, *(number for number in numbers if number))]

    def _timers_at(self, place: Place) -> Timers | None:
        try:
            entry = self.admin.topics.entry(place.topic, place.position)
        except AdminUnreachable:
            raise
        except AdminError as error:
            # Other errors mean that the entry was acknowledged and removed meanwhile.
            if isinstance(error, AdminDenied) or (
                not isinstance(error, AdminMissing) and (error.status is None or error.status < FIRST_REFUSAL)
            ):
                self.cannot(place.topic, error)
            return None
        return timers_of(place, entry, in_intake=partition_of(place.topic)[0] == self._intake)

    def _drawn(self, part: _Part, chosen: Sequence[Place]) -> list[Timers]:
        # The head was not drawn: it counts only if all entries were read, or no others could be.
        found = [read for place in chosen if (read := self._timers[place]) is not None]
        others = [read for place in chosen[1:] if (read := self._timers[place]) is not None]
        return found if len(found) == part.entries else others or found

    def _place(self, part: _Part, drawn: Sequence[Timers]) -> PlaceStatus:
        topic, dues, is_cancelled = part.topic, _dues(drawn), self._is_cancelled
        known = None
        if topic.from_ms is not None and topic.until_ms is not None:
            known = self._horizon.numbers_of(topic.from_ms, topic.until_ms)
        timers, cancelled = Amount(float(part.entries), float(part.entries)), Amount()
        by_due = (Amount(),) * len(self._horizon.buckets)
        if drawn:
            timers = total(dues, part.entries)
            by_due = by_stretch(dues, part.entries, self._horizon, known)
        if drawn and is_cancelled is not None:
            found = [
                [one for one in entry if one.envelope is not None and is_cancelled(one.envelope)] for entry in drawn
            ]
            cancelled = total(_dues(found), part.entries)
        return PlaceStatus(
            topic=part.name,
            kind="retry" if topic.is_retry else topic.step.kind,
            subscription=part.subscription,
            entries=part.entries,
            timers=timers,
            by_stretch=by_due,
            cancelled=cancelled,
            head=self._head(part),
            consumers=tuple(
                RelayHold(
                    name=one.name,
                    address=one.address,
                    is_active=topic.step.kind == "due" or part.stats.active_consumer in (None, one.name),
                    unacked=one.unacked,
                )
                for one in part.stats.consumers or ()
            ),
            begins_anew=begins_anew(part.stats, self._at_ms),
        )

    def _head(self, part: _Part) -> Head | None:
        timers_at = self._timers
        first = first_timers(
            part.waiting.places(), lambda place: timers_at[place] if place in timers_at else self._timers_at(place)
        )
        if first is None:
            return None
        place, timers = first
        first_ms = min(leaves_ms(part.topic.step, timer) for timer in timers)
        return Head(
            position=place.position, due_ms=timers[0].due_ms, leaves_ms=first_ms, late_ms=max(self._at_ms - first_ms, 0)
        )

    def _backlog(self, parts: Iterable[str], subscription: str) -> int | None:
        """Count the unacknowledged entries; None if no partition exists or could be read."""
        found = [self.ask(part, partial(self.admin.topics.stats, part, precise_backlog=True)) for part in parts]
        known = [own.backlog for one in found if one is not None and (own := one.subscriptions.get(subscription))]
        return sum(known) if known else None


def _dues(entries: Iterable[Iterable[StoredTimer]]) -> list[list[int]]:
    return [[timer.due_ms for timer in entry] for entry in entries]

"""Read all topics of a plan: counters of every partition, its head, and a sample of its waiting timers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.parts import begins_anew
from timewheel.broker.admin.stats import SubscriptionStats
from timewheel.core.envelope import Envelope
from timewheel.core.errors import AdminDenied, AdminError, AdminMissing, AdminUnreachable
from timewheel.core.names import (
    DEAD_LETTER_SUBSCRIPTION,
    PARKED_SUBSCRIPTION,
    RELAY_SUBSCRIPTION,
    Names,
    partition_of,
    partition_topic,
    parts_of,
)
from timewheel.core.plan import Calendar, Plan
from timewheel.core.steps import Step
from timewheel.core.topology import HoldingTopic, calendar_intervals, entrances_of, topology
from timewheel.inspect.gaps.snapshot import Unseen
from timewheel.inspect.plan_sample import StoredTimer, first_timers, leaves_ms, timers_of
from timewheel.inspect.sample import OpenRun, Place, draw, open_runs, positions_of
from timewheel.inspect.status.places import Amount, Head, Horizon, PlaceStatus, RelayHold, Status, summed
from timewheel.provision.former_topics import waiting_in_former


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
    found = []
    all_of_it = topology(plan, now_ms)
    for held in all_of_it.holding:
        from_ms = until_ms = None
        if held.step.kind == "slot":
            # The coming turn of the ring: a slot that starts before now is being swept, or late.
            turn_ms = held.step.slots * held.step.slot_ms
            start_ms = now_ms // turn_ms * turn_ms + held.slot * held.step.slot_ms
            from_ms = start_ms if start_ms + held.step.slot_ms > now_ms else start_ms + turn_ms
            until_ms = from_ms + held.step.slot_ms
        found.append(
            WatchedTopic(
                name=held.name,
                step=held.step,
                subscriptions=(RELAY_SUBSCRIPTION,),
                from_ms=from_ms,
                until_ms=until_ms,
            )
        )
    found += [
        WatchedTopic(name=topic.name, step=topic.step, subscriptions=(RELAY_SUBSCRIPTION,))
        for topic in entrances_of(plan)
    ]
    due = [spec.name for spec in all_of_it.topics if spec.role == "due"]
    if isinstance(plan.scheme, Calendar):
        length_ms = plan.scheme.interval_ms
        step = Step(kind="due", interval_ms=length_ms)
        starts = [number * length_ms for number in calendar_intervals(plan, now_ms)]
        found += [
            WatchedTopic(
                name=name,
                step=step,
                subscriptions=plan.subscriptions,
                from_ms=start_ms,
                until_ms=start_ms + length_ms,
            )
            for name, start_ms in zip(due, starts, strict=True)
        ]
    else:
        found += [WatchedTopic(name=name, step=Step(kind="due"), subscriptions=plan.subscriptions) for name in due]
    retries = (spec for spec in all_of_it.topics if spec.role == "retry")
    found += [
        WatchedTopic(name=spec.name, step=Step(kind="due"), subscriptions=spec.subscriptions, is_retry=True)
        for spec in retries
    ]
    return found


SURE = 1.96
"""Standard errors on either side of an estimate that contain the true value in 95 of 100 samples."""
RARE = 3.0
"""A property of none or all of n sampled entries holds for all but 3 / n of the others, in 95 of 100 samples."""


def total(inspected: Sequence[Sequence[int]], entries: int) -> Amount:
    """Estimate the timers in a place.

    Args:
        inspected: Due times in each sampled entry; at least one entry.
        entries: Number of entries.
    """
    return _scaled([len(due) for due in inspected], entries)


def by_stretch(
    inspected: Sequence[Sequence[int]], entries: int, horizon: Horizon, known: range | None = None
) -> tuple[Amount, ...]:
    """Estimate the timers in a place for each stretch of the horizon, from a sample of its entries.

    An entry contains a timer or a batch of timers. The entries of a place are drawn with equal chances, so the estimate
    for a stretch is the mean number of its timers in an entry, times the number of entries.

    Args:
        inspected: Due times in each sampled entry; at least one entry.
        entries: Number of entries.
        horizon: The stretches.
        known: Stretches that the topic's name permits (of a slot or an interval); None for any.
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
    spread = math.sqrt(sum((count - mean) ** 2 for count in counts) / max(drawn - 1, 1))
    return Amount(mean * entries, SURE * spread * entries / math.sqrt(drawn) * math.sqrt(1 - drawn / entries))


DEFAULT_READS = 2_000
"""Entries to read over all topics, in addition to the head of each partition."""
FEWEST = 8
"""Least number of entries to read in a partition, if it has that many: a smaller sample would be meaningless."""
HELD_READS = 400
"""Entries to read if only the number of timers is needed."""
MAX_TOPICS = 20
"""Topics to read for that number: a wheel has hundreds."""
AT_ONCE = 16
"""Concurrent requests."""

FIRST_REFUSAL = 400
"""An entry exists, even if it cannot be read, when the broker answers with a lower status."""

IsDead = Callable[[Envelope], bool]
"""Returns whether a timer is known to be cancelled or replaced."""
ProgressCallback = Callable[[int, int], None]
"""Progress callback: called with the number of completed requests, and of all requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A partition with its counters."""

    topic: WatchedTopic
    name: str
    subscription: str
    stats: SubscriptionStats
    runs: tuple[OpenRun, ...]

    @property
    def entries(self) -> int:
        return sum(run.entries for run in self.runs)


def status_of(
    admin: AdminClient,
    plan: Plan,
    *,
    reads: int = DEFAULT_READS,
    seed: int = 0,
    is_dead: IsDead | None = None,
    on_progress: ProgressCallback = lambda _done, _total: None,
) -> Status:
    """Read the status of a plan. Nothing is consumed or changed.

    The cost does not grow with the backlog: two requests for each partition, a request for its head, and ``reads``; and
    a list of each namespace, with a request for each partition of an earlier plan's topics in it.

    Args:
        admin: Client whose role may read the topics' stats and peek at their messages.
        plan: Plan of any scheme.
        reads: Limit of entries to read; if the backlog is within it, all entries are read and every figure is exact.
        seed: Seed of the sample.
        is_dead: Returns whether a timer is cancelled, as `timewheel.core.CancellationTable.is_dead` does; None if
            unknown.
        on_progress: Progress callback; called in the caller's thread.

    Raises:
        AdminUnreachable: No broker answers.
    """
    return _Look(admin, plan, seed, is_dead, on_progress).run(reads)


def timers_held(
    admin: AdminClient, plan: Plan, holding: Iterable[HoldingTopic], *, most: int | None = MAX_TOPICS
) -> dict[str, Amount | None]:
    """Estimate the timers that wait in holding topics: an entry may contain many. Nothing is consumed or changed.

    Args:
        admin: Client whose role may read the topics' stats and peek at their messages.
        plan: Plan of any scheme.
        holding: Topics of this plan or of earlier plans. Up to `HELD_READS` of their entries are read: if they have no
            more, every figure is exact.
        most: Limit of topics, the first of which are read; None for all.

    Returns:
        The amount by existing topic; None if no entry of a partition could be read.

    Raises:
        AdminUnreachable: No broker answers.
    """
    topics = [
        WatchedTopic(name=topic.name, step=topic.step, subscriptions=(RELAY_SUBSCRIPTION,))
        for topic in islice(holding, most)
    ]
    look = _Look(admin, plan, 0, None, lambda _done, _total: None)
    with look.pool() as pool:
        return look.timers_in(pool, topics)


class _Look:
    def __init__(
        self, admin: AdminClient, plan: Plan, seed: int, is_dead: IsDead | None, on_progress: ProgressCallback
    ) -> None:
        self._admin = admin
        self._plan = plan
        self._intake = Names(plan).intake
        self._seed = seed
        self._is_dead = is_dead
        self._report = on_progress
        self._at_ms = admin.clock.now_ms()
        self._horizon = Horizon(self._at_ms, plan.max_delay_ms)
        self._unseen: dict[str, Unseen] = {}
        self._absent: list[str] = []
        self._read = 0

    @contextmanager
    def pool(self) -> Iterator[ThreadPoolExecutor]:
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="timewheel-status") as pool:
            try:
                yield pool
            finally:
                pool.shutdown(cancel_futures=True)

    def run(self, reads: int) -> Status:
        with self.pool() as pool:
            return self._run(pool, reads)

    def timers_in(self, pool: ThreadPoolExecutor, topics: Sequence[WatchedTopic]) -> dict[str, Amount | None]:
        counts = dict(zip(topics, pool.map(lambda topic: self._partitions(topic.name), topics), strict=True))
        amounts: dict[str, list[Amount]] = {topic.name: [] for topic, count in counts.items() if count is not None}
        unread = {topic.name for topic in topics} & self._unseen.keys()
        for part, chosen, timers in self._looked_into(pool, counts, HELD_READS):
            drawn = [[timer.due_ms for timer in entry] for entry in self._entries_drawn(part, chosen, timers)]
            if drawn:
                amounts[part.topic.name].append(total(drawn, part.entries))
            elif part.entries:
                unread.add(part.topic.name)
        return {name: summed(some) for name, some in amounts.items()} | dict.fromkeys(unread)

    def _looked_into(
        self, pool: ThreadPoolExecutor, counts: Mapping[WatchedTopic, int | None], reads: int
    ) -> Iterator[tuple[_Part, list[Place], Mapping[Place, tuple[StoredTimer, ...] | None]]]:
        """Yield each readable partition, its chosen places, and the timers at all chosen places."""
        named = [
            (topic, part)
            for topic, count in counts.items()
            if count is not None
            for part in parts_of(topic.name, count)
        ]
        parts = [part for part in pool.map(self._part, named) if part is not None]
        entries = sum(part.entries for part in parts)
        chosen = [self._drawn(part, reads, entries) for part in parts]
        places = [place for some in chosen for place in some]
        timers: dict[Place, tuple[StoredTimer, ...] | None] = {}
        for done, found in enumerate(pool.map(self._timers_at, places), start=1):
            timers[places[done - 1]] = found
            self._report(done, len(places))
        self._read = sum(found is not None for found in timers.values())
        yield from ((part, some, timers) for part, some in zip(parts, chosen, strict=True))

    def _run(self, pool: ThreadPoolExecutor, reads: int) -> Status:
        topics = topics_of(self._plan, self._at_ms)
        # Other topics, for letters and cancellations, are only checked for existence.
        others = (spec.name for spec in topology(self._plan, self._at_ms).topics)
        names = list(dict.fromkeys([*(one.name for one in topics), *others]))
        counts = dict(zip(names, pool.map(self._partitions, names), strict=True))
        looked_into = self._looked_into(pool, {topic: counts[topic.name] for topic in topics}, reads)
        return Status(
            plan=self._plan,
            at_ms=self._at_ms,
            horizon=self._horizon,
            places=tuple(self._place(part, chosen, timers) for part, chosen, timers in looked_into),
            missing=(
                *(name for name, count in counts.items() if count is None and name not in self._unseen),
                *sorted(self._absent, key=partition_of),
            ),
            dead_letters=self._dead_letters(),
            parked=self._parked(),
            former=waiting_in_former(self._admin, self._plan, self._cannot),
            read=self._read,
            knows_cancelled=self._is_dead is not None,
            unseen=tuple(self._unseen.values()),
        )

    def _partitions(self, topic: str) -> int | None:
        try:
            return self._admin.topics.partitions(topic)
        except AdminUnreachable:
            raise
        except AdminError as error:
            self._cannot(topic, error)
            return None

    def _part(self, named: tuple[WatchedTopic, str]) -> _Part | None:
        topic, name = named
        wanted = topic.subscriptions
        internal = None
        try:
            internal = self._admin.topics.internal_stats(name)
            stats = self._admin.topics.stats(name, clients=True).subscriptions
        except AdminMissing:
            if internal is None:
                self._absent.append(name)
            else:
                self._unseen[name] = Unseen(what=name, reason="it was removed while it was looked at")
            return None
        except AdminUnreachable:
            raise
        except AdminError as error:
            self._cannot(name, error)
            return None
        known = [one for one in wanted if one in stats and one in internal.cursors]
        if lacking := [one for one in wanted if one not in known]:
            self._unseen[name] = Unseen(what=name, reason=f"it has no subscription {', '.join(lacking)}")
        if not known:
            return None
        runs = {one: open_runs(internal.cursors[one], internal.ledgers) for one in known}
        slowest = max(known, key=lambda one: sum(run.entries for run in runs[one]))
        return _Part(topic=topic, name=name, subscription=slowest, stats=stats[slowest], runs=runs[slowest])

    def _drawn(self, part: _Part, reads: int, entries: int) -> list[Place]:
        """Return the head, and a number of sampled entries in proportion to the partition's entries."""
        if not part.entries:
            return []
        count = max(reads * part.entries // max(entries, 1), FEWEST)
        numbers = draw(part.entries, count, self._seed)
        chosen = [0, *(number for number in numbers if number)]
        return [Place(part.name, position) for position in positions_of(part.runs, chosen)]

    def _timers_at(self, place: Place) -> tuple[StoredTimer, ...] | None:
        is_intake = partition_of(place.topic)[0] == self._intake
        try:
            return timers_of(place, self._admin.topics.entry(place.topic, place.position), in_intake=is_intake)
        except AdminUnreachable:
            raise
        except AdminError as error:
            # Other errors mean that the entry was acknowledged and removed meanwhile.
            if isinstance(error, AdminDenied) or (
                not isinstance(error, AdminMissing) and (error.status is None or error.status < FIRST_REFUSAL)
            ):
                self._cannot(place.topic, error)
        return None

    def _place(
        self, part: _Part, chosen: Sequence[Place], timers: Mapping[Place, tuple[StoredTimer, ...] | None]
    ) -> PlaceStatus:
        is_due = part.topic.step.kind == "due"
        drawn = self._entries_drawn(part, chosen, timers)
        dues = [[timer.due_ms for timer in entry] for entry in drawn]
        topic, stretches = part.topic, len(self._horizon.buckets)
        known = None
        if topic.from_ms is not None and topic.until_ms is not None:
            known = self._horizon.numbers_of(topic.from_ms, topic.until_ms)
        return PlaceStatus(
            topic=part.name,
            kind="retry" if topic.is_retry else topic.step.kind,
            subscription=part.subscription,
            entries=part.entries,
            timers=total(dues, part.entries) if dues else Amount(float(part.entries), float(part.entries)),
            by_stretch=by_stretch(dues, part.entries, self._horizon, known) if dues else (Amount(),) * stretches,
            cancelled=self._cancelled(drawn, part.entries),
            head=self._head(part, timers),
            consumers=tuple(
                RelayHold(
                    name=one.name,
                    address=one.address,
                    is_active=is_due or part.stats.active_consumer in (None, one.name),
                    unacked=one.unacked,
                )
                for one in part.stats.consumers or ()
            ),
            begins_anew=begins_anew(part.stats, self._at_ms),
        )

    def _entries_drawn(
        self, part: _Part, chosen: Sequence[Place], timers: Mapping[Place, tuple[StoredTimer, ...] | None]
    ) -> list[tuple[StoredTimer, ...]]:
        # The head was not drawn: it counts only if all entries were read, or no others could be.
        found = [read for place in chosen if (read := timers[place]) is not None]
        others = [read for place in chosen[1:] if (read := timers[place]) is not None]
        return found if len(found) == part.entries else others or found

    def _cancelled(self, drawn: Sequence[Sequence[StoredTimer]], entries: int) -> Amount:
        if self._is_dead is None or not drawn:
            return Amount()
        is_dead = self._is_dead
        dead = [[t.due_ms for t in entry if t.envelope is not None and is_dead(t.envelope)] for entry in drawn]
        return total(dead, entries)

    def _head(self, part: _Part, inspected: Mapping[Place, tuple[StoredTimer, ...] | None]) -> Head | None:
        places = (Place(part.name, position) for position in positions_of(part.runs, range(part.entries)))
        first = first_timers(places, lambda place: inspected[place] if place in inspected else self._timers_at(place))
        if first is None:
            return None
        place, timers = first
        first_ms = min(leaves_ms(part.topic.step, timer) for timer in timers)
        return Head(
            position=place.position,
            due_ms=timers[0].due_ms,
            leaves_ms=first_ms,
            late_ms=max(self._at_ms - first_ms, 0),
        )

    def _dead_letters(self) -> int | None:
        from_plan = next(one for one in topology(self._plan, 0, drains=True).topics if one.role == "dead_letter")
        return self._backlog(partition_topic(from_plan.name, 0), DEAD_LETTER_SUBSCRIPTION)

    def _parked(self) -> int | None:
        specs = [one for one in topology(self._plan, 0).topics if one.role == "parked"]
        names = [part for spec in specs for part in spec.parts]
        found = [self._backlog(name, PARKED_SUBSCRIPTION) for name in names]
        known = [backlog for backlog in found if backlog is not None]
        return sum(known) if known else None

    def _backlog(self, name: str, subscription: str) -> int | None:
        try:
            stats = self._admin.topics.stats(name, precise_backlog=True).subscriptions.get(subscription)
        except AdminMissing:
            return None
        except AdminUnreachable:
            raise
        except AdminError as error:
            self._cannot(name, error)
            return None
        return None if stats is None else stats.backlog

    def _cannot(self, what: str, error: AdminError) -> None:
        self._unseen[what] = Unseen(what=what, reason=error.reason)

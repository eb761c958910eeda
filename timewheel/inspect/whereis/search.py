"""Find a timer: read the places on its way, the most likely first, each once; and its result, also for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from enum import Enum, unique
from itertools import product
from typing import Any, NamedTuple

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.entries import BatchGarbled, StoredEntry, messages_of_batch
from timewheel.broker.admin.stats import InternalStats
from timewheel.client.dead_letters import DEAD_REASON
from timewheel.client.positions import EntryPosition
from timewheel.core.cancellations import Cancellation, CancellationTable
from timewheel.core.durations import SECOND_MS
from timewheel.core.envelope import ID_PROPERTY, Envelope, due_in
from timewheel.core.errors import AdminError, AdminUnreachable
from timewheel.core.ids import GeneratedId
from timewheel.core.names import (
    DEAD_LETTER_SUBSCRIPTION,
    PARKED_SUBSCRIPTION,
    RELAY_SUBSCRIPTION,
    Names,
    partition_topic,
)
from timewheel.core.plan import Calendar, Native, Plan, Wheel
from timewheel.core.plurals import counted
from timewheel.core.routing import release_at
from timewheel.core.steps import Step
from timewheel.inspect.entries import Entries, Place
from timewheel.inspect.reader import Reader, Unseen
from timewheel.inspect.sample import envelope_in
from timewheel.inspect.whereis.itinerary import Routes, Span, Stop, Wanted
from timewheel.provision.former_topics import waiting_in_former


@dataclass(slots=True)
class Cost:
    """Cost of a search.

    Args:
        reads: Stored entries read.
        seeks: Requests for the position of a time in a partition, which the broker answers by bisection.
        partitions: Partitions whose ledgers and cursors were read.
    """

    reads: int = 0
    seeks: int = 0
    partitions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """An entry that was read.

    Args:
        position: Position of the entry.
        publish_ms: Publish time.
        timers: Envelopes of the timers in it.
        reasons: For each timer, the reason if it is a dead letter, else None.
    """

    position: EntryPosition
    publish_ms: int
    timers: tuple[Envelope, ...]
    reasons: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Partition:
    """Contents of a partition: entries by number, through all its ledgers."""

    name: str  # full name
    stats: InternalStats  # internal stats at the moment of the read
    stored: Entries  # all stored entries

    @property
    def entries(self) -> int:
        """Number of stored entries."""
        return len(self.stored)

    def acknowledged_by(self, position: EntryPosition, subscription: str) -> bool | None:
        """Return whether a subscription has acknowledged an entry; None if the subscription does not exist."""
        cursor = self.stats.cursors.get(subscription)
        if cursor is None:
            return None
        return position <= cursor.mark_delete or any(
            acked.after < position <= acked.upto for acked in cursor.acked_ranges()
        )


@dataclass(slots=True)
class Reading(Reader):
    """Reads for a search, each made once, and counted."""

    cost: Cost = field(default_factory=Cost)
    _partitions: dict[str, Partition | None] = field(default_factory=dict)
    _entries: dict[Place, Seen | None] = field(default_factory=dict)
    _starts: dict[tuple[str, int], int] = field(default_factory=dict)

    def look_again(self) -> None:
        """Forget the lengths of partitions, since timers move during the search. Entries that were read stay valid."""
        self._partitions.clear()
        self._starts.clear()

    def partition(self, name: str) -> Partition | None:
        """Return a partition; None if it does not exist or cannot be read."""
        if name not in self._partitions:
            self.cost.partitions += 1
            stats = self.ask(name, lambda: self.admin.topics.internal_stats(name))
            self._partitions[name] = (
                None if stats is None else Partition(name, stats, Entries.stored(name, stats.ledgers))
            )
        return self._partitions[name]

    def start(self, partition: Partition, at_ms: int) -> int:
        """Return the number of the first entry published at or after a time; the count of all if none was."""
        key = partition.name, at_ms
        if key not in self._starts:
            self.cost.seeks += 1
            try:
                position = self.admin.topics.position_at(partition.name, max(at_ms, 0))
                self._starts[key] = partition.stored.number_of(position)
            except AdminUnreachable:
                raise
            except AdminError as error:
                self.cannot(partition.name, error)
                self._starts[key] = partition.entries // 2
        return self._starts[key]

    def entry(self, partition: Partition, number: int, *, is_cancelled: bool = False) -> Seen | None:
        """Return a stored entry; None if it was deleted meanwhile or cannot be read.

        A message in a topic of dead letters (``is_cancelled``) needs no envelope, its id is enough.
        """
        key = partition.stored.place(number)
        if key not in self._entries:
            self.cost.reads += 1
            found = self.ask(partition.name, lambda: self.admin.topics.entry(*key))
            self._entries[key] = None if found is None else _seen(found, is_cancelled=is_cancelled)
        return self._entries[key]


def _seen(entry: StoredEntry, *, is_cancelled: bool) -> Seen:
    every: Iterable[Mapping[str, str]] = [entry.properties]
    if entry.batch_messages is not None:
        every = (message.properties for message in messages_of_batch(entry.payload, entry.batch_messages))
    found: list[tuple[Envelope, str | None]] = []
    with suppress(BatchGarbled):  # encrypted: only its readers can decode it
        for one in every:
            envelope = envelope_in(one)
            if envelope is None and is_cancelled and (timer_id := one.get(ID_PROPERTY)):
                # Another client's message to the intake, which its relay refused.
                due_ms = due_in(one)
                envelope = Envelope(timer_id, entry.publish_at_ms if due_ms is None else due_ms, entry.publish_at_ms)
            if envelope is not None:
                found.append((envelope, one.get(DEAD_REASON)))
    return Seen(
        position=entry.position,
        publish_ms=entry.publish_at_ms,
        timers=tuple(envelope for envelope, _ in found),
        reasons=tuple(reason for _, reason in found),
    )


@unique
class State(Enum):
    """State of a timer."""

    HELD = "held"
    """The timer is in a holding topic."""
    DUE = "due"
    """The timer is in a due topic, and not every subscription has acknowledged it: it waits or is in flight."""
    HANDLED = "handled"
    """Every subscription has acknowledged the timer, and it is neither parked nor waiting for a retry."""
    RETRYING = "retrying"
    """A subscription's handler has not handled the timer: its next attempt waits in the subscription's retry topic."""
    PARKED = "parked"
    """A subscription has given the timer up: it waits for an operator."""
    REMOVED = "removed"
    """No entry is stored any more from the time when it was in its due topic: it was handled, if it was ever sent, and
    if relays were on time then.
    """
    CANCELLED = "cancelled"
    """The timer was cancelled or replaced: remaining copies are dropped on their way, and no longer delivered. Without
    a remaining copy only the id is known; in that case it was handled only if the cancel came too late.
    """
    DEAD = "dead"
    """The timer is in the dead-letter topic."""
    NOT_FOUND = "not_found"
    """The timer was never sent with this id or time, or its way does not follow from the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """An entry that contains the timer.

    Args:
        topic: Full name of the partition.
        position: Position of the entry.
        envelope: The stored envelope of the timer.
        published_ms: Publish time of the entry, UTC milliseconds.
        waits_for: Subscriptions that have not acknowledged it.
        done_by: Subscriptions that have acknowledged it.
        is_due: True for a due topic.
    """

    topic: str
    position: EntryPosition
    envelope: Envelope
    published_ms: int
    waits_for: tuple[str, ...]
    done_by: tuple[str, ...]
    is_due: bool

    @classmethod
    def of(
        cls, partition: Partition, seen: Seen, envelope: Envelope, subscriptions: Iterable[str], *, is_due: bool = False
    ) -> Sighting:
        """Create a sighting from an entry, and determine the subscriptions that have acknowledged it."""
        done = {name: partition.acknowledged_by(seen.position, name) for name in subscriptions}
        return cls(
            topic=partition.name,
            position=seen.position,
            envelope=envelope,
            published_ms=seen.publish_ms,
            waits_for=tuple(name for name, is_done in done.items() if not is_done),
            done_by=tuple(name for name, is_done in done.items() if is_done),
            is_due=is_due,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """A partition that was searched.

    Args:
        topic: Full name of the partition.
        entered_ms: Time whose entries were searched.
        reads: Entries read.
        found: True if the timer was found.
        is_before_all: True if the stored entries begin later.
    """

    topic: str
    entered_ms: int
    reads: int
    found: bool
    is_before_all: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """Whereabouts of a timer.

    Args:
        wanted: The timer.
        at_ms: Time of the search, UTC milliseconds.
        state: State of the timer.
        here: The entry that contains it now; None if it was not found.
        sightings: All entries on its way that contain it, in order.
        way: Past and future stops from its send to its due topic, if its due time is known.
        reason: Reason of a dead letter, reason why the search ended early, or a remark.
        cancellation: Cancellation that cancels or replaces the last copy that was seen, or, if none was seen,
            everything sent under its id before the cut. None if no cancellation applies, or cancellations are unknown.
        searched: Partitions that were searched, in order.
        unseen: Topics that could not be read.
        cost: Cost of the search.
    """

    wanted: Wanted
    at_ms: int
    state: State
    here: Sighting | None
    sightings: tuple[Sighting, ...]
    way: tuple[Stop, ...]
    reason: str | None
    cancellation: Cancellation | None
    searched: tuple[Searched, ...]
    unseen: tuple[Unseen, ...]
    cost: Cost

    @property
    def due_ms(self) -> int | None:
        """Due time from its envelope, or else from the caller; None if it is not known to the millisecond."""
        seen = self.sightings[-1].envelope.due_ms if self.sightings else None
        return self.wanted.exact_due_ms if seen is None else seen


def whereabouts_facts(found: Whereabouts) -> dict[str, Any]:
    """Return everything known about a timer."""
    sent, cancellation = found.wanted.sent, found.cancellation
    return {
        "timer_id": found.wanted.timer_id,
        "at_ms": found.at_ms,
        "state": found.state.value,
        "sent_from_ms": sent.first_ms if found.wanted.knows_sent else None,
        "sent_to_ms": sent.last_ms if found.wanted.knows_sent else None,
        "due_ms": found.due_ms,
        "here": None if found.here is None else _sighting_facts(found.here),
        "seen": [_sighting_facts(one) for one in found.sightings],
        "way": [
            {
                "topic": stop.topic,
                "enters_ms": stop.entered.first_ms,
                "leaves_ms": stop.leaves_ms,
                "is_due_topic": stop.is_due,
            }
            for stop in found.way
        ],
        "reason": found.reason,
        "cancellation": None
        if cancellation is None
        else {cancellation.kind: cancellation.name, "cut": cancellation.cut, "forget_ms": cancellation.forget_ms},
        "searched": [asdict(one) for one in found.searched],
        "unseen": [asdict(one) for one in found.unseen],
        **asdict(found.cost),
    }


def _sighting_facts(one: Sighting) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "position": one.position.text,
        "published_ms": one.published_ms,
        "entered_ms": one.envelope.entered_ms,
        "hops": one.envelope.hops,
        "generation": one.envelope.generation,
        "revision": one.envelope.revision,
        "waits_for": list(one.waits_for),
        "done_by": list(one.done_by),
    }


GUESSES = 4  # guesses by time between two known entries; after these, every other read bisects, which is safer

CLOSE_MS = 1_000  # relays of several topics hop to the same topic: each in order, each a little later after the release


class Mark(NamedTuple):
    """An entry that was read and helps to guess."""

    number: int  # number of the entry
    entered_ms: int  # time at which a timer in it entered the topic
    sent_ms: int = 0  # send time from the timer's id; 0 if the id has none
    ahead: int = 0  # distance to the wanted entry, by the counter in the ids; 0 if unknown


@dataclass(slots=True)
class Hunt:
    """The search of a partition, which is nearly in the order of entering; chooses the next entry to read.

    Entries are numbered through all ledgers. The content of an entry shows on which side of it the wanted timer is;
    between two known entries, the number is guessed by their times. At close range the order is not strict: clocks of
    producers differ, and hops arrive beside sends. So when no entry is left in between, the neighbours are read as
    well, from the inside out, if requested.
    """

    entries: int  # number of stored entries
    first: int  # lower bound of the wanted number, as far as publish times are in order
    start: int  # most likely number
    entered_ms: int  # time at which the wanted timer entered
    sent_ms: int = 0  # time at which it was sent
    # number to read next if the wanted entry is after ``start``: the last entry that entered with it, as timers of a
    # slot do; None if unknown
    end: int | None = None
    slack: int = 0  # number of neighbours to read outside the order
    # the same, if the following entry entered at nearly the same time: sent by another relay, the wanted entry may be
    # before it
    near: int = 0
    _last: int = field(init=False)
    _low: Mark | None = field(init=False, default=None)
    _high: Mark | None = field(init=False, default=None)
    _seen: set[int] = field(init=False, default_factory=set)
    _step: int = field(init=False, default=1)
    _guesses: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._last = self.entries - 1

    @property
    def is_before_all(self) -> bool:
        """True if no stored entry entered before the wanted timer: it is no longer stored, or never was."""
        return self._last < 0

    def next(self) -> int | None:
        """Return the number of the entry to read next; None if the wanted entry is not here."""
        if self.first > self._last or all(number in self._seen for number in range(self.first, self._last + 1)):
            return self._neighbour()
        return self._free(min(max(self._guess(), self.first), self._last))

    def saw(self, mark: Mark, side: int) -> None:
        """Record an entry: -1 if its timers entered before the wanted timer, 1 if after, 0 if unknown."""
        self._seen.add(mark.number)
        if side < 0 and mark.number >= self.first:
            self.first, self._low = mark.number + 1, mark
        elif side > 0 and mark.number <= self._last:
            self._last, self._high = mark.number - 1, mark

    def _guess(self) -> int:
        low, high = self._low, self._high
        if low is None and high is None:
            return self.start
        self._step *= 2
        if low is None or high is None:
            mark = low or high
            assert mark is not None
            if mark.ahead:
                return mark.number + mark.ahead
            if mark is low and self.end is not None and self.end > mark.number:
                return self.end
            return mark.number + self._step // 2 * (1 if mark is low else -1)
        for mark in (low, high):
            if mark.ahead and low.number < mark.number + mark.ahead < high.number:
                return mark.number + mark.ahead
        self._guesses += 1
        at_ms, low_ms, high_ms = self.entered_ms, low.entered_ms, high.entered_ms
        if low_ms == high_ms:  # as with all timers of a slot, which keep the order of their sends
            at_ms, low_ms, high_ms = self.sent_ms, low.sent_ms, high.sent_ms
        if (self._guesses > GUESSES and self._guesses % 2) or not low_ms <= at_ms <= high_ms or low_ms == high_ms:
            return (low.number + high.number) // 2
        return low.number + round((at_ms - low_ms) / (high_ms - low_ms) * (high.number - low.number))

    def _free(self, guess: int) -> int:
        """Return the nearest unread number in the bracket, preferring later numbers."""
        for distance in range(self._last - self.first + 1):
            for number in (guess + distance, guess - distance):
                if self.first <= number <= self._last and number not in self._seen:
                    return number
        raise AssertionError("somebody asked for a free one where there is none")

    def _neighbour(self) -> int | None:
        high = self._high
        if self.near and high is not None and high.entered_ms - self.entered_ms <= CLOSE_MS:
            self.near -= 1
        elif self.slack:
            self.slack -= 1
        else:
            return None
        for distance in range(self.entries):
            for number in (self.first + distance, self.first - 1 - distance):
                if 0 <= number < self.entries and number not in self._seen:
                    return number
        return None


DEFAULT_MAX_READS = 500
"""Limit of entries to read for a timer; each takes a call of some milliseconds."""
STRANGERS = 16
"""Entries of the other kind (hops among sends, sends among hops) to pass before the search turns to the next place."""
ON_TIME_MS = 5_000
"""Longest time from a release until a relay on time has published the copy: hops wait for each other for up to a
second. Messages published later than that are after the copy.
"""
NEAR = 3  # neighbours to read at once among copies, which arrive from several relays
SLACK = 24  # neighbours to read if a timer is not at its place: clocks differ, and hops arrive beside sends

FORMER = "topics of earlier plans"
SENT_BY_FORMER = ": if it was sent by one of those, give the file of that plan"
PUT_OFF = "no subscription has parked it; a retry after a long back-off is held elsewhere, and is not searched"
THERE = frozenset({State.HELD, State.DUE, State.HANDLED, State.RETRYING, State.PARKED, State.DEAD})
CUT_SHORT = frozenset({State.HELD, State.DUE, State.RETRYING, State.REMOVED, State.NOT_FOUND})
"""States in which a cancelled copy has ended or will end unhandled. A copy that all subscriptions have acknowledged may
have been handled before it was cancelled.
"""


def whereis(
    admin: AdminClient,
    plan: Plan,
    wanted: Wanted,
    *,
    max_reads: int = DEFAULT_MAX_READS,
    cancellations: CancellationTable | None = None,
) -> Whereabouts:
    """Find a timer. Nothing is consumed or changed.

    Args:
        admin: Client whose role may read the topics' stats and peek at their messages.
        plan: Plan by which it was sent.
        wanted: The timer.
        max_reads: Limit of entries to read before the timer counts as not found.
        cancellations: Cancellations read from the plan's log; None if unknown.

    Raises:
        AdminUnreachable: No broker answers.
    """
    return _Search(admin, plan, wanted, max_reads, cancellations).run()


class _Outcome(NamedTuple):
    """Result for a partition: the entry, or whether all stored entries entered later."""

    sighting: Sighting | None
    is_before_all: bool = False


@dataclass
class _Search:
    _admin: AdminClient
    _plan: Plan
    _wanted: Wanted
    _max_reads: int
    _cancellations: CancellationTable | None
    _searched: list[Searched] = field(default_factory=list)
    _sightings: list[Sighting] = field(default_factory=list)
    _removed: bool = False
    _gave_up: bool = False
    _reason: str | None = None

    def __post_init__(self) -> None:
        self._ways, self._names = Routes(self._plan), Names(self._plan)
        self._reading, self._now_ms = Reading(self._admin), self._admin.clock.now_ms()

    def run(self) -> Whereabouts:
        state = self._state() if self._wanted.knows_sent else self._state_by_id()
        seen = self._sightings
        due_ms = seen[0].envelope.due_ms if seen else self._wanted.exact_due_ms  # the due time of an attempt differs
        if state in (State.NOT_FOUND, State.HANDLED) and self._gave_up:
            self._reason = (
                f"given up after {counted(self._max_reads, 'entry', 'entries')}: to read more, raise --max-reads"
            )
            self._reading.lost("the rest", self._reason)
        if state in (State.NOT_FOUND, State.REMOVED) and self._may_be_in_former():
            state = State.NOT_FOUND
        cancellation = self._cancellation(seen[-1] if seen else None)
        if cancellation is not None and state in CUT_SHORT and (seen or not self._reading.unseen):
            state = State.CANCELLED
        return Whereabouts(
            wanted=self._wanted,
            at_ms=self._now_ms,
            state=state,
            here=seen[-1] if seen and state in THERE else None,
            sightings=tuple(seen),
            way=self._ways.way(self._wanted.sent.first_ms, due_ms) if due_ms and self._wanted.knows_sent else (),
            reason=self._reason,
            cancellation=cancellation,
            searched=tuple(self._searched),
            unseen=self._reading.unseen,
            cost=self._reading.cost,
        )

    def _may_be_in_former(self) -> bool:
        """Return whether timers wait in topics of earlier plans: this plan does not determine their way."""
        former = waiting_in_former(self._admin, self._plan, self._reading.cannot)
        if former:
            there = counted(sum(topic.backlog for topic in former), "entry waits there", "entries wait there")
            self._reading.lost(FORMER, there + SENT_BY_FORMER)
        return bool(former)

    def _cancellation(self, seen: Sighting | None) -> Cancellation | None:
        if self._cancellations is None:
            return None
        if seen is None:
            return self._cancellations.of_timer(self._wanted.timer_id)
        return self._cancellations.why_dead(seen.envelope)

    def _state(self) -> State:
        """Search the most likely partition, then all (the timer may move meanwhile), then neighbours of its places."""
        partitions = self._wanted.partitions(self._plan)
        for where, slack in ((partitions[:1], 0), (partitions, 0), (partitions, SLACK)):
            for partition, stop, is_passed in self._places(where):
                if self._spent():
                    return State.NOT_FOUND
                if is_passed and not slack and self._is_empty_of(stop, partition):
                    continue
                outcome = self._look(stop, partition, slack)
                if outcome.sighting is not None:
                    return self._follow(outcome.sighting, stop, partition)
                self._note_removed(stop, outcome)
            if self._removed and where == partitions:
                break
            self._reading.look_again()
        return self._missing()

    def _state_by_id(self) -> State:
        """Search without a send time: read all entries of the places that the due time leads to."""
        assert self._wanted.due_ms is not None, "without it the wanted timer is refused"
        due = self._wanted.due_span(self._plan)
        for topic, step in self._ways.places(due).items():
            for number in self._wanted.partitions(self._plan):
                partition = self._reading.partition(self._names.part(topic, number))
                sighting = None if partition is None else self._with_id(partition, topic, step, due)
                if sighting is not None:
                    return self._follow(*sighting, number)
        return self._missing()

    def _with_id(self, partition: Partition, topic: str, step: Step, due: Span) -> tuple[Sighting, Stop] | None:
        before, found = self._reading.cost.reads, None
        entered_ms = due.first_ms - self._plan.max_delay_ms
        for entry in range(self._reading.start(partition, entered_ms), partition.entries):
            if self._spent():
                break
            seen = self._reading.entry(partition, entry)
            timers = () if seen is None else seen.timers
            envelope = next((one for one in timers if self._is_wanted(one, due)), None)
            if seen is not None and envelope is not None:
                its = Span(envelope.due_ms, envelope.due_ms)
                (routed,) = self._ways.after(envelope.entered_ms, its, envelope.hops)
                stop = replace(routed, topic=topic, step=step)
                # Routed by another plan, or placed by hand: this plan does not determine its way.
                if not envelope.hops and routed.topic == topic:
                    self._wanted = replace(self._wanted, sent=stop.entered)
                found = self._sighting(stop, partition, seen, envelope), stop
                break
        self._note_searched(partition, entered_ms, before, is_found=found is not None)
        return found

    def _is_wanted(self, envelope: Envelope, due: Span) -> bool:
        """Return whether an envelope is the wanted timer: an id chosen by the caller may be reused by a later timer."""
        return self._wanted.is_id(envelope.timer_id) and (
            due.first_ms - SECOND_MS < envelope.due_ms < due.last_ms + SECOND_MS
        )

    def _is_after(self, earlier: Envelope | None, envelope: Envelope, stop: Stop) -> bool:
        """Return whether an envelope is a copy of the timer, made from the earlier copy if one is known."""
        if not self._wanted.is_id(envelope.timer_id):
            return False
        # A due topic ends the way; a dead letter that was replayed to it has made no hops.
        return earlier is None or (
            envelope.generation == earlier.generation and (stop.is_due or envelope.hops > earlier.hops)
        )

    def _places(self, partitions: Sequence[int]) -> Iterator[tuple[int, Stop, bool]]:
        """Yield by partition the places where the timer should be now, then those of a late relay (True)."""
        here, before = self._ways.now(self._wanted, self._now_ms)
        for partition in partitions:
            yield from ((partition, stop, False) for stop in here)
            yield from ((partition, stop, True) for stop in before)

    def _is_empty_of(self, stop: Stop, number: int) -> bool:
        """Return whether all timers that entered a holding topic with the wanted timer have left, by cursors alone."""
        if (partition := self._reading.partition(self._names.part(stop.topic, number))) is None:
            return False
        cursor = partition.stats.cursors.get(RELAY_SUBSCRIPTION)
        if cursor is None:
            return False
        first_open = partition.stored.number_after(cursor.mark_delete)
        return (
            first_open >= partition.entries
            or self._reading.start(partition, stop.entered.last_ms + ON_TIME_MS) <= first_open
        )

    def _follow(self, sighting: Sighting, stop: Stop, partition: int) -> State:
        """Follow the timer from copy to copy, each with more hops, until its present place."""
        while True:
            self._sightings.append(sighting)
            if sighting.is_due:
                return State.DUE if sighting.waits_for else self._acknowledged(sighting, partition)
            if sighting.waits_for:
                return State.HELD
            following = self._next_copy(sighting.envelope, stop, partition)
            if following is None:
                return self._missing()
            sighting, stop = following

    def _acknowledged(self, due: Sighting, partition: int) -> State:
        state = State.HANDLED
        if self._plan.keeps_back:
            for kept, sighting in self._kept_back(due, partition):
                state = kept
                self._sightings.append(sighting)
            if state is State.HANDLED and not isinstance(self._plan.scheme, Native | Calendar):
                self._reason = PUT_OFF
        return state

    def _kept_back(self, due: Sighting, number: int) -> Iterator[tuple[State, Sighting]]:
        """Yield unacknowledged copies in retry and parked topics of the subscriptions that acknowledged the timer."""
        for name, is_parked in product(due.done_by, (True, False)):
            topic = self._names.parked(name) if is_parked else self._names.retry(name)
            reader = PARKED_SUBSCRIPTION if is_parked else name
            partition = self._reading.partition(self._names.part(topic, number))
            if partition is None:
                continue
            for entry in range(self._reading.start(partition, due.published_ms), partition.entries):
                if partition.acknowledged_by(partition.stored.place(entry).position, reader):
                    continue
                if self._spent():
                    return
                seen = self._reading.entry(partition, entry)
                for one in () if seen is None else seen.timers:
                    if one.timer_id == due.envelope.timer_id and one.generation >= due.envelope.generation:
                        assert seen is not None
                        state = State.PARKED if is_parked else State.RETRYING
                        yield state, Sighting.of(partition, seen, one, (reader,))

    def _next_copy(self, earlier: Envelope, stop: Stop, partition: int) -> tuple[Sighting, Stop] | None:
        due = Span(earlier.due_ms, earlier.due_ms)
        (nominal,) = self._ways.after(release_at(stop.step, earlier.due_ms, earlier.entered_ms), due, earlier.hops + 1)
        for slack in (0, SLACK):
            outcome = self._look(nominal, partition, slack, earlier)
            if outcome.sighting is not None:
                return outcome.sighting, nominal
            self._note_removed(nominal, outcome)
        # By the late lane, after an outage of the relay: it entered its due topic when the relay was back.
        since_ms = nominal.entered.first_ms
        (stop,) = self._ways.after(max(earlier.due_ms, since_ms), due, earlier.hops + 1)
        late = replace(stop, entered=Span(since_ms, self._now_ms))
        found = self._look(late, partition, SLACK, earlier).sighting
        return None if found is None else (found, late)

    def _note_removed(self, stop: Stop, outcome: _Outcome) -> None:
        # No timer is handled before it is due.
        self._removed |= stop.is_due and outcome.is_before_all and stop.due.first_ms <= self._now_ms

    def _look(self, stop: Stop, number: int, slack: int, earlier: Envelope | None = None) -> _Outcome:
        before = self._reading.cost.reads
        partition = self._reading.partition(self._names.part(stop.topic, number))
        if partition is None:
            return _Outcome(None)
        found, is_before_all = self._hunted(stop, partition, slack, earlier)
        entered_ms, is_found = stop.entered.first_ms, found is not None
        self._note_searched(partition, entered_ms, before, is_found=is_found, is_before_all=is_before_all)
        return _Outcome(found, is_before_all)

    def _hunted(
        self, stop: Stop, partition: Partition, slack: int, earlier: Envelope | None
    ) -> tuple[Sighting | None, bool]:
        reading = self._reading
        if not partition.entries:
            return None, True
        # A broker delivers up to two ticks early: so much before its nominal time a copy may be published.
        early_ms = 2 * self._plan.tick_ms if stop.hops and not self._plan.holds_in_relay else 0
        start = reading.start(partition, stop.entered.first_ms - early_ms)
        # A batch is published when its first timer is sent: the wanted timer may be in the entry before.
        first = start - 1 if self._plan.holds_in_relay and not stop.hops and not stop.is_due else start
        hunt = Hunt(
            partition.entries,
            first=max(first - slack, 0),
            start=start,
            entered_ms=stop.entered.first_ms,
            sent_ms=self._wanted.sent.first_ms,
            end=self._end(stop, partition),
            slack=slack,
            near=NEAR if stop.hops else 0,
        )
        strangers = 0
        while (chosen := hunt.next()) is not None and not self._spent():
            seen = reading.entry(partition, chosen)
            if seen is None:
                hunt.saw(Mark(chosen, 0), 0)
                continue
            envelope = next((one for one in seen.timers if self._is_after(earlier, one, stop)), None)
            if envelope is not None:
                return self._sighting(stop, partition, seen, envelope), False
            alike = [one for one in seen.timers if bool(one.hops) == bool(stop.hops)]
            strangers += not alike
            if strangers > STRANGERS and not slack:
                break
            hunt.saw(*self._judged(chosen, seen, alike, stop))
        return None, hunt.is_before_all

    def _end(self, stop: Stop, partition: Partition) -> int | None:
        if not stop.hops or not isinstance(self._plan.scheme, Wheel):
            return None
        # Not as far as the timers of the following slot.
        ahead_ms = min(ON_TIME_MS, self._plan.scheme.rings[0].slot_ms // 4)
        return self._reading.start(partition, stop.entered.last_ms + ahead_ms) - 1

    def _judged(self, number: int, seen: Seen, alike: Sequence[Envelope], stop: Stop) -> tuple[Mark, int]:
        # Sends and hops arrive side by side, each kind in order; hops a little later after their time than sends.
        if not alike:
            is_later = seen.publish_ms > stop.entered.last_ms + ON_TIME_MS
            return Mark(number, seen.publish_ms), 1 if is_later else 0
        sides = {self._wanted.side_of(one, stop.entered) for one in alike}
        generated = GeneratedId.parse(alike[0].timer_id)
        # If all timers of a producer go to the same topic, the counter of its ids shows the distance.
        is_all = isinstance(self._plan.scheme, Native) and len(seen.timers) == 1
        mark = Mark(
            number,
            alike[0].entered_ms,
            sent_ms=0 if generated is None else generated.sent_ms,
            ahead=self._wanted.steps_after(alike[0], self._plan.own_partitions) if is_all else 0,
        )
        return mark, sides.pop() if len(sides) == 1 else 0

    def _sighting(self, stop: Stop, partition: Partition, seen: Seen, envelope: Envelope) -> Sighting:
        if stop.is_due:
            return Sighting.of(partition, seen, envelope, self._plan.subscriptions, is_due=True)
        return Sighting.of(partition, seen, envelope, (RELAY_SUBSCRIPTION,))

    def _missing(self) -> State:
        """Return the state of a timer that is at none of its places."""
        return self._dead() or (State.REMOVED if self._removed and not self._gave_up else State.NOT_FOUND)

    def _dead(self) -> State | None:
        """Search the dead letters: they are few, and ordered by a time that is unknown, so all are read."""
        if (partition := self._reading.partition(partition_topic(self._names.dead_letter, 0))) is None:
            return None
        before = self._reading.cost.reads
        for number in reversed(range(partition.entries)):
            if self._spent():
                break
            seen = self._reading.entry(partition, number, is_cancelled=True)
            if seen is None:
                continue
            for envelope, reason in zip(seen.timers, seen.reasons, strict=True):
                if self._wanted.is_id(envelope.timer_id):
                    self._reason = reason
                    self._sightings.append(Sighting.of(partition, seen, envelope, (DEAD_LETTER_SUBSCRIPTION,)))
                    return State.DEAD
        self._note_searched(partition, 0, before, is_found=False)
        return None

    def _note_searched(
        self, partition: Partition, entered_ms: int, before: int, *, is_found: bool, is_before_all: bool = False
    ) -> None:
        reads = self._reading.cost.reads - before
        self._searched.append(
            Searched(
                topic=partition.name, entered_ms=entered_ms, reads=reads, found=is_found, is_before_all=is_before_all
            )
        )

    def _spent(self) -> bool:
        """Return whether no more reads are allowed; called before each read, so that a finished search is complete."""
        self._gave_up |= self._reading.cost.reads >= self._max_reads
        return self._gave_up

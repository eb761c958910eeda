"""A random sample of the entries of a live topic, with send time and due time of each. Nothing is consumed.

The internal stats list the entries; each chosen entry is then read by a call of its own. A topic's ledgers are stored
whole from the mark-delete position of its slowest subscription on, acknowledged entries included. So the sample
represents everything sent since then.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from itertools import accumulate
from typing import NamedTuple, TypeVar

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.entries import StoredEntry
from timewheel.broker.admin.stats import CursorStats, Ledger
from timewheel.client.positions import EntryPosition
from timewheel.core.envelope import NUDGE_PROPERTY, PROBE_PROPERTY, TIMER_PROPERTY, Envelope
from timewheel.core.errors import (
    AdminDenied,
    AdminError,
    AdminMissing,
    AdminUnreachable,
    EnvelopeError,
)
from timewheel.core.ids import is_native_id
from timewheel.core.names import parts_of
from timewheel.inspect.errors import NothingToSample
from timewheel.inspect.missing_topics import no_such_topic


class OpenRun(NamedTuple):
    """Consecutive entries of a ledger."""

    ledger: int
    first: int
    entries: int


def open_runs(cursor: CursorStats, ledgers: Sequence[Ledger]) -> tuple[OpenRun, ...]:
    """Return the entries after the mark-delete position and outside the acknowledged ranges, in topic order."""
    acked = cursor.acked_ranges()
    runs: list[OpenRun] = []
    at = 0
    for ledger in ledgers:
        first = cursor.mark_delete.entry + 1 if ledger.ledger_id == cursor.mark_delete.ledger else 0
        if ledger.ledger_id < cursor.mark_delete.ledger:
            continue
        while at < len(acked) and acked[at].upto.ledger < ledger.ledger_id:
            at += 1
        while at < len(acked) and acked[at].after.ledger <= ledger.ledger_id:
            begin = acked[at].after.entry + 1 if acked[at].after.ledger == ledger.ledger_id else 0
            runs += _run(ledger.ledger_id, first, begin)
            if acked[at].upto.ledger > ledger.ledger_id:
                first = ledger.entries  # the range continues in the next ledger
                break
            first = max(first, acked[at].upto.entry + 1)
            at += 1
        runs += _run(ledger.ledger_id, first, ledger.entries)
    return tuple(runs)


def positions_of(runs: Sequence[OpenRun], numbers: Sequence[int]) -> Iterator[EntryPosition]:
    """Yield the positions of the entries with these numbers, counted through all runs."""
    ends = list(accumulate(run.entries for run in runs))
    for number in numbers:
        which = bisect_right(ends, number)
        run = runs[which]
        yield EntryPosition(run.ledger, run.first + number - (ends[which] - run.entries))


def _run(ledger: int, first: int, until: int) -> list[OpenRun]:
    return [OpenRun(ledger, first, until - first)] if until > first else []


DEFAULT_SAMPLES = 10_000
"""The error of any share of the delays is then at most 1.4 percentage points, in 95 of 100 samples."""
MAX_SAMPLES = 1_000_000
"""A row takes some 200 bytes until the file is written, and a call about a millisecond."""
IN_FLIGHT = 8
"""Concurrent calls: each makes a bookie read somewhere on its disk, beside its regular work."""
WAITING = 2 * IN_FLIGHT
"""Calls handed to the threads; later calls are not created yet."""
MAX_GONE_SHARE = 0.1
"""Largest fraction of the chosen entries that may disappear; beyond it, the rest is no fair sample of the topic."""

T = TypeVar("T")
ProgressCallback = Callable[[int, int], None]
"""Progress callback: called with the number of entries read, and of all entries to read."""


class Stretch(NamedTuple):
    """The first ``entries`` entries of a ledger, on a partition or a topic without partitions."""

    topic: str
    ledger: int
    entries: int


class Place(NamedTuple):
    """Location of an entry."""

    topic: str
    position: EntryPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledEntry:
    """An entry, as a row of a history.

    Args:
        publish_ms: Send time by the producer's clock, UTC milliseconds; for a timer that a relay has moved (``hops``),
            the time of its last move: an envelope does not store the first send.
        due_ms: Due time, from the envelope if the entry has one; ``publish_ms`` if it is not delayed, or was due before
            it was sent.
        size_bytes: Size of the payload, uncompressed; for a batch, of all its messages.
        key: Partition key; None without a key, and for a batch.
        is_delayed: True if it has a due time.
        is_overdue: True if it was due before it was sent.
        batch_messages: Messages in the batch; 0 if it is no batch. Clients put no delayed message into a batch.
        hops: Number of moves by relays; 0 if it is still where its producer sent it. None without an envelope: it was
            not sent by timewheel, or it is a batch.
    """

    publish_ms: int
    due_ms: int
    size_bytes: int
    key: str | None
    is_delayed: bool
    is_overdue: bool
    batch_messages: int
    hops: int | None = None

    @property
    def is_timewheel(self) -> bool:
        """True if a producer or relay of timewheel wrote it."""
        return self.hops is not None


class Unread(NamedTuple):
    """Number of entries that were not read, and of those among them that exist but are unreadable."""

    all: int
    unreadable: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A sample without replacement: every entry had the same chance.

    Args:
        topic: The topic as the caller named it.
        partitions: Number of partitions; 0 for a topic without partitions.
        population: Number of entries when they were counted.
        seed: Seed that draws the same places again.
        sampled_at_ms: Time of the count, UTC milliseconds.
        entries: Entries in the order of sending.
        unread: Chosen entries that had disappeared or were unreadable.
        unreadable: Those of them that existed but were unreadable.
        of_shadow: Chosen entries that the topic's shadow put there, which are no sends and left out: timers that it has
            brought back, whose originals are in the topic too, and its own messages.
    """

    topic: str
    partitions: int
    population: int
    seed: int
    sampled_at_ms: int
    entries: tuple[SampledEntry, ...]
    unread: int
    unreadable: int = 0
    of_shadow: int = 0

    @property
    def scale(self) -> float:
        """Number of the topic's entries that each sampled entry stands for."""
        return self.population / (len(self.entries) + self.of_shadow)

    @property
    def is_whole(self) -> bool:
        """True if all entries of the topic were read."""
        return len(self.entries) + self.of_shadow == self.population


def sample(
    admin: AdminClient,
    topic: str,
    *,
    now_ms: int,
    samples: int = DEFAULT_SAMPLES,
    seed: int = 0,
    on_progress: ProgressCallback = lambda _done, _total: None,
) -> Sample:
    """Read random entries of a topic.

    Args:
        admin: Client whose role may read the topic's stats and peek at its messages.
        topic: Full name of a persistent topic, partitioned or not.
        now_ms: Present time, UTC milliseconds.
        samples: Number of entries; all if the topic has fewer.
        seed: Seed of the sample.
        on_progress: Progress callback; called in the caller's thread.

    Raises:
        ValueError: The number of samples is out of range.
        NothingToSample: The topic is missing or empty, or more than a tenth of the entries disappeared too soon.
        AdminError: A call failed for another reason.
    """
    if not 1 <= samples <= MAX_SAMPLES:
        raise ValueError(f"from 1 to {MAX_SAMPLES:,} samples, not {samples}")
    partitions, stretches = _stretches(admin, topic)
    population = sum(stretch.entries for stretch in stretches)
    if not population:
        raise NothingToSample(topic, "it stores no entries: nothing was sent, or all is acknowledged and removed")
    # In the order of the draw, not of the topic, so that calls are spread over partitions and their brokers.
    numbers = draw(population, samples, seed)
    read, unread = inspect(admin, topic, places_of(numbers, stretches), len(numbers), _sampled, on_progress)
    found = [entry for entry in read if entry is not None]
    if not found:
        problem = f"all {len(read):,} entries that were looked at were put there by its shadow, and are no sends"
        raise NothingToSample(topic, problem)
    return Sample(
        topic=topic,
        partitions=partitions,
        population=population,
        seed=seed,
        sampled_at_ms=now_ms,
        entries=tuple(sorted(found, key=lambda entry: entry.publish_ms)),
        unread=unread.all,
        unreadable=unread.unreadable,
        of_shadow=len(read) - len(found),
    )


def draw(population: int, samples: int, seed: int) -> list[int]:
    """Draw numbers below a population without replacement, with equal chances; at most the whole population.

    Takes memory for the sample only, independent of the population.
    """
    drawn = random.Random(seed)  # noqa: S311 - a fair draw, not a secret
    return drawn.sample(range(population), min(samples, population))


def places_of(numbers: Iterable[int], stretches: Sequence[Stretch]) -> Iterator[Place]:
    """Yield the places of the entries with these numbers, in that order; numbers count through all stretches."""
    ends = list(accumulate(stretch.entries for stretch in stretches))
    for number in numbers:
        which = bisect_right(ends, number)
        topic, ledger, entries = stretches[which]
        yield Place(topic, EntryPosition(ledger, number - (ends[which] - entries)))


def _stretches(admin: AdminClient, topic: str) -> tuple[int, list[Stretch]]:
    """Return the number of a topic's partitions, and its stored entries."""
    if topic.startswith("non-persistent://"):
        raise NothingToSample(topic, "a topic that is not persistent stores no messages")
    partitions = admin.topics.partitions(topic)
    if partitions is None:
        raise NothingToSample(topic, no_such_topic(admin, topic))
    names = parts_of(topic, partitions)
    stretches = []
    for name in names:
        try:
            ledgers = admin.topics.internal_stats(name).ledgers
        except AdminMissing:
            if not partitions:
                raise NothingToSample(topic, no_such_topic(admin, topic)) from None
            continue  # brokers create a partition at its first use
        stretches += [Stretch(name, ledger.ledger_id, ledger.entries) for ledger in ledgers if ledger.entries]
    return partitions, stretches


def inspect(
    admin: AdminClient,
    topic: str,
    places: Iterable[Place],
    chosen: int,
    read: Callable[[Place, StoredEntry], T],
    on_progress: ProgressCallback,
) -> tuple[list[T], Unread]:
    """Read entries, some of them concurrently.

    Args:
        admin: Client whose role may peek.
        topic: Topic to name in an error.
        places: Places of the entries.
        chosen: Number of places.
        read: Converts each entry.
        on_progress: Progress callback.

    Returns:
        The converted entries, and the number of entries that could not be read.

    Raises:
        NothingToSample: More than a tenth disappeared too soon, or no entry could be read.
        AdminError: A call failed for a reason other than the entry.
    """
    on_progress(0, chosen)
    found, errors = _look(admin, topic, places, chosen, read, on_progress)
    refused = {place: error for place, error in errors.items() if (error.status or 0) >= HTTPStatus.BAD_REQUEST}
    if refused:
        # Try again at the end: while a topic moves to another broker, reads of it fail for seconds.
        again, left = _look(admin, topic, refused, chosen, read, lambda _done, _total: None)
        found += again
        errors = {place: error for place, error in errors.items() if place not in refused} | left
    if not found:
        reason = next(iter(errors.values())).reason if errors else ""
        raise NothingToSample(topic, f"none of {chosen:,} entries could be read: {reason}")
    return found, Unread(len(errors), sum(not _is_gone(error) for error in errors.values()))


def _is_gone(error: AdminError) -> bool:
    """Return whether an entry was deleted meanwhile; else it exists but is unreadable, and others may be readable."""
    return error.status == HTTPStatus.NOT_FOUND


def _look(
    admin: AdminClient,
    topic: str,
    places: Iterable[Place],
    chosen: int,
    read: Callable[[Place, StoredEntry], T],
    on_progress: ProgressCallback,
) -> tuple[list[T], dict[Place, AdminError]]:
    """Return the converted entries, and the errors of the others."""
    found: list[T] = []
    errors: dict[Place, AdminError] = {}
    gone = 0
    for done, (place, outcome) in enumerate(_outcomes(admin, places), start=1):
        if isinstance(outcome, AdminError):
            errors[place] = outcome
            gone += _is_gone(outcome)
            if gone > MAX_GONE_SHARE * chosen + 1:
                problem = f"{gone:,} of the first {done:,} entries were gone ({outcome.reason})"
                raise NothingToSample(topic, f"{problem}; if it drains as fast as that, take fewer samples")
        else:
            found.append(read(place, outcome))
        on_progress(done, chosen)
    return found, errors


def _outcomes(admin: AdminClient, places: Iterable[Place]) -> Iterator[tuple[Place, StoredEntry | AdminError]]:
    """Yield the outcome of each place in order, with a bounded number of concurrent calls."""
    pool = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="timewheel-sample")
    waiting: deque[tuple[Place, Future[StoredEntry | AdminError]]] = deque()
    try:
        for place in places:
            if len(waiting) == WAITING:
                first, outcome = waiting.popleft()
                yield first, outcome.result()
            waiting.append((place, pool.submit(partial(_outcome, admin, place))))
        while waiting:
            first, outcome = waiting.popleft()
            yield first, outcome.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _outcome(admin: AdminClient, place: Place) -> StoredEntry | AdminError:
    try:
        return admin.topics.entry(place.topic, place.position)
    except (AdminDenied, AdminUnreachable):
        raise
    except AdminError as error:
        return error


def _sampled(place: Place, entry: StoredEntry) -> SampledEntry | None:
    """Convert a stored entry to a row of the history; None if the topic's shadow put it there."""
    envelope = envelope_in(entry.properties)
    is_copy = envelope is not None and envelope.hops > 0 and is_native_id(envelope.timer_id, place.topic)
    is_own = TIMER_PROPERTY not in entry.properties and entry.properties.keys() & {NUDGE_PROPERTY, PROBE_PROPERTY}
    return None if is_copy or is_own else sampled(entry)


def sampled(entry: StoredEntry) -> SampledEntry:
    """Convert a stored entry to a row of the history."""
    envelope = envelope_in(entry.properties)
    publish_ms, due_ms = entry.publish_at_ms, entry.publish_at_ms
    if entry.deliver_at_ms is not None:
        due_ms = entry.deliver_at_ms
    if envelope is not None:
        due_ms = envelope.due_ms  # the broker is given a slightly earlier time
        if not envelope.hops:
            publish_ms = envelope.entered_ms  # acceptance by the producer; its client may have sent it later
    return SampledEntry(
        publish_ms=publish_ms,
        due_ms=max(due_ms, publish_ms),
        size_bytes=len(entry.payload),
        key=entry.partition_key,
        is_delayed=entry.deliver_at_ms is not None or (envelope is not None and due_ms > publish_ms),
        is_overdue=due_ms < publish_ms,
        batch_messages=entry.batch_messages or 0,
        hops=None if envelope is None else envelope.hops,
    )


def envelope_in(properties: Mapping[str, str]) -> Envelope | None:
    """Return a stored message's envelope; None if it is missing or unreadable."""
    if TIMER_PROPERTY not in properties:
        return None
    try:
        return Envelope.read(properties)
    except EnvelopeError:
        return None  # of a later version, or garbled: it counts as a foreign entry

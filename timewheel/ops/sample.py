"""A random sample of what lies in a live topic: when each entry was sent and when it is due. Nothing is consumed.

Which entries there are, the internal stats say; each chosen one is then looked at by a call of its own. A topic's
ledgers are kept whole from its slowest subscription's mark-delete position on, acknowledged entries included, so the
sample is one of all that was sent since then.
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

from timewheel.admin.client import AdminClient
from timewheel.admin.entries import StoredEntry
from timewheel.admin.internals import EntryPosition
from timewheel.core.envelope import TIMER_PROPERTY, Envelope
from timewheel.core.errors import (
    AdminDenied,
    AdminError,
    AdminMissing,
    AdminUnreachable,
    EnvelopeError,
)
from timewheel.core.names import parts_of
from timewheel.ops.errors import NothingToSample

__all__ = [
    "DEFAULT_SAMPLES",
    "MAX_SAMPLES",
    "NothingToSample",
    "Place",
    "Sample",
    "SampledEntry",
    "Stretch",
    "Unread",
    "draw",
    "envelope_in",
    "look",
    "places_of",
    "sample",
    "sampled",
]

DEFAULT_SAMPLES = 10_000
"""Every share of the delays is then right within 1.4 percentage points, 95 times of 100."""
MAX_SAMPLES = 1_000_000
"""A row takes some 200 bytes until the file is written, and a call about a millisecond."""
IN_FLIGHT = 8
"""Calls at once: each makes a bookie read somewhere on its disk, beside the work that it is there for."""
WAITING = 2 * IN_FLIGHT
"""Calls that are handed to the threads; what is beyond them is not yet drawn up."""
MAX_GONE_SHARE = 0.1
"""Of the chosen entries that were removed meanwhile; from there on the rest is no fair sample of the topic."""

T = TypeVar("T")
Tell = Callable[[int, int], None]
"""Told of the progress: entries looked at, entries to look at."""


class Stretch(NamedTuple):
    """Entries 0 up to ``entries`` of one ledger of one topic without partitions, or of one partition."""

    topic: str
    ledger: int
    entries: int


class Place(NamedTuple):
    """Where one entry is."""

    topic: str
    position: EntryPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledEntry:
    """One entry, as a history has it.

    Args:
        publish_ms: When it was sent by its producer's clock, UTC milliseconds; of a timer that timewheel has moved on
            (``hops``), when that was: an envelope does not keep when it was first sent.
        due_ms: When it is due, by its envelope if it has one; ``publish_ms`` if it is not delayed, or was due before
            it was sent.
        size_bytes: Of the payload, not compressed; of a batch, of all its messages.
        key: Its partition key; None if it has none, and for a batch.
        is_delayed: It has a due time.
        is_overdue: It was due before it was sent.
        batch_messages: Messages in it, if it is a batch; 0: it is none. Clients put no delayed message in one.
        hops: How often timewheel has moved it on; 0: its producer put it here. None: it has no envelope, so it is not
            timewheel's, or it is a batch.
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
        """A producer or relay of timewheel wrote it."""
        return self.hops is not None


class Unread(NamedTuple):
    """How many entries were not read, and how many of these were there and could not be."""

    all: int
    unreadable: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A sample without replacement: every entry had the same chance.

    Args:
        topic: As it was asked for.
        partitions: How many it has; 0: it is one without partitions.
        population: Entries in it when they were counted.
        seed: From which the same places are drawn again.
        sampled_at_ms: When they were counted, UTC milliseconds.
        entries: In the order in which they were sent.
        unread: Chosen ones that were gone, or could not be read, when they were looked at.
        unreadable: Those of them that were there, and could not be read.
    """

    topic: str
    partitions: int
    population: int
    seed: int
    sampled_at_ms: int
    entries: tuple[SampledEntry, ...]
    unread: int
    unreadable: int = 0

    @property
    def scale(self) -> float:
        """How many entries of the topic stand behind one of the sample."""
        return self.population / len(self.entries)


def sample(
    admin: AdminClient,
    topic: str,
    *,
    now_ms: int,
    samples: int = DEFAULT_SAMPLES,
    seed: int = 0,
    tell: Tell = lambda _done, _total: None,
) -> Sample:
    """Look at so many random entries of a topic.

    Args:
        admin: Whose role may see the topic's stats and peek at its messages.
        topic: Full name of a persistent topic, partitioned or not.
        now_ms: The time, UTC milliseconds.
        samples: How many; all, if the topic has fewer.
        seed: Which ones.
        tell: Told of the progress, from the thread that calls this.

    Raises:
        ValueError: The number of samples is out of its range.
        NothingToSample: No such topic, nothing in it, or more than a tenth of the entries were gone too soon.
        AdminError: A call failed for another reason.
    """
    if not 1 <= samples <= MAX_SAMPLES:
        raise ValueError(f"from 1 to {MAX_SAMPLES:,} samples, not {samples}")
    partitions, stretches = _stretches(admin, topic)
    population = sum(stretch.entries for stretch in stretches)
    if not population:
        raise NothingToSample(topic, "it stores no entries: nothing was sent, or all is acknowledged and removed")
    # In the order of the draw and not of the topic, so that the calls are spread over partitions and their brokers.
    numbers = draw(population, samples, seed)
    found, unread = look(
        admin, topic, places_of(numbers, stretches), len(numbers), lambda _, entry: sampled(entry), tell
    )
    return Sample(
        topic=topic,
        partitions=partitions,
        population=population,
        seed=seed,
        sampled_at_ms=now_ms,
        entries=tuple(sorted(found, key=lambda entry: entry.publish_ms)),
        unread=unread.all,
        unreadable=unread.unreadable,
    )


def draw(population: int, samples: int, seed: int) -> list[int]:
    """Draw numbers below a population without replacement, each with the same chance; all if there are no more.

    They take the memory of the sample, whatever the population.
    """
    drawn = random.Random(seed)  # noqa: S311 - a fair draw, not a secret
    return drawn.sample(range(population), min(samples, population))


def places_of(numbers: Iterable[int], stretches: Sequence[Stretch]) -> Iterator[Place]:
    """Where the entries of these numbers are, counted through all stretches, in the order of the numbers."""
    ends = list(accumulate(stretch.entries for stretch in stretches))
    for number in numbers:
        which = bisect_right(ends, number)
        topic, ledger, entries = stretches[which]
        yield Place(topic, EntryPosition(ledger, number - (ends[which] - entries)))


def _stretches(admin: AdminClient, topic: str) -> tuple[int, list[Stretch]]:
    """How many partitions a topic has, and what is stored in it."""
    if topic.startswith("non-persistent://"):
        raise NothingToSample(topic, "a topic that is not persistent stores no messages")
    partitions = admin.topics.partitions(topic)
    if partitions is None:
        raise NothingToSample(topic, "there is no such topic")
    names = parts_of(topic, partitions)
    stretches = []
    for name in names:
        try:
            ledgers = admin.topics.internal_stats(name).ledgers
        except AdminMissing:
            if not partitions:
                raise NothingToSample(topic, "there is no such topic") from None
            continue  # brokers make a partition when it is first used
        stretches += [Stretch(name, ledger.ledger_id, ledger.entries) for ledger in ledgers if ledger.entries]
    return partitions, stretches


def look(
    admin: AdminClient,
    topic: str,
    places: Iterable[Place],
    chosen: int,
    read: Callable[[Place, StoredEntry], T],
    tell: Tell,
) -> tuple[list[T], Unread]:
    """Look at entries, at some of them at once.

    Args:
        admin: Whose role may peek.
        topic: To be named in an error.
        places: Of the entries.
        chosen: How many these are.
        read: What is made of each.
        tell: Told of the progress.

    Returns:
        What was made of those that could be read, and how many could not.

    Raises:
        NothingToSample: More than a tenth were gone too soon, or none could be read.
        AdminError: A call failed for another reason than the entry.
    """
    tell(0, chosen)
    found, errors = _look(admin, topic, places, chosen, read, tell)
    refused = {place: error for place, error in errors.items() if (error.status or 0) >= HTTPStatus.BAD_REQUEST}
    if refused:
        # Once more at the end: while a topic moves to another broker, reads of it fail for seconds.
        again, left = _look(admin, topic, refused, chosen, read, lambda _done, _total: None)
        found += again
        errors = {place: error for place, error in errors.items() if place not in refused} | left
    if not found:
        reason = next(iter(errors.values())).reason if errors else ""
        raise NothingToSample(topic, f"none of {chosen:,} entries could be read: {reason}")
    return found, Unread(len(errors), sum(not _is_gone(error) for error in errors.values()))


def _is_gone(error: AdminError) -> bool:
    """Whether an entry went meanwhile; else it is there and cannot be read, which says nothing of others."""
    return error.status == HTTPStatus.NOT_FOUND


def _look(
    admin: AdminClient,
    topic: str,
    places: Iterable[Place],
    chosen: int,
    read: Callable[[Place, StoredEntry], T],
    tell: Tell,
) -> tuple[list[T], dict[Place, AdminError]]:
    """What was made of those that were read, and why others were not."""
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
        tell(done, chosen)
    return found, errors


def _outcomes(admin: AdminClient, places: Iterable[Place]) -> Iterator[tuple[Place, StoredEntry | AdminError]]:
    """What came of each place, in their order, with a bounded number of calls under way."""
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


def sampled(entry: StoredEntry) -> SampledEntry:
    """A row of the history from an entry as it is stored."""
    envelope = envelope_in(entry.properties)
    publish_ms, due_ms = entry.publish_at_ms, entry.publish_at_ms
    if entry.deliver_at_ms is not None:
        due_ms = entry.deliver_at_ms
    if envelope is not None:
        due_ms = envelope.due_ms  # the broker is asked a little earlier
        if not envelope.hops:
            publish_ms = envelope.entered_ms  # when the producer took it; its client may have sent it later
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
    """A stored message's envelope; None: it has none that can be read."""
    if TIMER_PROPERTY not in properties:
        return None
    try:
        return Envelope.read(properties)
    except EnvelopeError:
        return None  # of a later version, or garbled: a stranger's entry, as far as can be told

"""A random sample of the entries of a live topic, with send time and due time of each: estimates for the topic with
errors, and its file, a history that `timewheel plan` reads. Nothing is consumed.

The internal stats list the entries; each chosen entry is then read by a call of its own. A topic's ledgers are stored
whole from the mark-delete position of its slowest subscription on, acknowledged entries included. So the sample
represents everything sent since then.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from http import HTTPStatus
from itertools import accumulate
from math import ceil, log, sqrt
from pathlib import Path
from typing import NamedTuple, TypeVar

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.entries import StoredEntry
from timewheel.broker.admin.stats import is_users
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.envelope import NUDGE_PROPERTY, PROBE_PROPERTY, TIMER_PROPERTY, Envelope
from timewheel.core.errors import AdminDenied, AdminError, AdminUnreachable, EnvelopeError, OwnerUnreachable
from timewheel.core.extras import need_extras
from timewheel.core.gap_law import shows_full
from timewheel.core.ids import is_native_id
from timewheel.core.names import parts_of
from timewheel.inspect.entries import Entries, Place, ledger_runs
from timewheel.inspect.errors import NothingToSample
from timewheel.inspect.missing_topics import no_such_topic, shadow_of
from timewheel.inspect.reader import ProgressCallback, each, no_report, used_parts

DEFAULT_SAMPLES = 10_000
"""The error of any share of the delays is then at most 1.4 percentage points, in 95 of 100 samples."""
MAX_SAMPLES = 1_000_000  # a row takes some 200 bytes until the file is written, and a call about a millisecond
IN_FLIGHT = 8  # concurrent calls: each makes a bookie read somewhere on its disk, beside its regular work
MAX_GONE_SHARE = 0.1
"""Largest fraction of the chosen entries that may disappear; beyond it, the rest is no fair sample of the topic."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledEntry:
    """An entry, as a row of a history."""

    # send time by the producer's clock, UTC milliseconds; for a timer that a relay has moved (`hops`), the time of
    # its last move: an envelope does not store the first send
    publish_ms: int
    # due time, from the envelope if the entry has one; `publish_ms` if it is not delayed, or was due before it was
    # sent
    due_ms: int
    size_bytes: int  # size of the payload, uncompressed; for a batch, of all its messages
    key: str | None  # partition key; None without a key, and for a batch
    is_delayed: bool  # True if it has a due time
    is_overdue: bool  # True if it was due before it was sent
    batch_messages: int  # messages in the batch; 0 if it is no batch. Clients put no delayed message into a batch.
    # number of moves by relays; 0 if it is still where its producer sent it. None without an envelope: it was not
    # sent by timewheel, or it is a batch.
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
    """A sample without replacement: every entry had the same chance."""

    topic: str  # the topic as the caller named it
    partitions: int  # number of partitions; 0 for a topic without partitions
    population: int  # number of entries when they were counted
    seed: int  # seed that draws the same places again
    sampled_at_ms: int  # time of the count, UTC milliseconds
    entries: tuple[SampledEntry, ...]  # entries in the order of sending
    unread: int  # chosen entries that had disappeared or were unreadable
    unreadable: int = 0  # those of them that existed but were unreadable
    # chosen entries that the topic's shadow put there, which are no sends and left out: timers that it has brought
    # back, whose originals are in the topic too, and its own messages
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
    on_progress: ProgressCallback = no_report,
) -> Sample:
    """Read random entries of a topic. All if the topic has fewer.

    Raises:
        ValueError: The number of samples is out of range.
        NothingToSample: The topic is missing or empty, or more than a tenth of the entries disappeared too soon.
        AdminError: A call failed for another reason.
    """
    if not 1 <= samples <= MAX_SAMPLES:
        raise ValueError(f"from 1 to {MAX_SAMPLES:,} samples, not {samples}")
    partitions, stored = _stored(admin, topic)
    population = len(stored)
    if not population:
        raise NothingToSample(topic, "it stores no entries: nothing was sent, or all is acknowledged and removed")
    # In the order of the draw, not of the topic, so that calls are spread over partitions and their brokers.
    numbers = draw(population, samples, seed)
    read, unread = inspect(admin, topic, map(stored.place, numbers), len(numbers), _sampled, on_progress)
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


def _stored(admin: AdminClient, topic: str) -> tuple[int, Entries]:
    """Return the number of a topic's partitions, and its stored entries."""
    if topic.startswith("non-persistent://"):
        raise NothingToSample(topic, "a topic that is not persistent stores no messages")
    partitions = admin.topics.partitions(topic)
    if partitions is None:
        raise NothingToSample(topic, no_such_topic(admin, topic))
    parts = dict(used_parts(parts_of(topic, partitions), admin.topics.internal_stats))
    if not parts and not partitions:
        raise NothingToSample(topic, no_such_topic(admin, topic))
    return partitions, Entries((name, run) for name, stats in parts.items() for run in ledger_runs(stats.ledgers))


def inspect(
    admin: AdminClient,
    topic: str,
    places: Iterable[Place],
    chosen: int,
    read: Callable[[Place, StoredEntry], T],
    on_progress: ProgressCallback = no_report,
) -> tuple[list[T], Unread]:
    """Read entries, some of them concurrently.

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
        again, left = _look(admin, topic, refused, chosen, read, no_report)
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
    for done, (place, outcome) in enumerate(each(partial(_outcome, admin), places, IN_FLIGHT), start=1):
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


def _outcome(admin: AdminClient, place: Place) -> StoredEntry | AdminError:
    try:
        return admin.topics.entry(place.topic, place.position)
    except (AdminDenied, AdminUnreachable, OwnerUnreachable):
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


NORMAL_95 = 1.96  # standard errors on either side of an estimate that contain the true value in 95 of 100 samples


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFigures:
    """Counts in the sample, and estimates for the topic with 95 % intervals (estimate plus or minus error)."""

    rows: int  # entries in the sample
    population: int  # entries in the topic
    # entries of the topic per sampled entry. A history made of the sample has the topic's rate divided by this.
    scale: float
    unread: int  # chosen entries that had disappeared or were unreadable
    unreadable: int  # those of them that existed but were unreadable
    delayed: int  # entries with a due time
    undelayed: int  # entries without a due time: they count as due when they were sent
    overdue: int  # delayed entries that were due before they were sent: they count as due when they were sent
    batches: int  # entries with several messages; each counts as a single entry, due when it was sent
    batched_messages: int  # messages in the batches
    timewheel_entries: int  # entries written by timewheel
    of_shadow: int  # entries beside these rows that the topic's shadow put there, and that are no sends
    moved_entries: int  # entries of timewheel that a relay has moved: they have waited in other topics before
    # sampled timers under the broker's own delay that are not due yet and were not sent by timewheel
    native_entries: int
    native_until_ms: int | None  # latest due time of these, UTC milliseconds; None without native timers
    first_publish_ms: int  # earliest send time of the sample, UTC milliseconds
    last_publish_ms: int  # latest send time of the sample, UTC milliseconds
    entries_per_second: float  # rate of the topic over that span; 0 if the span is 0
    delay_mean_ms: float  # mean delay of all entries, undelayed entries included
    delay_mean_error_ms: float  # error of that mean
    delay_p50_ms: int  # delay not exceeded by half of the entries
    delay_p90_ms: int  # delay not exceeded by nine tenths
    delay_p99_ms: int  # delay not exceeded by 99 of 100
    delay_max_ms: int  # longest delay of the sample; rare longer delays may be missing from the sample
    # error of the share of entries up to any delay, for all delays at once (Dvoretzky-Kiefer-Wolfowitz)
    share_error: float
    # gaps of a subscription by the law, all partitions together, if delays are independent of the time of sending and
    # the rate stays the same: rate times half the mean difference of two delays. Delays that follow the clock ("09:00
    # next day") leave far fewer gaps; `timewheel plan` sees that, this figure does not. None if the sample reaches
    # less far back than `delay_p99_ms`: the topic has not filled up yet.
    law_gaps: float | None
    law_gaps_error: float | None  # error of `law_gaps` from the delays; the rate counts as known. None as above.


def figures_of(sample: Sample) -> SampleFigures:
    """Compute the figures of a sample."""
    entries, rows = sample.entries, len(sample.entries)
    delays_ms = sorted(entry.due_ms - entry.publish_ms for entry in entries)
    # The error of a sample without replacement shrinks with its fraction of the whole, to 0 for the whole.
    whole, sends = sample.is_whole, rows * sample.scale
    finite = sqrt(max(0.0, sends - rows) / max(1.0, sends - 1))
    mean_ms = sum(delays_ms) / rows
    half_ms, half_error_ms = half_gini(delays_ms)
    first_ms, last_ms = entries[0].publish_ms, entries[-1].publish_ms
    # The earliest and the latest of n values lie (n - 1) / (n + 1) of the whole span apart, on average.
    span_ms = (last_ms - first_ms) * (1.0 if whole else (rows + 1) / max(1, rows - 1))
    rate_per_ms = sends / span_ms if span_ms else 0.0
    longest_ms = _quantile(delays_ms, 0.99)
    is_steady = shows_full(span_ms, longest_ms)
    delayed = sum(entry.is_delayed for entry in entries)
    native_ms = [entry.due_ms for entry in entries if not entry.is_timewheel and entry.due_ms > sample.sampled_at_ms]
    return SampleFigures(
        rows=rows,
        population=sample.population,
        scale=sample.scale,
        unread=sample.unread,
        unreadable=sample.unreadable,
        delayed=delayed,
        undelayed=rows - delayed,
        overdue=sum(entry.is_overdue for entry in entries),
        batches=sum(entry.batch_messages > 0 for entry in entries),
        batched_messages=sum(entry.batch_messages for entry in entries),
        timewheel_entries=sum(entry.is_timewheel for entry in entries),
        of_shadow=sample.of_shadow,
        moved_entries=sum(bool(entry.hops) for entry in entries),
        native_entries=len(native_ms),
        native_until_ms=max(native_ms, default=None),
        first_publish_ms=first_ms,
        last_publish_ms=last_ms,
        entries_per_second=rate_per_ms * 1_000,
        delay_mean_ms=mean_ms,
        delay_mean_error_ms=NORMAL_95 * finite * _standard_error(delays_ms, mean_ms),
        delay_p50_ms=_quantile(delays_ms, 0.5),
        delay_p90_ms=_quantile(delays_ms, 0.9),
        delay_p99_ms=longest_ms,
        delay_max_ms=delays_ms[-1],
        share_error=0.0 if whole else min(1.0, sqrt(log(2 / 0.05) / (2 * rows))),
        law_gaps=rate_per_ms * half_ms if is_steady else None,
        law_gaps_error=rate_per_ms * NORMAL_95 * finite * half_error_ms if is_steady else None,
    )


def half_gini(ascending: Sequence[float]) -> tuple[float, float]:
    """Return half of the mean difference of two values, which is the integral of F (1 - F), and its standard error. The
    values are independent and ascending; the error is that of the mean over each value's own mean difference.
    """
    count = len(ascending)
    if count < 2:
        return 0.0, 0.0
    total = sum(ascending)
    below = accumulate(ascending, initial=0)
    differences = [
        (value * index - less + (total - less - value) - value * (count - 1 - index)) / (count - 1)
        for index, (value, less) in enumerate(zip(ascending, below, strict=False))
    ]
    mean = sum(differences) / count
    return mean / 2, _standard_error(differences, mean)


def _standard_error(values: Sequence[float], mean: float) -> float:
    """Return the standard error of the mean of independent values; 0 for a single value, whose error is unknown."""
    count = len(values)
    if count < 2:
        return 0.0
    return sqrt(sum((value - mean) ** 2 for value in values) / (count - 1) / count)


def error_of_mean(values: Sequence[float], population: int) -> float:
    """Return the error at 95 % of the mean of values that were drawn from a population without replacement."""
    mean = sum(values) / len(values)
    return NORMAL_95 * _standard_error(values, mean) * sqrt(1 - len(values) / population)


def _quantile(ascending: Sequence[int], share: float) -> int:
    """Return the least value that this share of the values does not exceed."""
    return ascending[max(0, ceil(share * len(ascending)) - 1)]


COLUMNS = ("publish_ms", "due_ms", "size_bytes", "key", "topic")
"""Column names of the planner (`timewheel.spark_planner.history.columns`, which cannot be imported without Spark)."""
NOTE = b"timewheel.sample"  # key of the file's metadata with the description of the sample, as JSON
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTopic:
    """Data of the cluster for a plan of a sampled topic: durable subscriptions of users, and the shadow's state."""

    profile: BrokerProfile
    subscriptions: tuple[str, ...]
    shadow: str | None = None


def sampled_topic(admin: AdminClient, sample: Sample, profile: BrokerProfile) -> SampledTopic:
    """Read the data of the cluster that a plan for a sampled topic needs.

    Raises:
        AdminError: The role may not read the topic's stats.
    """
    found = {
        name
        for _, stats in used_parts(parts_of(sample.topic, sample.partitions), admin.topics.stats)
        for name, own in stats.subscriptions.items()
        if own.is_durable and is_users(name)
    }
    return SampledTopic(profile=profile, subscriptions=tuple(sorted(found)), shadow=shadow_of(admin, sample.topic))


def write_sample(
    sample: Sample,
    figures: SampleFigures,
    path: Path,
    topic: SampledTopic | None = None,
    *,
    reached_by: Sequence[str] = (),
) -> None:
    """Write a row per entry, in the order of sending, and a description of the sample to the file's metadata. An
    existing file is replaced. The planner uses the scale in the description as the growth to plan for
    (`timewheel.spark_planner.history.sampled`).

    Raises:
        ExtraMissing: pyarrow is not installed.
        OSError: The file cannot be written.
    """
    need_extras("a sample's file", "planner")
    import pyarrow as pa  # noqa: PLC0415 - an extra: the admin client does without
    import pyarrow.parquet as pq  # noqa: PLC0415 - as above

    rows = sample.entries
    note = {
        "format": FORMAT,
        "topic": sample.topic,
        "partitions": sample.partitions,
        "seed": sample.seed,
        "sampled_at_ms": sample.sampled_at_ms,
        **asdict(figures),
        **({} if topic is None else asdict(topic)),
        "reached_by": list(reached_by),
    }
    types = (pa.int64(), pa.int64(), pa.int64(), pa.string(), pa.string())
    fields = [pa.field(name, kind, nullable=name == "key") for name, kind in zip(COLUMNS, types, strict=True)]
    values = [
        pa.array([row.publish_ms for row in rows], pa.int64()),
        pa.array([row.due_ms for row in rows], pa.int64()),
        pa.array([row.size_bytes for row in rows], pa.int64()),
        pa.array([row.key for row in rows], pa.string()),
        pa.array([sample.topic] * len(rows), pa.string()),
    ]
    schema = pa.schema(fields, metadata={NOTE: json.dumps(note).encode()})
    pq.write_table(pa.table(values, schema=schema), str(path), compression="zstd")

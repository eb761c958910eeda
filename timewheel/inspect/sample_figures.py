"""Figures of a sample: estimates for its topic, with errors; and its file, a history that `timewheel plan` reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from math import ceil, log, sqrt
from pathlib import Path

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.stats import is_users
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.errors import AdminMissing
from timewheel.core.extras import need_extras
from timewheel.core.history_span import shows_full
from timewheel.core.names import parts_of
from timewheel.inspect.missing_topics import shadow_of
from timewheel.inspect.sample import Sample

NORMAL_95 = 1.96
"""Standard errors on either side of an estimate that contain the true value in 95 of 100 samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFigures:
    """Counts in the sample, and estimates for the topic with 95 % intervals (estimate plus or minus error).

    Args:
        rows: Entries in the sample.
        population: Entries in the topic.
        scale: Entries of the topic per sampled entry. A history made of the sample has the topic's rate divided by
            this.
        unread: Chosen entries that had disappeared or were unreadable.
        unreadable: Those of them that existed but were unreadable.
        delayed: Entries with a due time.
        undelayed: Entries without a due time: they count as due when they were sent.
        overdue: Delayed entries that were due before they were sent: they count as due when they were sent.
        batches: Entries with several messages; each counts as a single entry, due when it was sent.
        batched_messages: Messages in the batches.
        timewheel_entries: Entries written by timewheel.
        native_entries: Sampled timers under the broker's own delay that are not due yet and were not sent by timewheel.
        native_until_ms: Latest due time of these, UTC milliseconds; None without native timers.
        of_shadow: Entries beside these rows that the topic's shadow put there, and that are no sends.
        moved_entries: Entries of timewheel that a relay has moved: they have waited in other topics before.
        first_publish_ms: Earliest send time of the sample, UTC milliseconds.
        last_publish_ms: Latest send time of the sample, UTC milliseconds.
        entries_per_second: Rate of the topic over that span; 0 if the span is 0.
        delay_mean_ms: Mean delay of all entries, undelayed entries included.
        delay_mean_error_ms: Error of that mean.
        delay_p50_ms: Delay not exceeded by half of the entries.
        delay_p90_ms: Delay not exceeded by nine tenths.
        delay_p99_ms: Delay not exceeded by 99 of 100.
        delay_max_ms: Longest delay of the sample; rare longer delays may be missing from the sample.
        share_error: Error of the share of entries up to any delay, for all delays at once (Dvoretzky-Kiefer-Wolfowitz).
        law_gaps: Gaps of a subscription by the law, all partitions together, if delays are independent of the time of
            sending and the rate stays the same: rate times half the mean difference of two delays. Delays that follow
            the clock ("09:00 next day") leave far fewer gaps; `timewheel plan` sees that, this figure does not. None if
            the sample reaches less far back than ``delay_p99_ms``: the topic has not filled up yet.
        law_gaps_error: Error of `law_gaps` from the delays; the rate counts as known. None as above.
    """

    rows: int
    population: int
    scale: float
    unread: int
    unreadable: int
    delayed: int
    undelayed: int
    overdue: int
    batches: int
    batched_messages: int
    timewheel_entries: int
    of_shadow: int
    moved_entries: int
    native_entries: int
    native_until_ms: int | None
    first_publish_ms: int
    last_publish_ms: int
    entries_per_second: float
    delay_mean_ms: float
    delay_mean_error_ms: float
    delay_p50_ms: int
    delay_p90_ms: int
    delay_p99_ms: int
    delay_max_ms: int
    share_error: float
    law_gaps: float | None
    law_gaps_error: float | None


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
    """Return half of the mean difference of two values, which is the integral of F (1 - F), and its standard error.

    Args:
        ascending: Independent values with the distribution function F, sorted.

    Returns:
        The unbiased estimate, and its error: that of the mean over each value's own mean difference to the others.
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


def _quantile(ascending: Sequence[int], share: float) -> int:
    """Return the least value that this share of the values does not exceed."""
    return ascending[max(0, ceil(share * len(ascending)) - 1)]


COLUMNS = ("publish_ms", "due_ms", "size_bytes", "key", "topic")
"""Column names of the planner (`timewheel.spark_planner.history.columns`, which cannot be imported without Spark)."""
NOTE = b"timewheel.sample"
"""Key of the file's metadata with the description of the sample, as JSON."""
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTopic:
    """Data of the cluster that a plan for a sampled topic needs.

    Args:
        profile: Profile of its broker.
        subscriptions: Durable subscriptions of the topic's users.
        shadow: Desired state of its shadow; None without a shadow.
    """

    profile: BrokerProfile
    subscriptions: tuple[str, ...]
    shadow: str | None = None


def sampled_topic(admin: AdminClient, sample: Sample, profile: BrokerProfile) -> SampledTopic:
    """Read the data of the cluster that a plan for a sampled topic needs.

    Raises:
        AdminError: The role may not read the topic's stats.
    """
    found: set[str] = set()
    for part in parts_of(sample.topic, sample.partitions):
        try:
            stats = admin.topics.stats(part)
        except AdminMissing:
            continue  # brokers create a partition at its first use
        found |= {name for name, own in stats.subscriptions.items() if own.is_durable and is_users(name)}
    return SampledTopic(profile=profile, subscriptions=tuple(sorted(found)), shadow=shadow_of(admin, sample.topic))


def write_sample(
    sample: Sample,
    figures: SampleFigures,
    path: Path,
    topic: SampledTopic | None = None,
    *,
    reached_by: Sequence[str] = (),
) -> None:
    """Write a row per entry, in the order of sending, and a description of the sample to the file's metadata.

    Args:
        sample: Sample to write.
        figures: Figures of the sample; written to the metadata in full, with topic, seed and time. The planner uses
            their scale as the growth to plan for (`timewheel.spark_planner.history.sampled`).
        path: Path of the file; an existing file is replaced.
        topic: Data of the cluster that a plan needs; None if the user of the planner gives it.
        reached_by: Options by which a command connects to that cluster, in addition to environment variables.

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

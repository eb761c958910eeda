"""What a sample says about its topic, and how far from the truth it may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, log, sqrt

from timewheel.core.history_span import shows_full
from timewheel.ops.sample import Sample

__all__ = ["SampleFigures", "figures_of", "half_gini"]

NORMAL_95 = 1.96
"""Standard errors on either side of an estimate that hold the truth in 95 of 100 samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFigures:
    """Counts of the sample, and estimates for the topic with 95 % intervals (estimate plus or minus error).

    Args:
        rows: Entries in the sample.
        population: Entries in the topic.
        scale: Entries of the topic behind one of the sample. A history of the sample has the topic's rate divided by
            this.
        unread: Chosen entries that were gone, or could not be read.
        unreadable: Those of them that were there.
        delayed: Entries with a due time.
        undelayed: Those without: they are in the sample, due when they were sent.
        overdue: Delayed ones that were due before they were sent: taken as due when they were sent.
        batches: Entries that hold several messages; each counts as one entry, due when it was sent.
        batched_messages: Messages in them.
        timewheel_entries: Written by timewheel.
        native_entries: Of the sample, timers under the broker's own delay that are not due yet, whoever sent them but
            timewheel.
        native_until_ms: When the last of these is due, UTC milliseconds; None: there are none.
        moved_entries: Of timewheel's, timers that a relay has moved on: they have waited elsewhere before.
        first_publish_ms: Of the sample, UTC milliseconds.
        last_publish_ms: Of the sample, UTC milliseconds.
        entries_per_second: Of the topic, over that span; 0 if it has none.
        delay_mean_ms: Of all entries, those without a delay included.
        delay_mean_error_ms: Of that mean.
        delay_p50_ms: A delay that half of the entries do not exceed.
        delay_p90_ms: The same for nine tenths.
        delay_p99_ms: The same for 99 of 100.
        delay_max_ms: Of the sample; longer ones that are rare may not be in it.
        share_error: Of the share of entries up to any delay, for all delays at once (Dvoretzky-Kiefer-Wolfowitz).
        law_gaps: Gaps of a subscription by the law, all partitions together, if the delays are independent of the
            time of sending and the rate stays as it is: rate times half the mean difference of two delays. Delays that
            follow the clock ("09:00 next day") make far fewer; `timewheel plan` sees that, this figure does not.
            None if the sample goes less far back than ``delay_p99_ms``: such a topic is not in that state yet.
        law_gaps_error: Of that, from the delays; the rate is taken as known. None as above.
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
    """The figures of a sample."""
    entries, rows = sample.entries, len(sample.entries)
    delays_ms = sorted(entry.due_ms - entry.publish_ms for entry in entries)
    # A sample without replacement errs the less, the more of the whole it is; not at all if it is the whole.
    whole = rows == sample.population
    finite = sqrt(max(0, sample.population - rows) / max(1, sample.population - 1))
    mean_ms = sum(delays_ms) / rows
    half_ms, half_error_ms = half_gini(delays_ms)
    first_ms, last_ms = entries[0].publish_ms, entries[-1].publish_ms
    # The earliest and the latest of n lie (n - 1) / (n + 1) of the whole span apart, on average.
    span_ms = (last_ms - first_ms) * (1.0 if whole else (rows + 1) / max(1, rows - 1))
    rate_per_ms = sample.population / span_ms if span_ms else 0.0
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
    """Half of the mean difference of two values, which is the integral of F (1 - F), and its standard error.

    Args:
        ascending: Independent values of one distribution function F.

    Returns:
        The estimate has no bias; its error is that of the mean over each value's own mean difference to the others.
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
    """Of the mean of independent values; 0 for a single one, of which nothing can be said."""
    count = len(values)
    if count < 2:
        return 0.0
    return sqrt(sum((value - mean) ** 2 for value in values) / (count - 1) / count)


def _quantile(ascending: Sequence[int], share: float) -> int:
    """The least value that so many do not exceed."""
    return ascending[max(0, ceil(share * len(ascending)) - 1)]

"""Evaluation: the costs and risks of a plan on a history and a broker, as a value."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from timewheel.core.durations import DAY_MS, MINUTE_MS
from timewheel.core.plan import Plan, Tiered, Wheel

__all__ = ["Evaluation", "Redelivered", "Shadowed"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Redelivered:
    """Entries redelivered to one subscription if all its due topics are unloaded at the same moment.

    Args:
        worst_entries: Entries at the worst of the simulated moments.
        worst_at_ms: That moment, UTC milliseconds.
        mean_entries: Mean over moments spaced evenly between the first send and the last due time.
    """

    worst_entries: float
    worst_at_ms: float
    mean_entries: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadowed:
    """Effects and costs of a shadow, for a plan with an intake to which all messages come natively.

    Args:
        far_ms: Timers due in less stay under the broker's delay; timers due in this time or later are moved.
        moved: Timers that are moved.
        intake_entries: Entries that moves write into the intake; an entry holds many timers.
        extra_writes_per_moved: Entries written for each moved timer besides its own send: into the intake, by hops in
            groups, and into the due topic.
        extra_reads_per_timer: Messages read for each timer besides the reads of consumers: each timer by the mover,
            and for moved timers the copies in the intake and in each holding topic.
        peak_stale_entries: Originals that are acknowledged and not due yet, at the peak: they stay in the broker's
            index of delayed messages until they are due, or until an unload.
        stale_index_bytes: Memory of the index for these.
        lateness_ms: Most lateness of a timer for a plain client: the broker's tick.
    """

    far_ms: int
    moved: float
    intake_entries: float
    extra_writes_per_moved: float
    extra_reads_per_timer: float
    peak_stale_entries: float
    stale_index_bytes: float
    lateness_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Expected figures of a plan; figures about cursors are for one subscription.

    Args:
        plan: The evaluated plan, partitions included.
        profile_name: Name of the broker's profile.
        timers: Timers sent in the history.
        history_ms: Time from the first to the last send.
        gaps_at_ms: Moments of the gap curve, UTC milliseconds.
        gaps: Ranges of all due topics and partitions together at these moments.
        peak_gaps: The greatest of these.
        peak_gaps_at_ms: Moment of the greatest.
        peak_gaps_per_topic: The greatest of a due topic, its partitions together.
        peak_gaps_per_partition: The greatest of a partition, which is compared with the broker's limit.
        gap_limit_ranges: The broker's limit.
        peak_pending: Entries waiting in all due topics together.
        peak_pending_per_partition: The most in a partition of a due topic.
        silence_seconds: Time after an unload until the fullest partition delivers again.
        span_entries: Entries between mark-delete and last acknowledgement, in the widest partition.
        cursor_bytes: Persisted cursor of a partition at its largest, in the profile's format.
        cursor_fits_frame: True if the cursor can be persisted at all.
        redelivered: Redelivery in the profile's format.
        redelivered_as_ranges: Redelivery in the format ranges.
        redelivered_as_bitmap: Redelivery in the format bitmap.
        delayed_index_bytes: Broker memory for delayed entries of all topics at the peak; a lower bound.
        hops_mean: Hops per timer; leaving the intake is a hop.
        hops_p99: 99 % of timers make at most this many hops.
        hops_max: The most hops of any timer in the history.
        step_entries: Timers received by the holding topics of each step, in the order of the plan's steps.
        republished_entries: Hops of all timers, and moves into an intake.
        written_entries: Entries of all sends and hops; a group of hops is a single entry; each send counts as an entry,
            although a busy producer batches sends.
        republished_bytes: Size of ``republished_entries`` times the write quorum.
        written_bytes: Size of all entries, first sends included, times the write quorum.
        held_peak_entries: Entries waiting in holding topics at the peak.
        storage_bytes: Bytes held on disk at the peak, times the write quorum.
        ledgers: Ledgers held at the peak, all topics and partitions.
        relay_hops_per_second: Throughput that a relay needs at the peak (a slot within its head start).
        lateness_seconds: Most lateness added by hops that queue in one relay process of the profile's speed.
        topics: Topics at one time, dead letters included.
        partition_topics: Their partitions; a non-partitioned due topic counts as a partition.
        consumers: Consumers to run: one per due partition and subscription, one per holding partition; and the shadow's
            two for each partition of the intake.
        shadow: Figures of the shadow; None: the plan has no intake.
    """

    plan: Plan
    profile_name: str
    timers: float
    history_ms: float
    gaps_at_ms: Floats = field(compare=False, repr=False)
    gaps: Floats = field(compare=False, repr=False)
    peak_gaps: float
    peak_gaps_at_ms: float
    peak_gaps_per_topic: float
    peak_gaps_per_partition: float
    gap_limit_ranges: int
    peak_pending: float
    peak_pending_per_partition: float
    silence_seconds: float
    span_entries: float
    cursor_bytes: float
    cursor_fits_frame: bool
    redelivered: Redelivered
    redelivered_as_ranges: Redelivered
    redelivered_as_bitmap: Redelivered
    delayed_index_bytes: float
    hops_mean: float
    hops_p99: int
    hops_max: int
    step_entries: tuple[float, ...]
    republished_entries: float
    written_entries: float
    republished_bytes: float
    written_bytes: float
    held_peak_entries: float
    storage_bytes: float
    ledgers: float
    relay_hops_per_second: float
    lateness_seconds: float
    topics: int
    partition_topics: int
    consumers: int
    shadow: Shadowed | None = None

    @property
    def gap_fraction(self) -> float:
        """The fullest partition's share of the broker's gap limit; above 1 an unload loses acknowledgements."""
        return self.peak_gaps_per_partition / max(self.gap_limit_ranges, 1)

    @property
    def timers_per_day(self) -> float:
        """Mean volume over the history; a history shorter than a minute counts as a minute."""
        return self.timers * DAY_MS / max(self.history_ms, MINUTE_MS)

    @property
    def writes_per_timer(self) -> float:
        """Entries written for each timer: its send and its hops, of which relays group many into an entry."""
        return self.written_entries / self.timers if self.timers else 1.0

    @property
    def needs_relay(self) -> bool:
        """True if the plan needs a relay."""
        return isinstance(self.plan.scheme, Tiered | Wheel)

    @property
    def dead_letter_topics(self) -> int:
        """Dead letter topics among `partition_topics`: one for any number of partitions, if the plan has hops or a due
        topic that is not partitioned.
        """
        return int(self.needs_relay or not self.plan.is_partitioned)

    @property
    def topics_of_a_partition(self) -> int:
        """Partition topics per partition, without those of dead letters."""
        return (self.partition_topics - self.dead_letter_topics) // self.plan.own_partitions

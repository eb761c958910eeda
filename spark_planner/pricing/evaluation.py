"""Evaluation: what one plan costs and risks on one history and broker, as a value."""

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
    """Entries delivered again to one subscription when all its due topics are unloaded at one moment.

    Args:
        worst_entries: At the worst of the moments looked at.
        worst_at_ms: That moment, UTC milliseconds.
        mean_entries: At a moment chosen evenly between the first send and the last due time.
    """

    worst_entries: float
    worst_at_ms: float
    mean_entries: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadowed:
    """What a shadow does and costs, where the plan has an intake and all messages come natively.

    Args:
        far_ms: What is due in less stays under the broker's delay; what is due in so long or longer is lifted.
        lifted: Timers that are.
        intake_entries: As which they are written into the intake, many as one.
        extra_writes_per_lifted: Entries written for each of them besides its own send: into the intake, by hops in
            groups, and into the due topic.
        extra_reads_per_timer: Messages read for each timer besides by consumers: each by the lifter, and of what is
            lifted the copy in the intake and in each topic that holds it.
        peak_ghosts: Originals that are acknowledged and not due yet, at the peak: the broker's index of delayed
            messages keeps them until then, or until an unload.
        ghost_bytes: Its memory for these.
        lateness_ms: By which a plain client gets a timer later than it is due at the most: the broker's tick.
    """

    far_ms: int
    lifted: float
    intake_entries: float
    extra_writes_per_lifted: float
    extra_reads_per_timer: float
    peak_ghosts: float
    ghost_bytes: float
    lateness_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Expected numbers, for one subscription where cursors are concerned.

    Args:
        plan: What was evaluated, its partitions included.
        profile_name: The broker's.
        timers: Sent in the history.
        history_ms: From its first to its last send.
        gaps_at_ms: Moments of the gap curve, UTC milliseconds.
        gaps: Ranges of all due topics and partitions together at these moments.
        peak_gaps: The greatest of them.
        peak_gaps_at_ms: When.
        peak_gaps_per_topic: The greatest of one due topic, its partitions together.
        peak_gaps_per_partition: The greatest of one partition: what the broker's limit is held against.
        gap_limit_ranges: That limit.
        peak_pending: Entries waiting in all due topics together.
        peak_pending_per_partition: The most in one partition of a due topic.
        silence_seconds: After an unload of the fullest partition, until it delivers again.
        span_entries: Between mark-delete and last acknowledgement, in the widest partition.
        cursor_bytes: Persisted cursor of a partition at its largest, in the profile's format.
        cursor_fits_frame: Whether it can be written at all.
        redelivered: In the profile's format.
        redelivered_as_ranges: If the format were ranges.
        redelivered_as_bitmap: If it were bitmap.
        delayed_index_bytes: Broker memory for delayed entries of all topics at the peak; a least value.
        hops_mean: Per timer; out of the intake is one.
        hops_p99: 99 % of timers make at most as many.
        hops_max: The most of any timer in the history.
        step_entries: Timers received by the holding topics of each step, in the order of the plan's steps.
        republished_entries: Hops of all timers, and what is lifted into an intake.
        written_entries: Entries of all sends and hops, hops in groups counted as one; a send counts as one, though a
            producer that is busy batches it.
        republished_bytes: Their size times the write quorum.
        written_bytes: Of all entries, first sends included, times the write quorum.
        held_peak_entries: Waiting in holding topics at the peak.
        storage_bytes: Pinned on disk at the peak, times the write quorum.
        ledgers: Pinned at the peak, all topics and partitions.
        relay_hops_per_second: That a relay must manage at the peak (a slot within its head start).
        lateness_seconds: Added at the worst by hops that queue in one relay process of the profile's speed.
        topics: At one time, dead letters included.
        partition_topics: Their partitions; a due topic that is not partitioned counts as one.
        consumers: To run: one per due partition and subscription, one per holding partition; and the shadow's two for
            each partition of the intake.
        shadow: None: the plan has no intake.
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
        """The fullest partition's gaps as a part of the broker's limit; above 1 an unload forgets."""
        return self.peak_gaps_per_partition / max(self.gap_limit_ranges, 1)

    @property
    def timers_per_day(self) -> float:
        """Mean volume over the history; one shorter than a minute counts as a minute."""
        return self.timers * DAY_MS / max(self.history_ms, MINUTE_MS)

    @property
    def writes_per_timer(self) -> float:
        """Entries written for each timer: its send and its hops, of which relays send many as one."""
        return self.written_entries / self.timers if self.timers else 1.0

    @property
    def needs_relay(self) -> bool:
        """Whether a relay has to run for it."""
        return isinstance(self.plan.scheme, Tiered | Wheel)

    @property
    def dead_letter_topics(self) -> int:
        """Of `partition_topics` that of dead letters, of which there is one however many partitions others have: where
        hops are, and beside a due topic that is not partitioned.
        """
        return int(self.needs_relay or not self.plan.is_partitioned)

    @property
    def topics_of_a_partition(self) -> int:
        """How many of the others there are for each partition."""
        return (self.partition_topics - self.dead_letter_topics) // self.plan.own_partitions

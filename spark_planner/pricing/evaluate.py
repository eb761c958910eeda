"""Evaluation of a plan on a history, a broker and a number of partitions: its costs and risks.

A pure function of values that can be pickled: candidates may be spread over processes or over Spark.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from timewheel.core.broker_profile import AckFormat, BrokerProfile
from timewheel.core.durations import DAY_MS, MINUTE_MS
from timewheel.core.grouping import MOVE_LINGER_MS, default_linger_ms
from timewheel.core.plan import Plan, Tiered, Wheel
from timewheel.core.steps import Step, far_ms, steps
from timewheel.core.topology import Topology, topology

from ..history.keys import EVEN, KeyShares
from ..summary.cells import Cells, Floats
from .simulation import Simulation, grouped_entries, into_one, ledger_ends, redelivered_entries, simulation_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Redelivered:
    """Entries redelivered to one subscription if all its due topics are unloaded at the same moment."""

    worst_entries: float  # entries at the worst of the simulated moments
    worst_at_ms: float  # that moment, UTC milliseconds
    mean_entries: float  # mean over moments spaced evenly between the first send and the last due time


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadowed:
    """Effects and costs of a shadow, for a plan with an intake to which all messages come natively."""

    far_ms: int  # timers due in less stay under the broker's delay; timers due in this time or later are moved
    moved: float
    intake_entries: float  # entries that moves write into the intake; an entry holds many timers
    # entries written for each moved timer besides its own send: into the intake, by hops in groups, and into the due
    # topic
    extra_writes_per_moved: float
    # messages read for each timer besides the reads of consumers: each timer by the mover, and for moved timers the
    # copies in the intake and in each holding topic
    extra_reads_per_timer: float
    # originals that are acknowledged and not due yet, at the peak: they stay in the broker's index of delayed messages
    # until they are due, or until an unload
    peak_stale_entries: float
    stale_index_bytes: float  # memory of the index for these
    lateness_ms: int  # most lateness of a timer for a plain client: the broker's tick


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Expected figures of a plan; figures about cursors are for one subscription."""

    plan: Plan  # the evaluated plan, partitions included
    profile_name: str  # name of the broker's profile
    timers: float  # timers sent in the history
    history_ms: float  # time from the first to the last send
    gaps_at_ms: Floats = field(compare=False, repr=False)  # moments of the gap curve, UTC milliseconds
    gaps: Floats = field(compare=False, repr=False)  # ranges of all due topics and partitions together at these moments
    peak_gaps: float  # the greatest of these
    peak_gaps_at_ms: float  # moment of the greatest
    peak_gaps_per_topic: float  # the greatest of a due topic, its partitions together
    peak_gaps_per_partition: float  # the greatest of a partition, which is compared with the broker's limit
    gap_limit_ranges: int  # the broker's limit
    peak_pending: float  # entries waiting in all due topics together
    peak_pending_per_partition: float  # the most in a partition of a due topic
    silence_seconds: float  # time after an unload until the fullest partition delivers again
    span_entries: float  # entries between mark-delete and last acknowledgement, in the widest partition
    cursor_bytes: float  # persisted cursor of a partition at its largest, in the profile's format
    cursor_fits_frame: bool  # True if the cursor can be persisted at all
    redelivered: Redelivered  # redelivery in the profile's format
    redelivered_as_ranges: Redelivered  # redelivery in the format ranges
    redelivered_as_bitmap: Redelivered  # redelivery in the format bitmap
    delayed_index_bytes: float  # broker memory for delayed entries of all topics at the peak; a lower bound
    hops_mean: float  # hops per timer; leaving the intake is a hop
    hops_p99: int  # 99 % of timers make at most this many hops
    hops_max: int  # the most hops of any timer in the history
    # timers received by the holding topics of each step, in the order of the plan's steps
    step_entries: tuple[float, ...]
    republished_entries: float  # hops of all timers, and moves into an intake
    # entries of all sends and hops; a group of hops is a single entry; each send counts as an entry, although a busy
    # producer batches sends
    written_entries: float
    republished_bytes: float  # size of ``republished_entries`` times the write quorum
    written_bytes: float  # size of all entries, first sends included, times the write quorum
    held_peak_entries: float  # entries waiting in holding topics at the peak
    storage_bytes: float  # bytes held on disk at the peak, times the write quorum
    ledgers: float  # ledgers held at the peak, all topics and partitions
    relay_hops_per_second: float  # throughput that a relay needs at the peak (a slot within its head start)
    lateness_seconds: float  # most lateness added by hops that queue in one relay process of the profile's speed
    topics: int  # topics at one time, dead letters included
    partition_topics: int  # their partitions; a non-partitioned due topic counts as a partition
    # consumers to run: one per due partition and subscription, one per holding partition; and the shadow's two for each
    # partition of the intake
    consumers: int
    shadow: Shadowed | None = None  # figures of the shadow; None: the plan has no intake

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
        return isinstance(self.plan.scheme, Tiered | Wheel)

    @property
    def dead_letter_topics(self) -> int:
        """Dead letter topics among `partition_topics`: one if the plan has hops or an unpartitioned due topic."""
        return int(self.needs_relay or not self.plan.is_partitioned)

    @property
    def topics_of_a_partition(self) -> int:
        """Partition topics per partition, without those of dead letters."""
        return (self.partition_topics - self.dead_letter_topics) // self.plan.own_partitions


BITS_PER_BYTE = 8
LEDGER_BITMAP_BYTES = 16
"""Bytes of a persisted bitmap for each ledger besides its bits: the id and two lengths; an estimate."""


def evaluate(
    plan: Plan,
    cells: Cells | tuple[Cells, ...],
    profile: BrokerProfile,
    partitions: int | None = None,
    growth: float = 1.0,
    keys: KeyShares = EVEN,
) -> Evaluation:
    """Predict the effects of a plan on a history.

    Args:
        plan: Any valid plan.
        cells: Cells of a topic's history; in parts the coarsest come first.
        profile: The broker.
        partitions: Number of partitions; None: the plan's own.
        growth: Volume, as a multiple of the history's volume.
        keys: Distribution of keys over partitions.

    Returns:
        The predicted figures, see `Evaluation`.
    """
    simulation = simulation_of(plan, cells, growth, keys=keys)
    return price(simulation, profile, plan.own_partitions if partitions is None else partitions)


def price(simulation: Simulation, profile: BrokerProfile, partitions: int) -> Evaluation:
    """Evaluate a simulation for a broker and a number of partitions; cheap compared with the simulation itself."""
    # Gaps, waiting timers and silence are those of the fullest partition, by the simulation's keys; all other figures
    # assume an even spread.
    plan = simulation.plan.with_partitions(partitions)
    entry_bytes = simulation.entry_bytes + profile.entry_overhead_bytes
    ends = _ledger_ends(simulation, profile, partitions)
    spans, due_entries, due_ledgers = _positions(simulation, ends, partitions)
    as_ranges = _redelivered(simulation, profile, ends, partitions, "ranges")
    as_bitmap = _redelivered(simulation, profile, ends, partitions, "bitmap")
    held_entries, held_ledgers = _held_storage(simulation, profile, partitions, entry_bytes)
    hop_counts, timers_of = simulation.hops
    republished = float((hop_counts * timers_of).sum())
    copies = profile.write_quorum
    written, moves = _written_entries(simulation, partitions, entry_bytes)
    shadow = _shadowed(simulation, profile, republished, written, moves) if plan.intake else None
    hops_mean = republished / simulation.timers if simulation.timers else 0.0
    republished += simulation.moved  # into the intake, which is no hop
    fullest = simulation.keys.fullest(partitions)
    gaps_per_partition = simulation.gaps.peak_topic_gaps * fullest
    pending_per_partition = simulation.peak_topic_pending * fullest
    cursor_bytes = _cursor_bytes(profile, gaps_per_partition, spans, due_ledgers / partitions)
    broker_holds = isinstance(plan.scheme, Tiered) and plan.scheme.hold == "broker"
    indexed = simulation.peak_pending + (simulation.relay.held_peak_entries if broker_holds else 0.0)
    shape = topology(plan, int(simulation.last_ms))
    return Evaluation(
        plan=plan,
        profile_name=profile.name,
        timers=simulation.timers,
        history_ms=max(simulation.last_ms - simulation.first_ms, 0.0),
        gaps_at_ms=simulation.gaps.at_ms,
        gaps=simulation.gaps.gaps,
        peak_gaps=simulation.gaps.peak_gaps,
        peak_gaps_at_ms=simulation.gaps.peak_at_ms,
        peak_gaps_per_topic=simulation.gaps.peak_topic_gaps,
        peak_gaps_per_partition=gaps_per_partition,
        gap_limit_ranges=profile.gap_limit_ranges,
        peak_pending=simulation.peak_pending,
        peak_pending_per_partition=pending_per_partition,
        silence_seconds=pending_per_partition * profile.silence_us_per_pending / 1e6,
        span_entries=spans,
        cursor_bytes=cursor_bytes,
        cursor_fits_frame=cursor_bytes <= profile.frame_limit_bytes,
        redelivered=as_bitmap if profile.ack_format == "bitmap" else as_ranges,
        redelivered_as_ranges=as_ranges,
        redelivered_as_bitmap=as_bitmap,
        delayed_index_bytes=indexed * profile.index_bytes_per_pending
        + simulation.peak_stale_entries * profile.stale_index_bytes,
        hops_mean=hops_mean,
        hops_p99=_quantile(hop_counts, timers_of, 0.99),
        hops_max=int(hop_counts.max(initial=0)),
        step_entries=tuple(float(entries) for entries in simulation.step_entries[:-1]),
        republished_entries=republished,
        written_entries=written,
        republished_bytes=republished * entry_bytes * copies,
        written_bytes=(simulation.timers + republished) * entry_bytes * copies,
        held_peak_entries=simulation.relay.held_peak_entries,
        storage_bytes=(due_entries + held_entries) * entry_bytes * copies,
        ledgers=due_ledgers + held_ledgers,
        relay_hops_per_second=max(simulation.relay.peak_hops_per_second, simulation.relay.slot_hops_per_second),
        lateness_seconds=_lateness_seconds(simulation, profile, steps(plan)),
        topics=len(shape.topics),
        partition_topics=sum(len(topic.parts) for topic in shape.topics),
        consumers=_consumers(plan, shape),
        shadow=shadow,
    )


def redelivered_at_moments(
    simulation: Simulation,
    profile: BrokerProfile,
    partitions: int,
    ack_format: AckFormat,
    ends: list[Floats] | None = None,
) -> Floats:
    """Return the entries redelivered to a subscription for each moment of the simulation, all due topics unloaded."""
    if ends is None:
        ends = _ledger_ends(simulation, profile, partitions)
    return np.array(
        [
            sum(
                redelivered_entries(cursor, profile, ends[line], partitions, ack_format)
                for line, cursor in zip(moment.lines, moment.cursors, strict=True)
            )
            for moment in simulation.moments
        ],
        np.float64,
    )


def _ledger_ends(simulation: Simulation, profile: BrokerProfile, partitions: int) -> list[Floats]:
    # Most lines of a fine calendar are part of no moment: their ledgers are not needed.
    seen = {line for moment in simulation.moments for line in moment.lines}
    entry_bytes = simulation.entry_bytes + profile.entry_overhead_bytes
    return [
        ledger_ends(*facts, profile, partitions, entry_bytes) if line in seen else np.zeros(0)
        for line, facts in enumerate(simulation.due_lines)
    ]


def _redelivered(
    simulation: Simulation, profile: BrokerProfile, ends: list[Floats], partitions: int, ack_format: AckFormat
) -> Redelivered:
    entries = redelivered_at_moments(simulation, profile, partitions, ack_format, ends)
    even = entries[np.array([moment.even for moment in simulation.moments], np.bool_)]
    worst = int(entries.argmax()) if entries.any() else None
    return Redelivered(
        worst_entries=0.0 if worst is None else float(entries[worst]),
        worst_at_ms=0.0 if worst is None else simulation.moments[worst].at_ms,
        mean_entries=float(even.mean()) if len(even) else 0.0,
    )


def _positions(simulation: Simulation, ends: list[Floats], partitions: int) -> tuple[float, float, float]:
    """Return the maxima over the moments: (span of a partition, entries from a mark-delete's ledger on, ledgers)."""
    spans, stored, ledgers = 0.0, 0.0, 0.0
    for moment in simulation.moments:
        stored_now, ledgers_now = 0.0, 0.0
        for line, cursor in zip(moment.lines, moment.cursors, strict=True):
            spans = max(spans, cursor.span_entries(partitions) / partitions)
            head, marked = float(cursor.entries.sum()), cursor.mark_delete_entries(partitions)
            first = int(np.searchsorted(ends[line], marked, "right"))
            begin = float(ends[line][first - 1]) if first else 0.0
            stored_now += head - begin
            ledgers_now += (int(np.searchsorted(ends[line], head, "left")) - first + 1) * partitions
        stored, ledgers = max(stored, stored_now), max(ledgers, ledgers_now)
    # Between the moments at least the waiting entries are stored.
    return spans, max(stored, simulation.peak_pending), max(ledgers, float(partitions))


def _held_storage(
    simulation: Simulation, profile: BrokerProfile, partitions: int, entry_bytes: float
) -> tuple[float, float]:
    """Return (entries, ledgers) on disk in holding topics at the peak: an entry stays as long as its ledger."""
    relay = simulation.relay
    full = profile.full_ledger_entries(entry_bytes)
    entries, ledgers = np.zeros(len(relay.at_ms)), 0.0
    for entered, left, longest_ms in zip(relay.entered, relay.left, relay.longest_ms, strict=True):
        if not longest_ms:
            continue
        moving_ms = relay.at_ms[(entered > 0) & (entered < entered[-1])]
        per_ms = float(entered[-1]) / max(float(np.ptp(moving_ms)) if len(moving_ms) else 0.0, 1.0) / partitions
        age_ms = min(max(full / per_ms, profile.ledger_min_age_ms), profile.ledger_max_age_ms)
        entries += entered - np.interp(relay.at_ms - age_ms, relay.at_ms, left)
        ledgers += (longest_ms / age_ms + 1.0) * partitions
    return float(entries.max(initial=0.0)), ledgers


def _cursor_bytes(profile: BrokerProfile, gaps: float, span_entries: float, ledgers: float) -> float:
    """Return the bytes of a partition's persisted cursor; few ranges are written as ranges in either format."""
    if profile.ack_format == "ranges" or gaps <= profile.metadata_store_limit_ranges:
        return min(gaps, profile.gap_limit_ranges + 1.0) * profile.bytes_per_range
    return span_entries / BITS_PER_BYTE + ledgers * LEDGER_BITMAP_BYTES


def _lateness_seconds(simulation: Simulation, profile: BrokerProfile, table: tuple[Step, ...]) -> float:
    """Return the lateness of a relay that cannot keep up: the time in the queue beyond the guard or the head start."""
    relay, rate = simulation.relay, float(profile.relay_hops_per_second)
    late = 0.0
    if len(relay.hops):
        ahead = relay.hops - rate * (relay.at_ms - relay.at_ms[0]) / 1_000
        queue = float((ahead - np.minimum.accumulate(ahead)).max())
        late = queue / rate - simulation.plan.guard_ms / 1_000
    for step, entries in zip(table, relay.slot_entries, strict=True):
        if entries:
            late = max(late, entries / rate - step.headstart_ms / 1_000)
    return max(late, 0.0)


def _written_entries(simulation: Simulation, partitions: int, entry_bytes: float) -> tuple[float, float]:
    """Return (all entries, those written into the journal)."""
    hop_counts, timers_of = simulation.hops
    if not simulation.hop_rates:
        return float(simulation.timers + (hop_counts * timers_of).sum()), 0.0
    # The last hop of each timer goes into a due topic, and is not grouped.
    grouped = partial(grouped_entries, partitions=partitions, entry_bytes=entry_bytes)
    linger_ms = default_linger_ms(simulation.plan.guard_ms)
    hops = grouped(simulation.hop_rates, linger_ms=linger_ms).sum()
    written = float(simulation.timers + timers_of[hop_counts > 0].sum() + hops)
    if simulation.move_rates is None:
        return written, 0.0
    written += float(grouped((simulation.move_rates,), linger_ms=linger_ms).sum())
    moved = float(grouped((into_one(simulation.move_rates),), linger_ms=MOVE_LINGER_MS).sum())
    return written + moved, moved


def _shadowed(simulation: Simulation, profile: BrokerProfile, hops: float, written: float, moves: float) -> Shadowed:
    """Build the figures of a shadow from the messages that relays publish again, all entries, and the journal's."""
    timers, moved, stale = simulation.timers, simulation.moved, simulation.peak_stale_entries
    return Shadowed(
        far_ms=far_ms(simulation.plan),
        moved=moved,
        intake_entries=moves,
        extra_writes_per_moved=(written - timers) * (1.0 / moved) if moved else 0.0,
        # Each hop reads a message; the copy in the due topic is read in place of the original.
        extra_reads_per_timer=(timers + hops) / timers if timers else 0.0,
        peak_stale_entries=stale,
        stale_index_bytes=stale * profile.stale_index_bytes,
        lateness_ms=profile.tick_ms,
    )


def _consumers(plan: Plan, shape: Topology) -> int:
    due = sum(len(topic.parts) for topic in shape.topics if topic.role == "due") * len(plan.subscriptions)
    held = sum(len(topic.parts) for topic in shape.topics if topic.role in ("tier", "slot"))
    held += sum(len(topic.parts) * len(topic.subscriptions) for topic in shape.topics if topic.is_entrance)
    return due + (held if isinstance(plan.scheme, Tiered | Wheel) else 0)


def _quantile(values: NDArray[np.int64], weights: Floats, share: float) -> int:
    if not len(values):
        return 0
    reached = np.cumsum(weights)
    return int(values[min(int(np.searchsorted(reached, share * reached[-1])), len(values) - 1)])

"""Course: the simulation of a plan over time, independent of the broker and the number of partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from timewheel.core.plan import Plan
from timewheel.core.steps import Step, far_ms, longest_due_stay_ms, steps
from timewheel.spark_planner.history.keys import EVEN, KeyShares
from timewheel.spark_planner.pricing.bursts import with_bursts_apart
from timewheel.spark_planner.pricing.flow import DIRECT, Flow, Stays, flow_of
from timewheel.spark_planner.pricing.gap_curve import GapCurve, Rows, gap_curve, rows_of
from timewheel.spark_planner.pricing.grouping import HopRates, hop_rates, rates_of_intake
from timewheel.spark_planner.pricing.ramps import risen, risen_evenly
from timewheel.spark_planner.pricing.redelivery import Cursor
from timewheel.spark_planner.pricing.resolution import CLOSE, Resolution
from timewheel.spark_planner.summary.cells import LEVELS, Cells

__all__ = ["Moment", "Relay", "Simulation", "at_resolution", "due_line", "simulation_of"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

SLOTS_PER_STAY = 64
"""Publish slots within the longest stay in a due topic: finer cells give no more information."""
SLOTS_PER_INTERVAL = 16
LEAST_ENTRIES = 0.01
"""Expected entries below which a topic counts as untouched, or as done."""
RELAY_BIN_MS = 15_000.0
RELAY_PEAK_MS = 60_000.0
"""Length of the busiest minute: a relay that is behind for a shorter time stays within every guard in use. Its
beginning is found to a quarter of this length.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moment:
    """The cursors, at one moment, of the due topics that have an acknowledged entry behind an unacknowledged entry.

    Args:
        at_ms: UTC milliseconds.
        even: True for the evenly chosen moments, from which the mean is computed.
        lines: For each such topic its index in `Simulation.due_lines`.
        cursors: Cursors of these topics.
    """

    at_ms: float
    even: bool
    lines: tuple[int, ...]
    cursors: tuple[Cursor, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Relay:
    """The load of a relay by the holding topics.

    Args:
        held_peak_entries: Entries in holding topics at the peak, all steps together.
        peak_hops_per_second: Hops out of tiers and the intake, in the busiest minute.
        slot_hops_per_second: Hops out of a slot, to be done within its head start.
        slot_entries: The fullest slot of each step; 0 for tiers.
        at_ms: Moments `RELAY_BIN_MS` apart (more in a long history), from the first entry to the last release.
        hops: Cumulative hops out of tiers and the intake at each moment.
        entered: For each step, the cumulative timers that entered.
        left: For each step, the cumulative timers that left.
        longest_ms: The longest stay of each step.
    """

    held_peak_entries: float
    peak_hops_per_second: float
    slot_hops_per_second: float
    slot_entries: tuple[float, ...]
    at_ms: Floats
    hops: Floats
    entered: tuple[Floats, ...]
    left: tuple[Floats, ...]
    longest_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Simulation:
    """The simulation of a plan on a history.

    Args:
        plan: The plan; its partitions do not matter here.
        timers: Timers sent.
        entry_bytes: Mean payload.
        first_ms: First send.
        last_ms: Last send.
        gaps: Gaps over time.
        peak_pending: Entries in all due topics together, at the peak.
        peak_topic_pending: Entries in a due topic, at the peak.
        moments: Cursors at some moments.
        due_lines: For each due topic the entries of its runs and the arrival time of each run's last entry, in position
            order.
        hops: (number of hops, timers), ascending.
        step_entries: Entries received by each step, a timer counted at each arrival.
        hop_rates: Rates of the hops that relays send in groups, by source step; empty if hops are not grouped.
        move_rates: Rates of the hops out of the intake, and so of the moves into it; None: the plan has no intake.
        moved: Timers that a shadow moves.
        peak_stale_entries: Moved timers that are not due yet, at the peak: they stay in a broker's index of delayed
            messages.
        relay: Load of the relay.
        keys: Distribution of keys over partitions.
    """

    plan: Plan
    timers: float
    entry_bytes: float
    first_ms: float
    last_ms: float
    gaps: GapCurve
    peak_pending: float
    peak_topic_pending: float
    moments: tuple[Moment, ...]
    due_lines: tuple[tuple[Floats, Floats], ...]
    hops: tuple[Integers, Floats]
    step_entries: Floats
    hop_rates: tuple[HopRates, ...]
    move_rates: HopRates | None
    moved: float
    peak_stale_entries: float
    relay: Relay
    keys: KeyShares


def at_resolution(plan: Plan, *cells: Cells) -> tuple[Cells, ...]:
    """Coarsen the cells as far as a plan allows: finer cells cost time, and cells of a single timer hide a fixed delay.

    Returns:
        The coarse cells first, then the finer cells of bursts.
    """
    table = steps(plan)
    slots_ms = [step.slot_ms for step in table if step.kind == "slot"]
    interval_ms = min(slots_ms, default=table[-1].interval_ms)
    longest_ms = max(int(part.delay_max_ms.max(initial=0)) for part in cells)
    stay_ms = min(far_ms(plan) if plan.intake else longest_due_stay_ms(plan), longest_ms)
    finest_ms = interval_ms / SLOTS_PER_INTERVAL if interval_ms else stay_ms / SLOTS_PER_STAY
    bits = LEVELS[0].bits
    fitting = [index for index, level in enumerate(LEVELS) if level.slot_ms <= finest_ms and level.bits == bits]
    found = (with_bursts_apart(part, max(part.level, *fitting, 0)) for part in cells)
    return tuple(part for parts in found for part in parts)


def simulation_of(
    plan: Plan,
    cells: Cells | tuple[Cells, ...],
    growth: float = 1.0,
    moments_ms: Sequence[float] = (),
    resolution: Resolution = CLOSE,
    keys: KeyShares = EVEN,
) -> Simulation:
    """Simulate the cells under a plan.

    Args:
        plan: Any plan.
        cells: Cells of one topic, also in parts: the coarsest first.
        growth: Volume, as a multiple of the history's volume.
        moments_ms: Additional moments for `Simulation.moments`, UTC milliseconds; they come last, in this order.
        resolution: Bounds on the work.
        keys: Distribution of keys over partitions.
    """
    given = (cells,) if isinstance(cells, Cells) else cells
    parts = at_resolution(plan, *given)
    flow = flow_of(plan, *parts, resolution=resolution)
    rows = rows_of(flow, *(part.slot_ms for part in parts), resolution=resolution)
    flow = _grown(flow, growth)
    rows = replace(rows, count=rows.count * growth)
    curve = gap_curve(rows, resolution)
    pending, topic_pending = _pending_peaks(flow, resolution.pending_moments)
    order = _position_order(rows)
    sent = np.where(flow.acked_originals, 0.0, flow.pieces.count)
    timers = float(sent.sum())
    numbers, index = np.unique(flow.hops, return_inverse=True)
    return Simulation(
        plan=plan,
        timers=timers,
        entry_bytes=sum(float(part.size_bytes.sum()) for part in given) / max(sum(part.timers for part in given), 1),
        first_ms=min((float(part.publish_min_ms.min()) for part in given if len(part)), default=0.0),
        last_ms=max((float(part.publish_max_ms.max()) for part in given if len(part)), default=0.0),
        gaps=curve,
        peak_pending=pending,
        peak_topic_pending=topic_pending,
        moments=(
            *_moments(rows, curve, order, resolution),
            *(_moment(rows, order, float(at_ms), even=False) for at_ms in moments_ms),
        ),
        due_lines=tuple(due_line(rows, order, line) for line in range(len(rows.topics))),
        hops=(numbers, np.bincount(index, sent, len(numbers)).astype(np.float64)),
        step_entries=flow.step_entries,
        hop_rates=hop_rates(steps(plan), flow.stays, resolution) if plan.holds_in_relay else (),
        move_rates=rates_of_intake(flow.stays, resolution) if plan.intake else None,
        moved=float(flow.intake.count.sum()),
        peak_stale_entries=_peak_stale_entries(flow, resolution.pending_moments) if plan.intake else 0.0,
        relay=_relay(plan, steps(plan), flow.stays, flow.intake, resolution.relay_bins),
        keys=keys,
    )


def due_line(rows: Rows, order: Integers, line: int) -> tuple[Floats, Floats]:
    """Return the runs of a due topic in position order: (entries, arrival time of the last entry)."""
    mine = order[rows.topic[order] == line]
    return rows.count[mine], np.maximum.accumulate(rows.arrived_ms[mine])


def _grown(flow: Flow, growth: float) -> Flow:
    if growth == 1.0:
        return flow
    return replace(
        flow,
        pieces=replace(flow.pieces, count=flow.pieces.count * growth),
        step_entries=flow.step_entries * growth,
        stays=tuple(replace(stays, count=stays.count * growth) for stays in flow.stays),
        intake=replace(flow.intake, count=flow.intake.count * growth),
    )


def _position_order(rows: Rows) -> Integers:
    return np.lexsort((rows.first_ms, rows.arrives_ms, rows.topic))


def _pending_peaks(flow: Flow, moments: int) -> tuple[float, float]:
    pieces = flow.pieces
    if not len(pieces):
        return 0.0, 0.0
    released = flow.group != DIRECT
    arrives_ms = np.where(released, flow.arrival_ms, pieces.first_ms + flow.stay_ms)
    arrived_ms = np.where(released, flow.arrival_ms, pieces.last_ms + flow.stay_ms)
    offset_first = np.where(pieces.fixed, pieces.first_ms, 0.0)
    offset_last = np.where(pieces.fixed, pieces.last_ms, 0.0)
    due_low_ms, due_high_ms = pieces.low_ms + offset_first, pieces.high_ms + offset_last
    even_ms = np.linspace(float(arrives_ms.min()), float(due_high_ms.max()), moments)
    # A burst is fullest at the arrival of its last timer.
    order = np.argsort(arrived_ms)
    mass = np.cumsum(pieces.count[order])
    marks = np.searchsorted(mass, np.linspace(0, mass[-1], moments // 4 + 1)[:-1], "left")
    at_ms = np.unique(np.concatenate([even_ms, arrived_ms[order][marks], arrived_ms[order][marks] + 1.0]))
    topics, line = np.unique(flow.topic, return_inverse=True)
    waiting = risen(at_ms, arrives_ms, arrived_ms, pieces.count, line, len(topics))
    waiting -= risen(at_ms, due_low_ms, np.maximum(due_high_ms, due_low_ms), pieces.count, line, len(topics))
    return float(waiting.sum(axis=0).max()), float(waiting.max())


def _peak_stale_entries(flow: Flow, moments: int) -> float:
    """Return the peak of the moved timers that are not due yet, counted from their sends."""
    copies = flow.pieces.take(np.flatnonzero((flow.hops > 0) & ~flow.acked_originals))
    if not len(copies):
        return 0.0
    due_low_ms = copies.low_ms + np.where(copies.fixed, copies.first_ms, 0.0)
    due_high_ms = np.maximum(copies.high_ms + np.where(copies.fixed, copies.last_ms, 0.0), due_low_ms)
    # The peak is at the last send of a burst.
    order = np.argsort(copies.last_ms)
    mass = np.cumsum(copies.count[order])
    marks = np.searchsorted(mass, np.linspace(0, mass[-1], moments // 4 + 1)[:-1], "left")
    even_ms = np.linspace(float(copies.first_ms.min()), float(due_high_ms.max()), moments)
    at_ms = np.unique(np.concatenate([even_ms, copies.last_ms[order][marks]]))
    line = np.zeros(len(copies), np.int64)
    waiting = risen(at_ms, copies.first_ms, copies.last_ms, copies.count, line, 1)
    waiting -= risen(at_ms, due_low_ms, due_high_ms, copies.count, line, 1)
    return float(waiting.max())


def _moments(rows: Rows, curve: GapCurve, order: Integers, resolution: Resolution) -> list[Moment]:
    if not len(rows):
        return []
    even_ms = np.linspace(float(rows.arrives_ms.min()), float(rows.acks_until_ms.max()), resolution.unloads + 2)[1:-1]
    highest = curve.at_ms[np.argsort(curve.gaps)[::-1]]
    apart_ms = float(even_ms[1] - even_ms[0]) / 4 if len(even_ms) > 1 else 1.0
    chosen: list[float] = []
    for at_ms in highest[: 64 * resolution.peak_unloads]:
        if len(chosen) < resolution.peak_unloads and all(abs(at_ms - other) > apart_ms for other in chosen):
            chosen.append(float(at_ms))
    found = [_moment(rows, order, float(at_ms), even=True) for at_ms in even_ms]
    return found + [_moment(rows, order, at_ms, even=False) for at_ms in chosen]


def _moment(rows: Rows, order: Integers, at_ms: float, *, even: bool) -> Moment:
    here = order[rows.arrives_ms[order] <= at_ms]
    length_ms = np.maximum(rows.arrived_ms[here] - rows.arrives_ms[here], 1.0)
    arrived = np.clip((at_ms - rows.arrives_ms[here]) / length_ms, 0.0, 1.0)
    arrived[rows.arrived_ms[here] <= at_ms] = 1.0
    entries = rows.count[here] * arrived
    acknowledged, gaps = np.where(rows.acks_until_ms[here] <= at_ms, entries, 0.0), np.zeros(len(here))
    mixed = np.flatnonzero((rows.acks_from_ms[here] < at_ms) & (rows.acks_until_ms[here] > at_ms))
    some_done, gaps[mixed] = rows.acknowledged(here[mixed], np.full(len(mixed), at_ms))
    acknowledged[mixed] = np.minimum(some_done, entries[mixed])
    line = rows.topic[here]
    some = np.bincount(line, acknowledged, len(rows.topics)) > LEAST_ENTRIES
    opened = np.bincount(line, entries - acknowledged, len(rows.topics)) > LEAST_ENTRIES
    lines = np.flatnonzero(some & opened)
    cursors: list[Cursor] = []
    for number in lines:
        mine = line == number
        cursors.append(_cursor(entries[mine], acknowledged[mine], gaps[mine]))
    return Moment(at_ms=at_ms, even=even, lines=tuple(int(number) for number in lines), cursors=tuple(cursors))


def _cursor(entries: Floats, acknowledged: Floats, gaps: Floats) -> Cursor:
    """Build a cursor in which all runs certainly before the mark-delete position are merged into one."""
    open_ = np.flatnonzero(acknowledged < entries)
    first = int(open_[0]) if len(open_) else 0
    done = float(entries[:first].sum())
    return Cursor(
        entries=np.r_[done, entries[first:]],
        acknowledged=np.r_[done, acknowledged[first:]],
        gaps=np.r_[0.0, gaps[first:]],
    )


def _relay(plan: Plan, table: tuple[Step, ...], all_stays: tuple[Stays, ...], intake: Stays, bins: int) -> Relay:
    slot_rate = 0.0
    slot_entries: list[float] = []
    for step, stays in zip(table, all_stays, strict=True):
        fullest = 0.0
        if step.kind == "slot" and len(stays.count):
            _, release = np.unique(stays.released_ms, return_inverse=True)
            fullest = float(np.bincount(release, stays.count).max())
            slot_rate = max(slot_rate, fullest * 1_000 / max(step.headstart_ms, plan.tick_ms))
        slot_entries.append(fullest)
    at_ms = _relay_moments([stays for stays in (*all_stays, intake) if len(stays.count)], bins)
    entered = tuple(_passed(stays, stays.entered_ms, at_ms) for stays in all_stays)
    left = tuple(_passed(stays, stays.released_ms, at_ms) for stays in all_stays)
    through = _passed(intake, intake.released_ms, at_ms)
    hops = sum((out for step, out in zip(table, left, strict=True) if step.kind == "tier"), through)
    rate = _busiest_per_second(at_ms, hops)
    return Relay(
        held_peak_entries=float((np.sum(entered, axis=0) - np.sum(left, axis=0)).max(initial=0.0)),
        peak_hops_per_second=rate,
        slot_hops_per_second=slot_rate,
        slot_entries=tuple(slot_entries),
        at_ms=at_ms,
        hops=hops,
        entered=entered,
        left=left,
        longest_ms=tuple(float((stays.released_ms - stays.entered_ms).max(initial=0.0)) for stays in all_stays),
    )


def _relay_moments(all_stays: list[Stays], bins: int) -> Floats:
    """Return evenly spaced moments, from a bin before the first stay to a bin after the last."""
    if not all_stays:
        return np.zeros(0)
    first_ms = min(float((stays.entered_ms - stays.half_ms).min()) for stays in all_stays)
    last_ms = max(float((stays.released_ms + stays.half_ms).max()) for stays in all_stays)
    bin_ms = max(RELAY_BIN_MS, (last_ms - first_ms) / bins)
    return np.arange(first_ms - bin_ms, last_ms + 2 * bin_ms, bin_ms)


def _busiest_per_second(at_ms: Floats, hops: Floats) -> float:
    if not len(at_ms):
        return 0.0
    bin_ms = float(at_ms[1] - at_ms[0])
    bins = min(max(round(RELAY_PEAK_MS / bin_ms), 1), len(hops) - 1)
    return float((hops[bins:] - hops[:-bins]).max() * 1_000 / (bins * bin_ms))


def _passed(stays: Stays, middle_ms: Floats, at_ms: Floats) -> Floats:
    """Return the cumulative timers whose stay has begun or ended, by the middle of the beginning or the end."""
    if not len(stays.count):
        return np.zeros(len(at_ms))
    return risen_evenly(
        float(at_ms[0]),
        float(at_ms[1] - at_ms[0]),
        len(at_ms),
        middle_ms - stays.half_ms,
        middle_ms + stays.half_ms,
        stays.count,
    )

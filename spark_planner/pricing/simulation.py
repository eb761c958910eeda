"""Simulation of a plan over time, independent of the broker and the number of partitions.

Bursts. Most plans are priced from slots much longer than a minute. A campaign of a minute would be spread over such a
slot, together with all other timers of the slot, and its gaps would be spread as well. So slots that full stay apart.

Groups of hops (broker-facts: batched-hops). A group of hops begins with its first hop and is sent a linger L later, and
all groups of a source partition are sent together. With r hops a second out of a source, of which a share p goes to a
destination, a source partition sends ``1 / (L + 1 / r)`` such rounds a second. A round has a group for that destination
unless neither its first hop nor any other hop goes there: with a probability of ``1 - (1 - p) exp(-p r L)``, for hops
at random times. A group has a limit of messages and of bytes.

Rates are those of the pieces, even within a piece. For pieces that are single moments they are rates per minute, but of
at least a part of `Resolution.hop_places`. A second that stands out of its minute is a burst, and so is a slot's
release. Bursts shorter than a piece need fewer entries than computed here.

Redelivery. A cursor is persisted in one of two formats, each with the same limit (`BrokerProfile.gap_limit_ranges`):

- ranges: the first ``limit + 1`` ranges are persisted (the broker checks the list after an addition, so the limit is
  exceeded by one); every acknowledged entry past them is redelivered.
- bitmap: whole ledgers are persisted, from the oldest on. 4.x persists a ledger if the acknowledged entries of the
  ledgers **before** it are within the limit; the code towards 5.0 if the entries including the ledger are within the
  limit, and it falls back to ranges if no ledger is. A cursor of few ranges is written as ranges in any case.

Ranges end with their ledger, so small ledgers make more of them. Read in the classes of 4.0.7 and 4.2.4
(`OpenLongPairRangeSet.toRanges`, `ManagedCursorImpl`), and confirmed on brokers of both versions, entry for entry, in
both formats: tests/broker/test_planner_unload.py. The later rule is only read: there is no release to test it on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from timewheel.core.broker_profile import AckFormat, BrokerProfile
from timewheel.core.durations import MINUTE_MS
from timewheel.core.grouping import GROUP_BYTES, GROUP_MESSAGES
from timewheel.core.plan import Plan
from timewheel.core.steps import Step, far_ms, longest_due_stay_ms, steps

from ..history.keys import EVEN, KeyShares
from ..summary.cells import LEVELS, Cells, Flags, Floats, Integers
from .flow import CLOSE, DIRECT, NO_STAYS, SENT, Flow, Pieces, Resolution, Stays, flow_of
from .gap_curve import GapCurve, Rows, gap_curve, risen, risen_evenly, rows_of

NATIVE = Plan(due_topic="persistent://public/default/any", subscriptions=("any",))
"""Native delays on one partition, for figures that do not depend on names."""

PARTS = 16  # parts of a coarse slot that are checked for bursts
FULL_SHARE = 0.25  # a part with this share of its slot is a burst: four times its share under even sending
LEAST_SHARE = 1 / 2_000
"""Least share of all timers: smaller bursts do not decide a peak, and at most 2,000 are as large."""
LEAST_TIMERS = 256  # fewer timers are chance and not a burst
MAX_BURST_CELLS = 10_000


def with_bursts_apart(cells: Cells, level: int) -> tuple[Cells, ...]:
    """Split the cells into cells of a coarser level and finer cells of bursts."""
    is_burst = _bursts(cells, level)
    if not is_burst.any():
        return (cells.coarsened(level),)
    calm, bursts = cells.where(~is_burst), cells.where(is_burst)
    return calm.coarsened(level), bursts.bounded(MAX_BURST_CELLS)


def _bursts(cells: Cells, level: int) -> Flags:
    coarse_ms = LEVELS[level].slot_ms
    part_ms = max(coarse_ms // PARTS, cells.slot_ms)
    if not len(cells) or part_ms >= coarse_ms:
        return np.zeros(len(cells), np.bool_)
    at_ms = cells.slot * cells.slot_ms
    # Cells are in order of their slots.
    opens_part, part = _numbered(at_ms // part_ms)
    in_part = np.bincount(part, cells.count)
    _, slot = _numbered(at_ms[opens_part] // coarse_ms)
    mass = np.r_[0.0, np.bincount(slot, in_part), 0.0]
    # A history begins and ends within a slot: the rest of such a slot is no burst if the next slot is as full.
    in_slot = np.maximum(np.maximum(mass[:-2], mass[2:]), mass[1:-1])[slot]
    least = max(LEAST_TIMERS, LEAST_SHARE * cells.timers)
    # In a slot of few parts, a quarter is no more than a part's share.
    share = max(FULL_SHARE, 2 * part_ms / coarse_ms)
    found: Flags = ((in_part >= least) & (in_part >= share * in_slot))[part]
    return found


def _numbered(values: Integers) -> tuple[Integers, Integers]:
    """Return the beginning of each run of equal values, and the run number of each value."""
    is_first = np.ones(len(values), np.bool_)
    is_first[1:] = values[1:] != values[:-1]
    return np.flatnonzero(is_first), np.cumsum(is_first) - 1


AT_ONCE_MS = 1_000.0  # timers that leave within twice this time count as a single moment
MINUTE_S = 60.0
BURST_SIZE, BURST_SHARE = 20.0, 0.5  # least size of a burst: timers in a second, and share of their minute
LEAST_PER_S = 1e-12  # lower rates are rounding errors of float sums
BINS_PER_DOUBLING = 8  # resolution of rates: within 9 %


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HopRates:
    """Hops out of the topics of a step, by destination; all partitions together."""

    seconds: Floats  # total duration of each rate
    per_s: Floats  # hops a second: a row per destination step, a column per rate
    burst_step: Integers  # the destination of each burst
    burst_size: Floats  # hops of each burst


def hop_rates(
    table: tuple[Step, ...], stays: tuple[Stays, ...], resolution: Resolution = CLOSE
) -> tuple[HopRates, ...]:
    """Return the rates of the hops from step to step, an item per source step."""
    return tuple(
        _rates_from(stays, source, resolution.hop_places, source_is_tier=step.kind == "tier")
        for source, step in enumerate(table)
    )


def into_one(rates: HopRates) -> HopRates:
    """Return the rates of the same hops with a single destination topic."""
    return HopRates(
        seconds=rates.seconds,
        per_s=rates.per_s.sum(axis=0, keepdims=True),
        burst_step=np.zeros_like(rates.burst_step),
        burst_size=rates.burst_size,
    )


def grouped_entries(rates: tuple[HopRates, ...], *, partitions: int, linger_ms: int, entry_bytes: float) -> Floats:
    """Return the number of entries that the hops into each step are written as."""
    most = max(min(GROUP_MESSAGES, GROUP_BYTES / max(entry_bytes, 1.0)), 1.0)
    steps = max((len(one.per_s) for one in rates), default=0)
    entries = np.zeros(steps)
    for one in rates:
        per_s, linger_s = one.per_s / partitions, linger_ms / 1000
        in_all = np.maximum(per_s.sum(axis=0), 1e-300)
        has_group = 1.0 - (1.0 - per_s / in_all) * np.exp(-per_s * linger_s)
        groups_per_s = np.clip(1.0 / (linger_s + 1.0 / in_all) * has_group, per_s / most, per_s)
        entries += (groups_per_s * one.seconds).sum(axis=1) * partitions
        sizes = one.burst_size / partitions
        groups = np.maximum(sizes / most, np.minimum(sizes, 1.0)) * partitions
        entries += np.bincount(one.burst_step, groups, steps)
    return entries


def _rates_from(stays: tuple[Stays, ...], source: int, places: int, *, source_is_tier: bool) -> HopRates:
    found = [one.out_of(source, number) for number, one in enumerate(stays)]
    wide = [one.take(np.flatnonzero(one.half_ms > AT_ONCE_MS)) for one in found]
    moments = [Stays.joined(NO_STAYS, *one.take(np.flatnonzero(one.half_ms <= AT_ONCE_MS)).singly()) for one in found]
    step, bursts = np.repeat(np.arange(len(stays)), [len(one.count) for one in moments]), Stays.joined(*moments)
    if source_is_tier:
        is_burst = _stands_out(bursts.entered_ms / 1000, bursts.count)
        calm, to = bursts.take(np.flatnonzero(~is_burst)), step[~is_burst]
        # Moments are spread over their minute, in which they are at random times.
        middle_ms = (np.floor(calm.entered_ms / MINUTE_MS) + 0.5) * MINUTE_MS
        calm = replace(calm, entered_ms=middle_ms, half_ms=np.full(len(to), MINUTE_MS / 2))
        wide = [Stays.joined(one, calm.take(np.flatnonzero(to == number))) for number, one in enumerate(wide)]
        bursts, step = bursts.take(np.flatnonzero(is_burst)), step[is_burst]
    burst_step, burst_size = _group_bursts(len(stays), step, bursts.count, bursts.entered_ms, bursts.released_ms)
    seconds, per_s = _streams(places, wide)
    return HopRates(seconds=seconds, per_s=per_s, burst_step=burst_step, burst_size=burst_size)


def _stands_out(at_s: Floats, count: Floats) -> Flags:
    """Return whether the second of each moment has much of its minute's timers."""
    seconds, index = np.unique(np.floor(at_s).astype(np.int64), return_inverse=True)
    in_second = np.bincount(index, count, len(seconds))
    _, minute = np.unique(seconds // MINUTE_S, return_inverse=True)
    in_minute = np.bincount(minute, in_second)[minute] if len(seconds) else in_second
    found: Flags = ((in_second >= BURST_SIZE) & (in_second >= BURST_SHARE * in_minute))[index]
    return found


def _group_bursts(
    steps: int, step: Integers, count: Floats, at_ms: Floats, until_ms: Floats
) -> tuple[Integers, Floats]:
    """Sum the timers of each second by destination topic; topics of a ring are distinguished by their release."""
    if not len(step):
        return step, count
    at_s, until_s = (np.floor(moment_ms / 1000).astype(np.int64) for moment_ms in (at_ms, until_ms))
    stay_s = until_s - at_s
    keys, index = np.unique(((at_s - at_s.min()) * (stay_s.max() + 1) + stay_s) * steps + step, return_inverse=True)
    return keys % steps, np.bincount(index, count).astype(np.float64)


def _streams(places: int, stays: Sequence[Stays]) -> tuple[Floats, Floats]:
    """Return the durations of rates for overlapping pieces that leave evenly over a time, an item per destination;
    similar rates are merged.
    """
    some = [one for one in stays if len(one.count)]
    if not some:
        return np.zeros(0), np.zeros((len(stays), 0))
    base_s = min(float((one.entered_ms / 1000 - one.half_ms / 1000).min()) for one in some)
    end_s = max(float(((one.entered_ms + one.gone_ms) / 1000 + one.half_ms / 1000).max()) for one in some)
    place_s = (end_s - base_s) / places
    changes = np.zeros((len(stays), places + 2))
    for number, one in enumerate(stays):
        for part in one.singly():
            middle_s, half_s = part.entered_ms / 1000, part.half_ms / 1000
            first = np.rint((middle_s - half_s - base_s) / place_s).astype(np.int64)
            last = np.maximum(np.rint((middle_s + half_s - base_s) / place_s).astype(np.int64), first + 1)
            rate = part.count / ((last - first) * place_s)
            changes[number] += np.bincount(first, rate, places + 2) - np.bincount(last, rate, places + 2)
    per_s = np.maximum(changes.cumsum(axis=1), 0.0)
    in_all = np.maximum(per_s.sum(axis=0), LEAST_PER_S)
    bins = np.floor(np.log2(in_all / LEAST_PER_S) * BINS_PER_DOUBLING).astype(np.int64)
    lasting = np.bincount(bins)
    summed = np.stack([np.bincount(bins, rates) for rates in per_s])
    found = lasting > 0
    return (lasting[found] * place_s).astype(np.float64), summed[:, found] / lasting[found]


MAX_LEDGERS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cursor:
    """A due topic's cursor at one moment, all its partitions together, by runs of positions in order.

    Expected numbers, not counts: partitions are alike, so that each has its share of every run.
    """

    entries: Floats  # entries of each run that have arrived
    acknowledged: Floats  # acknowledged entries of each run
    gaps: Floats  # ranges of acknowledged entries in each run

    def past_mark_delete(self, partitions: int) -> Floats:
        """Return the acknowledged entries of each run that are behind an unacknowledged entry of their partition."""
        return self.acknowledged * (1.0 - self._marked(partitions))

    def mark_delete_entries(self, partitions: int) -> float:
        """Return the entries up to the mark-delete position, all partitions together."""
        return float((self.entries * self._marked(partitions)).sum())

    def span_entries(self, partitions: int) -> float:
        """Return the entries between the mark-delete position and the last acknowledgement, all partitions together."""
        after = _share_without(self.acknowledged[::-1] / partitions)[::-1]
        return float((self.entries * (1.0 - self._marked(partitions)) * (1.0 - after)).sum())

    def _marked(self, partitions: int) -> Floats:
        return _share_without((self.entries - self.acknowledged) / partitions)


def redelivered_entries(
    cursor: Cursor, profile: BrokerProfile, ends_entries: Floats, partitions: int, ack_format: AckFormat
) -> float:
    """Return the acknowledged entries that are redelivered after an unload of a due topic, all partitions together."""
    past = cursor.past_mark_delete(partitions)
    gaps = cursor.gaps + _split_ranges(cursor, past, ends_entries, partitions)
    all_gaps = float(gaps.sum())
    limit = (profile.gap_limit_ranges + 1.0) * partitions
    few = all_gaps <= profile.metadata_store_limit_ranges * partitions
    if all_gaps <= limit and (few or ack_format == "ranges"):
        return 0.0
    total = float(past.sum())
    if ack_format == "bitmap" and not few:
        entries = np.r_[0.0, np.cumsum(cursor.entries)]
        ends = np.r_[ends_entries[ends_entries < entries[-1]], entries[-1]]
        acknowledged = np.diff(np.r_[0.0, np.interp(ends, entries, np.r_[0.0, np.cumsum(past)])])
        cached = kept_ledgers(acknowledged / partitions, profile)
        if cached.any():
            return float(acknowledged[~cached].sum())
    ranges = np.r_[0.0, np.cumsum(gaps)]
    if all_gaps <= limit:
        return 0.0
    return total - float(np.interp(limit, ranges, np.r_[0.0, np.cumsum(past)]))


def _split_ranges(cursor: Cursor, past: Floats, ends_entries: Floats, partitions: int) -> Floats:
    """Return the ranges that ledger ends add to each run: a range at each end between two acknowledged entries."""
    added = np.zeros(len(cursor.entries))
    reached = np.cumsum(cursor.entries)
    runs = np.searchsorted(reached, ends_entries[ends_entries < reached[-1]], "left")
    # Of k acknowledged entries in a row, k - 1 are followed by another.
    followed = np.maximum(past - cursor.gaps, 0.0)[runs]
    # In every partition a ledger ends there.
    np.add.at(added, runs, partitions * followed / np.maximum(cursor.entries[runs], 1.0))
    return added


def kept_ledgers(acknowledged_entries: Floats, profile: BrokerProfile) -> Flags:
    """bitmap: return which ledgers' acknowledgements are persisted."""
    before = np.cumsum(acknowledged_entries) - acknowledged_entries
    # A ledger without an acknowledged entry is not in the broker's list: it is not persisted and does not matter.
    compared: Floats = profile.compared_entries(before, acknowledged_entries)
    return (compared <= profile.gap_limit_ranges) & (acknowledged_entries > 0)


def ledger_ends(
    entries: Floats, arrived_ms: Floats, profile: BrokerProfile, partitions: int, entry_bytes: float
) -> Floats:
    """Return the ends of a topic's ledgers, in entries of all its partitions together."""
    # Ends ascend; the last, open ledger has none. Limits are per partition, and partitions fill evenly.
    if not len(entries):
        return np.zeros(0)
    reached = np.r_[0.0, np.cumsum(entries)]
    times_ms = np.r_[arrived_ms[0] - 1.0, arrived_ms]
    full = float(profile.full_ledger_entries(entry_bytes) * partitions)
    ends: list[float] = []
    begin, opened_ms = 0.0, float(times_ms[0])
    while len(ends) < MAX_LEDGERS:
        full_ms = float(np.interp(begin + full, reached, times_ms)) if begin + full < reached[-1] else np.inf
        closes_ms = min(max(full_ms, opened_ms + profile.ledger_min_age_ms), opened_ms + profile.ledger_max_age_ms)
        if closes_ms >= times_ms[-1]:
            break
        end = max(float(np.interp(closes_ms, times_ms, reached)), begin)
        if full_ms <= closes_ms and profile.ledger_min_age_ms == 0:
            end = begin + full  # exact if a burst arrives in one instant
        if end <= begin:  # nothing arrived: an empty ledger opens with the next entry
            opened_ms = max(float(times_ms[np.searchsorted(reached, begin, "right") - 1]), closes_ms)
            continue
        ends.append(end)
        begin, opened_ms = end, closes_ms
    return np.array(ends)


def _share_without(events: Floats) -> Floats:
    """Return for each run the share of positions before the first event, for events at random positions."""
    before = np.cumsum(events) - events
    within = np.where(events > 1e-9, -np.expm1(-events) / np.where(events > 1e-9, events, 1.0), 1.0)
    found: Floats = np.exp(-np.maximum(before, 0.0)) * within
    return found


SLOTS_PER_STAY = 64  # publish slots within the longest stay in a due topic: finer cells give no more information
SLOTS_PER_INTERVAL = 16
LEAST_ENTRIES = 0.01  # expected entries below which a topic counts as untouched, or as done
RELAY_BIN_MS = 15_000.0
RELAY_PEAK_MS = 60_000.0
"""Length of the busiest minute: a relay that is behind for a shorter time stays within every guard in use. Its
beginning is found to a quarter of this length.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moment:
    """The cursors, at one moment, of the due topics that have an acknowledged entry behind an unacknowledged entry."""

    at_ms: float  # UTC milliseconds
    even: bool  # true for the evenly chosen moments, from which the mean is computed
    lines: tuple[int, ...]  # for each such topic its index in `Simulation.due_lines`
    cursors: tuple[Cursor, ...]  # cursors of these topics


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Relay:
    """The load of a relay by the holding topics."""

    held_peak_entries: float  # entries in holding topics at the peak, all steps together
    peak_hops_per_second: float  # hops out of tiers and the intake, in the busiest minute
    slot_hops_per_second: float  # hops out of a slot, to be done within its head start
    slot_entries: tuple[float, ...]  # the fullest slot of each step; 0 for tiers
    at_ms: Floats  # moments `RELAY_BIN_MS` apart (more in a long history), from the first entry to the last release
    hops: Floats  # cumulative hops out of tiers and the intake at each moment
    entered: tuple[Floats, ...]  # for each step, the cumulative timers that entered
    left: tuple[Floats, ...]  # for each step, the cumulative timers that left
    longest_ms: tuple[float, ...]  # the longest stay of each step


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Simulation:
    """The simulation of a plan on a history."""

    plan: Plan  # the plan; its partitions do not matter here
    timers: float  # timers sent
    entry_bytes: float  # mean payload
    first_ms: float  # first send
    last_ms: float  # last send
    gaps: GapCurve  # gaps over time
    peak_pending: float  # entries in all due topics together, at the peak
    peak_topic_pending: float  # entries in a due topic, at the peak
    moments: tuple[Moment, ...]  # cursors at some moments
    # for each due topic the entries of its runs and the arrival time of each run's last entry, in position order
    due_lines: tuple[tuple[Floats, Floats], ...]
    hops: tuple[Integers, Floats]  # (number of hops, timers), ascending
    step_entries: Floats  # entries received by each step, a timer counted at each arrival
    # rates of the hops that relays send in groups, by source step; empty if hops are not grouped
    hop_rates: tuple[HopRates, ...]
    # rates of the hops out of the intake, and so of the moves into it; None: the plan has no intake
    move_rates: HopRates | None
    moved: float  # timers that a shadow moves
    # moved timers that are not due yet, at the peak: they stay in a broker's index of delayed messages
    peak_stale_entries: float
    relay: Relay  # load of the relay
    keys: KeyShares  # distribution of keys over partitions


def at_resolution(plan: Plan, *cells: Cells) -> tuple[Cells, ...]:
    """Coarsen the cells as far as a plan allows, the coarsest first."""
    # Finer cells cost time, and cells of a single timer hide a fixed delay.
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
    # Cells in parts come with the coarsest first; ``moments_ms`` are further moments, and come last, in this order.
    given = (cells,) if isinstance(cells, Cells) else cells
    parts = at_resolution(plan, *given)
    flow = flow_of(plan, *parts, resolution=resolution)
    rows = rows_of(flow, *(part.slot_ms for part in parts), resolution=resolution)
    if growth != 1.0:
        flow = replace(
            flow,
            pieces=replace(flow.pieces, count=flow.pieces.count * growth),
            step_entries=flow.step_entries * growth,
            stays=tuple(replace(stays, count=stays.count * growth) for stays in flow.stays),
            intake=replace(flow.intake, count=flow.intake.count * growth),
        )
    rows = replace(rows, count=rows.count * growth)
    curve = gap_curve(rows, resolution)
    pending, topic_pending = _pending_peaks(flow, resolution.pending_moments)
    order = np.lexsort((rows.first_ms, rows.arrives_ms, rows.topic))
    lines = [order[rows.topic[order] == line] for line in range(len(rows.topics))]
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
        due_lines=tuple((rows.count[mine], np.maximum.accumulate(rows.arrived_ms[mine])) for mine in lines),
        hops=(numbers, np.bincount(index, sent, len(numbers)).astype(np.float64)),
        step_entries=flow.step_entries,
        hop_rates=hop_rates(steps(plan), flow.stays, resolution) if plan.holds_in_relay else (),
        # All timers enter through the intake.
        move_rates=_rates_from(flow.stays, SENT, resolution.hop_places, source_is_tier=True) if plan.intake else None,
        moved=float(flow.intake.count.sum()),
        peak_stale_entries=_peak_stale_entries(flow, resolution.pending_moments) if plan.intake else 0.0,
        relay=_relay(plan, steps(plan), flow.stays, flow.intake, resolution.relay_bins),
        keys=keys,
    )


def _pending_peaks(flow: Flow, moments: int) -> tuple[float, float]:
    """Return the peaks of the timers that wait in due topics: in all together, and in any of them."""
    pieces = flow.pieces
    if not len(pieces):
        return 0.0, 0.0
    released = flow.group != DIRECT
    arrives_ms = np.where(released, flow.arrival_ms, pieces.first_ms + flow.stay_ms)
    arrived_ms = np.where(released, flow.arrival_ms, pieces.last_ms + flow.stay_ms)
    topics, line = np.unique(flow.topic, return_inverse=True)
    waiting = _waiting(pieces, arrives_ms, arrived_ms, moments, line, len(topics), (0.0, 1.0))
    return float(waiting.sum(axis=0).max()), float(waiting.max())


def _peak_stale_entries(flow: Flow, moments: int) -> float:
    """Return the peak of the moved timers that are not due yet, counted from their sends."""
    copies = flow.pieces.take(np.flatnonzero((flow.hops > 0) & ~flow.acked_originals))
    if not len(copies):
        return 0.0
    line = np.zeros(len(copies), np.int64)
    return float(_waiting(copies, copies.first_ms, copies.last_ms, moments, line, 1, (0.0,)).max())


def _waiting(
    pieces: Pieces,
    begins_ms: Floats,
    ends_ms: Floats,
    moments: int,
    line: Integers,
    lines: int,
    after_ms: tuple[float, ...],
) -> Floats:
    """Count the timers of each line that have begun to wait and are not due, at moments."""
    due_low_ms = pieces.low_ms + np.where(pieces.fixed, pieces.first_ms, 0.0)
    due_high_ms = np.maximum(pieces.high_ms + np.where(pieces.fixed, pieces.last_ms, 0.0), due_low_ms)
    # A burst is fullest when the last of it begins to wait.
    order = np.argsort(ends_ms)
    mass = np.cumsum(pieces.count[order])
    marks = np.searchsorted(mass, np.linspace(0, mass[-1], moments // 4 + 1)[:-1], "left")
    even_ms = np.linspace(float(begins_ms.min()), float(due_high_ms.max()), moments)
    at_ms = np.unique(np.concatenate([even_ms, *(ends_ms[order][marks] + more_ms for more_ms in after_ms)]))
    return risen(at_ms, begins_ms, ends_ms, pieces.count, line, lines) - risen(
        at_ms, due_low_ms, due_high_ms, pieces.count, line, lines
    )


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
    at_ms = np.zeros(0)  # evenly, from a bin before the first stay to a bin after the last
    if some := [stays for stays in (*all_stays, intake) if len(stays.count)]:
        first_ms = min(float((stays.entered_ms - stays.half_ms).min()) for stays in some)
        last_ms = max(float((stays.released_ms + stays.gone_ms + stays.half_ms).max()) for stays in some)
        bin_ms = max(RELAY_BIN_MS, (last_ms - first_ms) / bins)
        at_ms = np.arange(first_ms - bin_ms, last_ms + 2 * bin_ms, bin_ms)
    entered = tuple(_passed(stays, "entered_ms", at_ms) for stays in all_stays)
    left = tuple(_passed(stays, "released_ms", at_ms) for stays in all_stays)
    through = _passed(intake, "released_ms", at_ms)
    hops = sum((out for step, out in zip(table, left, strict=True) if step.kind == "tier"), through)
    rate = 0.0  # of the busiest minute
    if len(at_ms):
        bin_ms = float(at_ms[1] - at_ms[0])
        minute = min(max(round(RELAY_PEAK_MS / bin_ms), 1), len(hops) - 1)
        rate = float((hops[minute:] - hops[:-minute]).max() * 1_000 / (minute * bin_ms))
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


def _passed(stays: Stays, which: Literal["entered_ms", "released_ms"], at_ms: Floats) -> Floats:
    """Return the cumulative timers whose stay has begun or ended, by the middle of the beginning or the end."""
    found = np.zeros(len(at_ms))
    for part in stays.singly():
        middle_ms, step_ms = getattr(part, which), float(at_ms[1] - at_ms[0])
        found += risen_evenly(
            float(at_ms[0]), step_ms, len(at_ms), middle_ms - part.half_ms, middle_ms + part.half_ms, part.count
        )
    return found

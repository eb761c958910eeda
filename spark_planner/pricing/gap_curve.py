"""Gap law: the mean number of gaps over time, from the flow of a plan.

Entries of a row (a short run of positions) are taken as being in random order. With ``F`` the acknowledged share of the
entries at position u, each has a range behind it with probability ``F (1 - F)``. Within a row the fixed delays make a
share ``A(t - u)`` that depends only on the age, and the due times on the clock a share ``c(t)`` that depends only on
the moment, so the mean over the row's positions has a closed form for rows of any length, with the integrals of ``A``
and ``A ** 2``, a sum of shares that rise evenly, from `Ramps`:

    N / d * integral over u of (A + c)(1 - A - c)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..summary.cells import Flags, Floats, Integers
from .flow import CLOSE, DIRECT, Flow, Resolution, repeated

JUMP_MS = 1.0  # a ramp shorter than this is a step: times are whole milliseconds
BURST_PLACES = 48  # places in a row of a burst, in which all timers have about the same stay: more places add nothing


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ramps:
    """A curve ``F(x)`` for each row: 0 at first, then the sum of its ramps, then constant."""

    # ``row * stride_ms + x - origin_ms`` of each event, ascending; every row begins with an event of its own
    key: Floats
    x_ms: Floats  # place of each event
    value: Floats  # ``F`` just after the event
    slope: Floats  # slope of ``F`` up to the next event of the row, per millisecond
    integral_ms: Floats  # integral of ``F`` up to the event
    square_ms: Floats  # integral of ``F ** 2`` up to the event
    origin_ms: float  # a place before every event
    stride_ms: float  # longer than the span of all ``x``

    @classmethod
    def of(
        cls,
        row: Integers,
        start_ms: Floats,
        end_ms: Floats,
        share: Floats,
        rows: int,
        *,
        bursts: bool = False,
        resolution: Resolution = CLOSE,
    ) -> Ramps:
        """Sum ramps that rise by ``share`` from ``start_ms`` to ``end_ms``, each in its row of ``range(rows)``."""
        # ``bursts``: rows span so little that `BURST_PLACES` are enough. More ramps than the resolution's limit are
        # moved to evenly spaced places between the first and the last of their row, which costs a count instead of a
        # sort; steps stay steps.
        # Near the events, so that the keys of thousands of rows keep their milliseconds in a float.
        origin_ms = float(start_ms.min()) - 2.0 if len(start_ms) else 0.0
        stride_ms = float(np.maximum(end_ms, start_ms).max()) - origin_ms + 4.0 if len(start_ms) else 4.0
        places = min(BURST_PLACES, resolution.places) if bursts else resolution.places
        if len(row) > (places * rows if bursts else resolution.ramps):
            event_row, x_ms, rise, bend, running = _lattice_events(
                row, start_ms, end_ms, share, rows, origin_ms, places
            )
        else:
            event_row, x_ms, rise, bend, running = _events(row, start_ms, end_ms, share, rows, origin_ms, stride_ms)
        opens = np.searchsorted(event_row, np.arange(rows))
        # Rounding errors in the sum of slopes would grow over a long flat stretch.
        slopes = np.where(np.cumsum(running) > 0.5, np.cumsum(bend), 0.0)
        del running, bend  # there may be millions of events
        gap_ms = np.diff(x_ms, append=x_ms[-1:])
        gap_ms[np.r_[opens[1:] - 1, len(x_ms) - 1] if rows else []] = 0.0  # a row ends where the next begins
        value = _within_rows(np.r_[0.0, (slopes * gap_ms)[:-1]] + rise, opens, event_row)
        del rise
        after = value + slopes * gap_ms
        integral_ms = _within_rows(np.r_[0.0, ((value + after) / 2 * gap_ms)[:-1]], opens, event_row)
        squares = (value * value + value * after + after * after) / 3 * gap_ms
        square_ms = _within_rows(np.r_[0.0, squares[:-1]], opens, event_row)
        del after, gap_ms, squares
        return cls(
            key=event_row * stride_ms + (x_ms - origin_ms),
            x_ms=x_ms,
            value=value,
            slope=slopes,
            integral_ms=integral_ms,
            square_ms=square_ms,
            origin_ms=origin_ms,
            stride_ms=stride_ms,
        )

    def at(self, row: Integers, x_ms: Floats) -> tuple[Floats, Floats, Floats]:
        """Return value, integral and integral of the square of the rows' curves at these points."""
        index, distance_ms = self._events_before(row, x_ms)
        before, slope = self.value[index], self.slope[index]
        value = before + slope * distance_ms
        integral_ms = self.integral_ms[index] + (before + value) / 2 * distance_ms
        square_ms = self.square_ms[index] + (before * before + before * value + value * value) / 3 * distance_ms
        return value, integral_ms, square_ms

    def values(self, row: Integers, x_ms: Floats) -> Floats:
        index, distance_ms = self._events_before(row, x_ms)
        found: Floats = self.value[index] + self.slope[index] * distance_ms
        return found

    def _events_before(self, row: Integers, x_ms: Floats) -> tuple[NDArray[np.intp], Floats]:
        inside_ms = np.clip(x_ms, self.origin_ms, self.origin_ms + self.stride_ms - 1.0)
        index = np.searchsorted(self.key, row * self.stride_ms + (inside_ms - self.origin_ms), "right") - 1
        # Rounding of the key may select the event after; a negative distance would turn the curve around.
        return index, np.maximum(x_ms - self.x_ms[index], 0.0)


def risen(
    at_ms: Floats, start_ms: Floats, end_ms: Floats, mass: Floats, line: Integers | None = None, lines: int = 1
) -> Floats:
    """Sum ramps at moments: array (lines, moments)."""
    width_ms = np.maximum(end_ms - start_ms, 1.0)
    slope = mass / width_ms
    base_ms = at_ms[0] if len(at_ms) else 0.0
    columns = len(at_ms) + 1
    size = lines * columns

    def place(x_ms: Floats) -> Integers:
        index = np.searchsorted(at_ms, x_ms, "left").astype(np.int64)
        return index if line is None else index + line * columns

    starts, ends = place(start_ms), place(start_ms + width_ms)
    risen_ms = slope * (start_ms - base_ms)

    def summed(at_start: Floats, at_end: Floats) -> Floats:
        total: Floats = (np.bincount(starts, at_start, size) + np.bincount(ends, at_end, size)).astype(np.float64)
        return np.cumsum(total.reshape(lines, columns), axis=1)[:, :-1]

    slopes = summed(slope, -slope)
    constants = summed(-risen_ms, risen_ms + mass)
    found: Floats = slopes * (at_ms - base_ms) + constants
    return found


def risen_evenly(
    base_ms: float, step_ms: float, moments: int, start_ms: Floats, end_ms: Floats, mass: Floats
) -> Floats:
    """Sum ramps at evenly spaced moments, like `risen`, with beginnings and ends moved to the nearest moment."""
    # The first moment is before every ramp, the last two are after every ramp.
    first = np.rint((start_ms - base_ms) / step_ms).astype(np.int64)
    last = np.maximum(np.rint((end_ms - base_ms) / step_ms).astype(np.int64), first + 1)
    rise = mass / (last - first)
    bend: Floats = (np.bincount(first, rise, moments) - np.bincount(last, rise, moments)).astype(np.float64)
    # A slope holds from the next moment on.
    found: Floats = np.cumsum(np.r_[0.0, np.cumsum(bend)[:-1]])
    return found


Events = tuple[Integers, Floats, Floats, Floats, Floats]
"""(row, x, jump, change of slope, change of the number of ramps that rise), ordered by row and x."""


def _events(
    row: Integers, start_ms: Floats, end_ms: Floats, share: Floats, rows: int, origin_ms: float, stride_ms: float
) -> Events:
    is_jump = end_ms - start_ms < JUMP_MS
    slope = np.where(is_jump, 0.0, share / np.where(is_jump, 1.0, end_ms - start_ms))
    none, ends = np.zeros(rows), ~is_jump
    event_row = np.concatenate([np.arange(rows), row, row[ends]])
    x_ms = np.concatenate([np.full(rows, origin_ms), start_ms, end_ms[ends]])
    order = np.argsort(event_row * stride_ms + (x_ms - origin_ms), kind="stable")
    return (
        event_row[order],
        x_ms[order],
        np.concatenate([none, np.where(is_jump, share, 0.0), np.zeros(int(ends.sum()))])[order],
        np.concatenate([none, slope, -slope[ends]])[order],
        np.concatenate([none, np.where(is_jump, 0.0, 1.0), np.full(int(ends.sum()), -1.0)])[order],
    )


def _lattice_events(
    row: Integers, start_ms: Floats, end_ms: Floats, share: Floats, rows: int, origin_ms: float, places: int
) -> Events:
    begin_ms, until_ms = np.full(rows, np.inf), np.full(rows, -np.inf)
    np.minimum.at(begin_ms, row, start_ms)
    np.maximum.at(until_ms, row, np.maximum(end_ms, start_ms))
    begin_ms[np.isinf(begin_ms)] = origin_ms + 1.0  # rows without a ramp
    step_ms = np.maximum((until_ms - begin_ms) / places, 1e-3)
    per_ms = 1.0 / step_ms[row]
    first = np.rint((start_ms - begin_ms[row]) * per_ms).astype(np.int64)
    last = np.rint((np.maximum(end_ms, start_ms) - begin_ms[row]) * per_ms).astype(np.int64)
    is_jump = last == first
    slope = np.where(is_jump, 0.0, share * per_ms / np.maximum(last - first, 1))
    # Before its places a row has its own beginning, from which on it is flat.
    width = places + 2
    begin = row * width + 1
    end, size = begin + last, rows * width
    begin += first
    opens = np.where(is_jump, 0.0, 1.0)
    rise: Floats = np.bincount(begin, np.where(is_jump, share, 0.0), size).astype(np.float64)
    bend: Floats = (np.bincount(begin, slope, size) - np.bincount(end, slope, size)).astype(np.float64)
    running: Floats = (np.bincount(begin, opens, size) - np.bincount(end, opens, size)).astype(np.float64)
    x_ms = begin_ms[:, None] + np.arange(-1.0, places + 1) * step_ms[:, None]
    x_ms[:, 0] = origin_ms
    event_row: Integers = np.repeat(np.arange(rows, dtype=np.int64), width)
    return event_row, x_ms.ravel(), rise, bend, running


def _within_rows(steps: Floats, opens: Integers, event_row: Integers) -> Floats:
    total = np.cumsum(steps)
    found: Floats = total - total[opens][event_row] if len(opens) else total
    return found


LEAST_ROWS_PER_STAY = 4
BURST_DENSITY = 4.0  # ratio to the density around it from which on a stretch is a burst, with rows of its own
LEAST_BURST_SHARE = 1 / 16_384  # least share of all timers in a burst; a row with fewer cannot decide a peak
LEAST_IN_ROW = 64  # shorter rows of a group are joined: pairs are counted within rows only
ROWS_PER_RELEASE = 24
"""Rows of a slot's release: its timers are due within one slot, a burst, and more rows add nothing."""
PEAKS = 6  # number of highest moments around which the curve is refined
PEAK_POINTS = 17
LARGEST_CORRECTION = 2.0
CHUNK = 2_000_000  # pairs of a row and a moment that are evaluated at once: some 200 MB


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Runs of positions in due topics, in position order within a topic."""

    count: Floats  # entries of each row
    topic: Integers  # index into ``topics``
    topics: Integers  # numbers of the due topics (0, or calendar intervals)
    first_ms: Floats  # first position (arrival time; for timers released by a slot the publish time)
    last_ms: Floats  # last position
    arrives_ms: Floats  # arrival of the first entry
    arrived_ms: Floats  # arrival of the last entry
    acks_from_ms: Floats  # earliest possible acknowledgement
    acks_until_ms: Floats  # latest possible acknowledgement
    by_delay: Ramps  # acknowledged share by age, of the timers with a fixed delay
    by_clock: Ramps  # acknowledged share by time since the first position, of the other timers
    correction: Floats  # factor for the pairs that few timers lack: n / (n - 1)
    busy_ms: Floats  # moments that divide the timers into equal parts by due time, ascending
    longest_stay_ms: float  # upper bound of the time from the first arrival of any row to its last acknowledgement

    def __len__(self) -> int:
        return len(self.count)

    def acknowledged(self, row: Integers, at_ms: Floats) -> tuple[Floats, Floats]:
        """Return (acknowledged entries, mean number of gaps) of each row at its moment."""
        length_ms = np.maximum(self.last_ms[row] - self.first_ms[row], 1.0)
        _, young, young_square = self.by_delay.at(row, at_ms - self.first_ms[row] - length_ms)
        _, old, old_square = self.by_delay.at(row, at_ms - self.first_ms[row])
        aged, aged_square = (old - young) / length_ms, (old_square - young_square) / length_ms
        clock = self.by_clock.values(row, at_ms - self.first_ms[row])
        share = aged + clock
        open_pairs = share - aged_square - 2 * clock * aged - clock * clock
        count = self.count[row]
        return count * np.clip(share, 0.0, 1.0), count * self.correction[row] * np.maximum(open_pairs, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GapCurve:
    """Mean number of gaps at moments, all partitions together."""

    at_ms: Floats  # moments, ascending, closer around the peak; UTC milliseconds
    gaps: Floats  # gaps of all due topics together
    peak_gaps: float  # the greatest of these
    peak_at_ms: float  # moment of the greatest
    peak_topic_gaps: float  # the greatest of any due topic
    topic_peaks: Floats  # the greatest of each due topic, in the order of the rows' topics


def rows_of(flow: Flow, *slots_ms: float, resolution: Resolution = CLOSE) -> Rows:
    # The longest publish slot of the cells bounds the distance of rows from above, the shortest from below.
    pieces = flow.pieces
    released = flow.group != DIRECT
    # Slots are swept in the order of publishing and release at once: there the position is the publish time.
    shift_ms = np.where(released, 0.0, flow.stay_ms)
    first_ms, last_ms = pieces.first_ms + shift_ms, pieces.last_ms + shift_ms
    low_ms, high_ms = pieces.low_ms - np.where(pieces.fixed, shift_ms, 0.0), pieces.high_ms.copy()
    high_ms -= np.where(pieces.fixed, shift_ms, 0.0)
    arrives_ms = np.where(released, flow.arrival_ms, first_ms)
    arrived_ms = np.where(released, flow.arrival_ms, last_ms)
    acks_until_ms = np.where(pieces.fixed, last_ms + high_ms, high_ms)
    stay_ms = float((acks_until_ms - arrives_ms).max(initial=1.0))
    topics, topic = np.unique(flow.topic, return_inverse=True)
    # A run of positions: one due topic, and in it one release (or all timers that arrive by themselves).
    groups, group = np.unique(flow.group, return_inverse=True)
    run = topic * len(groups) + group
    scale_ms = stay_ms
    if released.any() or len(topics) > 1:
        # The longest span of a release or an interval is the resolution that its positions need.
        due_ms = pieces.due_ms
        spans, span = np.unique(np.where(flow.group == DIRECT, flow.topic, flow.group), return_inverse=True)
        longest_ms = (-_least(span, -due_ms, len(spans)) - _least(span, due_ms, len(spans))).max(initial=0.0)
        scale_ms = min(stay_ms, float(longest_ms) + 1.0)
    slots_range_ms = min(slots_ms, default=0.0), max(slots_ms, default=0.0)
    edges_ms = _position_edges(first_ms, last_ms, pieces.count, scale_ms, slots_range_ms, resolution)
    begin = np.searchsorted(edges_ms, first_ms, "right") - 1
    parts = np.maximum(np.searchsorted(edges_ms, last_ms, "left") - begin, 1)
    owner = np.repeat(np.arange(len(parts)), parts)
    bin_of = begin[owner] + np.arange(len(owner)) - (np.cumsum(parts) - parts)[owner]
    part_first_ms = np.maximum(first_ms[owner], edges_ms[bin_of])
    part_last_ms = np.minimum(last_ms[owner], edges_ms[bin_of + 1])
    whole_ms = (last_ms - first_ms)[owner]
    share = np.where(parts[owner] > 1, (part_last_ms - part_first_ms) / np.where(whole_ms > 0, whole_ms, 1.0), 1.0)
    count = pieces.count[owner] * share
    row, rows = rows_of_bins(run[owner], bin_of, count, np.tile(groups != DIRECT, len(topics)))
    total = np.bincount(row, count, rows).astype(np.float64)
    fixed = pieces.fixed[owner]
    weight = count / np.where(total > 0, total, 1.0)[row]
    lone = np.bincount(row, np.minimum(count * count, 1.0), rows) / np.maximum(total * total, 1e-12)
    order_topic = np.zeros(rows, np.int64)
    order_topic[row] = topic[owner]
    row_first_ms = _least(row, part_first_ms, rows)
    row_last_ms = -_least(row, -part_last_ms, rows)
    row_arrives_ms = _least(row, np.where(released[owner], arrives_ms[owner], part_first_ms), rows)
    row_arrived_ms = -_least(row, -np.where(released[owner], arrived_ms[owner], part_last_ms), rows)
    acks_from_ms = _least(row, np.where(fixed, part_first_ms, 0.0) + low_ms[owner], rows)
    acks_until_ms = -_least(row, -(np.where(fixed, part_last_ms, 0.0) + high_ms[owner]), rows)
    del bin_of, part_first_ms, part_last_ms, whole_ms, share, count  # there may be a million parts

    def ramps(of: Flags, begin_ms: Floats) -> Ramps:
        of_row, mine = row[of], owner[of]
        from_ms, until_ms = low_ms[mine] - begin_ms[of_row], high_ms[mine] - begin_ms[of_row]
        # If slots release, timers that go straight to the due topic stay for a slot only.
        bursts = bool(released.any())
        return Ramps.of(of_row, from_ms, until_ms, weight[of], rows, bursts=bursts, resolution=resolution)

    return Rows(
        count=total,
        topic=order_topic,
        topics=topics,
        first_ms=row_first_ms,
        last_ms=row_last_ms,
        arrives_ms=row_arrives_ms,
        arrived_ms=row_arrived_ms,
        acks_from_ms=acks_from_ms,
        acks_until_ms=acks_until_ms,
        by_delay=ramps(fixed, np.zeros(rows)),
        by_clock=ramps(~fixed, row_first_ms),
        correction=np.minimum(1.0 / np.maximum(1.0 - lone, 1e-3), LARGEST_CORRECTION),
        busy_ms=_busy(pieces.due_ms, pieces.count, resolution),
        longest_stay_ms=stay_ms,
    )


def gap_curve(rows: Rows, resolution: Resolution = CLOSE) -> GapCurve:
    """Compute gaps over time, with closer moments around the peaks."""
    if not len(rows):
        none = np.zeros(0)
        return GapCurve(at_ms=none, gaps=none, peak_gaps=0.0, peak_at_ms=0.0, peak_topic_gaps=0.0, topic_peaks=none)
    at_ms = _moments(rows, resolution)
    gaps, topic_peaks = _gaps_at(rows, at_ms)
    step_ms = float(np.diff(at_ms).max(initial=1.0))
    all_ms, all_gaps = at_ms, gaps
    for _ in range(resolution.peak_rounds):
        highest_ms = _highest(all_ms, all_gaps)
        near_ms = (highest_ms[:, None] + np.linspace(-step_ms, step_ms, PEAK_POINTS)[None, :]).ravel()
        near_ms = np.setdiff1d(np.round(near_ms), all_ms)
        if not len(near_ms):
            break
        found, peaks = _gaps_at(rows, near_ms)
        topic_peaks = np.maximum(topic_peaks, peaks)
        all_ms, all_gaps = np.concatenate([all_ms, near_ms]), np.concatenate([all_gaps, found])
        order = np.argsort(all_ms)
        all_ms, all_gaps = all_ms[order], all_gaps[order]
        step_ms /= (PEAK_POINTS - 1) / 2
    best = int(all_gaps.argmax())
    return GapCurve(
        at_ms=all_ms,
        gaps=all_gaps,
        peak_gaps=float(all_gaps[best]),
        peak_at_ms=float(all_ms[best]),
        peak_topic_gaps=float(topic_peaks.max(initial=0.0)),
        topic_peaks=topic_peaks,
    )


def _gaps_at(rows: Rows, at_ms: Floats) -> tuple[Floats, Floats]:
    begin = np.searchsorted(at_ms, rows.acks_from_ms, "left")
    lengths = np.maximum(np.searchsorted(at_ms, rows.acks_until_ms, "left") - begin, 0)
    ends = np.cumsum(lengths)
    total = np.zeros(len(at_ms))
    topic_peaks = np.zeros(len(rows.topics))
    per_topic = len(rows.topics) > 1
    lines = np.zeros(len(rows.topics) * len(at_ms)) if per_topic else total
    start = 0
    while start < len(rows):
        base = int(ends[start] - lengths[start])
        stop = max(int(np.searchsorted(ends, base + CHUNK, "right")), start + 1)
        row = np.repeat(np.arange(start, stop), lengths[start:stop])
        moment = np.arange(len(row)) - (ends - lengths - base)[row] + begin[row]
        _, gaps = rows.acknowledged(row, at_ms[moment])
        total += np.bincount(moment, gaps, len(at_ms))
        if per_topic:
            lines += np.bincount(rows.topic[row] * len(at_ms) + moment, gaps, len(lines))
        start = stop
    if per_topic:
        topic_peaks = lines.reshape(len(rows.topics), len(at_ms)).max(axis=1)
    else:
        topic_peaks[:] = total.max(initial=0.0)
    return total, topic_peaks


def _moments(rows: Rows, resolution: Resolution) -> Floats:
    first_ms, last_ms = float(rows.arrives_ms.min()), float(rows.acks_until_ms.max())
    stay_ms = float(np.quantile(rows.acks_until_ms - rows.acks_from_ms, 0.99)) + 1.0
    usual_ms = min(stay_ms, rows.longest_stay_ms)
    step_ms = max(usual_ms / resolution.moments_per_stay, (last_ms - first_ms) / resolution.moments, 1.0)
    even_ms = np.arange(first_ms, last_ms + step_ms, step_ms)
    return np.unique(np.concatenate([even_ms, rows.busy_ms]))


def _busy(due_ms: Floats, count: Floats, resolution: Resolution) -> Floats:
    if not len(due_ms):
        return due_ms
    first_ms = float(due_ms.min())
    bin_ms = (float(due_ms.max()) - first_ms) / resolution.busy_bins + 1.0
    mass = np.cumsum(np.bincount(((due_ms - first_ms) / bin_ms).astype(np.int64), count))
    marks = np.searchsorted(mass, np.linspace(0, mass[-1], resolution.mass_moments + 1)[1:], "left")
    found: Floats = (first_ms + bin_ms * (np.unique(marks) + 0.5)).astype(np.float64)
    return found


def _highest(at_ms: Floats, gaps: Floats) -> Floats:
    padded = np.r_[-1.0, gaps, -1.0]
    is_top = (padded[1:-1] >= padded[:-2]) & (padded[1:-1] >= padded[2:])
    tops = np.flatnonzero(is_top)
    found: Floats = at_ms[tops[np.argsort(gaps[tops])[-PEAKS:]]]
    return found


def _position_edges(
    first_ms: Floats,
    last_ms: Floats,
    count: Floats,
    scale_ms: float,
    slots_ms: tuple[float, float],
    resolution: Resolution,
) -> Floats:
    """Return the positions that cut rows: evenly spaced, at equal parts of all timers, and around bursts."""
    # Edges at equal parts are at the beginning of a cell, so that they also separate times on the clock: timers for
    # 09:00 today from timers for 09:00 tomorrow. No edges are finer than the cells' publish slots, where each delay has
    # its place by chance: in a sliver of a slot some delays would be missing, and so would the gaps between them and
    # the others.
    if not len(first_ms):
        return np.array([0.0, 1.0])
    finest_ms, coarsest_ms = slots_ms
    begin_ms, end_ms = float(first_ms.min()), float(last_ms.max())
    least_ms = max(scale_ms / resolution.rows_per_stay, (end_ms - begin_ms) / resolution.rows, 1.0)
    step_ms = max(least_ms, min(coarsest_ms, scale_ms / LEAST_ROWS_PER_STAY))
    even_ms = np.arange(begin_ms, end_ms + step_ms, step_ms)
    fine_ms = max(finest_ms, (end_ms - begin_ms) / resolution.burst_bins, 1.0)
    begins_ms, ends_ms = _bursts(first_ms, last_ms, count, step_ms, fine_ms)
    inner_ms = max(fine_ms, scale_ms / resolution.rows_per_stay)
    owner, turn = repeated(np.ceil((ends_ms - begins_ms) / inner_ms).astype(np.int64))
    order = np.argsort((first_ms + last_ms) / 2)
    mass = np.cumsum(count[order])
    marks_ms = first_ms[order][np.searchsorted(mass, np.linspace(0, mass[-1], resolution.mass_rows + 1)[:-1], "left")]
    is_calm = np.searchsorted(begins_ms, marks_ms, "right") == np.searchsorted(ends_ms, marks_ms, "right")
    edges_ms = np.unique(np.concatenate([even_ms, marks_ms[is_calm], begins_ms[owner] + turn * inner_ms, ends_ms]))
    found: Floats = np.r_[edges_ms, edges_ms[-1] + step_ms]
    return found


def _bursts(first_ms: Floats, last_ms: Floats, count: Floats, step_ms: float, fine_ms: float) -> tuple[Floats, Floats]:
    """Return (begins, ends) of stretches of positions that are much fuller than those around them, to ``fine_ms``."""
    around = round(step_ms / fine_ms)
    if around < 2:
        return np.zeros(0), np.zeros(0)
    at_ms = np.arange(float(first_ms.min()) - fine_ms, float(last_ms.max()) + 2 * fine_ms, fine_ms)
    mass = risen(at_ms, first_ms, last_ms, count)[0]
    padded = np.r_[np.zeros(around), mass, np.full(around, mass[-1])]
    mean = (padded[2 * around + 1 :] - padded[: -2 * around - 1]) / (2 * around + 1)
    least = max(LEAST_BURST_SHARE * float(mass[-1]), float(LEAST_IN_ROW))
    is_full = np.diff(mass) > np.maximum(BURST_DENSITY * mean, least)
    # With the bins on both sides, which hold pieces that begin before a full bin or end after it.
    is_burst = is_full.copy()
    is_burst[1:] |= is_full[:-1]
    is_burst[:-1] |= is_full[1:]
    changes = np.diff(np.r_[False, is_burst, False].astype(np.int8))
    return at_ms[np.flatnonzero(changes > 0)], at_ms[np.flatnonzero(changes < 0)]


def rows_of_bins(run: Integers, bin_of: Integers, count: Floats, is_release: Flags) -> tuple[Integers, int]:
    """Number the rows: bins of a run, with small neighbours joined; numbered by run and position."""
    bins = int(bin_of.max(initial=0)) + 1
    cells, cell = np.unique(run * bins + bin_of, return_inverse=True)
    in_cell = np.bincount(cell, count, len(cells))
    cell_run = cells // bins
    before = np.cumsum(in_cell) - in_cell
    opens = np.r_[True, cell_run[1:] != cell_run[:-1]] if len(cells) else np.zeros(0, np.bool_)
    within = before - np.repeat(before[opens], np.diff(np.r_[np.flatnonzero(opens), len(cells)]))
    in_run = np.bincount(cell_run, in_cell, len(is_release))
    least = np.maximum(LEAST_IN_ROW, np.where(is_release, in_run / ROWS_PER_RELEASE, 0.0))
    batch = np.floor(within / least[cell_run])
    is_new = opens.copy()
    is_new[1:] |= batch[1:] != batch[:-1]
    # A bin that is full enough is not joined with the few timers before it: these may be an hour earlier, and would
    # spread the bin over that hour.
    is_new |= in_cell >= least[cell_run]
    number = np.cumsum(is_new) - 1
    return number[cell], int(is_new.sum())


def _least(row: Integers, values: Floats, rows: int) -> Floats:
    found = np.full(rows, np.inf)
    np.minimum.at(found, row, values)
    return found

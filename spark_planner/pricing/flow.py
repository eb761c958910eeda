"""Flow: the places and times at which the timers of the cells arrive in due topics, under a plan.

Cells are cut at the edges of the plan's routing, so that within a piece every timer makes the same hops; then the
middle timer of each piece is sent through the step table. The table of `timewheel.core.steps` is the only source of
routing: the cuts are found by running it as well.

A cell is taken as uniform over its publish times and over the narrower of two spans: its delays (so a fixed delay stays
fixed) or its due times (so a time on the clock stays on the clock).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from timewheel.core.durations import MINUTE_MS
from timewheel.core.plan import Plan
from timewheel.core.steps import Step, far_ms, steps

from ..summary.cells import LEVELS, Cells, Flags, Floats, Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """Bounds on the work for a plan; the defaults are those of `CLOSE`."""

    parts: int = 60_000  # total parts up to which every cell is cut at all edges of a plan's routing
    rows_per_stay: int = 256  # rows of positions within the longest stay in a due topic
    rows: int = 8_192  # the most rows of positions, bursts not counted
    mass_rows: int = 256  # outside of bursts, each row holds at most all timers divided by this number
    burst_bins: int = 262_144  # bins in the search for positions that are denser than the row around them
    ramps: int = 600_000  # the most exact ramps; more are moved to evenly spaced places within their row
    places: int = 384  # number of these places
    moments_per_stay: int = 32  # moments of the gap curve within the usual stay
    moments: int = 4_096  # the most of these moments, evenly over the history
    # additional moments, which divide all timers into equal parts by due time, so that no short burst lies between two
    # moments
    mass_moments: int = 256
    busy_bins: int = 65_536  # bins in the search for these moments
    peak_rounds: int = 2  # number of refinements around the highest moments
    unloads: int = 32  # moments at which an unload is simulated, evenly over the history
    peak_unloads: int = 4  # additional such moments, at the most gaps
    pending_moments: int = 1_024  # moments at which waiting timers are counted
    relay_bins: int = 65_536  # bins of time for the load of a relay
    hop_places: int = 65_536  # bins of time for the rates of hops


CLOSE = Resolution()  # for all reported figures of a plan
QUICK = Resolution(
    parts=8_000,
    rows_per_stay=64,
    rows=1_024,
    mass_rows=64,
    burst_bins=16_384,
    ramps=20_000,
    places=96,
    moments_per_stay=8,
    moments=512,
    mass_moments=64,
    busy_bins=8_192,
    peak_rounds=1,
    unloads=2,
    peak_unloads=1,
    pending_moments=256,
    relay_bins=4_096,
    hop_places=4_096,
)
"""For the selection of candidates to count: from the same cells its gaps are within some percent of those of `CLOSE`,
in a quarter of the time.
"""
Cut = tuple[Integers, Floats, Floats, Floats]  # (owner, low, high, share of the owner) of each part
PARTS_PER_SLOT = 8
"""If due times are cut at slot edges, publish times are first cut into parts of a slot divided by this number."""
MAX_PARTS = 2
"""Most such parts of a cell, which bounds the cost for slots much longer than a ring's; then cuts are a little blurred.
"""
MAX_CANCELLATIONS = 4
"""Most cut parts of a cell. A bucket of long delays may reach over dozens of short tiers or slots: then this many parts
represent all, evenly over the cell and from a different offset in each cell, so that every sum is right on average.
"""
GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, are evenly distributed: offsets that are the same in every run
CLOCK_GRIDS_MS = tuple(minutes * MINUTE_MS for minutes in (60, 30, 15, 10, 5, 1))
MAX_CLOCK_POINTS = 8  # due times on a grid finer than this part of a cell are treated as uniform within the cell


class Arrays:
    """Arrays of the same length, one for each field of a subclass with slots."""

    __slots__: tuple[str, ...] = ()

    def take(self, index: Integers) -> Self:
        """Select by index; an index may be repeated."""
        return self._made(lambda name: getattr(self, name)[index])

    @classmethod
    def joined(cls, *parts: Self) -> Self:
        """Concatenate several."""
        return cls._made(lambda name: np.concatenate([getattr(part, name) for part in parts]))

    @classmethod
    def _made(cls, array_of: Callable[[str], Any]) -> Self:
        made: Callable[..., Self] = cls
        return made(**{name: array_of(name) for name in cls.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pieces(Arrays):
    """Similar timers, in arrays of the same length."""

    count: Floats  # timers, fractions included
    first_ms: Floats  # least publish time
    last_ms: Floats  # greatest publish time
    # true if the delay is independent of the publish time (then ``low_ms`` and ``high_ms`` are delays); False if the
    # due time is (then they are due times)
    fixed: Flags
    low_ms: Floats  # least delay or due time
    high_ms: Floats  # greatest delay or due time

    def __len__(self) -> int:
        return len(self.count)

    @property
    def publish_ms(self) -> Floats:
        """Publish time of the middle timer."""
        return (self.first_ms + self.last_ms) / 2

    @property
    def due_ms(self) -> Floats:
        """Due time of the middle timer."""
        middle_ms = (self.low_ms + self.high_ms) / 2
        return np.where(self.fixed, self.publish_ms + middle_ms, middle_ms)


def pieces_of(cells: Cells) -> Pieces:
    """Convert cells to pieces: spans are widened by (n + 1) / (n - 1), as for uniform samples, in slot and bucket."""
    level = LEVELS[cells.level]
    count = cells.count.astype(np.float64)
    publish_low = (cells.slot * level.slot_ms).astype(np.float64)
    first_ms, last_ms = _widened(
        cells.publish_min_ms, cells.publish_max_ms, count, publish_low, publish_low + level.slot_ms
    )
    # The inverse of cells.bucket_of: buckets below 2 ** (bits + 1) are single milliseconds.
    shift = np.maximum((cells.bucket >> level.bits) - 1, 0)
    least = (cells.bucket - (shift << level.bits)) << shift
    bucket_low, bucket_high = least.astype(np.float64), (least + (np.int64(1) << shift)).astype(np.float64)
    delay_low, delay_high = _widened(cells.delay_min_ms, cells.delay_max_ms, count, bucket_low, bucket_high)
    due_low, due_high = _widened(
        cells.due_min_ms, cells.due_max_ms, count, cells.publish_max_ms.astype(np.float64), last_ms + bucket_high
    )
    fixed = (cells.delay_max_ms - cells.delay_min_ms) <= (cells.due_max_ms - cells.due_min_ms)
    spread = Pieces(
        count=count,
        first_ms=first_ms,
        last_ms=last_ms,
        fixed=fixed,
        low_ms=np.where(fixed, delay_low, due_low),
        high_ms=np.where(fixed, delay_high, due_high),
    )
    clock_ms = _clock_of(cells)
    if not clock_ms.any():
        return spread
    ticking = np.flatnonzero(clock_ms)
    points = _on_the_clock(spread.take(ticking), cells, ticking, clock_ms[ticking], delay_low, delay_high)
    return Pieces.joined(spread.take(np.flatnonzero(clock_ms == 0)), points)


def _widened(
    least_ms: Integers, greatest_ms: Integers, count: Floats, floor_ms: Floats, ceiling_ms: Floats
) -> tuple[Floats, Floats]:
    # The range of n uniform values is on average (n - 1) / (n + 1) of their span. A single value has no range: it stays
    # a point, which is right on average; so does a cell whose values are all equal.
    low, high = least_ms.astype(np.float64), greatest_ms.astype(np.float64)
    margin = (high - low) / np.maximum(count - 1, 1)
    return np.minimum(np.maximum(low - margin, floor_ms), low), np.maximum(np.minimum(high + margin, ceiling_ms), high)


def _clock_of(cells: Cells) -> Integers:
    """Return the clock grid of each cell's due times; 0: none."""
    # A bucket of long delays is wider than an hour, so "at full hours" would look like any time within it. But if both
    # the least and the greatest due time are full hours, that is no chance.
    span_ms = cells.due_max_ms - cells.due_min_ms
    # A single due time is a point already; equal delays are a fixed delay, regardless of the clock.
    asks = (span_ms > 0) & (cells.delay_max_ms > cells.delay_min_ms)
    found = np.zeros(len(cells), np.int64)
    for grid_ms in CLOCK_GRIDS_MS:
        fits = (cells.due_min_ms % grid_ms == 0) & (cells.due_max_ms % grid_ms == 0)
        found[asks & fits & (found == 0)] = grid_ms
    found[span_ms >= found * MAX_CLOCK_POINTS] = 0
    return found


def _on_the_clock(
    pieces: Pieces, cells: Cells, index: Integers, clock_ms: Integers, delay_low: Floats, delay_high: Floats
) -> Pieces:
    """Return the cells' pieces with every due time on its grid, published at times that the bucket of delays allows."""
    owner, turn = repeated((cells.due_max_ms - cells.due_min_ms)[index] // clock_ms + 1)
    due_ms = (cells.due_min_ms[index][owner] + turn * clock_ms[owner]).astype(np.float64)
    first_ms = np.maximum(pieces.first_ms[owner], due_ms - delay_high[index][owner])
    last_ms = np.minimum(pieces.last_ms[owner], due_ms - delay_low[index][owner])
    weight = np.maximum(last_ms - first_ms, 0.0) + np.where(last_ms >= first_ms, 1.0, 0.0)
    total = np.bincount(owner, weight, len(index))
    keeps = weight > 0
    owner, weight, due_ms = owner[keeps], weight[keeps], due_ms[keeps]
    return Pieces(
        count=pieces.count[owner] * weight / total[owner],
        first_ms=first_ms[keeps],
        last_ms=last_ms[keeps],
        fixed=np.zeros(len(owner), np.bool_),
        low_ms=due_ms,
        high_ms=due_ms,
    )


def repeated(times: Integers) -> tuple[Integers, Integers]:
    """Repeat each index by its count, and number the repetitions."""
    owner = np.repeat(np.arange(len(times)), times)
    starts = np.cumsum(times) - times
    return owner, np.arange(len(owner)) - starts[owner]


def _cut(low: Floats, high: Floats, edges: Floats, many: int) -> Cut:
    """Cut spans at ascending edges; an edge opens a part."""
    last = len(edges) - 1
    first = np.searchsorted(edges, low, "right").astype(np.int64)
    inner = np.maximum(np.searchsorted(edges, high, "left") - first, 0)
    owner, turn, share = _parts(inner, many)
    if share is not None:
        spot = low[owner] + share * (high - low)[owner]
        turn = np.where(np.isnan(spot), turn, np.searchsorted(edges, spot, "right") - first[owner])
    opens, closes = edges[np.clip(first[owner] + turn - 1, 0, last)], edges[np.clip(first[owner] + turn, 0, last)]
    return _cut_parts(low, high, inner, owner, turn, share, opens, closes)


def _cut_evenly(low: Floats, high: Floats, slot_ms: int, many: int) -> Cut:
    """Cut spans at every multiple of ``slot_ms``, like `_cut`."""
    first = np.floor(low / slot_ms).astype(np.int64) + 1
    inner = np.maximum(np.ceil(high / slot_ms).astype(np.int64) - first, 0)
    owner, turn, share = _parts(inner, many)
    if share is not None:
        spot = low[owner] + share * (high - low)[owner]
        found = np.floor(np.where(np.isnan(spot), 0.0, spot) / slot_ms).astype(np.int64) + 1
        turn = np.where(np.isnan(spot), turn, found - first[owner])
    closes: Floats = ((first[owner] + turn) * slot_ms).astype(np.float64)
    return _cut_parts(low, high, inner, owner, turn, share, closes - slot_ms, closes)


def _parts(inner: Integers, many: int) -> tuple[Integers, Integers, Floats | None]:
    """Return (owner, number, place) of each part of spans with the given numbers of inner edges."""
    # The place is NaN for a span that is cut at all its edges. For a span with too many edges the place is a point
    # within the span, from 0 to 1: the part that contains the point represents its share. None: no span has too many
    # edges.
    if not len(inner) or int(inner.max()) < MAX_CANCELLATIONS or int(inner.sum()) + len(inner) <= many:
        return *repeated(inner + 1), None
    owner, turn = repeated(np.minimum(inner, MAX_CANCELLATIONS - 1) + 1)
    offset = (owner * GOLDEN) % 1.0
    return owner, turn, np.where(inner[owner] < MAX_CANCELLATIONS, np.nan, (turn + offset) / MAX_CANCELLATIONS)


def _cut_parts(
    low: Floats,
    high: Floats,
    inner: Integers,
    owner: Integers,
    turn: Integers,
    place: Floats | None,
    opens: Floats,
    closes: Floats,
) -> Cut:
    part_low = np.where(turn <= 0, low[owner], opens)
    part_high = np.where(turn >= inner[owner], high[owner], closes)
    width = high - low
    share = np.where(inner[owner] > 0, (part_high - part_low) / np.where(width > 0, width, 1.0)[owner], 1.0)
    if place is not None:
        share = np.where(np.isnan(place), share, 1.0 / MAX_CANCELLATIONS)
    return owner, part_low, part_high, share


def cut_at_delays(pieces: Pieces, edges_ms: Floats, many: int) -> Pieces:
    """Cut pieces at delay edges: fixed delays are cut by delay, due times by publish time (the due time stays)."""
    # Due times with a wider spread than the publish times are cut as delays from the middle publish time.
    wide = ~pieces.fixed & (pieces.high_ms - pieces.low_ms > pieces.last_ms - pieces.first_ms)
    fixed, clock = np.flatnonzero(pieces.fixed | wide), np.flatnonzero(~pieces.fixed & ~wide)
    by_delay = pieces.take(fixed)
    offset_ms = np.where(by_delay.fixed, 0.0, by_delay.publish_ms)
    by_delay = replace(
        by_delay,
        fixed=np.ones(len(fixed), np.bool_),
        low_ms=np.maximum(by_delay.low_ms - offset_ms, 0.0),
        high_ms=np.maximum(by_delay.high_ms - offset_ms, 0.0),
    )
    owner, low, high, share = _cut(by_delay.low_ms, by_delay.high_ms, edges_ms, many)
    by_delay = by_delay.take(owner)
    by_delay = replace(by_delay, low_ms=low, high_ms=high, count=by_delay.count * share)
    by_publish = pieces.take(clock)
    due_ms = by_publish.due_ms
    owner, low, high, share = _cut(due_ms - by_publish.last_ms, due_ms - by_publish.first_ms, edges_ms, many)
    by_publish = by_publish.take(owner)
    by_publish = replace(
        by_publish, first_ms=due_ms[owner] - high, last_ms=due_ms[owner] - low, count=by_publish.count * share
    )
    return Pieces.joined(by_delay, by_publish)


def cut_at_slots(pieces: Pieces, slot_ms: int, many: int) -> Pieces:
    """Cut pieces at the edges of slots or of calendar intervals, by due time."""
    pieces = _in_parts(pieces, slot_ms / PARTS_PER_SLOT)
    publish_ms = pieces.publish_ms
    narrow = pieces.fixed & (pieces.high_ms - pieces.low_ms <= pieces.last_ms - pieces.first_ms)
    by_publish = pieces.take(np.flatnonzero(narrow))
    middle_ms = (by_publish.low_ms + by_publish.high_ms) / 2
    owner, low, high, share = _cut_evenly(
        by_publish.first_ms + middle_ms, by_publish.last_ms + middle_ms, slot_ms, many
    )
    by_publish = by_publish.take(owner)
    by_publish = replace(
        by_publish, first_ms=low - middle_ms[owner], last_ms=high - middle_ms[owner], count=by_publish.count * share
    )
    # Due times of the other pieces are practically independent of the publish time within such a short part.
    wide = np.flatnonzero(~narrow)
    by_due = pieces.take(wide)
    offset_ms = np.where(by_due.fixed, publish_ms[wide], 0.0)
    owner, low, high, share = _cut_evenly(by_due.low_ms + offset_ms, by_due.high_ms + offset_ms, slot_ms, many)
    by_due = by_due.take(owner)
    by_due = replace(by_due, fixed=np.zeros(len(owner), np.bool_), low_ms=low, high_ms=high, count=by_due.count * share)
    return Pieces.joined(by_publish, by_due)


def cut_at_releases(pieces: Pieces, table: tuple[Step, ...]) -> Pieces:
    """Cut publish times at the release of the slot that contains their due times."""
    for step in table:
        if step.kind != "slot":
            continue
        release_ms = np.floor(pieces.due_ms / step.slot_ms) * step.slot_ms - step.headstart_ms
        crosses = (pieces.first_ms < release_ms) & (release_ms < pieces.last_ms)
        if not crosses.any():
            continue
        split = np.flatnonzero(crosses)
        both = pieces.take(split)
        share = (release_ms[split] - both.first_ms) / (both.last_ms - both.first_ms)
        early = replace(both, last_ms=release_ms[split], count=both.count * share)
        late = replace(both, first_ms=release_ms[split], count=both.count * (1 - share))
        pieces = Pieces.joined(pieces.take(np.flatnonzero(~crosses)), early, late)
    return pieces


def _in_parts(pieces: Pieces, part_ms: float) -> Pieces:
    """Cut publish times into equal parts of at most ``part_ms`` (at most `MAX_PARTS`)."""
    span_ms = pieces.last_ms - pieces.first_ms
    parts = np.clip(np.ceil(span_ms / part_ms), 1, MAX_PARTS).astype(np.int64)
    owner, turn = repeated(parts)
    if len(owner) == len(pieces):
        return pieces
    part_span_ms = (span_ms / parts)[owner]
    first_ms = pieces.first_ms[owner] + turn * part_span_ms
    cut = pieces.take(owner)
    return replace(cut, first_ms=first_ms, last_ms=first_ms + part_span_ms, count=cut.count / parts[owner])


DIRECT = -1  # group of timers that no slot released
SENT = -1  # a producer, in place of a step


STAYS_AT_ONCE = 250_000  # stays that are looked at together: more take memory, and no less time


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stays(Arrays):
    """Timers that waited in the holding topics of a step, once or several times in a row, in arrays of the same
    length.
    """

    count: Floats  # timers
    entered_ms: Floats  # middle of the time of entry, of the first stay
    released_ms: Floats  # middle of the time of release; the next stay begins there
    # half of the time over which they enter; they leave a tier over the same time, but a slot all at once
    half_ms: Floats
    came_from: Integers  # the index of the step that they hopped from; `SENT`: producers sent them
    times: Integers  # number of stays in a row

    @property
    def gone_ms(self) -> Floats:
        """Time from the first stay in a row to the last."""
        found: Floats = (self.times - 1) * (self.released_ms - self.entered_ms)
        return found

    def out_of(self, source: int, step: int) -> Stays:
        """Select the stays in this step of timers that hopped from ``source``."""
        if source != step:
            found = self.take(np.flatnonzero(self.came_from == source))
            return replace(found, times=np.ones_like(found.times))
        found = self.take(np.flatnonzero(self.times > 1))
        second_ms = 2 * found.released_ms - found.entered_ms
        return replace(found, entered_ms=found.released_ms, released_ms=second_ms, times=found.times - 1)

    def singly(self) -> Iterator[Stays]:
        """Iterate over all stays, some `STAYS_AT_ONCE` at once; ``came_from`` is that of the first in a row."""
        reached, low = np.cumsum(self.times), 0
        while low < len(reached):
            high = int(np.searchsorted(reached, reached[low] + STAYS_AT_ONCE, "left"))
            owner, turn = repeated(self.times[low:high])
            part = self.take(low + owner)
            gone_ms = turn * (part.released_ms - part.entered_ms)
            yield replace(
                part,
                entered_ms=part.entered_ms + gone_ms,
                released_ms=part.released_ms + gone_ms,
                times=np.ones_like(turn),
            )
            low = high


_NONE = np.zeros(0)
_NO_NUMBERS = np.zeros(0, np.int64)
NO_STAYS = Stays(
    count=_NONE, entered_ms=_NONE, released_ms=_NONE, half_ms=_NONE, came_from=_NO_NUMBERS, times=_NO_NUMBERS
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flow:
    """Pieces with their routes through a plan."""

    pieces: Pieces  # the pieces, see `Pieces`
    # time from publish to arrival in the due topic; for a slot, which releases all at once, that of the middle
    stay_ms: Floats
    arrival_ms: Floats  # the arrival time of pieces that a slot releases, else NaN (they arrive a stay after publish)
    group: Integers  # pieces of a group are in one run of positions: the release of a ring's slot, or `DIRECT`
    topic: Integers  # the due topic: 0, or the number of the calendar interval since 1970
    hops: Integers  # hops of each piece
    step_entries: Floats  # entries that each step of the table (the due step included) receives in all
    stays: tuple[Stays, ...]  # for each step, the timers that waited in it
    intake: Stays  # timers that passed through the intake, where they do not wait
    # for each piece, True for the originals of moved timers: entries of the due topic, acknowledged when they are sent,
    # and no timers of their own
    acked_originals: Flags


def flow_of(plan: Plan, *cells: Cells, resolution: Resolution = CLOSE) -> Flow:
    # Delays beyond the plan's ``max_delay`` are routed all the same. Finer cells cost time, coarser cells precision.
    return routed(plan, Pieces.joined(*(pieces_of(part) for part in cells)), resolution)


def routed(plan: Plan, pieces: Pieces, resolution: Resolution = CLOSE) -> Flow:
    """Send pieces through a plan."""
    table = steps(plan)
    return _beside_shadow(plan, table, pieces, resolution) if plan.intake else _routed(table, pieces, resolution)


def _beside_shadow(plan: Plan, table: tuple[Step, ...], pieces: Pieces, resolution: Resolution) -> Flow:
    """Keep near timers where they were sent; far timers leave their originals there, and a copy goes the plan's way."""
    bounds_ms = np.array([far_ms(plan), plan.max_delay_ms + 1], np.float64)
    pieces = cut_at_delays(pieces, bounds_ms, resolution.parts)
    delay_ms = pieces.due_ms - pieces.publish_ms
    far = (delay_ms >= bounds_ms[0]) & (delay_ms < bounds_ms[1])
    moved = pieces.take(np.flatnonzero(far))
    at_once = np.zeros(len(moved))
    originals = replace(moved, fixed=np.ones(len(moved), np.bool_), low_ms=at_once, high_ms=at_once)
    native = _followed(table[-1:], Pieces.joined(pieces.take(np.flatnonzero(~far)), originals))
    copies = _routed(table, moved, resolution)
    whole = copies.pieces
    middle_ms, half_ms = np.floor(whole.publish_ms), (whole.last_ms - whole.first_ms) / 2
    intake = Stays(
        count=whole.count,
        entered_ms=middle_ms,
        released_ms=middle_ms,
        half_ms=half_ms,
        came_from=np.full(len(whole), SENT, np.int64),
        times=np.ones(len(whole), np.int64),
    )
    acked_originals = np.arange(len(native.pieces)) >= len(native.pieces) - len(moved)
    step_entries = copies.step_entries.copy()
    step_entries[-1] += native.step_entries[-1]
    copies = replace(copies, hops=copies.hops + 1)  # the hop out of the intake
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(native, name), getattr(copies, name)])
        for name in ("stay_ms", "arrival_ms", "group", "topic", "hops")
    }
    return replace(
        copies,
        pieces=Pieces.joined(native.pieces, whole),
        **joined,
        step_entries=step_entries,
        intake=intake,
        acked_originals=np.concatenate([acked_originals, np.zeros(len(whole), np.bool_)]),
    )


def _routed(table: tuple[Step, ...], pieces: Pieces, resolution: Resolution) -> Flow:
    slot_ms = min((step.slot_ms for step in table if step.kind == "slot"), default=table[-1].interval_ms)
    if slot_ms:
        pieces = cut_at_releases(cut_at_slots(pieces, slot_ms, resolution.parts), table)
    delay_high_ms = pieces.high_ms - np.where(pieces.fixed, 0.0, pieces.first_ms)
    edges_ms = delay_edges(table, int(delay_high_ms.max(initial=0.0)) + 1)
    if len(edges_ms):
        pieces = cut_at_delays(pieces, edges_ms, resolution.parts)
    return _followed(table, pieces)


def held(table: tuple[Step, ...], at_ms: Floats, due_ms: Floats) -> tuple[Integers, Floats]:
    """Make one routing decision for each timer."""
    index = np.full(len(at_ms), len(table) - 1, np.int64)
    release_ms = at_ms.copy()
    is_open = np.ones(len(at_ms), np.bool_)
    for number, step in enumerate(table[:-1]):
        if step.kind == "tier":
            takes = is_open & (due_ms - at_ms >= step.min_remaining_ms)
            leaves_ms = at_ms + step.stay_ms
        else:
            leaves_ms = np.floor(due_ms / step.slot_ms) * step.slot_ms - step.headstart_ms
            takes = is_open & (leaves_ms > at_ms)
        index[takes] = number
        release_ms[takes] = leaves_ms[takes]
        is_open &= ~takes
    return index, release_ms


def delay_edges(table: tuple[Step, ...], longest_ms: int) -> Floats:
    """Return the delays at which the route through the tiers of a table changes, ascending, without 0."""
    # Spans of remaining time are run through the table: a span is cut at each threshold within it; a span that a tier
    # holds returns shorter by the tier's stay.
    tiers = [step for step in table if step.kind == "tier"]
    if not tiers:
        return np.zeros(0)
    thresholds_ms = np.array(sorted({step.min_remaining_ms for step in tiers}), np.float64)
    low_ms, end_ms, gone_ms = np.zeros(1), np.array([longest_ms + 1.0]), np.zeros(1)
    found: list[Floats] = []
    while len(low_ms):
        before = np.searchsorted(thresholds_ms, low_ms, "right")
        cuts = np.searchsorted(thresholds_ms, end_ms, "left") - before
        owner, turn = repeated(np.maximum(cuts, 0) + 1)
        threshold = np.minimum(before[owner] + turn, len(thresholds_ms)) - 1
        cut_low = np.where(turn == 0, low_ms[owner], thresholds_ms[np.maximum(threshold, 0)])
        is_last = turn == cuts[owner]
        following = np.minimum(threshold + 1, len(thresholds_ms) - 1)
        cut_end = np.where(is_last, end_ms[owner], thresholds_ms[following])
        gone = gone_ms[owner]
        found.append(cut_low + gone)
        step, release_ms = held(table, np.zeros(len(cut_low)), cut_low)
        is_held = step != len(table) - 1
        stay_ms = release_ms[is_held]
        low_ms, end_ms, gone_ms = cut_low[is_held] - stay_ms, cut_end[is_held] - stay_ms, gone[is_held] + stay_ms
    edges_ms = np.unique(np.concatenate(found))
    return edges_ms[edges_ms > 0]


def _followed(table: tuple[Step, ...], pieces: Pieces) -> Flow:
    publish_ms = np.floor(pieces.publish_ms)
    due_ms = np.maximum(np.floor(pieces.due_ms), publish_ms)
    at_ms = publish_ms.copy()
    half_ms = (pieces.last_ms - pieces.first_ms) / 2
    hops = np.zeros(len(pieces), np.int64)
    group = np.full(len(pieces), DIRECT, np.int64)
    arrival_ms = np.full(len(pieces), np.nan)
    step_entries = np.zeros(len(table))
    stays: list[list[Stays]] = [[] for _ in table]
    moving = np.arange(len(pieces))
    came_from = np.full(len(pieces), SENT, np.int64)
    while len(moving):
        index, release_ms = held(table, at_ms[moving], due_ms[moving])
        for number, step in enumerate(table[:-1]):
            here = index == number
            mine = moving[here]
            if not len(mine):
                continue
            entered_ms, times = at_ms[mine], np.ones(len(mine), np.int64)
            if step.kind == "tier":
                spare_ms = due_ms[mine] - entered_ms - step.min_remaining_ms
                times += (spare_ms // step.stay_ms).astype(np.int64)
            found = Stays(
                count=pieces.count[mine],
                entered_ms=entered_ms,
                released_ms=release_ms[here],
                # Timers released by a slot all at once enter the next topic at once.
                half_ms=np.where(group[mine] == DIRECT, half_ms[mine], 0.0),
                came_from=came_from[mine],
                times=times,
            )
            stays[number].append(found)
            step_entries[number] += float((found.count * times).sum())
            at_ms[mine] = found.released_ms + found.gone_ms
            hops[mine] += times
            if step.kind == "slot":
                arrival_ms[mine] = at_ms[mine]
                group[mine] = at_ms[mine].astype(np.int64)
        is_held = index != len(table) - 1
        step_entries[-1] += float(pieces.count[moving[~is_held]].sum())
        moving = moving[is_held]
        came_from[moving] = index[is_held]
    interval_ms = table[-1].interval_ms
    topic = (due_ms // interval_ms).astype(np.int64) if interval_ms else np.zeros(len(pieces), np.int64)
    return Flow(
        pieces=pieces,
        stay_ms=at_ms - publish_ms,
        arrival_ms=arrival_ms,
        group=group,
        topic=topic,
        hops=hops,
        step_entries=step_entries,
        stays=tuple(Stays.joined(NO_STAYS, *found) for found in stays),
        intake=NO_STAYS,
        acked_originals=np.zeros(len(pieces), np.bool_),
    )

"""Counting of ranges of acknowledged entries: the numpy kernel that reads each entry once, on a grid of moments.

A count at a moment of the grid is exact. Between two moments a count only has a bound: the count at the earlier moment
plus the ranges that begin in the span. If that bound is above the greatest count found so far, a finer grid of only
these spans decides (`Grid.refined`); times are whole milliseconds, so the refinement ends.

For entries in position order with acknowledgement times ``a_i``, a range begins at entry i from ``a_i`` until
``a_(i-1)``, if that is later: as in `timewheel.core.gap_law`, only descents matter. A range never spans ledgers, so the
first entry of a ledger begins a range from ``a_i`` until the latest acknowledgement of *all* entries before it: until
then the mark-delete position is behind the ledger.

Entries come in chunks of position order. Each chunk is counted by itself (`RangeCounter`) and reduced to a `Part` for
each partition: its ends, the changes that its pairs of neighbours make on the grid, and the first entries of ledgers,
whose ranges depend on earlier chunks. `Stitcher` joins the parts of a partition, and `GapTally` sums partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
DENSE = 4  # a table is used for up to this ratio of possible values to values


def distinct(values: Integers) -> tuple[Integers, Integers]:
    """Return the distinct values, ascending, and for each value its index among them; no value may be negative."""
    if not _is_dense(values):
        return np.unique(values, return_inverse=True)
    table = np.bincount(values)
    present = np.flatnonzero(table)
    if len(present) == len(table):
        return present, values
    table[present] = np.arange(len(present))
    return present, table[values]


def _is_dense(values: Integers) -> bool:
    return len(values) > 0 and int(values.max()) < DENSE * len(values)


NEVER_MS = 2**60  # time for "not acknowledged": after every moment of every grid
DEFAULT_POINTS = 4_096
MAX_POINTS = 65_536  # most moments of a grid: the counts of a plan stay within three megabytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """Distinct moments, ascending.

    Args:
        points_ms: The moments, UTC milliseconds; at least one.
        step_ms: Distance of the moments of a regular grid, which makes lookups fast; 0: irregular.
        spans: For each moment, whether the span since the previous moment belongs to the grid: it is longer than a
            millisecond, and no earlier grid has settled it. The first moment has no span.
    """

    points_ms: Integers
    step_ms: int = 0
    spans: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))

    @classmethod
    def regular(cls, first_ms: int, last_ms: int, points: int = DEFAULT_POINTS) -> Grid:
        """Create about ``points`` equidistant moments, the first at ``first_ms``, the last not before ``last_ms``."""
        if not 2 <= points <= MAX_POINTS:
            raise ValueError(f"points is {points}: a grid has 2 to {MAX_POINTS}")
        if last_ms < first_ms:
            raise ValueError(f"a grid cannot end at {last_ms} ms, before its start at {first_ms} ms")
        step_ms = max(1, -(-(last_ms - first_ms) // (points - 1)))
        count = -(-(last_ms - first_ms) // step_ms) + 1
        return cls._of(first_ms + step_ms * np.arange(count, dtype=np.int64), step_ms=step_ms)

    @classmethod
    def at(cls, moments_ms: Integers) -> Grid:
        """Create a grid of exactly these moments, in any order."""
        return cls._of(np.unique(np.asarray(moments_ms, np.int64)))

    @classmethod
    def _of(cls, points_ms: Integers, step_ms: int = 0) -> Grid:
        spans = np.zeros(len(points_ms), np.bool_)
        spans[1:] = np.diff(points_ms) > 1
        return cls(points_ms=points_ms, step_ms=step_ms, spans=spans)

    def __len__(self) -> int:
        return len(self.points_ms)

    def index_of(self, times_ms: Integers) -> Integers:
        """Return for each time the first moment of the grid at or after the time; ``len(grid)``: there is none."""
        if not self.step_ms:
            found: Integers = np.searchsorted(self.points_ms, times_ms, side="left").astype(np.int64, copy=False)
            return found
        rounded_up = (times_ms - (int(self.points_ms[0]) - self.step_ms + 1)) // self.step_ms
        return np.clip(rounded_up, 0, len(self.points_ms), out=rounded_up)

    def refined(self, spans: NDArray[np.bool_], points: int = MAX_POINTS) -> Grid | None:
        """Create a grid of the wanted spans only, each divided into equal parts.

        Args:
            spans: For each moment, whether the span since the previous moment is wanted; within ``self.spans``.
            points: The most moments of the new grid; each wanted span is halved in any case.

        Returns:
            None if no span can be divided.
        """
        wanted = np.flatnonzero(spans & self.spans)
        if not len(wanted):
            return None
        lows_ms, highs_ms = self.points_ms[wanted - 1], self.points_ms[wanted]
        parts = max(2, points // len(wanted) - 1)
        steps_ms = np.maximum(1, -(-(highs_ms - lows_ms) // parts))
        counts = -(-(highs_ms - lows_ms) // steps_ms) + 1
        begins = np.cumsum(counts) - counts
        offsets = np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(begins, counts)
        points_ms = np.minimum(
            np.repeat(lows_ms, counts) + offsets * np.repeat(steps_ms, counts), np.repeat(highs_ms, counts)
        )
        # The moment between two neighbouring spans occurs twice; its first occurrence has the span before it.
        once = np.ones(len(points_ms), np.bool_)
        once[1:] = points_ms[1:] != points_ms[:-1]
        points_ms, is_inside = points_ms[once], (offsets > 0)[once]
        is_inside[1:] &= np.diff(points_ms) > 1
        return Grid(points_ms=points_ms, spans=is_inside)


Place = tuple[int, int]  # a position: (ledger number, entry in the ledger)
_NONE = np.zeros(0, np.int64)
_COMPACT_FROM = 1 << 20  # number of gathered changes above which they are summed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Changes:
    """Changes of the number of ranges along a grid: each moment of the grid at most once, ascending."""

    index: Integers  # of the grid's points, each for the span from the previous moment (exclusive) to this one
    begun: Integers  # ranges that began
    ended: Integers  # ranges that ended, including those that began in the same span

    @classmethod
    def none(cls) -> Changes:
        return cls(index=_NONE, begun=_NONE, ended=_NONE)

    @classmethod
    def summed(cls, several: Iterable[Changes]) -> Changes:
        found = list(several)
        if len(found) == 1:
            return found[0]
        if not found:
            return cls.none()
        index, where = distinct(np.concatenate([changes.index for changes in found]))
        return cls(
            index=index,
            begun=_sums(where, np.concatenate([changes.begun for changes in found]), len(index)),
            ended=_sums(where, np.concatenate([changes.ended for changes in found]), len(index)),
        )

    def narrowed(self) -> Changes:
        """Return the same changes in the shortest integers: on their way to another task they take a sixth."""
        arrays = (self.index, self.begun, self.ended)
        index, begun, ended = (one.astype(np.min_scalar_type(one.max(initial=0))) for one in arrays)
        return Changes(index=index, begun=begun, ended=ended)

    def counts(self, points: int) -> Integers:
        """Return the exact number of ranges at each moment of the grid."""
        changes = np.zeros(points, np.int64)
        changes[self.index] = np.subtract(self.begun, self.ended, dtype=np.int64)
        return np.cumsum(changes, out=changes)

    def bounds(self, points: int) -> Integers:
        """Return for each moment an upper bound of the ranges in the span since the previous moment."""
        counts = self.counts(points)
        bounds = np.zeros(points, np.int64)
        bounds[1:] = counts[:-1]
        bounds[self.index] += self.begun
        return bounds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """Counts of one chunk of position order for one partition."""

    entries: int  # entries of the chunk, at least 1
    first_ms: int  # acknowledgement time of the first entry; `NEVER_MS`: not acknowledged
    last_ms: int  # acknowledgement time of the last entry
    greatest_ms: int  # latest acknowledgement time of all; `NEVER_MS` also if an entry between them is missing
    # position of the first entry; None: in a single ledger, directly behind the previous part
    first_place: Place | None
    last_place: Place | None  # position of the last entry
    border_ms: Integers  # acknowledgement times of the first entries of ledgers, except the chunk's first entry
    border_until_ms: Integers  # for each of these, the latest acknowledgement before it within the chunk
    changes: Changes  # changes by pairs of neighbours within the chunk


class RangeCounter:
    """Counts the ranges of one chunk, fed in position order.

    The caller numbers partitions from 0, in the order of their first entries. State is bounded by partitions times
    grid, and by the number of ledgers.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._width = len(grid) + 1
        self._has_places = False
        self._entries = _NONE
        self._first_ms, self._last_ms, self._greatest_ms = _NONE, _NONE, _NONE
        self._first, self._last = np.zeros((2, 0), np.int64), np.zeros((2, 0), np.int64)
        self._gathered = _Gathered()
        self._borders: list[Integers] = []

    def open(self, partition: int) -> None:
        """Open the partition of the next number."""
        if partition != len(self._entries):
            raise ValueError(f"partition {partition} is opened out of turn, after {len(self._entries)}")
        self._entries = np.append(self._entries, 0)
        self._first_ms, self._last_ms = np.append(self._first_ms, 0), np.append(self._last_ms, -NEVER_MS)
        self._greatest_ms = np.append(self._greatest_ms, -NEVER_MS)
        self._first = np.append(self._first, [[0], [0]], axis=1)
        self._last = np.append(self._last, [[0], [0]], axis=1)

    def feed(
        self,
        partition: Integers | int,
        acknowledged_ms: Integers,
        ledger: Integers | None = None,
        entry: Integers | None = None,
    ) -> None:
        # `NEVER_MS`: not acknowledged. A single number as ``partition`` is faster. Ledger and entry are given together,
        # ascending within a partition; a missing entry between two counts as not acknowledged.
        if not len(acknowledged_ms):
            return
        places = None if ledger is None or entry is None else np.stack([ledger, entry])
        if isinstance(partition, int):
            heads, met = np.zeros(1, np.int64), np.array([partition])
        else:
            # Small numbers are sorted by radix, in linear time.
            order = np.argsort(partition.astype(np.min_scalar_type(len(self._entries))), kind="stable")
            sizes = np.bincount(partition)
            met = np.flatnonzero(sizes)
            heads = (np.cumsum(sizes) - sizes)[met]
            partition, acknowledged_ms = np.repeat(met, sizes[met]), acknowledged_ms[order]
            places = None if places is None else places[:, order]

        before_ms = _shifted(acknowledged_ms, heads, self._last_ms[met])
        latest_ms = acknowledged_ms
        if places is not None:
            self._has_places = True
            is_border, is_hole = self._breaks(places, heads, met)
            before_ms[is_border] = -NEVER_MS
            before_ms[is_hole] = NEVER_MS
            latest_ms = np.where(is_hole, NEVER_MS, acknowledged_ms)
            self._note_borders(heads, met, acknowledged_ms, latest_ms, is_border)
        descents = np.flatnonzero(acknowledged_ms < before_ms)
        base = (partition if isinstance(partition, int) else partition[descents]) * self._width
        self._gathered.add(
            base + self._grid.index_of(acknowledged_ms[descents]), base + self._grid.index_of(before_ms[descents])
        )
        self._remember(met, heads, acknowledged_ms, latest_ms, places)

    def parts(self) -> list[Part]:
        """Return a part for each partition, by partition number. Opened partitions must have entries."""
        borders = np.concatenate(self._borders, axis=1) if self._borders else np.zeros((3, 0), np.int64)
        found = []
        for number, entries in enumerate(self._entries.tolist()):
            own = borders[:, borders[0] == number]
            found.append(
                Part(
                    entries=entries,
                    first_ms=int(self._first_ms[number]),
                    last_ms=int(self._last_ms[number]),
                    greatest_ms=int(self._greatest_ms[number]),
                    first_place=_place(self._first[:, number]) if self._has_places else None,
                    last_place=_place(self._last[:, number]) if self._has_places else None,
                    border_ms=own[1],
                    border_until_ms=own[2],
                    changes=self._gathered.between(number * self._width, len(self._grid)).narrowed(),
                )
            )
        return found

    def _breaks(self, places: Integers, heads: Integers, met: Integers) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return masks of the first entries of ledgers, and of the entries before which an entry is missing."""
        ledger, entry = places
        previous_ledger = _shifted(ledger, heads, self._last[0][met])
        previous_entry = _shifted(entry, heads, self._last[1][met])
        is_new = ledger != previous_ledger
        is_hole = np.where(is_new, entry != 0, entry != previous_entry + 1)
        starting = heads[self._entries[met] == 0]
        is_hole[starting] = False
        is_border = is_new & ~is_hole
        is_border[starting] = False
        return is_border, is_hole

    def _note_borders(
        self,
        heads: Integers,
        met: Integers,
        acknowledged_ms: Integers,
        latest_ms: Integers,
        is_border: NDArray[np.bool_],
    ) -> None:
        if not is_border.any():
            return
        is_cut = is_border.copy()
        is_cut[heads] = True
        cuts = np.flatnonzero(is_cut)
        stretch = np.searchsorted(heads, cuts, side="right") - 1
        # The latest time of each stretch between two cuts; before a partition's first stretch, the time of earlier
        # pieces.
        until_ms = np.concatenate([_NONE, [-NEVER_MS], np.maximum.reduceat(latest_ms, cuts)[:-1]])
        until_ms[heads[stretch] == cuts] = self._greatest_ms[met]
        until_ms = _running_max(until_ms, stretch)
        own = is_border[cuts]
        self._borders.append(np.stack([met[stretch[own]], acknowledged_ms[cuts[own]], until_ms[own]]))

    def _remember(
        self, met: Integers, heads: Integers, acknowledged_ms: Integers, latest_ms: Integers, places: Integers | None
    ) -> None:
        starting = self._entries[met] == 0
        tails = np.append(heads[1:], len(acknowledged_ms)) - 1
        self._first_ms[met[starting]] = acknowledged_ms[heads[starting]]
        self._last_ms[met] = acknowledged_ms[tails]
        self._greatest_ms[met] = np.maximum(self._greatest_ms[met], np.maximum.reduceat(latest_ms, heads))
        self._entries[met] += np.diff(heads, append=len(acknowledged_ms))
        if places is not None:
            self._first[:, met[starting]] = places[:, heads[starting]]
            self._last[:, met] = places[:, tails]


class Stitcher:
    """Joins the parts of a due partition, added in the order of positions."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._gathered = _Gathered()
        self._previous: Part | None = None
        self._greatest_ms = -NEVER_MS
        self.entries = 0  # entries of all parts

    def add(self, part: Part) -> None:
        previous = self._previous
        if previous is not None:
            if _is_hole(previous, part):
                self._greatest_ms = NEVER_MS  # a missing entry is not acknowledged
            until_ms = _until_ms(previous, part, self._greatest_ms)
            self._ranges(np.array([part.first_ms], np.int64), np.array([until_ms], np.int64))
        self._ranges(part.border_ms, np.maximum(part.border_until_ms, self._greatest_ms))
        self._gathered.add_changes(part.changes)
        self._greatest_ms = max(self._greatest_ms, part.greatest_ms)
        self._previous = part
        self.entries += part.entries

    def changes(self) -> Changes:
        return self._gathered.between(0, len(self._grid))

    def _ranges(self, begun_ms: Integers, ended_ms: Integers) -> None:
        real = begun_ms < ended_ms
        if real.any():
            self._gathered.add(self._grid.index_of(begun_ms[real]), self._grid.index_of(ended_ms[real]))


def _until_ms(previous: Part, part: Part, greatest_ms: int) -> int:
    """Return the end of the range that the first entry of ``part`` begins."""
    if _is_hole(previous, part):
        return NEVER_MS
    if previous.last_place is None or part.first_place is None or previous.last_place[0] == part.first_place[0]:
        return previous.last_ms
    return greatest_ms


def _is_hole(previous: Part, part: Part) -> bool:
    if previous.last_place is None or part.first_place is None:
        return False
    (ledger, entry), (next_ledger, next_entry) = previous.last_place, part.first_place
    return next_entry != (entry + 1 if next_ledger == ledger else 0)


class _Gathered:
    """Beginnings and ends of ranges, summed from time to time so that their size is bounded by the distinct keys."""

    def __init__(self) -> None:
        self._cached: list[Changes] = []
        self._size = 0

    def add(self, begun: Integers, ended: Integers) -> None:
        if _is_dense(ended):
            tables = [np.bincount(of, minlength=int(ended.max()) + 1) for of in (begun, ended)]  # ranges end later
            index = at = np.flatnonzero((tables[0] | tables[1]) > 0)
        else:
            index, where = np.unique(np.concatenate([begun, ended]), return_inverse=True)
            at = np.arange(len(index))
            tables = [np.bincount(of, minlength=len(index)) for of in np.split(where, [len(begun)])]
        self.add_changes(Changes(index=index, begun=tables[0][at], ended=tables[1][at]))

    def add_changes(self, changes: Changes) -> None:
        self._cached.append(changes)
        self._size += len(changes.index)
        if self._size > _COMPACT_FROM:
            self._compact()

    def between(self, first_key: int, width: int) -> Changes:
        """Return the changes from a key on, renumbered from 0; keys from ``width`` on are after the grid's end."""
        if len(self._cached) > 1:
            self._compact()
        changes = self._cached[0] if self._cached else Changes.none()
        low, high = np.searchsorted(changes.index, [first_key, first_key + width])
        return Changes(
            index=changes.index[low:high] - first_key, begun=changes.begun[low:high], ended=changes.ended[low:high]
        )

    def _compact(self) -> None:
        self._cached = [Changes.summed(self._cached)]
        # Changes with distinct keys cannot be summed; the next attempt waits for as many new changes.
        self._size = 0


def _shifted(values: Integers, heads: Integers, carried: Integers) -> Integers:
    """Shift each partition's values by one entry; at heads the value of the previous piece is inserted."""
    before = np.empty_like(values)
    before[1:] = values[:-1]
    before[heads] = carried
    return before


def _running_max(values: Integers, segment: Integers) -> Integers:
    """Return the running maximum, restarted with each segment (ascending numbers)."""
    # Ranks instead of times: segment * count + rank stays small, and a later segment is above all earlier segments.
    distinct, ranks = np.unique(values, return_inverse=True)
    running = np.maximum.accumulate(segment * len(distinct) + ranks)
    found: Integers = distinct[running % len(distinct)]
    return found


def _sums(where: NDArray[np.intp], values: Integers, size: int) -> Integers:
    # Through float64, which holds counts of entries exactly.
    return np.bincount(where, weights=values, minlength=size).astype(np.int64)


def _place(pair: Integers) -> Place:
    return int(pair[0]), int(pair[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The most gap ranges over time."""

    gap_count: int  # the highest count at a counted moment
    gap_count_limit: int  # upper bound of the count at all other moments; equal to ``gap_count``: the peak is exact
    at_ms: int  # the first moment with ``gap_count``, UTC milliseconds

    @property
    def is_exact(self) -> bool:
        """True if no moment can have a higher count."""
        return self.gap_count == self.gap_count_limit


@dataclass(frozen=True, kw_only=True, eq=False)
class GapCounts:
    """Exact gap counts at each moment of a grid, with bounds for the spans between: of all due partitions together,
    and of the fullest, to which the broker's limit applies.

    Counts of several groups of partitions are joined by sums and maxima (`joined`), so their size does not depend on
    the numbers of rows, topics and partitions.
    """

    grid: Grid  # the moments
    entries: int  # entries of all due partitions
    # two rows: the ranges of all partitions at each moment; bounds of these in the span before
    together: NDArray[np.signedinteger]
    # three rows: the most ranges of any partition at each moment; bounds of these in the span before; and the most that
    # the same partition had at both ends of that span
    fullest: NDArray[np.signedinteger]
    topics: Mapping[str, Peak] = field(default_factory=dict)  # the peak of any due partition by topic, if wanted

    @classmethod
    def joined(cls, several: Sequence[GapCounts]) -> GapCounts:
        together = np.add.reduce([one.together for one in several])
        fullest = np.maximum.reduce([one.fullest for one in several])
        return cls(
            grid=several[0].grid,
            entries=sum(one.entries for one in several),
            together=together,
            fullest=fullest,
            topics={topic: peak for one in several for topic, peak in one.topics.items()},
        )

    @property
    def total(self) -> Integers:
        """Gap ranges of all partitions together at each moment of the grid."""
        found: Integers = self.together[0]
        return found

    @property
    def most(self) -> Integers:
        """The most gap ranges of any partition at each moment of the grid."""
        found: Integers = self.fullest[0]
        return found

    @cached_property
    def peak_of_total(self) -> Peak:
        """The most gap ranges of all partitions together at one moment."""
        return _peak(self.grid, *self.together)

    @cached_property
    def peak_per_partition(self) -> Peak:
        """The most gap ranges of any partition, to which the broker's limit applies."""
        return _peak(self.grid, *self.fullest[:2])

    def open_spans(self, *, total: float, partition: float) -> NDArray[np.bool_]:
        """Return for each moment whether the span since the previous moment may contain a greater count."""
        found: NDArray[np.bool_] = (self.together[1] > total) | (self.fullest[1] > partition)
        return found & self.grid.spans

    def above(self, gap_count: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return two masks of spans, each span ending at its moment: those in which any partition may have had more
        gaps than ``gap_count``, and those in which a partition had more at both ends.
        """
        _, may, does = self.fullest > gap_count
        return may & self.grid.spans, does & self.grid.spans

    def above_ms(self, gap_count: int) -> int:
        """Return an upper bound of the time in which any partition had more gaps, to the resolution of the spans."""
        may, _ = self.above(gap_count)
        return int(np.diff(self.grid.points_ms, prepend=self.grid.points_ms[0])[may].sum())

    def mostly(self, share: float) -> int:
        """Return the most gaps of any partition for this share of the grid's moments."""
        return int(np.quantile(self.most, share, method="higher"))


def _peak(grid: Grid, counts: Integers, bounds: Integers) -> Peak:
    at = int(np.argmax(counts))
    count = int(counts[at])
    return Peak(
        gap_count=count,
        gap_count_limit=max(count, int(bounds[grid.spans].max(initial=0))),
        at_ms=int(grid.points_ms[at if count else 0]),
    )


class GapTally:
    """Sums the changes of due partitions to `GapCounts`.

    Args:
        by_topic: Store the peaks of each topic too; partitions are then added topic by topic.
    """

    def __init__(self, grid: Grid, *, by_topic: bool = False) -> None:
        self._grid = grid
        self._by_topic = by_topic
        self._together, self._fullest = np.zeros((2, len(grid)), np.int64), np.zeros((3, len(grid)), np.int64)
        self._entries = 0
        self._topics: dict[str, Peak] = {}

    def add(self, topic: str, entries: int, changes: Changes) -> None:
        """Add a due partition."""
        self._entries += entries
        points, peak = len(self._grid), Peak(gap_count=0, gap_count_limit=0, at_ms=int(self._grid.points_ms[0]))
        if len(changes.index):
            counts, bounds = changes.counts(points), changes.bounds(points)
            self._together += counts, bounds
            lasting = np.minimum(counts, np.r_[0, counts[:-1]])
            np.maximum(self._fullest, (counts, bounds, lasting), out=self._fullest)
            if self._by_topic:
                peak = _peak(self._grid, counts, bounds)
        if self._by_topic:
            known = self._topics.get(topic, peak)
            best = max(known, peak, key=lambda one: one.gap_count)
            self._topics[topic] = replace(best, gap_count_limit=max(known.gap_count_limit, peak.gap_count_limit))

    def found(self) -> GapCounts:
        # Counts are far below 2^31: half the size for their way to the driver.
        return GapCounts(
            grid=self._grid,
            entries=self._entries,
            together=self._together.astype(np.int32),
            fullest=self._fullest.astype(np.int32),
            topics=self._topics,
        )

"""Cells: a summary of a history, bounded in size for histories of any size, and mergeable in any order.

A cell counts the timers of one slot of publish times and one log-linear bucket of delays. Counts alone are not enough:
inside a bucket they would invent a spread, while reminders are full of fixed delays and of due times on the clock
("09:00 tomorrow"), which leave no gap at all. So a cell also stores the least and the greatest publish time, delay and
due time, and its timers are taken as uniform over the narrower of the two spans.

If there are too many cells, they are made coarser: slots double, buckets halve, along a fixed ladder of levels. Slots
and buckets of a level nest in those of the next, so cells of different levels can be merged at the coarser level, and
the result does not depend on the order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

CELL_LIMIT = 400_000  # most cells of all topics of a history together: 32 MB, and evaluated for a plan within a second
FINEST_SLOT_MS = 1_000  # the broker's default tick: a gap count shows nothing finer
FINEST_BITS = 5
COARSEST_BITS = 3
BUCKET_BITS = 11  # bits of any bucket: the greatest, of a delay just below 2 ** 53 ms at the finest level, is 1,567
BITS_FROM_SLOT_MS = 512_000
"""Up to this slot only slots grow; then the buckets shrink first. A shorter slot is finer than any window in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A resolution of cells."""

    slot_ms: int  # length of a slot of publish times; slots start at multiples of it since 1970
    bits: int  # ``2 ** bits`` buckets for each doubling of the delay


_SLOTS_MS = [FINEST_SLOT_MS << doubling for doubling in range(38)]
# From the finest to the coarsest, whose slot of more than four thousand years holds any history.
LEVELS = (
    *(Level(slot_ms=slot_ms, bits=FINEST_BITS) for slot_ms in _SLOTS_MS if slot_ms <= BITS_FROM_SLOT_MS),
    *(Level(slot_ms=BITS_FROM_SLOT_MS, bits=bits) for bits in range(FINEST_BITS - 1, COARSEST_BITS - 1, -1)),
    *(Level(slot_ms=slot_ms, bits=COARSEST_BITS) for slot_ms in _SLOTS_MS if slot_ms > BITS_FROM_SLOT_MS),
    # Of many topics only the number of timers, and roughly their delays.
    *(Level(slot_ms=_SLOTS_MS[-1], bits=bits) for bits in range(COARSEST_BITS - 1, -1, -1)),
)
COARSEST_CELLS = 54  # most cells of a topic at the coarsest level: one for each doubling of a delay below 2 ** 53 ms


def bucket_of(delay_ms: Integers, bits: int) -> Integers:
    """Return the log-linear bucket of delays: exact below ``2 ** bits`` ms, then ``2 ** bits`` for each doubling."""
    # Buckets of fewer bits are unions of buckets of more bits. Delays are not negative, and below 2 ** 53.
    # frexp is exact below 2 ** 53: value = mantissa * 2 ** exponent with mantissa in [0.5, 1).
    _, exponent = np.frexp(np.maximum(delay_ms, 1).astype(np.float64))
    shift = np.maximum(exponent.astype(np.int64) - 1 - bits, 0)
    return (shift << bits) + (delay_ms >> shift)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cells:
    """Cells of a topic at a single level, ordered by (slot, bucket), each pair once, in arrays of the same length."""

    level: int  # index into `LEVELS`
    slot: Integers  # ``publish_ms // slot_ms``
    bucket: Integers  # bucket of the delay, see `bucket_of`
    count: Integers  # timers in the cell, at least 1
    publish_min_ms: Integers  # least publish time in the cell, UTC milliseconds
    publish_max_ms: Integers  # greatest publish time
    delay_min_ms: Integers  # least delay, not negative
    delay_max_ms: Integers
    due_min_ms: Integers  # least due time, UTC milliseconds
    due_max_ms: Integers  # greatest due time
    size_bytes: Integers  # sum of payload sizes; 0 if the history has no sizes

    @classmethod
    def of_timers(
        cls, publish_ms: Integers, due_ms: Integers, size_bytes: Integers | None = None, *, level: int = 0
    ) -> Cells:
        """Compute the cells of timers, at the finest level by default.

        Args:
            publish_ms: UTC milliseconds, within 2 ** 53 of 1970.
            due_ms: Never below ``publish_ms``, and less than 2 ** 53 above it.
            size_bytes: Payload sizes; None: unknown.
            level: Index into `LEVELS`.
        """
        delay_ms = due_ms - publish_ms
        ones = np.ones(len(publish_ms), np.int64)
        sizes = np.zeros(len(publish_ms), np.int64) if size_bytes is None else size_bytes
        return _grouped(level, [(ones, publish_ms, publish_ms, delay_ms, delay_ms, due_ms, due_ms, sizes)])

    @classmethod
    def of_facts(cls, level: int, facts: Iterable[Integers]) -> Cells:
        """Rebuild cells from the arrays of `facts`, in any order and also cut into pieces."""
        return _grouped(level, [tuple(facts)])

    @classmethod
    def merged(cls, parts: Iterable[Cells]) -> Cells:
        """Merge several cells, at the coarsest of their levels."""
        found = list(parts)
        if not found:
            none = np.zeros(0, np.int64)
            return cls.of_timers(none, none)
        return _merged(found, max(part.level for part in found))

    def coarsened(self, level: int) -> Cells:
        """Return the same timers at a coarser level (or at this level)."""
        if level < self.level:
            raise ValueError(f"level {level} is finer than these cells' {self.level}: what was merged stays merged")
        return _merged([self], level)

    def bounded(self, limit: int) -> Cells:
        """Return the same timers in at most ``limit`` cells (from `COARSEST_CELLS` on), at the finest level for it."""
        return bounded_together({"": [self]}, limit)[""]

    def where(self, is_wanted: NDArray[np.bool_]) -> Cells:
        wanted = np.flatnonzero(is_wanted)
        return Cells.of_facts(self.level, (fact[wanted] for fact in self.facts()))

    @property
    def middle_ms(self) -> Integers:
        """The middle of each cell's publish times, which decides to which stretch of time a cell belongs."""
        return (self.publish_min_ms + self.publish_max_ms) // 2

    def sent_within(self, from_ms: int, until_ms: int) -> Cells:
        """Select the cells whose middle is in a stretch of time, its end not included."""
        return self.where((self.middle_ms >= from_ms) & (self.middle_ms < until_ms))

    def facts(self) -> tuple[Integers, ...]:
        """Return all arrays except slot and bucket, in the order of the class: they follow from minima and level."""
        return tuple(getattr(self, name) for name in _REDUCED_BY)

    def __len__(self) -> int:
        return len(self.count)

    @property
    def slot_ms(self) -> int:
        """Length of a slot of publish times."""
        return LEVELS[self.level].slot_ms

    @property
    def timers(self) -> int:
        return int(self.count.sum())

    def with_sizes(self, size_bytes: int) -> Cells:
        """Return the cells with so many payload bytes in all, spread evenly over the timers."""
        until = np.cumsum(self.count)
        each, rest = divmod(size_bytes, self.timers)
        return replace(self, size_bytes=np.diff(until * each + until * rest // self.timers, prepend=0))


def bounded_together(cells: Mapping[str, Sequence[Cells]], limit: int) -> dict[str, Cells]:
    """Merge the cells of each topic, all at the finest common level with at most ``limit`` cells in all."""
    # A part of a history never has more cells at a level than the whole. So a part that is bounded by the same limit is
    # never coarser than the whole will be, and the merged result does not depend on the division of a history into
    # parts: this is why all topics share a level, although a quiet topic could have a finer level.
    # The level is found before anything is merged: the merged cells of a finer level may be far more than the limit.
    level = max((part.level for own in cells.values() for part in own), default=0)

    def fits(level: int) -> bool:
        most = sum(len(part) for own in cells.values() for part in own)
        return most <= limit or sum(_number_at(own, level) for own in cells.values()) <= limit

    if not fits(level):
        level = bisect_left(range(len(LEVELS) - 1), x=True, lo=min(level + 1, len(LEVELS) - 1), key=fits)
    return {topic: _merged(own, level) for topic, own in cells.items()}


def _number_at(parts: Sequence[Cells], level: int) -> int:
    """Return the number of cells of several parts together at a level, which is none of the finer ones."""
    if len(parts) == 1 and level == parts[0].level:
        return len(parts[0])
    keys = np.sort(np.concatenate([_keys(level, part.publish_min_ms, part.delay_min_ms) for part in parts]))
    return int(np.count_nonzero(np.diff(keys))) + 1 if len(keys) else 0


def _merged(parts: Sequence[Cells], level: int) -> Cells:
    if len(parts) == 1 and level == parts[0].level:
        return parts[0]
    return _grouped(level, [part.facts() for part in parts])


_REDUCED_BY = {
    "count": np.add,
    "publish_min_ms": np.minimum,
    "publish_max_ms": np.maximum,
    "delay_min_ms": np.minimum,
    "delay_max_ms": np.maximum,
    "due_min_ms": np.minimum,
    "due_max_ms": np.maximum,
    "size_bytes": np.add,
}
"""By stored array of `Cells`, in their order: the function that merges two cells into one."""


def _keys(level: int, publish_min_ms: Integers, delay_min_ms: Integers) -> Integers:
    """Return the slot and the bucket of each cell as a single number, which sorts several times faster than two."""
    # All timers of a cell have the cell's slot and bucket, at this level and at all coarser levels: use the least. A
    # bucket of a delay below 2 ** 53 has 11 bits.
    slot = publish_min_ms // LEVELS[level].slot_ms
    return (slot << BUCKET_BITS) + bucket_of(delay_min_ms, LEVELS[level].bits)


def _grouped(level: int, parts: Sequence[Sequence[Integers]]) -> Cells:
    """Merge cells or timers, given as the arrays of `Cells.facts` of some parts."""

    def joined(index: int) -> Integers:
        return parts[0][index] if len(parts) == 1 else np.concatenate([facts[index] for facts in parts])

    names = list(_REDUCED_BY)
    cell = _keys(level, joined(names.index("publish_min_ms")), joined(names.index("delay_min_ms")))
    order = np.argsort(cell)
    cell = cell[order]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = cell[1:] != cell[:-1]
    starts = np.flatnonzero(is_first)
    # An array at a time: all arrays of the parts at once would be half the memory of a task.
    reduced: dict[str, Integers] = {
        name: reduce.reduceat(joined(index)[order], starts) if len(starts) else joined(index)
        for index, (name, reduce) in enumerate(_REDUCED_BY.items())
    }
    key = cell[starts]
    return Cells(level=level, slot=key >> BUCKET_BITS, bucket=key & ((1 << BUCKET_BITS) - 1), **reduced)

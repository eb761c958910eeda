"""Ledgers and redelivery, counted: the entries that a due partition delivers again after an unload, in both formats.

A ledger is closed as a broker does it: by the first entry that finds the ledger full and old enough, or too old
(`BrokerProfile`). The rules of redelivery stand in `timewheel.spark_planner.pricing.simulation`: here they are applied
to each entry in the order of positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from timewheel.core.broker_profile import AckFormat, BrokerProfile

from ..summary.cells import Integers
from .ranges import GapCounts

FORMATS: tuple[AckFormat, ...] = ("ranges", "bitmap")
MOMENTS = 48  # moments at which redelivery is counted
TENTHS = 10
SPARE = 5  # a plan for five times the volume is judged by moments of a fifth of the ranges
NOTHING_COMPARED: Integers = np.zeros(TENTHS, np.int64)


class Ledgers:
    """Numbers the entries of a partition by ledger, fed in the order of positions."""

    def __init__(self, profile: BrokerProfile, entry_bytes: float) -> None:
        self._full = profile.full_ledger_entries(entry_bytes)
        self._min_age_ms, self._max_age_ms = profile.ledger_min_age_ms, profile.ledger_max_age_ms
        self._ledger, self._entries, self._opened_ms = -1, 0, 0

    def places(self, arrival_ms: Integers) -> tuple[Integers, Integers]:
        """Return (ledger, entry in the ledger) of the next entries; arrivals ascend."""
        sizes, firsts, low = [], [], 0
        if self._ledger < 0:
            self._open(int(arrival_ms[0]))
        begun = self._ledger
        while True:
            ages_ms = np.array([self._min_age_ms, self._max_age_ms])
            old_enough, too_old = np.searchsorted(arrival_ms, self._opened_ms + ages_ms, "left").tolist()
            full = low + max(self._full - self._entries, 0)
            end = min(max(min(max(full, old_enough), too_old), low), len(arrival_ms))
            sizes.append(end - low)
            firsts.append(self._entries - low)
            self._entries += end - low
            if end == len(arrival_ms):
                break
            low = end
            self._open(int(arrival_ms[end]))
        ledger = np.repeat(np.arange(begun, self._ledger + 1), sizes)
        return ledger, np.arange(len(arrival_ms)) + np.repeat(firsts, sizes)

    def _open(self, at_ms: int) -> None:
        self._ledger, self._entries, self._opened_ms = self._ledger + 1, 0, at_ms


def unload_moments(gaps: GapCounts, profile: BrokerProfile) -> Integers:
    """Return the moments at which an unload can deliver entries again, at most `MOMENTS`, the peak among them: evenly
    over those with more ranges than a cursor surely keeps; empty: an unload delivers nothing again at any moment.
    """
    sure = min(profile.gap_limit_ranges + 1, profile.metadata_store_limit_ranges)
    if profile.ack_format == "bitmap":
        sure //= SPARE  # with room for a larger volume
    spans = np.flatnonzero(gaps.most > sure)
    peak = gaps.peak_per_partition
    if not len(spans):
        return np.array([peak.at_ms] if peak.gap_count_limit > sure else [], np.int64)
    some = spans[np.unique(np.linspace(0, len(spans) - 1, MOMENTS - 1).astype(np.int64))]
    return np.unique(np.r_[gaps.grid.points_ms[some], peak.at_ms])


@dataclass(frozen=True, slots=True, kw_only=True)
class Redelivery:
    """Entries that one subscription receives again if all its due topics are unloaded at one moment, counted."""

    entries: int  # entries at the worst of the moments
    at_ms: int  # that moment, UTC milliseconds; 0: nothing is delivered again at any moment
    moments: int  # number of moments at which redelivery was counted; 0: no moment has more ranges than a cursor keeps

    @classmethod
    def worst(cls, moments_ms: Integers, entries: Integers) -> Redelivery:
        if not len(moments_ms) or not entries.any():
            return cls(entries=0, at_ms=0, moments=len(moments_ms))
        worst = int(np.argmax(entries))
        return cls(entries=int(entries[worst]), at_ms=int(moments_ms[worst]), moments=len(moments_ms))


def worst_of(moments_ms: Integers, entries: Iterable[Integers]) -> Mapping[AckFormat, Redelivery]:
    """Return the worst by format, of the sums over all due partitions (`Unload.redelivered`)."""
    return {name: Redelivery.worst(moments_ms, of_format) for name, of_format in zip(FORMATS, entries, strict=True)}


def worse_of(
    one: Mapping[AckFormat, Redelivery], other: Mapping[AckFormat, Redelivery]
) -> Mapping[AckFormat, Redelivery]:
    """Return the worse by format, of different moments."""
    return {
        name: replace(
            max(one[name], other[name], key=lambda found: found.entries),
            moments=one[name].moments + other[name].moments,
        )
        for name in one
    }


class Unload:
    """Counts what an unload of one partition at each of some moments delivers again, fed in the order of positions."""

    def __init__(self, moments_ms: Integers, profile: BrokerProfile) -> None:
        self._moments_ms, self._profile = moments_ms, profile
        self._limit = profile.gap_limit_ranges + 1
        none, false = np.zeros(len(moments_ms), np.int64), np.zeros(len(moments_ms), np.bool_)
        self._is_behind, self._in_range = false.copy(), false.copy()  # behind mark-delete; the last entry is in a range
        self._ranges = none.copy()
        self._acknowledged, self._first = none.copy(), none.copy()  # behind mark-delete; of these in the first ranges
        self._ledger = 0
        self._in_ledger, self._before = none.copy(), none.copy()  # of the last ledger, and of those before it
        self._compared = none.copy()  # bitmap: the entries by which the broker decided about the last ledger
        self._kept, self._has_kept = none.copy(), false.copy()  # bitmap: of the ledgers that are persisted

    def feed(self, acknowledged_ms: Integers, ledger: Integers) -> None:
        if not len(self._moments_ms):
            return
        cuts = [0, *(np.flatnonzero(np.diff(ledger)) + 1).tolist(), len(ledger)]
        for low, high in pairwise(cuts):
            if int(ledger[low]) != self._ledger:
                self._end_ledger()
                self._ledger = int(ledger[low])
            self._feed_ledger(acknowledged_ms[low:high])

    def redelivered(self) -> tuple[Integers, Integers]:
        """Return the entries at each moment, as `FORMATS`."""
        self._end_ledger()
        ranges = self._acknowledged - self._first
        as_ranges = (self._ranges <= self._profile.metadata_store_limit_ranges) | ~self._has_kept
        return ranges, np.where(as_ranges, ranges, self._acknowledged - self._kept)

    def compared(self) -> Integers:
        """Return what a bitmap cursor is judged by: for each tenth of the ranges that are written as ranges, the most
        entries that the broker compares with its limit while there are more ranges than that. All acknowledgements are
        kept if these are within the limit.
        """
        self._end_ledger()
        as_ranges = min(self._profile.metadata_store_limit_ranges, self._profile.gap_limit_ranges)
        is_above = self._ranges * TENTHS > as_ranges * np.arange(1, TENTHS + 1)[:, None]
        entries = np.where(self._has_kept, self._compared, np.minimum(self._compared, self._ranges))
        most: Integers = np.where(is_above, entries, 0).max(axis=1, initial=0)
        return most

    def _feed_ledger(self, acknowledged_ms: Integers) -> None:
        """Feed entries of the same ledger."""
        entries = len(acknowledged_ms)
        done = self._moments_ms >= acknowledged_ms.max()
        undone = self._moments_ms < acknowledged_ms.min()
        # All acknowledged: one range, behind mark-delete.
        more = done & self._is_behind
        self._ranges += more & ~self._in_range
        self._acknowledged[more] += entries
        self._in_ledger[more] += entries
        self._first[more & (self._ranges <= self._limit)] += entries
        self._in_range[more] = True
        self._is_behind |= undone
        self._in_range &= ~undone
        for number in np.flatnonzero(~done & ~undone).tolist():
            self._feed_partly(number, acknowledged_ms <= self._moments_ms[number])

    def _feed_partly(self, number: int, is_acknowledged: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
        if not self._is_behind[number]:
            is_acknowledged = is_acknowledged[int(np.argmin(is_acknowledged)) :]
            self._is_behind[number] = True
        begins = is_acknowledged.copy()
        begins[1:] &= ~is_acknowledged[:-1]
        begins[0] &= not self._in_range[number]
        entries, ranges = int(np.count_nonzero(is_acknowledged)), int(np.count_nonzero(begins))
        left = self._limit - int(self._ranges[number])
        if ranges <= left:
            self._first[number] += entries
        elif left >= 0:
            # All before the first range too many; also a range that goes on.
            ends = int(np.flatnonzero(begins)[left])
            self._first[number] += int(np.count_nonzero(is_acknowledged[:ends]))
        self._ranges[number] += ranges
        self._acknowledged[number] += entries
        self._in_ledger[number] += entries
        self._in_range[number] = is_acknowledged[-1]

    def _end_ledger(self) -> None:
        compared = self._profile.compared_entries(self._before, self._in_ledger)
        is_kept = (compared <= self._profile.gap_limit_ranges) & (self._in_ledger > 0)
        self._kept += np.where(is_kept, self._in_ledger, 0)
        self._has_kept |= is_kept
        self._compared = np.where(self._in_ledger > 0, compared, self._compared)
        self._before += self._in_ledger
        self._in_ledger[:] = 0
        self._in_range[:] = False

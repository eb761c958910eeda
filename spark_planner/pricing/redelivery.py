"""Forget: the redelivery after an unload, computed from the state of a cursor at one moment.

A cursor is persisted in one of two formats, each with the same limit (`BrokerProfile.gap_limit_ranges`):

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

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from timewheel.core.broker_profile import AckFormat, BrokerProfile

__all__ = ["Cursor", "kept_ledgers", "ledger_ends", "redelivered_entries"]

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

MAX_LEDGERS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cursor:
    """A due topic's cursor at one moment, all its partitions together, by runs of positions in order.

    Expected numbers, not counts: partitions are alike, so that each has its share of every run.

    Args:
        entries: Entries of each run that have arrived.
        acknowledged: Acknowledged entries of each run.
        gaps: Ranges of acknowledged entries in each run.
    """

    entries: Floats
    acknowledged: Floats
    gaps: Floats

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
    """Return the acknowledged entries that are redelivered after an unload of a due topic, all partitions together.

    Args:
        cursor: The cursor at the moment of the unload.
        profile: Source of the limit and of the bitmap rule.
        ends_entries: Ends of ledgers, in entries of all partitions together, ascending; see `ledger_ends`.
        partitions: Partitions of the due topic.
        ack_format: Format to use instead of the profile's own.
    """
    gaps = cursor.gaps + _split_ranges(cursor, ends_entries, partitions)
    all_gaps = float(gaps.sum())
    limit = (profile.gap_limit_ranges + 1.0) * partitions
    few = all_gaps <= profile.metadata_store_limit_ranges * partitions
    if all_gaps <= limit and (few or ack_format == "ranges"):
        return 0.0
    past = cursor.past_mark_delete(partitions)
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


def _split_ranges(cursor: Cursor, ends_entries: Floats, partitions: int) -> Floats:
    """Return the ranges that ledger ends add to each run: a range at each end between two acknowledged entries."""
    added = np.zeros(len(cursor.entries))
    reached = np.cumsum(cursor.entries)
    runs = np.searchsorted(reached, ends_entries[ends_entries < reached[-1]], "left")
    # Of k acknowledged entries in a row, k - 1 are followed by another.
    followed = np.maximum(cursor.past_mark_delete(partitions) - cursor.gaps, 0.0)[runs]
    # In every partition a ledger ends there.
    np.add.at(added, runs, partitions * followed / np.maximum(cursor.entries[runs], 1.0))
    return added


def kept_ledgers(acknowledged_entries: Floats, profile: BrokerProfile) -> Flags:
    """bitmap: return which ledgers' acknowledgements are persisted.

    Args:
        acknowledged_entries: Entries past the mark-delete position in each ledger of a partition, the oldest first.
        profile: Source of the limit and the rule.
    """
    with_it = np.cumsum(acknowledged_entries)
    # A ledger without an acknowledged entry is not in the broker's list: it is not persisted and does not matter.
    compared = with_it - acknowledged_entries if profile.keeps_crossing_ledger else with_it
    return (compared <= profile.gap_limit_ranges) & (acknowledged_entries > 0)


def ledger_ends(
    entries: Floats, arrived_ms: Floats, profile: BrokerProfile, partitions: int, entry_bytes: float
) -> Floats:
    """Return the ends of a topic's ledgers, in entries of all its partitions together.

    Args:
        entries: Entries of each run of positions, in order.
        arrived_ms: Arrival time of each run's last entry, ascending.
        profile: Source of the ledger limits, each per partition.
        partitions: Number of partitions, which fill evenly.
        entry_bytes: Mean size of an entry.

    Returns:
        Ends, ascending, without that of the last, open ledger.
    """
    if not len(entries):
        return np.zeros(0)
    reached = np.r_[0.0, np.cumsum(entries)]
    times_ms = np.r_[arrived_ms[0] - 1.0, arrived_ms]
    full = min(float(profile.ledger_max_entries), profile.ledger_max_bytes / max(entry_bytes, 1.0)) * partitions
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

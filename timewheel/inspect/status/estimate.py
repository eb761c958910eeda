"""Estimate the timers of a place by due time from a sample of its entries: pure.

An entry contains a timer or a batch of timers. The entries of a place are drawn with equal chances, so the estimate for
a stretch is the mean number of its timers in an entry, times the number of entries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from timewheel.inspect.status.horizon import Amount, Horizon

SURE = 1.96
"""Standard errors on either side of an estimate that contain the true value in 95 of 100 samples."""
RARE = 3.0
"""A property of none or all of n sampled entries holds for all but 3 / n of the others, in 95 of 100 samples."""


def total(inspected: Sequence[Sequence[int]], entries: int) -> Amount:
    """Estimate the timers in a place.

    Args:
        inspected: Due times in each sampled entry; at least one entry.
        entries: Number of entries.
    """
    return _scaled([len(due) for due in inspected], entries)


def by_stretch(
    inspected: Sequence[Sequence[int]], entries: int, horizon: Horizon, known: range | None = None
) -> tuple[Amount, ...]:
    """Estimate the timers in a place for each stretch of the horizon.

    Args:
        inspected: Due times in each sampled entry; at least one entry.
        entries: Number of entries.
        horizon: The stretches.
        known: Stretches that the topic's name permits (of a slot or an interval); None for any.
    """
    counts = [[0] * len(inspected) for _ in horizon.buckets]
    for number, due in enumerate(inspected):
        for due_ms in due:
            counts[horizon.number_of(due_ms)][number] += 1
    if known is not None and len(known) == 1 and all(not any(one) for n, one in enumerate(counts) if n not in known):
        # All timers are in this stretch, independent of the draw: only the number of timers in an entry is an estimate.
        whole = total(inspected, entries)
        return tuple(whole if number in known else Amount() for number in range(len(counts)))
    return tuple(
        Amount() if known is not None and number not in known and not any(one) else _scaled(one, entries)
        for number, one in enumerate(counts)
    )


def of_pieces(counts: Sequence[int], drawn: int, entries: int) -> Amount:
    """Estimate a number of entries from pieces of adjacent entries: neighbours are alike, so the pieces are the sample.

    Args:
        counts: Entries that count, by piece.
        drawn: Number of entries in all pieces.
        entries: Number of all entries.
    """
    drawn = max(drawn, 1)
    if drawn >= entries:
        return Amount(float(sum(counts)))
    by_piece = _scaled(counts, round(len(counts) * entries / drawn)).error if len(set(counts)) > 1 else 0.0
    return Amount(sum(counts) * entries / drawn, max(by_piece, RARE / drawn * (entries - drawn)))


def _scaled(counts: Sequence[int], entries: int) -> Amount:
    drawn = len(counts)
    mean = sum(counts) / drawn
    if drawn >= entries:
        return Amount(float(sum(counts)))
    if len(set(counts)) == 1 and counts[0]:
        return Amount(mean * entries, RARE / drawn * mean * (entries - drawn))
    if not any(counts):
        return Amount(0.0, RARE / drawn * (entries - drawn))
    spread = math.sqrt(sum((count - mean) ** 2 for count in counts) / max(drawn - 1, 1))
    return Amount(mean * entries, SURE * spread * entries / math.sqrt(drawn) * math.sqrt(1 - drawn / entries))

"""From entries that were looked at in one place to the timers in it by due time: pure.

An entry holds one timer or a batch of them. The entries of a place are drawn with the same chance each, so the timers
of a stretch are the mean of them in an entry, times the entries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from timewheel.ops.status.horizon import Amount, Horizon

__all__ = ["by_stretch", "total"]

SURE = 1.96
"""Standard errors on each side, for 95 times of 100."""
RARE = 3.0
"""What was seen in none of n entries, or in all of them, is so in all but 3 / n of the others, 95 times of 100."""


def total(looked_at: Sequence[Sequence[int]], entries: int) -> Amount:
    """How many timers are in a place.

    Args:
        looked_at: The due times in each entry that was looked at, at least one entry.
        entries: How many there are.
    """
    return _scaled([len(due) for due in looked_at], entries)


def by_stretch(
    looked_at: Sequence[Sequence[int]], entries: int, horizon: Horizon, known: range | None = None
) -> tuple[Amount, ...]:
    """The same by due time, for each stretch of the horizon.

    Args:
        looked_at: As above.
        entries: As above.
        horizon: The stretches.
        known: The stretches that the topic's name allows: a slot's, or an interval's. None: any.
    """
    counts = [[0] * len(looked_at) for _ in horizon.buckets]
    for number, due in enumerate(looked_at):
        for due_ms in due:
            counts[horizon.number_of(due_ms)][number] += 1
    if known is not None and len(known) == 1 and all(not any(one) for n, one in enumerate(counts) if n not in known):
        # All of it is there, whatever was drawn: only the number of timers in an entry is an estimate.
        whole = total(looked_at, entries)
        return tuple(whole if number in known else Amount() for number in range(len(counts)))
    return tuple(
        Amount() if known is not None and number not in known and not any(one) else _scaled(one, entries)
        for number, one in enumerate(counts)
    )


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

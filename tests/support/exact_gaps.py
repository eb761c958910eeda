"""The oracle for the law of gaps: a count of gap ranges, entry by entry."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise


def exact_gaps(acknowledged_ms: Sequence[int], at_ms: Sequence[int]) -> list[int]:
    """Count gap ranges exactly.

    Args:
        acknowledged_ms: Acknowledgement time of each entry of **a single ledger**, in position order.
        at_ms: Moments at which to count, ascending.

    Returns:
        A count per moment. Only descents matter: +1 at ``a_i``, -1 at ``a_(i-1)``.
    """
    changes: defaultdict[int, int] = defaultdict(int)
    for before, after in pairwise(acknowledged_ms):
        if after < before:
            changes[after] += 1
            changes[before] -= 1
    times = sorted(changes)
    running, counts = 0, [0]
    for time_ms in times:
        running += changes[time_ms]
        counts.append(running)
    return [counts[bisect_right(times, moment_ms)] for moment_ms in at_ms]

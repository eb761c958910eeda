"""Keys: how much of a topic a few keys are, and how full that makes the fullest partition."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from timewheel.core.keys import java_string_hash
from timewheel.core.plan import MAX_PARTITIONS

__all__ = ["EVEN", "LEAST_SHARE", "KeyShares"]

LEAST_SHARE = 0.01
"""Of a piece of the history: a key with less is one of many, and many spread evenly."""
MOST_KEYS = 64
ABOUT_AS_GOOD = 1.1
SLACK = 1e-9
"""Of what floats leave behind."""
_CACHED = 64


@dataclass(frozen=True, slots=True)
class KeyShares:
    """The keys that weigh most in a topic.

    Args:
        timers: Of the topic, those without a key included.
        heavy: (key, its timers), the most first. A key that is missing has about `LEAST_SHARE` of them at most.
    """

    timers: int
    heavy: tuple[tuple[str, int], ...]

    @classmethod
    def merged(cls, parts: Iterable[KeyShares]) -> KeyShares:
        """Of several parts of a topic. What was little in one of them does not count there: shares are least values."""
        timers, counts = 0, Counter[str]()
        for part in parts:
            timers += part.timers
            counts.update(dict(part.heavy))
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return cls(timers, tuple(ranked[:MOST_KEYS]))

    @property
    def heaviest(self) -> tuple[str, float] | None:
        """(key, its share of all timers); None: no key weighs much."""
        if not self.heavy:
            return None
        key, timers = self.heavy[0]
        return key, timers / self.timers

    def fullest(self, partitions: int) -> float:
        """The share of all timers that the fullest of so many partitions gets.

        Keys go where Java's hash sends them; what has no heavy key spreads evenly.
        """
        return _fullest_of_each(self)[partitions - 1] if self.heavy else 1 / partitions

    def fewest(self, times: float) -> int:
        """The fewest partitions of which the fullest gets one part in so many of all timers, or less.

        At most what a plan may have. Where a key is too heavy for any number of them, the fewest that are about as good
        as any.
        """
        even = min(max(math.ceil(times - SLACK), 1), MAX_PARTITIONS)
        if not self.heavy or even == 1:
            return even
        # No number below the even one can do.
        shares = _fullest_of_each(self)[even - 1 :]
        wanted = max(1 / times, ABOUT_AS_GOOD * min(shares))
        return even + next(more for more, share in enumerate(shares) if share <= wanted)


EVEN = KeyShares(0, ())
"""No key weighs much."""


@lru_cache(maxsize=_CACHED)
def _fullest_of_each(shares: KeyShares) -> tuple[float, ...]:
    """`KeyShares.fullest` of one partition, of two, and so on up to what a plan may have."""
    hashes = np.array([java_string_hash(key) for key, _ in shares.heavy])
    timers = np.array([timers for _, timers in shares.heavy])
    rest = shares.timers - int(timers.sum())
    return tuple(
        (float(np.bincount(hashes % partitions, timers).max()) + rest / partitions) / shares.timers
        for partitions in range(1, MAX_PARTITIONS + 1)
    )

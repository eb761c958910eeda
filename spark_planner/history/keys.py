"""Keys: the share of a topic's heaviest keys, and the share of its fullest partition."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from timewheel.core.names import java_string_hash
from timewheel.core.plan import MAX_PARTITIONS

LEAST_SHARE = 0.01
"""Smallest share of a heavy key in a piece of the history: lighter keys are many, and many keys spread evenly."""
MAX_KEYS = 64
ABOUT_AS_GOOD = 1.1
SLACK = 1e-9  # tolerance for rounding errors of floats
_CACHED = 64


@dataclass(frozen=True, slots=True)
class KeyShares:
    """The heaviest keys of a topic.

    Args:
        timers: Timers of the topic, including those without a key.
        heavy: (key, its timers), the heaviest first. A missing key has at most about `LEAST_SHARE` of the timers.
    """

    timers: int
    heavy: tuple[tuple[str, int], ...]

    @classmethod
    def merged(cls, parts: Iterable[KeyShares]) -> KeyShares:
        """Merge the shares of several parts of a topic: lower bounds, as no part counts its light keys."""
        timers, counts = 0, Counter[str]()
        for part in parts:
            timers += part.timers
            counts.update(dict(part.heavy))
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return cls(timers, tuple(ranked[:MAX_KEYS]))

    @property
    def heaviest(self) -> tuple[str, float] | None:
        """(key, its share of all timers); None: there is no heavy key."""
        if not self.heavy:
            return None
        key, timers = self.heavy[0]
        return key, timers / self.timers

    def fullest(self, partitions: int) -> float:
        """Return the share of all timers in the fullest of so many partitions.

        Java's hash determines the partition of each heavy key; all other timers spread evenly.
        """
        return _fullest_of_each(self)[partitions - 1] if self.heavy else 1 / partitions

    def fewest(self, times: float) -> int:
        """Return the fewest partitions of which the fullest gets at most ``1 / times`` of all timers.

        The result is at most `MAX_PARTITIONS`. If a key is too heavy for any number of partitions, the result is the
        fewest partitions that are about as good as any number.
        """
        even = min(max(math.ceil(times - SLACK), 1), MAX_PARTITIONS)
        if not self.heavy or even == 1:
            return even
        # No number below that of an even spread can be enough.
        shares = _fullest_of_each(self)[even - 1 :]
        wanted = max(1 / times, ABOUT_AS_GOOD * min(shares))
        return even + next(more for more, share in enumerate(shares) if share <= wanted)


EVEN = KeyShares(0, ())  # shares of a topic without heavy keys


@lru_cache(maxsize=_CACHED)
def _fullest_of_each(shares: KeyShares) -> tuple[float, ...]:
    """Return `KeyShares.fullest` for 1, 2, ... up to `MAX_PARTITIONS` partitions."""
    hashes = np.array([java_string_hash(key) for key, _ in shares.heavy])
    timers = np.array([timers for _, timers in shares.heavy])
    rest = shares.timers - int(timers.sum())
    return tuple(
        (float(np.bincount(hashes % partitions, timers).max()) + rest / partitions) / shares.timers
        for partitions in range(1, MAX_PARTITIONS + 1)
    )

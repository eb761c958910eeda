"""Keys: how much of a topic a few keys are, and how full that makes the fullest partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from timewheel.core.keys import java_string_hash

__all__ = ["EVEN", "LEAST_SHARE", "KeyShares"]

LEAST_SHARE = 0.01
"""Of a piece of the history: a key with less is one of many, and many spread evenly."""
MOST_KEYS = 64
_CACHED = 4_096


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
        return _fullest(self, partitions) if self.heavy else 1 / partitions


EVEN = KeyShares(0, ())
"""No key weighs much."""


@lru_cache(maxsize=_CACHED)
def _fullest(shares: KeyShares, partitions: int) -> float:
    in_partition = Counter[int]()
    for key, timers in shares.heavy:
        in_partition[java_string_hash(key) % partitions] += timers
    rest = shares.timers - in_partition.total()
    return (max(in_partition.values()) + rest / partitions) / shares.timers

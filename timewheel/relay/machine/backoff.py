"""Pauses between attempts: longer each time, bounded, and never in step with other relays."""

from __future__ import annotations

from timewheel.core.rng import Random


class Backoff:
    """Waits that double from ``first_ms`` to ``longest_ms``, each shortened at random to between half and all of it."""

    __slots__ = ("_attempts", "_first_ms", "_longest_ms", "_rng")

    def __init__(self, first_ms: int, longest_ms: int, rng: Random) -> None:
        self._first_ms = first_ms
        self._longest_ms = longest_ms
        self._attempts = 0
        self._rng = rng

    def next_ms(self) -> int:
        """Return the next wait."""
        # The exponent is bounded too, since a partition may fail for days.
        wait_ms = min(self._first_ms << min(self._attempts, 20), self._longest_ms)
        self._attempts += 1
        return int(wait_ms * (0.5 + self._rng.random() / 2))

    def reset(self) -> None:
        """Reset to the first wait after a success."""
        self._attempts = 0

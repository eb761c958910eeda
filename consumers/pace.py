"""At most so many timers a second: the pure decision."""

from __future__ import annotations

import math

__all__ = ["Pace"]

BURST_MS = 10.0
"""So much of the rate may come at once: waits are whole milliseconds, and threads wake late."""


class Pace:
    """Spreads what is taken evenly (generic cell rate algorithm, ITU-T I.371).

    Args:
        per_s: Most that may be taken in a second, in the long run.
    """

    __slots__ = ("_every_ms", "_next_ms")

    def __init__(self, per_s: float) -> None:
        self._every_ms = 1_000 / per_s
        self._next_ms = 0.0

    def wait_ms(self, now_ms: int) -> int:
        """How long to wait before the next may be taken, on a clock that never goes back; 0: not at all."""
        return max(math.ceil(self._next_ms - now_ms - BURST_MS), 0)

    def take(self, now_ms: int) -> None:
        """One is taken."""
        self._next_ms = max(self._next_ms, float(now_ms)) + self._every_ms

"""A limit of timers a second: the pure decision."""

from __future__ import annotations

import math

BURST_MS = 10.0
"""Part of the rate that may be taken at once: waits are whole milliseconds, and threads wake late."""


class Pace:
    """Spreads timers evenly (generic cell rate algorithm, ITU-T I.371).

    Args:
        per_s: Maximum number of timers a second, in the long run.
    """

    __slots__ = ("_every_ms", "_next_ms")

    def __init__(self, per_s: float) -> None:
        self._every_ms = 1_000 / per_s
        self._next_ms = 0.0

    def wait_ms(self, now_ms: int) -> int:
        """Return the wait before the next timer may be taken, on a clock that never goes back; 0 for none."""
        return max(math.ceil(self._next_ms - now_ms - BURST_MS), 0)

    def take(self, now_ms: int) -> None:
        """Record that a timer is taken."""
        self._next_ms = max(self._next_ms, float(now_ms)) + self._every_ms

"""Measures how long copies wait until their originals are acknowledged: moved timers must be due later by that."""

from __future__ import annotations

from collections import deque

from timewheel.client.positions import EntryPosition

APART_MS = 50
"""Copies that are stored closer together count as one, which bounds memory."""


class UnackedOriginals:
    """Stored copies of a partition whose originals can still be delivered.

    A shadow that lags takes longer to acknowledge an original than the time that `MoveDecider.far_ms` allows for it. So
    timers that are moved meanwhile have to be due later by the shadow's lag.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[EntryPosition, int]] = deque()

    def stored(self, copy: EntryPosition, monotonic_ms: int) -> None:
        """Add a stored copy; copies are added in the order of their topic."""
        if self._waiting and monotonic_ms - self._waiting[-1][1] < APART_MS and len(self._waiting) > 1:
            self._waiting[-1] = copy, self._waiting[-1][1]
        else:
            self._waiting.append((copy, monotonic_ms))

    def acked_originals(self, upto: EntryPosition) -> None:
        """Record that the originals of all copies up to this copy are acknowledged."""
        while self._waiting and self._waiting[0][0] <= upto:
            self._waiting.popleft()

    def age_ms(self, monotonic_ms: int) -> int:
        """Return how long the oldest of the copies waits; 0: there is none."""
        return max(monotonic_ms - self._waiting[0][1], 0) if self._waiting else 0

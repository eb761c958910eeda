"""For how long copies wait until their originals are acknowledged: so much earlier must a timer be far from due."""

from __future__ import annotations

from collections import deque

from timewheel.wire.positions import EntryPosition

__all__ = ["Unstruck"]

APART_MS = 50
"""Copies that are stored closer together are looked at as one, which bounds what is remembered."""


class Unstruck:
    """Copies of one partition that are stored, and whose originals can still be delivered.

    A shadow that lags behind takes longer to acknowledge an original than it has been promised to take at most, which
    is what `Lifting.far_ms` has room for. So what is lifted meanwhile has to be due later by as much as it lags.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[EntryPosition, int]] = deque()

    def stored(self, copy: EntryPosition, monotonic_ms: int) -> None:
        """A copy is stored; copies come in the order of their topic."""
        if self._waiting and monotonic_ms - self._waiting[-1][1] < APART_MS and len(self._waiting) > 1:
            self._waiting[-1] = copy, self._waiting[-1][1]
        else:
            self._waiting.append((copy, monotonic_ms))

    def struck(self, upto: EntryPosition) -> None:
        """The originals of all copies up to this one are acknowledged."""
        while self._waiting and self._waiting[0][0] <= upto:
            self._waiting.popleft()

    def age_ms(self, monotonic_ms: int) -> int:
        """For how long the oldest of them waits; 0: there is none."""
        return max(monotonic_ms - self._waiting[0][1], 0) if self._waiting else 0

"""When a due topic is stirred, so that lifted timers do not keep others from being delivered.

A broker keeps what was acknowledged in its index of delayed messages until it is due. Fifty thousand of them in the
order of their due times make it believe that all delays are the same: it reads no further, and what is due now does not
come (broker-facts: ghosts-starve). One message that is due before one that was read earlier shows it otherwise, if it
stands among the first fifty thousand: behind them nobody reads it. So the first is sent early, since whoever sends a
burst may be faster than the lifter, and again when all that was lifted is due: an index that has become empty has
forgotten what it was shown.
"""

from __future__ import annotations

from collections import deque

from timewheel.wire.positions import EntryPosition

__all__ = ["FIRST_STIR", "STIR_EVERY", "Stirring"]

FIRST_STIR = 1_000
"""Lifted timers, after which the first is sent."""
STIR_EVERY = 10_000
"""Lifted timers; the broker looks for one delay among the first 50,000."""
LEAST_AHEAD_MS = 20_000
"""A stir is due this much later at the least, so that it is taken out long before."""
READ_WITHIN_MS = 5_000
"""By then the broker has read what was published, busy as it may be; what it has not read when it is acknowledged shows
it nothing."""


class Stirring:
    """Of one partition of a due topic.

    Args:
        tick_ms: The broker's.
    """

    __slots__ = ("_ahead_ms", "_earliest_ms", "_enough", "_latest_ms", "_lifted", "_waiting")

    def __init__(self, tick_ms: int) -> None:
        # By more than a tick: less does not count as another delay.
        self._ahead_ms = tick_ms * 5 // 2
        self._lifted = 0
        self._enough = FIRST_STIR
        self._earliest_ms = self._latest_ms = 0
        self._waiting: deque[tuple[int, EntryPosition]] = deque()

    def lifted(self, due_ms: int) -> None:
        """A timer was lifted that is due then, UTC milliseconds."""
        if not self._lifted or due_ms < self._earliest_ms:
            self._earliest_ms = due_ms
        self._latest_ms = max(self._latest_ms, due_ms)
        self._lifted += 1

    def wanted(self, now_ms: int) -> int | None:
        """For when a stir is to be published now, UTC milliseconds; None: none is. It counts as done."""
        if self._latest_ms <= now_ms:
            self._enough = FIRST_STIR
        if self._lifted < self._enough:
            return None
        self._lifted, self._enough = 0, STIR_EVERY
        return max(self._earliest_ms - self._ahead_ms, now_ms + LEAST_AHEAD_MS)

    def met(self, position: EntryPosition, now_ms: int) -> None:
        """One was read in the topic: ours, one that an earlier shadow left behind, or a stranger's, who may say that it
        was published at any time.
        """
        self._waiting.append((now_ms + READ_WITHIN_MS, position))

    def over(self, now_ms: int) -> list[EntryPosition]:
        """Those that have done their work, and are to be acknowledged; each is told once."""
        done = []
        while self._waiting and self._waiting[0][0] <= now_ms:
            done.append(self._waiting.popleft()[1])
        return done

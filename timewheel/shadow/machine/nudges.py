"""Decides when a due topic is nudged, so that moved timers do not keep others from being delivered.

A broker keeps acknowledged messages in its index of delayed messages until they are due. Fifty thousand of them in the
order of their due times make it assume that all delays are the same: it reads no further, and messages that are due now
are not delivered (broker-facts: stale-index-entries-starve). A message that is due before an earlier message disproves
that, if it is among the first fifty thousand: the broker does not read those behind them. So the first nudge is sent
early, since the producer of a burst may be faster than the mover, and again when all moved timers are due: an index
that has become empty has forgotten the nudge.
"""

from __future__ import annotations

import heapq

from timewheel.client.positions import EntryPosition

FIRST_NUDGE = 1_000  # number of moved timers after which the first nudge is sent
NUDGE_EVERY = 10_000  # moved timers between nudges; the broker compares the delays of the first 50,000 messages
LEAST_AHEAD_MS = 20_000  # a nudge is due at least this much later, so that it is removed long before
READ_WITHIN_MS = 5_000
"""By then even a busy broker has read a published message; a nudge that is acknowledged before the broker has read it
has no effect."""


class Nudges:
    """The nudges of a partition of a due topic."""

    def __init__(self, tick_ms: int) -> None:
        # By more than a tick: a smaller difference does not count as another delay.
        self._ahead_ms = tick_ms * 5 // 2
        self._moved = 0
        self._enough = FIRST_NUDGE
        self._earliest_ms = self._latest_ms = 0
        self._waiting: list[tuple[int, EntryPosition]] = []

    def moved(self, due_ms: int) -> None:
        """Record a moved timer with its due time, UTC milliseconds."""
        if not self._moved or due_ms < self._earliest_ms:
            self._earliest_ms = due_ms
        self._latest_ms = max(self._latest_ms, due_ms)
        self._moved += 1

    def wanted(self, now_ms: int) -> int | None:
        """Return the due time of a nudge to publish now, UTC milliseconds, and count it; None: none is needed."""
        if self._latest_ms <= now_ms:
            self._enough = FIRST_NUDGE
        if self._moved < self._enough:
            return None
        self._moved, self._enough = 0, NUDGE_EVERY
        return max(self._earliest_ms - self._ahead_ms, now_ms + LEAST_AHEAD_MS)

    def met(self, position: EntryPosition, published_ms: int, now_ms: int) -> None:
        """Record a nudge that was read in the topic: this shadow's own, an earlier shadow's, or another program's.

        Its publish time counts, so that shadows that are killed soon after they read it still remove it in time; but a
        publish time in the future, which any producer can write, does not keep it in the topic.
        """
        heapq.heappush(self._waiting, (min(published_ms, now_ms) + READ_WITHIN_MS, position))

    def over(self, now_ms: int) -> list[EntryPosition]:
        """Return the nudges that have done their work, to be acknowledged; each is returned once."""
        done = []
        while self._waiting and self._waiting[0][0] <= now_ms:
            done.append(heapq.heappop(self._waiting)[1])
        return done

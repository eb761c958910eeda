"""Decides how often a broker is asked for a topic's statistics.

A broker of 4.2 walks the whole index of delayed messages for each answer, which takes seconds with a million of them
(broker-facts: statistics-cost). So the slower the answers, the longer the pauses.
"""

from __future__ import annotations

PART_OF_TIME = 20
"""One in this many parts of the time is spent on answers."""
AT_LEAST_MS = 30_000
"""Longest pause, however long an answer takes: unknown subscriptions cannot be respected."""
NO_WAIT_MS = 1_000
"""Shorter pauses are dropped: the broker is asked whenever statistics are needed."""


class Pace:
    """The time of the next request."""

    __slots__ = ("_next_ms",)

    def __init__(self) -> None:
        self._next_ms: int | None = None

    def is_due(self, now_ms: int) -> bool:
        """Return whether to ask now, milliseconds of a monotonic clock."""
        return self._next_ms is None or now_ms >= self._next_ms

    def answered(self, asked_ms: int, now_ms: int) -> None:
        """Record the answer to a request that was sent at ``asked_ms``."""
        wait_ms = min((now_ms - asked_ms) * PART_OF_TIME, AT_LEAST_MS)
        self._next_ms = None if wait_ms <= NO_WAIT_MS else now_ms + wait_ms

    def hurry(self) -> None:
        """Ask at once: no answer has come, or the topic has changed since."""
        self._next_ms = None

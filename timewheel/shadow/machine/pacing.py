"""How often a broker is asked for a topic's statistics.

On 4.2 a broker goes through the whole index of delayed messages for each answer: seconds, with a million of them
(broker-facts: statistics-cost). So what takes long is asked for seldom.
"""

from __future__ import annotations

__all__ = ["AT_LEAST_MS", "Pace"]

PART_OF_TIME = 20
"""Of so many parts of the time, one is spent on answers."""
AT_LEAST_MS = 30_000
"""So often it is asked, however long an answer takes: what is not known cannot be kept to."""
NO_WAIT_MS = 1_000
"""What would be due again sooner than this is asked for whenever it is wanted."""


class Pace:
    """When to ask again."""

    __slots__ = ("_next_ms",)

    def __init__(self) -> None:
        self._next_ms: int | None = None

    def is_due(self, now_ms: int) -> bool:
        """Whether to ask now, milliseconds of a monotonic clock."""
        return self._next_ms is None or now_ms >= self._next_ms

    def answered(self, asked_ms: int, now_ms: int) -> None:
        """The answer to what was asked then has come."""
        wait_ms = min((now_ms - asked_ms) * PART_OF_TIME, AT_LEAST_MS)
        self._next_ms = None if wait_ms <= NO_WAIT_MS else now_ms + wait_ms

    def hurry(self) -> None:
        """No answer has come, or something has changed since: ask at once."""
        self._next_ms = None

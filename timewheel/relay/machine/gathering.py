"""How long the hops of a group wait for each other (broker-facts: batched-hops).

All groups of a partition leave together: at the time of the first group that must leave.
"""

from __future__ import annotations

from timewheel.core.grouping import PARTS_OF_ROOM

LOOKS_PER_LINGER = 4


class Gathering:
    """The time at which the groups of a partition leave.

    Args:
        linger_ms: Maximum time that a hop waits for others; 0 to not wait.
    """

    __slots__ = ("_linger_ms", "members", "send_at_ms")

    def __init__(self, linger_ms: int) -> None:
        self._linger_ms = linger_ms
        self.members = 0
        """Hops that joined since groups were last sent. A driver sends full groups unasked: there may be fewer."""
        self.send_at_ms: int | None = None
        """UTC milliseconds; None without a group."""

    def slack_ms(self, room_ms: int) -> int:
        """Return how much later than its release time a hop may be examined, so that many are examined together.

        Args:
            room_ms: Time after its release at which it may leave without being late.
        """
        return min(self._linger_ms, room_ms // PARTS_OF_ROOM) // LOOKS_PER_LINGER

    def join(self, latest_ms: int, now_ms: int) -> None:
        """Record that another hop waits for others.

        Args:
            latest_ms: Time after which it would be late.
            now_ms: UTC milliseconds.
        """
        self.members += 1
        at_ms = now_ms + min(self._linger_ms, (latest_ms - now_ms) // PARTS_OF_ROOM)
        if self.send_at_ms is None or at_ms < self.send_at_ms:
            self.send_at_ms = at_ms

    def leave(self) -> None:
        """Record that the newest hop does not leave after all."""
        self.members -= 1
        if not self.members:
            self.send_at_ms = None

    def sent(self) -> None:
        """Record that all groups were sent."""
        self.members, self.send_at_ms = 0, None

    def is_due(self, now_ms: int) -> bool:
        """True if the groups must leave now."""
        at_ms = self.send_at_ms
        # Before the first bound, the clock was set back.
        return at_ms is not None and not at_ms - self._linger_ms <= now_ms < at_ms

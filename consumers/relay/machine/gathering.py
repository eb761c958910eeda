"""How long the hops of a group wait for each other (broker-facts: batched-hops).

All groups of a partition leave together: there is one moment for all of them, and the first that must go decides it.
"""

from __future__ import annotations

from timewheel.core.grouping import PARTS_OF_ROOM

__all__ = ["LOOKS_PER_LINGER", "Gathering"]

LOOKS_PER_LINGER = 4


class Gathering:
    """The moment at which the groups of one partition go.

    Args:
        linger_ms: How long a hop waits for others at most; 0: not at all.
    """

    __slots__ = ("_linger_ms", "members", "send_at_ms")

    def __init__(self, linger_ms: int) -> None:
        self._linger_ms = linger_ms
        self.members = 0
        """Hops that joined since groups were sent last. A shell sends full ones unasked: there may be fewer."""
        self.send_at_ms: int | None = None
        """UTC milliseconds; None: there is no group."""

    def slack_ms(self, room_ms: int) -> int:
        """How much later than its release time a hop may be looked at, so that one look is at many of them.

        Args:
            room_ms: How much later it may leave without being late.
        """
        return min(self._linger_ms, room_ms // PARTS_OF_ROOM) // LOOKS_PER_LINGER

    def join(self, latest_ms: int, now_ms: int) -> None:
        """One more hop waits for others.

        Args:
            latest_ms: After this moment it would be late.
            now_ms: UTC milliseconds.
        """
        self.members += 1
        at_ms = now_ms + min(self._linger_ms, (latest_ms - now_ms) // PARTS_OF_ROOM)
        if self.send_at_ms is None or at_ms < self.send_at_ms:
            self.send_at_ms = at_ms

    def leave(self) -> None:
        """The newest does not go after all."""
        self.members -= 1
        if not self.members:
            self.send_at_ms = None

    def sent(self) -> None:
        """All groups went."""
        self.members, self.send_at_ms = 0, None

    def is_due(self, now_ms: int) -> bool:
        """Whether the groups must go now."""
        at_ms = self.send_at_ms
        # The second: the clock was set back.
        return at_ms is not None and not at_ms - self._linger_ms <= now_ms < at_ms

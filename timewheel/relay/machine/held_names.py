"""Decides whether the holder of a producer's name can be a relay."""

from __future__ import annotations

from timewheel.core.durations import MINUTE_MS

HELD_MS = 3 * MINUTE_MS
"""No relay that has lost its partition keeps a name for so long: it gives names back when idle, and a broker closes the
producers of a connection that does not answer."""
PAUSE_MS = MINUTE_MS
"""After a longer time without a refusal the name may have been free meanwhile."""
MAX_NAMES = 1_000


class HeldNames:
    """Names of a partition's producers that other clients hold, over all its subscriptions.

    A name can be held by every client that may produce to the destination (broker-facts: names-held-by-others).
    """

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: dict[str, tuple[int, int]] = {}

    def is_strangers(self, name: str, now_ms: int) -> bool:
        """Record that the broker has refused a name.

        Args:
            name: Name of the producer.
            now_ms: Monotonic time.

        Returns:
            True if it has been held for too long to be held by a relay, and was not free since.
        """
        first_ms, last_ms = self._refused.pop(name, (now_ms, now_ms))
        if last_ms - first_ms < HELD_MS and now_ms - last_ms > PAUSE_MS:
            first_ms = now_ms
        self._refused[name] = first_ms, now_ms
        if len(self._refused) > MAX_NAMES:
            del self._refused[next(iter(self._refused))]
        return now_ms - first_ms >= HELD_MS

    def is_free(self, name: str) -> None:
        """Record that the broker has given the name."""
        self._refused.pop(name, None)

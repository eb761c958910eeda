"""Events about a consumer that has lost its connection, after a while; its readiness reports the loss at once."""

from __future__ import annotations

from timewheel.client.hooks import Hooks
from timewheel.core.clock import Clock
from timewheel.events import ConnectionBack, ConnectionLost

LOST_AFTER_MS = 5_000
"""A dropped connection is usually back within a second."""


class ConnectionWatch:
    """Watches a single consumer, from a single thread, which calls it whenever it is idle.

    Args:
        topic: Topic of the consumer.
        clock: Clock of the thread.
        hooks: Called once when the connection has been lost for `LOST_AFTER_MS`, and when it is back.
    """

    __slots__ = ("_clock", "_hooks", "_is_reported", "_since_ms", "_topic")

    def __init__(self, topic: str, clock: Clock, hooks: Hooks) -> None:
        self._topic = topic
        self._clock = clock
        self._hooks = hooks
        self._since_ms: int | None = None
        self._is_reported = False

    def inspect(self, *, is_connected: bool) -> None:
        """Take the client's present report."""
        if is_connected:
            if self._since_ms is not None:
                self._back(self._since_ms)
            return
        now_ms = self._clock.monotonic_ms()
        if self._since_ms is None:
            self._since_ms = now_ms
        elif not self._is_reported and now_ms - self._since_ms >= LOST_AFTER_MS:
            self._is_reported = True
            self._hooks.emit(ConnectionLost(topic=self._topic))

    def _back(self, since_ms: int) -> None:
        if self._is_reported:
            self._hooks.emit(ConnectionBack(topic=self._topic, away_ms=self._clock.monotonic_ms() - since_ms))
        self._since_ms, self._is_reported = None, False

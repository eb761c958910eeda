"""Decides when a consumer or producer that lost its connection is closed, and another opened in its place.

The client reconnects by itself, but doubles its pauses (broker-facts: pauses-that-double). Another opening gains
nothing while no broker serves the topic: until then, received messages go on, and so do sends to other topics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from timewheel.client.hooks import LOST_AFTER_MS
from timewheel.core.clock import Clock

INSPECT_MS = 1_000  # interval at which connections are inspected
ATTEMPT_MS = 3_000  # interval of attempts, which overlap: the first attempts of the client follow in quick succession


class Connection(Protocol):
    """A consumer or a producer of a single partition."""

    def is_connected(self) -> bool: ...


class Trial:
    """Attempts to open a topic, each with the client's own repetitions, whose pauses double."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.next_ms = 0
        self.is_served = False  # True once a broker serves the topic: written by another thread


class Reopening:
    """Watches the connections of a session, for a single thread.

    Args:
        clock: Source of time.
        attempt: Begins an attempt of a trial, and returns at once (`timewheel.client.native.try_opening`).
    """

    def __init__(self, clock: Clock, attempt: Callable[[Trial], None]) -> None:
        self._clock = clock
        self._attempt = attempt
        self._away_since_ms: dict[Connection, int] = {}
        self._trial: Trial | None = None

    @property
    def is_waiting(self) -> bool:
        """True if a connection was away when it was last inspected."""
        return bool(self._away_since_ms)

    def inspect(self, connections: Sequence[tuple[str, Connection]]) -> str | None:
        """Take all connections, each with its topic; return a topic whose connection is to be opened anew, or None."""
        now_ms = self._clock.monotonic_ms()
        since_ms = self._away_since_ms
        away = {one: topic for topic, one in connections if not one.is_connected()}
        self._away_since_ms = {one: since_ms.get(one, now_ms) for one in away}
        lost = [topic for one, topic in away.items() if now_ms - self._away_since_ms[one] >= LOST_AFTER_MS]
        if self._trial is None or self._trial.topic not in lost:
            self._trial = Trial(lost[0]) if lost else None
        trial = self._trial
        if trial is None:
            return None
        if trial.is_served:
            # The opening may fail, or take too long: then another trial decides.
            self._trial = Trial(trial.topic)
            self._trial.next_ms = now_ms + ATTEMPT_MS
            return trial.topic
        if now_ms >= trial.next_ms:
            trial.next_ms = now_ms + ATTEMPT_MS
            self._attempt(trial)
        return None

"""Decides when a consumer or producer that lost its connection is closed, and another opened in its place.

The client reconnects by itself, but doubles its pauses from 0.1 to 60 s, and Python cannot set them: an outage of 31 s
becomes one of 48 s. An opening begins without a pause. It gains nothing while no broker serves the topic; until then,
messages that were received go on, and sends to other topics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from timewheel.client.hooks import LOST_AFTER_MS
from timewheel.core.clock import Clock

INSPECT_MS = 1_000
"""Interval at which connections are inspected."""


class Connection(Protocol):
    """A consumer or a producer of a single partition."""

    def is_connected(self) -> bool: ...


class Trial:
    """A trial opening of a topic."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.is_served: bool | None = None
        """True if a broker serves the topic; None until the answer, which another thread writes."""


class Reopening:
    """Watches the connections of a session, for a single thread.

    Args:
        clock: Source of time.
        begin: Begins a trial opening, and returns at once (`timewheel.client.native.try_opening`).
    """

    def __init__(self, clock: Clock, begin: Callable[[Trial], None]) -> None:
        self._clock = clock
        self._begin = begin
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
        trial = self._trial
        if trial is not None and trial.topic in lost and trial.is_served is not False:
            return trial.topic if trial.is_served else None
        self._trial = None
        if lost:
            self._trial = Trial(lost[0])
            self._begin(self._trial)
        return None

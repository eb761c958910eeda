"""Alarms about single messages, said at most once a minute each: a broken topic has millions of them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

from timewheel.core.clock import Clock
from timewheel.core.durations import MINUTE_MS
from timewheel.hooks import Alarm
from timewheel.wire.hooks import Hooks

__all__ = ["Alarms"]

REPEAT_AFTER_MS = MINUTE_MS


@dataclass(slots=True)
class _Said:
    at_ms: int
    since: int = 0


class Alarms:
    """Says an alarm at once, then at most once a minute with how often it came since. Safe from several threads."""

    __slots__ = ("_clock", "_hooks", "_lock", "_said")

    def __init__(self, hooks: Hooks, clock: Clock) -> None:
        self._hooks = hooks
        self._clock = clock
        self._lock = threading.Lock()
        self._said: dict[type[Alarm], _Said] = {}

    def raised(self, alarm: Alarm) -> None:
        """It happened (again); its facts are this one's, its ``count`` is of all since it was last said."""
        with self._lock:
            count = self._count(type(alarm))
        if count:  # told without the lock: a hook may do as it likes
            self._hooks.emit(replace(alarm, count=count))

    def _count(self, kind: type[Alarm]) -> int:
        """How often it came since it was last said; 0: not now."""
        now_ms = self._clock.monotonic_ms()
        said = self._said.get(kind)
        if said is None:
            self._said[kind] = _Said(now_ms)
            return 1
        said.since += 1
        if now_ms - said.at_ms < REPEAT_AFTER_MS:
            return 0
        count = said.since
        said.at_ms, said.since = now_ms, 0
        return count

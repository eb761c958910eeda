"""Alarms about single messages, said at most once a minute each: a broken topic has millions of them."""

from __future__ import annotations

from dataclasses import dataclass

from timewheel.core.clock import Clock
from timewheel.core.durations import MINUTE_MS
from timewheel.wire.hooks import Hooks

__all__ = ["Alarms"]

REPEAT_AFTER_MS = MINUTE_MS


@dataclass(slots=True)
class _Alarm:
    said_ms: int
    since: int = 0


class Alarms:
    """Says an event at once, then at most once a minute with how often it came since. For one thread at a time."""

    __slots__ = ("_alarms", "_clock", "_hooks")

    def __init__(self, hooks: Hooks, clock: Clock) -> None:
        self._hooks = hooks
        self._clock = clock
        self._alarms: dict[str, _Alarm] = {}

    def raised(self, name: str, level: str, **fields: object) -> None:
        """It happened (again); the facts are this one's, ``count`` is of all since it was last said."""
        now_ms = self._clock.monotonic_ms()
        alarm = self._alarms.get(name)
        if alarm is None:
            self._alarms[name] = _Alarm(now_ms)
            self._hooks.emit(name, level, count=1, **fields)
            return
        alarm.since += 1
        if now_ms - alarm.said_ms >= REPEAT_AFTER_MS:
            self._hooks.emit(name, level, count=alarm.since, **fields)
            alarm.said_ms, alarm.since = now_ms, 0

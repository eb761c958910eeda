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
    last: Alarm | None = None


class Alarms:
    """Says an alarm at once, then at most once a minute with how often it came since. Safe from several threads.

    What was held back is said by `flush`, which whoever has one calls now and then, and when it closes.
    """

    __slots__ = ("_clock", "_holds", "_hooks", "_lock", "_said")

    def __init__(self, hooks: Hooks, clock: Clock) -> None:
        self._hooks = hooks
        self._clock = clock
        self._lock = threading.Lock()
        self._said: dict[type[Alarm], _Said] = {}
        self._holds = False  # whether something is held back: a consumer asks before each message

    def raised(self, alarm: Alarm) -> None:
        """It happened (again); its facts are this one's, its ``count`` is of all since it was last said."""
        with self._lock:
            said = self._said.setdefault(type(alarm), _Said(self._clock.monotonic_ms() - REPEAT_AFTER_MS))
            said.since += 1
            said.last = alarm
            self._holds = True
        self.flush()

    def flush(self, *, at_end: bool = False) -> None:
        """Say what was held back and whose minute is over.

        Args:
            at_end: Nothing comes any more: also what is younger than that.
        """
        if not self._holds:
            return
        with self._lock:
            found = [kept for said in self._said.values() if (kept := self._taken(said, at_end=at_end)) is not None]
            self._holds = any(said.last is not None for said in self._said.values())
        for alarm in found:  # told without the lock: a hook may do as it likes
            self._hooks.emit(alarm)

    def _taken(self, said: _Said, *, at_end: bool) -> Alarm | None:
        if said.last is None:
            return None
        now_ms = self._clock.monotonic_ms()
        if not at_end and now_ms - said.at_ms < REPEAT_AFTER_MS:
            return None
        alarm = replace(said.last, count=said.since)
        said.at_ms, said.since, said.last = now_ms, 0, None
        return alarm

"""Alarms about single messages, emitted at most once a minute for each kind: a broken topic has millions of them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

from timewheel.client.hooks import Hooks
from timewheel.core.clock import Clock
from timewheel.core.durations import MINUTE_MS
from timewheel.hooks import Alarm

REPEAT_AFTER_MS = MINUTE_MS


@dataclass(slots=True)
class _Said:
    at_ms: int
    since: int = 0
    last: Alarm | None = None


class Alarms:
    """Emits an alarm at once, then at most once a minute with the number of occurrences since. Thread-safe.

    `flush` emits alarms that were held back; the owner calls it regularly, and at the end.
    """

    __slots__ = ("_clock", "_holds", "_hooks", "_lock", "_said")

    def __init__(self, hooks: Hooks, clock: Clock) -> None:
        self._hooks = hooks
        self._clock = clock
        self._lock = threading.Lock()
        self._said: dict[type[Alarm], _Said] = {}
        self._holds = False  # whether an alarm is held back: a consumer asks before each message

    def raised(self, alarm: Alarm) -> None:
        """Count an occurrence. An emitted alarm has the facts of the latest occurrence, and the ``count`` of all since
        the last emit.
        """
        with self._lock:
            said = self._said.setdefault(type(alarm), _Said(self._clock.monotonic_ms() - REPEAT_AFTER_MS))
            said.since += 1
            said.last = alarm
            self._holds = True
        self.flush()

    def flush(self, *, at_end: bool = False) -> None:
        """Emit alarms that were held back for a minute.

        Args:
            at_end: Emit all of them, since no further alarm comes.
        """
        if not self._holds:
            return
        with self._lock:
            found = [kept for said in self._said.values() if (kept := self._taken(said, at_end=at_end)) is not None]
            self._holds = any(said.last is not None for said in self._said.values())
        for alarm in found:  # emitted without the lock: a hook may call anything
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

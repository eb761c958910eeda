"""Dispatch of events to hooks: at once, at most once a minute, or once a fault lasts."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from timewheel.core.clock import Clock
from timewheel.core.durations import MINUTE_MS
from timewheel.core.errors import BadArgument
from timewheel.events import ConnectionBack, ConnectionLost, HookFailed
from timewheel.hooks import Alarm, Event, Hook, log_event


class Hooks:
    """Calls every hook with an event. A hook that raises is logged, and stops nothing."""

    def __init__(self, hooks: tuple[Hook, ...] | None = None) -> None:
        given: object = hooks
        if given is not None and not (isinstance(given, Sequence) and all(map(callable, given))):
            raise BadArgument("hooks", hooks, "a tuple of functions is needed, such as hooks=(my_hook,)")
        self._hooks = (log_event,) if hooks is None else hooks

    def emit(self, event: Event) -> None:
        """Call every hook with an event."""
        for hook in self._hooks:
            try:
                hook(event)
            except Exception as error:  # noqa: BLE001 - a user's hook must not stop a relay
                log_event(HookFailed(hook=repr(hook), error=repr(error)))


REPEAT_AFTER_MS = MINUTE_MS


@dataclass(slots=True)
class _Said:
    at_ms: int
    since: int = 0
    last: Alarm | None = None


class Alarms:
    """Emits an alarm at once, then at most once a minute with the number of occurrences since. Thread-safe.

    A broken topic has millions of messages to alarm about. `flush` emits alarms that were held back; the owner calls it
    regularly, and at the end.
    """

    def __init__(self, hooks: Hooks, clock: Clock) -> None:
        self._hooks = hooks
        self._clock = clock
        self._lock = threading.Lock()
        self._said: dict[type[Alarm], _Said] = {}
        self._holds = False  # whether an alarm is held back: a consumer asks before each message

    def raised(self, alarm: Alarm) -> None:
        """Count an occurrence: an alarm has the facts of the latest, and the ``count`` of all since the last emit."""
        with self._lock:
            said = self._said.setdefault(type(alarm), _Said(self._clock.monotonic_ms() - REPEAT_AFTER_MS))
            said.since += 1
            said.last = alarm
            self._holds = True
        self.flush()

    def flush(self, *, at_end: bool = False) -> None:
        """Emit alarms that were held back for a minute."""
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


LASTS_AFTER_MS = 2_000
"""Time after which a fault is an error: a topic that moves to another broker is back within a second."""


class Fault:
    """A fault that is reported only once it lasts, and then once; for a single thread at a time.

    Args:
        clock: For its duration.
        after_ms: How long it must last.
    """

    def __init__(self, clock: Clock, after_ms: int = LASTS_AFTER_MS) -> None:
        self._clock = clock
        self._after_ms = after_ms
        self._since_ms: int | None = None
        self._is_reported = False

    def persists(self, since_ms: int | None = None) -> bool:
        """Record that the fault is there, since a monotonic time if it is known; True: it is to be reported now."""
        now_ms = self._clock.monotonic_ms()
        if self._since_ms is None:
            self._since_ms = now_ms if since_ms is None else since_ms
        if self._is_reported or now_ms - self._since_ms < self._after_ms:
            return False
        self._is_reported = True
        return True

    def ended(self) -> int | None:
        """Record that all is well; return how long a reported fault lasted, in milliseconds, and None without one."""
        since_ms, was_reported = self._since_ms, self._is_reported
        self._since_ms, self._is_reported = None, False
        return self._clock.monotonic_ms() - since_ms if was_reported and since_ms is not None else None

    @property
    def lasts(self) -> bool:
        """True from its report to its end."""
        return self._is_reported


LOST_AFTER_MS = 5_000  # a dropped connection is usually back within a second


class ConnectionWatch:
    """Watches a single consumer, from a single thread, which calls it whenever it is idle."""

    def __init__(self, topic: str, clock: Clock, hooks: Hooks) -> None:
        self._topic = topic
        self._hooks = hooks
        self._away = Fault(clock, LOST_AFTER_MS)

    def inspect(self, *, is_connected: bool) -> None:
        """Take the client's present report."""
        if not is_connected:
            if self._away.persists():
                self._hooks.emit(ConnectionLost(topic=self._topic))
        elif (away_ms := self._away.ended()) is not None:
            self._hooks.emit(ConnectionBack(topic=self._topic, away_ms=away_ms))

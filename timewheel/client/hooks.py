"""Dispatch of events to hooks: at once, at most once a minute, or once a fault lasts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

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
MAX_KINDS = 1_000
T = TypeVar("T")


@dataclass(slots=True)
class _Said(Generic[T]):
    at_ms: int
    since: int = 0
    last: T | None = None


class Repeats(Generic[T]):
    """Emits the first of a kind at once, then at most one a minute with the number since. Thread-safe.

    Args:
        clock: For the minute.
        emit: Called with the latest, and the number of its kind since the last call.
        kind: Those that count as alike.
    """

    def __init__(self, clock: Clock, emit: Callable[[T, int], None], kind: Callable[[T], Hashable]) -> None:
        self._clock = clock
        self._emit = emit
        self._kind = kind
        self._lock = threading.Lock()
        self._said: dict[Hashable, _Said[T]] = {}
        self._holds = False  # whether one is held back: a consumer asks before each message

    def raised(self, one: T) -> None:
        """Count an occurrence."""
        with self._lock:
            never_ms = self._clock.monotonic_ms() - REPEAT_AFTER_MS
            said = self._said.setdefault(self._kind(one), _Said(never_ms))
            said.since += 1
            said.last = one
            self._holds = True
            if len(self._said) > MAX_KINDS:
                del self._said[next(iter(self._said))]
        self.flush()

    def flush(self, *, at_end: bool = False) -> None:
        """Emit those that were held back for a minute; the owner calls it regularly, and at the end."""
        if not self._holds:
            return
        now_ms, found = self._clock.monotonic_ms(), list[tuple[T, int]]()
        with self._lock:
            for said in self._said.values():
                if said.last is not None and (at_end or now_ms - said.at_ms >= REPEAT_AFTER_MS):
                    found.append((said.last, said.since))
                    said.at_ms, said.since, said.last = now_ms, 0, None
            self._holds = any(said.last is not None for said in self._said.values())
        for one, count in found:  # emitted without the lock: a hook may call anything
            self._emit(one, count)


class Alarms(Repeats[Alarm]):
    """Emits alarms with the facts of the latest of a type, and the ``count`` of all since the last: a broken topic has
    millions of messages to alarm about.
    """

    def __init__(self, hooks: Hooks, clock: Clock) -> None:
        super().__init__(clock, lambda alarm, count: hooks.emit(replace(alarm, count=count)), type)


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

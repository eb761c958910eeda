"""Gate: the limit on pending sends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from timewheel.core.clock import Clock
from timewheel.core.errors import ClientMisuse


class Batch:
    """Sends that entered between two drains; a drain waits until its groups are empty."""

    __slots__ = ("inside",)

    def __init__(self) -> None:
        self.inside = 0


class Permit(Protocol):
    """Any object that represents a send; the gate sets its group."""

    group: Batch | None


class InFlightLimiter:
    """Admits at most ``limit`` sends, from any number of threads.

    A thread that finds the gate full waits until half of it is free, and newcomers wait behind it: a single wake-up for
    many sends instead of a wake-up for each.

    Args:
        limit: Limit on sends with an unknown outcome; at least 1.
        may_wait: Returns whether the calling thread may wait for room. The thread that finishes sends may not, since it
            would wait for itself: it exceeds the limit by the sends that its callbacks make.
    """

    __slots__ = (
        "_changed",
        "_closed",
        "_drainers",
        "_draining",
        "_group",
        "_inside",
        "_limit",
        "_lock",
        "_low_mark",
        "_may_wait",
        "_waiters",
    )

    def __init__(self, limit: int, may_wait: Callable[[], bool]) -> None:
        self._limit = limit
        self._low_mark = limit // 2
        self._may_wait = may_wait
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._inside = 0
        self._waiters = 0
        self._drainers = 0
        self._closed = False
        self._group = Batch()
        self._draining: list[Batch] = []

    @property
    def inside(self) -> int:
        """Number of pending sends."""
        return self._inside

    def enter(self, permit: Permit) -> None:
        """Wait for room, and take it.

        Raises:
            ClientMisuse: The gate is closed.
        """
        with self._lock:
            if self._waiters or self._closed or self._inside >= self._limit:
                self._wait_for_room()
            self._inside += 1
            permit.group = group = self._group
            group.inside += 1

    def leave(self, *permits: Permit) -> None:
        """Free the room of sends whose outcomes are known. A second call for a send does nothing."""
        with self._lock:
            emptied = False
            for permit in permits:
                group = permit.group
                if group is not None:
                    permit.group = None
                    self._inside -= 1
                    group.inside -= 1
                    emptied = emptied or not group.inside
            if (self._waiters and self._inside <= self._low_mark) or (self._drainers and emptied):
                self._changed.notify_all()

    def close(self) -> None:
        """Refuse all sends from now on, including those that wait for room."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    def drain(self, clock: Clock, timeout_ms: int | None = None) -> bool:
        """Wait until every pending send has left; later sends are not waited for.

        Returns:
            False if the time passed before.
        """
        deadline_ms = None if timeout_ms is None else clock.monotonic_ms() + timeout_ms
        with self._lock:
            if self._group.inside:
                self._draining.append(self._group)
                self._group = Batch()
            groups = self._draining = [group for group in self._draining if group.inside]
            self._drainers += 1
            try:
                while any(group.inside for group in groups):
                    if deadline_ms is None:
                        self._changed.wait()
                        continue
                    remaining_ms = deadline_ms - clock.monotonic_ms()
                    if remaining_ms <= 0:
                        return False
                    clock.wait(self._changed, remaining_ms)
            finally:
                self._drainers -= 1
        return True

    def _wait_for_room(self) -> None:
        if not self._closed and self._may_wait():
            self._waiters += 1
            try:
                self._changed.wait_for(lambda: self._closed or self._inside <= self._low_mark)
            finally:
                self._waiters -= 1
        if self._closed:
            raise ClientMisuse("this producer is closed: nothing can be sent any more; make a new one")

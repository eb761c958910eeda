"""How many sends may be under way at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from timewheel.core.clock import Clock
from timewheel.core.errors import ClientMisuse

__all__ = ["Gate", "Group", "Ticket"]


class Group:
    """Sends that entered between two drains; a drain waits until its groups are empty."""

    __slots__ = ("inside",)

    def __init__(self) -> None:
        self.inside = 0


class Ticket(Protocol):
    """Whatever stands for one send; the gate writes its group."""

    group: Group | None


class Gate:
    """Lets at most ``limit`` sends in, from any number of threads.

    Whoever finds it full waits until half of it is free, and newcomers wait behind: one wake-up for many sends
    instead of one for each.

    Args:
        limit: Sends whose outcome is not known yet; at least 1.
        may_wait: Says whether the calling thread may wait for room. The thread that finishes sends may not, it would
            wait for itself: it passes the limit, by the sends that its callbacks make.
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
        self._group = Group()
        self._draining: list[Group] = []

    @property
    def inside(self) -> int:
        """Sends under way now."""
        return self._inside

    def enter(self, ticket: Ticket) -> None:
        """Wait for room and take it.

        Raises:
            ClientMisuse: The gate is closed.
        """
        with self._lock:
            if self._waiters or self._closed or self._inside >= self._limit:
                self._wait_for_room()
            self._inside += 1
            ticket.group = group = self._group
            group.inside += 1

    def leave(self, *tickets: Ticket) -> None:
        """Give the room of these back: their outcomes are known. A second time it does nothing."""
        with self._lock:
            emptied = False
            for ticket in tickets:
                group = ticket.group
                if group is not None:
                    ticket.group = None
                    self._inside -= 1
                    group.inside -= 1
                    emptied = emptied or not group.inside
            if (self._waiters and self._inside <= self._low_mark) or (self._drainers and emptied):
                self._changed.notify_all()

    def close(self) -> None:
        """Refuse whoever comes from now on, and whoever waits for room."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    def drain(self, clock: Clock, timeout_ms: int | None = None) -> bool:
        """Wait until every send that is inside now has left; later ones are not waited for.

        Returns:
            False if the time passed first.
        """
        deadline_ms = None if timeout_ms is None else clock.monotonic_ms() + timeout_ms
        with self._lock:
            if self._group.inside:
                self._draining.append(self._group)
                self._group = Group()
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

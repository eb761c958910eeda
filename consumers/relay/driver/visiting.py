"""The visit to one slot's partition: a value that is replaced as a whole, in one place and under one lock.

The keeper of the ring begins and prolongs it, the session's thread sweeps by it and ends it.
"""

from __future__ import annotations

import threading

from timewheel.consumers.relay.machine.visits import Visit

__all__ = ["Visiting"]


class Visiting:
    """Whether a slot's partition is visited, and what is left to do."""

    __slots__ = ("_lock", "_visit")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._visit: Visit | None = None

    @property
    def now(self) -> Visit | None:
        """The visit; None: there is none, or the partition is read all the time."""
        return self._visit

    def begin(self, visit: Visit) -> bool:
        """Be there for a visit; one that is under way is prolonged.

        Returns:
            Whether the caller has to see to it, since none was under way.
        """
        with self._lock:
            if self._visit is not None:
                self._visit = self._visit.prolonged(visit)
                return False
            self._visit = visit
            return True

    def resume(self) -> None:
        """A session begins: what an earlier one swept is swept again."""
        with self._lock:
            if self._visit is not None:
                self._visit = self._visit.resumed()

    def take_sweep(self, now_ms: int) -> bool:
        """Whether a sweep is due; each is told once."""
        with self._lock:
            before = self._visit
            if before is None:
                return False
            self._visit = before.swept(now_ms)
            return self._visit is not before

    def end(self, now_ms: int, *, unfinished: bool) -> bool:
        """End it if it is over.

        Args:
            now_ms: UTC milliseconds.
            unfinished: End it whatever is left to do.

        Returns:
            Whether there is none any more. One that was prolonged meanwhile goes on.
        """
        with self._lock:
            if self._visit is None or unfinished or self._visit.is_over(now_ms):
                self._visit = None
                return True
            return False

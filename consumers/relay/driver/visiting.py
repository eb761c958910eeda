"""The visit to one slot's partition: a value that is replaced as a whole, in one place and under one lock.

The keeper of the ring begins and prolongs it; the session's thread reads it, and ends what it has seen to its end.
"""

from __future__ import annotations

import threading

from timewheel.consumers.relay.machine.visits import Visit

__all__ = ["Visiting"]


class Visiting:
    """Whether a slot's partition is visited, and until when."""

    __slots__ = ("_lock", "_visit")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._visit: Visit | None = None

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

    def end(self, left: Visit | None, *, unfinished: bool) -> bool:
        """End it.

        Args:
            left: The visit that the session has seen to its end.
            unfinished: End it whatever is left to do.

        Returns:
            Whether there is none any more. One that was prolonged meanwhile goes on.
        """
        with self._lock:
            if self._visit == left or unfinished:
                self._visit = None
            return self._visit is None

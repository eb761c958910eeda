"""The visit to a slot's partition: a value that is replaced as a whole, under a lock.

The keeper of the ring begins and prolongs it; the session's thread reads it, and ends a visit that is complete.
"""

from __future__ import annotations

import threading

from timewheel.relay.machine.visits import Visit


class Visiting:
    """The current visit to a slot's partition, if any."""

    __slots__ = ("_lock", "_visit")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._visit: Visit | None = None

    def now(self) -> Visit | None:
        """Return the visit; None if there is no visit, or the partition is read all the time."""
        return self._visit

    def begin(self, visit: Visit) -> bool:
        """Begin a visit, or prolong the running visit.

        Returns:
            True if no visit was running, so that the caller has to run it.
        """
        with self._lock:
            if self._visit is not None:
                self._visit = self._visit.prolonged(visit)
                return False
            self._visit = visit
            return True

    def end(self, left: Visit | None, *, unfinished: bool) -> bool:
        """End the visit, unless it was prolonged meanwhile.

        Args:
            left: The visit that the session has completed.
            unfinished: End the visit even if work is left.

        Returns:
            True if no visit is left.
        """
        with self._lock:
            if self._visit == left or unfinished:
                self._visit = None
            return self._visit is None

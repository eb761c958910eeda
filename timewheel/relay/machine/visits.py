"""Times at which the slots of a ring need their relay: from shortly before the release until the second sweep
(broker-facts: slot-release-time, slot-sweep). In between a slot only collects, and needs no thread.
"""

from __future__ import annotations

from typing import NamedTuple

from timewheel.core.steps import Step

OPEN_AHEAD_MS = 3_000
"""Time before a slot's release at which its consumer is opened: a cold topic takes a while to load."""


MAX_SWEEPS = 8  # sweeps that a visit remembers: two of each of the visits that run into each other


class Times(NamedTuple):
    """The times of a visit to a slot, UTC milliseconds."""

    open_ms: int  # subscribe
    release_ms: int  # all timers that are due in this turn leave; first sweep
    leave_ms: int  # one slot later: second sweep, for stragglers, and then unsubscribe


def next_times(step: Step, slot: int, after_ms: int) -> Times:
    """Return the first visit to a slot with a release after this time."""
    turn_ms = step.slots * step.slot_ms
    first_ms = slot * step.slot_ms - step.headstart_ms
    turns = (after_ms - first_ms) // turn_ms + 1
    return _times(step, first_ms + turns * turn_ms)


def last_times(step: Step, slot: int, at_ms: int) -> Times:
    """Return the latest visit to a slot with a release at or before this time."""
    return _times(step, next_times(step, slot, at_ms).release_ms - step.slots * step.slot_ms)


def _times(step: Step, release_ms: int) -> Times:
    return Times(release_ms - OPEN_AHEAD_MS, release_ms, release_ms + step.slot_ms)


class Visit(NamedTuple):
    """The end and the ascending times of the sweeps of a visit, UTC milliseconds; it is never left before its end."""

    leave_ms: int
    sweeps_ms: tuple[int, ...] = ()

    @classmethod
    def at(cls, times: Times) -> Visit:
        return cls(times.leave_ms, (times.release_ms, times.leave_ms))

    def prolonged(self, visit: Visit) -> Visit:
        """Return this visit merged with the next, which begins before this visit has ended."""
        sweeps_ms = tuple(sorted({*self.sweeps_ms, *visit.sweeps_ms}))
        # A sweep also does the work of an earlier sweep, so a visit that never ends need not remember all.
        return Visit(max(self.leave_ms, visit.leave_ms), sweeps_ms[-MAX_SWEEPS:])


class Sweeps:
    """The sweeps of a visit that a session has begun; the next session, which knows none, begins them again."""

    def __init__(self) -> None:
        self._begun_ms: int | None = None

    def is_due(self, visit: Visit | None, now_ms: int) -> bool:
        return visit is not None and any(self._is_to_come(at_ms) and at_ms <= now_ms for at_ms in visit.sweeps_ms)

    def begin(self, now_ms: int) -> None:
        """Record that all due sweeps are begun."""
        self._begun_ms = now_ms

    def is_over(self, visit: Visit | None, now_ms: int) -> bool:
        """True if the session should leave once no message is in flight."""
        if visit is None or now_ms < visit.leave_ms:
            return False
        return not any(self._is_to_come(at_ms) for at_ms in visit.sweeps_ms)

    def next_moment_ms(self, visit: Visit, until_ms: int) -> int:
        """Return the next time at which work is due, at the latest ``until_ms``."""
        return min(until_ms, visit.leave_ms, *(at_ms for at_ms in visit.sweeps_ms if self._is_to_come(at_ms)))

    def _is_to_come(self, at_ms: int) -> bool:
        return self._begun_ms is None or at_ms > self._begun_ms

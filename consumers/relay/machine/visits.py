"""When the slots of a ring need their relay: shortly before the release, until the second sweep
(broker-facts: slot-release-time, slot-sweep).

Between two visits a slot only collects, so a wheel of many slots needs a thread for the few around now.
"""

from __future__ import annotations

from typing import NamedTuple

from timewheel.core.steps import Step

__all__ = ["OPEN_AHEAD_MS", "Times", "Visit", "last_times", "next_times"]

OPEN_AHEAD_MS = 3_000
"""How long before a slot's release its consumer is opened: a cold topic takes a while to load."""


class Times(NamedTuple):
    """One visit to a slot, UTC milliseconds.

    Args:
        open_ms: Subscribe.
        release_ms: All that is due in this turn leaves; first sweep.
        leave_ms: One slot later: second sweep, for stragglers, and then unsubscribe.
    """

    open_ms: int
    release_ms: int
    leave_ms: int


def next_times(step: Step, slot: int, after_ms: int) -> Times:
    """The first visit to a slot whose release is after a moment."""
    turn_ms = step.slots * step.slot_ms
    first_ms = slot * step.slot_ms - step.headstart_ms
    turns = (after_ms - first_ms) // turn_ms + 1
    return _times(step, first_ms + turns * turn_ms)


def last_times(step: Step, slot: int, at_ms: int) -> Times:
    """The visit to a slot whose release was at a moment, or last before it."""
    return _times(step, next_times(step, slot, at_ms).release_ms - step.slots * step.slot_ms)


def _times(step: Step, release_ms: int) -> Times:
    return Times(release_ms - OPEN_AHEAD_MS, release_ms, release_ms + step.slot_ms)


class Visit:
    """What is left to do in a visit that is under way.

    Args:
        leave_ms: When to leave at the earliest, UTC milliseconds.
        sweeps_ms: When to sweep, ascending.
    """

    __slots__ = ("_leave_ms", "_sweeps_ms")

    def __init__(self, leave_ms: int, sweeps_ms: tuple[int, ...] = ()) -> None:
        self._leave_ms = leave_ms
        self._sweeps_ms = sweeps_ms

    @classmethod
    def at(cls, times: Times) -> Visit:
        """A whole visit."""
        return cls(times.leave_ms, (times.release_ms, times.leave_ms))

    def prolong(self, visit: Visit) -> None:
        """The next visit begins before this one has ended."""
        self._sweeps_ms = tuple(sorted({*self._sweeps_ms, *visit._sweeps_ms}))
        self._leave_ms = max(self._leave_ms, visit._leave_ms)

    def take_sweep(self, now_ms: int) -> bool:
        """Whether a sweep is due; each is told once."""
        left = tuple(at_ms for at_ms in self._sweeps_ms if at_ms > now_ms)
        due = len(left) < len(self._sweeps_ms)
        self._sweeps_ms = left
        return due

    def is_over(self, now_ms: int) -> bool:
        """Whether to leave once nothing is at hand."""
        return now_ms >= self._leave_ms and not self._sweeps_ms

    def next_moment_ms(self, until_ms: int) -> int:
        """The next time at which something is to be done, at the latest ``until_ms``."""
        return min(until_ms, *self._sweeps_ms, self._leave_ms)

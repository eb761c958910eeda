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


class Visit(NamedTuple):
    """What is left to do in a visit that is under way. A value: whoever changes it makes another.

    Args:
        leave_ms: When to leave at the earliest, UTC milliseconds.
        sweeps_ms: When to sweep, ascending.
        swept_ms: The latest sweep that was begun; 0: none.
    """

    leave_ms: int
    sweeps_ms: tuple[int, ...] = ()
    swept_ms: int = 0

    @classmethod
    def at(cls, times: Times) -> Visit:
        """A whole visit."""
        return cls(times.leave_ms, (times.release_ms, times.leave_ms))

    def prolonged(self, visit: Visit) -> Visit:
        """The next visit begins before this one has ended: both in one."""
        sweeps_ms = tuple(sorted({*self.sweeps_ms, *visit.sweeps_ms}))
        return Visit(max(self.leave_ms, visit.leave_ms), sweeps_ms, self.swept_ms)

    def swept(self, now_ms: int) -> Visit:
        """With all sweeps begun that are due; the same visit if none is."""
        due = [at_ms for at_ms in self.sweeps_ms if at_ms <= now_ms]
        return Visit(self.leave_ms, self.sweeps_ms[len(due) :], due[-1]) if due else self

    def resumed(self) -> Visit:
        """With the latest sweep to be begun again: how far it came is forgotten with the session that began it."""
        return Visit(self.leave_ms, (self.swept_ms, *self.sweeps_ms)) if self.swept_ms else self

    def is_over(self, now_ms: int) -> bool:
        """Whether to leave once nothing is at hand."""
        return now_ms >= self.leave_ms and not self.sweeps_ms

    def next_moment_ms(self, until_ms: int) -> int:
        """The next time at which something is to be done, at the latest ``until_ms``."""
        return min(until_ms, *self.sweeps_ms, self.leave_ms)

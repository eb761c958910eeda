"""Pure decisions about the interval topics of a calendar that a consumer reads now.

An interval is **live** from a fixed lead before it begins until a rest after it ends: its topic is open all that time.
After that, the topic is closed once it has been quiet for the rest, because the life-cycle can end a topic only while
it has no readers (broker-facts: end-of-a-topic). Quiet is not proof: a timer may be in flight in another
replica that dies. So every passed topic that still exists is **visited** again, at growing pauses, until it is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from timewheel.core.durations import HOUR_MS, MINUTE_MS, SECOND_MS

LOOK_BACK_INTERVALS = 366  # passed intervals that are visited: a year of days. A topic lookup takes milliseconds.
MAX_VISITS = 8  # maximum number of passed topics that are open for a visit at the same time
OPEN_AHEAD_MS = 30 * SECOND_MS  # time to connect, on top of how early the first timer of an interval may arrive
REST_MS = MINUTE_MS
"""Time that a passed topic must be quiet before it is closed: late sends arrive until it is terminated."""
MAX_PAUSE_MS = HOUR_MS  # the longest pause between two visits of a topic that is not removed
MISSING_RETRY_MS = SECOND_MS  # pause between lookups of a live topic that does not exist (yet)
FORMER_RETRY_MS = 30 * SECOND_MS
"""The same pause for an earlier plan's calendar: processes that use that plan create its topics long in advance."""
LOOK_MS = SECOND_MS  # pause between two looks whether all messages of a passed topic are acknowledged


def open_ahead_ms(interval_ms: int, hold_ms: int) -> int:
    """Return how long before the start of an interval its topic is subscribed to.

    The first timers of an interval arrive by the hold bound before its start; connecting takes a moment, for which half
    an interval is enough where intervals are short.
    """
    return hold_ms + min(OPEN_AHEAD_MS, interval_ms // 2)


def rest_ms(interval_ms: int, hold_ms: int) -> int:
    """Return how long after its end an interval stays live, and how long its topic is quiet before it is closed."""
    return min(REST_MS, max(interval_ms, 2 * hold_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The topics to open and to close now."""

    # intervals to subscribe to, the most urgent first; report each with `RollingTopics.missing` or by listing it among
    # the open intervals
    open: tuple[int, ...]
    close: tuple[int, ...]  # intervals to close
    wake_ms: int  # time of the next decision, UTC milliseconds


@dataclass(frozen=True, slots=True)
class _Visit:
    next_ms: int
    pause_ms: int


class RollingTopics:
    """Follows a calendar."""

    def __init__(self, interval_ms: int, hold_ms: int, *, retry_ms: int = MISSING_RETRY_MS) -> None:
        self._interval_ms = interval_ms
        self._ahead_ms = open_ahead_ms(interval_ms, hold_ms)
        self._rest_ms = rest_ms(interval_ms, hold_ms)
        self._retry_ms = retry_ms
        self._visits: dict[int, _Visit] = {}
        self._scheduled_to: int | None = None  # every passed interval below this was given a visit, once
        self._not_before_ms: dict[int, int] = {}

    def live(self, now_ms: int) -> range:
        """Return the live intervals, from those that ended within the rest to those that begin within the lead."""
        return range((now_ms - self._rest_ms) // self._interval_ms, (now_ms + self._ahead_ms) // self._interval_ms + 1)

    def current(self, now_ms: int) -> int:
        """Return the running interval."""
        return now_ms // self._interval_ms

    def missing(self, interval: int, now_ms: int) -> bool:
        """Record that an interval of `Changes.open` has no topic. True: for good, since topics in the past are neither
        provisioned nor sent to; else it is looked up again.
        """
        passed = interval < self.current(now_ms)
        if passed:
            self._visits.pop(interval, None)
        self._not_before_ms[interval] = now_ms + self._retry_ms
        return passed

    def step(self, now_ms: int, quiet_for_ms: Mapping[int, int | None]) -> Changes:
        """Decide which topics to open and close."""
        live = self.live(now_ms)
        self._schedule_visits(live.start, now_ms)
        self._not_before_ms = {i: at_ms for i, at_ms in self._not_before_ms.items() if i in live}
        close = tuple(
            interval
            for interval, quiet_ms in quiet_for_ms.items()
            if interval < live.start and quiet_ms is not None and quiet_ms >= self._rest_ms
        )
        for interval in close:
            pause_ms = self._visits[interval].pause_ms if interval in self._visits else self._rest_ms
            self._visits[interval] = _Visit(now_ms + pause_ms, min(2 * pause_ms, MAX_PAUSE_MS))
        wanted = [i for i in live if i not in quiet_for_ms and self._not_before_ms.get(i, now_ms) <= now_ms]
        # The running interval first, then the next intervals, then those that have just ended.
        wanted.sort(key=lambda i: (i < self.current(now_ms), abs(i - self.current(now_ms))))
        visiting = sum(1 for i in quiet_for_ms if i < live.start) - len(close)
        due = sorted(
            i
            for i, visit in self._visits.items()
            if visit.next_ms <= now_ms and i < live.start and i not in quiet_for_ms
        )
        visits = due[: max(MAX_VISITS - visiting, 0)]
        passed = [quiet_for_ms[i] for i in quiet_for_ms if i < live.start and i not in close] + [None] * len(visits)
        rests_ms = [LOOK_MS if quiet_ms is None else self._rest_ms - quiet_ms for quiet_ms in passed]
        wakes_ms = (self._next_ms(live, now_ms), *(now_ms + rest_ms for rest_ms in rests_ms))
        return Changes(open=(*wanted, *visits), close=close, wake_ms=min(wakes_ms))

    def _schedule_visits(self, live_start: int, now_ms: int) -> None:
        oldest = live_start - LOOK_BACK_INTERVALS
        begin = oldest if self._scheduled_to is None else max(self._scheduled_to, oldest)
        for interval in range(begin, live_start):
            # At first all intervals that passed while no consumer ran; later those that were missed while the clock
            # jumped or the process slept. An interval that was open when it passed gets its next visit when it is
            # closed.
            self._visits.setdefault(interval, _Visit(now_ms, self._rest_ms))
        self._scheduled_to = live_start
        for interval in [i for i in self._visits if i < oldest]:
            del self._visits[interval]

    def _next_ms(self, live: range, now_ms: int) -> int:
        times: Iterable[int] = (
            live.stop * self._interval_ms - self._ahead_ms,
            (live.start + 1) * self._interval_ms + self._rest_ms,
            *(at_ms for at_ms in self._not_before_ms.values() if at_ms > now_ms),
            *(visit.next_ms for visit in self._visits.values() if visit.next_ms > now_ms),
        )
        return max(min(times), now_ms + 1)

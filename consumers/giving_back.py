"""What becomes of messages that a consumer can neither hand out nor publish: pure.

They wait with the broker, and come again. But a broker lets a consumer have so many unacknowledged, and delivers those
again before all others: so they are bounded in number, and what has come again and again is parked.
"""

from __future__ import annotations

from timewheel.consumers.in_hand import Arrival, InHand
from timewheel.consumers.onward import MAX_REASON_CHARS, Onward, Parked

__all__ = ["MOST_FAILURES", "MOST_GIVEN_BACK", "SHARE", "GivingBack"]

MOST_FAILURES = 3
"""Publishes of a timer that came far too early, in a row; after that it waits with the broker."""
MOST_GIVEN_BACK = 10
"""Redeliveries, as the broker counts them, of a message that can only be given back; after that it is parked."""
SHARE = 4
"""Of the room to hold timers, one part in so many may be taken by timers whose publish failed, and as many messages
may be given back within a redelivery delay."""


class GivingBack:
    """Of one consumer.

    Args:
        max_held: Its room to hold timers.
        hold_bound_ms: How early the broker may be with what it was asked for.
        parks: Whether the subscription has a topic for what waits for an operator.
        redelivery_delay_ms: After this time what is given back comes again.
    """

    __slots__ = ("_failing", "_given_back", "_hold_bound_ms", "_max_held", "_most", "_parks", "_redelivery_delay_ms",
                 "_since_ms")  # fmt: skip

    def __init__(self, max_held: int, hold_bound_ms: int, *, parks: bool, redelivery_delay_ms: int) -> None:
        self._max_held = max_held
        self._most = max(max_held // SHARE, 1)
        self._hold_bound_ms = hold_bound_ms
        self._parks = parks
        self._redelivery_delay_ms = redelivery_delay_ms
        self._failing = 0  # timers in hand whose last publish failed
        self._given_back = 0
        self._since_ms = 0

    def too_many(self, extras: int) -> bool:
        """Whether so many extra copies leave less than half of the room to timers."""
        return 2 * extras > self._max_held

    def waits(self, timer: InHand, *, is_full: bool) -> bool:
        """Whether a timer whose publish failed waits here for the next one, maybe to be parked by it; else it goes back
        to the broker.

        Args:
            timer: It.
            is_full: Whether the consumer has no room.
        """
        self._failing += not timer.failures
        timer.failures += 1
        is_crowd = self._failing > self._most
        if timer.onward is not None:
            # Nothing has made room for it, unlike for what came early.
            return not is_full and not is_crowd
        if not is_crowd and timer.failures < MOST_FAILURES:
            return True
        if not self._parks_by_now(timer.arrival):
            return False
        self.forgets(timer)
        timer.onward = Parked("it came far too early, and could not be published again")
        return True

    def forgets(self, timer: InHand) -> None:
        """Its publishes, of which some have failed, count no more: it leaves, or is to be parked."""
        self._failing -= 1
        timer.failures = 0

    def too_new(self, arrival: Arrival, now_ms: int, monotonic_ms: int) -> InHand | None:
        """What is in hand of a message that a later version wrote, to be parked or handed out as unreadable; None: the
        broker delivers it again, maybe to a consumer of that version. But a stranger can write any version.
        """
        if monotonic_ms - self._since_ms >= self._redelivery_delay_ms:
            self._since_ms, self._given_back = monotonic_ms, 0
        self._given_back += 1
        is_crowd = self._given_back > self._most
        if not is_crowd and not self._parks_by_now(arrival):
            return None
        timer = InHand(arrival.place_key, arrival, monotonic_ms)
        if self._parks:
            timer.onward = Parked(f"no consumer here reads it: {arrival.envelope_error}"[:MAX_REASON_CHARS])
        else:
            timer.postponed_ms, timer.not_before_ms = now_ms, now_ms + self._hold_bound_ms
        return timer

    def without_id(self, arrival: Arrival, onward: Onward) -> Parked | None:
        """Decide on what its handler wants parked or tried again, and what could not be known again; None: the broker
        delivers it again.
        """
        if isinstance(onward, Parked):
            return onward if self._parks else None
        if not self._parks_by_now(arrival):
            return None
        came = f"the broker delivered it again {arrival.redeliveries} times (limit {MOST_GIVEN_BACK})"
        return Parked(f"it has no envelope to be tried again by, and {came}")

    def _parks_by_now(self, arrival: Arrival) -> bool:
        return self._parks and arrival.redeliveries >= MOST_GIVEN_BACK

"""Pure decisions about messages that a consumer can neither hand out nor publish.

These messages wait in the broker, and are redelivered. But a broker limits the unacknowledged messages of a consumer,
and redelivers those before all others: so their number is bounded, and a message that was redelivered too often is
parked.
"""

from __future__ import annotations

from timewheel.consumers.in_flight import Arrival, InFlight
from timewheel.consumers.redirect import MAX_REASON_CHARS, Parked, Redirect

MAX_FAILURES = 3
"""Failed publishes in a row of a timer that arrived far too early; after them the timer waits in the broker."""
MAX_GIVEN_BACK = 10
"""Redeliveries, by the broker's count, of a message that can only be given back; after them it is parked."""
SHARE = 4
"""Divisor of the room to hold timers, for two limits: timers whose publish failed, and messages given back.

The second limit is for each redelivery delay.
"""


class GivingBack:
    """Decides for a consumer.

    Args:
        max_held: The consumer's room to hold timers.
        hold_bound_ms: How early the broker may deliver a delayed message.
        parks: Whether the subscription has a parking topic, for an operator.
        redelivery_delay_ms: Time after which a message that was given back is redelivered.
    """

    __slots__ = ("_failing", "_given_back", "_hold_bound_ms", "_max_held", "_most", "_parks", "_redelivery_delay_ms",
                 "_since_ms")  # fmt: skip

    def __init__(self, max_held: int, hold_bound_ms: int, *, parks: bool, redelivery_delay_ms: int) -> None:
        self._max_held = max_held
        self._most = max(max_held // SHARE, 1)
        self._hold_bound_ms = hold_bound_ms
        self._parks = parks
        self._redelivery_delay_ms = redelivery_delay_ms
        self._failing = 0  # timers in flight whose last publish failed
        self._given_back = 0
        self._since_ms = 0

    def too_many(self, extras: int) -> bool:
        """True if this number of extra copies leaves less than half of the room to timers."""
        return 2 * extras > self._max_held

    def waits(self, timer: InFlight, *, is_full: bool) -> bool:
        """Return whether a timer whose publish failed waits here for another publish, perhaps to the parking topic.

        Otherwise the timer goes back to the broker.

        Args:
            timer: The timer.
            is_full: Whether the consumer has no room.
        """
        self._failing += not timer.failures
        timer.failures += 1
        is_crowd = self._failing > self._most
        if timer.redirect is not None:
            # The timer has no room reserved here, unlike a timer that arrived early.
            return not is_full and not is_crowd
        if not is_crowd and timer.failures < MAX_FAILURES:
            return True
        if not self._parks_by_now(timer.arrival):
            return False
        self.forgets(timer)
        timer.redirect = Parked("it came far too early, and could not be published again")
        return True

    def forgets(self, timer: InFlight) -> None:
        """Reset the failed publishes of a timer that leaves or is to be parked."""
        self._failing -= 1
        timer.failures = 0

    def too_new(self, arrival: Arrival, now_ms: int, monotonic_ms: int) -> InFlight | None:
        """Decide about a message of a later version: park it, or hand it out as unreadable.

        Returns:
            The timer in flight; None to have the broker redeliver the message, perhaps to a consumer of that version.
            The number of redeliveries is limited, since any producer can write any version.
        """
        if monotonic_ms - self._since_ms >= self._redelivery_delay_ms:
            self._since_ms, self._given_back = monotonic_ms, 0
        self._given_back += 1
        is_crowd = self._given_back > self._most
        if not is_crowd and not self._parks_by_now(arrival):
            return None
        timer = InFlight(arrival.place_key, arrival, monotonic_ms)
        if self._parks:
            timer.redirect = Parked(f"no consumer here reads it: {arrival.envelope_error}"[:MAX_REASON_CHARS])
        else:
            timer.postponed_ms, timer.not_before_ms = now_ms, now_ms + self._hold_bound_ms
        return timer

    def without_id(self, arrival: Arrival, redirect: Redirect) -> Parked | None:
        """Decide about a message without id that its handler wants parked or retried; None to have it redelivered."""
        if isinstance(redirect, Parked):
            return redirect if self._parks else None
        if not self._parks_by_now(arrival):
            return None
        came = f"the broker delivered it again {arrival.redeliveries} times (limit {MAX_GIVEN_BACK})"
        return Parked(f"it has no envelope to be tried again by, and {came}")

    def _parks_by_now(self, arrival: Arrival) -> bool:
        return self._parks and arrival.redeliveries >= MAX_GIVEN_BACK

"""Next hop of a timer from its present topic: the only place in which a hop is decided.

A relay asks for the timers that it holds (`NextHop.held`), and for those that the broker held and has delivered
(`NextHop.delivered`); a consumer asks for timers that came far too early (`again`). All decisions are functions of
stored data and, for *when*, of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from timewheel.core.envelope import Envelope, first_wanted_ms
from timewheel.core.plan import MAX_HOPS
from timewheel.core.routing import Due, Hold, Router, release_at
from timewheel.core.steps import Step


class Hop(NamedTuple):
    """A timer moves on: publish its next copy."""

    topic: str  # destination, without a partition suffix; the partition stays the same
    deliver_at_ms: int  # delivery time to request from the broker, UTC milliseconds; 0: at once
    envelope: Envelope  # envelope of the next copy
    is_due: bool  # True if the destination is a due topic
    # the timer takes the late lane: on its nominal way it would come after its due time (broker-facts: late-lane), or
    # hop many times without waiting (broker-facts: entered-long-ago)
    is_late: bool
    # latest time at which the timer may enter a topic that a relay holds, so as not to be late; None: no relay holds
    # the destination, or the timer is already late
    latest_ms: int | None = None
    leaves_plan: bool = False  # the timer goes to the due topic before its time, to leave the plan (`NextHop`)
    nominal: Hop | None = None  # the hop by which an earlier attempt may have stored a timer that is late now


class NotYet(NamedTuple):
    """A timer may not leave before ``until_ms``, UTC milliseconds."""

    until_ms: int  # release time of the timer
    # time after the release at which the timer may still leave for a topic that a relay holds without being late; 0: it
    # must not leave later
    room_ms: int


class ToDeadLetter(NamedTuple):
    """A timer goes to the dead-letter topic, with the reason as a sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class Drop:
    """A timer was cancelled or replaced: it goes nowhere."""


_DROP = Drop()


class NextHop:
    """Decides the next hops for the timers of one holding topic.

    With a `native` plan no timer waits outside the due topic, so timers that an earlier plan held leave at once. Their
    destination is the same at any time: a relay that replays the hop later meets the broker's deduplication.

    Args:
        router: The plan's router.
        step: Step of the topic: its tier or its ring.
        is_cancelled: Returns whether a timer is known to be cancelled or replaced; None: no timer can be. The function
            may miss one: another relay or a consumer drops the copy later (broker-facts: cancellation-log).
        drains_from_ms: Drain the topic: timers with a release time after this go to the due topic at once, for the
            broker to delay. Timers with an earlier release time go by plan: a relay that has not heard of the drain
            may have sent them on already, and on the nominal way the broker detects the repeat. None: all timers go
            by plan.
    """

    __slots__ = ("_drains_from_ms", "_is_cancelled", "_max_delay_ms", "_router", "_skew_ms", "_step")

    def __init__(
        self,
        router: Router,
        step: Step,
        is_cancelled: Callable[[Envelope], bool] | None = None,
        *,
        drains_from_ms: int | None = None,
    ) -> None:
        self._drains_from_ms = drains_from_ms
        self._router = router
        self._step = step
        self._is_cancelled = is_cancelled
        self._skew_ms = router.plan.skew_ms
        self._max_delay_ms = router.plan.max_delay_ms

    @property
    def is_native(self) -> bool:
        """True if all timers leave at once, by a `native` plan."""
        return self._router.is_native

    def release_ms(self, envelope: Envelope) -> int:
        """Return when a timer may leave this topic, UTC milliseconds."""
        return release_at(self._step, envelope.due_ms, envelope.entered_ms)

    def held(
        self, envelope: Envelope, now_ms: int, arrived_by_ms: int | None = None
    ) -> Hop | NotYet | ToDeadLetter | Drop:
        """Decide on the timer at the head of a topic that a relay holds.

        Args:
            envelope: Envelope of the timer.
            now_ms: UTC milliseconds.
            arrived_by_ms: A time by which it had arrived; None: now.
        """
        if (settled := self._settled(envelope)) is not None:
            return settled
        step, router, only_for = self._step, self._router, envelope.life.only_for
        at_ms = release_at(step, envelope.due_ms, envelope.entered_ms)
        leaves_plan = self._drains_from_ms is not None and at_ms > self._drains_from_ms
        if leaves_plan or router.is_native:
            return self._at_once(envelope, now_ms, leaves_plan=leaves_plan)
        arrived_ms = now_ms if arrived_by_ms is None else arrived_by_ms
        if step.kind != "slot" and now_ms < at_ms and envelope.entered_ms > arrived_ms + self._skew_ms:
            # Entered by a clock that is far too fast. At the head this timer would hold up the timers behind it for as
            # long (broker-facts: clocks-too-fast).
            return self._late(envelope, now_ms)
        # Routed by the nominal release time, not by the clock: a replay meets the same destination
        # (broker-facts: nominal-release-time).
        route = router.route(envelope.due_ms, at_ms, only_for)
        if isinstance(route, Due):
            if now_ms < at_ms:
                return NotYet(at_ms, 0)
            return Hop(route.topic, route.deliver_at_ms, envelope.hopped(at_ms), True, False)
        latest_ms = router.latest_entry_ms(route, envelope.due_ms)
        if now_ms < at_ms:
            return NotYet(at_ms, 0 if latest_ms is None else latest_ms - at_ms)
        hop = Hop(route.topic, route.deliver_at_ms, envelope.hopped(at_ms), False, False, latest_ms)
        if (latest_ms is not None and now_ms > latest_ms) or self._catches_up_too_far(route, envelope, at_ms, now_ms):
            return self._late(envelope, now_ms, hop)
        return hop

    def _late(self, envelope: Envelope, now_ms: int, nominal: Hop | None = None) -> Hop:
        route = self._router.route(envelope.due_ms, now_ms, envelope.life.only_for)
        is_due = isinstance(route, Due)
        return Hop(route.topic, route.deliver_at_ms, envelope.hopped(now_ms), is_due, True, nominal=nominal)

    def _at_once(self, envelope: Envelope, now_ms: int, *, leaves_plan: bool) -> Hop:
        """Send a timer into the due topic before its release time, for the broker to delay."""
        due = self._router.to_due(envelope.due_ms, now_ms, envelope.life.only_for)
        hopped = envelope.hopped(envelope.entered_ms)
        return Hop(due.topic, due.deliver_at_ms, hopped, True, False, leaves_plan=leaves_plan)

    def _catches_up_too_far(self, hold: Hold, envelope: Envelope, at_ms: int, now_ms: int) -> bool:
        """Return whether a timer would leave the next topic at once, and left this topic longer before its due time
        than the plan allows a delay. No producer of this plan wrote such a timer, and each further hop would be made
        without waiting (broker-facts: entered-long-ago).
        """
        return hold.release_at_ms <= now_ms and envelope.due_ms - at_ms > self._max_delay_ms

    def delivered(self, envelope: Envelope, now_ms: int) -> Hop | ToDeadLetter | Drop:
        """Decide on a timer that the broker held, once it was delivered.

        The nominal time decides, as in a tier that a relay holds: a delivery that is a tick early or an outage late
        changes nothing.

        Args:
            envelope: Envelope of the timer.
            now_ms: UTC milliseconds.
        """
        if (settled := self._settled(envelope)) is not None:
            return settled
        if self._router.is_native:
            return self._at_once(envelope, envelope.entered_ms, leaves_plan=False)
        nominal_ms = release_at(self._step, envelope.due_ms, envelope.entered_ms)
        route = self._router.route(envelope.due_ms, nominal_ms, envelope.life.only_for)
        if isinstance(route, Hold) and self._catches_up_too_far(route, envelope, nominal_ms, now_ms):
            return self._late(envelope, now_ms)
        return Hop(route.topic, route.deliver_at_ms, envelope.hopped(nominal_ms), isinstance(route, Due), False)

    def _settled(self, envelope: Envelope) -> ToDeadLetter | Drop | None:
        """Decide on a timer that can go nowhere; None: the timer can move on."""
        if self._is_cancelled is not None and self._is_cancelled(envelope):
            return _DROP
        # Whatever the plan: an accepted timer may have been on its way under another plan, with more hops.
        if envelope.hops >= MAX_HOPS:
            return _ENDLESS
        only_for = envelope.life.only_for
        if only_for and not self._router.has_retries(only_for):
            return ToDeadLetter(f"it is a retry of {only_for}, which no longer has a retry topic in this plan")
        return None


_ENDLESS = ToDeadLetter(f"{MAX_HOPS} hops, which no plan needs")


def again(router: Router, envelope: Envelope, now_ms: int, came_from: str) -> Hop:
    """Route a timer that came to a consumer far too early back to its due topic, with its real due time.

    Args:
        router: The plan's router.
        envelope: Envelope of the timer.
        now_ms: UTC milliseconds.
        came_from: Due topic from which the timer came, without a partition suffix. In a calendar a timer that is due
            beyond the plan's ``max_delay`` goes back to it: the timer's interval may not have a topic yet, or ever.
    """
    due = router.to_due(envelope.due_ms, now_ms, envelope.life.only_for)
    is_beyond = router.interval_ms and envelope.due_ms - now_ms > router.plan.max_delay_ms
    return Hop(
        came_from if is_beyond else due.topic, due.deliver_at_ms, envelope.hopped(envelope.entered_ms), True, False
    )


def retry_hop(
    router: Router, envelope: Envelope, subscription: str, due_ms: int, now_ms: int, *, stored_within_ms: int
) -> Hop:
    """Route the next attempt of a timer that a subscription's handler postponed, for that subscription alone.

    Id, generation and group stay, so a cancel reaches the attempt; its hops count from 0.

    Args:
        router: The plan's router. The subscription has a topic for timers that it tries again.
        envelope: Envelope of the failed attempt.
        subscription: Subscription of the handler.
        due_ms: Time of the next attempt, UTC milliseconds.
        now_ms: UTC milliseconds.
        stored_within_ms: Longest time that the publish may take.
    """
    life = envelope.life
    next_life = life._replace(attempt=life.attempt + 1, first_due_ms=first_wanted_ms(envelope), only_for=subscription)
    successor = Envelope(envelope.timer_id, due_ms, now_ms, envelope.generation, 0, router.plan.revision, next_life)
    route = router.route_of_send(due_ms, now_ms, stored_within_ms, subscription)
    return Hop(route.topic, route.deliver_at_ms, successor, isinstance(route, Due), False)

"""Where a timer goes on to from where it waits: the one place in which a hop is decided.

A relay asks for what it holds (`NextHop.held`), for what a broker held and has delivered (`NextHop.delivered`), a
consumer for what came to it far too early (`again`). All are functions of stored data and, for *when*, of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from timewheel.core.envelope import Envelope, first_wanted_ms
from timewheel.core.plan import MAX_HOPS
from timewheel.core.routing import Due, Hold, Router, release_at
from timewheel.core.steps import Step

__all__ = ["Bury", "Drop", "Hop", "NextHop", "NotYet", "again", "tried_again"]


class Hop(NamedTuple):
    """A timer moves on: publish it there.

    Args:
        topic: Destination, without a partition suffix; the partition stays.
        deliver_at_ms: What to ask the broker for, UTC milliseconds; 0: at once.
        envelope: The next one.
        is_due: Whether the destination is a due topic.
        is_late: By the late lane: on its nominal way it would come after its due time (broker-facts: late-lane), or
            hop many times without waiting (broker-facts: entered-long-ago).
        latest_ms: When it must enter a topic that a relay holds at the latest, so as not to be late; None: the
            destination is none, or it is late already.
        leaves_plan: It goes to the due topic before its time, by the way out of the plan (`NextHop`).
    """

    topic: str
    deliver_at_ms: int
    envelope: Envelope
    is_due: bool
    is_late: bool
    latest_ms: int | None = None
    leaves_plan: bool = False


class NotYet(NamedTuple):
    """It may not leave before ``until_ms``, UTC milliseconds.

    Args:
        until_ms: Its release time.
        room_ms: How much later it may leave for a topic that a relay holds without being late; 0: it must not.
    """

    until_ms: int
    room_ms: int


class Bury(NamedTuple):
    """To the dead-letter topic, with the reason as a sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class Drop:
    """It was cancelled or replaced: it goes nowhere."""


_DROP = Drop()


class NextHop:
    """The decisions for the timers of one holding topic.

    By a `native` plan nothing waits outside the due topic, so what an earlier plan held leaves at once. Its destination
    is the same at any time: a relay that replays the hop later meets the broker's deduplication there.

    Args:
        router: The plan's.
        step: The topic's step: its tier or its ring.
        is_dead: Whether a timer is known to be cancelled or replaced; None: none can be. It need not know: a copy that
            goes on is dropped later, by another relay or by a consumer (broker-facts: cut-off-log).
        drains_from_ms: Nothing shall wait here any more: what is released later than this goes to the due topic at
            once, for the broker to delay. What is released before goes as the plan says: a relay that has not heard of
            it may have sent it on already, and by its nominal way the broker sees that. None: all goes by plan.
    """

    __slots__ = ("_drains_from_ms", "_is_dead", "_max_delay_ms", "_router", "_skew_ms", "_step")

    def __init__(
        self,
        router: Router,
        step: Step,
        is_dead: Callable[[Envelope], bool] | None = None,
        *,
        drains_from_ms: int | None = None,
    ) -> None:
        self._drains_from_ms = drains_from_ms
        self._router = router
        self._step = step
        self._is_dead = is_dead
        self._skew_ms = router.plan.skew_ms
        self._max_delay_ms = router.plan.max_delay_ms

    @property
    def is_native(self) -> bool:
        """Whether all leaves at once, by a `native` plan."""
        return self._router.is_native

    def release_ms(self, envelope: Envelope) -> int:
        """When a timer of this topic may leave it, UTC milliseconds."""
        return release_at(self._step, envelope.due_ms, envelope.entered_ms)

    def held(self, envelope: Envelope, now_ms: int) -> Hop | NotYet | Bury | Drop:
        """Decide on the head of a topic that a relay holds.

        Args:
            envelope: Its.
            now_ms: UTC milliseconds.
        """
        if (settled := self._settled(envelope)) is not None:
            return settled
        step, router, only_for = self._step, self._router, envelope.life.only_for
        at_ms = release_at(step, envelope.due_ms, envelope.entered_ms)
        leaves_plan = self._drains_from_ms is not None and at_ms > self._drains_from_ms
        if leaves_plan or router.is_native:
            return self._at_once(envelope, now_ms, leaves_plan=leaves_plan)
        if step.kind != "slot" and envelope.entered_ms > now_ms + self._skew_ms:
            # By a clock that is far too fast. At the head it would hold up for so long what is behind it
            # (broker-facts: clocks-too-fast).
            return self._late(envelope, now_ms)
        # By the nominal release time, not by the clock: a replay meets the same destination
        # (broker-facts: nominal-release-time).
        route = router.route(envelope.due_ms, at_ms, only_for)
        if isinstance(route, Due):
            if now_ms < at_ms:
                return NotYet(at_ms, 0)
            return Hop(route.topic, route.deliver_at_ms, envelope.hopped(at_ms), True, False)
        latest_ms = router.latest_entry_ms(route, envelope.due_ms)
        if now_ms < at_ms:
            return NotYet(at_ms, 0 if latest_ms is None else latest_ms - at_ms)
        if (latest_ms is not None and now_ms > latest_ms) or self._catches_up_too_far(route, envelope, at_ms, now_ms):
            return self._late(envelope, now_ms)
        return Hop(route.topic, route.deliver_at_ms, envelope.hopped(at_ms), False, False, latest_ms)

    def _late(self, envelope: Envelope, now_ms: int) -> Hop:
        route = self._router.route(envelope.due_ms, now_ms, envelope.life.only_for)
        return Hop(route.topic, route.deliver_at_ms, envelope.hopped(now_ms), isinstance(route, Due), True)

    def _at_once(self, envelope: Envelope, now_ms: int, *, leaves_plan: bool) -> Hop:
        """Into the due topic before the release time, for the broker to delay."""
        due = self._router.to_due(envelope.due_ms, now_ms, envelope.life.only_for)
        onward = envelope.hopped(envelope.entered_ms)
        return Hop(due.topic, due.deliver_at_ms, onward, True, False, leaves_plan=leaves_plan)

    def _catches_up_too_far(self, hold: Hold, envelope: Envelope, at_ms: int, now_ms: int) -> bool:
        """Whether it would leave the next topic at once, and left this one longer before its due time than the plan
        allows a delay: no producer of this plan wrote that, and each hop on would be made without waiting
        (broker-facts: entered-long-ago).
        """
        return hold.release_at_ms <= now_ms and envelope.due_ms - at_ms > self._max_delay_ms

    def delivered(self, envelope: Envelope, now_ms: int) -> Hop | Bury | Drop:
        """Decide on a timer of a topic that the broker holds, once it was delivered.

        By the same nominal time as on a tier that a relay holds: coming a tick early or an outage late changes nothing.

        Args:
            envelope: Its.
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

    def _settled(self, envelope: Envelope) -> Bury | Drop | None:
        """What becomes of one that can go nowhere; None: it can."""
        if self._is_dead is not None and self._is_dead(envelope):
            return _DROP
        # Whatever the plan says: a timer that was accepted may have been on its way under another, with more hops.
        if envelope.hops >= MAX_HOPS:
            return _ENDLESS
        only_for = envelope.life.only_for
        if only_for and not self._router.has_retries(only_for):
            return Bury(f"it is to be tried again by {only_for}, which has no topic for that in this plan any more")
        return None


_ENDLESS = Bury(f"{MAX_HOPS} hops, which no plan needs")


def again(router: Router, envelope: Envelope, now_ms: int, came_from: str) -> Hop:
    """A timer came to a consumer far too early: back into its due topic, under its real due time.

    Args:
        router: The plan's.
        envelope: Its.
        now_ms: UTC milliseconds.
        came_from: The due topic that it came from, without a partition suffix. In a calendar it goes back there if it
            is due beyond what the plan allows: its interval need not have a topic, and never may.
    """
    due = router.to_due(envelope.due_ms, now_ms, envelope.life.only_for)
    is_beyond = router.interval_ms and envelope.due_ms - now_ms > router.plan.max_delay_ms
    return Hop(
        came_from if is_beyond else due.topic, due.deliver_at_ms, envelope.hopped(envelope.entered_ms), True, False
    )


def tried_again(
    router: Router, envelope: Envelope, subscription: str, due_ms: int, now_ms: int, *, stored_within_ms: int
) -> Hop:
    """A subscription's handler wants a timer later: its next attempt, for that subscription alone.

    Id, generation and group stay, so a cancel reaches it; hops are counted anew.

    Args:
        router: The plan's; the subscription has a topic for what it tries again.
        envelope: Of the attempt that failed.
        subscription: Whose handler it was.
        due_ms: When it is to be tried again, UTC milliseconds.
        now_ms: UTC milliseconds.
        stored_within_ms: How long the publish may take. What may come to a slot of a ring when that was swept goes to
            the subscription's topic at once: in the slot it would wait for the next sweep (broker-facts: slot-sweep).
    """
    life = envelope.life
    next_life = life._replace(
        attempt=life.attempt + 1,
        first_due_ms=first_wanted_ms(envelope),
        only_for=subscription,
    )
    successor = Envelope(envelope.timer_id, due_ms, now_ms, envelope.generation, 0, router.plan.revision, next_life)
    route = router.route(due_ms, now_ms, subscription)
    swept_ms = route.release_at_ms - router.plan.skew_ms if isinstance(route, Hold) and not route.stay_ms else None
    if swept_ms is not None and now_ms + stored_within_ms >= swept_ms:
        route = router.to_due(due_ms, now_ms, subscription)
    return Hop(route.topic, route.deliver_at_ms, successor, isinstance(route, Due), False)

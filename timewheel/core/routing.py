"""Routing: the next topic of a timer, and the release time of a held timer. All other code is a shell around the two.

Both are pure functions of stored data. A producer routes at its send time; a relay routes at the *nominal* release
time, never at the wall clock, so that a replay after a crash meets the same destination
(broker-facts: nominal-release-time).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import astuple
from typing import NamedTuple

from timewheel.core.names import Names
from timewheel.core.plan import Native, Plan, Tiered
from timewheel.core.steps import Step, steps

ROUTING_CODE = 3
"""Raise this number with every change of this module, of `next_hop`, `steps` or `names` that alters any timer's route.

It is part of the names of the relays' producers (`Router.fingerprint`).
"""


class Due(NamedTuple):
    """Route to a due topic.

    Args:
        topic: Full name, without a partition suffix.
        deliver_at_ms: Delivery time to request from the broker: the due time less the plan's lead; 0: at once.
    """

    topic: str
    deliver_at_ms: int


class Hold(NamedTuple):
    """Route to a holding topic.

    Args:
        topic: Full name, without a partition suffix.
        deliver_at_ms: Delivery time to request from the broker in a broker-held tier; 0 if a relay holds the topic.
        release_at_ms: Nominal time at which the timer leaves the topic.
        stay_ms: Fixed stay of the tier; 0 for a slot.
    """

    topic: str
    deliver_at_ms: int
    release_at_ms: int
    stay_ms: int


Route = Due | Hold


class Router:
    """Compiled routing of one plan.

    Args:
        plan: A valid plan.
    """

    __slots__ = (
        "_broker_holds",
        "_due_topic",
        "_lead_ms",
        "_retry_topics",
        "_rows",
        "fingerprint",
        "interval_ms",
        "is_native",
        "names",
        "plan",
    )

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        names = Names(plan)
        table = steps(plan)
        self.names = names
        self._due_topic = plan.due_topic
        self._lead_ms = plan.lead_ms
        self._broker_holds = isinstance(plan.scheme, Tiered) and plan.scheme.hold == "broker"
        self._rows: tuple[tuple[Step, tuple[str, ...]], ...] = tuple(
            (step, names.of_step(step)) for step in table if step.kind != "due"
        )
        self.interval_ms = table[-1].interval_ms
        self.is_native = isinstance(plan.scheme, Native)
        self._retry_topics = {name: names.retry(name) for name in plan.subscriptions} if plan.keeps_back else {}
        self.fingerprint = _fingerprint(table, names, plan.due_topic, self._retry_topics)
        """Name of this routing, unchanged as long as every timer would take the same way as before.

        A relay's hop is replayed safely only while a position leads to the same destination. With another window,
        another guard or another version of this code it may lead to a destination whose deduplication mark is higher,
        and the broker would drop the timer as a repeat. So the fingerprint is part of the producers' names: a change
        costs copies, never a timer.
        """

    def has_retries(self, subscription: str) -> bool:
        """Return whether a subscription has a topic for timers that it tries again."""
        return subscription in self._retry_topics

    def route(self, due_ms: int, at_ms: int, only_for: str = "") -> Route:
        """Decide a timer's next topic.

        Args:
            due_ms: Due time, UTC milliseconds.
            at_ms: Send time in a producer, nominal release time in a relay; UTC milliseconds.
            only_for: The only subscription that gets the timer, with `has_retries`; empty: all subscriptions.
        """
        for step, topics in self._rows:
            if step.stay_ms:
                if due_ms - at_ms >= step.min_remaining_ms:
                    release_at_ms = at_ms + step.stay_ms
                    deliver_at_ms = release_at_ms if self._broker_holds else 0
                    return Hold(topics[0], deliver_at_ms, release_at_ms, step.stay_ms)
            else:
                slot = due_ms // step.slot_ms
                release_at_ms = slot * step.slot_ms - step.headstart_ms
                if release_at_ms > at_ms:
                    return Hold(topics[slot % step.slots], 0, release_at_ms, 0)
        return self.to_due(due_ms, at_ms, only_for)

    def route_of_send(self, due_ms: int, now_ms: int, stored_within_ms: int | None = None, only_for: str = "") -> Route:
        """Decide the topic of a new message: never a slot that may be swept before the message is in it.

        In a swept slot it would wait for the next sweep, a slot later (broker-facts: slot-sweep). A finer ring takes
        it, or the due topic.

        Args:
            due_ms: Due time, UTC milliseconds.
            now_ms: UTC milliseconds.
            stored_within_ms: Longest time that the publish may take. The relay's clock is allowed for besides. None: a
                producer's, which sends a timer again if its publish took longer (`Plan.send_margin_ms`).
            only_for: As in `route`.
        """
        route = self.route(due_ms, now_ms, only_for)
        plan = self.plan
        margin_ms = plan.send_margin_ms if stored_within_ms is None else stored_within_ms + plan.skew_ms
        while isinstance(route, Hold) and not route.stay_ms and route.release_at_ms <= now_ms + margin_ms:
            route = self.route(due_ms, route.release_at_ms, only_for)
        return route if isinstance(route, Hold) else self.to_due(due_ms, now_ms, only_for)

    def to_due(self, due_ms: int, at_ms: int, only_for: str = "") -> Due:
        """Route to the due topic, whatever the remaining time; a past due time is delivered at once.

        A timer for a single subscription ends in that subscription's topic for further attempts, in a calendar too.
        """
        deliver_at_ms = due_ms - self._lead_ms
        topic = self._due_topic
        if only_for:
            topic = self._retry_topics[only_for]
        elif self.interval_ms:
            topic = self.names.calendar_topic(max(due_ms, at_ms) // self.interval_ms)
        return Due(topic, deliver_at_ms if deliver_at_ms > at_ms else 0)

    def latest_entry_ms(self, hold: Hold, due_ms: int) -> int | None:
        """Return the latest time at which a timer may enter ``hold``, UTC milliseconds; None: any time.

        A timer that enters later would leave after its due time, or too late to be swept: it stands behind the timers
        that entered before it, in a tier for up to a whole stay, however early its nominal release is. Such a timer
        takes the late lane (broker-facts: late-lane).
        """
        if hold.deliver_at_ms:
            return None  # the broker releases each message independently of the messages before it
        return due_ms - hold.stay_ms if hold.stay_ms else hold.release_at_ms - 1


def _fingerprint(table: tuple[Step, ...], names: Names, due_topic: str, retry_topics: Mapping[str, str]) -> str:
    rows = [(astuple(step), names.of_step(step)) for step in table]
    way: tuple[object, ...] = (ROUTING_CODE, due_topic, rows)
    if retry_topics:
        # Timers for a subscription that has no such topic any more go to the dead letters instead.
        way = (*way, sorted(retry_topics.items()))
    return hashlib.sha256(repr(way).encode()).hexdigest()[:10]


def release_at(step: Step, due_ms: int, entered_ms: int) -> int:
    """Return the nominal release time of a timer in a holding topic.

    Args:
        step: Step of the holding topic: its tier or its ring, or the step of the intake or the journal.
        due_ms: Due time of the timer.
        entered_ms: Time of entry by the timer's envelope: the send time, or the previous nominal release time.
    """
    if step.slot_ms:
        return due_ms // step.slot_ms * step.slot_ms - step.headstart_ms
    return entered_ms + step.stay_ms

"""Where a timer goes next, and when a held one may leave: the two decisions that everything else is a shell around.

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
from timewheel.core.plan import Calendar, Native, Plan, Tiered
from timewheel.core.steps import Step, steps

__all__ = ["ROUTING_CODE", "Due", "Hold", "Route", "Router", "calendar_topic_of", "release_at"]

ROUTING_CODE = 3
"""Raise it with every change of this module, of `next_hop`, `steps` or `names` by which some timer takes another way.

It is part of the names of the relays' producers, see `Router.fingerprint`.
"""


class Due(NamedTuple):
    """To a due topic.

    Args:
        topic: Its full name, without a partition suffix.
        deliver_at_ms: What to ask the broker for: due less the plan's lead; 0: deliver at once.
    """

    topic: str
    deliver_at_ms: int


class Hold(NamedTuple):
    """To a holding topic.

    Args:
        topic: Its full name, without a partition suffix.
        deliver_at_ms: What to ask the broker for in a broker-held tier; 0 where a relay holds.
        release_at_ms: The nominal time at which it leaves.
        stay_ms: The tier's fixed stay; 0 for a slot.
    """

    topic: str
    deliver_at_ms: int
    release_at_ms: int
    stay_ms: int


Route = Due | Hold


class Router:
    """The routing of one plan, compiled once.

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
        """Names this way of routing: the same as long as every timer would go where it went before.

        A relay's hop is replayed safely only while a position leads to the same destination. After another window,
        another guard or another version of this code it may lead to one whose mark stands above it, and the broker
        would drop the timer as seen before. So it is part of the producers' names: a change costs copies, never a
        timer.
        """

    def has_retries(self, subscription: str) -> bool:
        """Whether a subscription has a topic for what it tries again."""
        return subscription in self._retry_topics

    def route(self, due_ms: int, at_ms: int, only_for: str = "") -> Route:
        """Decide where a timer goes.

        Args:
            due_ms: When it is due, UTC milliseconds.
            at_ms: The send time in a producer, the nominal release time in a relay; UTC milliseconds.
            only_for: The subscription that it is for, one that `has_retries`; empty: all.
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

    def to_due(self, due_ms: int, at_ms: int, only_for: str = "") -> Due:
        """The due topic, whatever the remaining time; a past due time is delivered at once.

        What is for one subscription alone ends in that one's topic for what is tried again, in a calendar too.
        """
        deliver_at_ms = due_ms - self._lead_ms
        topic = self._due_topic
        if only_for:
            topic = self._retry_topics[only_for]
        elif self.interval_ms:
            topic = self.names.calendar_topic(max(due_ms, at_ms) // self.interval_ms)
        return Due(topic, deliver_at_ms if deliver_at_ms > at_ms else 0)

    def latest_entry_ms(self, hold: Hold, due_ms: int) -> int | None:
        """When a timer must enter ``hold`` at the latest, UTC milliseconds; None: whenever.

        Later it would leave it after its due time, or too late to be swept: it stands behind whatever entered before
        it, in a tier up to a whole stay, however early its nominal release is. Such a timer takes the late lane
        (broker-facts: late-lane).
        """
        if hold.deliver_at_ms:
            return None  # the broker releases each message by itself, nothing stands in its way
        return due_ms - hold.stay_ms if hold.stay_ms else hold.release_at_ms - 1


def _fingerprint(table: tuple[Step, ...], names: Names, due_topic: str, retry_topics: Mapping[str, str]) -> str:
    rows = [(astuple(step), names.of_step(step)) for step in table]
    way: tuple[object, ...] = (ROUTING_CODE, due_topic, rows)
    if retry_topics:
        # What is for a subscription that has none any more goes to the dead letters instead.
        way = (*way, sorted(retry_topics.items()))
    return hashlib.sha256(repr(way).encode()).hexdigest()[:10]


def release_at(step: Step, due_ms: int, entered_ms: int) -> int:
    """The nominal release time of a timer in a holding topic.

    Args:
        step: The holding topic's step: its tier or its ring, or that of the intake or the journal.
        due_ms: When the timer is due.
        entered_ms: When it entered, by its envelope: the send time, or the previous nominal release time.
    """
    if step.slot_ms:
        return due_ms // step.slot_ms * step.slot_ms - step.headstart_ms
    return entered_ms + step.stay_ms


def calendar_topic_of(plan: Plan, due_ms: int) -> str:
    """The due topic of a calendar plan for one due time.

    Raises:
        TypeError: The plan is no calendar plan.
    """
    if not isinstance(plan.scheme, Calendar):
        raise TypeError(f"a {type(plan.scheme).__name__} plan has one due topic, not one per interval")
    return Names(plan).calendar_topic(due_ms // plan.scheme.interval_ms)

"""Events about shadows."""

from __future__ import annotations

from timewheel.events.kind import event
from timewheel.hooks import Event

__all__ = [
    "ShadowCaughtUp",
    "ShadowLiftFailed",
    "ShadowLiftsAgain",
    "ShadowLooksFail",
    "ShadowMissesPartitions",
    "ShadowRefuses",
    "ShadowState",
    "ShadowStaysNative",
    "ShadowWaitsForLease",
]


@event(
    "shadow_state",
    "info",
    means="What a shadow is to do with a topic has changed: shadowing, paused, draining, native.",
    do="Nothing: somebody asked for it by a command.",
)
class ShadowState(Event):
    due_topic: str
    state: str


@event(
    "shadow_refuses",
    "error",
    means="Something about the topic forbids to lift timers, such as a subscription on which brokers delay nothing; "
    "what was lifted before still comes in its time.",
    do="Change what the reason names. Until then the topic gathers gaps as it did without a shadow.",
)
class ShadowRefuses(Event):
    due_topic: str
    reason: str


@event(
    "shadow_looks_fail",
    "warning",
    means="The admin API did not answer a shadow's look at state and subscriptions; after a minute without an answer "
    "nothing more is lifted.",
    do="Look after the brokers' web service, and the shadow's rights to stats and properties.",
)
class ShadowLooksFail(Event):
    due_topic: str
    reason: str


@event(
    "shadow_misses_partitions",
    "warning",
    means="The due topic has grown beyond its plan: from the new partitions nothing is lifted, and they gather gaps. "
    "All else goes on.",
    do="Write the number into the plan, run `timewheel topics ensure PLAN --grow`, and let shadows and relays read the "
    "plan again (SIGHUP, or wait a second).",
)
class ShadowMissesPartitions(Event):
    due_topic: str
    has: int
    plan: int


@event(
    "shadow_waits_for_lease",
    "info",
    means="Another shadow lifts from this partition, or one that has just died did.",
    do="Nothing: it takes over when the other is gone.",
)
class ShadowWaitsForLease(Event):
    topic: str


@event(
    "shadow_lift_failed",
    "warning",
    means="Lifting from a partition began anew after an error, such as a reload of the topic; nothing is lost: what "
    "was lifted is acknowledged again, what was not stays in the topic.",
    do="Nothing, unless it keeps on: then see what the reason names, and the broker's log.",
)
class ShadowLiftFailed(Event):
    topic: str
    reason: str


@event(
    "shadow_lifts_again",
    "info",
    means="A lifter began: it acknowledged again what a reload had made the broker forget.",
    do="Nothing. Many forgotten acknowledgements after each reload mean that the broker keeps too few ranges.",
)
class ShadowLiftsAgain(Event):
    topic: str
    journal: int
    forgotten: int


@event(
    "shadow_caught_up",
    "info",
    means="A lifter has gone through the backlog of its partition.",
    do="Once all partitions are caught up, an unload of the topic removes what the broker's index of delays still has.",
)
class ShadowCaughtUp(Event):
    topic: str
    lifted: int


@event(
    "shadow_stays_native",
    "warning",
    means="Timers that are far from due stay in the due topic, since they cannot be moved as they are; told once for "
    "each reason, with where the first of them stands.",
    do="Nothing, if they are few: the broker delivers them. If they are many, change how they are sent.",
)
class ShadowStaysNative(Event):
    topic: str
    why: str
    position: str
    reason: str

"""Events about shadows."""

from __future__ import annotations

from timewheel.events.kind import event
from timewheel.hooks import Event


@event(
    "shadow_state",
    "info",
    means="A command changed the requested state of a shadow: shadowing, paused, draining, native.",
    do="Nothing.",
)
class ShadowState(Event):
    due_topic: str
    state: str


@event(
    "shadow_refuses",
    "error",
    means="The topic forbids moving, such as by a subscription on which brokers delay nothing; moved timers still "
    "come in time.",
    do="Change the reason. Until then the topic gathers gaps as without a shadow.",
)
class ShadowRefuses(Event):
    due_topic: str
    reason: str


@event(
    "shadow_inspection_fails",
    "warning",
    means="The admin API did not answer a shadow's request for state and subscriptions; after a minute nothing more "
    "is moved.",
    do="See the brokers' web service, and the shadow's rights to stats and properties.",
)
class ShadowInspectionFails(Event):
    due_topic: str
    reason: str


@event(
    "shadow_misses_partitions",
    "warning",
    means="The due topic has more partitions than its plan: from those nothing is moved, and they gather gaps.",
    do="Write the number into the plan, run `timewheel topics ensure PLAN --grow`, and let shadows and relays read "
    "the plan again (SIGHUP, or wait a second).",
)
class ShadowMissesPartitions(Event):
    due_topic: str
    has: int
    plan: int


@event(
    "shadow_waits_for_lease",
    "info",
    means="Another shadow moves from this partition, or did until just now.",
    do="Nothing: it takes over when the other is gone.",
)
class ShadowWaitsForLease(Event):
    topic: str


@event(
    "shadow_move_failed",
    "warning",
    means="Moving from a partition began anew after an error, such as a reload of the topic. Nothing is lost: moved "
    "timers are acknowledged again, others stay.",
    do="Nothing, unless it keeps on: then see the reason, and the broker's log.",
)
class ShadowMoveFailed(Event):
    topic: str
    reason: str


@event(
    "shadow_moves_again",
    "info",
    means="A mover began: it acknowledged again what a reload had made the broker forget.",
    do="Nothing. Many forgotten acknowledgements after each reload: the broker keeps too few ranges.",
)
class ShadowMovesAgain(Event):
    topic: str
    journal: int
    forgotten: int


@event(
    "shadow_caught_up",
    "info",
    means="A mover has gone through the backlog of its partition.",
    do="When all partitions are caught up, an unload removes stale index entries from the broker's index.",
)
class ShadowCaughtUp(Event):
    topic: str
    moved: int


@event(
    "shadow_stays_native",
    "warning",
    means="Timers far from due stay in the due topic, since they cannot be moved as they are. Once for each reason, "
    "with the place of the first.",
    do="Nothing, if they are few: the broker delivers them. If they are many, change how they are sent.",
)
class ShadowStaysNative(Event):
    topic: str
    why: str
    position: str
    reason: str

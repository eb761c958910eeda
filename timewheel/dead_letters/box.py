"""Topics in which letters wait for an operator: dead letters and parked timers."""

from __future__ import annotations

from dataclasses import dataclass

from timewheel.client.dead_letters import DEAD_FROM, DEAD_REASON, PARKED_ERROR, PARKED_FROM, PARKED_REASON
from timewheel.core.names import DEAD_LETTER_SUBSCRIPTION, PARKED_SUBSCRIPTION, Names
from timewheel.core.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A topic of dead letters.

    Args:
        topic: Full name, without a partition suffix.
        subscription: Subscription that acknowledges the dead letters.
        reason_property: Property with the reason why a timer became a dead letter.
        from_property: Property with the topic that the dead letter was taken from.
        error_property: Property with the exception of its handler; empty if no handler was involved.
        missing: Remedy if the topic does not exist.
        sources: Name prefixes of the topics whose schemas the dead letters, stored without a schema, may refer to;
            empty if letters are stored with their schema.
    """

    topic: str
    subscription: str
    reason_property: str
    from_property: str
    error_property: str = ""
    missing: str
    sources: tuple[str, ...] = ()


def dead_letter_box(plan: Plan) -> Box:
    """Return the topic of dead letters, which relays could not move."""
    names = Names(plan)
    return Box(
        topic=names.dead_letter,
        subscription=DEAD_LETTER_SUBSCRIPTION,
        reason_property=DEAD_REASON,
        from_property=DEAD_FROM,
        missing="`timewheel topics ensure PLAN` makes it, if the plan needs a relay",
        sources=tuple(f"{prefix}." for prefix in names.own_prefixes),
    )


def parked_box(plan: Plan, subscription: str) -> Box:
    """Return the topic of timers parked by a subscription, which may belong to an earlier revision of the plan."""
    missing = "write retry = true in the plan, and run `timewheel topics ensure PLAN`"
    if subscription not in plan.subscriptions:
        known = ", ".join(plan.subscriptions)
        missing = f"the plan has no subscription {subscription!r}, but {known}"
    return Box(
        topic=Names(plan).parked(subscription),
        subscription=PARKED_SUBSCRIPTION,
        reason_property=PARKED_REASON,
        from_property=PARKED_FROM,
        error_property=PARKED_ERROR,
        missing=missing,
    )

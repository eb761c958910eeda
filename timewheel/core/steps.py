"""A plan as a table of routing steps: the one description of routing, read by Python and by Spark alike.

A timer with ``remaining_ms = due_ms - at_ms`` takes the **first** step of the table that matches:

========  ====================================================  ===========================================
kind      matches when                                          then
========  ====================================================  ===========================================
tier      ``remaining_ms >= min_remaining_ms``                  waits ``stay_ms`` in that tier
slot      ``due // slot_ms * slot_ms - headstart_ms > at_ms``   waits in that ring's slot until the left side
due       always (closes every table)                           goes to the due topic (of its interval)
========  ====================================================  ===========================================

The table holds numbers only, so that a planner can turn it into column expressions; `routing` adds the topics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from timewheel.core.plan import Calendar, Native, Plan, Tiered, Wheel, tier_entry_ms, tier_hops

__all__ = ["INTAKE_STEP", "JOURNAL_STEP", "Step", "StepKind", "far_ms", "hop_bound", "longest_due_stay_ms", "steps"]

StepKind = Literal["tier", "slot", "due", "intake", "journal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One row of the table; fields that its kind does not use are 0.

    Args:
        kind: Which rule of the table above.
        min_remaining_ms: tier: the least remaining time that enters it.
        stay_ms: tier: how long it holds.
        slot_ms: slot: length of a slot.
        slots: slot: number of slots in the ring.
        headstart_ms: slot: how long before its start a slot is swept.
        interval_ms: due: length of a calendar interval; 0 where there is one due topic.
    """

    kind: StepKind
    min_remaining_ms: int = 0
    stay_ms: int = 0
    slot_ms: int = 0
    slots: int = 0
    headstart_ms: int = 0
    interval_ms: int = 0


INTAKE_STEP = Step(kind="intake")
"""Of a timer in the intake: it stays for no time. It is in no table, since nothing is routed to it."""
JOURNAL_STEP = Step(kind="journal")
"""The same, of a shadow's copy."""


def steps(plan: Plan) -> tuple[Step, ...]:
    """The routing steps of a plan, in the order in which they are tried."""
    match plan.scheme:
        case Native():
            return (Step(kind="due"),)
        case Calendar(interval_ms=interval_ms):
            return (Step(kind="due", interval_ms=interval_ms),)
        case Tiered():
            return (*_tier_steps(plan, plan.scheme), Step(kind="due"))
        case Wheel():
            return (*_slot_steps(plan, plan.scheme), Step(kind="due"))


def hop_bound(plan: Plan) -> int:
    """The most hops that a timer sent within ``max_delay`` makes; an envelope above it is an error."""
    out_of_intake = int(plan.intake)
    match plan.scheme:
        case Tiered():
            return out_of_intake + tier_hops(plan.scheme, plan.guard_ms, plan.max_delay_ms)
        case Wheel(rings=rings):
            return out_of_intake + len(rings)
        case _:
            return 0


def longest_due_stay_ms(plan: Plan) -> int:
    """The longest time that a timer waits in a due topic under the broker's delay, as long as nothing fails.

    Policies (TTL, quotas) and checks go by it; tiered: max(window, smallest tier + guard)
    (broker-facts: guard-and-skew).
    """
    match plan.scheme:
        case Tiered(window_ms=window_ms, tiers_ms=tiers_ms):
            return max(window_ms, tiers_ms[0] + plan.guard_ms)
        case Wheel(rings=rings):
            return rings[0].slot_ms + plan.headstart_ms(rings[0])
        case _:
            return plan.max_delay_ms


def far_ms(plan: Plan) -> int:
    """The least remaining time with which a shadow lifts a message out of the due topic, milliseconds.

    The longest that the plan leaves a timer there, and the guard: for so long the shadow may be down between the
    publish of a copy and the acknowledgement of its original before both can be delivered.
    """
    return longest_due_stay_ms(plan) + plan.guard_ms


def spare_ms(plan: Plan) -> int:
    """The least time that a timer has left when a relay is to send it on into the due topic: so late a relay may be,
    or another one take over, before any timer comes late.
    """
    match plan.scheme:
        case Tiered(tiers_ms=tiers_ms) as scheme:
            return min(tier_entry_ms(scheme, plan.guard_ms, tier_ms) - tier_ms for tier_ms in tiers_ms)
        case Wheel(rings=rings):
            return plan.headstart_ms(rings[0])
        case _:
            return 0


def _tier_steps(plan: Plan, scheme: Tiered) -> tuple[Step, ...]:
    # Largest first: the first match is the largest tier that still fits with the guard (broker-facts: guard-and-skew).
    return tuple(
        Step(kind="tier", stay_ms=tier_ms, min_remaining_ms=tier_entry_ms(scheme, plan.guard_ms, tier_ms))
        for tier_ms in reversed(scheme.tiers_ms)
    )


def _slot_steps(plan: Plan, scheme: Wheel) -> tuple[Step, ...]:
    # Coarsest first. At its own release a slot no longer matches, and no coarser one does: hops only go inward.
    return tuple(
        Step(kind="slot", slot_ms=ring.slot_ms, slots=ring.slots, headstart_ms=plan.headstart_ms(ring))
        for ring in reversed(scheme.rings)
    )

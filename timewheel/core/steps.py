"""Routing steps: a plan as a table, the single description of routing, read by Python and Spark alike.

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

StepKind = Literal["tier", "slot", "due", "intake", "journal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Row of the table; fields that its kind does not use are 0."""

    kind: StepKind  # rule in the table above
    min_remaining_ms: int = 0  # tier: least remaining time with which a timer enters
    stay_ms: int = 0  # tier: time that a timer stays
    slot_ms: int = 0  # slot: length of a slot
    slots: int = 0  # slot: number of slots in the ring
    headstart_ms: int = 0  # slot: time before its start at which a slot is swept
    interval_ms: int = 0  # due: length of a calendar interval; 0 if there is a single due topic


INTAKE_STEP = Step(kind="intake")
"""Step of a timer in the intake, with no stay. It is in no table, since no timer is routed to the intake."""
JOURNAL_STEP = Step(kind="journal")  # step of a shadow's copy in the journal, likewise with no stay


def steps(plan: Plan) -> tuple[Step, ...]:
    """Return the routing steps of a plan, in the order in which they are tried."""
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
    """Return the largest number of hops of a timer within ``max_delay``; an envelope with more hops is an error."""
    out_of_intake = int(plan.intake)
    match plan.scheme:
        case Tiered():
            return out_of_intake + tier_hops(plan.scheme, plan.guard_ms, plan.max_delay_ms)
        case Wheel(rings=rings):
            return out_of_intake + len(rings)
        case _:
            return 0


def longest_due_stay_ms(plan: Plan) -> int:
    """Return the longest time that a timer waits in a due topic under the broker's delay, if nothing fails.

    Policies (TTL, quotas) and checks are derived from it; tiered: max(window, smallest tier + guard)
    (broker-facts: guard-and-skew); wheel: a slot, its head start, and a producer's margin.
    """
    return _relayed_stay_ms(plan) + (plan.send_margin_ms if isinstance(plan.scheme, Wheel) else 0)


def _relayed_stay_ms(plan: Plan) -> int:
    """Return the same of timers that come from a relay."""
    match plan.scheme:
        case Tiered(window_ms=window_ms, tiers_ms=tiers_ms):
            return max(window_ms, tiers_ms[0] + plan.guard_ms)
        case Wheel(rings=rings):
            return rings[0].slot_ms + plan.headstart_ms(rings[0])
        case _:
            return plan.max_delay_ms


def far_ms(plan: Plan) -> int:
    """Return the least remaining time with which a shadow moves a message out of the due topic, milliseconds.

    This is the longest time that its relays leave a timer in the due topic, plus the guard. The shadow may be down for
    the guard between the publish of a copy and the acknowledgement of its original before both can be delivered.
    """
    return _relayed_stay_ms(plan) + plan.guard_ms


def spare_ms(plan: Plan) -> int:
    """Return the least time that a timer has left when a relay is to send it on into the due topic. A relay may be this
    late, or another relay take over, before any timer comes late.
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
    # Coarsest first. At its release a slot no longer matches, and no coarser slot does: hops only go inward.
    return tuple(
        Step(kind="slot", slot_ms=ring.slot_ms, slots=ring.slots, headstart_ms=plan.headstart_ms(ring))
        for ring in reversed(scheme.rings)
    )

"""Numbers on which producer and consumer must agree, since they never import each other.

A producer asks the broker to deliver before the due time, by the plan's lead; one message in `OUT_OF_ORDER_EVERY` it
asks for still earlier. A consumer holds whatever comes early, so it must know how early that can be.
"""

from __future__ import annotations

from timewheel.core.plan import Plan

__all__ = ["DEFAULT_MAX_HELD", "HELD_SHARE", "OUT_OF_ORDER_EVERY", "hold_bound_ms", "out_of_order_ms"]

OUT_OF_ORDER_EVERY = 1_000
"""One delayed message in this many, per producer, asks for an earlier delivery than its neighbours
(broker-facts: starved-due-topic)."""

DEFAULT_MAX_HELD = 25_000
"""Messages that a consumer holds before they are due: half of the broker's default of 50,000 for
``maxUnackedMessagesPerConsumer``."""

HELD_SHARE = 2
"""A consumer may hold one in this many of what the broker lets it have unacknowledged; the rest is for what handlers
have in hand. At the broker's bound nothing more is delivered, not even what is due
(broker-facts: bounded-local-hold)."""

EARLY_TICKS = 2
"""How many ticks before the asked time a broker may deliver: one by its tick, and newer ones trim up to 511 ms."""


def out_of_order_ms(plan: Plan) -> int:
    """How much earlier than the others every `OUT_OF_ORDER_EVERY`-th delayed message is asked for: 2.5 ticks.

    Messages in non-decreasing order of delivery let the broker's fixed-delay detection stop reading a due topic, so
    that a message due now waits behind the head (broker-facts: starved-due-topic). One that is out of order by more
    than a tick ends that.

    Returns:
        Milliseconds; 0 where any client may read, since only our consumers hold the early ones
        (broker-facts: a-tick-early-or-late).
    """
    return plan.tick_ms * 5 // 2 if plan.readers == "timewheel" else 0


def hold_bound_ms(plan: Plan) -> int:
    """The most that a consumer holds a message before its due time: lead, 2.5 ticks and the broker's own earliness.

    What comes still earlier was not asked for by us: it is published again, not held
    (broker-facts: bounded-local-hold).
    """
    return plan.lead_ms + out_of_order_ms(plan) + EARLY_TICKS * plan.tick_ms

"""How early a due message may arrive, on which producer and consumer must agree, since neither imports the other.

A producer asks the broker to deliver before the due time, by the plan's lead, and still earlier for one message in
`OUT_OF_ORDER_EVERY`. A consumer holds messages that arrive early, so it must know the earliest possible arrival.
"""

from __future__ import annotations

from itertools import count

from timewheel.core.next_hop import Hop
from timewheel.core.plan import Plan

OUT_OF_ORDER_EVERY = 1_000
"""One delayed message in this many, per producer, requests an earlier delivery than its neighbours
(broker-facts: starved-due-topic)."""

DEFAULT_MAX_HELD = 25_000
"""Messages that a consumer holds before they are due: half of the broker's default of 50,000 for
``maxUnackedMessagesPerConsumer``."""

HELD_SHARE = 2
"""A consumer may hold this fraction (a half) of the messages that the broker lets it have unacknowledged. The rest is
for messages that handlers are working on. At the broker's limit no message is delivered any more, not even a due one
(broker-facts: bounded-local-hold)."""

EARLY_TICKS = 2  # ticks by which a broker may deliver early: one by its tick, and newer brokers trim up to 511 ms


def out_of_order_ms(plan: Plan) -> int:
    """Return how much earlier than the others every `OUT_OF_ORDER_EVERY`-th delayed message is requested: 2.5 ticks.

    Messages in non-decreasing order of delivery let the broker's fixed-delay detection stop reading a due topic, so
    that a message due now waits behind the head (broker-facts: starved-due-topic). One that is out of order by more
    than a tick ends that state. 0 if any client may read the topic, since only our consumers hold early messages
    (broker-facts: a-tick-early-or-late).
    """
    return plan.tick_ms * 5 // 2 if plan.readers == "timewheel" else 0


def hold_bound_ms(plan: Plan) -> int:
    """Return the longest time before its due time that a consumer holds a message.

    It is the sum of lead, 2.5 ticks and the broker's own earliness. timewheel has not requested a message that arrives
    still earlier: the consumer publishes it again and does not hold it (broker-facts: bounded-local-hold).
    """
    return plan.lead_ms + out_of_order_ms(plan) + EARLY_TICKS * plan.tick_ms


class OutOfOrder:
    """Requests one delayed message of a due topic in `OUT_OF_ORDER_EVERY` 2.5 ticks earlier than its neighbours.

    The first message of a producer is such a message, so that many short-lived producers have the same effect. If any
    client may read the topic, no message is requested early, since foreign consumers would not hold it.
    """

    __slots__ = ("_early_ms", "_turns")

    def __init__(self, plan: Plan) -> None:
        self._early_ms = out_of_order_ms(plan)
        self._turns = count()

    def asked_of(self, hop: Hop) -> int:
        """Return the delivery time to request for a hop; call this once for each hop."""
        return self.asked(hop.deliver_at_ms) if hop.is_due else hop.deliver_at_ms

    def asked(self, deliver_at_ms: int) -> int:
        """Return the delivery time to request (UTC milliseconds; 0: at once); call this once for each timer."""
        if not deliver_at_ms or not self._early_ms or next(self._turns) % OUT_OF_ORDER_EVERY:
            return deliver_at_ms
        return max(deliver_at_ms - self._early_ms, 1)

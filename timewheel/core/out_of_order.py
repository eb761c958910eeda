"""Out-of-order deliveries, which keep the broker reading a due topic (broker-facts: starved-due-topic)."""

from __future__ import annotations

from itertools import count

from timewheel.core.limits import OUT_OF_ORDER_EVERY, out_of_order_ms
from timewheel.core.next_hop import Hop
from timewheel.core.plan import Plan


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
        """Return the delivery time to request; call this once for each message of a due topic.

        Args:
            deliver_at_ms: Delivery time by the route, UTC milliseconds; 0: at once, which stays 0.
        """
        if not deliver_at_ms or not self._early_ms or next(self._turns) % OUT_OF_ORDER_EVERY:
            return deliver_at_ms
        return max(deliver_at_ms - self._early_ms, 1)

"""Keeping the broker reading a due topic (broker-facts: starved-due-topic)."""

from __future__ import annotations

from itertools import count

from timewheel.core.limits import OUT_OF_ORDER_EVERY, out_of_order_ms
from timewheel.core.plan import Plan
from timewheel.producers.sending.outgoing import Outgoing

__all__ = ["OutOfOrder"]


class OutOfOrder:
    """Asks for one delayed message in `OUT_OF_ORDER_EVERY` 2.5 ticks earlier than its neighbours.

    The first of a producer's is one of them, so that many short-lived producers do it too. Where any client may read
    none is, since nobody would hold the early ones.
    """

    __slots__ = ("_early_ms", "_turns")

    def __init__(self, plan: Plan) -> None:
        self._early_ms = out_of_order_ms(plan)
        self._turns = count()

    def applied(self, outgoing: Outgoing) -> Outgoing:
        """The message as it is sent; call it once per message.

        Only delayed messages of due topics count: in a broker-held tier fixed-delay detection is wanted.
        """
        if outgoing.place != "due" or not outgoing.deliver_at_ms or not self._early_ms:
            return outgoing
        if next(self._turns) % OUT_OF_ORDER_EVERY:
            return outgoing
        return outgoing._replace(deliver_at_ms=max(outgoing.deliver_at_ms - self._early_ms, 1))

"""Relays that hop wrongly, for controls: a checker must find the losses (broker-facts: exact-hops).

The product has no switch for any of this. A wrong relay is the right relay behind a client that disobeys it, or with a
wrong decision in place of the right decision. The same client reports the points of a relay, for kills at these points.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Literal

from tests.support.through import AroundAcks, BeforeSends, ThroughClient
from timewheel.client.dead_letters import DEAD_REASON
from timewheel.core.envelope import TIMER_PROPERTY, Envelope
from timewheel.core.names import RELAY_SUBSCRIPTION
from timewheel.core.next_hop import Drop, Hop, NextHop, NotYet, ToDeadLetter
from timewheel.core.routing import Due, Router
from timewheel.core.steps import Step
from timewheel.relay.driver.hop_producers import HopBatch, Member

RulesName = Literal[
    "right", "numbered by the start", "not cut at the mark", "both of these", "wall clock", "acknowledge first"
]
RelayPoint = Literal["at_takeover", "before_forward", "between_publish_confirmed_and_ack", "after_ack"]
"""``at_takeover``: the first message after a subscribe was received. ``before_forward``: decided, not passed to the
client. ``between_publish_confirmed_and_ack``: confirmed, not acknowledged. ``after_ack``: the acknowledgement has
returned.
"""


class WallClock(NextHop):
    """Routes by the current time, so that a replay may choose another destination: with deduplication, that loses
    timers.
    """

    def __init__(
        self,
        router: Router,
        step: Step,
        is_cancelled: Callable[[Envelope], bool] | None = None,
        *,
        drains_from_ms: int | None = None,
    ) -> None:
        super().__init__(router, step, is_cancelled, drains_from_ms=drains_from_ms)
        self._by_clock = router

    def held(
        self, envelope: Envelope, now_ms: int, arrived_by_ms: int | None = None
    ) -> Hop | NotYet | ToDeadLetter | Drop:
        decision = super().held(envelope, now_ms, arrived_by_ms)
        if not isinstance(decision, Hop):
            return decision
        route = self._by_clock.route(envelope.due_ms, now_ms)
        return Hop(route.topic, route.deliver_at_ms, envelope.hopped(now_ms), isinstance(route, Due), False)


class StartNumbered(HopBatch):
    """Numbers a group by its start: a group that is cut anew after a crash starts below the stored messages, and is
    dropped completely or doubled.
    """

    def add(self, member: Member, sequence_id: int) -> None:
        start = self.end if self.members else sequence_id
        super().add(member, sequence_id)
        self.end = start


class Straddling(HopBatch):
    """Sends stored and new messages in the same group, so that the stored messages are stored again."""

    def __init__(self, topic: str, version: int, producer: Any, mark: int) -> None:
        del mark
        super().__init__(topic, version, producer, -1)


class StraddlingStart(StartNumbered, Straddling):
    """Combines both errors: new messages are dropped together with stored messages."""


WRONG_GROUPS: dict[RulesName, type[HopBatch]] = {
    "numbered by the start": StartNumbered,
    "not cut at the mark": Straddling,
    "both of these": StraddlingStart,
}


class HopClient(ThroughClient):
    """The client of a relay."""

    def __init__(self, inner: Any, passing: Callable[[RelayPoint], None], rules: RulesName = "right") -> None:
        super().__init__(inner, consumer=self._relay_consumer, producer=self._hop_producer)
        self._passing = passing
        self._acknowledges_first = rules == "acknowledge first"
        # A session receives and sends in one thread.
        self._here = threading.local()

    def _relay_consumer(self, consumer: Any, _: Any, subscription: str) -> Any:
        return _Consumer(consumer, self._passing, self._here) if subscription == RELAY_SUBSCRIPTION else consumer

    def _hop_producer(self, producer: Any, *_: str) -> Any:
        return BeforeSends(producer, self._before_send)

    def _before_send(self, options: dict[str, Any]) -> None:
        properties = options["properties"]
        if TIMER_PROPERTY in properties and DEAD_REASON not in properties:
            if self._acknowledges_first:
                acknowledge, message = self._here.acknowledge
                acknowledge(message)
            self._passing("before_forward")


class _Consumer(AroundAcks):
    def __init__(self, inner: Any, passing: Callable[[RelayPoint], None], here: threading.local) -> None:
        super().__init__(inner, lambda _: passing("between_publish_confirmed_and_ack"), lambda _: passing("after_ack"))
        self._passing = passing
        self._here = here
        self._taken_over = False

    def receive(self, timeout_millis: int) -> Any:
        message = self._inner.receive(timeout_millis)
        self._here.acknowledge = self._inner.acknowledge_cumulative, message
        if not self._taken_over:
            self._taken_over = True
            self._passing("at_takeover")
        return message

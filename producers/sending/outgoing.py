"""A message on its way to one partition of one topic."""

from __future__ import annotations

from typing import Literal, NamedTuple

from timewheel.core.envelope import Envelope
from timewheel.core.out_of_order import OutOfOrder
from timewheel.core.routing import Due, Route

__all__ = ["Outgoing", "Place", "place_of"]

Place = Literal["due", "broker", "relay", "cuts"]
"""Where a message waits: in a due topic, in a tier under the broker's delay, or where a relay holds it. Or it is a
cut-off, and waits for nobody."""


class Outgoing(NamedTuple):
    """Everything that one send needs; nothing is looked up or computed after it exists.

    Args:
        topic: The topic, without a partition suffix.
        partition: The partition to write to; chosen by us, never by the client (broker-facts: keys-and-partitions).
        place: Where it waits; decides batching and compression.
        payload: Encoded content; None: a null value.
        properties: The user's, with the envelope's two.
        partition_key: None: without a key.
        ordering_key: None: without one.
        event_timestamp_ms: None: without one.
        deliver_at_ms: What the broker is asked for, UTC milliseconds; 0: at once.
        timer_id: The same through all hops.
        due_ms: When the timer must reach its handler, UTC milliseconds.
        release_at_ms: When the slot of a ring is swept, UTC milliseconds; 0 for every other topic.
        generation: 0, or the stamp by which it replaces what had its id before.
    """

    topic: str
    partition: int
    place: Place
    payload: bytes | None
    properties: dict[str, str]
    partition_key: str | None
    ordering_key: str | None
    event_timestamp_ms: int | None
    deliver_at_ms: int
    timer_id: str
    due_ms: int
    release_at_ms: int
    generation: int = 0

    def size_bytes(self) -> int:
        """What payload, keys and properties take."""
        texts = (*self.properties, *self.properties.values(), self.partition_key or "", self.ordering_key or "")
        return len(self.payload or b"") + sum(len(text.encode()) for text in texts)

    def in_its_turn(self, out_of_order: OutOfOrder) -> Outgoing:
        """As it is sent; call it once per message.

        Only delayed messages of due topics count: in a broker-held tier fixed-delay detection is wanted.
        """
        if self.place != "due":
            return self
        asked_ms = out_of_order.asked(self.deliver_at_ms)
        return self if asked_ms == self.deliver_at_ms else self._replace(deliver_at_ms=asked_ms)

    def sent_to(self, route: Route, at_ms: int, revision: int) -> Outgoing:
        """The same timer on another route: only topic, delay, the time of entry and the revision change.

        Args:
            route: Where to.
            at_ms: The time that was routed at, UTC milliseconds.
            revision: The plan's.
        """
        place, release_at_ms = place_of(route)
        written = Envelope.read(self.properties)
        assert written is not None, "whatever is sent has an envelope"
        envelope = written._replace(entered_ms=at_ms, revision=revision)
        return self._replace(
            topic=route.topic,
            place=place,
            deliver_at_ms=route.deliver_at_ms,
            release_at_ms=release_at_ms,
            properties={**self.properties, **envelope.properties()},
        )


def place_of(route: Route) -> tuple[Place, int]:
    """Where a route's messages wait, and when a slot is swept (0 for all else)."""
    if isinstance(route, Due):
        return "due", 0
    if route.deliver_at_ms:
        return "broker", 0
    return "relay", 0 if route.stay_ms else route.release_at_ms

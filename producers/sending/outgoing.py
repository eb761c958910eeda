"""Outgoing message to one partition of one topic."""

from __future__ import annotations

from typing import Literal, NamedTuple

from timewheel.core.envelope import Envelope
from timewheel.core.limits import OutOfOrder
from timewheel.core.routing import Due, Route

Place = Literal["due", "broker", "relay", "cancellations"]
"""Place in which a message waits: a due topic, a tier under the broker's delay, or a topic that a relay holds. A
cancellation goes to the log of cancellations and does not wait."""


class Outgoing(NamedTuple):
    """All data of a send; nothing is looked up or computed after its creation.

    Args:
        topic: Topic, without a partition suffix.
        partition: Partition to write to; chosen by us, never by the client (broker-facts: keys-and-partitions).
        place: Place in which the message waits; decides batching and compression.
        payload: Encoded content; None: a null value.
        properties: Properties of the user and the envelope.
        partition_key: Partition key; None: no key.
        ordering_key: Ordering key; None: no key.
        event_timestamp_ms: Event time; None: no event time.
        deliver_at_ms: Delivery time to request from the broker, UTC milliseconds; 0: at once.
        timer_id: Timer id, the same through all hops.
        due_ms: Time at which the timer must reach its handler, UTC milliseconds.
        release_at_ms: Time at which the slot of a ring is swept, UTC milliseconds; 0 for every other topic.
        generation: 0, or the stamp of a send that replaces earlier timers of the same id.
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
        """Return the bytes of payload, keys and properties."""
        texts = (*self.properties, *self.properties.values(), self.partition_key or "", self.ordering_key or "")
        return len(self.payload or b"") + sum(len(text.encode()) for text in texts)

    def in_its_turn(self, out_of_order: OutOfOrder) -> Outgoing:
        """Return the message to send, perhaps with an earlier delivery; call this once per message.

        Only delayed messages of due topics count: in a broker-held tier fixed-delay detection is wanted.
        """
        if self.place != "due":
            return self
        asked_ms = out_of_order.asked(self.deliver_at_ms)
        return self if asked_ms == self.deliver_at_ms else self._replace(deliver_at_ms=asked_ms)

    def sent_to(self, route: Route, at_ms: int, revision: int) -> Outgoing:
        """Return the same timer on another route: only topic, delay, time of entry and revision change.

        Args:
            route: The new route.
            at_ms: Time for which the route was decided, UTC milliseconds.
            revision: The plan's revision.
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
    """Return the place in which a route's messages wait, and the time at which a slot is swept (0 for other topics)."""
    if isinstance(route, Due):
        return "due", 0
    if route.deliver_at_ms:
        return "broker", 0
    return "relay", 0 if route.stay_ms else route.release_at_ms

"""Counts deliveries and acknowledgements at the raw client, below all of timewheel's own bookkeeping.

`RecordingClient` stands between the SDK and `pulsar.Client`. Its consumers have only the methods of
`timewheel.client.surface`: methods that cannot be recorded do not exist.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pulsar

from timewheel.client.positions import Position
from timewheel.client.surface import ConsumerLike, MessageLike
from timewheel.core.envelope import ID_PROPERTY


class Deliveries:
    """Deliveries and acknowledgements of a subscription name, over all its topics and consumers.

    Ledger ids are unique in a cluster, so a position identifies an entry without its topic.

    Args:
        name_of: Returns the timer of a message; None: record only positions, not timers.
    """

    def __init__(self, name_of: Callable[[MessageLike], str | None] | None) -> None:
        self._name_of = name_of
        self._acknowledged: set[Position] = set()
        self._cumulative: dict[str, Position] = {}
        self.redelivered = 0  # deliveries after the acknowledgement of the same position had returned
        self.times_of: defaultdict[str, list[int]] = defaultdict(list)  # delivery times of each timer, UTC milliseconds
        self.redelivered_of: defaultdict[str, int] = defaultdict(int)  # redeliveries of each timer

    def received(self, message: MessageLike) -> None:
        position = Position.of(message.message_id())
        again = position in self._acknowledged
        if not again and self._cumulative:
            upto = self._cumulative.get(message.topic_name())
            again = upto is not None and position <= upto
        timer = self._name_of(message) if self._name_of is not None else None
        if timer is not None:
            self.times_of[timer].append(time.time_ns() // 1_000_000)
        if again:
            self.redelivered += 1
            if timer is not None:
                self.redelivered_of[timer] += 1

    def acknowledged(self, message: Any) -> None:
        """Record that the acknowledgement of a message, or of its id, has returned."""
        self._acknowledged.add(_position(message))

    def acknowledged_cumulative(self, topic: str, message: Any) -> None:
        """Record that a cumulative acknowledgement on a partition has returned."""
        position = _position(message)
        self._cumulative[topic] = max(position, self._cumulative.get(topic, position))


class RecordingClient:
    """A `pulsar.Client` whose consumers are recorded, per subscription name.

    Args:
        client: The real client; the caller closes it.
        business: The subscription on which timers are recorded by id.
        id_property: Property of a message that holds its timer's id.
    """

    def __init__(self, client: pulsar.Client, business: str, id_property: str = ID_PROPERTY) -> None:
        self._recorded = client
        self._business = business
        self.deliveries: dict[str, Deliveries] = {
            business: Deliveries(lambda message: message.properties().get(id_property))
        }
        """By subscription name: the business subscription and the relay's subscriptions."""

    def create_producer(self, topic: str, **options: Any) -> Any:
        return self._recorded.create_producer(topic, **options)

    def get_topic_partitions(self, topic: str) -> list[str]:
        partitions: list[str] = self._recorded.get_topic_partitions(topic)
        return partitions

    def create_reader(self, topic: str, start_message_id: Any, **options: Any) -> Any:
        """Create a reader: a relay reads holes and ends of ledgers with it and acknowledges nothing."""
        return self._recorded.create_reader(topic, start_message_id, **options)

    def subscribe(self, topic: Any, subscription_name: str, **options: Any) -> Any:
        """Subscribe as `pulsar.Client` does, with a consumer that records."""
        consumer = self._recorded.subscribe(topic, subscription_name, **options)
        deliveries = self.deliveries.setdefault(subscription_name, Deliveries(None))
        return _RecordingConsumer(consumer, deliveries, str(topic))

    @property
    def _client(self) -> Any:
        """The client's own core, which a relay asks for schema definitions."""
        return self._recorded._client  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - as the relay does

    @property
    def business(self) -> Deliveries:
        return self.deliveries[self._business]

    @property
    def redelivered_in_holding(self) -> int:
        """Redeliveries on all other subscriptions: the relay's."""
        return sum(found.redelivered for name, found in self.deliveries.items() if name != self._business)


class _RecordingConsumer:
    def __init__(self, consumer: ConsumerLike, deliveries: Deliveries, topic: str) -> None:
        self._consumer = consumer
        self._deliveries = deliveries
        self._topic = topic

    def receive(self, timeout_millis: int | None = None) -> Any:
        message = self._consumer.receive(timeout_millis)
        self._deliveries.received(message)
        return message

    def acknowledge(self, message: Any) -> None:
        self._consumer.acknowledge(message)
        self._deliveries.acknowledged(message)

    def acknowledge_cumulative(self, message: Any) -> None:
        self._consumer.acknowledge_cumulative(message)
        self._deliveries.acknowledged_cumulative(self._topic, message)

    def negative_acknowledge(self, message: Any) -> None:
        self._consumer.negative_acknowledge(message)

    def get_last_message_id(self) -> Any:
        return self._consumer.get_last_message_id()

    def redeliver_unacknowledged_messages(self) -> None:
        self._consumer.redeliver_unacknowledged_messages()

    def is_connected(self) -> bool:
        return self._consumer.is_connected()

    def close(self) -> None:
        self._consumer.close()


def _position(message: Any) -> Position:
    return Position.of(message.message_id() if hasattr(message, "message_id") else message)

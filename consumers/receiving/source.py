"""Sources of a consumer's messages: here a fixed set of topics, read in the caller's own thread."""

from __future__ import annotations

from typing import Protocol

import pulsar

from timewheel.client.connection_watch import ConnectionWatch
from timewheel.client.hooks import Hooks
from timewheel.consumers.in_flight import Arrival
from timewheel.consumers.message import Reading, arrival_of
from timewheel.consumers.receiving.subscribing import Subscribed, Subscribing
from timewheel.core.clock import Clock


class Source(Protocol):
    """Source of messages for a receiving thread."""

    @property
    def ready(self) -> bool:
        """True if every topic that should be read now is subscribed to and connected."""
        ...

    def start(self) -> None:
        """Subscribe.

        Raises:
            TopologyError: A topic that must exist now is missing.
        """
        ...

    def receive(self, timeout_ms: int) -> Arrival | None:
        """Return the next message; None if no message arrived in time."""
        ...

    def close(self) -> None:
        """Close all consumers; unacknowledged messages are redelivered to other consumers."""
        ...


class SingleSource:
    """A due topic, and the retry topic, if any.

    The client's own queue is the only queue, and its wait is exact to the millisecond: no thread stands between.

    Args:
        subscribing: Opens subscriptions.
        topics: The due topic first.
        clock: The consumer's clock.
        hooks: Receive an event about a lost connection.
        read: Reads a message into an arrival.
    """

    __slots__ = ("_read", "_subscribed", "_subscribing", "_topics", "_watch")

    def __init__(
        self,
        subscribing: Subscribing,
        topics: tuple[str, ...],
        clock: Clock,
        hooks: Hooks,
        read: Reading = arrival_of,
    ) -> None:
        self._read = read
        self._subscribing = subscribing
        self._topics = topics
        self._watch = ConnectionWatch(topics[0], clock, hooks)
        self._subscribed: Subscribed | None = None

    @property
    def ready(self) -> bool:
        return self._subscribed is not None and bool(self._subscribed.consumer.is_connected())

    def start(self) -> None:
        self._subscribed = self._subscribing.open(*self._topics)

    def receive(self, timeout_ms: int) -> Arrival | None:
        subscribed = self._subscribed
        assert subscribed is not None, "start comes first"
        try:
            message = subscribed.consumer.receive(timeout_millis=timeout_ms)
        except pulsar.Timeout:
            self._watch.inspect(is_connected=bool(subscribed.consumer.is_connected()))
            return None
        return self._read(message, subscribed)

    def close(self) -> None:
        if self._subscribed is not None:
            self._subscribed.consumer.close()

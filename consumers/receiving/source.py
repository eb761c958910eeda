"""Where a consumer's messages come from: a fixed set of topics, read in the caller's own thread."""

from __future__ import annotations

from typing import Protocol

import pulsar

from timewheel.consumers.in_hand import Arrival
from timewheel.consumers.message import Reading, arrival_of
from timewheel.consumers.receiving.subscribing import Subscribed, Subscribing
from timewheel.core.clock import Clock
from timewheel.wire.connection_watch import ConnectionWatch
from timewheel.wire.hooks import Hooks

__all__ = ["SingleSource", "Source"]


class Source(Protocol):
    """Gives messages to one receiving thread."""

    @property
    def ready(self) -> bool:
        """Whether everything that should be read now is subscribed to and connected."""
        ...

    def start(self) -> None:
        """Subscribe.

        Raises:
            TopologyError: A topic that must exist now does not.
        """
        ...

    def receive(self, timeout_ms: int) -> Arrival | None:
        """The next message; None if none came in time."""
        ...

    def close(self) -> None:
        """Close all consumers; what is unacknowledged is delivered again to whoever is left."""
        ...


class SingleSource:
    """One due topic, and the topic of what is tried again, if there is one.

    The client's own queue is the only one, and its wait is exact to the millisecond: no thread stands between.

    Args:
        subscribing: How to subscribe.
        topics: The due topic first.
        clock: Of the consumer.
        hooks: Told of a connection that is lost.
        read: How a message is read.
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
            self._watch.look(is_connected=bool(subscribed.consumer.is_connected()))
            return None
        return self._read(message, subscribed)

    def close(self) -> None:
        if self._subscribed is not None:
            self._subscribed.consumer.close()

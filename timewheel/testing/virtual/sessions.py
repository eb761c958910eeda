"""Sessions of the binary protocol with virtual brokers: what `timewheel.broker.protocol.Dialer` opens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from timewheel.broker.protocol.commands import Acknowledged, ConsumerClosed, Done, Event, LastPosition, Refused
from timewheel.broker.protocol.commands import SubscriptionType as Type
from timewheel.broker.protocol.entries import Entry
from timewheel.broker.protocol.errors import BrokerLost, BrokerRefused
from timewheel.broker.protocol.session import Address, Session
from timewheel.client.positions import EntryPosition
from timewheel.core.clock import SystemClock
from timewheel.testing.virtual import ledgers, subscriptions
from timewheel.testing.virtual.brokers import Cluster, Topic
from timewheel.testing.virtual.client import Link
from timewheel.testing.virtual.scheduler import MS
from timewheel.testing.virtual.subscriptions import BrokerConsumer, Kind, Subscription


class _Reading:
    """The broker's end of a session's consumer, and what it is sent."""

    def __init__(self, session: VirtualSession, number: int) -> None:
        self._session = session
        self.number = number
        self.at_broker: BrokerConsumer | None = None

    def deliver(self, entries: list[tuple[ledgers.Entry, int]]) -> None:
        self._session.told(*(self._session.entry_of(self.number, entry, again) for entry, again in entries))

    def closed_by_broker(self) -> None:
        self._session.told(ConsumerClosed(consumer_id=self.number, reason="its topic is served elsewhere"))

    def leave(self) -> None:
        if self.at_broker is not None:
            self.at_broker.leave()


class VirtualSession(Session):
    """A session whose commands a virtual broker carries out; it is its own `connection`."""

    def __init__(self, cluster: Cluster, topic: str, *, keep_payload: bool, request_ms: int) -> None:
        self.cluster = cluster
        self.process = cluster.scheduler.current.process
        self.link = Link(cluster, self.process)
        self.address, self.server = Address("virtual", 6650), f"Pulsar Server {cluster.version}"
        self.connection: Any = self
        self._topic, self._keep_payload = topic, keep_payload
        self._clock, self._request_ms = SystemClock(), request_ms
        self._aside: list[Event] = []
        self._failure = None
        self._came: list[Event] = []
        self._readings: dict[int, _Reading] = {}
        self._requests = 0

    def told(self, *events: Event) -> None:
        """Send events to the client; the broker calls this."""
        self.link.to_client(partial(self._came.extend, events))

    def entry_of(self, number: int, stored: ledgers.Entry, again: int) -> Entry:
        """Return an entry as the protocol delivers it."""
        sent, payload = stored.messages[0], stored.payload
        return Entry(
            number, stored.position, again, {} if stored.is_batch else sent.properties,
            publish_ms=stored.publish_ms, deliver_at_ms=stored.deliver_at_ms or None,
            batch_size=len(stored.messages) if stored.is_batch else 0,
            partition_key=sent.key.decode(errors="surrogateescape") or None,
            event_ms=sent.event_ms or None, producer=stored.producer_name, sequence_id=stored.sequence_id,
            schema_version=stored.schema_bytes, has_null_value=sent.payload is None,
            payload=payload if self._keep_payload else None, payload_bytes=len(payload),
        )  # fmt: skip

    # Commands, as of `timewheel.broker.protocol.connection.Connection`

    def subscribe(
        self, topic: str, subscription: str, kind: Type, *, name: str, start: EntryPosition | None = None
    ) -> tuple[int, int]:
        reading = _Reading(self, len(self._readings))
        self._readings[reading.number] = reading

        def at_broker() -> None:
            found = _subscription(self.cluster.topic(topic, make=False), subscription, start)
            reading.at_broker = found.add(reading, name, Kind(kind.value), {})

        return self._ask(f"subscribe to {topic}", at_broker, Done), reading.number

    def grant(self, consumer_id: int, permits: int) -> None:
        self._tell(consumer_id, BrokerConsumer.flow, permits)

    def acknowledge(self, consumer_id: int, positions: Sequence[EntryPosition]) -> int:
        action = partial(self._here, consumer_id, BrokerConsumer.acknowledge, positions)
        return self._ask("acknowledge", action, partial(Acknowledged, consumer_id=consumer_id))

    def acknowledge_up_to(self, consumer_id: int, position: EntryPosition) -> None:
        self._tell(consumer_id, BrokerConsumer.acknowledge_to, position)

    def ask_last_position(self, _: int) -> int:
        words = "ask for the last position"
        return self._ask(words, lambda: self.cluster.topic(self._topic).log.last_confirmed, LastPosition, "position")

    def close_consumer(self, consumer_id: int) -> int:
        return self._ask("close a consumer", self._readings[consumer_id].leave, Done)

    def _ask(self, words: str, action: Callable[[], Any], answer: Callable[..., Event], found: str = "") -> int:
        """Have the broker do something; ``found`` is the answer's field for what it returns."""
        self._requests += 1
        request_id = self._requests

        def at_broker() -> None:
            try:
                result = action()
            except subscriptions.Refused as refused:
                error = BrokerRefused(words, 0, refused.result, refused.result, is_passing=True)
                self.told(Refused(request_id=request_id, error=error))
            else:
                self.told(answer(request_id=request_id, **({found: result} if found else {})))

        self.link.to_broker(at_broker)
        return request_id

    def _tell(self, consumer_id: int, action: Callable[[BrokerConsumer, Any], None], given: Any) -> None:
        self.link.to_broker(partial(self._here, consumer_id, action, given), changes=False)

    def _here(self, consumer_id: int, action: Callable[[BrokerConsumer, Any], None], given: Any) -> None:
        consumer = self._readings[consumer_id].at_broker
        if consumer is not None and consumer.is_connected:
            action(consumer, given)

    # As a session

    def flush(self) -> None:
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        if self._failure is None:
            self._failure = BrokerLost(str(self.address), "it was closed here", "open another one")
            self.link.to_broker(self._leave)

    def _turn(self, deadline_ms: int) -> list[Event]:
        self.flush()
        left_ms = deadline_ms - self._clock.monotonic_ms()
        if not self._came and left_ms > 0:
            self.cluster.scheduler.wait(lambda: not self._came and self._failure is None, left_ms * MS)
        self.flush()
        came, self._came = self._came, []
        return came

    # As a client that is killed or cut off with its process

    def lose(self) -> None:
        self.link.cut()
        self._leave()

    def end(self) -> None:
        self.link.cut()
        self._failure = BrokerLost(str(self.address), "the virtual time is over", "open another one")

    def cut_off(self) -> None:
        """Lose the connection at once: whoever reads opens another, which waits."""
        self._failure = BrokerLost(str(self.address), "no answer", "connect again")
        self.lose()

    def reach_again(self) -> None:
        """Stay lost, unless it was opened meanwhile."""
        self.link.hold(is_held=False)

    def _leave(self) -> None:
        for reading in self._readings.values():
            reading.leave()


def _subscription(topic: Topic, name: str, start: EntryPosition | None) -> Subscription:
    if start is None:
        if name not in topic.subscriptions:
            raise subscriptions.Refused("SubscriptionNotFound")
        return topic.subscriptions[name]
    return topic.subscription(name, topic.log.before(start), is_durable=False)

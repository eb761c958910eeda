"""The native half of pulsar-client over virtual brokers: what `pulsar.Client`, `Producer`, `Consumer`, `Reader` wrap.

The Python classes of the user are pulsar-client's own; here is what they call, ``_pulsar``. Rules of the C++ client
that matter to a test are kept: batches, the order of outcomes, refusals on the spot, receiver queues and permits,
acknowledgements in groups, connections that come back.
"""

from __future__ import annotations

import datetime as dt
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial, partialmethod
from itertools import count
from operator import attrgetter, not_
from typing import Any, Generic, NamedTuple, TypeVar

import _pulsar
import pulsar

from timewheel.broker.protocol.wire import number_field
from timewheel.client.positions import EntryPosition
from timewheel.core.names import java_string_hash, partition_of
from timewheel.testing.virtual.brokers import BrokerProducer, Cluster, Topic, full_name
from timewheel.testing.virtual.clock import waits_of
from timewheel.testing.virtual.ledgers import NOWHERE, Entry, Sent
from timewheel.testing.virtual.scheduler import MS, Alarm, Process, S
from timewheel.testing.virtual.subscriptions import BrokerConsumer, Kind, Refused, Subscription

MAX_MESSAGE_BYTES = 5 * 1024 * 1024
FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 100, 60_000  # between attempts to connect; they double
KEEP_ALIVE_MS = 60_000  # of silence: a ping after ``keepAliveIntervalSeconds`` (30), and as long again
ACK_GROUP_MS, ACK_GROUP_SIZE = 100, 1_000
_THREAD = "pulsar-client"
OK = _pulsar.Result.Ok
_END = 2**63 - 1  # of ledgers, and of time
_AGAIN = "ServiceUnitNotReady"  # after it the client asks once more

P = TypeVar("P", bound="_Reconnecting")
Result = Any
Callback = Callable[[Result, Any], None]
SendCallback = Callback | None
Place = tuple[EntryPosition, int]  # of a message, with its index in a batch, or -1


def result_of(name: str) -> Result:
    return getattr(_pulsar.Result, name)


def error_of(name: str) -> Exception:
    """Return the exception by which pulsar-client raises a result."""
    error: Exception = getattr(pulsar, name, pulsar.PulsarException)(f"Pulsar error: {name}")
    return error


def message_id_of(position: EntryPosition, index: int, batch_size: int, partition: int) -> Any:
    """Build the client's id of a message; index -1: it is in no batch."""
    if index < 0:
        return _pulsar.MessageId(partition, position.ledger, position.entry, -1)
    fields = ((1, position.ledger), (2, position.entry), (3, partition), (4, index), (6, batch_size))
    return _pulsar.MessageId.deserialize(b"".join(number_field(number, value) for number, value in fields))


NO_MESSAGE_ID = message_id_of(NOWHERE, -1, 0, -1)


class Configuration:
    """Settings as they are given: `settings.name(value)` sets, `settings.name()` returns."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}
        self.own_properties: dict[str, str] = {}

    def property(self, key: str, value: str) -> None:
        self.own_properties[key] = value

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)

        def access(*given: Any) -> Any:
            if given:
                self.given[name] = given[0] if len(given) == 1 else given
            return self.given.get(name)

        return access


class MessageBuilder(Configuration):
    """Builds a `Sent`, whose parts are given like settings."""

    def properties(self, properties: dict[str, str]) -> None:
        self.own_properties.update(properties)

    def set_null_value(self) -> None:
        self.given["content"] = None

    def deliver_after(self, delay: dt.timedelta) -> None:
        self.given["deliver_at"] = time.time_ns() // MS + round(delay.total_seconds() * 1000)

    def build(self) -> Sent:
        given = self.given
        return Sent(
            _bytes(given.get("content", b"")),
            self.own_properties,
            key=_bytes(given.get("partition_key", b"")),
            ordering_key=_bytes(given.get("ordering_key", b"")),
            event_ms=given.get("event_timestamp", 0),
            deliver_at_ms=given.get("deliver_at", 0),
            sequence_id=given.get("sequence_id", -1),
        )


def _bytes(given: Any) -> Any:
    return given.encode() if isinstance(given, str) else given


def _told(path: str) -> partialmethod[Any]:
    """Return a method that returns an attribute: pulsar-client asks by methods."""
    return partialmethod(attrgetter(path))


class Received:
    """A message as a consumer hands it out: the native half of `pulsar.Message`."""

    def __init__(self, part: _Part, entry: Entry, index: int, redeliveries: int) -> None:
        self.part = part
        self.entry = entry
        self.index = index if entry.is_batch else -1
        self.sent = entry.messages[index]
        self.redeliveries = redeliveries

    topic_name, redelivery_count = _told("part.topic"), _told("redeliveries")
    publish_timestamp, event_timestamp = _told("entry.publish_ms"), _told("sent.event_ms")
    producer_name, int_schema_version = _told("entry.producer_name"), _told("entry.schema_version")

    def data(self) -> bytes:
        return self.sent.payload or b""

    def length(self) -> int:
        return len(self.data())

    def has_null_value(self) -> bool:
        return self.sent.payload is None

    def properties(self) -> dict[str, str]:
        return dict(self.sent.properties)

    def partition_key(self) -> str:
        return self.sent.key.decode()

    def ordering_key(self) -> str:
        return self.sent.ordering_key.decode()

    def message_id(self) -> Any:
        return message_id_of(self.entry.position, self.index, len(self.entry.messages), self.part.partition)

    def schema_version(self) -> str:
        return (self.entry.schema_bytes or b"").decode("latin-1")

    def encryption_context(self) -> None:
        return None


class _Way:
    """One direction of a connection: actions in order, each after the latency, or at once if there is none."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._queued: deque[Callable[[], None]] = deque()
        self._is_scheduled = self._is_held = False
        self.clear = self._queued.clear

    def put(self, action: Callable[[], None]) -> None:
        self._queued.append(action)
        self._go_on()

    def hold(self, *, is_held: bool) -> None:
        self._is_held = is_held
        self._go_on()

    def _go_on(self) -> None:
        if self._is_scheduled or self._is_held or not self._queued:
            return
        self._is_scheduled = True
        if self._cluster.latency_ns:
            self._cluster.scheduler.at(self._cluster.latency_ns, self._deliver)
        else:
            self._deliver()

    def _deliver(self) -> None:
        try:
            while self._queued and not self._is_held:
                self._queued.popleft()()
        finally:
            self._is_scheduled = False


class Link:
    """A client's connection."""

    def __init__(self, cluster: Cluster, process: Process | None) -> None:
        self._cluster = cluster
        self._process = process
        self._to_broker, self._to_client = _Way(cluster), _Way(cluster)
        self.is_cut = False
        self.hold(is_held=process is not None and process.is_cut_off)

    def to_broker(self, action: Callable[[], None], *, changes: bool = True) -> None:
        """Have the broker do something; ``changes`` is False for a question, and for what only carries messages."""
        if not self.is_cut:
            if changes:
                self._cluster.scheduler.happen()
            run_step = self._cluster.run_step
            self._to_broker.put(action if run_step is None else partial(run_step, self._process, action))

    def to_client(self, action: Callable[[], None]) -> None:
        if not self.is_cut:
            self._to_client.put(action)

    def hold(self, *, is_held: bool) -> None:
        """Let nothing pass, or all again that is under way."""
        self._to_broker.hold(is_held=is_held)
        self._to_client.hold(is_held=is_held)

    def cut(self) -> None:
        """Lose all that is under way, and all to come."""
        self.is_cut = True
        self.clear()

    def clear(self) -> None:
        """Lose all that is under way."""
        self._to_broker.clear()
        self._to_client.clear()


class NativeClient:
    """What `pulsar.Client` wraps."""

    def __init__(self, cluster: Cluster, settings: Configuration) -> None:
        self.cluster = cluster
        self.scheduler = cluster.scheduler
        self.process = self.scheduler.current.process
        self.link = Link(cluster, self.process)
        self._timeout_ns = (settings.operation_timeout_seconds() or 30) * S
        self._is_closed = self._is_over = False
        self._open: list[_Opened[Any]] = []
        self._giving_up = Alarm(self.scheduler, self._give_up)
        if self.process is not None and self.process.is_cut_off:
            self.cut_off()
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=_THREAD, daemon=True).start()

    def call(self, callback: Callable[..., Any] | None, *arguments: Any) -> None:
        """Have the client's own thread call a callback."""
        if callback is not None:
            self._calls.put(partial(callback, *arguments))

    def _run(self) -> None:
        while (called := self._calls.get()) is not None:
            try:
                called()
            except Exception as error:  # noqa: BLE001 - the real client ends the process
                self.scheduler.failed(_THREAD, error)

    def request(self, action: Callable[[], Any], *, changes: bool = True) -> Any:
        """Have the broker do something, as by `Link.to_broker`, and return its answer; the client's errors."""
        if self._is_closed:
            raise error_of("AlreadyClosed")
        scheduler = self.scheduler
        deadline_ns = scheduler.monotonic_ns + self._timeout_ns
        pause_ms = FIRST_PAUSE_MS
        answers: list[tuple[Result, Any]] = []
        ask = partial(self._answer, action, lambda *answer: answers.append(answer))
        while True:
            self.link.to_broker(ask, changes=changes)
            if not answers:
                scheduler.wait(partial(not_, answers), deadline_ns - scheduler.monotonic_ns)
            if answers:
                result, answer = answers.pop()
                if result == OK:
                    return answer
                if result.name != _AGAIN:
                    raise error_of(result.name)
            left_ns = deadline_ns - scheduler.monotonic_ns
            if left_ns <= 0:
                raise error_of("Timeout")
            scheduler.wait(None, min(pause_ms * MS, left_ns))
            pause_ms = min(2 * pause_ms, LONGEST_PAUSE_MS)

    def _answer(self, action: Callable[[], Any], told: Callback) -> None:
        try:
            answer = OK, action()
        except Refused as refused:
            answer = result_of(refused.result), None
        self.link.to_client(partial(told, *answer))

    # As `_pulsar.Client`

    def create_producer(self, topic: str, settings: Configuration) -> Producer:
        producer = Producer(self, full_name(topic), self.get_topic_partitions(topic), settings)
        self._open_by(producer, [producer.connect])
        return producer

    def create_producer_async(self, topic: str, settings: Configuration, callback: Callback) -> None:
        def at_broker() -> Producer:
            producer = Producer(self, full_name(topic), self.cluster.partitions(topic), settings)
            producer.connect()
            self._open.append(producer)
            return producer

        self.link.to_broker(partial(self._answer, at_broker, partial(self.call, callback)))

    def subscribe(self, topic: str, subscription: str, settings: Configuration) -> Consumer:
        return self.subscribe_topics([topic], subscription, settings, full_name(topic))

    def subscribe_topics(self, topics: list[str], subscription: str, settings: Configuration, of: str = "") -> Consumer:
        names = [name for topic in topics for name in self.get_topic_partitions(topic)]
        consumer = Consumer(self, of, names, subscription, settings)
        self._open_by(consumer, [part.connect for part in consumer.parts])
        return consumer

    def create_reader(self, topic: str, start: Any, settings: Configuration) -> Reader:
        reader = Reader(self, full_name(topic), start, settings)
        self._open_by(reader, [part.connect for part in reader.parts])
        return reader

    def _open_by(self, one: _Opened[Any], steps: Iterable[Callable[[], None]]) -> None:
        """Open something by steps at the broker, which lets go of it with the connection, whenever that is lost."""
        self._open.append(one)
        try:
            for step in steps:
                self.request(step, changes=one.changes)
        except Exception:
            self.link.to_broker(self.ending(one))  # the broker may open it later than the client waits for
            raise

    def get_topic_partitions(self, topic: str) -> list[str]:
        return [*self.request(lambda: self.cluster.partitions(topic), changes=False)]

    def get_schema_info(self, topic: str, version: int) -> Any:
        name, _ = partition_of(full_name(topic))
        versions = self.request(lambda: self.cluster.schemas.get(name, ()), changes=False)
        if not 0 <= version < len(versions):
            raise error_of("TopicNotFound")
        return versions[version]

    def end(self) -> None:
        """End with the virtual time; to close it afterwards is no error."""
        self.link.cut()
        self._is_closed = self._is_over = True

    def close(self) -> None:
        if self._is_over:
            return
        if self._is_closed:
            raise error_of("AlreadyClosed")
        for one in [*self._open]:
            one.close()
        self._is_closed = True
        self._calls.put(None)

    def shutdown(self) -> None:
        self.lose()
        self._calls.put(None)

    def lose(self) -> None:
        """End as a process does that is killed: the broker learns that the connection is gone."""
        self._is_closed = True
        self.link.cut()
        for one in self._open:
            one.lost()
        self._open.clear()

    def cut_off(self) -> None:
        """Let nothing pass; after a while both ends give the connection up."""
        self.link.hold(is_held=True)
        self._giving_up.set(KEEP_ALIVE_MS * MS)

    def reach_again(self) -> None:
        """Let all pass again."""
        self._giving_up.cancel()
        self.link.hold(is_held=False)

    def _give_up(self) -> None:
        self.link.clear()
        for part in [part for one in self._open for part in one.parts]:
            part.disconnected()

    def ending(self, one: _Opened[Any]) -> Callable[[], None]:
        """Have something connect no more; return what closes it at the broker, where it is until then."""
        for part in one.parts:
            part.is_closed = True
        return partial(self.let_go, one)

    def let_go(self, one: _Opened[Any]) -> None:
        one.lost()
        if one in self._open:
            self._open.remove(one)


class _Opened(Generic[P]):
    """A producer, consumer or reader of a client, with a part for each partition."""

    changes = False  # whether another thread may look for its beginning or end

    def __init__(self, client: NativeClient, topic: str, parts: list[P]) -> None:
        self._client = client
        self._topic = topic
        self.parts = parts

    topic = _told("_topic")

    def close(self) -> None:
        self._client.request(self._client.ending(self), changes=self.changes)

    def lost(self) -> None:
        """Be closed at the broker, which calls this."""
        for part in self.parts:
            part.lost()


class _Reconnecting:
    """A producer or consumer of one topic, whose connection comes back after pauses that double."""

    def __init__(self, client: NativeClient, topic: str) -> None:
        self.client = client
        self.scheduler = client.scheduler
        self.topic = topic
        self.partition = partition_of(topic)[1]
        self.at_broker: Any = None  # its end at the broker; None: it has no connection
        self.is_closed = False
        self._pause_ms = FIRST_PAUSE_MS

    def connect(self) -> None:
        """Open it at the broker, which calls this; anew, if the connection was lost."""
        raise NotImplementedError

    def closed_by_broker(self) -> None:
        self.client.link.to_client(self._reconnect_soon)

    def disconnected(self) -> None:
        """Lose the connection: the broker lets go of its end."""
        self.leave()
        self._reconnect_soon()

    def lost(self) -> None:
        """Be closed at the broker, which calls this."""
        self.is_closed = True
        self.leave()

    def leave(self) -> None:
        if self.at_broker is not None:
            self.at_broker.leave()
        self.at_broker = None

    def _reconnect_soon(self) -> None:
        self.scheduler.happen()
        self.at_broker = None
        if not self.is_closed:
            self.scheduler.at(self._pause_ms * MS, partial(self.client.link.to_broker, self._reconnect))
            self._pause_ms = min(2 * self._pause_ms, LONGEST_PAUSE_MS)

    def _reconnect(self) -> None:
        if self.is_closed or self.at_broker is not None:
            return
        try:
            self.connect()
        except Refused as refused:
            self.client.link.to_client(partial(self._refused, refused.result))
        else:
            self._pause_ms = FIRST_PAUSE_MS

    def _refused(self, result: str) -> None:  # noqa: ARG002 - some end a producer
        self._reconnect_soon()


class _Handover(NamedTuple):
    """An entry on its way to the broker, and the callbacks of its messages."""

    entry: Entry
    callbacks: list[SendCallback]
    deadline_ns: int


class _Lane(_Reconnecting):
    """A producer on one topic without partitions, or one partition: the C++ client's ``ProducerImpl``."""

    def __init__(self, client: NativeClient, topic: str, settings: Configuration) -> None:
        super().__init__(client, topic)
        self.settings = settings
        self.name = ""
        self.number = -1  # of the last message that was given one
        self.published = -1  # the last number that the broker has confirmed
        self.pending: deque[_Handover] = deque()
        self.messages = 0  # in `pending` and the open batch
        self._batch: list[tuple[Sent, SendCallback]] = []
        self._batch_bytes = 0
        self._batch_ends = Alarm(self.scheduler, self.end_batch)
        self._timeout = Alarm(self.scheduler, self._time_out)

    # At the broker

    def connect(self) -> None:
        topic = self.client.cluster.topic(self.topic)
        name = self.name or self.settings.producer_name() or f"virtual-{self.client.cluster.new_number()}"
        self.at_broker, highest = topic.open_producer(self, name, self.settings.schema())
        if not self.name:
            self.name = name
            self.published = highest
            self.number = max(highest, (self.settings.initial_sequence_id() or 0) - 1)
        for handover in [*self.pending]:
            self._publish(handover)

    def _refused(self, result: str) -> None:
        is_over = result in ("TopicTerminated", "TopicNotFound", "IncompatibleSchema")
        if is_over or result == "ProducerBlockedQuotaExceededException":
            self.fail_all(result)
        if not is_over:
            self._reconnect_soon()

    def _publish(self, handover: _Handover) -> None:
        link, at_broker = self.client.link, self.at_broker
        if at_broker is None or not at_broker.is_open:
            return
        try:
            is_new = at_broker.topic.push(at_broker, handover.entry.sequence_id)
        except Refused:
            link.to_client(self.disconnected)
            return
        if is_new:
            self.client.cluster.write(partial(self._store, at_broker, handover))
        else:
            link.to_client(partial(self._answered, at_broker, handover, NOWHERE))

    def _store(self, at_broker: BrokerProducer, handover: _Handover) -> None:
        link, entry = self.client.link, handover.entry
        if at_broker.session != at_broker.topic.session:
            return
        # The same entry again, if the connection was lost before its answer came: stored as another.
        stored = Entry(entry.messages, at_broker.name, entry.sequence_id, entry.publish_ms, entry.is_batch)
        try:
            position = at_broker.topic.publish(at_broker, stored)
        except Refused as refused:
            link.to_client(partial(self.fail_all, refused.result))
        else:
            link.to_client(partial(self._answered, at_broker, handover, position))

    def lost(self) -> None:
        self._timeout.cancel()
        super().lost()

    # At the client

    def send(self, sent: Sent, callback: SendCallback) -> None:
        if refusal := self._refusal(sent):
            if callback is not None:
                callback(result_of(refusal), NO_MESSAGE_ID)
            return
        if self._is_full():
            self.scheduler.wait(lambda: self._is_full() and not self.is_closed)
        self.messages += 1
        if sent.sequence_id < 0:
            sent.sequence_id = self.number + 1
        self.number = max(self.number, sent.sequence_id)
        if not self.settings.batching_enabled() or sent.deliver_at_ms:
            self._hand_over(Entry((sent,), self.name, sent.sequence_id, self.scheduler.now_ms), [callback])
            return
        if self._batch and self._batch_bytes + sent.size > self.settings.batching_max_allowed_size_in_bytes():
            self.end_batch()
        self._batch.append((sent, callback))
        self._batch_bytes += sent.size
        if len(self._batch) >= self.settings.batching_max_messages():
            self.end_batch()
        else:
            self._batch_ends.set(self.settings.batching_max_publish_delay_ms() * MS)

    def _refusal(self, sent: Sent) -> str:
        """Return the result by which the client refuses a message on the spot; empty: it takes it."""
        if self.is_closed:
            return "AlreadyClosed"
        if sent.size > MAX_MESSAGE_BYTES:
            return "MessageTooBig"
        return "ProducerQueueIsFull" if self._is_full() and not self.settings.block_if_queue_full() else ""

    def _is_full(self) -> bool:
        return 0 < (self.settings.max_pending_messages() or 0) <= self.messages

    def end_batch(self) -> None:
        """Send the open batch."""
        self._batch_ends.cancel()
        if not self._batch:
            return
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        messages = tuple(sent for sent, _ in batch)
        entry = Entry(messages, self.name, messages[0].sequence_id, self.scheduler.now_ms, is_batch=True)
        self._hand_over(entry, [callback for _, callback in batch])

    def _hand_over(self, entry: Entry, callbacks: list[SendCallback]) -> None:
        timeout_ms = self.settings.send_timeout_millis() or 0
        handover = _Handover(entry, callbacks, self.scheduler.monotonic_ns + timeout_ms * MS)
        self.pending.append(handover)
        if timeout_ms > 0:
            self._timeout.set(timeout_ms * MS)
        if self.at_broker is not None:
            self.client.link.to_broker(partial(self._publish, handover), changes=False)

    def _answered(self, at_broker: BrokerProducer, handover: _Handover, position: EntryPosition) -> None:
        if at_broker.is_killed or not self.pending or self.pending[0] is not handover:
            return  # its broker is killed, or it has timed out, or is sent again
        self.pending.popleft()
        if not self.pending:
            self._timeout.cancel()
        entry, size = handover.entry, len(handover.callbacks)
        self.messages -= size
        if position != NOWHERE:
            self.published = max(self.published, entry.sequence_id)
        for index, callback in enumerate(handover.callbacks):
            if callback is not None:
                place = message_id_of(position, index if entry.is_batch else -1, size, self.partition)
                self.client.call(callback, OK, place)

    def _time_out(self) -> None:
        left_ns = self.pending[0].deadline_ns - self.scheduler.monotonic_ns if self.pending else 0
        if left_ns > 0:
            self._timeout.set(left_ns)
        elif self.pending:
            self.fail_all("Timeout")  # as the C++ client: all that waits fails with the first

    def fail_all(self, result: str) -> None:
        """Let all fail that is sent and not confirmed."""
        callbacks = [callback for handover in self.pending for callback in handover.callbacks]
        callbacks += [callback for _, callback in self._batch]
        self.pending.clear()
        self._batch, self._batch_bytes, self.messages = [], 0, 0
        for callback in callbacks:
            self.client.call(callback, result_of(result), NO_MESSAGE_ID)


class Producer(_Opened[_Lane]):
    """What `pulsar.Producer` wraps: a lane for each partition."""

    def __init__(self, client: NativeClient, topic: str, names: Iterable[str], settings: Configuration) -> None:
        super().__init__(client, topic, [_Lane(client, name, settings) for name in names])
        self._turns = count()
        self._settings = settings

    def connect(self) -> None:
        try:
            for lane in self.parts:
                lane.connect()
        except Refused:
            for lane in self.parts:
                lane.leave()
            raise

    def send_async(self, sent: Sent, callback: SendCallback) -> None:
        self._lane_of(sent).send(sent, callback)

    def send(self, sent: Sent) -> Any:
        answers: list[tuple[Result, Any]] = []
        lane = self._lane_of(sent)
        lane.send(sent, lambda *answer: answers.append(answer))
        lane.end_batch()
        if not answers:
            self._client.scheduler.wait(partial(not_, answers))
        result, message_id = answers[0]
        if result != OK:
            raise error_of(result.name)
        return message_id

    def _lane_of(self, sent: Sent) -> _Lane:
        lanes, router = self.parts, self._settings.message_router()
        if len(lanes) == 1:
            return lanes[0]
        if router is not None:
            return lanes[int(router(sent, len(lanes)))]
        if sent.key:
            # pulsar-client hashes the bytes of a key as Java hashes its characters.
            return lanes[java_string_hash(sent.key.decode("latin-1")) % len(lanes)]
        return lanes[next(self._turns) % len(lanes)]

    def flush(self) -> None:
        self._end_batches()
        if self._has_messages():
            self._client.scheduler.wait(self._has_messages)

    def _has_messages(self) -> bool:
        return any(lane.messages for lane in self.parts)

    def flush_async(self, callback: Callable[[Any], None] | None) -> None:
        self._end_batches()
        self._client.call(callback, OK)

    def _end_batches(self) -> None:
        for lane in self.parts:
            lane.end_batch()

    def producer_name(self) -> str:
        return self.parts[0].name

    def last_sequence_id(self) -> int:
        return max(lane.published for lane in self.parts)

    def is_connected(self) -> bool:
        return all(lane.at_broker is not None and lane.at_broker.is_open for lane in self.parts)

    def close(self) -> None:
        if not all(lane.is_closed for lane in self.parts):
            for lane in self.parts:
                lane.fail_all("AlreadyClosed")
            super().close()

    def close_async(self, callback: Callable[[Any], None] | None) -> None:
        self._client.link.to_broker(self._client.ending(self))
        self._client.call(callback, OK)


class _Part(_Reconnecting):
    """A consumer of one topic without partitions, or one partition: the C++ client's ``ConsumerImpl``."""

    def __init__(self, client: NativeClient, topic: str, consumer: _Receiver, queue_size: int) -> None:
        super().__init__(client, topic)
        self.consumer = consumer
        self.queue_size = queue_size
        self._to_renew = 0
        self._unacked: dict[EntryPosition, set[int]] = {}  # indexes of each batch that are not acknowledged
        self._acks: list[EntryPosition] = []  # to be sent together
        self._acks_leave = Alarm(self.scheduler, self.flush_acks)
        self._ack_to: EntryPosition | None = None
        self.start: Place | None = None  # the client hides what comes up to there; None: nothing

    # At the broker

    def connect(self) -> None:
        consumer = self.consumer
        consumer.drop(self)
        self._unacked.clear()
        self._acks.clear()
        subscription = consumer.open_subscription(self.client.cluster.topic(self.topic))
        self.at_broker = subscription.add(self, consumer.name, consumer.kind, consumer.properties)
        self._to_renew = 0
        if self.queue_size:
            self.at_broker.flow(self.queue_size)

    def deliver(self, entries: list[tuple[Entry, int]]) -> None:
        self.client.link.to_client(partial(self._arrived, self.at_broker, entries))

    def _flow(self, at_broker: BrokerConsumer | None, permits: int) -> None:
        if at_broker is not None and at_broker is self.at_broker:
            at_broker.flow(permits)

    def _acknowledged(
        self, at_broker: BrokerConsumer | None, acks: list[EntryPosition], to: EntryPosition | None
    ) -> None:
        if at_broker is None or not at_broker.is_connected:
            return
        if to is not None:
            at_broker.acknowledge_to(to)
        if acks:
            at_broker.acknowledge(acks)

    def last_position(self) -> Place:
        """Return where the topic's last message is; the broker calls this."""
        log = self.client.cluster.topic(self.topic).log
        entry = log.read(log.last_confirmed)
        return log.last_confirmed, len(entry.messages) - 1 if entry is not None and entry.is_batch else -1

    def sought(self, at_ms: int) -> None:
        """Begin at the start, or without one at a time of publishing; the broker calls this."""
        if self.at_broker is None:
            raise Refused("NotConnected")
        self._acks, self._ack_to = [], None
        subscription: Subscription = self.at_broker.subscription
        log = subscription.topic.log
        subscription.seek(log.published_before(at_ms) if self.start is None else log.before(self.start[0]))

    def lost(self) -> None:
        self._acks_leave.cancel()
        super().lost()

    # At the client

    def _arrived(self, at_broker: BrokerConsumer | None, entries: list[tuple[Entry, int]]) -> None:
        if at_broker is not self.at_broker or self.is_closed:
            return
        came: list[Received] = []
        for entry, redeliveries in entries:
            position = entry.position
            if (self._ack_to is not None and position <= self._ack_to) or position in self._acks:
                self.renew(len(entry.messages))  # the client hides what it has acknowledged
                continue
            if entry.is_batch:
                self._unacked[position] = set(range(len(entry.messages)))
            for index in range(len(entry.messages)):
                message = Received(self, entry, index, redeliveries)
                if self.is_hidden((position, message.index)):
                    self.renew()
                else:
                    came.append(message)
        self.consumer.came(came)

    def is_hidden(self, place: Place) -> bool:
        return self.start is not None and place <= self.start

    def renew(self, messages: int = 1) -> None:
        """Ask for more, when half of the queue was taken; without a queue, for each message that is waited for."""
        self._to_renew += messages
        if self._to_renew >= max(self.queue_size // 2, 1):
            permits, self._to_renew = self._to_renew, 0
            self.client.link.to_broker(partial(self._flow, self.at_broker, permits), changes=False)

    def acknowledge(self, position: EntryPosition, index: int) -> None:
        if index >= 0 and (left := self._unacked.get(position)) is not None:
            left.discard(index)
            if left:
                return
            del self._unacked[position]
        self._acks.append(position)
        if len(self._acks) >= ACK_GROUP_SIZE:
            self.flush_acks()
        else:
            self._acks_leave.set(ACK_GROUP_MS * MS)

    def acknowledge_to(self, position: EntryPosition, index: int, size: int) -> None:
        if 0 <= index < size - 1:
            position = EntryPosition(position.ledger, position.entry - 1)  # a batch is acknowledged as a whole
        self._unacked = {entry: left for entry, left in self._unacked.items() if entry > position}
        self._ack_to = max(self._ack_to or position, position)
        self._acks_leave.set(ACK_GROUP_MS * MS)

    def flush_acks(self) -> None:
        """Send the acknowledgements that wait for others."""
        self._acks_leave.cancel()
        acks, self._acks = self._acks, []
        self.client.link.to_broker(partial(self._acknowledged, self.at_broker, acks, self._ack_to), changes=False)

    def redeliver(self, positions: list[EntryPosition] | None) -> None:
        """Ask for entries once more; None: for all that are not acknowledged."""
        if self.at_broker is not None:
            dispatcher = self.at_broker.subscription.dispatcher
            self.client.link.to_broker(partial(dispatcher.redeliver, self.at_broker, positions), changes=False)


class _Receiver(_Opened[_Part]):
    """A consumer or reader: the queue of received messages, which threads and callbacks take from."""

    kind: Any = Kind.Exclusive

    def __init__(self, client: NativeClient, topic: str, names: list[str], settings: Configuration, own: str) -> None:
        super().__init__(client, topic, [_Part(client, one, self, settings.receiver_queue_size()) for one in names])
        self.name = own
        self._settings = settings
        self.properties = settings.own_properties
        self._messages: deque[Received] = deque()
        self._callbacks: deque[Callback] = deque()
        self._is_closed = False

    consumer_name = _told("name")

    def open_subscription(self, topic: Topic) -> Subscription:
        """Return what it subscribes to."""
        raise NotImplementedError

    def came(self, messages: list[Received]) -> None:
        self._messages.extend(messages)
        while self._callbacks and self._messages:
            self._client.call(self._callbacks.popleft(), OK, self._take())

    def receive(self, timeout_ms: int | None = None) -> Received:
        if self._is_empty():
            for part in self.parts:
                if not part.queue_size:
                    part.renew()
            self._client.scheduler.wait(self._is_empty, *waits_of(timeout_ms, MS))
        if self._is_closed or not self._messages:
            raise error_of("AlreadyClosed" if self._is_closed else "Timeout")
        return self._take()

    def receive_async(self, callback: Callback) -> None:
        if self._is_closed:
            self._client.call(callback, result_of("AlreadyClosed"), None)
        elif self._messages:
            self._client.call(callback, OK, self._take())
        else:
            self._callbacks.append(callback)

    def _take(self) -> Received:
        message = self._messages.popleft()
        if message.part.queue_size:
            message.part.renew()
        return message

    def _is_empty(self) -> bool:
        return not (self._messages or self._is_closed)

    def drop(self, part: _Part) -> None:
        """Forget the messages of a part that is connected anew."""
        self._messages = deque(message for message in self._messages if message.part is not part)

    def seek(self, place: Any) -> None:
        """Begin at a message id or a time of publishing, with connections anew, as the broker has it."""
        is_time = isinstance(place, int)
        for part in self.parts:
            part.start = None if is_time else self._start_of(place)
            self._client.request(partial(part.sought, place if is_time else _END))
        self._client.scheduler.wait(lambda: not (self.is_connected() or self._is_closed))

    def _start_of(self, message_id: Any) -> Place | None:
        """Return the place behind which it begins that starts with a message id; None: at the end."""
        position, index = EntryPosition(message_id.ledger_id(), message_id.entry_id()), message_id.batch_index()
        if position.ledger == _END:  # `MessageId.latest`
            return None
        return position, index - 1 if self._settings.start_message_id_inclusive() else index

    def is_connected(self) -> bool:
        return all(part.at_broker is not None for part in self.parts)

    def close(self) -> None:
        if not self._is_closed:
            self._hand_out_no_more()
            super().close()

    def _hand_out_no_more(self) -> None:
        self._is_closed = True
        self._messages.clear()
        while self._callbacks:
            self._client.call(self._callbacks.popleft(), result_of("AlreadyClosed"), None)

    def lost(self) -> None:
        self._is_closed = True
        super().lost()


class Consumer(_Receiver):
    """What `pulsar.Consumer` wraps."""

    changes = True

    def __init__(
        self, client: NativeClient, topic: str, names: list[str], subscription: str, settings: Configuration
    ) -> None:
        name = settings.consumer_name() or f"c{client.cluster.new_ledger_id()}"
        super().__init__(client, topic, names, settings, name)
        self._subscription_name = subscription
        self.kind = settings.consumer_type()
        if settings.message_listener() is not None:
            self.receive_async(self._heard)

    subscription_name = _told("_subscription_name")

    def _heard(self, result: Result, message: Any) -> None:
        if result == OK:
            self._settings.message_listener()(self, message)
            self.receive_async(self._heard)

    def open_subscription(self, topic: Topic) -> Subscription:
        is_earliest = self._settings.subscription_initial_position() == pulsar.InitialPosition.Earliest
        after = topic.log.beginning if is_earliest else topic.log.last_confirmed
        return topic.subscription(self._subscription_name, after)

    def batch_receive(self) -> list[Received]:
        found = [self.receive()]
        while self._messages:
            found.append(self._take())
        return found

    def acknowledge(self, message: Any) -> None:
        part, position, index, _ = self._place_of(message)
        part.acknowledge(position, index)

    def acknowledge_cumulative(self, message: Any) -> None:
        if self.kind in (Kind.Shared, Kind.KeyShared):
            raise error_of("CumulativeAcknowledgementNotAllowedError")
        part, position, index, size = self._place_of(message)
        part.acknowledge_to(position, index, size)

    def negative_acknowledge(self, message: Any) -> None:
        part, position, _, _ = self._place_of(message)
        delay_ms = self._settings.negative_ack_redelivery_delay_ms()
        self._client.scheduler.at(delay_ms * MS, partial(part.redeliver, [position]))

    def _place_of(self, message: Any) -> tuple[_Part, EntryPosition, int, int]:
        if isinstance(message, Received):
            return message.part, message.entry.position, message.index, len(message.entry.messages)
        position = EntryPosition(message.ledger_id(), message.entry_id())
        part = next((one for one in self.parts if one.partition == message.partition()), self.parts[0])
        entry = self._client.cluster.topics[part.topic].log.read(position)
        return part, position, message.batch_index(), len(entry.messages) if entry is not None else 0

    def redeliver_unacknowledged_messages(self) -> None:
        for part in self.parts:
            part.redeliver(None)  # what is in the queue stays there

    def get_last_message_id(self) -> Any:
        part = self.parts[0]
        position, index = self._client.request(part.last_position, changes=False)
        return message_id_of(position, index, index + 1, part.partition)

    def unsubscribe(self) -> None:
        def at_broker() -> None:
            for part in self.parts:
                self._client.cluster.topic(part.topic).subscriptions.pop(self._subscription_name, None)
            self._client.let_go(self)

        self._client.request(at_broker)
        self._hand_out_no_more()

    def close(self) -> None:
        if not self._is_closed:
            for part in self.parts:
                part.flush_acks()
        super().close()


class Reader(_Receiver):
    """What `pulsar.Reader` wraps: a consumer of a subscription that the broker does not keep."""

    def __init__(self, client: NativeClient, topic: str, start: Any, settings: Configuration) -> None:
        name = (settings.subscription_role_prefix() or "reader") + f"-{client.cluster.new_ledger_id()}"
        super().__init__(client, topic, [topic], settings, name)
        (self._part,) = self.parts
        self._part.start = self._start_of(start)

    def open_subscription(self, topic: Topic) -> Subscription:
        start = self._part.start
        after = topic.log.last_confirmed if start is None else topic.log.before(start[0])
        return topic.subscription(self.name, after, is_durable=False)

    def read_next(self, timeout_ms: int | None = None) -> Received:
        message = self.receive(timeout_ms)
        position, index = message.entry.position, message.index
        self._part.start = position, index  # of the next connection
        self._part.acknowledge_to(position, index, len(message.entry.messages))
        return message

    def has_message_available(self) -> bool:
        if self._messages:
            return True
        part = self._part
        last = self._client.request(part.last_position, changes=False)
        if part.start is None:
            return bool(last[0] > part.at_broker.subscription.cursor.mark_delete)
        return last[0].entry >= 0 and not part.is_hidden(last)

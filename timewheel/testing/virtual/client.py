"""The native half of pulsar-client over virtual brokers: what `pulsar.Client`, `Producer`, `Consumer`, `Reader` wrap.

The Python classes of the user are pulsar-client's own; here is what they call, ``_pulsar``. Rules of the C++ client
that matter to a test are kept: batches, the order of outcomes, refusals on the spot, receiver queues and permits,
acknowledgements in groups, connections that come back.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from typing import Any

import _pulsar
import pulsar

from timewheel.broker.protocol.wire import number_field
from timewheel.client.positions import EntryPosition
from timewheel.core.names import partition_of
from timewheel.testing.virtual.brokers import BrokerProducer, Cluster, Refused, Topic, full_name
from timewheel.testing.virtual.clock import waits_of
from timewheel.testing.virtual.ledgers import NOWHERE, Entry, Sent
from timewheel.testing.virtual.scheduler import MS, Process, Scheduler, Timer
from timewheel.testing.virtual.subscriptions import BrokerConsumer, Kind, Subscription

MAX_MESSAGE_BYTES = 5 * 1024 * 1024
FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 100, 60_000
"""Pauses between attempts to connect, which double."""
KEEP_ALIVE_MS = 60_000
"""Silence after which a connection is given up: a ping after ``keepAliveIntervalSeconds`` (30), and as long again."""
ACK_GROUP_MS, ACK_GROUP_SIZE = 100, 1_000
OK = _pulsar.Result.Ok
_AGAIN = "ServiceUnitNotReady"
"""Result after which the client asks once more."""

Result = Any
SendCallback = Callable[[Any, Any], None] | None


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


class Configuration:
    """Settings as they are given: `settings.name(value)` sets, `settings.name()` returns."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.properties: dict[str, str] = {}

    def property(self, key: str, value: str) -> Configuration:
        self.properties[key] = value
        return self

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return partial(self._access, name)

    def _access(self, name: str, *given: Any) -> Any:
        if given:
            self.values[name] = given[0] if len(given) == 1 else given
            return self
        return self.values.get(name)


class MessageBuilder:
    """Builds a `Sent`."""

    def __init__(self) -> None:
        self._sent = Sent(b"", {})

    def content(self, data: bytes | str) -> MessageBuilder:
        self._sent.payload = data if isinstance(data, bytes) else data.encode()
        return self

    def set_null_value(self) -> MessageBuilder:
        self._sent.payload = None
        return self

    def property(self, key: str, value: str) -> MessageBuilder:
        self._sent.properties[key] = value
        return self

    def properties(self, properties: dict[str, str]) -> MessageBuilder:
        self._sent.properties.update(properties)
        return self

    def partition_key(self, key: str | bytes) -> MessageBuilder:
        self._sent.key = key
        return self

    def ordering_key(self, key: str | bytes) -> MessageBuilder:
        self._sent.ordering_key = key
        return self

    def sequence_id(self, number: int) -> MessageBuilder:
        self._sent.sequence_id = number
        return self

    def event_timestamp(self, at_ms: int) -> MessageBuilder:
        self._sent.event_ms = at_ms
        return self

    def deliver_at(self, at_ms: int) -> MessageBuilder:
        self._sent.deliver_at_ms = at_ms
        return self

    def deliver_after(self, delay: Any) -> MessageBuilder:
        import time  # noqa: PLC0415 - the virtual one

        self._sent.deliver_at_ms = time.time_ns() // MS + round(delay.total_seconds() * 1000)
        return self

    def replication_clusters(self, _: list[str]) -> MessageBuilder:
        return self

    def disable_replication(self, _: bool) -> MessageBuilder:
        return self

    def build(self) -> Sent:
        sent = self._sent
        sent.size = (
            len(sent.payload or b"") + sum(map(len, sent.properties)) + sum(map(len, sent.properties.values())) + 64
        )
        return sent


class Received:
    """A message as a consumer hands it out: the native half of `pulsar.Message`."""

    __slots__ = ("_id", "entry", "index", "part", "redeliveries", "sent")

    def __init__(self, part: _Part, entry: Entry, index: int, redeliveries: int) -> None:
        self.part = part
        self.entry = entry
        self.index = index if entry.is_batch else -1
        self.sent = entry.messages[index]
        self.redeliveries = redeliveries
        self._id: Any = None

    def data(self) -> bytes:
        return self.sent.payload or b""

    def length(self) -> int:
        return len(self.sent.payload or b"")

    def has_null_value(self) -> bool:
        return self.sent.payload is None

    def properties(self) -> dict[str, str]:
        return dict(self.sent.properties)

    def partition_key(self) -> str:
        return _text(self.sent.key)

    def ordering_key(self) -> str:
        return _text(self.sent.ordering_key)

    def publish_timestamp(self) -> int:
        return self.entry.publish_ms

    def event_timestamp(self) -> int:
        return self.sent.event_ms

    def message_id(self) -> Any:
        if self._id is None:
            entry = self.entry
            self._id = message_id_of(entry.position, self.index, len(entry.messages), partition_of(self.part.topic)[1])
        return self._id

    def topic_name(self) -> str:
        return self.part.topic

    def redelivery_count(self) -> int:
        return self.redeliveries

    def int_schema_version(self) -> int:
        return self.entry.schema_version

    def schema_version(self) -> str:
        version = self.entry.schema_version
        return "" if version < 0 else version.to_bytes(8, "big").decode("latin-1")

    def producer_name(self) -> str:
        return self.entry.producer_name

    def encryption_context(self) -> None:
        return None


def _text(key: str | bytes) -> str:
    return key if isinstance(key, str) else key.decode()


class _Way:
    """One direction of a connection: actions in order, each after the latency, or at once if there is none."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._scheduler = cluster.scheduler
        self._queued: deque[Callable[[], None]] = deque()
        self._is_scheduled = self._is_held = False

    def put(self, action: Callable[[], None]) -> None:
        self._queued.append(action)
        self._go_on()

    def hold(self, *, is_held: bool) -> None:
        """Let nothing pass, or all again that waits."""
        self._is_held = is_held
        self._go_on()

    def _go_on(self) -> None:
        if self._is_scheduled or self._is_held or not self._queued:
            return
        self._is_scheduled = True
        if self._cluster.latency_ns:
            self._scheduler.at(self._cluster.latency_ns, self._deliver)
        else:
            self._deliver()

    def clear(self) -> None:
        self._queued.clear()

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
    """What `pulsar.Client` wraps.

    Args:
        cluster: The brokers.
        settings: As `_pulsar.ClientConfiguration`.
        on_failure: Called with an exception that a user's callback has raised.
    """

    def __init__(self, cluster: Cluster, settings: Configuration, on_failure: Callable[[BaseException], None]) -> None:
        self.cluster = cluster
        self.scheduler: Scheduler = cluster.scheduler
        self.process: Process | None = self.scheduler.current.process
        self.link = Link(cluster, self.process)
        self.timeout_ns = (settings.operation_timeout_seconds() or 30) * 1_000 * MS
        self.is_closed = self._is_over = False
        self._on_failure = on_failure
        self._open: list[Producer | Consumer | Reader] = []
        self._giving_up: Timer | None = None
        if self.process is not None and self.process.is_cut_off:
            self.cut_off()
        self._calls: queue.SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="pulsar-client", daemon=True)
        self._thread.start()

    def call(self, callback: Callable[..., Any] | None, *arguments: Any) -> None:
        """Have the client's own thread call a callback."""
        if callback is not None:
            self._calls.put((callback, arguments))

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            callback, arguments = item
            try:
                callback(*arguments)
            except Exception as error:  # noqa: BLE001 - the real client ends the process
                self._on_failure(error)

    def ask(self, action: Callable[[], Any]) -> Any:
        """Ask the broker, as by `request`, without a change to anything."""
        return self.request(action, changes=False)

    def request(self, action: Callable[[], Any], *, changes: bool = True) -> Any:
        """Have the broker do something, wait for its answer, and return it; the client's errors."""
        if self.is_closed:
            raise error_of("AlreadyClosed")
        deadline_ns = self.scheduler.monotonic_ns + self.timeout_ns
        pause_ms = FIRST_PAUSE_MS
        while True:
            answers: list[tuple[bool, Any]] = []

            self.link.to_broker(partial(self._answer, action, answers), changes=changes)
            if not answers:
                self.scheduler.wait(partial(bool, answers), deadline_ns - self.scheduler.monotonic_ns)
            if answers and answers[0][0]:
                return answers[0][1]
            if answers and answers[0][1] != _AGAIN:
                raise error_of(answers[0][1])
            left_ns = deadline_ns - self.scheduler.monotonic_ns
            if left_ns <= 0:
                raise error_of("Timeout")
            self.scheduler.wait(None, min(pause_ms * MS, left_ns))
            pause_ms = min(2 * pause_ms, LONGEST_PAUSE_MS)

    def _answer(self, action: Callable[[], Any], answers: list[tuple[bool, Any]]) -> None:
        try:
            answer = True, action()
        except Refused as refused:
            answer = False, refused.result
        self.link.to_client(partial(answers.append, answer))

    # As `_pulsar.Client`

    def create_producer(self, topic: str, settings: Configuration) -> Producer:
        names = self.ask(lambda: self.cluster.partitions(topic))
        producer = Producer(self, full_name(topic), names, settings)
        self._open_by(producer, [producer.connect])
        return producer

    def _open_by(self, one: Producer | Consumer | Reader, steps: Iterable[Callable[[], Any]]) -> None:
        """Open something by steps at the broker, which lets go of it with the connection, whenever that is lost."""
        self._open.append(one)
        try:
            for step in steps:
                self.request(step)
        except Exception:
            self.link.to_broker(self.ending(one))  # the broker may open it later than the client waits for
            raise

    def create_producer_async(self, topic: str, settings: Any, callback: Callable[[Any, Any], None]) -> None:
        own = settings if isinstance(settings, Configuration) else Configuration()

        def at_broker() -> None:
            try:
                producer = Producer(self, full_name(topic), self.cluster.partitions(topic), own)
                producer.connect()
            except Refused as refused:
                self.link.to_client(partial(self.call, callback, result_of(refused.result), None))
            else:
                self._open.append(producer)
                self.link.to_client(partial(self.call, callback, OK, producer))

        self.link.to_broker(at_broker)

    def subscribe(self, topic: str, subscription: str, settings: Configuration) -> Consumer:
        return self._subscribed(
            [*self.ask(lambda: self.cluster.partitions(topic))], full_name(topic), subscription, settings
        )

    def subscribe_topics(self, topics: list[str], subscription: str, settings: Configuration) -> Consumer:
        names = [name for topic in topics for name in self.ask(partial(self.cluster.partitions, topic))]
        return self._subscribed(names, "", subscription, settings)

    def _subscribed(self, names: list[str], topic: str, subscription: str, settings: Configuration) -> Consumer:
        consumer = Consumer(self, topic, names, subscription, settings)
        self._open_by(consumer, [part.connect for part in consumer.parts])
        return consumer

    def create_reader(self, topic: str, start: Any, settings: Configuration) -> Reader:
        reader = Reader(self, full_name(topic), start, settings)
        self._open_by(reader, [reader.part.connect])
        return reader

    def get_topic_partitions(self, topic: str) -> list[str]:
        return [*self.ask(lambda: self.cluster.partitions(topic))]

    def get_schema_info(self, topic: str, version: int) -> Any:
        def at_broker() -> Any:
            versions = self.cluster.schemas.get(partition_of(full_name(topic))[0], [])
            if not 0 <= version < len(versions):
                raise Refused("TopicNotFound")
            return versions[version].info

        return self.ask(at_broker)

    def end(self) -> None:
        """End with the virtual time; to close it afterwards is no error."""
        self.link.cut()
        self.is_closed = self._is_over = True

    def close(self) -> None:
        if self._is_over:
            return
        if self.is_closed:
            raise error_of("AlreadyClosed")
        for one in [*self._open]:
            one.close()
        self.is_closed = True
        self._calls.put(None)

    def shutdown(self) -> None:
        self.lose()
        self._calls.put(None)

    def lose(self) -> None:
        """End as a process does that is killed: the broker learns that the connection is gone."""
        self.is_closed = True
        self.link.cut()
        for one in self._open:
            one.lost()
        self._open.clear()

    def cut_off(self) -> None:
        """Let nothing pass; after a while both ends give the connection up."""
        self.link.hold(is_held=True)
        if self._giving_up is None:
            self._giving_up = self.scheduler.at(KEEP_ALIVE_MS * MS, self._give_up)

    def reach_again(self) -> None:
        """Let all pass again."""
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
        self.link.hold(is_held=False)

    def _give_up(self) -> None:
        self.link.clear()
        for one in [*self._open]:
            for end in one.ends:
                end.disconnected()

    def ending(self, one: Producer | Consumer | Reader) -> Callable[[], None]:
        """Have something connect no more; return what closes it at the broker, where it is until then."""
        for end in one.ends:
            end.is_closed = True
        return partial(self.let_go, one)

    def let_go(self, one: Producer | Consumer | Reader) -> None:
        one.lost()
        if one in self._open:
            self._open.remove(one)


class _Handover:
    """An entry on its way to the broker, and the callbacks of its messages."""

    __slots__ = ("callbacks", "deadline_ns", "entry")

    def __init__(self, entry: Entry, callbacks: list[SendCallback], deadline_ns: int | None) -> None:
        self.entry = entry
        self.callbacks = callbacks
        self.deadline_ns = deadline_ns


class _Reconnecting:
    """A producer or consumer of one topic, whose connection comes back after pauses that double."""

    def __init__(self, client: NativeClient, topic: str) -> None:
        self.client = client
        self.scheduler = client.scheduler
        self.topic = topic
        self.at_broker: Any = None  # its end at the broker; None: it has no connection
        self.is_closed = False
        self._pause_ms = FIRST_PAUSE_MS

    def closed_by_broker(self) -> None:
        self.client.link.to_client(self._reconnect_soon)

    def disconnected(self) -> None:
        """Lose the connection: the broker lets go of its end."""
        self.leave()
        self._reconnect_soon()

    def leave(self) -> None:
        """Be removed at the broker."""
        raise NotImplementedError

    def _reconnect_soon(self) -> None:
        self.at_broker = None
        if not self.is_closed:
            self.scheduler.at(self._pause_ms * MS, partial(self.client.link.to_broker, self._reconnect))
            self._pause_ms = min(2 * self._pause_ms, LONGEST_PAUSE_MS)

    def _reconnect(self) -> None:
        if not self.is_closed and self.at_broker is None:
            self._connect_again()

    def _connect_again(self) -> None:
        raise NotImplementedError


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
        self._topic: Topic | None = None
        self._batch: list[tuple[Sent, SendCallback]] = []
        self._batch_bytes = 0
        self._batch_timer: Timer | None = None
        self._timeout: Timer | None = None

    # At the broker

    def connect(self) -> None:
        """Open it at the broker, which calls this."""
        topic = self.client.cluster.topic(self.topic)
        name = self.name or self.settings.producer_name() or self.client.cluster.new_producer_name()
        self.at_broker, highest = topic.open_producer(self, name, self.settings.schema())
        self._topic = topic
        if not self.name:
            self.name = name
            initial = self.settings.initial_sequence_id()
            self.published = highest
            self.number = max(highest, (initial or 0) - 1)
        self._pause_ms = FIRST_PAUSE_MS

    def _connect_again(self) -> None:
        try:
            self.connect()
        except Refused as refused:
            if refused.result in ("TopicTerminated", "TopicNotFound", "IncompatibleSchema"):
                self.client.link.to_client(partial(self._fail_all, refused.result))
            else:
                self.client.link.to_client(self._reconnect_soon)
            return
        for handover in [*self.pending]:
            self.client.cluster.write(partial(self._publish, handover))

    def _publish(self, handover: _Handover) -> None:
        link, at_broker, topic = self.client.link, self.at_broker, self._topic
        if at_broker is None or topic is None or not at_broker.is_open:
            return
        entry = handover.entry
        # The same entry again, if the connection was lost before its answer came: stored as another.
        stored = Entry(entry.messages, at_broker.name, entry.sequence_id, entry.publish_ms, entry.is_batch)
        try:
            position = topic.publish(at_broker, stored)
        except Refused as refused:
            link.to_client(partial(self._fail_all, refused.result))
        else:
            link.to_client(partial(self._answered, at_broker, handover, position))

    def leave(self) -> None:
        if self.at_broker is not None and self._topic is not None:
            self._topic.close_producer(self.at_broker)
        self.at_broker = None

    # At the client

    def _answered(self, at_broker: BrokerProducer, handover: _Handover, position: EntryPosition) -> None:
        if not at_broker.is_killed:
            self._stored(handover, position)

    def send(self, sent: Sent, callback: SendCallback) -> None:
        if self.is_closed:
            _refuse(callback, "AlreadyClosed")
            return
        if sent.size > MAX_MESSAGE_BYTES:
            _refuse(callback, "MessageTooBig")
            return
        most = self.settings.max_pending_messages() or 0
        if 0 < most <= self.messages:
            if not self.settings.block_if_queue_full():
                _refuse(callback, "ProducerQueueIsFull")
                return
            self.scheduler.wait(lambda: self.messages < most or self.is_closed)
        self.messages += 1
        self.number = max(self.number, sent.sequence_id) if sent.sequence_id >= 0 else self.number + 1
        if sent.sequence_id < 0:
            sent.sequence_id = self.number
        if not self.settings.batching_enabled() or sent.deliver_at_ms:
            self._hand_over(Entry((sent,), self.name, sent.sequence_id, self._now_ms), [callback])
            return
        settings = self.settings
        if self._batch and self._batch_bytes + sent.size > settings.batching_max_allowed_size_in_bytes():
            self.end_batch()
        self._batch.append((sent, callback))
        self._batch_bytes += sent.size
        if len(self._batch) >= settings.batching_max_messages():
            self.end_batch()
        elif self._batch_timer is None:
            delay_ns = settings.batching_max_publish_delay_ms() * MS
            self._batch_timer = self.scheduler.at(delay_ns, self.end_batch)

    @property
    def _now_ms(self) -> int:
        return self.scheduler.now_ns // MS

    def end_batch(self) -> None:
        """Send the open batch."""
        if self._batch_timer is not None:
            self._batch_timer.cancel()
            self._batch_timer = None
        if not self._batch:
            return
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        messages = tuple(sent for sent, _ in batch)
        entry = Entry(messages, self.name, messages[0].sequence_id, self._now_ms, is_batch=True)
        self._hand_over(entry, [callback for _, callback in batch])

    def _hand_over(self, entry: Entry, callbacks: list[SendCallback]) -> None:
        timeout_ms = self.settings.send_timeout_millis() or 0
        deadline_ns = self.scheduler.monotonic_ns + timeout_ms * MS if timeout_ms > 0 else None
        handover = _Handover(entry, callbacks, deadline_ns)
        self.pending.append(handover)
        if deadline_ns is not None and self._timeout is None:
            self._timeout = self.scheduler.at(timeout_ms * MS, self._time_out)
        if self.at_broker is not None:
            write = partial(self.client.cluster.write, partial(self._publish, handover))
            self.client.link.to_broker(write, changes=False)

    def _stored(self, handover: _Handover, position: EntryPosition) -> None:
        if not self.pending or self.pending[0] is not handover:
            return  # it has timed out, or is sent again
        self.pending.popleft()
        if not self.pending and self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None
        entry, partition = handover.entry, partition_of(self.topic)[1]
        self.messages -= len(entry.messages)
        if position != NOWHERE:
            self.published = max(self.published, entry.sequence_id)
        size = len(entry.messages)
        for index, callback in enumerate(handover.callbacks):
            if callback is not None:
                place = message_id_of(position, index if entry.is_batch else -1, size, partition)
                self.client.call(callback, OK, place)

    def _time_out(self) -> None:
        self._timeout = None
        now_ns = self.scheduler.monotonic_ns
        if self.pending and (first_ns := self.pending[0].deadline_ns) is not None:
            if first_ns <= now_ns:
                # As the C++ client: all that waits fails with the first.
                self._fail_all("Timeout")
            else:
                self._timeout = self.scheduler.at(first_ns - now_ns, self._time_out)

    def _fail_all(self, result: str) -> None:
        pending, self.pending = self.pending, deque()
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        callbacks = [callback for handover in pending for callback in handover.callbacks]
        callbacks += [callback for _, callback in batch]
        self.messages = 0
        nowhere = message_id_of(NOWHERE, -1, 0, -1)
        for callback in callbacks:
            self.client.call(callback, result_of(result), nowhere)

    @property
    def is_idle(self) -> bool:
        return not self.messages

    def close(self) -> None:
        self.is_closed = True
        if self._timeout is not None:
            self._timeout.cancel()
        self.leave()


def _refuse(callback: SendCallback, result: str) -> None:
    """Call back at once, as the client does for a message that it refuses on the spot."""
    if callback is not None:
        callback(result_of(result), message_id_of(NOWHERE, -1, 0, -1))


class Producer:
    """What `pulsar.Producer` wraps: a lane for each partition."""

    def __init__(self, client: NativeClient, topic: str, names: Iterable[str], settings: Configuration) -> None:
        self._client = client
        self._topic = topic
        self._lanes = [_Lane(client, name, settings) for name in names]
        self._turns = count()
        self._settings = settings

    def connect(self) -> None:
        opened = []
        try:
            for lane in self._lanes:
                lane.connect()
                opened.append(lane)
        except Refused:
            for lane in opened:
                lane.close()
            raise

    def send_async(self, sent: Sent, callback: SendCallback) -> None:
        self._lane_of(sent).send(sent, callback)

    def send(self, sent: Sent) -> Any:
        answers: list[tuple[Any, Any]] = []
        lane = self._lane_of(sent)
        lane.send(sent, lambda *answer: answers.append(answer))
        lane.end_batch()
        if not answers:
            self._client.scheduler.wait(lambda: bool(answers))
        result, message_id = answers[0]
        if result.value:
            raise error_of(result.name)
        return message_id

    def _lane_of(self, sent: Sent) -> _Lane:
        lanes = self._lanes
        if len(lanes) == 1:
            return lanes[0]
        router = self._settings.message_router()
        if router is not None:
            return lanes[int(router(sent, len(lanes)))]
        if sent.key:
            key = sent.key if isinstance(sent.key, bytes) else sent.key.encode()
            return lanes[_java_hash(key) % len(lanes)]
        return lanes[next(self._turns) % len(lanes)]

    def flush(self) -> None:
        for lane in self._lanes:
            lane.end_batch()
        if not all(lane.is_idle for lane in self._lanes):
            self._client.scheduler.wait(lambda: all(lane.is_idle for lane in self._lanes))

    def flush_async(self, callback: Callable[[Any], None] | None) -> None:
        for lane in self._lanes:
            lane.end_batch()
        self._client.call(callback, OK)

    def topic(self) -> str:
        return self._topic

    def producer_name(self) -> str:
        return self._lanes[0].name

    def last_sequence_id(self) -> int:
        return max(lane.published for lane in self._lanes)

    def is_connected(self) -> bool:
        return all(lane.at_broker is not None and lane.at_broker.is_open for lane in self._lanes)

    def close(self) -> None:
        if all(lane.is_closed for lane in self._lanes):
            return
        for lane in self._lanes:
            lane._fail_all("AlreadyClosed")  # noqa: SLF001
        self._client.request(self._client.ending(self))

    def close_async(self, callback: Callable[[Any], None] | None) -> None:
        self._client.link.to_broker(self._client.ending(self))
        self._client.call(callback, OK)

    @property
    def ends(self) -> Sequence[_Reconnecting]:
        """What is connected."""
        return self._lanes

    def lost(self) -> None:
        for lane in self._lanes:
            lane.close()


def _java_hash(key: bytes) -> int:
    """Return the hash of a key as the client's default chooses partitions by it (``JavaStringHash``)."""
    found = 0
    for byte in key:
        found = (31 * found + byte) & 0xFFFFFFFF
    return found & 0x7FFFFFFF


class _Part(_Reconnecting):
    """A consumer of one topic without partitions, or one partition: the C++ client's ``ConsumerImpl``."""

    def __init__(self, client: NativeClient, topic: str, consumer: Consumer | Reader, queue_size: int) -> None:
        super().__init__(client, topic)
        self.consumer = consumer
        self.queue_size = queue_size
        self.subscription: Subscription | None = None
        self._to_renew = 0
        self._unacked: dict[EntryPosition, set[int]] = {}  # indexes of each batch that are not acknowledged
        self._acks: list[EntryPosition] = []  # to be sent together
        self._ack_timer: Timer | None = None
        self._ack_to: EntryPosition | None = None

    # At the broker

    def connect(self) -> None:
        """Subscribe at the broker, which calls this."""
        consumer = self.consumer
        topic = self.client.cluster.topic(self.topic)
        subscription = consumer.open_subscription(topic)
        at_broker = BrokerConsumer(
            self, consumer.consumer_name(), consumer.kind, consumer.properties, self.client.cluster.new_ledger_id()
        )
        topic.subscribe(subscription, at_broker)
        self.subscription, self.at_broker = subscription, at_broker
        self._pause_ms, self._to_renew = FIRST_PAUSE_MS, 0
        if self.queue_size:
            subscription.flow(at_broker, self.queue_size)

    def deliver(self, entries: list[tuple[Entry, int]]) -> None:
        self.client.link.to_client(partial(self._arrived, self.at_broker, entries))

    def _connect_again(self) -> None:
        self.consumer.drop(self)
        self._unacked.clear()
        self._acks.clear()
        try:
            self.connect()
        except Refused:
            self.client.link.to_client(self._reconnect_soon)

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
            came += [Received(self, entry, index, redeliveries) for index in range(len(entry.messages))]
        self.consumer.came(came)

    def renew(self, messages: int = 1) -> None:
        """Ask for more, when half of the queue was taken; without a queue, for each message that is waited for."""
        self._to_renew += messages
        if self._to_renew >= max(self.queue_size // 2, 1):
            permits, self._to_renew = self._to_renew, 0
            self.client.link.to_broker(partial(self._flow, self.at_broker, permits), changes=False)

    def _flow(self, at_broker: BrokerConsumer | None, permits: int) -> None:
        if at_broker is not None and at_broker is self.at_broker and self.subscription is not None:
            self.subscription.flow(at_broker, permits)

    def acknowledge(self, position: EntryPosition, index: int) -> None:
        if index >= 0:
            left = self._unacked.get(position)
            if left is not None:
                left.discard(index)
                if left:
                    return
                del self._unacked[position]
        self._acks.append(position)
        if len(self._acks) >= ACK_GROUP_SIZE:
            self.flush_acks()
        elif self._ack_timer is None:
            self._ack_timer = self.scheduler.at(ACK_GROUP_MS * MS, self.flush_acks)

    def acknowledge_to(self, position: EntryPosition, index: int, size: int) -> None:
        if 0 <= index < size - 1:
            position = EntryPosition(position.ledger, position.entry - 1)  # a batch is acknowledged as a whole
        for entry in [entry for entry in self._unacked if entry <= position]:
            del self._unacked[entry]
        if self._ack_to is None or position > self._ack_to:
            self._ack_to = position
        if self._ack_timer is None:
            self._ack_timer = self.scheduler.at(ACK_GROUP_MS * MS, self.flush_acks)

    def flush_acks(self) -> None:
        """Send the acknowledgements that wait for others."""
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None
        acks, self._acks = self._acks, []
        self.client.link.to_broker(partial(self._acknowledged, self.at_broker, acks, self._ack_to), changes=False)

    def _acknowledged(
        self, at_broker: BrokerConsumer | None, positions: list[EntryPosition], to: EntryPosition | None
    ) -> None:
        subscription = self.subscription
        if at_broker is None or subscription is None or at_broker not in subscription.consumers:
            return
        if to is not None:
            subscription.acknowledge_to(at_broker, to)
        if positions:
            subscription.acknowledge(at_broker, positions)

    def redeliver(self, positions: list[EntryPosition] | None) -> None:
        at_broker, subscription = self.at_broker, self.subscription
        if at_broker is not None and subscription is not None:
            self.client.link.to_broker(partial(subscription.dispatcher.redeliver, at_broker, positions), changes=False)

    def last_position(self) -> tuple[EntryPosition, int]:
        """Return the topic's last position, and the messages in its entry (0: no batch); the broker calls this."""
        log = self.client.cluster.topic(self.topic).log
        last = log.last_confirmed
        entry = log.read(last)
        return last, len(entry.messages) if entry is not None and entry.is_batch else 0

    def lost(self) -> None:
        """Close it at the broker, which calls this."""
        self.is_closed = True
        if self._ack_timer is not None:
            self._ack_timer.cancel()
        self.leave()

    def leave(self) -> None:
        if self.at_broker is not None and self.subscription is not None:
            self.subscription.remove(self.at_broker)
        self.at_broker = None


class _Inbox:
    """The queue of received messages, which threads and callbacks take from."""

    def __init__(self, client: NativeClient) -> None:
        self._client = client
        self._messages: deque[Received] = deque()
        self.parts_without_queue: list[_Part] = []
        self._callbacks: deque[Callable[[Any, Any], None]] = deque()
        self.listener: Callable[[Any, Any], None] | None = None
        self.is_closed = False

    def came(self, messages: list[Received]) -> None:
        self._messages.extend(messages)
        while self._callbacks and self._messages:
            self._client.call(self._callbacks.popleft(), OK, self._take())

    def receive(self, timeout_ms: int | None) -> Received:
        if self.is_closed:
            raise error_of("AlreadyClosed")
        if not self._messages:
            for part in self.parts_without_queue:
                part.renew()
            self._client.scheduler.wait(self._is_ready, *waits_of(timeout_ms, MS))
        if self._messages:
            return self._take()
        raise error_of(self._why_empty())

    def receive_async(self, callback: Callable[[Any, Any], None]) -> None:
        if self.is_closed:
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

    def _why_empty(self) -> str:
        return "AlreadyClosed" if self.is_closed else "Timeout"

    def _is_ready(self) -> bool:
        return bool(self._messages) or self.is_closed

    def drop(self, part: _Part) -> None:
        """Forget the messages of a part that is connected anew."""
        self._messages = deque(message for message in self._messages if message.part is not part)

    def close(self) -> None:
        self.is_closed = True
        self._messages.clear()
        while self._callbacks:
            self._client.call(self._callbacks.popleft(), result_of("AlreadyClosed"), None)


class Consumer:
    """What `pulsar.Consumer` wraps."""

    def __init__(
        self, client: NativeClient, topic: str, names: list[str], subscription: str, settings: Configuration
    ) -> None:
        self._client = client
        self._topic = topic
        self._name = subscription
        self._settings = settings
        self._consumer_name = settings.consumer_name() or f"c{client.cluster.new_ledger_id()}"
        self.kind = settings.consumer_type()
        self.properties = settings.properties
        self._inbox = _Inbox(client)
        listener = settings.message_listener()
        if listener is not None:
            self._listen = partial(self._heard, listener)
            self._inbox.receive_async(self._listen)
        queue_size = settings.receiver_queue_size()
        self.parts = [_Part(client, name, self, queue_size) for name in names]
        self._inbox.parts_without_queue = [] if queue_size else self.parts

    def _heard(self, listener: Callable[[Any, Any], None], result: Any, message: Any) -> None:
        if not result.value:
            listener(self, message)
            self._inbox.receive_async(self._listen)

    # For its parts

    def open_subscription(self, topic: Topic) -> Subscription:
        position: Any = self._settings.subscription_initial_position()
        return topic.subscription(self._name, from_earliest=position == pulsar.InitialPosition.Earliest)

    def came(self, messages: list[Received]) -> None:
        self._inbox.came(messages)

    def drop(self, part: _Part) -> None:
        self._inbox.drop(part)

    # As `_pulsar.Consumer`

    def topic(self) -> str:
        return self._topic

    def subscription_name(self) -> str:
        return self._name

    def consumer_name(self) -> str:
        return self._consumer_name

    def receive(self, timeout_ms: int | None = None) -> Received:
        return self._inbox.receive(timeout_ms)

    def receive_async(self, callback: Callable[[Any, Any], None]) -> None:
        self._inbox.receive_async(callback)

    def batch_receive(self) -> list[Received]:
        found = [self._inbox.receive(None)]
        while not self._inbox.is_closed:
            try:
                found.append(self._inbox.receive(0))
            except pulsar.Timeout:
                break
        return found

    def acknowledge(self, message: Any) -> None:
        part, position, index, _ = self._place_of(message)
        part.acknowledge(position, index)

    def acknowledge_async(self, message: Any, callback: Callable[[Any], None]) -> None:
        self.acknowledge(message)
        self._client.call(callback, OK)

    def acknowledge_cumulative(self, message: Any) -> None:
        if self.kind in (Kind.Shared, Kind.KeyShared):
            raise error_of("CumulativeAcknowledgementNotAllowedError")
        part, position, index, size = self._place_of(message)
        part.acknowledge_to(position, index, size)

    def acknowledge_cumulative_async(self, message: Any, callback: Callable[[Any], None]) -> None:
        self.acknowledge_cumulative(message)
        self._client.call(callback, OK)

    def negative_acknowledge(self, message: Any) -> None:
        part, position, _, _ = self._place_of(message)
        delay_ms = self._settings.negative_ack_redelivery_delay_ms()
        self._client.scheduler.at(delay_ms * MS, partial(part.redeliver, [position]))

    def _place_of(self, message: Any) -> tuple[_Part, EntryPosition, int, int]:
        if isinstance(message, Received):
            return message.part, message.entry.position, message.index, len(message.entry.messages)
        position = EntryPosition(message.ledger_id(), message.entry_id())
        index = message.batch_index()
        part = next((one for one in self.parts if partition_of(one.topic)[1] == message.partition()), self.parts[0])
        entry = self._client.cluster.topics[part.topic].log.read(position)
        return part, position, index, len(entry.messages) if entry is not None else 0

    def redeliver_unacknowledged_messages(self) -> None:
        for part in self.parts:
            part.redeliver(None)  # what is in the queue stays there

    def get_last_message_id(self) -> Any:
        part = self.parts[0]
        position, size = self._client.ask(part.last_position)
        return message_id_of(position, size - 1 if size else -1, size, partition_of(part.topic)[1])

    def get_last_message_id_async(self, callback: Callable[[Any, Any], None]) -> None:
        part = self.parts[0]

        def at_broker() -> None:
            position, size = part.last_position()
            found = message_id_of(position, size - 1 if size else -1, size, partition_of(part.topic)[1])
            self._client.link.to_client(partial(self._client.call, callback, OK, found))

        self._client.link.to_broker(at_broker, changes=False)

    def seek(self, place: Any) -> None:
        for part in self.parts:
            self._inbox.drop(part)
            self._client.request(partial(_sought, part, place))

    def unsubscribe(self) -> None:
        def at_broker() -> None:
            for part in self.parts:
                if part.subscription is not None:
                    part.subscription.topic.subscriptions.pop(self._name, None)
            self._client.let_go(self)

        self._client.request(at_broker)
        self._inbox.close()

    def pause_message_listener(self) -> None:
        raise error_of("OperationNotSupported")

    def resume_message_listener(self) -> None:
        raise error_of("OperationNotSupported")

    def is_connected(self) -> bool:
        return all(part.at_broker is not None for part in self.parts)

    def close(self) -> None:
        if self._inbox.is_closed:
            return
        for part in self.parts:
            part.flush_acks()
        self._inbox.close()
        self._client.request(self._client.ending(self))

    def close_async(self, callback: Callable[[Any], None] | None) -> None:
        for part in self.parts:
            part.flush_acks()
        self._inbox.close()
        self._client.link.to_broker(self._client.ending(self))
        self._client.call(callback, OK)

    @property
    def ends(self) -> Sequence[_Reconnecting]:
        return self.parts

    def lost(self) -> None:
        self._inbox.is_closed = True
        for part in self.parts:
            part.lost()


def _sought(part: _Part, place: Any) -> None:
    subscription = part.subscription
    if subscription is None:
        raise Refused("NotConnected")
    log = subscription.topic.log
    if isinstance(place, int):
        target = log.beginning
        for entry in log.all_after(log.beginning):
            if entry.publish_ms >= place:
                break
            target = entry.position
    else:
        target = _before(log.beginning, log.last_confirmed, place)
    cursor = subscription.cursor
    cursor.mark_delete, cursor.acked = target, {}
    cursor.rewind()
    for position in [*(part.at_broker.pending if part.at_broker else ())]:
        part.at_broker.has_done(position)
    subscription.dispatcher.read()


def _before(beginning: EntryPosition, last: EntryPosition, place: Any) -> EntryPosition:
    """Return the position behind which a reader begins that starts with a message id."""
    position = EntryPosition(place.ledger_id(), place.entry_id())
    if position == (-1, -1):  # `MessageId.earliest`
        return beginning
    if position.ledger > last.ledger + (1 << 40):  # `MessageId.latest`
        return last
    return EntryPosition(position.ledger, position.entry - 1)


class Reader:
    """What `pulsar.Reader` wraps: a consumer of a subscription that the broker does not keep."""

    kind = Kind.Exclusive
    properties: dict[str, str] = {}  # noqa: RUF012 - never changed

    def __init__(self, client: NativeClient, topic: str, start: Any, settings: Configuration) -> None:
        self._client = client
        self._topic = topic
        self._start = start
        self._is_inclusive = bool(settings.start_message_id_inclusive())
        self._name = (settings.subscription_role_prefix() or "reader") + f"-{client.cluster.new_ledger_id()}"
        self._inbox = _Inbox(client)
        self._read: EntryPosition | None = None
        self._read_index = -1
        self.part = _Part(client, topic, self, settings.receiver_queue_size() or 1_000)

    def open_subscription(self, topic: Topic) -> Subscription:
        log = topic.log
        after = self._read
        if after is None:
            after = _before(log.beginning, log.last_confirmed, self._start)
            if not self._is_inclusive and log.beginning != after != log.last_confirmed:
                after = EntryPosition(after.ledger, after.entry + 1)
        return topic.subscription(self._name, from_earliest=True, after=after, is_durable=False)

    def consumer_name(self) -> str:
        return self._name

    def came(self, messages: list[Received]) -> None:
        self._inbox.came(messages)

    def drop(self, part: _Part) -> None:
        self._inbox.drop(part)

    # As `_pulsar.Reader`

    def topic(self) -> str:
        return self._topic

    def read_next(self, timeout_ms: int | None = None) -> Received:
        message = self._inbox.receive(timeout_ms)
        self._read, self._read_index = message.entry.position, message.index
        message.part.acknowledge_to(message.entry.position, message.index, len(message.entry.messages))
        return message

    def has_message_available(self) -> bool:
        if self._inbox._messages:  # noqa: SLF001
            return True
        position, size = self._client.ask(self.part.last_position)
        if position.entry < 0:
            return False
        if self._read is None:
            log = self._client.cluster.topics[self._topic].log
            after = _before(log.beginning, log.last_confirmed, self._start)
            return bool(position > after)
        return bool((position, size - 1 if size else -1) > (self._read, self._read_index))

    def seek(self, place: Any) -> None:
        self._inbox.drop(self.part)
        self._client.request(partial(_sought, self.part, place))
        self._read = None

    def is_connected(self) -> bool:
        return self.part.at_broker is not None

    def close(self) -> None:
        if self._inbox.is_closed:
            return
        self._inbox.close()
        self._client.request(self._client.ending(self))

    @property
    def ends(self) -> Sequence[_Reconnecting]:
        return (self.part,)

    def lost(self) -> None:
        self._inbox.is_closed = True
        self.part.lost()

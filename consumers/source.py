"""Sources of a consumer's messages: the client's consumers on due topics, and the checks before they are opened."""

from __future__ import annotations

import inspect
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pulsar

from timewheel.client.hooks import ConnectionWatch, Hooks
from timewheel.client.positions import Position
from timewheel.client.process import end_at_exit
from timewheel.client.reaching import partition_count, unpartitioned_problem
from timewheel.client.surface import ClientLike, ConsumerLike
from timewheel.core.clock import Clock
from timewheel.core.early_delivery import hold_bound_ms
from timewheel.core.errors import TopologyError, did_you_mean
from timewheel.core.names import CalendarTopic, Names
from timewheel.core.plan import Calendar, Plan
from timewheel.events import CalendarTopicClosed, CalendarTopicMissing, CalendarTopicNotOpened, CalendarTopicOpened

from .errors import SubscribeRefused
from .message import Arrival, Reading, arrival_of
from .rolling_topics import FORMER_RETRY_MS, MISSING_RETRY_MS, RollingTopics

OWNED: Mapping[str, str] = {
    "consumer_type": "it is a parameter of its own",
    "initial_position": "always Earliest: with the client's default, timers sent before this are missed",
    "message_listener": "use run(handler): it holds what is early and keeps a key on one worker",
    "is_read_compacted": "a due topic is never compacted: that would drop timers of the same key",
    "pattern_auto_discovery_period": "the plan names the topics",
    "regex_subscription_mode": "the plan names the topics",
    "schema": "it is a parameter of its own",
    "subscription_name": "it is a parameter of its own",
    "topic": "the plan names the topics",
}
"""Options of pulsar-client's ``subscribe`` that timewheel sets itself, each with the reason for refusing it."""

_PASSED_THROUGH = frozenset(inspect.signature(pulsar.Client.subscribe).parameters) - OWNED.keys() - {"self"}
_OF_CONSUMERS = (
    *("consumer_type", "schema", "clock", "rng", "hooks", "max_held", "max_rate", "handled_window", "relay"),
    *("former_topics", "relay_memory_bytes", "retry", "overdue", "inbox", "middleware"),
)
"""Arguments of the consumers themselves, which a misspelt option may mean."""

CONSUMER_TYPES = (pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared)


@dataclass(slots=True, eq=False)
class Subscribed:
    """An open consumer of the client, and its unacknowledged messages."""

    topic: str
    consumer: ConsumerLike
    active_ms: int
    _unanswered: set[Position] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def took(self, position: Position, monotonic_ms: int) -> None:
        """Record that a message was taken from the consumer."""
        with self._lock:
            self._unanswered.add(position)
            self.active_ms = max(self.active_ms, monotonic_ms)

    def answered(self, position: Position, quiet_from_ms: int) -> None:
        """Record that a message was acknowledged, or will be redelivered by ``quiet_from_ms`` (monotonic)."""
        with self._lock:
            self._unanswered.discard(position)
            self.active_ms = max(self.active_ms, quiet_from_ms)

    def quiet_since_ms(self) -> int | None:
        """Return the time since which it is quiet, on the monotonic clock; None while a message is unacknowledged."""
        with self._lock:
            return None if self._unanswered else self.active_ms


class Subscribing:
    """Opens consumers of a plan's subscription, all with the same options."""

    def __init__(
        self,
        client: ClientLike,
        plan: Plan,
        subscription: str,
        *,
        consumer_type: Any,
        schema: Any,
        options: Mapping[str, Any],
        clock: Clock,
    ) -> None:
        self._check(plan, subscription, consumer_type, options)
        self.subscription = subscription
        self.ack_timeout_ms: int | None = options.get("unacked_messages_timeout_ms") or None
        self.redelivery_delay_ms: int = options.get("negative_ack_redelivery_delay_ms", 60_000)
        self._client = client
        self._names = Names(plan)
        self._clock = clock
        self._options = {
            **options,
            "consumer_type": consumer_type,
            "schema": schema,
            # On every subscribe, also where the subscription should exist already (broker-facts: earliest-always).
            "initial_position": pulsar.InitialPosition.Earliest,
        }

    def problem_with(self, topic: str) -> TopologyError | None:
        """Return why a topic cannot be subscribed to, or None: it must exist as planned. This creates no topic."""
        if not self._names.is_partitioned(topic):
            return unpartitioned_problem(self._client, self._names, topic)
        return None if partition_count(self._client, topic) else missing_topic(topic)

    def open(self, *topics: str) -> Subscribed:
        """Subscribe to existing topics, with a single consumer of the client."""
        for topic in topics:
            if (problem := self.problem_with(topic)) is not None:
                raise problem
        where = topics[0] if len(topics) == 1 else list(topics)
        consumer = self._client.subscribe(where, self.subscription, **self._options)
        return Subscribed(topics[0], consumer, self._clock.monotonic_ms())

    @staticmethod
    def _check(plan: Plan, subscription: str, consumer_type: Any, options: Mapping[str, Any]) -> None:
        if subscription not in plan.subscriptions:
            near = did_you_mean(subscription, plan.subscriptions)
            raise SubscribeRefused(
                "subscription",
                subscription,
                f"the plan's are {', '.join(plan.subscriptions)}{near}; a subscription outside the plan "
                "is not provisioned, and misses earlier messages",
            )
        if consumer_type not in CONSUMER_TYPES:
            raise SubscribeRefused(
                "consumer_type",
                consumer_type,
                "only Shared and Key_Shared honour a delay; on Exclusive and Failover the broker delivers every timer "
                "at once",
            )
        for name, value in options.items():
            if name in OWNED:
                raise SubscribeRefused(name, value, f"is set by timewheel: {OWNED[name]}")
            if name not in _PASSED_THROUGH:
                near = did_you_mean(name, (*_PASSED_THROUGH, *_OF_CONSUMERS))
                known = f"; these pass through: {', '.join(sorted(_PASSED_THROUGH))}"
                raise SubscribeRefused(name, value, f"no option of a consumer{near or known}")
        if options.get("receiver_queue_size") == 0:
            raise SubscribeRefused(
                "receiver_queue_size", 0, "the client can neither wait for a time nor read partitions without a queue"
            )
        timeout_ms = options.get("unacked_messages_timeout_ms") or 0
        if 0 < timeout_ms <= hold_bound_ms(plan):
            raise SubscribeRefused(
                "unacked_messages_timeout_ms",
                timeout_ms,
                f"must be over {hold_bound_ms(plan)} ms: so long a timer may be held here until it is due, and the "
                "client counts from when it received it",
            )


def missing_topic(topic: str) -> TopologyError:
    """Return the error for a topic that should have been provisioned."""
    return TopologyError(
        topic, "does not exist as a partitioned topic", "run `timewheel topics ensure PLAN` before the first send"
    )


class SingleSource:
    """A due topic, and the retry topic, if any.

    The client's own queue is the only queue, and its wait is exact to the millisecond: no thread stands between.
    """

    def __init__(
        self, subscribing: Subscribing, topics: tuple[str, ...], clock: Clock, hooks: Hooks, read: Reading = arrival_of
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


MAX_QUEUED = 256  # messages between the reading threads and the receiving thread; the client's own queues hold the rest
READ_SLICE_MS = 250  # time that a read waits in the client, and so the longest time that closing takes
NOT_OPENED_RETRY_MS = 1_000
JOIN_TIMEOUT_MS = 5_000


class _Key(NamedTuple):
    """A due topic."""

    interval_ms: int
    interval: int


_THE_DUE_TOPIC = _Key(0, 0)
_THE_RETRY_TOPIC = _Key(0, 1)


class RollingSource:
    """The due topics of a plan that has a calendar, or that follows calendars of earlier plans; a changing set.

    The client cannot wait for several consumers at once, and a consumer over a list of topics cannot be extended; regex
    discovery takes 60 s (broker-facts: following-topics). So a thread per open topic (the running interval, the next, a
    few that rest) moves messages into a bounded queue, and another thread opens and closes topics.
    """

    def __init__(
        self,
        subscribing: Subscribing,
        plan: Plan,
        retry_topic: str | None,
        clock: Clock,
        hooks: Hooks,
        read: Reading = arrival_of,
    ) -> None:
        self.read = read
        self._subscribing = subscribing
        self._due_topic = plan.due_topic
        self._retry_topic = retry_topic
        # The topic that must exist and be connected; all other topics are optional.
        self._own_interval_ms = plan.scheme.interval_ms if isinstance(plan.scheme, Calendar) else 0
        hold_ms = hold_bound_ms(plan)
        self._rolling = {
            interval_ms: RollingTopics(
                interval_ms,
                hold_ms,
                retry_ms=MISSING_RETRY_MS if interval_ms == self._own_interval_ms else FORMER_RETRY_MS,
            )
            for interval_ms in (self._own_interval_ms, *plan.former_intervals_ms)
            if interval_ms
        }
        self._look_for_due_topic_ms = 0
        self._clock = clock
        self._hooks = hooks
        # A single lock with three conditions: a message arrived, the queue has room, time to open or close.
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._follow_again = threading.Condition(self._lock)
        # The lock guards all attributes below.
        self._queue: deque[Arrival] = deque()
        self._open: dict[_Key, _Reader] = {}
        self._failure: Exception | None = None
        self._closed = False
        self._follower: threading.Thread | None = None

    @property
    def open_topics(self) -> tuple[str, ...]:
        """The topics that are subscribed to, by interval."""
        with self._lock:
            return tuple(self._open[key].subscribed.topic for key in sorted(self._open))

    @property
    def ready(self) -> bool:
        needed = self._always_needed()
        with self._lock:
            readers = [self._open.get(key) for key in needed]
            return not self._closed and all(
                reader is not None and bool(reader.subscribed.consumer.is_connected()) for reader in readers
            )

    def start(self) -> None:
        needed = self._always_needed()
        for topic in map(self._topic, needed):
            if (problem := self._subscribing.problem_with(topic)) is not None:
                raise problem
        for key in needed:
            self._open_one(key)
        self._follower = threading.Thread(target=self._follow, name="timewheel-calendar", daemon=True)
        self._follower.start()
        end_at_exit(self, RollingSource.close)

    def receive(self, timeout_ms: int) -> Arrival | None:
        with self._lock:
            if not self._queue and not self._closed and self._failure is None:
                self._clock.wait(self._arrived, timeout_ms)
            if self._queue:
                self._room.notify()
                return self._queue.popleft()
            if self._failure is not None:
                raise self._failure
            return None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for condition in (self._arrived, self._room, self._follow_again):
                condition.notify_all()
        if self._follower is not None:
            self._clock.join(self._follower, JOIN_TIMEOUT_MS)
        for key in tuple(self._open):
            self._close_one(key)

    def put(self, arrival: Arrival) -> None:
        """Queue a message, waiting while the queue is full. For the reading threads."""
        with self._lock:
            while len(self._queue) >= MAX_QUEUED and not self._closed:
                self._room.wait()
            self._queue.append(arrival)
            self._arrived.notify()

    def fail(self, error: Exception) -> None:
        """Have `receive` raise this error. For the reading threads."""
        with self._lock:
            if not self._closed:
                self._failure = self._failure or error
                self._arrived.notify_all()

    def _follow(self) -> None:
        try:
            while not self._closed:
                wake_ms = self._step()
                with self._lock:
                    if wake_ms and not self._closed:
                        self._clock.wait(self._follow_again, wake_ms - self._clock.now_ms())
        except Exception as error:  # noqa: BLE001 - a follower that died in silence would stop the calendar
            self.fail(error)

    def _step(self) -> int:
        """Open and close topics that are due for it; return the time of the next step, 0 for at once."""
        now_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        with self._lock:
            quiet_for_ms = {key: reader.quiet_for_ms(monotonic_ms) for key, reader in self._open.items()}
        wake_ms = now_ms + FORMER_RETRY_MS
        try:
            self._follow_due_topic(now_ms)
            for interval_ms, rolling in self._rolling.items():
                quiet = {key.interval: ms for key, ms in quiet_for_ms.items() if key.interval_ms == interval_ms}
                wake_ms = min(wake_ms, self._step_one(interval_ms, rolling, now_ms, quiet))
        except pulsar.PulsarException as error:
            # The broker is away, so the topics' state is unknown. The next step asks again.
            self._hooks.emit(CalendarTopicNotOpened(error=str(error)))
            return self._clock.now_ms() + NOT_OPENED_RETRY_MS
        return wake_ms

    def _step_one(self, interval_ms: int, rolling: RollingTopics, now_ms: int, quiet: dict[int, int | None]) -> int:
        changes = rolling.step(now_ms, quiet)
        for interval in changes.close:
            self._close_one(_Key(interval_ms, interval))
        wake_ms = changes.wake_ms
        for interval in changes.open:
            try:
                self._open_one(_Key(interval_ms, interval))
            except TopologyError as error:
                if rolling.missing(interval, self._clock.now_ms()):
                    wake_ms = 0  # the missing interval made room for the next visit
                elif interval_ms == self._own_interval_ms:
                    # The consumer goes on, since it still has other topics to drain: its readiness reports the missing
                    # topic.
                    self._hooks.emit(CalendarTopicMissing(topic=error.topic, remedy=error.remedy))
        return wake_ms

    def _follow_due_topic(self, now_ms: int) -> None:
        """Open the single due topic, if it exists: timers from before the calendar wait there."""
        if _THE_DUE_TOPIC in self._open or now_ms < self._look_for_due_topic_ms:
            return
        self._look_for_due_topic_ms = now_ms + FORMER_RETRY_MS
        if self._subscribing.problem_with(self._due_topic) is None:
            self._open_one(_THE_DUE_TOPIC)

    def _needed(self) -> _Key:
        """Return the topic without which no timer arrives."""
        own_ms = self._own_interval_ms
        return _Key(own_ms, self._rolling[own_ms].current(self._clock.now_ms())) if own_ms else _THE_DUE_TOPIC

    def _always_needed(self) -> tuple[_Key, ...]:
        return (self._needed(),) if self._retry_topic is None else (self._needed(), _THE_RETRY_TOPIC)

    def _topic(self, key: _Key) -> str:
        if key == _THE_RETRY_TOPIC:
            assert self._retry_topic is not None, "it is not opened without a name"
            return self._retry_topic
        if not key.interval_ms:
            return self._due_topic
        return CalendarTopic(self._due_topic, key.interval_ms, key.interval * key.interval_ms).name

    def _open_one(self, key: _Key) -> None:
        subscribed = self._subscribing.open(self._topic(key))
        reader = _Reader(self, subscribed, self._clock, self._hooks)
        with self._lock:
            closed = self._closed
            if not closed:
                self._open[key] = reader
        if closed:
            reader.close()
            return
        reader.start()
        self._hooks.emit(CalendarTopicOpened(topic=subscribed.topic))

    def _close_one(self, key: _Key) -> None:
        with self._lock:
            reader = self._open.pop(key)
        reader.close()
        self._hooks.emit(CalendarTopicClosed(topic=reader.subscribed.topic))


class _Reader(threading.Thread):
    """Moves messages from a consumer of the client into the source's queue."""

    def __init__(self, source: RollingSource, subscribed: Subscribed, clock: Clock, hooks: Hooks) -> None:
        super().__init__(name=f"timewheel-{subscribed.topic.rsplit('.', 1)[-1]}", daemon=True)
        self.subscribed = subscribed
        self._source = source
        self._clock = clock
        self._watch = ConnectionWatch(subscribed.topic, clock, hooks)
        self._closing = False

    def quiet_for_ms(self, monotonic_ms: int) -> int | None:
        since_ms = self.subscribed.quiet_since_ms()
        return None if since_ms is None else monotonic_ms - since_ms

    def close(self) -> None:
        self._closing = True
        with suppress(pulsar.PulsarException):  # closed already, perhaps with the client; nothing is lost by it
            self.subscribed.consumer.close()
        if self.is_alive():
            self._clock.join(self, JOIN_TIMEOUT_MS)

    def run(self) -> None:
        consumer = self.subscribed.consumer
        while not self._closing:
            try:
                message = consumer.receive(timeout_millis=READ_SLICE_MS)
            except pulsar.Timeout:
                self._watch.inspect(is_connected=bool(consumer.is_connected()))
                continue
            except pulsar.PulsarException as error:
                if not self._closing:
                    self._source.fail(error)
                return
            arrival = self._source.read(message, self.subscribed)
            # Before it is queued: a topic whose message waits in the queue is not quiet.
            self.subscribed.took(arrival.position, self._clock.monotonic_ms())
            self._source.put(arrival)


Source = SingleSource | RollingSource
"""Source of messages for a receiving thread; closed, its unacknowledged messages are redelivered to other consumers."""

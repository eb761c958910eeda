"""Source of a consumer's messages: the client's consumers, one per partition, and the checks before they are opened.

The client could open all partitions as one consumer, but reports a connection only for all of them together. A timer
that is held must be let go when the connection of its own partition is lost, and of no other (broker-facts:
moved-while-held).
"""

from __future__ import annotations

import inspect
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import pulsar

from timewheel.client.hooks import ConnectionWatch, Hooks
from timewheel.client.native import requesting, try_opening
from timewheel.client.positions import Position
from timewheel.client.process import DaemonWorkers, end_at_exit
from timewheel.client.reaching import partition_count, unpartitioned_problem
from timewheel.client.reopening import Reopening, Trial
from timewheel.client.surface import ClientLike, ConsumerLike
from timewheel.core.clock import Clock, wait_until
from timewheel.core.early_delivery import hold_bound_ms
from timewheel.core.errors import TopologyError, did_you_mean
from timewheel.core.names import CalendarTopic, Names
from timewheel.core.plan import Calendar, Plan
from timewheel.events import (
    CalendarTopicClosed,
    CalendarTopicMissing,
    CalendarTopicNotOpened,
    CalendarTopicOpened,
    ConsumerReplaced,
)

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

MAX_OPENING = 16  # partitions that are subscribed to at the same time

CONSUMER_TYPES = (pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared)


class Partition:
    """A partition of a due topic: the client's consumer on it, its connection, and its unacknowledged messages.

    A *session* ends when the connection is lost: the broker then delivers again what was not acknowledged, here or to
    another consumer. If the connection stays away, another consumer takes the place of this one.
    """

    __slots__ = ("_active_ms", "_is_connected", "_is_replaced", "_lock", "_reopening", "_unanswered", "_watch",
                 "consumer", "session", "topic")  # fmt: skip

    def __init__(
        self, topic: str, consumer: ConsumerLike, clock: Clock, hooks: Hooks, attempt: Callable[[Trial], None]
    ) -> None:
        self.topic = topic
        self.consumer = consumer
        self.session = 0
        self._is_connected = True
        self._is_replaced = False
        self._watch = ConnectionWatch(topic, clock, hooks)
        self._reopening = Reopening(clock, attempt)
        self._active_ms = clock.monotonic_ms()
        self._unanswered: set[Position] = set()
        self._lock = threading.Lock()

    def is_lost(self) -> bool:
        """Look at the connection; return True once for each loss. Called under the lock that guards what is held."""
        with self._lock:
            was_connected, self._is_connected = self._is_connected, bool(self.consumer.is_connected())
            is_replaced, self._is_replaced = self._is_replaced, False
            is_lost = was_connected and not self._is_connected
            self.session += is_lost
            return is_lost or is_replaced

    def session_now(self) -> int | None:
        """Return the session of a message that comes now; None if its connection is lost, whether seen or not yet."""
        return self.session if self.consumer.is_connected() else None

    def inspect(self) -> bool:
        """Report a connection that stays away, as it was seen last; return True if another consumer is to be opened.

        For a single thread.
        """
        self._watch.inspect(is_connected=self._is_connected)
        if self._is_connected and not self._reopening.is_waiting:
            return False
        return self._reopening.inspect([(self.topic, self.consumer)]) is not None

    def replace(self, consumer: ConsumerLike) -> ConsumerLike:
        """Put another consumer in the place of the present one, whose session ends with it; return the former."""
        with self._lock:
            former, self.consumer = self.consumer, consumer
            self.session += 1
            self._is_replaced = True
        return former

    def acknowledge(self, message: Any) -> None:
        """Acknowledge a message; that of a former consumer, too, as long as the broker has not given it away."""
        consumer = self.consumer
        try:
            consumer.acknowledge(message)
        except pulsar.PulsarException:
            if consumer is self.consumer:
                raise
            self.consumer.acknowledge(message)  # it was replaced at this very moment

    def took(self, position: Position, monotonic_ms: int) -> None:
        """Record that a message was taken from the consumer."""
        with self._lock:
            self._unanswered.add(position)
            self._active_ms = max(self._active_ms, monotonic_ms)

    def answered(self, position: Position, quiet_from_ms: int) -> None:
        """Record that a message was acknowledged or lost, or will be redelivered by ``quiet_from_ms`` (monotonic)."""
        with self._lock:
            self._unanswered.discard(position)
            self._active_ms = max(self._active_ms, quiet_from_ms)

    def quiet_since_ms(self) -> int | None:
        """Return the time since which it is quiet, on the monotonic clock; None while a message is unacknowledged."""
        with self._lock:
            return None if self._unanswered else self._active_ms


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
        hooks: Hooks,
    ) -> None:
        self._check(plan, subscription, consumer_type, options)
        self.subscription = subscription
        self.ack_timeout_ms: int | None = options.get("unacked_messages_timeout_ms") or None
        self.redelivery_delay_ms: int = options.get("negative_ack_redelivery_delay_ms", 60_000)
        self._client = client
        self._names = Names(plan)
        self._clock = clock
        self._hooks = hooks
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

    def partitions_of(self, topic: str) -> list[str]:
        """Return the names of an existing topic's partitions; its own name if it is not partitioned."""
        if (problem := self.problem_with(topic)) is not None:
            raise problem
        return list(self._client.get_topic_partitions(topic))

    def open(self, names: Sequence[str]) -> list[Partition]:
        """Subscribe to partitions, side by side; if one fails, none stays open."""
        workers = min(len(names), MAX_OPENING)
        with ThreadPoolExecutor(workers, thread_name_prefix="timewheel-subscribe") as pool:
            opening = [pool.submit(self._open_one, name) for name in names]
        failures = [error for one in opening if (error := one.exception()) is not None]
        if failures:
            for one in opening:
                if one.exception() is None:
                    with suppress(pulsar.PulsarException):
                        one.result().consumer.close()
            raise failures[0]
        return [one.result() for one in opening]

    def subscribe(self, name: str) -> ConsumerLike:
        """Open a consumer of a partition."""
        consumer: ConsumerLike = self._client.subscribe(name, self.subscription, **self._options)
        return consumer

    def _open_one(self, name: str) -> Partition:
        return Partition(name, self.subscribe(name), self._clock, self._hooks, partial(try_opening, self._client))

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


LEAVE_TIMEOUT_MS = 1_000


class _Received(NamedTuple):
    """The end of a receive, as the client's thread queues it."""

    partition: Partition
    consumer: ConsumerLike
    session: int | None  # the partition's session when it came
    failure: Exception | None
    message: Any


class Intake:
    """Receives from many partitions at once: the client's threads put each next message into one queue.

    One receive is under way on each partition, so that all messages but one of each stay in the client's own queues.
    """

    def __init__(self, clock: Clock, read: Reading) -> None:
        self._clock = clock
        self._read = read
        self._queue: queue.SimpleQueue[_Received | None] = queue.SimpleQueue()
        self._requests: dict[ConsumerLike, Callable[[], None]] = {}
        self._waiting: set[ConsumerLike] = set()
        self._has_left = threading.Condition()

    def add(self, partition: Partition) -> None:
        """Begin to receive from a partition."""
        consumer = partition.consumer

        def came(failure: Exception | None, message: Any) -> None:
            self._waiting.discard(consumer)
            self._queue.put(_Received(partition, consumer, partition.session_now(), failure, message))
            if failure is not None:
                with self._has_left:
                    self._has_left.notify_all()

        self._requests[consumer] = requesting(consumer, came)
        self._request(consumer)

    def receive(self, timeout_ms: int) -> Arrival | None:
        """Return the next message, if it comes in time; raise the client's error of a consumer that has ended."""
        try:
            received = self._clock.get(self._queue, timeout_ms)
        except queue.Empty:
            return None
        if received is None or received.consumer not in self._requests:
            return None
        if received.failure is not None:
            raise received.failure
        partition = received.partition
        arrival = self._read(received.message, partition, received.session)
        partition.took(arrival.position, self._clock.monotonic_ms())
        self._request(received.consumer)
        return arrival

    def close(self, *consumers: ConsumerLike) -> None:
        """Close consumers, and wait for the client's threads to leave them."""
        for consumer in consumers:
            self._requests.pop(consumer, None)
            with suppress(pulsar.PulsarException):  # closed already, perhaps with the client; nothing is lost by it
                consumer.close()
        with self._has_left:
            wait_until(self._clock, self._has_left, lambda: self._waiting.isdisjoint(consumers), LEAVE_TIMEOUT_MS)

    def wake(self) -> None:
        """End a wait in `receive`."""
        self._queue.put(None)

    def _request(self, consumer: ConsumerLike) -> None:
        if (request := self._requests.get(consumer)) is not None:  # None: it was closed meanwhile
            self._waiting.add(consumer)
            request()


NOT_OPENED_RETRY_MS = 1_000
LOOK_MS = 1_000  # pause between two looks at the open topics
GROWTH_LOOK_MS = 60_000  # pause between two looks for new partitions of an open topic; pulsar-client's own
JOIN_TIMEOUT_MS = 5_000
MAX_REPLACING = 64  # consumers that are replaced at the same time; each can wait for as long as a broker is away
MAX_CLOSING = 8  # passed intervals that are closed at the same time; likewise


class _Key(NamedTuple):
    """A due topic."""

    interval_ms: int
    interval: int


_THE_DUE_TOPIC = _Key(0, 0)
_THE_RETRY_TOPIC = _Key(0, 1)


class _Topic(NamedTuple):
    """An open topic."""

    name: str
    partitions: tuple[Partition, ...]

    @property
    def is_connected(self) -> bool:
        return all(bool(partition.consumer.is_connected()) for partition in self.partitions)

    def quiet_for_ms(self, monotonic_ms: int) -> int | None:
        """Return how long the topic has been quiet; None while a message is unacknowledged."""
        since_ms = [partition.quiet_since_ms() for partition in self.partitions]
        known_ms = [each for each in since_ms if each is not None]
        return monotonic_ms - max(known_ms) if len(known_ms) == len(since_ms) else None


class Source:
    """The due topics of a plan, and its retry topic, if any: a changing set, of topics that grow.

    A plan has several due topics if it has a calendar, or follows calendars of earlier plans. A consumer over a list of
    topics cannot be extended, and regex discovery takes 60 s (broker-facts: following-topics). So a thread opens and
    closes topics, and new partitions of those that are open.
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
        self._intake = Intake(clock, read)
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
        self._look_for_growth_ms = 0
        self._clock = clock
        self._hooks = hooks
        self._lock = threading.Lock()
        self._follow_again = threading.Condition(self._lock)
        # The lock guards all attributes below.
        self._open: dict[_Key, _Topic] = {}
        self._failure: Exception | None = None
        self._closed = False
        self._follower: threading.Thread | None = None
        self.partitions: tuple[Partition, ...] = ()  # all open partitions; replaced, never changed
        self.replaced = 0  # count of replaced consumers
        self._replacers = DaemonWorkers(name="timewheel-replace", limit=MAX_REPLACING)
        self._closers = DaemonWorkers(name="timewheel-close", limit=MAX_CLOSING)

    @property
    def open_topics(self) -> tuple[str, ...]:
        """The topics that are subscribed to, by interval."""
        with self._lock:
            return tuple(self._open[key].name for key in sorted(self._open))

    @property
    def ready(self) -> bool:
        needed = self._always_needed()
        with self._lock:
            topics = [self._open.get(key) for key in needed]
            return not self._closed and all(topic is not None and topic.is_connected for topic in topics)

    def start(self) -> None:
        """Subscribe to all topics that must exist."""
        needed = {key: self._subscribing.partitions_of(self._topic(key)) for key in self._always_needed()}
        for key, names in needed.items():
            self._open_one(key, names)
        self._look_for_growth_ms = self._clock.monotonic_ms() + GROWTH_LOOK_MS
        self._follower = threading.Thread(target=self._follow, name="timewheel-topics", daemon=True)
        self._follower.start()
        end_at_exit(self, Source.close)

    def receive(self, timeout_ms: int) -> Arrival | None:
        """Return the next message, if it comes in time."""
        if self._failure is not None:
            raise self._failure
        return self._intake.receive(timeout_ms)

    def replace(self, partition: Partition) -> None:
        """Open another consumer in the place of a partition's, beside it; returns at once."""
        self._replacers.run(lambda: self._replace(partition))

    def close(self) -> None:
        """Close all topics; their unacknowledged messages are redelivered to other consumers."""
        with self._lock:
            self._closed = True
            self._follow_again.notify_all()
        self._intake.wake()
        if self._follower is not None:
            self._clock.join(self._follower, JOIN_TIMEOUT_MS)
        for key in tuple(self._open):
            self._end(self._removed(key))

    def _follow(self) -> None:
        try:
            while not self._closed:
                step_ms = self._step()
                with self._lock:
                    if step_ms != 0 and not self._closed:
                        left_ms = None if step_ms is None else step_ms - self._clock.now_ms()
                        self._clock.wait(self._follow_again, self._clock.idle_ms(left_ms, LOOK_MS))
        except Exception as error:  # noqa: BLE001 - a follower that died in silence would stop the calendar
            self._failure = error
            self._intake.wake()

    def _step(self) -> int | None:
        """Open and close topics that are due for it; return the time of the next step: 0 at once, None never."""
        now_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        with self._lock:
            quiet_for_ms = {key: topic.quiet_for_ms(monotonic_ms) for key, topic in self._open.items()}
        wakes_ms: list[int] = []
        try:
            for interval_ms, rolling in self._rolling.items():
                quiet = {key.interval: ms for key, ms in quiet_for_ms.items() if key.interval_ms == interval_ms}
                wakes_ms.append(self._step_one(interval_ms, rolling, now_ms, quiet))
            # After the intervals: where a broker is away, a lookup takes as long as the client's time-out.
            self._follow_due_topic(now_ms)
            self._follow_growth(monotonic_ms)
        except pulsar.PulsarException as error:
            # The broker is away, so the topics' state is unknown. The next step asks again.
            if self._rolling:
                self._hooks.emit(CalendarTopicNotOpened(error=str(error)))
            return self._clock.now_ms() + NOT_OPENED_RETRY_MS
        return min(wakes_ms, default=None)

    def _step_one(self, interval_ms: int, rolling: RollingTopics, now_ms: int, quiet: dict[int, int | None]) -> int:
        changes = rolling.step(now_ms, quiet)
        for interval in changes.close:
            self._closers.run(partial(self._end, self._removed(_Key(interval_ms, interval))))
        wake_ms = changes.wake_ms
        for interval in changes.open:
            try:
                self._open_topic(_Key(interval_ms, interval))
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
            self._open_topic(_THE_DUE_TOPIC)

    def _follow_growth(self, monotonic_ms: int) -> None:
        """Open the partitions that were added to open topics."""
        if monotonic_ms < self._look_for_growth_ms:
            return
        self._look_for_growth_ms = monotonic_ms + GROWTH_LOOK_MS
        with self._lock:
            topics = dict(self._open)
        for key, topic in topics.items():
            known = {partition.topic for partition in topic.partitions}
            try:
                added = [name for name in self._subscribing.partitions_of(topic.name) if name not in known]
            except TopologyError:
                continue  # it was removed
            if added:
                self._add(key, topic._replace(partitions=(*topic.partitions, *self._subscribing.open(added))))

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

    def _open_topic(self, key: _Key) -> None:
        self._open_one(key, self._subscribing.partitions_of(self._topic(key)))

    def _open_one(self, key: _Key, names: Sequence[str]) -> None:
        topic = _Topic(self._topic(key), tuple(self._subscribing.open(names)))
        if self._add(key, topic) and self._rolling:
            self._hooks.emit(CalendarTopicOpened(topic=topic.name))

    def _add(self, key: _Key, topic: _Topic) -> bool:
        """Begin to receive from the partitions of a topic that are new; return False if the source was closed."""
        with self._lock:
            before = self._open.get(key)
            added = topic.partitions if before is None else topic.partitions[len(before.partitions) :]
            is_closed = self._closed
            if not is_closed:
                self._open[key] = topic
                self.partitions = self._all_partitions()
        if is_closed:
            self._intake.close(*(partition.consumer for partition in added))
            return False
        for partition in added:
            self._intake.add(partition)
        return True

    def _removed(self, key: _Key) -> _Topic:
        with self._lock:
            topic = self._open.pop(key)
            self.partitions = self._all_partitions()
        return topic

    def _end(self, topic: _Topic) -> None:
        self._intake.close(*(partition.consumer for partition in topic.partitions))
        if self._rolling:
            self._hooks.emit(CalendarTopicClosed(topic=topic.name))

    def _replace(self, partition: Partition) -> None:
        if not self._is_away(partition):
            return
        try:
            unused = self._subscribing.subscribe(partition.topic)
        except Exception:  # noqa: BLE001 - no broker serves it any more, or the client is closed
            return
        with self._lock:
            is_needed = self._is_away(partition)
            if is_needed:
                unused = partition.replace(unused)
                self._intake.add(partition)
                self.replaced += 1
        if is_needed:
            self._hooks.emit(ConsumerReplaced(topic=partition.topic))
        self._intake.close(unused)

    def _is_away(self, partition: Partition) -> bool:
        return partition in self.partitions and not partition.consumer.is_connected()

    def _all_partitions(self) -> tuple[Partition, ...]:
        return tuple(partition for topic in self._open.values() for partition in topic.partitions)

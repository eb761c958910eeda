"""Subscriptions of a topic: who gets which entry when, as the broker's dispatchers decide it."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Protocol

import pulsar

from timewheel.client.positions import EntryPosition
from timewheel.testing.virtual.ledgers import Cursor, Entry
from timewheel.testing.virtual.scheduler import MS, Alarm, Scheduler

if TYPE_CHECKING:
    from timewheel.testing.virtual.brokers import Topic

Kind: Any = pulsar.ConsumerType  # pulsar ships no types
READ_ENTRIES = 100  # at most (``dispatcherMaxReadBatchSize``)
ROUND_ROBIN_ENTRIES = 20  # in a row for a consumer of a Shared subscription (``dispatcherMaxRoundRobinBatchSize``)
MAX_UNACKED_PER_CONSUMER, MAX_UNACKED_PER_SUBSCRIPTION = 50_000, 200_000
MIN_BACKLOG_TO_EXPIRE = 1_000  # below it, what is too old stays with consumers until it is half as old again
FIXED_DELAY_LOOKAHEAD = 50_000  # that wait before the broker reads no more (broker-facts: starved-due-topic)
FAILOVER_DELAY_MS = 1_000  # until a new active consumer gets any (``activeConsumerFailoverDelayTimeMillis``)


class Refused(Exception):
    """The broker's answer to a request that it refuses, with the name of the client's result."""

    def __init__(self, result: str) -> None:
        super().__init__(result)
        self.result = result


class ClientEnd(Protocol):
    """The client's end of a producer or consumer."""

    def closed_by_broker(self) -> None:
        """Learn that the broker serves the topic no more, or the subscription was removed."""


class Receiving(ClientEnd, Protocol):
    """The client's end of a consumer."""

    def deliver(self, entries: list[tuple[Entry, int]]) -> None:
        """Take entries, each with how often it was delivered before."""


@dataclass(eq=False)
class BrokerConsumer:
    """The broker's end of a consumer."""

    end: Receiving
    subscription: Subscription
    name: str
    properties: dict[str, str]
    number: int  # in the order of connecting
    permits: int = 0  # messages that it may still be sent; negative after a batch of more
    pending: dict[EntryPosition, int] = field(default_factory=dict)  # messages of each entry that is not acknowledged
    unacked: int = 0  # sum of `pending`

    @property
    def is_connected(self) -> bool:
        return self in self.subscription.consumers

    def leave(self) -> None:
        self.subscription.remove(self)

    def flow(self, permits: int) -> None:
        self.permits += permits
        self.subscription.asked_ms = self.subscription.scheduler.now_ms
        self.subscription.dispatcher.read()

    def acknowledge(self, positions: Iterable[EntryPosition]) -> None:
        for position in positions:
            if not self.has_done(position):
                any(other.has_done(position) for other in self.subscription.consumers)
            self.subscription.redeliveries.pop(position, None)
            self.subscription.cursor.acknowledge(position)
        self.subscription.moved()

    def acknowledge_to(self, position: EntryPosition) -> None:
        self.subscription.cursor.acknowledge_to(position)
        for pending in [one for one in self.pending if one <= position]:
            self.has_done(pending)
        self.subscription.moved()

    def has_done(self, position: EntryPosition) -> bool:
        """Take an entry out of `pending`; return whether it was there."""
        messages = self.pending.pop(position, 0)
        self.unacked -= messages
        return messages > 0

    def forget(self) -> None:
        self.pending.clear()
        self.unacked = 0


class Subscription:
    """A subscription with consumers of one type."""

    def __init__(self, topic: Topic, name: str, cursor: Cursor, *, is_durable: bool = True) -> None:
        self.topic = topic
        self.name = name
        self.cursor = cursor
        self.is_durable = is_durable
        self.kind: Any = Kind.Exclusive
        self.consumers: list[BrokerConsumer] = []
        self.redeliveries: Counter[EntryPosition] = Counter()
        self.scheduler = topic.cluster.scheduler
        self.dispatcher: _Ordered | _Shared = _Ordered(self)
        self.delivered = self.expired = self.asked_ms = 0
        self._flush = Alarm(self.scheduler, partial(self.moved, at_once=True))

    def add(self, end: Receiving, name: str, kind: Any, properties: dict[str, str]) -> BrokerConsumer:
        """Add a consumer. Refused: there is an exclusive consumer, or there are consumers of another type."""
        consumer = BrokerConsumer(end, self, name, properties, self.topic.cluster.new_ledger_id())
        if self.consumers and (kind != self.kind or kind == Kind.Exclusive):
            raise Refused("ConsumerBusy")
        if not self.consumers:
            self.kind = kind
            self.dispatcher = (_Shared if kind in (Kind.Shared, Kind.KeyShared) else _Ordered)(self)
        self.consumers.append(consumer)
        self.dispatcher.added()
        return consumer

    def remove(self, consumer: BrokerConsumer) -> None:
        """Remove a consumer that has closed, or was lost: what it has not acknowledged goes to the others."""
        if consumer in self.consumers:
            self.consumers.remove(consumer)
            self.dispatcher.removed(consumer)
            consumer.forget()
            if not self.consumers and not self.is_durable:
                self.topic.subscriptions.pop(self.name, None)

    def close(self) -> None:
        """Let go of all consumers: the broker serves the topic no more."""
        consumers, self.consumers = self.consumers, []
        self.dispatcher.stop()
        for consumer in consumers:
            consumer.forget()
            consumer.end.closed_by_broker()

    def seek(self, position: EntryPosition) -> None:
        """Begin behind a position; the consumers connect anew."""
        self.close()
        self.redeliveries.clear()
        self.cursor.mark_delete, self.cursor.acked = position, set()
        self.cursor.rewind()

    def unacknowledged(self) -> Iterator[Entry]:
        """Yield the entries that are not acknowledged."""
        for entry in self.topic.log.all_after(self.cursor.mark_delete):
            if not self.cursor.is_acked(entry.position):
                yield entry

    def skip_to(self, position: EntryPosition) -> None:
        """Acknowledge all up to a position, delayed or not."""
        self.cursor.acknowledge_to(position)
        self.moved()

    def skip_all(self) -> None:
        """Acknowledge everything, delayed or not."""
        if isinstance(self.dispatcher, _Shared):
            self.dispatcher.stop()
        self.skip_to(self.topic.log.last_confirmed)

    def drop_to(self, target_bytes: float) -> None:
        """Acknowledge the oldest entries, as many as may be too many (``BacklogQuotaManager``)."""
        size = self.cursor.backlog_bytes
        number = int(max(size - target_bytes, 0) / (size or 1) * self.cursor.backlog)
        for entry in [*islice(self.unacknowledged(), number)][-1:]:
            self.skip_to(entry.position)

    def expire(self, ttl_s: int) -> bool:
        """Acknowledge what is older; return False if there is nothing, or consumers are about to receive it."""
        oldest, now_ms = next(self.unacknowledged(), None), self.scheduler.now_ms
        is_busy = self.consumers and self.cursor.backlog < MIN_BACKLOG_TO_EXPIRE
        if oldest is None or (is_busy and now_ms - oldest.publish_ms <= int(1.5 * ttl_s) * 1_000):
            return False
        before = self.cursor.backlog
        self.skip_to(self.topic.log.published_before(now_ms - ttl_s * 1_000))
        self.expired += before - self.cursor.backlog
        return True

    def moved(self, *, at_once: bool = False) -> None:
        """Go on after acknowledgements, which are written down now or later."""
        cluster, now_ms = self.topic.cluster, self.scheduler.now_ms
        is_written = cluster.can_write and self.cursor.write(now_ms, cluster.new_ledger_id, at_once=at_once)
        if not is_written and self.is_durable:
            self._flush.set(cluster.cursor_flush_ms * MS)
        self.dispatcher.read()

    def give(self, consumer: BrokerConsumer, entries: list[Entry]) -> None:
        """Send entries to a consumer."""
        for entry in entries:
            messages = len(entry.messages)
            if entry.position not in consumer.pending:
                consumer.pending[entry.position] = messages
                consumer.unacked += messages
            consumer.permits -= messages
            self.delivered += messages
        consumer.end.deliver([(entry, self.redeliveries[entry.position]) for entry in entries])


class _Dispatcher:
    """A way to share entries out among the consumers of a subscription."""

    active: BrokerConsumer | None = None  # the only one of an Exclusive or Failover subscription that is sent anything
    tracker: Any = ()  # of entries that wait for their delivery time

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._cursor = subscription.cursor
        self._log = subscription.topic.log


class _Ordered(_Dispatcher):
    """Dispatches to the active consumer, in order (``PersistentDispatcherSingleActiveConsumer``)."""

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(subscription)
        self._begins = Alarm(subscription.scheduler, self._begin)
        self._waits = False  # for the next entry, which goes to whoever is active then (broker-facts: false-beginning)

    def added(self) -> None:
        self._choose()

    def removed(self, consumer: BrokerConsumer) -> None:
        if consumer is self.active:
            self.active = None
        self._choose()

    def stop(self) -> None:
        self.active, self._waits = None, False
        self._begins.cancel()

    def _choose(self) -> None:
        subscription = self._subscription
        consumers = subscription.consumers
        if subscription.kind == Kind.Failover:
            consumers = sorted(consumers, key=lambda one: (one.name, one.number))
        chosen = consumers[max(subscription.topic.partition, 0) % len(consumers)] if consumers else None
        if chosen is self.active:
            return
        self.active = chosen
        if chosen is None:
            self.stop()
        elif subscription.kind == Kind.Failover:
            self._begins.set(FAILOVER_DELAY_MS * MS)
        else:
            self._begin()

    def _begin(self) -> None:
        self._waits = False
        self._cursor.rewind()
        self.read()

    def redeliver(self, consumer: BrokerConsumer, positions: Iterable[EntryPosition] | None) -> None:
        if consumer is self.active:
            self._subscription.redeliveries.update(consumer.pending.keys() if positions is None else positions)
            consumer.forget()
            self._cursor.rewind()
            self.read()

    def read(self) -> None:
        consumer = self.active
        if self._begins.is_set and not self._waits:
            return
        while consumer is not None and consumer.permits > 0:
            entries = []
            entry: Entry | None = None
            for entry in islice(self._log.all_after(self._cursor.read), min(consumer.permits, READ_ENTRIES)):
                self._cursor.read = entry.position
                if not self._cursor.is_acked(entry.position):
                    entries.append(entry)
            if entry is None:
                self._waits = True
                return
            if entries:
                self._subscription.give(consumer, entries)


class Tracker:
    """Entries that wait for their delivery time (``InMemoryDelayedDeliveryTracker``)."""

    def __init__(self, scheduler: Scheduler, tick_ms: int, on_due: Callable[[], None]) -> None:
        self._scheduler = scheduler
        self._tick_ms = tick_ms
        self._on_due = on_due
        self._heap: list[tuple[int, EntryPosition]] = []
        self._waiting: set[EntryPosition] = set()
        self._tick = Alarm(scheduler, self._ticked)
        self._next_ms = 0  # for which it is set
        self._last_tick_ms = 0
        self._highest_ms = 0
        self._has_fixed_delay = True

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, position: EntryPosition, deliver_at_ms: int) -> bool:
        """Keep an entry until its time; return False if it may be delivered now."""
        if deliver_at_ms <= self._scheduler.now_ms + self._tick_ms:
            self._has_fixed_delay = False
            return False
        if position in self._waiting:
            return True
        self._waiting.add(position)
        heappush(self._heap, (deliver_at_ms, position))
        if deliver_at_ms < self._highest_ms - self._tick_ms:
            self._has_fixed_delay = False
        self._highest_ms = max(self._highest_ms, deliver_at_ms)
        self._schedule()
        return True

    def take(self, most: int) -> list[EntryPosition]:
        """Take entries that are due, or will be within a tick, in topic order."""
        found: list[EntryPosition] = []
        until_ms = self._scheduler.now_ms + self._tick_ms
        while self._heap and len(found) < most and self._heap[0][0] <= until_ms:
            position = heappop(self._heap)[1]
            self._waiting.discard(position)
            found.append(position)
        if not self._heap:
            self._has_fixed_delay, self._highest_ms = True, 0
        self._schedule()
        return sorted(found)

    @property
    def has_due(self) -> bool:
        return bool(self._heap) and self._heap[0][0] <= self._scheduler.now_ms + self._tick_ms

    @property
    def pauses(self) -> bool:
        """True if the broker reads no further entries (broker-facts: starved-due-topic)."""
        return self._has_fixed_delay and len(self._heap) >= FIXED_DELAY_LOOKAHEAD and not self.has_due

    def clear(self) -> None:
        self._heap.clear()
        self._waiting.clear()
        self._has_fixed_delay, self._highest_ms = True, 0
        self._tick.cancel()

    def _schedule(self) -> None:
        if not self._heap:
            return
        first_ms, now_ms = self._heap[0][0], self._scheduler.now_ms
        if self._tick.is_set and self._next_ms == first_ms:
            return
        self._next_ms = first_ms
        # Not sooner than a tick after the last one.
        delay_ms = max(first_ms - now_ms, self._last_tick_ms + self._tick_ms - now_ms, 0)
        self._tick.cancel()
        self._tick.set(delay_ms * MS)

    def _ticked(self) -> None:
        self._last_tick_ms = self._scheduler.now_ms
        self._on_due()
        self._schedule()  # the wall clock was set back meanwhile


class _Shared(_Dispatcher):
    """Dispatches to all consumers in turn (``PersistentDispatcherMultipleConsumers``), by key for Key_Shared."""

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(subscription)
        tick_ms = subscription.topic.cluster.profile.tick_ms
        self.tracker: Tracker = Tracker(subscription.scheduler, tick_ms, self.read)
        self._replay: set[EntryPosition] = set()
        self._turns = count()
        self._is_reading = False

    def added(self) -> None:
        if len(self._subscription.consumers) == 1:
            self._cursor.rewind()

    def removed(self, consumer: BrokerConsumer) -> None:
        if not self._subscription.consumers:
            self.stop()
            self._cursor.rewind()
            return
        self._replay.update(consumer.pending)
        self.read()

    def stop(self) -> None:
        self.tracker.clear()
        self._replay.clear()

    def redeliver(self, consumer: BrokerConsumer, positions: Iterable[EntryPosition] | None) -> None:
        for position in [*consumer.pending] if positions is None else positions:
            if consumer.has_done(position):
                self._subscription.redeliveries[position] += 1
                self._replay.add(position)
        self.read()

    def read(self) -> None:
        if self._is_reading:
            return
        self._is_reading = True
        try:
            while self._read_once():
                pass
        finally:
            self._is_reading = False

    def _read_once(self) -> bool:
        """Send a read's entries; return whether there may be more."""
        consumers = self._subscription.consumers
        ready = [one for one in consumers if one.permits > 0 and one.unacked < MAX_UNACKED_PER_CONSUMER]
        if not ready or sum(one.unacked for one in consumers) >= MAX_UNACKED_PER_SUBSCRIPTION:
            return False
        most = min(sum(one.permits for one in ready), READ_ENTRIES)
        entries = self._next_entries(most)
        return self._send(entries) > 0 if entries else entries is not None

    def _next_entries(self, most: int) -> list[Entry] | None:
        """Return the entries of the next read that can be delivered; None: there is nothing to read."""
        positions = sorted(self._replay)[:most]
        self._replay.difference_update(positions)
        if not positions and self.tracker.has_due:
            positions = self.tracker.take(most)
        if positions:
            return self._deliverable(self._entries_at(positions))
        if self.tracker.pauses or not (read := [*islice(self._log.all_after(self._cursor.read), most)]):
            return None
        self._cursor.read = read[-1].position
        return self._deliverable(read)

    def _deliverable(self, entries: Iterable[Entry]) -> list[Entry]:
        is_delaying = self._subscription.topic.delays
        return [
            entry
            for entry in entries
            if not self._cursor.is_acked(entry.position)
            and not (is_delaying and entry.deliver_at_ms and self.tracker.add(entry.position, entry.deliver_at_ms))
        ]

    def _send(self, entries: list[Entry]) -> int:
        if self._subscription.kind == Kind.KeyShared:
            return self._send_by_key(entries)
        sent = 0
        while sent < len(entries) and (ready := [one for one in self._subscription.consumers if one.permits > 0]):
            consumer = ready[next(self._turns) % len(ready)]
            most = min(consumer.permits, ROUND_ROBIN_ENTRIES)
            self._subscription.give(consumer, entries[sent : sent + most])
            sent += most
        self._replay.update(entry.position for entry in entries[sent:])
        return min(sent, len(entries))

    def _send_by_key(self, entries: list[Entry]) -> int:
        consumers = sorted(self._subscription.consumers, key=lambda one: one.number)
        # Those of the same keys must wait, too, behind entries that wait to be sent again.
        before = [position for position in self._replay if position < entries[0].position]
        sent, blocked = 0, self._keys_at(before)
        for entry in entries:
            key = _key_hash(entry)
            consumer = consumers[key % len(consumers)]
            is_held = any(key in self._keys_at(one.pending) for one in consumers if one is not consumer)
            if key in blocked or consumer.permits <= 0 or is_held:
                blocked.add(key)
                self._replay.add(entry.position)
            else:
                self._subscription.give(consumer, [entry])
                sent += 1
        return sent

    def _keys_at(self, positions: Iterable[EntryPosition]) -> set[int]:
        return {_key_hash(entry) for entry in self._entries_at(positions)}

    def _entries_at(self, positions: Iterable[EntryPosition]) -> list[Entry]:
        return [entry for position in positions if (entry := self._log.read(position)) is not None]


def _key_hash(entry: Entry) -> int:
    message = entry.messages[0]
    return zlib.crc32(message.ordering_key or message.key)

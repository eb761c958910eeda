"""Plans and topics on a broker, timers sent into them, and what lies in them, for tests of producers and consumers."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pulsar

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.entries import StoredEntry
from timewheel.client.positions import EntryPosition, Position
from timewheel.consumers import DelayedConsumer, DelayedMessage
from timewheel.core import Calendar, Native, Plan, Tiered, Wheel
from timewheel.core.clock import SystemClock
from timewheel.core.envelope import Envelope
from timewheel.core.names import partition_topic, parts_of
from timewheel.core.routing import Router
from timewheel.hooks import Event
from timewheel.provision.provisioning import ensure
from timewheel.testing import Broker, eventually

SUBSCRIPTION = "billing"
MAX_UNACKED = 400  # of a consumer, on the broker that delays nothing


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class ShiftedClock(SystemClock):
    """This machine's clock, ahead by so much; below 0: behind."""

    def __init__(self, ahead_ms: int) -> None:
        self._ahead_ms = ahead_ms

    def now_ms(self) -> int:
        return super().now_ms() + self._ahead_ms


def make_topic(broker: Broker, topic: str, *, partitions: int = 1, subscriptions: tuple[str, ...] = ()) -> None:
    """A partitioned topic with subscriptions from its beginning."""
    with AdminClient(broker.admin_url) as admin:
        admin.topics.create(topic, partitions)
        for subscription in subscriptions:
            admin.subscriptions.create(topic, subscription)


class Confirming:
    """Producers by topic, and how many sends are not confirmed yet."""

    def __init__(self) -> None:
        self._producers: dict[str, Any] = {}
        self._lock = threading.Lock()
        self.unconfirmed = 0

    def send_counted(self, producer: Any, payload: bytes | None, **options: Any) -> None:
        with self._lock:
            self.unconfirmed += 1
        producer.send_async(payload, self._confirmed, **options)

    def flush(self) -> None:
        for producer in self._producers.values():
            producer.flush()
        eventually(lambda: self.unconfirmed == 0)

    def close_producers(self) -> None:
        """Nobody sends any more."""
        for producer in self._producers.values():
            producer.close()
        self._producers.clear()

    def _confirmed(self, result: Any, _: Any) -> None:
        if result.value == 0:
            with self._lock:
                self.unconfirmed -= 1


class Sender(Confirming):
    """Sends timers straight into the due topic that the plan routes to, with their envelopes."""

    def __init__(self, client: Any, plan: Plan) -> None:
        super().__init__()
        self._client = client
        self._router = Router(plan)

    def send(
        self,
        timer_id: str,
        due_ms: int,
        *,
        payload: bytes | None = b"",
        partition: int = 0,
        early_ms: int = 0,
        undelayed: bool = False,
        properties: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        """Send one timer."""
        due = self._router.to_due(due_ms, now_ms())
        topic = partition_topic(due.topic, partition)
        if topic not in self._producers:
            self._producers[topic] = self._client.create_producer(topic, block_if_queue_full=True)
        envelope = Envelope(timer_id, due_ms, now_ms()).properties()
        deliver_at = 0 if undelayed or not due.deliver_at_ms else due.deliver_at_ms - early_ms
        self.send_counted(
            self._producers[topic],
            payload,
            properties={**(properties or {}), **envelope},
            deliver_at=deliver_at or None,
            **options,
        )


class Handled:
    """A handler that notes what it was given: how often, how late by its own clock, on which thread."""

    def __init__(self) -> None:
        self.times: Counter[str | None] = Counter()
        self.lateness_ms: list[int] = []
        self.threads: dict[str, list[str]] = {}
        self._lock = threading.Lock()

    def __call__(self, message: DelayedMessage) -> None:
        at_ms = now_ms()
        with self._lock:
            self.times[message.timer_id] += 1
            self.threads.setdefault(message.ordering_key() or message.partition_key(), []).append(
                threading.current_thread().name
            )
            if message.due_at is not None:
                self.lateness_ms.append(at_ms - round(message.due_at.timestamp() * 1000))

    @property
    def early(self) -> int:
        return sum(1 for late_ms in self.lateness_ms if late_ms < 0)


class Events:
    """A hook that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def named(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]


@contextmanager
def running(consumer: DelayedConsumer, handler: Any, *, workers: int = 4) -> Iterator[None]:
    """Run a consumer in a thread; at the end it is stopped, and what it raised is raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            consumer.run(handler, workers=workers)
        except BaseException as error:  # noqa: BLE001 - raised below, in the test's own thread
            raised.append(error)

    consumer.start()
    thread = threading.Thread(target=run, name="test-run")
    thread.start()
    try:
        yield
    finally:
        consumer.stop()
        thread.join(40)
        assert not thread.is_alive()
        consumer.close()
    if raised:
        raise raised[0]


def left_in(broker: Broker, topics: list[str], subscription: str = SUBSCRIPTION) -> int:
    """Messages that wait or are unacknowledged in all of these topics.

    The topic of an interval that began a moment ago may not be there yet, and holds nothing.
    """
    with AdminClient(broker.admin_url) as admin:
        there = [topic for topic in topics if admin.topics.partitions(topic) is not None]
    return sum(backlog(broker, topic, subscription) for topic in there)


def backlog(broker: Broker, topic: str, subscription: str = SUBSCRIPTION) -> int:
    """Messages that wait or are unacknowledged, over all partitions."""
    with AdminClient(broker.admin_url) as admin:
        parts = parts_of(topic, admin.topics.partitions(topic) or 0)
        stats = [admin.topics.stats(part, precise_backlog=True) for part in parts]
        return sum(one.subscriptions[subscription].backlog for one in stats)


HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
READ_TIMEOUT_MS = 10_000

TIERED = Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS, DAY_MS))  # far longer than any test: what is held stays held
TIER_1D = ".tw.tier-1d"


def make_plan(
    broker: Broker,
    topic: str,
    scheme: Native | Tiered | Calendar | Wheel = TIERED,
    *,
    at_ms: int | None = None,
    **changes: Any,
) -> Plan:
    """A plan whose topics are there."""
    plan = Plan(due_topic=topic, subscriptions=("billing",), scheme=scheme, **changes)
    with AdminClient(broker.admin_url) as admin:
        ensure(admin, plan, now_ms=now_ms() if at_ms is None else at_ms)
    return plan


def stored_messages(client: Any, topic: str, count: int, *, partition: int = 0, schema: Any = None) -> list[Any]:
    """The first messages of a partition; a reader is given delayed ones at once. Fails if there are fewer."""
    options = {} if schema is None else {"schema": schema}
    reader = client.create_reader(partition_topic(topic, partition), pulsar.MessageId.earliest, **options)
    try:
        return [reader.read_next(READ_TIMEOUT_MS) for _ in range(count)]
    finally:
        reader.close()


def timers_by_place(client: Any, topic: str) -> dict[Position, str]:
    """The timer at each place of a topic's first partition."""
    reader = client.create_reader(partition_topic(topic, 0), pulsar.MessageId.earliest)
    found = {}
    while reader.has_message_available():
        message = reader.read_next(READ_TIMEOUT_MS)
        envelope = Envelope.read(message.properties())
        assert envelope is not None
        found[Position.of(message.message_id())] = envelope.timer_id
    reader.close()
    return found


def stored_entries(broker: Broker, topic: str, *, partition: int = 0) -> int:
    """Entries that were written to a partition; a batch is one."""
    with AdminClient(broker.admin_url) as admin:
        return admin.topics.internal_stats(partition_topic(topic, partition)).entries_added


def stored_entry(broker: Broker, topic: str, message_id: Any, *, partition: int = 0) -> StoredEntry:
    """One entry as the broker keeps it, its delay included."""
    with AdminClient(broker.admin_url) as admin:
        position = EntryPosition(message_id.ledger_id(), message_id.entry_id())
        return admin.topics.entry(partition_topic(topic, partition), position)


MAX_BYTES = 5 * 1024 * 1024
V1: dict[str, Any] = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
V2: dict[str, Any] = {**V1, "fields": [*V1["fields"], {"name": "count", "type": "int", "default": 3}]}
"""Two versions of a schema."""


def largest(producer: Any, own: Envelope, *, by_payload: bool = True, room: int = 0) -> bytes:
    """Send the largest message that a client takes, but for so much, by its payload or by a property; what fills it."""
    for less in range(room, room + 400, 2):
        filling = os.urandom((MAX_BYTES - less) // (1 if by_payload else 2))
        more = {} if by_payload else {"page": filling.hex()}
        try:
            producer.send(filling if by_payload else b"x", properties=own.properties() | more)
        except pulsar.MessageTooBig:
            continue
        return filling
    raise AssertionError("no size is taken")


def crypto_keys(folder: Path) -> Any:
    """A new pair to encrypt with, and to decrypt."""
    private, public = folder / "private.pem", folder / "public.pem"
    for arguments in (
        ["genrsa", "-out", str(private), "2048"],
        ["rsa", "-in", str(private), "-pubout", "-out", str(public)],
    ):
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)
    return pulsar.CryptoKeyReader(str(public), str(private))

"""Plain producers beside a shadow, on a real broker: what is stored twice is handled once."""

from __future__ import annotations

import datetime as dt
import sqlite3
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.broker.due_topic import SUBSCRIPTION, Handled, Sender, backlog, now_ms, running
from tests.broker.test_cancel import TIERED, plan_on, provisioned
from timewheel.client.positions import Position
from timewheel.consumers import DelayedConsumer, DelayedMessage, FixedBackoff, RetryPolicy
from timewheel.consumers.inbox import MemoryInbox, SqlInbox
from timewheel.core.envelope import NUDGE_PROPERTY
from timewheel.core.ids import native_id
from timewheel.core.plan import Plan
from timewheel.testing import Broker, eventually

WAIT_S = 60
DELAY_MS = 3_000
COUNT = 40


def beside_a_shadow(broker: Broker, topic: str, **changes: Any) -> Plan:
    options = {"cancel": None, "readers": "any", "relay": "service", "intake": True, **changes}
    return provisioned(broker, plan_on(topic, TIERED, **options))


class Stored:
    """Messages of a plain client, each known by its payload, by the ids that they have for a shadow."""

    def __init__(self, client: Any, plan: Plan, **options: Any) -> None:
        self.ids: dict[str, bytes] = {}
        self.parts: dict[str, int] = {}
        self._due_topic = plan.due_topic
        self._confirmed = threading.Semaphore(0)
        self._producer = client.create_producer(plan.due_topic, **{"batching_enabled": False, **options})

    def send(self, count: int, *, due_ms: int) -> None:
        for number in range(count):
            payload = b"%d" % number

            def stored(result: Any, message_id: Any, payload: bytes = payload) -> None:
                if result == pulsar.Result.Ok:
                    part = f"{self._due_topic}-partition-{message_id.partition()}"
                    timer_id = native_id(part, Position.of(message_id))
                    self.ids[timer_id] = payload
                    self.parts[timer_id] = message_id.partition()
                    self._confirmed.release()

            self._producer.send_async(payload, stored, deliver_at=due_ms, partition_key=f"k{number}")
        for _ in range(count):
            assert self._confirmed.acquire(timeout=WAIT_S)


@pytest.mark.parametrize("former_intervals_ms", [(), (60_000,)], ids=["one topic", "beside a former calendar"])
def test_what_is_stored_twice_is_handled_once_by_several_consumers(
    client: Any, pulsar_broker: Broker, topic: str, former_intervals_ms: tuple[int, ...]
) -> None:
    """As after an outage of the mover: copies are on their way, and the originals were not acknowledged in time."""
    plan = beside_a_shadow(pulsar_broker, topic, former_intervals_ms=former_intervals_ms)
    stored, copies = Stored(client, plan), Sender(client, plan)
    due_ms = now_ms() + DELAY_MS
    stored.send(COUNT, due_ms=due_ms)
    for timer_id, payload in stored.ids.items():
        copies.send(timer_id, due_ms, payload=payload, partition=stored.parts[timer_id])
    copies.flush()
    nudges_of = client.create_producer(plan.due_topic, batching_enabled=False)
    nudges_of.send(b"", properties={NUDGE_PROPERTY: "1"}, deliver_at=due_ms - 1_000)

    inbox, handled, payloads = MemoryInbox(), Handled(), Counter[bytes]()

    def handle(message: DelayedMessage) -> None:
        handled(message)
        payloads[message.data()] += 1

    first, second = (DelayedConsumer(client, plan, SUBSCRIPTION, inbox=inbox) for _ in range(2))
    with running(first, handle), running(second, handle):
        eventually(lambda: len(handled.times) == COUNT, WAIT_S)
        eventually(lambda: backlog(pulsar_broker, topic) == 0, WAIT_S)
    assert dict(handled.times) == dict.fromkeys(stored.ids, 1)
    assert set(payloads.values()) == {1}
    assert handled.early == 0
    counts = (first.counts, second.counts)
    assert sum(count.nudges for count in counts) == 1
    dropped = sum(count.already_handled + count.extra_copies + count.skipped for count in counts)
    assert dropped >= COUNT
    assert min(count.handed for count in counts) > 0, "both had some"


def test_a_single_consumer_needs_no_inbox_for_it(client: Any, pulsar_broker: Broker, topic: str) -> None:
    plan = beside_a_shadow(pulsar_broker, topic)
    stored, copies, handled = Stored(client, plan), Sender(client, plan), Handled()
    due_ms = now_ms() + DELAY_MS
    stored.send(COUNT, due_ms=due_ms)
    for timer_id in stored.ids:
        copies.send(timer_id, due_ms, partition=stored.parts[timer_id])
    with running(DelayedConsumer(client, plan, SUBSCRIPTION), handled):
        eventually(lambda: len(handled.times) == COUNT, WAIT_S)
        eventually(lambda: backlog(pulsar_broker, topic) == 0, WAIT_S)
    assert dict(handled.times) == dict.fromkeys(stored.ids, 1)


def test_a_plain_message_is_tried_again_under_its_id_and_each_of_a_batch_has_its_own(
    client: Any, pulsar_broker: Broker, topic: str
) -> None:
    plan = beside_a_shadow(pulsar_broker, topic, retry=True)
    stored = Stored(client, plan)
    stored.send(1, due_ms=now_ms() + 500)
    (timer_id,) = stored.ids
    attempts: list[tuple[str | None, int]] = []

    def handle(message: DelayedMessage) -> None:
        attempts.append((message.timer_id, message.attempt))
        if message.attempt == 0:
            raise ValueError("not yet")

    policy = RetryPolicy(backoff=FixedBackoff(dt.timedelta(seconds=1)))
    with running(DelayedConsumer(client, plan, SUBSCRIPTION, retry=policy), handle):
        eventually(lambda: len(attempts) == 2, WAIT_S)
        batching = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=200)
        for number in range(3):
            batching.send_async(b"%d" % number, lambda *_: None, partition_key="k")
        batching.flush()
        eventually(lambda: len(attempts) == 8, WAIT_S)
        eventually(lambda: backlog(pulsar_broker, topic) == 0, WAIT_S)
    assert attempts[:2] == [(timer_id, 0), (timer_id, 1)]
    of_batch = Counter(attempts[2:])
    assert set(of_batch.values()) == {1}
    assert sorted(str(name).rpartition(":")[2] for name, attempt in of_batch if attempt == 1) == ["0", "1", "2"]


def test_effects_of_plain_messages_happen_once_in_a_transaction(
    client: Any, pulsar_broker: Broker, topic: str, tmp_path: Path
) -> None:
    """Half of them in batches; each comes to a second consumer too, as after a crash before the acknowledgement."""
    plan, inbox = beside_a_shadow(pulsar_broker, topic), SqlInbox(topic, SUBSCRIPTION)
    Stored(client, plan).send(COUNT // 2, due_ms=now_ms() + 500)
    batching = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=200)
    for number in range(COUNT // 2):
        batching.send_async(b"batched %d" % number, lambda *_: None, partition_key=f"k{number}")
    batching.flush()

    def connected() -> Any:
        return closing(sqlite3.connect(tmp_path / "effects", timeout=WAIT_S))

    with connected() as database:
        inbox.create(database)
        database.execute("CREATE TABLE effects (payload TEXT)")
        database.commit()
    came, failures = Counter[bytes](), list[Exception]()

    def handle(message: DelayedMessage) -> None:
        came[message.data()] += 1
        try:
            with connected() as database, database:
                if inbox.once(database, message):
                    database.execute("INSERT INTO effects VALUES (?)", (message.data().decode(),))
        except Exception as error:
            failures.append(error)
            raise
        if came[message.data()] == 1:
            raise ConnectionResetError("before the acknowledgement")

    consumer = DelayedConsumer(client, plan, SUBSCRIPTION, negative_ack_redelivery_delay_ms=500)
    with running(consumer, handle):
        eventually(lambda: len(came) == COUNT and min(came.values()) > 1, WAIT_S)
        eventually(lambda: backlog(pulsar_broker, topic) == 0, WAIT_S)
    assert failures == []
    with connected() as database:
        effects = [payload for (payload,) in database.execute("SELECT payload FROM effects")]
    assert sorted(effects) == sorted(payload.decode() for payload in came)

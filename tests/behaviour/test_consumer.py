"""The consumer on a real broker, also beside a shadow: what it hands out, when, how often, and in which order."""

from __future__ import annotations

import datetime as dt
import itertools
import random
import sqlite3
import threading
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.behaviour.test_cancel import SCHEMES, TIERED, nothing_is_left, plan_on, provisioned
from tests.broker.conftest import Connect
from tests.broker.due_topic import SUBSCRIPTION, Events, Handled, Sender, backlog, make_topic, now_ms, running
from timewheel.client.positions import Position
from timewheel.consumers import (
    DelayedConsumer,
    DelayedMessage,
    FixedBackoff,
    ReceiveTimeout,
    RetryPolicy,
    SubscribeRefused,
)
from timewheel.consumers.inbox import MemoryInbox, SqlInbox
from timewheel.core.early_delivery import hold_bound_ms, out_of_order_ms
from timewheel.core.envelope import ID_PROPERTY, NUDGE_PROPERTY, Envelope
from timewheel.core.errors import ClientMisuse, UnsupportedAcknowledgement
from timewheel.core.ids import native_id
from timewheel.core.names import partition_for_key, partition_topic
from timewheel.core.plan import Cancel, Plan
from timewheel.producers import DelayedProducer
from timewheel.testing import Broker, eventually

SECOND = dt.timedelta(seconds=1)
ON_TIME_MS = 50  # a twentieth of the broker's tick


def native(topic: str, **changes: Any) -> Plan:
    return Plan(**{"due_topic": topic, "subscriptions": (SUBSCRIPTION,), **changes})


@pytest.fixture
def plan(pulsar_broker: Broker, topic: str) -> Plan:
    """A provisioned plan."""
    make_topic(pulsar_broker, topic, subscriptions=(SUBSCRIPTION,))
    return native(topic)


# ------------------------------------------------------------ due times


@pytest.mark.real
def test_what_the_broker_delivers_ahead_of_its_time_is_held_and_nothing_is_early(client: Any, plan: Plan) -> None:
    sender, handled = Sender(client, plan), Handled()
    start_ms = now_ms() + 3_000
    for number in range(600):
        # Every tenth out of order (broker-facts: starved-due-topic), as a producer sends one in 1,000: it comes 2.5
        # ticks before the others.
        sender.send(f"t{number}", start_ms + 7 * number, early_ms=0 if number % 10 else out_of_order_ms(plan))
    consumer = DelayedConsumer(client, plan, SUBSCRIPTION)
    with running(consumer, handled):
        eventually(lambda: len(handled.times) == 600, 60)
    assert handled.early == 0
    assert set(handled.times.values()) == {1}
    # How late a machine makes them is measured by benchmarks/lateness.py; one that is idle makes none late.
    assert min(handled.lateness_ms) <= ON_TIME_MS
    assert consumer.counts.early > 0  # the broker did deliver before the due time: it was held


def test_what_is_far_too_early_is_published_again_under_its_due_time_byte_for_byte(
    client: Any, pulsar_broker: Broker, topic: str
) -> None:
    make_topic(pulsar_broker, topic, partitions=3, subscriptions=(SUBSCRIPTION,))
    plan = native(topic, partitions=3, tick_ms=100)
    assert hold_bound_ms(plan) == 600
    sender, events = Sender(client, plan), Events()
    due_ms = now_ms() + 8_000
    sent = {
        "full": {"payload": "häuser ✓".encode(), "properties": {"who": "ünï", "": "empty name"}, "partition_key": "k"},
        "empty": {"payload": b"", "ordering_key": "o", "event_timestamp": 1_234},
        "null": {"payload": None, "partition_key": "gone"},
    }
    for number, (timer_id, options) in enumerate(sent.items()):
        sender.send(timer_id, due_ms, partition=number, undelayed=True, **options)  # type: ignore[arg-type]
    received = {}
    with DelayedConsumer(client, plan, SUBSCRIPTION, hooks=(events,)) as consumer:
        for _ in sent:
            message = consumer.receive(10 * SECOND)
            assert now_ms() >= due_ms
            received[message.timer_id] = message
            consumer.acknowledge(message)
        counts = consumer.counts
    assert counts.republished >= 3
    told = events.named("timer_far_too_early")
    assert told[0].fields["count"] == 1
    assert len(told) <= 2, "at once, and then together: not per message"
    assert all(message.hops >= 1 for message in received.values())
    full, empty, null = received["full"], received["empty"], received["null"]
    assert full.data().decode() == "häuser ✓"
    assert full.properties() == {"who": "ünï", "": "empty name"}
    assert (full.partition_key(), full.ordering_key(), full.event_timestamp()) == ("k", "", 0)
    assert (empty.data(), empty.has_null_value(), empty.partition_key()) == (b"", False, "")
    assert (empty.ordering_key(), empty.event_timestamp()) == ("o", 1_234)
    assert (null.has_null_value(), null.partition_key()) == (True, "gone")
    # Each stayed on its partition.
    assert [received[timer_id].topic_name() for timer_id in sent] == [partition_topic(topic, i) for i in range(3)]
    eventually(lambda: backlog(pulsar_broker, topic) == 0)


def test_a_republication_keeps_the_schema_version(client: Any, plan: Plan) -> None:
    class One(pulsar.schema.Record):  # type: ignore[misc]
        name = pulsar.schema.String()

    class Two(pulsar.schema.Record):  # type: ignore[misc]
        name = pulsar.schema.String()
        age = pulsar.schema.Integer(required_default=True)  # compatible with records that have none

    Two.__name__ = One.__name__
    fast = native(plan.due_topic, tick_ms=100)
    due_ms = now_ms() + 600_000
    raw = partition_topic(plan.due_topic, 0)
    for number, (record, definition) in enumerate([(One(name="old"), One), (Two(name="new", age=9), Two)]):
        producer = client.create_producer(raw, schema=pulsar.schema.AvroSchema(definition))
        producer.send(record, properties=Envelope(f"t{number}", due_ms, now_ms()).properties())
        producer.close()
    with DelayedConsumer(client, fast, SUBSCRIPTION, schema=pulsar.schema.AvroSchema(Two)) as consumer:

        def republished() -> bool:
            with pytest.raises(ReceiveTimeout):
                consumer.receive(SECOND)
            return consumer.counts.republished >= 2

        eventually(republished, 60)
    reader = client.create_reader(raw, pulsar.MessageId.earliest, schema=pulsar.schema.AvroSchema(Two))
    copies = [reader.read_next(10_000) for _ in range(4)][2:]
    values = {copy.properties()[ID_PROPERTY]: (copy.value().name, copy.value().age) for copy in copies}
    assert values == {"t0": ("old", None), "t1": ("new", 9)}


# ------------------------------------------------------------ subscriptions


def test_every_subscription_has_each_timer_and_a_failure_in_one_is_not_seen_by_the_other(
    client: Any, pulsar_broker: Broker, topic: str
) -> None:
    make_topic(pulsar_broker, topic, subscriptions=("billing", "audit"))
    plan = native(topic, subscriptions=("billing", "audit"))
    sender = Sender(client, plan)
    sender.send("a", now_ms())
    audit = Handled()
    failures: list[str | None] = []

    def fails_once(message: DelayedMessage) -> None:
        failures.append(message.timer_id)
        if len(failures) == 1:
            raise RuntimeError("not yet")

    billing = DelayedConsumer(client, plan, "billing", negative_ack_redelivery_delay_ms=200, hooks=())
    with running(billing, fails_once), running(DelayedConsumer(client, plan, "audit"), audit):
        eventually(lambda: len(failures) == 2)
        eventually(lambda: backlog(pulsar_broker, topic, "billing") == 0)
    assert audit.times == {"a": 1}


def test_a_subscription_that_did_not_exist_begins_at_the_earliest(
    client: Any, pulsar_broker: Broker, topic: str
) -> None:
    make_topic(pulsar_broker, topic, subscriptions=("audit",))  # keeps what nobody else has subscribed to yet
    plan = native(topic, subscriptions=("audit", "billing"))
    sender, handled = Sender(client, plan), Handled()
    for number in range(5):
        sender.send(f"t{number}", now_ms())
    sender.flush()
    with running(DelayedConsumer(client, plan, "billing"), handled):
        eventually(lambda: len(handled.times) == 5)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("unknown", {}, "the plan's are billing"),
    (SUBSCRIPTION, {"consumer_type": pulsar.ConsumerType.Exclusive}, "delivers every timer at once"),
    (SUBSCRIPTION, {"consumer_type": pulsar.ConsumerType.Failover}, "delivers every timer at once"),
    (SUBSCRIPTION, {"initial_position": pulsar.InitialPosition.Latest}, "always Earliest"),
    (SUBSCRIPTION, {"message_listener": print}, "use run"),
    (SUBSCRIPTION, {"receiver_queue_size": 0}, "without a queue"),
    (SUBSCRIPTION, {"unacked_messages_timeout_ms": 6_000}, "over 6000 ms"),
    (SUBSCRIPTION, {"max_held": 0}, "a whole number from 1"),
    (SUBSCRIPTION, {"handled_window": 0}, "a whole number from 1"),
    *((SUBSCRIPTION, {"max_rate": rate}, "max_rate") for rate in (0, -1, float("nan"), float("inf"))),
]


def test_arguments_that_cannot_be_honoured_are_refused(client: Any, topic: str) -> None:
    for subscription, options, why in REFUSED:
        with pytest.raises(SubscribeRefused, match=why) as refused:
            DelayedConsumer(client, native(topic), subscription, **options)
        assert [refused.value.argument] == [*(options or ["subscription"])]


@pytest.mark.real
def test_key_shared_keeps_a_key_with_one_consumer(client: Any, pulsar_broker: Broker, topic: str) -> None:
    make_topic(pulsar_broker, topic, partitions=2, subscriptions=(SUBSCRIPTION,))
    plan = native(topic, partitions=2)
    kind = pulsar.ConsumerType.KeyShared
    handlers = [Handled(), Handled()]
    consumers = [DelayedConsumer(client, plan, SUBSCRIPTION, consumer_type=kind) for _ in handlers]
    with running(consumers[0], handlers[0]), running(consumers[1], handlers[1]):
        sender = Sender(client, plan)
        due_ms = now_ms() + 1_500
        for number in range(200):
            key = f"key-{number % 20}"
            sender.send(f"t{number}", due_ms, partition=partition_for_key(key, 2), partition_key=key)
        eventually(lambda: sum(len(handled.times) for handled in handlers) == 200, 60)
    keys = [set(handled.threads) for handled in handlers]
    assert keys[0] | keys[1] == {f"key-{number}" for number in range(20)}
    assert keys[0] & keys[1] == set()
    assert all(keys)
    assert all(handled.early == 0 for handled in handlers)


# ------------------------------------------------------------ acknowledging, failing


def test_cumulative_acknowledgement_is_refused_with_its_reason(client: Any, plan: Plan) -> None:
    Sender(client, plan).send("a", now_ms())
    with DelayedConsumer(client, plan, SUBSCRIPTION) as consumer:
        message = consumer.receive(5 * SECOND)
        with pytest.raises(UnsupportedAcknowledgement, match="not yet due"):
            consumer.acknowledge_cumulative(message)
        consumer.acknowledge(message.message_id())  # pulsar-client takes an id as well
    assert consumer.counts.done == 1


def test_a_negatively_acknowledged_timer_comes_again_after_its_delay_and_no_other(client: Any, plan: Plan) -> None:
    sender = Sender(client, plan)
    sender.send("bad", now_ms())
    sender.send("good", now_ms())
    with DelayedConsumer(client, plan, SUBSCRIPTION, negative_ack_redelivery_delay_ms=1_000) as consumer:
        first, second = consumer.receive(5 * SECOND), consumer.receive(5 * SECOND)
        assert {first.timer_id, second.timer_id} == {"bad", "good"}
        bad, good = (first, second) if first.timer_id == "bad" else (second, first)
        failed_ms = now_ms()
        consumer.negative_acknowledge(bad)
        consumer.acknowledge(good)
        again = consumer.receive(5 * SECOND)
        assert again.timer_id == "bad"
        assert now_ms() - failed_ms >= 900
        consumer.acknowledge(again)
        with pytest.raises(ReceiveTimeout):
            consumer.receive(1.5 * SECOND)


def test_a_handler_that_exits_ends_run(client: Any, plan: Plan) -> None:
    Sender(client, plan).send("a", now_ms())

    def leave(_: DelayedMessage) -> None:
        raise SystemExit(3)

    with DelayedConsumer(client, plan, SUBSCRIPTION, hooks=()) as consumer, pytest.raises(SystemExit, match="3"):
        consumer.run(leave, workers=1)


# ------------------------------------------------------------ run and order


def test_iteration_and_receive_time_out_as_pulsar_and_as_python_do(client: Any, plan: Plan) -> None:
    with DelayedConsumer(client, plan, SUBSCRIPTION) as consumer:
        begun_ms = now_ms()
        with pytest.raises(pulsar.Timeout):
            consumer.receive(timeout_millis=300)
        with pytest.raises(TimeoutError):
            consumer.receive(dt.timedelta(0))
        assert now_ms() - begun_ms >= 300
        with pytest.raises(TypeError, match="not both"):
            consumer.receive(SECOND, timeout_millis=1)
        Sender(client, plan).send("a", now_ms() + 500)
        for message in consumer:
            assert message.timer_id == "a"
            consumer.acknowledge(message)
            consumer.stop()
        with pytest.raises(ClientMisuse, match="stopped"):
            consumer.receive(SECOND)
    with pytest.raises(ClientMisuse, match="closed"):
        consumer.start()


@pytest.mark.real
def test_a_herd_is_handed_out_at_the_pace_that_was_asked_for(client: Any, plan: Plan, pulsar_broker: Broker) -> None:
    sender, handled = Sender(client, plan), Handled()
    for number in range(400):
        sender.send(f"t{number}", now_ms())
    sender.flush()
    consumer = DelayedConsumer(client, plan, SUBSCRIPTION, max_rate=200)
    with running(consumer, handled):
        began_ms = now_ms()
        eventually(lambda: len(handled.times) == 400, 60)
        took_ms = now_ms() - began_ms
    assert took_ms > 1_900, "two seconds' worth"
    assert set(handled.times.values()) == {1}
    assert backlog(pulsar_broker, plan.due_topic) == 0


# ------------------------------------------------------------ reloads


def test_what_is_held_or_with_a_handler_during_an_unload_is_handed_out_once(
    client: Any, plan: Plan, pulsar_broker: Broker
) -> None:
    sender, handled = Sender(client, plan), Handled()
    due_ms = now_ms() + 10_000
    for number in range(200):
        sender.send(f"held{number}", due_ms, undelayed=True)
    sender.send("with handler", now_ms())
    gate = threading.Event()

    def handler(message: DelayedMessage) -> None:
        if message.timer_id == "with handler":
            assert gate.wait(20)
        handled(message)

    consumer = DelayedConsumer(client, plan, SUBSCRIPTION)
    with running(consumer, handler):
        eventually(lambda: consumer.counts.received == 201)
        pulsar_broker.unload(plan.due_topic)
        eventually(lambda: consumer.counts.received == 402, 60)
        assert (consumer.counts.let_go, consumer.counts.redelivered) == (200, 1)
        assert consumer.counts.handed == 1
        gate.set()
        eventually(lambda: len(handled.times) == 201, 60)
        eventually(lambda: backlog(pulsar_broker, plan.due_topic) == 0)
    assert set(handled.times.values()) == {1}
    assert handled.early == 0


def test_a_fork_is_noticed(client: Any, plan: Plan) -> None:
    consumer = DelayedConsumer(client, plan, SUBSCRIPTION)
    consumer._process._made_at -= 1  # what the child of a fork would see; a real fork under a live C++ client may hang
    with pytest.raises(ClientMisuse, match="fork"):
        consumer.receive(SECOND)


TIMERS = 300
WAIT_S = 60


@pytest.mark.real
@pytest.mark.parametrize(
    ("cancel", "sorts"),
    [
        pytest.param(None, True, id="plain"),
        pytest.param(Cancel(skew_ms=0), True, id="with cancels"),
        # Not with cancels: what one question clears is in order anyway.
        pytest.param(None, False, id="control with an ack time-out"),
    ],
)
def test_what_was_due_first_is_handled_first(
    connect: Connect, pulsar_broker: Broker, topic: str, cancel: Cancel | None, sorts: bool
) -> None:
    client: Any = connect(pulsar_broker)
    plan = provisioned(pulsar_broker, plan_on(topic, SCHEMES["native"], cancel=cancel))
    rng, begin_ms = random.Random(7), now_ms()
    with DelayedProducer(client, plan) as producer:
        for _ in range(TIMERS):
            producer.send_async(b"x", lambda *_: None, deliver_at=begin_ms + rng.randrange(3_000))
        producer.flush()
    eventually(lambda: now_ms() > begin_ms + 4_500)
    came: list[dt.datetime] = []

    def handle(message: DelayedMessage) -> None:
        assert message.due_at is not None
        came.append(message.due_at)

    options: dict[str, Any] = {} if sorts else {"unacked_messages_timeout_ms": 60_000}
    with running(DelayedConsumer(client, plan, SUBSCRIPTION, **options), handle, workers=1):
        eventually(lambda: nothing_is_left(pulsar_broker, plan), WAIT_S)
    assert len(came) == TIMERS
    # On a busy machine the client may pause while it hands over a backlog, and what has come until then goes first.
    descents = sum(later < earlier for earlier, later in itertools.pairwise(came))
    assert descents <= 25 if sorts else descents > 50


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


@pytest.mark.parametrize(
    ("former_intervals_ms", "count"),
    [((), 2), ((60_000,), 2), ((), 1)],
    ids=["one topic", "beside a former calendar", "a single consumer, which needs no inbox"],
)
def test_what_is_stored_twice_is_handled_once(
    client: Any, pulsar_broker: Broker, topic: str, former_intervals_ms: tuple[int, ...], count: int
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

    inbox, handled, payloads = MemoryInbox() if count > 1 else None, Handled(), Counter[bytes]()

    def handle(message: DelayedMessage) -> None:
        handled(message)
        payloads[message.data()] += 1

    consumers = [DelayedConsumer(client, plan, SUBSCRIPTION, inbox=inbox) for _ in range(count)]
    with ExitStack() as stack:
        for consumer in consumers:
            stack.enter_context(running(consumer, handle))
        eventually(lambda: len(handled.times) == COUNT, WAIT_S)
        eventually(lambda: backlog(pulsar_broker, topic) == 0, WAIT_S)
    assert dict(handled.times) == dict.fromkeys(stored.ids, 1)
    assert set(payloads.values()) == {1}
    assert handled.early == 0
    counts = [consumer.counts for consumer in consumers]
    assert sum(each.nudges for each in counts) == 1
    assert sum(each.already_handled + each.extra_copies + each.skipped for each in counts) >= COUNT, "dropped"
    assert min(each.handed for each in counts) > 0, "each had some"


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

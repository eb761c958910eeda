"""What a send puts into the broker's topics, and where."""

from __future__ import annotations

import datetime as dt
import threading
from typing import TYPE_CHECKING, Any

import pulsar.schema
import pytest

from tests.broker.due_topic import (
    DAY_MS,
    HOUR_MS,
    TIER_1D,
    make_plan,
    now_ms,
    stored_entries,
    stored_entry,
    stored_messages,
)
from timewheel.broker.admin.client import AdminClient
from timewheel.core import Envelope, Native, Plan, Tiered
from timewheel.core.early_delivery import OUT_OF_ORDER_EVERY
from timewheel.core.errors import ClientMisuse, PayloadTooLarge, SendFailed, TimewheelError, TopologyError
from timewheel.core.names import partition_topic
from timewheel.producers import DelayedProducer, Timer
from timewheel.producers.prepare import METADATA_ROOM_BYTES
from timewheel.testing import eventually

if TYPE_CHECKING:
    from timewheel.hooks import Event
    from timewheel.testing import Broker

EVERY_BYTE = bytes(range(256))
PAST_MS = 1_767_225_600_000  # the beginning of 2026
DELAYS = {"due": dt.timedelta(minutes=30), "tier": dt.timedelta(days=17)}


@pytest.fixture
def plan(pulsar_broker: Broker, topic: str) -> Plan:
    return make_plan(pulsar_broker, topic)


def holding_topic(topic: str, where: str) -> str:
    return topic if where == "due" else topic + TIER_1D


class Outcomes:
    """Callback that collects what it is told."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []
        self.errors: list[TimewheelError] = []
        self._reported = threading.Semaphore(0)

    def __call__(self, error: TimewheelError | None, timer: Timer) -> None:
        if error is None:
            self.timers.append(timer)
        else:
            self.errors.append(error)
        self._reported.release()

    def wait_for(self, count: int) -> None:
        for _ in range(count):
            assert self._reported.acquire(timeout=60), f"{len(self.timers)} timers, errors {self.errors}"


@pytest.mark.parametrize("where", ["due", "tier"])
def test_all_arrives_as_it_was_sent(pulsar_broker: Broker, pulsar_client: Any, topic: str, where: str) -> None:
    plan, payloads = make_plan(pulsar_broker, topic), (EVERY_BYTE, b"", None)
    own = {"plain": "x", "ünïcode": "⏰", "empty": ""}
    with DelayedProducer(pulsar_client, plan) as producer:
        timers = [
            producer.send(
                payload,
                deliver_after=DELAYS[where],
                timer_id="Überweisung-⏰",
                properties=own,
                partition_key="schlüssel-🔑",
                ordering_key="örder-🔑",
                event_timestamp=1_700_000_000_123,
            )
            for payload in payloads
        ]

    messages = stored_messages(pulsar_client, holding_topic(topic, where), 3)
    for payload, timer, message in zip(payloads, timers, messages, strict=True):
        assert message.has_null_value() is (payload is None)
        assert message.data() == (payload or b"")
        assert (message.partition_key(), message.ordering_key()) == ("schlüssel-🔑", "örder-🔑")
        assert message.event_timestamp() == 1_700_000_000_123
        properties = message.properties()
        envelope = Envelope.read(properties)
        assert envelope is not None
        assert (envelope.timer_id, envelope.due_ms) == ("Überweisung-⏰", timer.due_ms)
        assert {name: value for name, value in properties.items() if not name.startswith("tw-")} == own
        found, told = message.message_id(), timer.message_id
        assert (found.ledger_id(), found.entry_id()) == (told.ledger_id(), told.entry_id())


def test_a_send_without_keys_and_times_has_none_and_one_that_is_past_due_keeps_its_due_time(
    pulsar_broker: Broker, pulsar_client: Any, topic: str, plan: Plan
) -> None:
    before_ms = now_ms()
    with DelayedProducer(pulsar_client, plan) as producer:
        timer = producer.send(b"x", partition_key="", ordering_key="", event_timestamp=0)
        past = producer.send(b"x", deliver_at=PAST_MS)
    entry = stored_entry(pulsar_broker, topic, timer.message_id)
    assert (entry.partition_key, entry.ordering_key, entry.event_at_ms, entry.deliver_at_ms) == (None, None, None, None)
    assert before_ms <= timer.due_ms <= now_ms(), "neither deliver_at nor deliver_after: due now"
    assert timer.due_at == dt.datetime.fromtimestamp(timer.due_ms / 1000, dt.UTC)
    entry = stored_entry(pulsar_broker, topic, past.message_id)
    assert (past.due_ms, entry.deliver_at_ms) == (PAST_MS, None), "delivered now"
    assert entry.properties["tw-timer"].split()[1] == str(PAST_MS)


def test_foreign_readers_get_the_due_time_itself(pulsar_broker: Broker, pulsar_client: Any, topic: str) -> None:
    plan = make_plan(pulsar_broker, topic, Native(), readers="any")
    with DelayedProducer(pulsar_client, plan) as producer:
        timer = producer.send(b"x", deliver_after=dt.timedelta(hours=1))
    assert stored_entry(pulsar_broker, topic, timer.message_id).deliver_at_ms == timer.due_ms


def test_every_thousandth_delayed_message_keeps_the_broker_reading(
    pulsar_broker: Broker, pulsar_client: Any, topic: str
) -> None:
    plan = make_plan(pulsar_broker, topic, Native())
    outcomes = Outcomes()
    due_ms = now_ms() + HOUR_MS
    with DelayedProducer(pulsar_client, plan) as producer:
        for _ in range(2 * OUT_OF_ORDER_EVERY + 1):
            producer.send_async(b"x", outcomes, deliver_at=due_ms)
    assert outcomes.errors == []
    ids = sorted((timer.message_id for timer in outcomes.timers), key=lambda found: found.entry_id())
    inspected = (0, 1, OUT_OF_ORDER_EVERY - 1, OUT_OF_ORDER_EVERY, OUT_OF_ORDER_EVERY + 1, 2 * OUT_OF_ORDER_EVERY)
    asked = [stored_entry(pulsar_broker, topic, ids[index]).deliver_at_ms for index in inspected]
    assert asked == [due_ms - early_ms for early_ms in (4_000, 1_500, 1_500, 4_000, 1_500, 4_000)]


@pytest.mark.real
def test_batched_where_a_relay_holds_and_unbatched_where_the_broker_delays(
    pulsar_broker: Broker, pulsar_client: Any, topic: str, plan: Plan
) -> None:
    outcomes = Outcomes()
    with DelayedProducer(pulsar_client, plan, batching_max_publish_delay_ms=50) as producer:
        for where in ("due", "tier"):
            for _ in range(500):
                producer.send_async(b"x" * 100, outcomes, deliver_after=DELAYS[where])
    assert (len(outcomes.timers), outcomes.errors) == (1_000, [])
    assert stored_entries(pulsar_broker, topic) == 500
    held_entries = stored_entries(pulsar_broker, topic + TIER_1D)
    assert 1 <= held_entries <= 100
    with AdminClient(pulsar_broker.admin_url) as admin:
        held = admin.topics.stats(partition_topic(topic + TIER_1D, 0))
    # 500 envelopes and payloads of 100 equal bytes: compressed to well under what the payloads alone take.
    assert held.published == 500
    assert held.storage_bytes < 500 * 100


def test_a_tier_that_the_broker_holds_is_delayed_and_unbatched(
    pulsar_broker: Broker, pulsar_client: Any, topic: str
) -> None:
    scheme = Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS, DAY_MS), hold="broker")
    plan = make_plan(pulsar_broker, topic, scheme)
    outcomes = Outcomes()
    with DelayedProducer(pulsar_client, plan) as producer:
        for _ in range(20):
            producer.send_async(b"x", outcomes, deliver_after=dt.timedelta(days=17))
    delayed = topic + ".tw.delay-1d"
    assert stored_entries(pulsar_broker, delayed) == 20
    [first, *_] = stored_messages(pulsar_client, delayed, 20)
    entry = stored_entry(pulsar_broker, delayed, first.message_id())
    envelope = Envelope.read(first.properties())
    assert envelope is not None
    assert entry.deliver_at_ms == envelope.entered_ms + DAY_MS


class Order(pulsar.schema.Record):  # type: ignore[misc]  # pulsar ships no types
    number = pulsar.schema.Integer()
    customer = pulsar.schema.String()


@pytest.mark.parametrize("kind", ["AvroSchema", "JsonSchema"])
@pytest.mark.parametrize("where", ["due", "tier"])
def test_the_users_schema_is_registered_where_a_timer_waits(
    pulsar_client: Any, topic: str, where: str, kind: str, plan: Plan
) -> None:
    schema = getattr(pulsar.schema, kind)(Order)
    with DelayedProducer(pulsar_client, plan, schema=schema) as producer:
        producer.send(Order(number=42, customer="Zoë"), deliver_after=DELAYS[where])
        with pytest.raises(TypeError, match="Invalid record"):
            producer.send(b"not an order", deliver_after=DELAYS[where])

    [message] = stored_messages(pulsar_client, holding_topic(topic, where), 1, schema=schema)
    order = message.value()
    assert (order.number, order.customer) == (42, "Zoë")
    assert message.schema_version() == b"\0" * 8 or message.schema_version() == "\0" * 8


def test_a_schema_that_the_topic_refuses_is_a_definite_failure(pulsar_client: Any, plan: Plan) -> None:
    with DelayedProducer(pulsar_client, plan, schema=pulsar.schema.JsonSchema(Order)) as producer:
        producer.send(Order(number=1, customer="a"))
    with (
        DelayedProducer(pulsar_client, plan, schema=pulsar.schema.StringSchema()) as producer,
        pytest.raises(SendFailed, match="IncompatibleSchema") as caught,
    ):
        producer.send("text", timer_id="sub-42")
    assert caught.value.timer_id == "sub-42"
    assert isinstance(caught.value, ConnectionError)


def test_keys_go_where_java_sends_them_in_due_and_holding_topics_alike(
    pulsar_broker: Broker, pulsar_client: Any, topic: str
) -> None:
    """Other keys: tests/producers/test_prepare.py."""
    plan = make_plan(pulsar_broker, topic, partitions=3)
    partition = (-891_598_549 & 0x7FFFFFFF) % 3  # the key's hash in Java
    with DelayedProducer(pulsar_client, plan) as producer:
        producer.send(b"near", deliver_after=DELAYS["due"], partition_key="sub-42")
        producer.send(b"far", deliver_after=DELAYS["tier"], partition_key="sub-42")
    assert [m.data() for m in stored_messages(pulsar_client, topic, 1, partition=partition)] == [b"near"]
    assert [m.data() for m in stored_messages(pulsar_client, topic + TIER_1D, 1, partition=partition)] == [b"far"]


def test_messages_without_a_key_take_turns(pulsar_broker: Broker, pulsar_client: Any, topic: str) -> None:
    plan = make_plan(pulsar_broker, topic, partitions=3)
    with DelayedProducer(pulsar_client, plan) as producer:
        for number in range(6):
            producer.send(str(number).encode(), deliver_after=DELAYS["due"])
    for partition in range(3):
        found = [m.data() for m in stored_messages(pulsar_client, topic, 2, partition=partition)]
        assert found == [str(partition).encode(), str(partition + 3).encode()]


def test_the_largest_payload_that_is_taken_is_stored(pulsar_client: Any, topic: str, plan: Plan) -> None:
    limit_bytes = 5 * 1024 * 1024
    properties = {"p": "ü" * 10_000}
    with DelayedProducer(pulsar_client, plan) as producer:
        for where in ("due", "tier"):
            with pytest.raises(PayloadTooLarge) as caught:
                producer.send(bytes(limit_bytes), properties=properties, deliver_after=DELAYS[where])
            over_bytes = caught.value.size_bytes - limit_bytes
            largest = bytes(limit_bytes - over_bytes)
            assert len(largest) < limit_bytes - METADATA_ROOM_BYTES - 20_000
            producer.send(largest, properties=properties, deliver_after=DELAYS[where])
            [message] = stored_messages(pulsar_client, holding_topic(topic, where), 1)
            assert message.data() == largest


def test_a_lower_limit_of_the_broker_is_payload_too_large_as_well(pulsar_client: Any, plan: Plan) -> None:
    with DelayedProducer(pulsar_client, plan, max_message_bytes=100 * 1024 * 1024) as producer:
        with pytest.raises(PayloadTooLarge, match="maxMessageSize") as caught:
            producer.send(bytes(6 * 1024 * 1024))
        assert caught.value.limit_bytes is None
        producer.send(b"the producer goes on")


def test_a_topic_with_fewer_partitions_than_the_plan_is_refused(
    pulsar_broker: Broker, pulsar_client: Any, topic: str
) -> None:
    make_plan(pulsar_broker, topic, partitions=1)
    plan = Plan(due_topic=topic, subscriptions=("billing",), partitions=2)
    with DelayedProducer(pulsar_client, plan) as producer, pytest.raises(TopologyError, match="1 partition,"):
        producer.send(b"x")


def test_many_threads_share_a_producer(pulsar_broker: Broker, pulsar_client: Any, topic: str) -> None:
    plan = make_plan(pulsar_broker, topic, partitions=2)
    outcomes = Outcomes()
    with DelayedProducer(pulsar_client, plan, max_pending=50) as producer:

        def work(name: int) -> None:
            for number in range(200):
                producer.send_async(
                    b"x", outcomes, timer_id=f"{name}-{number}", deliver_after=DELAYS["tier" if number % 2 else "due"]
                )

        threads = [threading.Thread(target=work, args=(name,)) for name in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush()
        assert len(outcomes.timers) == 1_200, "after a flush every callback has run"
    assert len({timer.id for timer in outcomes.timers}) == 1_200


def test_a_callback_that_raises_is_reported_and_stops_nothing(pulsar_client: Any, plan: Plan) -> None:
    events: list[Event] = []
    outcomes = Outcomes()

    def broken(_: TimewheelError | None, timer: Timer) -> None:
        raise ZeroDivisionError(timer.id)

    with DelayedProducer(pulsar_client, plan, hooks=(events.append,)) as producer:
        producer.send_async(b"x", broken, timer_id="boom")
        producer.send_async(b"x", outcomes, timer_id="fine")
        outcomes.wait_for(1)
        assert producer.send(b"x", timer_id="after").id == "after"
    assert [timer.id for timer in outcomes.timers] == ["fine"]
    assert [(event.name, event.level, event.fields["timer_id"]) for event in events] == [
        ("send_callback_failed", "error", "boom")
    ]


def test_a_callback_may_send_and_may_not_wait_for_itself(pulsar_client: Any, plan: Plan) -> None:
    outcomes = Outcomes()
    refused: list[ClientMisuse] = []
    with DelayedProducer(pulsar_client, plan, max_pending=1) as producer:

        def chain(_: TimewheelError | None, __: Timer) -> None:
            for waits in (lambda: producer.send(b"x"), producer.flush, producer.close):
                with pytest.raises(ClientMisuse) as caught:
                    waits()
                refused.append(caught.value)
            # Two sends where one may be pending: the thread that makes room never waits for it.
            producer.send_async(b"x", outcomes)
            producer.send_async(b"x", outcomes)

        producer.send_async(b"x", chain)
        outcomes.wait_for(2)
    assert len(refused) == 3


def test_after_close_nothing_is_sent(pulsar_broker: Broker, pulsar_client: Any, topic: str, plan: Plan) -> None:
    producer = DelayedProducer(pulsar_client, plan)
    producer.send(b"x")
    assert producer.close() == 0
    assert producer.close() == 0
    for send in (lambda: producer.send(b"x"), lambda: producer.send_async(b"x", Outcomes())):
        with pytest.raises(ClientMisuse, match="closed"):
            send()
    assert stored_entries(pulsar_broker, topic) == 1


def connected_producers(broker: Broker, topics: list[str]) -> int:
    with AdminClient(broker.admin_url) as admin:
        return sum(admin.topics.stats(name, clients=True).publishers or 0 for name in topics)


def test_a_full_pool_closes_the_least_recently_used_and_loses_nothing(
    pulsar_broker: Broker, pulsar_client: Any, topic: str
) -> None:
    plan = make_plan(pulsar_broker, topic, partitions=6)
    partitions = [partition_topic(topic, partition) for partition in range(6)]
    outcomes = Outcomes()
    with DelayedProducer(pulsar_client, plan, max_producers=2) as producer:
        for _ in range(30):
            producer.send_async(b"x", outcomes, deliver_after=DELAYS["due"])
        producer.flush()
        assert connected_producers(pulsar_broker, partitions) <= 2
    assert (len(outcomes.timers), outcomes.errors) == (30, [])
    assert sum(stored_entries(pulsar_broker, topic, partition=partition) for partition in range(6)) == 30
    assert eventually(lambda: connected_producers(pulsar_broker, partitions) == 0)


def test_idle_producers_are_closed_and_opened_again(pulsar_broker: Broker, pulsar_client: Any, topic: str) -> None:
    plan = make_plan(pulsar_broker, topic, partitions=2)
    partitions = [partition_topic(topic, partition) for partition in range(2)]
    with DelayedProducer(pulsar_client, plan) as producer:
        producer.send(b"x")
        producer.send(b"x")
        assert connected_producers(pulsar_broker, partitions) == 2
        pool = producer._pool
        pool._idle_rounds = 1
        pool.inspect()
        assert len(pool) == 2, "used since the round before"
        producer.send(b"x")
        pool.inspect()
        assert len(pool) == 1, "only the one that was not used in between"
        pool.inspect()
        assert eventually(lambda: connected_producers(pulsar_broker, partitions) == 0)
        producer.send(b"x")
        producer.send(b"x")
    assert sum(stored_entries(pulsar_broker, topic, partition=partition) for partition in range(2)) == 5


def test_a_producer_that_was_closed_under_us_is_opened_again(pulsar_client: Any, topic: str, plan: Plan) -> None:
    with DelayedProducer(pulsar_client, plan) as producer:
        producer.send(b"x")
        producer._pool._open[topic, 0].producer.close()
        assert producer.send(b"y", timer_id="again").message_id is not None
    assert [m.data() for m in stored_messages(pulsar_client, topic, 2)] == [b"x", b"y"]


def test_a_closed_client_is_a_definite_failure(pulsar_broker: Broker, plan: Plan) -> None:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(pulsar_broker.service_url, logger=quiet)
    with DelayedProducer(client, plan) as producer:
        client.close()
        with pytest.raises(SendFailed, match="AlreadyClosed"):
            producer.send(b"x")


def test_sends_go_on_over_an_unload(pulsar_broker: Broker, pulsar_client: Any, topic: str, plan: Plan) -> None:
    outcomes = Outcomes()
    with DelayedProducer(pulsar_client, plan) as producer:
        for number in range(600):
            if number == 300:
                pulsar_broker.unload(topic)
                pulsar_broker.unload(topic + TIER_1D)
            producer.send_async(
                b"x", outcomes, timer_id=str(number), deliver_after=DELAYS["tier" if number % 2 else "due"]
            )
    assert outcomes.errors == []
    assert {timer.id for timer in outcomes.timers} == {str(number) for number in range(600)}
    stored = stored_messages(pulsar_client, topic, 300) + stored_messages(pulsar_client, topic + TIER_1D, 300)
    assert {message.properties()["tw-id"] for message in stored} == {str(number) for number in range(600)}

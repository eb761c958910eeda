"""Whatever a plain producer sends: what can be moved comes as it was sent, what cannot stays and comes all the same."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest
from pulsar.schema import AvroSchema

from tests.broker.due_topic import now_ms
from tests.broker.producing import crypto_keys
from tests.broker.relay_stage import BUSINESS
from tests.broker.shadow_stage import PlainConsumer, ShadowStage, moved, shadow_plan, staged
from timewheel.broker.admin.stats import SHADOW_ACKER
from timewheel.shadow.overview_reading import overview_of
from timewheel.shadow.shadow import Shadow
from timewheel.testing import Broker, eventually
from timewheel.testing.admin_calls import topic_path

AHEAD_MS = 6_000
"""Above the longest stay in the due topic (2.0 s) and the guard: it is moved."""
RECEIVE_MS = 20_000


def decisions(shadow: Shadow) -> dict[str, int]:
    (mover,) = shadow.shadow_status().movers
    return mover.decisions


def consumer_of(on: ShadowStage, **options: Any) -> Any:
    return on.client.subscribe(
        on.plan.due_topic,
        BUSINESS,
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        **options,
    )


COMPRESSIONS = {
    "none": pulsar.CompressionType.NONE,
    "lz4": pulsar.CompressionType.LZ4,
    "zlib": pulsar.CompressionType.ZLib,
    "zstd": pulsar.CompressionType.ZSTD,
    "snappy": pulsar.CompressionType.SNAPPY,
}
MESSAGES: dict[str, dict[str, Any]] = {
    "plain": {"content": b"renew"},
    "empty": {"content": b""},
    "null": {"content": None},
    "large": {"content": bytes(range(256)) * 4_000},
    "key": {"content": b"x", "partition_key": "Zürich"},
    "ordering key": {"content": b"x", "partition_key": "k", "ordering_key": "o"},
    "properties": {"content": b"x", "properties": {"größe": "日本", "empty": ""}},
    "event time": {"content": b"x", "event_timestamp": 1_700_000_000_123},
}


def test_every_compression_and_every_part_of_a_message_comes_as_it_was_sent(on: ShadowStage) -> None:
    shadow, consumer = on.shadow(), consumer_of(on)
    due_ms = now_ms() + AHEAD_MS
    wanted = {}
    for compression, kind in COMPRESSIONS.items():
        producer = on.plain_producer(compression_type=kind)
        for name, message in MESSAGES.items():
            properties = {**message.get("properties", {}), "case": f"{compression}, {name}"}
            wanted[properties["case"]] = {**message, "properties": properties}
            producer.send(**{**message, "properties": properties}, deliver_at=due_ms)
    got: dict[str, Any] = {}
    while len(got) < len(wanted):
        message = consumer.receive(RECEIVE_MS)
        got[message.properties()["case"]] = message
        consumer.acknowledge(message)

    assert decisions(shadow)["moved"] == len(wanted)
    for case, sent in wanted.items():
        message = got[case]
        properties = {name: value for name, value in message.properties().items() if not name.startswith("tw-")}
        assert message.has_null_value() is (sent["content"] is None), case
        assert message.data() == (sent["content"] or b""), case
        assert properties == sent["properties"], case
        assert message.partition_key() == sent.get("partition_key", ""), case
        assert message.ordering_key() == sent.get("ordering_key", ""), case
        assert message.event_timestamp() == sent.get("event_timestamp", 0), case
        assert set(message.properties()) - set(sent["properties"]) == {"tw-id", "tw-timer"}, case


V1: dict[str, Any] = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
V2: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "string"}, {"name": "count", "type": "int", "default": 3}],
}


def test_records_of_two_versions_of_a_schema_are_read_by_a_reader_of_the_new_one(on: ShadowStage) -> None:
    shadow, due_ms = on.shadow(), now_ms() + AHEAD_MS
    for version, record in ((V1, {"id": "a"}), (V2, {"id": "b", "count": 9}), (V1, {"id": "c"})):
        on.plain_producer(schema=AvroSchema(None, version)).send(record, deliver_at=due_ms)
    consumer = consumer_of(on, schema=AvroSchema(None, V2))
    got: dict[str, int] = {}
    while len(got) < 3:
        message = consumer.receive(RECEIVE_MS)
        got[message.value()["id"]] = message.value()["count"]
        consumer.acknowledge(message)
    assert decisions(shadow)["moved"] == 3
    assert got == {"a": 3, "b": 9, "c": 3}


def test_what_is_encrypted_or_chunked_stays_is_told_and_comes_in_its_time(on: ShadowStage, tmp_path: Path) -> None:
    shadow, due_ms, keys = on.shadow(), now_ms() + AHEAD_MS, crypto_keys(tmp_path)
    consumer = consumer_of(on, crypto_key_reader=keys)
    encrypting = on.plain_producer(encryption_key="key", crypto_key_reader=keys)
    encrypting.send(b"secret", deliver_at=due_ms)
    chunking = on.plain_producer(chunking_enabled=True, batching_enabled=False)
    large = bytes(range(256)) * 24_000  # 6 MB, in two parts
    chunking.send(large, deliver_at=due_ms)
    on.plain_producer().send(b"plain", deliver_at=due_ms)
    eventually(lambda: decisions(shadow).get("moved") == 1, 60)
    eventually(lambda: decisions(shadow).get("chunk") == 2 and decisions(shadow).get("encrypted") == 1, 60)
    assert {event.fields["why"] for event in on.events.named("shadow_stays_native")} == {"chunk", "encrypted"}
    got: set[bytes] = set()
    while len(got) < 3:
        message = consumer.receive(RECEIVE_MS)
        got.add(bytes(message.data()))
        consumer.acknowledge(message)
    assert got == {b"secret", large, b"plain"}


def test_a_copy_that_would_be_too_large_stays(on: ShadowStage) -> None:
    shadow, due_ms = on.shadow(), now_ms() + AHEAD_MS
    consumer = consumer_of(on)
    payload = bytes(5 * 1024 * 1024 - 4_096)
    on.plain_producer(compression_type=pulsar.CompressionType.NONE).send(payload, deliver_at=due_ms)
    eventually(lambda: [event.fields["why"] for event in on.events.named("shadow_stays_native")] == ["large"], 60)
    message = consumer.receive(RECEIVE_MS)
    assert len(message.data()) == len(payload)
    assert "tw-id" not in message.properties()
    consumer.acknowledge(message)
    assert shadow.ready


DELAY_MS = 8_000
"""Above the longest stay in the due topic (2.0 s) and the guard."""


def gap_count(on: ShadowStage, part: str) -> int:
    return on.admin.topics.stats(part).subscriptions[BUSINESS].gap_count


@pytest.mark.parametrize("partitions", [0, 3])
def test_plain_clients_handle_each_timer_once_and_on_time(pulsar_broker: Broker, partitions: int) -> None:
    with staged(pulsar_broker, shadow_plan(partitions=partitions)) as on:
        consumer, shadow = on.plain_consumer(), on.shadow()
        producer, rng = on.plain_producer(), random.Random(1)
        for number in range(400):
            due_ms = now_ms() + rng.randrange(DELAY_MS)
            producer.send_async(f"{number} {due_ms}".encode(), None, deliver_at=due_ms, partition_key=f"k{number % 7}")
        producer.flush()
        eventually(lambda: len(consumer.handled) == 400, 60)

        moved = sum(one.moved for one in shadow.shadow_status().movers)
        assert consumer.again == 0
        assert moved >= 200
        assert shadow.shadow_status().acked_originals >= moved, (
            "a relay that begins asks once more for what it was given"
        )
        assert min(consumer.lateness_ms.values()) >= -1_000, "a broker is early by a tick at most"
        assert {message.partition_key() for message in consumer.messages.values()} == {f"k{n}" for n in range(7)}
        eventually(lambda: all(gap_count(on, part) == 0 for part in on.parts()), 60)


TIMERS = 200
PROBES = 80


def send(on: ShadowStage, *, ahead_ms: int = AHEAD_MS, count: int = TIMERS) -> None:
    producer, due_ms = on.plain_producer(), now_ms() + ahead_ms
    for number in range(count):
        producer.send_async(f"{number} {due_ms}".encode(), None, deliver_at=due_ms, partition_key=f"k{number % 5}")
    producer.flush()


def handled_once(consumer: PlainConsumer, count: int = TIMERS) -> None:
    eventually(lambda: len(consumer.handled) == count, 60)
    assert consumer.again == 0


def test_each_of_several_subscriptions_handles_each_timer_once(pulsar_broker: Broker) -> None:
    with staged(pulsar_broker, replace(shadow_plan(partitions=2), subscriptions=(BUSINESS, "audit"))) as on:
        consumers = [on.plain_consumer(subscription=name) for name in (BUSINESS, "audit")]
        shadow = on.shadow()
        send(on)
        for consumer in consumers:
            handled_once(consumer)
        assert moved(shadow) == TIMERS


def test_what_one_subscription_is_done_with_stays_for_the_other(pulsar_broker: Broker) -> None:
    with staged(pulsar_broker, replace(shadow_plan(), subscriptions=(BUSINESS, "audit"))) as on:
        send(on)
        part = on.parts()[0]
        url = f"{pulsar_broker.admin_url}/admin/v2/{topic_path(part)}/subscription/audit/skip_all"
        httpx.post(url).raise_for_status()
        billing, audit = (on.plain_consumer(subscription=name) for name in (BUSINESS, "audit"))
        shadow = on.shadow()
        eventually(lambda: shadow.shadow_status().movers[0].caught_up, 60)
        assert moved(shadow) == 0
        handled_once(billing)
        assert not audit.handled


def test_a_subscription_that_is_made_later_gets_each_timer_once(on: ShadowStage) -> None:
    first, shadow = on.plain_consumer(), on.shadow()
    eventually(lambda: shadow.shadow_status().movers[0].caught_up, 60)
    second = on.plain_consumer(subscription="audit")
    eventually(lambda: "audit" in {one.name for one in shadow.subscriptions(on.parts()[0])}, 60)
    send(on)
    handled_once(first)
    handled_once(second)
    assert moved(shadow) == TIMERS


def test_where_a_broker_delays_nothing_nothing_is_lifted_and_that_is_told(on: ShadowStage) -> None:
    consumer, shadow = on.plain_consumer(), on.shadow()
    stranger = on.client.subscribe(on.plan.due_topic, "stranger", consumer_type=pulsar.ConsumerType.Failover)
    eventually(lambda: not shadow.ready, 60)
    assert "stranger" in shadow.shadow_status().refusal
    assert not shadow.view.moves
    send(on, count=20)
    handled_once(consumer, 20)
    assert moved(shadow) == 0
    (event,) = on.events.named("shadow_refuses")
    assert "stranger" in str(event.fields["reason"])
    stranger.close()
    on.admin.subscriptions.delete(on.plan.due_topic, "stranger")
    eventually(lambda: shadow.ready, 60)
    send(on, count=20)
    eventually(lambda: moved(shadow) == 20, 60)


def test_what_was_lifted_before_comes_in_its_time_beside_a_subscription_that_delays_nothing(on: ShadowStage) -> None:
    consumer, mover = on.plain_consumer(), on.mover()
    send(on, ahead_ms=10_000, count=20)
    eventually(lambda: mover.counts.moved == 20, 60)
    mover.handle.stop(5_000)
    on.client.subscribe(on.plan.due_topic, "debug", consumer_type=pulsar.ConsumerType.Exclusive)
    shadow = on.shadow(start=False).start()
    eventually(lambda: "debug" in shadow.shadow_status().refusal, 60)
    handled_once(consumer, 20)
    assert shadow.shadow_status().acked_originals == 20
    assert min(consumer.lateness_ms.values()) < 3_000


def consumers_of(on: ShadowStage, subscription: str) -> set[str]:
    found = on.admin.topics.stats(on.parts()[0], clients=True).subscriptions[subscription].consumers
    return {one.name for one in found or ()}


def test_a_subscription_that_is_removed_is_not_made_anew(on: ShadowStage) -> None:
    billing, audit = on.plain_consumer(), PlainConsumer(on.client, on.plan.due_topic, "audit")
    shadow, part = on.shadow(), on.parts()[0]
    eventually(lambda: "audit" in {one.name for one in shadow.subscriptions(part)}, 60)
    send(on, count=20)
    eventually(lambda: SHADOW_ACKER in consumers_of(on, "audit"), 60)
    audit.close()
    on.admin.subscriptions.delete(part, "audit", force=True)
    # What is moved now is acknowledged before a look can have told that it is gone.
    send(on, count=20)
    eventually(lambda: moved(shadow) == 40, 60)
    eventually(lambda: sum(billing.handled.values()) == 40, 60)
    assert "audit" not in on.admin.subscriptions.list(part)
    assert {one.name for one in shadow.subscriptions(part)} == {BUSINESS}


def test_a_subscription_whose_consumers_are_gone_has_no_type_and_may_become_another(on: ShadowStage) -> None:
    before = PlainConsumer(on.client, on.plan.due_topic)
    on.shadow()
    send(on, count=20)
    eventually(lambda: SHADOW_ACKER in consumers_of(on, BUSINESS), 60)
    before.close()
    (part,) = overview_of(on.admin, on.dialer, on.plan).parts
    assert [one.type for one in part.subscriptions] == ["None"]
    eventually(lambda: not consumers_of(on, BUSINESS), 60)
    after = on.plain_consumer(consumer_type=pulsar.ConsumerType.KeyShared)
    handled_once(after, 20)


def test_on_key_shared_nobody_waits_longer_than_a_second_for_the_shadow(
    on: ShadowStage, say: Callable[[object], None]
) -> None:
    """Due-now messages of many keys go on while far ones are moved and acknowledged twice a second."""
    first, second = (on.plain_consumer(consumer_type=pulsar.ConsumerType.KeyShared) for _ in range(2))
    shadow = on.shadow()
    producer, stopping = on.plain_producer(), threading.Event()
    worst_ms: list[int] = []
    numbers = iter(range(10**9))

    def wait_for(name: str) -> int:
        eventually(lambda: name in first.lateness_ms or name in second.lateness_ms, 60, poll=0.005)
        return first.lateness_ms.get(name, second.lateness_ms.get(name, 0))

    def move_on() -> None:
        while not stopping.is_set():
            due_ms = now_ms() + AHEAD_MS
            number = next(numbers)
            producer.send(f"far{number} {due_ms}".encode(), deliver_at=due_ms, partition_key=f"k{number % 50}")

    thread = threading.Thread(target=move_on)
    thread.start()
    for probe in range(PROBES):
        producer.send(f"now{probe} {now_ms()}".encode(), partition_key=f"k{probe % 50}")
        worst_ms.append(wait_for(f"now{probe}"))
    stopping.set()
    thread.join()
    worst_ms.sort()
    say(f"key shared: p50 {worst_ms[PROBES // 2]} ms, max {worst_ms[-1]} ms, moved {moved(shadow)}")
    # A machine that stalls makes some of them wait, and a shadow that keeps keys makes each of its turns wait.
    assert worst_ms[PROBES // 2] < 1_000
    assert shadow.shadow_status().acked_originals > 50
    sent = next(numbers)
    eventually(lambda: sum(name.startswith("far") for name in {*first.handled, *second.handled}) == sent, 60)
    assert first.again + second.again == 0
    assert not first.handled.keys() & second.handled.keys()

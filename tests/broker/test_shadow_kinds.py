"""A topic of plain clients with a shadow: whatever they send comes once and in its time, to each subscription."""

from __future__ import annotations

import random
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest
from pulsar.schema import AvroSchema, JsonSchema, Record, String

from tests.behaviour.test_shadow_life import AHEAD_MS as FAR_AHEAD_MS
from tests.behaviour.test_shadow_life import DAYS
from tests.broker.due_topic import V1, V2, backlog, crypto_keys, now_ms
from tests.broker.relay_stage import BUSINESS
from tests.broker.shadow_stage import PlainConsumer, ShadowStage, moved, shadow_plan, staged
from tests.support.raw_producer import RawProducer, metadata_of
from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.stats import SHADOW_ACKER
from timewheel.core.durations import DAY_MS
from timewheel.core.names import Names
from timewheel.shadow.desired_state import State, caught_up_in, desired_for, desired_in
from timewheel.shadow.driver.mover import MAX_VERSIONS, MoveSession
from timewheel.shadow.machine.move_decider import MoveDecision
from timewheel.shadow.machine.nudges import FIRST_NUDGE
from timewheel.shadow.overview import overview_of
from timewheel.shadow.shadow import Shadow
from timewheel.testing import Broker, eventually
from timewheel.testing.admin_calls import topic_path

pytestmark = pytest.mark.short

AHEAD_MS = 6_000  # above the longest stay in the due topic (2.0 s) and the guard: it is moved
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


def received(consumer: Any, count: int, name_of: Callable[[Any], Any]) -> dict[Any, Any]:
    """So many messages of different names, acknowledged."""
    got: dict[Any, Any] = {}
    while len(got) < count:
        message = consumer.receive(RECEIVE_MS)
        got[name_of(message)] = message
        consumer.acknowledge(message)
    return got


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
    got = received(consumer, len(wanted), lambda message: message.properties()["case"])
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


def test_records_of_two_versions_of_a_schema_are_read_by_a_reader_of_the_new_one(on: ShadowStage) -> None:
    shadow, due_ms = on.shadow(), now_ms() + AHEAD_MS
    for version, record in ((V1, {"id": "a"}), (V2, {"id": "b", "count": 9}), (V1, {"id": "c"})):
        on.plain_producer(schema=AvroSchema(None, version)).send(record, deliver_at=due_ms)
    consumer = consumer_of(on, schema=AvroSchema(None, V2))
    got = received(consumer, 3, lambda message: (message.value()["id"], message.value()["count"]))
    assert decisions(shadow)["moved"] == 3
    assert got.keys() == {("a", 3), ("b", 9), ("c", 3)}


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
    assert received(consumer, 3, lambda message: bytes(message.data())).keys() == {b"secret", large, b"plain"}


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


DELAY_MS = 8_000  # above the longest stay in the due topic (2.0 s) and the guard


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
        eventually(lambda: on.gaps() == 0, 60)


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


def test_on_key_shared_nobody_waits_longer_than_a_second_for_the_shadow(on: ShadowStage) -> None:
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
    while len(worst_ms) < PROBES or (len(worst_ms) < 20 * PROBES and shadow.shadow_status().acked_originals <= 50):
        probe = len(worst_ms)
        producer.send(f"now{probe} {now_ms()}".encode(), partition_key=f"k{probe % 50}")
        worst_ms.append(wait_for(f"now{probe}"))
    stopping.set()
    thread.join()
    worst_ms.sort()
    # A machine that stalls makes some of them wait, and a shadow that keeps keys makes each of its turns wait.
    assert worst_ms[len(worst_ms) // 2] < 1_000
    assert shadow.shadow_status().acked_originals > 50
    sent = next(numbers)
    eventually(lambda: sum(name.startswith("far") for name in {*first.handled, *second.handled}) == sent, 60)
    assert first.again + second.again == 0
    assert not first.handled.keys() & second.handled.keys()


@pytest.mark.short
def test_what_a_consumer_sends_on_with_its_properties_comes_at_its_own_due_time(on: ShadowStage) -> None:
    """As a job that plans its next run does, or a client's own retry."""
    consumer, shadow = on.plain_consumer(), on.shadow()
    on.send(range(1), due_ms=now_ms() + FAR_AHEAD_MS)
    eventually(lambda: consumer.handled["0"] == 1, 60)
    given = consumer.messages["0"].properties()
    assert "tw-timer" in given, "it came by the shadow"
    due_ms = now_ms() + FAR_AHEAD_MS
    producer = on.plain_producer()
    producer.send(f"again {due_ms}".encode(), properties={**given, "colour": "red"}, deliver_at=due_ms)
    eventually(lambda: moved(shadow) == 2, 60)
    eventually(lambda: consumer.handled["again"] == 1, 60)
    assert consumer.lateness_ms["again"] >= -1_000, "by the broker's tick at the most"
    again = consumer.messages["again"].properties()
    assert (again["colour"], again["tw-id"] == given["tw-id"]) == ("red", False)


ODD: dict[str, tuple[MoveDecision, dict[str, Any]]] = {
    "an ordering key of bytes": (MoveDecision.NO_TEXT, {"ordering_key": uuid.UUID(int=255 << 120).bytes}),
    "a property of bytes": (MoveDecision.NO_TEXT, {"properties": {"place": "caf\udce9"}}),
    "a schema version that is not there": (MoveDecision.SCHEMA, {"schema_version": (99).to_bytes(8, "big")}),
    "another that is not there": (MoveDecision.SCHEMA, {"schema_version": (1 << 62).to_bytes(8, "big")}),
    "a schema version of no 64 bits": (MoveDecision.DEFECT, {"schema_version": b"\x01" * 200}),
    "a payload that does not open": (MoveDecision.DAMAGED, {"compression": 3, "uncompressed_bytes": 7}),
    "a size that lies": (MoveDecision.DAMAGED, {"compression": 1, "uncompressed_bytes": 1}),
    "a line of no timer": (MoveDecision.UNREADABLE, {"properties": {"tw-id": "x", "tw-timer": "3 anything"}}),
}  # fmt: skip
"""What no relay could carry, or no client read: by what becomes of it, and what its producer writes. An ordering key is
bytes in Java and Go."""


def test_no_entry_stops_its_neighbours(pulsar_broker: Broker) -> None:
    with staged(pulsar_broker, shadow_plan(max_delay_ms=600_000)) as on:
        consumer, shadow = on.plain_consumer(), on.shadow()
        eventually(lambda: shadow.shadow_status().movers[0].caught_up, 60)
        due_ms = now_ms() + FAR_AHEAD_MS
        with RawProducer(pulsar_broker.service_url, on.parts()[0]) as raw:
            for number, (_, facts) in enumerate(ODD.values()):
                raw.send(metadata_of(deliver_at_ms=due_ms + 300_000, **facts), b"odd")
                on.send(range(number, number + 1), due_ms=due_ms)
        eventually(lambda: moved(shadow) == len(ODD), 60)
        eventually(lambda: len(consumer.handled) == len(ODD), 60)
        assert consumer.again == 0
        (mover,) = shadow.shadow_status().movers
        assert mover.failures == 0, mover.reason
        met = Counter(decision.value for decision, _ in ODD.values())
        assert {why: mover.decisions[why] for why in met} == met
        told = [str(event.fields["why"]) for event in on.events.named("shadow_stays_native")]
        assert sorted(told) == sorted(met), "each reason once"


class Renewal(Record):  # type: ignore[misc]  # the client has no types
    number = String()


def test_what_nobody_may_register_stays_and_all_else_is_lifted(pulsar_broker: Broker) -> None:
    space = f"public/frozen-{now_ms()}"
    plan = replace(shadow_plan(DAYS, max_delay_ms=30 * DAY_MS), due_topic=f"persistent://{space}/renewals")
    with AdminClient(pulsar_broker.admin_url) as admin:
        admin.namespaces.create(space)
    with staged(pulsar_broker, plan) as on:
        producer = on.plain_producer(schema=AvroSchema(Renewal))
        on.admin._http.call("POST", f"/namespaces/{space}/isAllowAutoUpdateSchema", body=False)
        shadow = on.shadow()
        for number in range(3):
            producer.send(Renewal(number=str(number)), deliver_at=now_ms() + 3 * DAY_MS)
        on.send(range(20), due_ms=now_ms() + 3 * DAY_MS)
        eventually(lambda: moved(shadow) == 20, 60)
        decisions = [event.fields["why"] for event in on.events.named("shadow_stays_native")]
        assert decisions == [MoveDecision.SCHEMA.value]
        assert shadow.shadow_status().movers[0].failures == 0


def test_many_schema_versions_cost_a_few_sessions_and_those_beyond_the_bound_stay(pulsar_broker: Broker) -> None:
    """Whoever may register schemas may register any number, and all others wait while they are fenced."""
    beyond = 3
    with staged(pulsar_broker, shadow_plan(DAYS, max_delay_ms=30 * DAY_MS)) as on:
        due_ms = now_ms() + 3 * DAY_MS
        for number in range(MAX_VERSIONS + beyond):
            fields = {f"field{index}": String(required_default=True) for index in range(number + 1)}
            record = type("Renewal", (Record,), fields)
            on.plain_producer(schema=JsonSchema(record)).send(record(), deliver_at=due_ms)
        on.send(range(20), due_ms=due_ms)
        shadow = on.shadow()
        eventually(lambda: moved(shadow) == MAX_VERSIONS + 20, 60, message=str(shadow.shadow_status()))
        assert shadow.shadow_status().movers[0].decisions[MoveDecision.SCHEMA.value] == beyond
        (told,) = on.events.named("shadow_stays_native")
        assert f"of the {MAX_VERSIONS} versions that were met first" in str(told.fields["reason"])
        assert len(on.events.named("shadow_moves_again")) <= 3, "each reads the journal and fences what was met"


@pytest.mark.parametrize("state", [State.PAUSED, State.DRAINING])
def test_a_stir_is_taken_out_also_when_nothing_more_is_lifted(pulsar_broker: Broker, state: State) -> None:
    plan = shadow_plan(DAYS, max_delay_ms=30 * DAY_MS)
    with staged(pulsar_broker, plan) as on:
        shadow = on.shadow()
        on.send(range(FIRST_NUDGE), due_ms=now_ms() + 3 * DAY_MS)
        eventually(lambda: shadow.shadow_status().movers[0].nudges == 1, 60, poll=0.01)
        on.desired(state)
        eventually(lambda: shadow.view.desired.state is state, 60)
        back, topic = 0 if state is State.PAUSED else FIRST_NUDGE, on.plan.due_topic
        eventually(lambda: backlog(on.broker, topic, BUSINESS) == back, 60, message="nobody is to be given the nudge")


def test_what_is_noted_is_withdrawn_until_a_backlog_is_gone_through(pulsar_broker: Broker) -> None:
    """By the clock of whoever began it, which may be ahead; and not by what was noted before an outage."""
    with staged(pulsar_broker, shadow_plan(DAYS, max_delay_ms=30 * DAY_MS)) as on:
        journal = Names(on.plan).journal
        ahead_ms = now_ms() + 60_000
        desired_for(on.admin, on.plan, State.PAUSED, now_ms=now_ms())
        desired_for(on.admin, on.plan, State.SHADOWING, now_ms=ahead_ms)
        shadow = on.shadow()

        def noted() -> int | None:
            properties = on.admin.topics.properties(journal)
            return caught_up_in(properties, 0, desired_in(properties))

        eventually(lambda: noted() is not None, 60)
        assert noted() == ahead_ms
        shadow.stop(5_000)
        on.send(range(20_000), due_ms=now_ms() + 3 * DAY_MS)
        on.shadow()
        eventually(lambda: noted() is None, 60, poll=0.01)
        eventually(lambda: noted() == ahead_ms, 60)


def test_a_reload_while_the_journal_is_read_is_noticed(pulsar_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the broker forgot then was pending to whoever looked before; so the session begins anew."""
    reloads = iter([True])

    right = MoveSession._ack_again

    def interrupted(*args: Any) -> tuple[int, int]:
        found = right(*args)
        if next(reloads, False):
            on.admin.topics.unload(on.plan.due_topic)
        return found

    monkeypatch.setattr(MoveSession, "_ack_again", interrupted)
    with staged(pulsar_broker, shadow_plan(DAYS, max_delay_ms=30 * DAY_MS)) as on:
        shadow = on.shadow()
        on.send(range(20), due_ms=now_ms() + 3 * DAY_MS)
        eventually(lambda: moved(shadow) == 20, 60)
        mover = shadow.shadow_status().movers[0]
        assert mover.failures == 1
        assert "loaded again" in str(mover.reason)

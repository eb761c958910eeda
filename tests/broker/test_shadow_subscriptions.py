"""Subscriptions as a topic has them: several, of every type, made later, behind each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import httpx
import pulsar

from tests.broker.due_topic import now_ms
from tests.broker.relay_stage import BUSINESS
from tests.broker.shadow_stage import PlainConsumer, ShadowStage, moved, shadow_plan, staged
from timewheel.broker.admin.stats import SHADOW_ACKER
from timewheel.shadow.overview_reading import overview_of
from timewheel.testing import Broker, eventually
from timewheel.testing.admin_calls import topic_path

AHEAD_MS = 6_000
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


def test_a_subscription_that_is_made_later_gets_each_timer_once(pulsar_broker: Broker) -> None:
    with staged(pulsar_broker, shadow_plan()) as on:
        first, shadow = on.plain_consumer(), on.shadow()
        eventually(lambda: shadow.shadow_status().movers[0].caught_up, 60)
        second = on.plain_consumer(subscription="audit")
        eventually(lambda: "audit" in {one.name for one in shadow.subscriptions(on.parts()[0])}, 60)
        send(on)
        handled_once(first)
        handled_once(second)
        assert moved(shadow) == TIMERS


def test_where_a_broker_delays_nothing_nothing_is_lifted_and_that_is_told(pulsar_broker: Broker) -> None:
    with staged(pulsar_broker, shadow_plan()) as on:
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


def test_what_was_lifted_before_comes_in_its_time_beside_a_subscription_that_delays_nothing(
    pulsar_broker: Broker,
) -> None:
    with staged(pulsar_broker, shadow_plan()) as on:
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


def test_a_subscription_that_is_removed_is_not_made_anew(pulsar_broker: Broker) -> None:
    with staged(pulsar_broker, shadow_plan()) as on:
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


def test_a_subscription_whose_consumers_are_gone_has_no_type_and_may_become_another(pulsar_broker: Broker) -> None:
    with staged(pulsar_broker, shadow_plan()) as on:
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
    pulsar_broker: Broker, say: Callable[[object], None]
) -> None:
    """Due-now messages of many keys go on while far ones are moved and acknowledged twice a second."""
    with staged(pulsar_broker, shadow_plan()) as on:
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

"""The consumer through broker restarts, forgetful reloads, and a broker that delays nothing."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pulsar
import pytest

from tests.broker.due_topic import (
    MAX_UNACKED,
    SUBSCRIPTION,
    Events,
    Handled,
    Sender,
    backlog,
    make_topic,
    now_ms,
    running,
)
from timewheel.broker.admin.client import AdminClient
from timewheel.consumers import DelayedConsumer
from timewheel.core.early_delivery import hold_bound_ms
from timewheel.core.envelope import Envelope
from timewheel.core.names import partition_topic
from timewheel.core.plan import Plan
from timewheel.testing import eventually

if TYPE_CHECKING:
    from tests.broker.conftest import Connect
    from timewheel.testing import LocalPulsar

TIMERS = 500


def native(topic: str, **changes: Any) -> Plan:
    return Plan(**{"due_topic": topic, "subscriptions": (SUBSCRIPTION,), **changes})


def test_what_a_reload_forgot_is_dropped_by_the_window_of_handled_timers(
    forgetful: LocalPulsar, connect: Connect, topic: str
) -> None:
    broker = forgetful
    make_topic(broker, topic, subscriptions=(SUBSCRIPTION,))
    plan, client = native(topic), connect(broker)
    sender, handled = Sender(client, plan), Handled()
    # Every other one is due now, its neighbour much later: 300 gaps, of which the broker keeps 10.
    for number in range(600):
        sender.send(f"t{number}", now_ms() + (0 if number % 2 else 3_600_000))
    sender.flush()
    consumer = DelayedConsumer(client, plan, SUBSCRIPTION)
    with running(consumer, handled):
        eventually(lambda: len(handled.times) == 300, 60)
        eventually(lambda: backlog(broker, topic) == 300)
        broker.unload(topic)
        eventually(lambda: consumer.counts.already_handled >= 250, 60)
        eventually(lambda: backlog(broker, topic) == 300, 60)  # acknowledged once more
    assert set(handled.times.values()) == {1}
    # The control: a consumer that remembers nothing hands them out again.
    with AdminClient(broker.admin_url) as admin:
        admin.topics.unload(topic)
    again = Handled()
    with running(DelayedConsumer(client, plan, SUBSCRIPTION), again):
        eventually(lambda: len(again.times) >= 250, 60)


@pytest.mark.parametrize("violent", [False, True], ids=["restart", "kill"])
def test_a_running_consumer_lives_through_a_broker_restart(
    mortal: LocalPulsar, connect: Connect, topic: str, violent: bool
) -> None:
    broker = mortal
    make_topic(broker, topic, partitions=2, subscriptions=(SUBSCRIPTION,))
    plan, client = native(topic, partitions=2), connect(broker)
    sender, handled = Sender(client, plan), Handled()
    start_ms = now_ms() + 1_000
    for number in range(TIMERS):
        sender.send(f"t{number}", start_ms + 20 * number, partition=number % 2)
    sender.flush()
    consumer = DelayedConsumer(client, plan, SUBSCRIPTION)
    with running(consumer, handled):
        eventually(lambda: len(handled.times) >= 100, 60)
        assert consumer.ready
        if violent:
            broker.kill()
            broker.start()
        else:
            broker.restart()
        eventually(lambda: len(handled.times) == TIMERS, 90)
        eventually(lambda: consumer.ready, 60)
        eventually(lambda: backlog(broker, topic) == 0, 60)
    assert set(handled.times.values()) == {1}
    assert handled.early == 0


@pytest.mark.short
def test_when_the_broker_delays_nothing_a_due_timer_still_comes_through_far_ones(
    undelaying: LocalPulsar, connect: Connect, topic: str
) -> None:
    broker = undelaying
    make_topic(broker, topic, subscriptions=(SUBSCRIPTION, "control"))
    plan, client = native(topic, tick_ms=200, subscriptions=(SUBSCRIPTION, "control")), connect(broker)
    assert hold_bound_ms(plan) == 1_200
    sender, handled, events = Sender(client, plan), Handled(), Events()
    far_ms = now_ms() + 15_000
    for number in range(2 * MAX_UNACKED):
        sender.send(f"far{number}", far_ms)
    sender.flush()
    sender.send("due", now_ms())
    # The control: whoever holds everything that is early never sees the one that is due.
    holder = client.subscribe(
        topic,
        "control",
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        receiver_queue_size=50,
    )
    seen = []
    for _ in itertools.count():
        try:
            seen.append(holder.receive(timeout_millis=2_000).properties()["tw-id"])
        except pulsar.Timeout:
            break
    assert MAX_UNACKED <= len(seen) < 2 * MAX_UNACKED
    assert "due" not in seen
    holder.close()

    consumer = DelayedConsumer(
        client, plan, SUBSCRIPTION, max_held=MAX_UNACKED // 2, receiver_queue_size=50, hooks=(events,)
    )
    with running(consumer, handled):
        eventually(lambda: handled.times["due"] == 1, 60)
        assert now_ms() < far_ms - 1_000
        eventually(lambda: len(handled.times) == 2 * MAX_UNACKED + 1, 60)
        eventually(lambda: backlog(broker, topic) == 0, 60)
    assert set(handled.times.values()) == {1}
    assert handled.early == 0
    counts = consumer.counts
    assert counts.republished >= 2 * MAX_UNACKED
    # It waits before each, so the storm is bounded: a copy takes a hold bound to come round again, or half the room.
    assert counts.republished < 50_000
    # At once, then once a minute, and the rest at the end.
    assert 1 <= len(events.named("timer_far_too_early")) <= 3


@pytest.mark.real
@pytest.mark.parametrize("passed_on", [True, False], ids=["passed on", "control"])
def test_batch_index_acknowledgement_is_passed_on_to_a_broker_that_has_it(
    forgetful: LocalPulsar, connect: Connect, topic: str, passed_on: bool
) -> None:
    broker = forgetful
    make_topic(broker, topic, subscriptions=(SUBSCRIPTION,))
    plan, client = native(topic), connect(broker)
    # Undelayed timers of a foreign producer that batches: ten in one entry.
    producer = client.create_producer(
        partition_topic(topic, 0), batching_enabled=True, batching_max_messages=10, batching_max_publish_delay_ms=5_000
    )
    for number in range(10):
        properties = Envelope(f"t{number}", now_ms(), now_ms()).properties()
        producer.send_async(b"", lambda *_: None, properties=properties)
    producer.flush()
    options: dict[str, Any] = {"batch_index_ack_enabled": passed_on}
    with DelayedConsumer(client, plan, SUBSCRIPTION, **options) as consumer:
        for _ in range(5):
            consumer.acknowledge(consumer.receive(timeout_millis=5_000))
    # Another consumer, with a memory of its own.
    rest = Handled()
    with running(DelayedConsumer(client, plan, SUBSCRIPTION, **options), rest):
        eventually(lambda: len(rest.times) == (5 if passed_on else 10), 60)
        eventually(lambda: backlog(broker, topic) == 0, 60)
    assert len(rest.times) == (5 if passed_on else 10)

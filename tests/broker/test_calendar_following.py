"""The consumer follows a calendar's topics; intervals are seconds long."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from tests.broker.due_topic import SUBSCRIPTION, Events, Handled, Sender, backlog, make_topic, now_ms, running
from timewheel.broker.admin.client import AdminClient
from timewheel.consumers import DelayedConsumer
from timewheel.consumers.calendar.rolling_source import RollingSource
from timewheel.consumers.calendar.rolling_topics import MAX_VISITS, open_ahead_ms, rest_ms
from timewheel.core.envelope import Envelope
from timewheel.core.errors import TopologyError
from timewheel.core.limits import hold_bound_ms
from timewheel.core.names import Names, partition_topic
from timewheel.core.plan import Calendar, Plan
from timewheel.testing import Broker, eventually

INTERVAL_MS = 2_000


@pytest.fixture
def plan(topic: str) -> Plan:
    # A plan's tick of 200 ms makes hold bound, lead and rest short; the broker's own stays a second.
    return Plan(
        due_topic=topic,
        subscriptions=(SUBSCRIPTION,),
        scheme=Calendar(interval_ms=INTERVAL_MS),
        max_delay_ms=60_000,
        tick_ms=200,
    )


def make_calendar(broker: Broker, plan: Plan, first_ms: int, last_ms: int) -> dict[int, str]:
    """Provision every interval between two moments; by interval."""
    topics = {
        interval: Names(plan).calendar_topic(interval)
        for interval in range(first_ms // INTERVAL_MS, last_ms // INTERVAL_MS + 1)
    }
    for topic in topics.values():
        make_topic(broker, topic, partitions=plan.partitions, subscriptions=plan.subscriptions)
    return topics


def open_topics(consumer: DelayedConsumer) -> tuple[str, ...]:
    source = consumer._resources._source
    assert isinstance(source, RollingSource)
    return source.open_topics


@pytest.mark.short
def test_nothing_is_missed_early_or_late_at_a_change_of_interval(
    client: Any, pulsar_broker: Broker, plan: Plan
) -> None:
    # The broker's own tick, which the lead is made for.
    plan = replace(plan, tick_ms=1_000)
    begin_ms = now_ms()
    topics = make_calendar(pulsar_broker, plan, begin_ms, begin_ms + 40_000)
    sender, handled = Sender(client, plan), Handled()
    consumer = DelayedConsumer(client, plan, SUBSCRIPTION)
    max_open = 0
    with running(consumer, handled):
        # Due times crowd around every change of interval: some in its last 20 ms, some in the first of the next.
        count = 0
        change_ms = (now_ms() // INTERVAL_MS + 2) * INTERVAL_MS
        while change_ms < begin_ms + 20_000:
            for offset_ms in (*range(-20, 21), *range(100, INTERVAL_MS - 100, 100)):
                sender.send(f"t{count}", change_ms + offset_ms)
                count += 1
            change_ms += INTERVAL_MS
        sender.flush()
        sender.close()
        while len(handled.times) < count and now_ms() < begin_ms + 60_000:
            max_open = max(max_open, len(open_topics(consumer)))
            threading.Event().wait(0.02)
        assert len(handled.times) == count
    assert set(handled.times.values()) == {1}
    assert handled.early == 0
    hold_ms = hold_bound_ms(plan)
    assert max_open <= 2 + 2 * (rest_ms(INTERVAL_MS, hold_ms) + open_ahead_ms(INTERVAL_MS, hold_ms)) // INTERVAL_MS
    assert sum(backlog(pulsar_broker, topic) for topic in topics.values()) == 0


def test_a_topic_is_subscribed_to_before_its_interval_begins(client: Any, pulsar_broker: Broker, plan: Plan) -> None:
    topics = make_calendar(pulsar_broker, plan, now_ms(), now_ms() + 40_000)
    ahead: set[int] = set()
    with DelayedConsumer(client, plan, SUBSCRIPTION, hooks=()) as consumer:

        def is_ahead() -> bool:
            opened = open_topics(consumer)
            following = now_ms() // INTERVAL_MS + 1  # read after them: it was open before it began
            if topics.get(following) in opened:
                ahead.add(following)
            return len(ahead) == 3

        eventually(is_ahead, 60)
        eventually(lambda: consumer.ready, 60)


def test_a_passed_topic_is_drained_though_terminated_and_closed_so_that_it_can_be_removed(
    client: Any, pulsar_broker: Broker, plan: Plan
) -> None:
    topics = make_calendar(pulsar_broker, plan, now_ms(), now_ms() + 30_000)
    sender, handled = Sender(client, plan), Handled()
    interval = now_ms() // INTERVAL_MS + 1
    for number in range(100):
        sender.send(f"t{number}", interval * INTERVAL_MS + 19 * number)
    sender.flush()
    sender.close()
    with AdminClient(pulsar_broker.admin_url) as admin:
        admin.topics.terminate(topics[interval])
        with running(DelayedConsumer(client, plan, SUBSCRIPTION, hooks=()), handled):
            eventually(lambda: len(handled.times) == 100, 60)
            eventually(lambda: backlog(pulsar_broker, topics[interval]) == 0)

            def removed() -> bool:
                try:
                    return admin.topics.delete(topics[interval])
                except Exception:  # noqa: BLE001 - refused while somebody reads it
                    return False

            eventually(removed, 60, poll=0.2)
            assert admin.topics.partitions(topics[interval]) in (None, 0)
        # A later visit did not make it again.
        assert admin.topics.partitions(topics[interval]) in (None, 0)
    assert set(handled.times.values()) == {1}


@pytest.mark.short
def test_a_consumer_that_was_away_drains_the_intervals_that_passed(
    client: Any, pulsar_broker: Broker, plan: Plan
) -> None:
    begin_ms = now_ms()
    # The passed ones are filled by hand: nobody sends into the past.
    topics = make_calendar(pulsar_broker, plan, begin_ms - 44_000, begin_ms)
    passed = [topic for interval, topic in topics.items() if interval < begin_ms // INTERVAL_MS - 5]
    for number, topic in enumerate(passed):
        producer = client.create_producer(partition_topic(topic, 0))
        producer.send(b"", properties=Envelope(f"t{number}", begin_ms - 10_000, begin_ms - 20_000).properties())
        producer.close()
    assert len(passed) > MAX_VISITS
    # Those to come are made last: however long all this took, they are there when the consumer begins.
    make_calendar(pulsar_broker, plan, begin_ms + INTERVAL_MS, now_ms() + 30_000)
    handled = Handled()
    with running(DelayedConsumer(client, plan, SUBSCRIPTION, hooks=()), handled):
        eventually(lambda: len(handled.times) == len(passed), 60)
        eventually(lambda: sum(backlog(pulsar_broker, topic) for topic in passed) == 0)
    assert set(handled.times.values()) == {1}


def test_a_missing_current_topic_is_an_error_that_names_the_command(client: Any, plan: Plan) -> None:
    with pytest.raises(TopologyError, match="timewheel topics ensure"):
        DelayedConsumer(client, plan, SUBSCRIPTION).start()


def test_a_topic_that_is_missing_ahead_is_told_and_followed_once_it_is_there(
    client: Any, pulsar_broker: Broker, plan: Plan
) -> None:
    begin_ms = now_ms()
    make_calendar(pulsar_broker, plan, begin_ms, begin_ms + INTERVAL_MS)
    events, handled = Events(), Handled()
    consumer = DelayedConsumer(client, plan, SUBSCRIPTION, hooks=(events,))
    with running(consumer, handled):
        eventually(lambda: events.named("calendar_topic_missing"), 60)
        missing = events.named("calendar_topic_missing")[0]
        assert missing.level == "error"
        assert "timewheel topics ensure" in str(missing.fields["remedy"])
        eventually(lambda: not consumer.ready, 60)
        make_calendar(pulsar_broker, plan, now_ms(), now_ms() + 20_000)
        eventually(lambda: consumer.ready, 60)
        sender = Sender(client, plan)
        sender.send("a", now_ms() + 3_000)
        eventually(lambda: handled.times == {"a": 1}, 60)
        sender.close()

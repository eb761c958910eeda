"""The life of a calendar's topics on a real broker."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import httpx
import pulsar
import pytest

from tests.support.manual_clock import ManualClock
from timewheel.broker.admin.client import AdminClient
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.names import CalendarTopic, namespace_of, partition_topic
from timewheel.core.plan import Calendar, Plan
from timewheel.provision.calendar_life import CalendarRoller, RetiredTopic, Rolled, Stage, roll
from timewheel.testing import eventually

if TYPE_CHECKING:
    from tests.broker.conftest import Connect
    from timewheel.hooks import Event
    from timewheel.testing import Broker

START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
GRACE_MS = 5 * MINUTE_MS
END_MS = START_MS + HOUR_MS + GRACE_MS
"""When the first interval has passed, its grace included."""
CALM_LOOKS = 20
"""Looks at a consumer, 50 ms apart, between which it did not connect anew."""


@pytest.fixture
def plan(namespace: str) -> Plan:
    """Hours, in a namespace of the test's own."""
    return Plan(
        due_topic=f"persistent://{namespace}/reminders",
        subscriptions=("billing", "audit"),
        scheme=Calendar(interval_ms=HOUR_MS),
        max_delay_ms=2 * HOUR_MS,
        partitions=2,
        guard_ms=GRACE_MS,
    )


@pytest.fixture
def first(admin: AdminClient, plan: Plan) -> str:
    """The topic of the first interval, provisioned."""
    roll(admin, plan, START_MS)
    return CalendarTopic(plan.due_topic, HOUR_MS, START_MS).name


def names(admin: AdminClient, plan: Plan) -> list[str]:
    listed = admin.topics.list_partitioned(namespace_of(plan.due_topic))
    return sorted(name.removeprefix(f"{plan.due_topic}.tw.") for name in listed)


def only(rolled: Rolled) -> RetiredTopic:
    (topic,) = rolled.retired
    return topic


class Reader:
    """Handles what waits in a topic, each time with a client of its own.

    pulsar-client takes the broker's "end of topic" for garbage and drops the connection, a few times over: everything
    else on the same connection would feel it, and acknowledgements on their way are lost.
    """

    def __init__(self, admin: AdminClient, broker: Broker, connect: Connect) -> None:
        self._admin = admin
        self._broker = broker
        self._connect = connect

    def subscribe(self, topic: str, partition: int, subscription: str) -> Any:
        client = self._connect(self._broker)
        return client.subscribe(
            partition_topic(topic, partition), subscription, consumer_type=pulsar.ConsumerType.Shared
        )

    def drain(self, topic: str, subscription: str) -> set[bytes]:
        """Receive and acknowledge until the broker counts nothing any more."""
        found: set[bytes] = set()
        for partition in range(self._admin.topics.partitions(topic) or 0):
            consumer = self.subscribe(topic, partition, subscription)

            def is_empty(consumer: Any = consumer, name: str = partition_topic(topic, partition)) -> bool:
                try:
                    message = consumer.receive(timeout_millis=100)
                except pulsar.Timeout:
                    stats = self._admin.topics.stats(name, precise_backlog=True)
                    return stats.subscriptions[subscription].backlog == 0
                consumer.acknowledge(message)
                found.add(message.data())
                return False

            eventually(is_empty, timeout=60)
            consumer.close()
        return found

    def stay_connected(self, topic: str, partition: int, subscription: str) -> Any:
        """A consumer that has got over the end of its topic and stays."""
        consumer = self.subscribe(topic, partition, subscription)
        seen: list[object] = []

        def is_calm() -> bool:
            stats = self._admin.topics.stats(partition_topic(topic, partition), clients=True)
            seen.append(stats.subscriptions[subscription].consumers)
            return len(seen) > CALM_LOOKS and bool(seen[-1]) and len(set(seen[-CALM_LOOKS:])) == 1

        eventually(is_calm, timeout=60)
        return consumer


@pytest.fixture
def reader(admin: AdminClient, pulsar_broker: Broker, connect: Connect) -> Reader:
    return Reader(admin, pulsar_broker, connect)


def publish(client: Any, topic: str, partition: int, payload: bytes, **options: Any) -> None:
    producer = client.create_producer(partition_topic(topic, partition))
    producer.send(payload, **options)
    producer.close()


def test_topics_are_made_an_interval_ahead(admin: AdminClient, plan: Plan) -> None:
    rolled = roll(admin, plan, START_MS)
    # Now until 02:00 at the latest, and one more.
    hours = ["1h-20260101T0000Z", "1h-20260101T0100Z", "1h-20260101T0200Z", "1h-20260101T0300Z"]
    assert names(admin, plan) == hours
    assert (rolled.open_topics, rolled.retired) == (4, ())
    again = roll(admin, plan, START_MS)
    assert (again.made.steps, again.open_topics) == ((), 4)
    roll(admin, plan, START_MS + HOUR_MS)
    assert names(admin, plan) == [*hours, "1h-20260101T0400Z"]


def test_a_passed_topic_is_terminated_drained_by_all_and_only_then_deleted(
    admin: AdminClient, plan: Plan, first: str, pulsar_client: Any, reader: Reader
) -> None:
    publish(pulsar_client, first, 0, b"at once")
    publish(pulsar_client, first, 1, b"later", deliver_after=timedelta(seconds=4))
    late = pulsar_client.create_producer(partition_topic(first, 0))

    assert roll(admin, plan, END_MS - 1).retired == (), "the grace"
    late.send(b"within the grace")
    # Nobody is connected but a producer: the broker would delete it, backlog and all (the control below).
    passed = only(roll(admin, plan, END_MS))

    assert (passed.topic, passed.stage, passed.backlog) == (first, Stage.DRAINING, {"billing": 3, "audit": 3})
    with pytest.raises(pulsar.TopicTerminated):
        late.send(b"too late")
    with pytest.raises(pulsar.TopicTerminated):
        pulsar_client.create_producer(partition_topic(first, 1)).send(b"too late")
    assert only(roll(admin, plan, END_MS)).stage is Stage.DRAINING

    # What waits is still delivered, delayed messages included.
    assert reader.drain(first, "billing") == {b"at once", b"later", b"within the grace"}
    assert only(roll(admin, plan, END_MS)).backlog == {"billing": 0, "audit": 3}
    assert reader.drain(first, "audit") == {b"at once", b"later", b"within the grace"}

    follower = reader.stay_connected(first, 1, "audit")
    held = only(roll(admin, plan, END_MS))
    assert (held.stage, "still connected" in held.note) == (Stage.DRAINED, True)
    follower.close()

    assert only(roll(admin, plan, END_MS)).stage is Stage.DELETED
    assert first.removeprefix(f"{plan.due_topic}.tw.") not in names(admin, plan)
    assert not [name for name in admin.topics.list(namespace_of(plan.due_topic)) if name.startswith(first)]
    # The interval has passed: nothing makes the topic again, and nothing is left to do.
    again = roll(admin, plan, END_MS)
    assert (again.retired, again.made.steps) == ((), ())


def test_control_an_unforced_delete_takes_a_backlog_with_it(admin: AdminClient, first: str, pulsar_client: Any) -> None:
    publish(pulsar_client, first, 0, b"pending", deliver_after=timedelta(hours=1))
    assert admin.topics.delete(first) is True, "if brokers refused this, calendar_life could be simpler"


def test_control_a_forced_delete_under_a_producer_makes_its_next_send_vanish(
    admin: AdminClient, plan: Plan, first: str, pulsar_broker: Broker, connect: Connect
) -> None:
    producer = connect(pulsar_broker).create_producer(partition_topic(first, 0), send_timeout_millis=3_000)
    producer.send(b"safe")
    admin.topics.delete(first, force=True)
    if pulsar_broker.version.startswith("4.0."):
        producer.send(b"vanished")  # returns as if all were well
        assert admin.topics.stats(partition_topic(first, 0)).subscriptions == {}
    else:
        with pytest.raises(pulsar.Timeout):  # later brokers do not make the partition anew
            producer.send(b"refused")
        assert first not in admin.topics.list_partitioned(namespace_of(plan.due_topic))


def test_a_dry_run_says_the_stage_and_changes_nothing(
    admin: AdminClient, plan: Plan, first: str, pulsar_client: Any
) -> None:
    before = names(admin, plan)
    told = roll(admin, plan, END_MS, dry_run=True)
    assert (only(told).topic, only(told).stage) == (first, Stage.PASSED)
    assert told.made.steps, "the next interval would be made"
    assert names(admin, plan) == before
    publish(pulsar_client, first, 0, b"still taken")


def test_topics_of_another_length_are_retired_and_strangers_are_left_alone(
    admin: AdminClient, plan: Plan, pulsar_client: Any, reader: Reader
) -> None:
    day = CalendarTopic(plan.due_topic, DAY_MS, START_MS - DAY_MS).name
    strangers = [
        f"{plan.due_topic}.tw.1h-20250101T0000",  # no Z
        f"{plan.due_topic}.tw.notes",
        f"{plan.due_topic}2.tw.1h-20250101T0000Z",  # another due topic's
        f"{plan.due_topic}-1h-20250101T0000Z",
    ]
    for topic in (day, *strangers):
        admin.topics.create(topic, 1)
        admin.subscriptions.create(topic, "billing")
    publish(pulsar_client, day, 0, b"from before the change of the plan")

    stuck = only(roll(admin, plan, START_MS + GRACE_MS))
    assert (stuck.topic, stuck.stage) == (day, Stage.DRAINING)
    reader.drain(day, "billing")
    admin.subscriptions.create(day, "audit")
    reader.drain(day, "audit")

    assert only(roll(admin, plan, START_MS + GRACE_MS)).stage is Stage.DELETED
    assert set(strangers) <= set(admin.topics.list_partitioned(namespace_of(plan.due_topic)))


def test_entries_without_their_subscription_are_reported_and_kept(
    admin: AdminClient, plan: Plan, first: str, pulsar_client: Any, reader: Reader
) -> None:
    publish(pulsar_client, first, 0, b"for audit too")
    reader.drain(first, "billing")
    admin.subscriptions.delete(first, "audit", force=True)  # as an expiry would
    stranded = only(roll(admin, plan, END_MS))
    assert stranded.stage is Stage.STRANDED
    assert "audit" in stranded.note
    # Created again at the earliest position, it gets what nobody else was to acknowledge for it.
    admin.subscriptions.create(first, "audit")
    assert reader.drain(first, "audit") == {b"for audit too"}
    assert only(roll(admin, plan, END_MS)).stage is Stage.DELETED


@pytest.mark.parametrize("gone", [1, 2])
def test_a_delete_that_was_interrupted_goes_on(admin: AdminClient, plan: Plan, first: str, gone: int) -> None:
    """Also at its very end, when both partitions are gone."""
    admin.topics.terminate(first)
    for partition in range(gone):
        admin.topics.delete_unpartitioned(partition_topic(first, partition))
    assert only(roll(admin, plan, END_MS)).stage is Stage.DELETED
    assert not [name for name in admin.topics.list(namespace_of(plan.due_topic)) if name.startswith(first)]
    assert first not in admin.topics.list_partitioned(namespace_of(plan.due_topic))


def test_a_termination_that_was_interrupted_goes_on(
    admin: AdminClient, plan: Plan, first: str, pulsar_client: Any, pulsar_broker: Broker
) -> None:
    publish(pulsar_client, first, 1, b"x")
    path = partition_topic(first, 0).replace("://", "/")
    httpx.post(f"{pulsar_broker.admin_url}/admin/v2/{path}/terminate", timeout=30).raise_for_status()
    assert only(roll(admin, plan, END_MS)).stage is Stage.DRAINING
    with pytest.raises(pulsar.TopicTerminated):
        publish(pulsar_client, first, 1, b"too late")


def test_an_unloaded_topic_is_judged_by_all_its_partitions(
    admin: AdminClient, plan: Plan, first: str, pulsar_client: Any
) -> None:
    publish(pulsar_client, first, 1, b"pending", deliver_after=timedelta(hours=1))
    admin.topics.terminate(first)
    admin.topics.unload(first)
    passed = only(roll(admin, plan, END_MS))
    assert (passed.stage, passed.backlog) == (Stage.DRAINING, {"billing": 1, "audit": 1})


def test_a_client_that_revives_a_deleted_topic_is_seen(
    admin: AdminClient, plan: Plan, first: str, pulsar_client: Any, pulsar_broker: Broker
) -> None:
    assert only(roll(admin, plan, END_MS)).stage is Stage.DELETED
    if not pulsar_broker.version.startswith("4.0."):
        with pytest.raises(pulsar.PulsarException):  # later brokers refuse a partition without its topic
            publish(pulsar_client, first, 0, b"lost")
        assert roll(admin, plan, END_MS).retired == ()
        return
    publish(pulsar_client, first, 0, b"lost")
    orphan = only(roll(admin, plan, END_MS))
    assert (orphan.topic, orphan.stage) == (partition_topic(first, 0), Stage.STRANDED)
    assert "1 entry" in orphan.note


def test_three_that_roll_at_once_do_no_harm(
    admin: AdminClient, plan: Plan, first: str, pulsar_client: Any, reader: Reader
) -> None:
    publish(pulsar_client, first, 0, b"kept")
    with ThreadPoolExecutor(3) as pool:
        rolls = [pool.submit(roll, admin, plan, END_MS) for _ in range(3)]
        assert [only(rolled.result()).stage for rolled in rolls] == [Stage.DRAINING] * 3
    for subscription in plan.subscriptions:
        assert reader.drain(first, subscription) == {b"kept"}
    with ThreadPoolExecutor(3) as pool:
        rolls = [pool.submit(roll, admin, plan, END_MS) for _ in range(3)]
        stages = {topic.stage for rolled in rolls for topic in rolled.result().retired}
    # Whoever meets it half gone leaves it to the next roll, and each of them may.
    assert stages <= {Stage.DELETED, Stage.DRAINED}
    eventually(lambda: roll(admin, plan, END_MS).retired == ())


def test_a_keeper_rolls_now_and_then_and_says_what_happened(admin: AdminClient, plan: Plan, pulsar_client: Any) -> None:
    events: list[Event] = []
    clock = ManualClock(START_MS)
    keeper = CalendarRoller(admin, plan, clock, hooks=(events.append,))
    made = keeper.tick()
    assert made is not None
    assert made.open_topics == 4
    assert keeper.tick() is None, "not yet time"
    clock.advance(END_MS - START_MS)
    assert keeper.tick() is not None
    first = CalendarTopic(plan.due_topic, HOUR_MS, START_MS).name
    assert [(event.name, event.fields) for event in events] == [("calendar_topic_deleted", {"topic": first})]

    second = CalendarTopic(plan.due_topic, HOUR_MS, START_MS + HOUR_MS).name
    publish(pulsar_client, second, 0, b"x")
    for subscription in plan.subscriptions:
        admin.subscriptions.delete(second, subscription)
    events.clear()
    for _ in range(2):
        clock.advance(HOUR_MS)
        keeper.tick()
    stuck = [event for event in events if event.fields.get("topic") == second]
    assert [(event.name, event.level) for event in stuck] == [("calendar_topic_stuck", "warning")], "once"


def test_a_keeper_survives_a_broker_that_does_not_answer(plan: Plan) -> None:
    events: list[Event] = []
    clock = ManualClock(START_MS)
    with AdminClient("http://127.0.0.1:1", retry_for_s=0) as nobody:
        keeper = CalendarRoller(nobody, plan, clock, hooks=(events.append,))
        assert keeper.tick() is None
        clock.advance(MINUTE_MS)
        assert keeper.tick() is None
    assert [event.name for event in events] == ["calendar_roll_failed"] * 2

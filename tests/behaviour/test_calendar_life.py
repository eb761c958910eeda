"""The life of a calendar's topics on a real broker, and consumers that follow them; their intervals are seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import httpx
import pulsar
import pytest

from tests.broker.due_topic import SUBSCRIPTION, Events, Handled, Sender, backlog, make_topic, now_ms, running
from tests.support.manual_clock import ManualClock
from timewheel.broker.admin.client import AdminClient
from timewheel.consumers import DelayedConsumer
from timewheel.consumers.rolling_topics import MAX_VISITS, open_ahead_ms, rest_ms
from timewheel.consumers.source import Source
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.early_delivery import hold_bound_ms
from timewheel.core.envelope import Envelope
from timewheel.core.errors import TopologyError
from timewheel.core.names import CalendarTopic, Names, namespace_of, partition_topic
from timewheel.core.plan import Calendar, Plan
from timewheel.provision import calendar_life
from timewheel.provision.calendar_life import (
    STUCK_AFTER_MS,
    CalendarRoller,
    LifeState,
    RetiredTopic,
    Rolled,
    Stage,
    roll,
    stage_of,
)
from timewheel.testing import Broker, eventually

if TYPE_CHECKING:
    from tests.broker.conftest import Connect
    from timewheel.hooks import Event


START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
GRACE_MS = 5 * MINUTE_MS
END_MS = START_MS + HOUR_MS + GRACE_MS  # when the first interval has passed, its grace included


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
    """Handles what waits in a topic, each time with a client of its own: the end of a topic takes the connection along
    (broker-facts: end-of-a-topic).
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


def test_a_passed_topic_is_drained_by_all_left_terminated_and_only_then_deleted(
    admin: AdminClient, plan: Plan, first: str, pulsar_client: Any, reader: Reader
) -> None:
    publish(pulsar_client, first, 0, b"at once")
    publish(pulsar_client, first, 1, b"later", deliver_after=timedelta(seconds=4))
    late = pulsar_client.create_producer(partition_topic(first, 0))

    assert roll(admin, plan, END_MS - 1).retired == (), "the grace"
    # Nobody is connected but a producer: the broker would delete it, backlog and all (the control below).
    passed = only(roll(admin, plan, END_MS))
    assert (passed.topic, passed.stage, passed.backlog) == (first, Stage.DRAINING, {"billing": 2, "audit": 2})
    late.send(b"after the grace")

    # What waits is still delivered, delayed messages and late ones included.
    waits = {b"at once", b"later", b"after the grace"}
    assert reader.drain(first, "billing") == waits
    draining = only(roll(admin, plan, END_MS))
    assert (draining.backlog, "audit" in draining.note, "billing" in draining.note) == (
        {"billing": 0, "audit": 3},
        True,
        False,
    )
    assert reader.drain(first, "audit") == waits

    follower = reader.subscribe(first, 1, "audit")
    in_use = only(roll(admin, plan, END_MS))
    assert (in_use.stage, "audit" in in_use.note) == (Stage.IN_USE, True)
    follower.close()

    # The producer that is still connected cannot send any more, nor make the topic anew.
    assert only(roll(admin, plan, END_MS)).stage is Stage.DELETED
    with pytest.raises(pulsar.PulsarException):
        late.send(b"too late")
    assert first.removeprefix(f"{plan.due_topic}.tw.") not in names(admin, plan)
    assert not [name for name in admin.topics.list(namespace_of(plan.due_topic)) if name.startswith(first)]
    # The interval has passed: nothing makes the topic again, and nothing is left to do.
    again = roll(admin, plan, END_MS)
    assert (again.retired, again.made.steps) == ((), ())


def test_a_topic_that_was_terminated_by_hand_is_drained_and_deleted_once_its_clients_have_left(
    admin: AdminClient, plan: Plan, first: str, pulsar_client: Any, reader: Reader
) -> None:
    publish(pulsar_client, first, 1, b"x")
    admin.topics.terminate(first)
    with pytest.raises(pulsar.TopicTerminated):
        pulsar_client.create_producer(partition_topic(first, 1))
    assert only(roll(admin, plan, END_MS)).stage is Stage.DRAINING
    for subscription in plan.subscriptions:
        assert reader.drain(first, subscription) == {b"x"}
    follower = reader.subscribe(first, 1, "audit")
    held = only(roll(admin, plan, END_MS))
    assert (held.stage, "no client is connected" in held.note) == (Stage.DRAINED, True)
    follower.close()
    assert only(roll(admin, plan, END_MS)).stage is Stage.DELETED


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
    admin: AdminClient, plan: Plan, first: str, pulsar_broker: Broker
) -> None:
    path = partition_topic(first, 0).replace("://", "/")
    httpx.post(f"{pulsar_broker.admin_url}/admin/v2/{path}/terminate", timeout=30).raise_for_status()
    assert only(roll(admin, plan, END_MS)).stage is Stage.DELETED


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
    clock.advance(HOUR_MS // 4 - 1)
    assert keeper.tick() is None, "not yet time"
    clock.advance(END_MS - clock.now_ms())
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


def test_a_topic_that_consumers_do_not_leave_is_told_after_an_hour(
    admin: AdminClient, plan: Plan, first: str, reader: Reader
) -> None:
    events = Events()
    clock = ManualClock(END_MS)
    keeper = CalendarRoller(admin, plan, clock, hooks=(events,))
    follower = reader.subscribe(first, 0, "audit")
    for pause_ms in (0, STUCK_AFTER_MS - 1):
        clock.advance(pause_ms)
        rolled = keeper.tick()
        assert rolled is not None
        assert rolled.retired[0].stage is Stage.IN_USE
        assert not events.named("calendar_topic_stuck")
    for _ in range(2):
        clock.advance(MINUTE_MS)
        keeper.tick()
    (stuck,) = events.named("calendar_topic_stuck")
    assert (stuck.fields["topic"], "audit" in str(stuck.fields["note"])) == (first, True)
    follower.close()
    clock.advance(MINUTE_MS)
    keeper.tick()
    assert first in {event.fields["topic"] for event in events.named("calendar_topic_deleted")}


INTERVAL_MS = 2_000


@pytest.fixture
def short_plan(topic: str) -> Plan:
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
    source = consumer._source
    assert isinstance(source, Source)
    return source.open_topics


@pytest.mark.short
def test_nothing_is_missed_early_or_late_at_a_change_of_interval(
    client: Any, pulsar_broker: Broker, short_plan: Plan
) -> None:
    # The broker's own tick, which the lead is made for.
    short_plan = replace(short_plan, tick_ms=1_000)
    begin_ms = now_ms()
    topics = make_calendar(pulsar_broker, short_plan, begin_ms, begin_ms + 40_000)
    sender, handled = Sender(client, short_plan), Handled()
    consumer = DelayedConsumer(client, short_plan, SUBSCRIPTION)
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
        sender.close_producers()
        while len(handled.times) < count and now_ms() < begin_ms + 60_000:
            max_open = max(max_open, len(open_topics(consumer)))
            threading.Event().wait(0.02)
        assert len(handled.times) == count
    assert set(handled.times.values()) == {1}
    assert handled.early == 0
    hold_ms = hold_bound_ms(short_plan)
    assert max_open <= 2 + 2 * (rest_ms(INTERVAL_MS, hold_ms) + open_ahead_ms(INTERVAL_MS, hold_ms)) // INTERVAL_MS
    assert sum(backlog(pulsar_broker, topic) for topic in topics.values()) == 0


def test_a_topic_is_subscribed_to_before_its_interval_begins(
    client: Any, pulsar_broker: Broker, short_plan: Plan
) -> None:
    topics = make_calendar(pulsar_broker, short_plan, now_ms(), now_ms() + 40_000)
    ahead: set[int] = set()
    with DelayedConsumer(client, short_plan, SUBSCRIPTION, hooks=()) as consumer:

        def is_ahead() -> bool:
            opened = open_topics(consumer)
            following = now_ms() // INTERVAL_MS + 1  # read after them: it was open before it began
            if topics.get(following) in opened:
                ahead.add(following)
            return len(ahead) == 3

        eventually(is_ahead, 60)
        eventually(lambda: consumer.ready, 60)


def test_a_passed_topic_is_drained_though_terminated_and_closed_so_that_it_can_be_removed(
    client: Any, pulsar_broker: Broker, short_plan: Plan
) -> None:
    topics = make_calendar(pulsar_broker, short_plan, now_ms(), now_ms() + 30_000)
    sender, handled = Sender(client, short_plan), Handled()
    interval = now_ms() // INTERVAL_MS + 1
    for number in range(100):
        sender.send(f"t{number}", interval * INTERVAL_MS + 19 * number)
    sender.flush()
    sender.close_producers()
    with AdminClient(pulsar_broker.admin_url) as admin:
        admin.topics.terminate(topics[interval])
        with running(DelayedConsumer(client, short_plan, SUBSCRIPTION, hooks=()), handled):
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


def ended_at_once(state: LifeState, subscriptions: Sequence[str], now_ms: int, grace_ms: int) -> Stage:
    """The control: a passed topic is terminated at once, whoever is connected."""
    stage = stage_of(state, subscriptions, now_ms, grace_ms)
    return Stage.PASSED if not state.terminated and stage in {Stage.DRAINING, Stage.IN_USE} else stage


def connected_to_the_end(admin: AdminClient, topic: str, subscribe: Callable[[], Any]) -> None:
    subscribe()
    admin.topics.terminate(topic)


def subscribed_after_the_end(admin: AdminClient, topic: str, subscribe: Callable[[], Any]) -> None:
    admin.topics.terminate(topic)
    subscribe()


def acknowledged_to_the_end(admin: AdminClient, topic: str, subscribe: Callable[[], Any]) -> None:
    consumer = subscribe()
    admin.topics.terminate(topic)
    consumer.acknowledge(consumer.receive(timeout_millis=30_000))


@pytest.mark.real
@pytest.mark.parametrize("reaches", [connected_to_the_end, subscribed_after_the_end, acknowledged_to_the_end])
def test_a_consumer_that_reaches_the_end_of_a_topic_takes_down_the_connection_of_its_client(
    admin: AdminClient, client: Any, pulsar_broker: Broker, topic: str, reaches: Callable[..., None]
) -> None:
    neighbour = client.subscribe(topic, SUBSCRIPTION)
    ended = f"{topic}-ended"
    make_topic(pulsar_broker, ended, subscriptions=(SUBSCRIPTION,))
    if reaches is acknowledged_to_the_end:
        publish(client, ended, 0, b"x")
    with losses_of(neighbour) as lost:
        reaches(
            admin, ended, lambda: client.subscribe(partition_topic(ended, 0), SUBSCRIPTION, pulsar.ConsumerType.Shared)
        )
        eventually(lambda: lost, 60)


@contextmanager
def losses_of(consumer: Any) -> Iterator[list[int]]:
    """The times at which a consumer's connection was lost: it is away for a tenth of a second at least."""
    lost: list[int] = []
    stop = threading.Event()

    def watch() -> None:
        was_connected = True
        while not stop.wait(0.01):
            is_connected = consumer.is_connected()
            if was_connected and not is_connected:
                lost.append(now_ms())
            was_connected = is_connected

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lost
    finally:
        stop.set()
        thread.join()


@pytest.mark.short
@pytest.mark.parametrize(("rule", "is_felt"), [(stage_of, False), (ended_at_once, True)])
def test_the_end_of_passed_topics_is_not_felt_on_the_connection_of_their_consumer(
    monkeypatch: pytest.MonkeyPatch,
    admin: AdminClient,
    client: Any,
    short_plan: Plan,
    namespace: str,
    topic: str,
    *,
    rule: Any,
    is_felt: bool,
) -> None:
    monkeypatch.setattr(calendar_life, "stage_of", rule)
    # With the broker's own tick, topics stay open for longer than a roll takes, as intervals of hours do.
    interval_ms = 4_000
    plan = replace(
        short_plan,
        due_topic=f"persistent://{namespace}/due",
        scheme=Calendar(interval_ms=interval_ms),
        max_delay_ms=24_000,
        tick_ms=1_000,
        guard_ms=1_000,
    )
    roll(admin, plan, now_ms())
    neighbour = client.subscribe(topic, SUBSCRIPTION, consumer_type=pulsar.ConsumerType.Shared)
    sender, handled = Sender(client, plan), Handled()
    first = now_ms() // interval_ms + 1
    passing = {Names(plan).calendar_topic(first), Names(plan).calendar_topic(first + 1)}
    for number in range(20):
        sender.send(f"t{number}", first * interval_ms + 400 * number)
    sender.flush()
    sender.close_producers()
    deleted: set[str] = set()
    with losses_of(neighbour) as lost, running(DelayedConsumer(client, plan, SUBSCRIPTION, hooks=()), handled):

        def is_over() -> bool:
            retired = roll(admin, plan, now_ms()).retired
            deleted.update(each.topic for each in retired if each.stage is Stage.DELETED)
            return bool(lost) or deleted >= passing

        eventually(is_over, 90)
        eventually(lambda: len(handled.times) == 20, 60)
    assert bool(lost) is is_felt
    assert is_felt or set(handled.times.values()) == {1}


@pytest.mark.short
def test_a_consumer_that_was_away_drains_the_intervals_that_passed(
    client: Any, pulsar_broker: Broker, short_plan: Plan
) -> None:
    begin_ms = now_ms()
    # The passed ones are filled by hand: nobody sends into the past.
    topics = make_calendar(pulsar_broker, short_plan, begin_ms - 44_000, begin_ms)
    passed = [topic for interval, topic in topics.items() if interval < begin_ms // INTERVAL_MS - 5]
    for number, topic in enumerate(passed):
        producer = client.create_producer(partition_topic(topic, 0))
        producer.send(b"", properties=Envelope(f"t{number}", begin_ms - 10_000, begin_ms - 20_000).properties())
        producer.close()
    assert len(passed) > MAX_VISITS
    # Those to come are made last: however long all this took, they are there when the consumer begins.
    make_calendar(pulsar_broker, short_plan, begin_ms + INTERVAL_MS, now_ms() + 30_000)
    handled = Handled()
    with running(DelayedConsumer(client, short_plan, SUBSCRIPTION, hooks=()), handled):
        eventually(lambda: len(handled.times) == len(passed), 60)
        eventually(lambda: sum(backlog(pulsar_broker, topic) for topic in passed) == 0)
    assert set(handled.times.values()) == {1}


def test_a_missing_current_topic_is_an_error_that_names_the_command(client: Any, short_plan: Plan) -> None:
    with pytest.raises(TopologyError, match="timewheel topics ensure"):
        DelayedConsumer(client, short_plan, SUBSCRIPTION).start()


def test_a_topic_that_is_missing_ahead_is_told_and_followed_once_it_is_there(
    client: Any, pulsar_broker: Broker, short_plan: Plan
) -> None:
    begin_ms = now_ms()
    make_calendar(pulsar_broker, short_plan, begin_ms, begin_ms + INTERVAL_MS)
    events, handled = Events(), Handled()
    consumer = DelayedConsumer(client, short_plan, SUBSCRIPTION, hooks=(events,))
    with running(consumer, handled):
        eventually(lambda: events.named("calendar_topic_missing"), 60)
        missing = events.named("calendar_topic_missing")[0]
        assert missing.level == "error"
        assert "timewheel topics ensure" in str(missing.fields["remedy"])
        eventually(lambda: not consumer.ready, 60)
        make_calendar(pulsar_broker, short_plan, now_ms(), now_ms() + 20_000)
        eventually(lambda: consumer.ready, 60)
        sender = Sender(client, short_plan)
        sender.send("a", now_ms() + 3_000)
        eventually(lambda: handled.times == {"a": 1}, 60)
        sender.close_producers()

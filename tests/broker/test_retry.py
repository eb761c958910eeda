"""Timers whose handlers fail, on a real broker: tried again by their own subscription, parked at the end."""

from __future__ import annotations

import datetime as dt
import threading
from dataclasses import replace
from typing import Any, Literal

import pulsar
import pytest

from tests.broker.due_topic import SUBSCRIPTION, Events, Handled, backlog, left_in, now_ms, running
from tests.broker.test_cancel import EVERYDAY, SCHEMES, plan_on, provisioned
from timewheel.broker.admin import AdminClient
from timewheel.client.parked import PARKED_ERROR, PARKED_FROM, PARKED_REASON
from timewheel.consumers import (
    ConsumerCounts,
    DelayedConsumer,
    DelayedMessage,
    FixedBackoff,
    Overdue,
    ParkTimer,
    RetryLater,
    RetryPolicy,
)
from timewheel.consumers.errors import SubscribeRefused
from timewheel.consumers.inbox import MemoryInbox
from timewheel.core.cancel_policy import Cancel
from timewheel.core.envelope import Envelope
from timewheel.core.errors import TopologyError
from timewheel.core.names import PARKED_SUBSCRIPTION, RELAY_SUBSCRIPTION, Names
from timewheel.core.plan import Plan, Scheme, Tiered
from timewheel.core.topology import topology
from timewheel.events import TimerParked
from timewheel.producers import DelayedProducer
from timewheel.provision import ensure
from timewheel.testing import Broker, eventually

OTHER = "audit"
WAIT_S = 60
SECOND = dt.timedelta(seconds=1)


def retrying(topic: str, scheme: Scheme | None = None, **changes: Any) -> Plan:
    return plan_on(topic, scheme, **{"cancel": None, "retry": True, **changes})


@pytest.fixture
def plan(pulsar_broker: Broker, topic: str) -> Plan:
    return provisioned(pulsar_broker, retrying(topic))


def left(broker: Broker, plan: Plan, subscription: str = SUBSCRIPTION) -> int:
    """Count the messages that the subscription has not acknowledged, in due topics and in its own."""
    names = [spec.name for spec in topology(plan, now_ms()).topics if subscription in spec.subscriptions]
    return left_in(broker, names, subscription)


def parked_in(client: Any, plan: Plan, count: int, subscription: str = SUBSCRIPTION) -> list[Any]:
    """So many parked messages; and no more."""
    consumer = client.subscribe(Names(plan).parked(subscription), PARKED_SUBSCRIPTION)
    found = [consumer.receive(timeout_millis=WAIT_S * 1_000) for _ in range(count)]
    with pytest.raises(pulsar.Timeout):
        consumer.receive(timeout_millis=500)
    consumer.close()
    return found


class Attempts:
    """A handler that fails until an attempt, and notes when it was called."""

    def __init__(self, good: int, error: Exception | None = None) -> None:
        self.good = good
        self.error = error or ValueError("not yet")
        self.seen: list[tuple[str | None, int, int]] = []
        self.due_ms: list[int] = []
        self._lock = threading.Lock()

    def __call__(self, message: DelayedMessage) -> None:
        with self._lock:
            self.seen.append((message.timer_id, message.attempt, now_ms()))
            assert message.due_at is not None
            self.due_ms.append(round(message.due_at.timestamp() * 1_000))
        if message.attempt < self.good:
            raise self.error

    def of(self, timer_id: str) -> list[int]:
        return [attempt for known, attempt, _ in self.seen if known == timer_id]


@pytest.mark.parametrize(
    "scheme",
    [
        pytest.param(scheme, id=name, marks=() if name in EVERYDAY else pytest.mark.short)
        for name, scheme in SCHEMES.items()
    ],
)
def test_it_is_tried_again_after_its_back_off_and_by_its_own_subscription_alone(
    client: Any, pulsar_broker: Broker, topic: str, scheme: Scheme
) -> None:
    plan = provisioned(pulsar_broker, retrying(topic, scheme, subscriptions=(SUBSCRIPTION, OTHER)))
    names = [f"t{number}" for number in range(8)]
    with DelayedProducer(client, plan) as producer:
        for name in names:
            producer.send(b"x", deliver_after=SECOND, timer_id=name, partition_key=name)
    tried, other = Attempts(2), Handled()
    policy = RetryPolicy(backoff=lambda attempt, *_: (1 + 5 * attempt) * SECOND)  # 1 s, then 6 s: through a tier
    consumer = DelayedConsumer(client, plan, SUBSCRIPTION, retry=policy)
    with running(DelayedConsumer(client, plan, OTHER, relay=False), other), running(consumer, tried):
        eventually(lambda: len(tried.seen) >= 24, WAIT_S)
        eventually(lambda: left(pulsar_broker, plan) == left(pulsar_broker, plan, OTHER) == 0, WAIT_S)
        counts = consumer.counts
    assert {name: tried.of(name) for name in names} == {name: [0, 1, 2] for name in names}
    assert other.times == dict.fromkeys(names, 1)
    for name in names:
        first, second, third = [at_ms for known, _, at_ms in tried.seen if known == name]
        assert second - first >= 1_000
        assert third - second >= 6_000
    assert all(at_ms >= due_ms for (_, _, at_ms), due_ms in zip(tried.seen, tried.due_ms, strict=True)), "never early"
    assert (counts.retried, counts.done, counts.parked, counts.failed) == (16, 8, 0, 0)


def test_at_the_end_it_is_parked_with_all_that_it_had(client: Any, pulsar_broker: Broker, plan: Plan) -> None:
    events = Events()
    with DelayedProducer(client, plan) as producer:
        timer = producer.send(
            b"pay", timer_id="poison", partition_key="k", properties={"a": "b"}, event_timestamp=1_767_225_600_000
        )
    tried = Attempts(99)
    policy = RetryPolicy(max_attempts=3, backoff=FixedBackoff(SECOND / 10))
    consumer = DelayedConsumer(client, plan, SUBSCRIPTION, retry=policy, hooks=(events,))
    with running(consumer, tried):
        eventually(lambda: consumer.counts.parked == 1 and left(pulsar_broker, plan) == 0, WAIT_S)
    assert tried.of("poison") == [0, 1, 2]
    (message,) = parked_in(client, plan, 1)
    properties = message.properties()
    envelope = Envelope.read(properties)
    assert envelope is not None
    assert (envelope.timer_id, envelope.life.attempt, envelope.life.first_due_ms) == ("poison", 2, timer.due_ms)
    assert (message.data(), message.partition_key(), properties["a"]) == (b"pay", "k", "b")
    assert message.event_timestamp() == 1_767_225_600_000
    assert properties[PARKED_REASON] == "it was tried 3 times, and no more is allowed"
    assert properties[PARKED_ERROR] == "ValueError('not yet')"
    assert properties[PARKED_FROM].startswith(f"{Names(plan).retry(SUBSCRIPTION)}-partition-")
    assert len(events.named("handler_failed")) == 3
    (alarm,) = events.named("timer_parked")
    assert isinstance(alarm, TimerParked)
    assert alarm.reason == properties[PARKED_REASON]


def test_handlers_and_who_receives_by_hand_say_what_they_want(client: Any, pulsar_broker: Broker, plan: Plan) -> None:
    with DelayedProducer(client, plan) as producer:
        for name in ("later", "give up", "by hand"):
            producer.send(b"x", timer_id=name)
    seen: list[tuple[str | None, int]] = []

    def handle(message: DelayedMessage) -> None:
        seen.append((message.timer_id, message.attempt))
        if message.timer_id == "give up":
            raise ParkTimer("no such customer")
        if message.attempt == 0:
            raise RetryLater(SECOND / 10)

    consumer = DelayedConsumer(client, plan, SUBSCRIPTION)
    with running(consumer, handle):
        eventually(lambda: consumer.counts.done == 2 and left(pulsar_broker, plan) == 0, WAIT_S)
    assert sorted(seen) == [("by hand", 0), ("by hand", 1), ("give up", 0), ("later", 0), ("later", 1)]

    with DelayedProducer(client, plan) as producer:
        producer.send(b"x", timer_id="received")
    with DelayedConsumer(client, plan, SUBSCRIPTION) as receiving:
        receiving.retry(receiving.receive(SECOND * WAIT_S), SECOND / 10)
        again = receiving.receive(SECOND * WAIT_S)
        assert (again.timer_id, again.attempt) == ("received", 1)
        receiving.park(again, "seen enough")
        with pytest.raises(pulsar.Timeout):
            receiving.receive(SECOND)
    reasons = {one.properties()["tw-id"]: one.properties()[PARKED_REASON] for one in parked_in(client, plan, 2)}
    assert reasons == {"give up": "no such customer", "received": "seen enough"}


@pytest.mark.parametrize("then", ["drop", "park"])
def test_what_comes_too_late_to_be_of_use_is_dropped_or_parked(
    client: Any, pulsar_broker: Broker, plan: Plan, then: Literal["drop", "park"]
) -> None:
    handled = Handled()
    with DelayedProducer(client, plan) as producer:
        late = producer.send(b"x", timer_id="late")
        eventually(lambda: now_ms() - late.due_ms > 2_000, WAIT_S)
        producer.send(b"x", timer_id="in time", deliver_after=SECOND)
        consumer = DelayedConsumer(client, plan, SUBSCRIPTION, overdue=Overdue(2 * SECOND, then))
        with running(consumer, handled):
            eventually(lambda: left(pulsar_broker, plan) == 0, WAIT_S)
            counts = consumer.counts
    assert handled.times == {"in time": 1}
    assert (counts.overdue, counts.parked) == ((1, 0) if then == "drop" else (0, 1))
    for message in parked_in(client, plan, counts.parked):
        assert "after its due time, and is useful for 2s only" in message.properties()[PARKED_REASON]


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared], ids=lambda one: one.name)
def test_a_cancel_reaches_what_is_to_be_tried_again(
    client: Any, pulsar_broker: Broker, topic: str, kind: pulsar.ConsumerType
) -> None:
    plan = provisioned(pulsar_broker, retrying(topic, cancel=Cancel(skew_ms=100)))
    failed = threading.Event()

    def handle(message: DelayedMessage) -> None:
        assert message.attempt == 0
        failed.set()
        raise RetryLater(5 * SECOND)

    consumer = DelayedConsumer(client, plan, SUBSCRIPTION, consumer_type=kind)
    with DelayedProducer(client, plan) as producer, running(consumer, handle):
        timer = producer.send(b"x", timer_id="order", partition_key="k")
        assert failed.wait(WAIT_S)
        eventually(lambda: consumer.counts.retried == 1, WAIT_S)
        producer.cancel(timer)
        eventually(lambda: left(pulsar_broker, plan) == 0, WAIT_S)
        assert (consumer.counts.cancelled, consumer.counts.handed) == (1, 1)


def test_a_copy_of_an_attempt_that_went_on_begins_no_second_chain(
    client: Any, pulsar_broker: Broker, plan: Plan
) -> None:
    """As a killed consumer leaves it: the successor is stored, and the attempt was not acknowledged."""
    inbox, tried = MemoryInbox(), Attempts(1)
    policy = RetryPolicy(backoff=FixedBackoff(3 * SECOND))

    def one_comes() -> ConsumerCounts:
        with DelayedProducer(client, plan) as producer:
            producer.send(b"x", timer_id="t")
        consumer = DelayedConsumer(client, plan, SUBSCRIPTION, retry=policy, inbox=inbox)
        with running(consumer, tried):
            eventually(lambda: consumer.counts.retried + consumer.counts.skipped == 1, WAIT_S)
            eventually(lambda: backlog(pulsar_broker, plan.due_topic) == 0, WAIT_S)
        return consumer.counts

    assert one_comes().retried == 1
    assert one_comes().skipped == 1
    with running(DelayedConsumer(client, plan, SUBSCRIPTION, retry=policy, inbox=inbox), tried):
        eventually(lambda: left(pulsar_broker, plan) == 0, WAIT_S)
    assert tried.of("t") == [0, 1]


def test_a_plan_without_topics_for_it_is_refused_before_anything_is_subscribed(
    client: Any, pulsar_broker: Broker, topic: str
) -> None:
    plan = provisioned(pulsar_broker, retrying(topic, retry=False))
    with pytest.raises(SubscribeRefused, match="retry = true"):
        DelayedConsumer(client, plan, SUBSCRIPTION, retry=RetryPolicy())
    grown = replace(plan, retry=True, revision=2)
    with (
        pytest.raises(TopologyError, match="timewheel topics ensure"),
        DelayedConsumer(client, grown, SUBSCRIPTION, retry=RetryPolicy()),
    ):
        raise AssertionError("it began without its topic")
    with DelayedConsumer(client, plan, SUBSCRIPTION) as consumer, DelayedProducer(client, plan) as producer:
        producer.send(b"x")
        message = consumer.receive(SECOND * WAIT_S)
        with pytest.raises(SubscribeRefused, match="retry = true"):
            consumer.retry(message)
        consumer.acknowledge(message)


def test_what_has_no_topic_to_wait_in_is_kept_until_there_is_one(
    client: Any, pulsar_broker: Broker, topic: str
) -> None:
    """As where consumers start with a new plan before its topics are made: the client would make one, bare."""
    tiers = Tiered(window_ms=1_000, tiers_ms=(1_000,))
    plan = provisioned(pulsar_broker, retrying(topic, tiers))
    grown = replace(plan, scheme=replace(tiers, tiers_ms=(1_000, 10_000)), revision=2)
    with DelayedProducer(client, plan) as producer:
        producer.send(b"x", timer_id="t")
    events = Events()
    consumer = DelayedConsumer(client, grown, SUBSCRIPTION, relay=False, hooks=(events,))
    (added,) = {spec.name for spec in topology(grown, 0).topics} - {spec.name for spec in topology(plan, 0).topics}
    with running(consumer, Attempts(1, RetryLater(20 * SECOND))), AdminClient(pulsar_broker.admin_url) as admin:
        eventually(lambda: events.named("republish_failed"), WAIT_S)
        assert backlog(pulsar_broker, topic) == 1, "not acknowledged"
        assert not [name for name in admin.topics.list("public/default") if name.startswith(added)]
        provisioned(pulsar_broker, grown)
        eventually(lambda: consumer.counts.retried == 1, WAIT_S)
        eventually(lambda: backlog(pulsar_broker, topic) == 0, WAIT_S)
        assert backlog(pulsar_broker, added, RELAY_SUBSCRIPTION) == 1


def test_a_topic_that_took_timers_before_and_refuses_them_now_is_opened_anew_when_it_is_there_again(
    client: Any, pulsar_broker: Broker, plan: Plan
) -> None:
    parked = Names(plan).parked(SUBSCRIPTION)
    events = Events()
    with DelayedProducer(client, plan) as producer, AdminClient(pulsar_broker.admin_url) as admin:
        consumer = DelayedConsumer(client, plan, SUBSCRIPTION, hooks=(events,))
        with running(consumer, Attempts(1, ParkTimer("bad"))):
            producer.send(b"x", timer_id="opens the producer")
            eventually(lambda: consumer.counts.parked == 1, WAIT_S)
            admin.topics.terminate(parked)
            producer.send(b"x", timer_id="t")
            refused = eventually(lambda: events.named("republish_failed"), WAIT_S)
            assert "TopicTerminated" in str(refused[0].fields["error"])
            assert (consumer.counts.parked, backlog(pulsar_broker, plan.due_topic)) == (1, 1), "not acknowledged"
            assert len(events.named("timer_parked")) == 1, "told once it is stored"
            admin.topics.delete(parked, force=True)
            provisioned(pulsar_broker, plan)
            eventually(lambda: consumer.counts.parked == len(events.named("timer_parked")) == 2, WAIT_S)
    assert len(parked_in(client, plan, 1)) == 1


def test_without_the_topic_where_timers_are_parked_a_consumer_does_not_begin(
    client: Any, pulsar_broker: Broker, plan: Plan
) -> None:
    parked = Names(plan).parked(SUBSCRIPTION)
    with AdminClient(pulsar_broker.admin_url) as admin:
        admin.topics.delete(parked)
    with (
        pytest.raises(TopologyError, match=parked.rpartition("/")[2]),
        DelayedConsumer(client, plan, SUBSCRIPTION, retry=RetryPolicy()),
    ):
        raise AssertionError("it began without its topic")


def test_what_waits_in_a_tier_for_a_subscription_without_topics_is_a_dead_letter(
    client: Any, pulsar_broker: Broker, topic: str
) -> None:
    plan = provisioned(pulsar_broker, retrying(topic, SCHEMES["tiered"]))
    with DelayedProducer(client, plan) as producer:
        producer.send(b"x", timer_id="t")
    consumer = DelayedConsumer(client, plan, SUBSCRIPTION)
    tried = Attempts(1, RetryLater(5 * SECOND))
    with running(consumer, tried):
        eventually(lambda: consumer.counts.retried == 1, WAIT_S)
        eventually(lambda: backlog(pulsar_broker, topic) == 0, WAIT_S)
    without = replace(plan, retry=False, revision=2)
    with running(DelayedConsumer(client, without, SUBSCRIPTION), tried), AdminClient(pulsar_broker.admin_url) as admin:
        dead = Names(plan).dead_letter
        eventually(lambda: backlog(pulsar_broker, dead, "timewheel-dead-letter") == 1, WAIT_S)
        ensure(admin, replace(plan, revision=3), now_ms=now_ms())
    reader = client.create_reader(f"{dead}-partition-0", pulsar.MessageId.earliest)
    reason = reader.read_next(WAIT_S * 1_000).properties()["tw-dead-reason"]
    reader.close()
    assert "a retry of billing" in reason
    assert tried.of("t") == [0]

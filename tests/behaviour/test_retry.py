"""Timers whose handlers fail, on a real broker: tried again, parked, and dealt with by `timewheel parked`."""

from __future__ import annotations

import datetime as dt
import json
import random
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import _pulsar
import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, Record

from tests.behaviour.test_cancel import EVERYDAY, SCHEMES, plan_on, provisioned
from tests.broker.due_topic import SUBSCRIPTION, Events, Handled, backlog, largest, left_in, now_ms, running
from tests.support.command_line import timewheel, well
from timewheel.broker.admin import AdminClient
from timewheel.client.dead_letters import PARKED_ERROR, PARKED_FROM, PARKED_REASON
from timewheel.consumers import (
    ConsumerCounts,
    DelayedConsumer,
    DelayedMessage,
    FixedBackoff,
    ParkTimer,
    RetryLater,
    RetryPolicy,
)
from timewheel.consumers.errors import SubscribeRefused
from timewheel.consumers.inbox import MemoryInbox
from timewheel.core.envelope import Envelope
from timewheel.core.errors import TopologyError
from timewheel.core.names import PARKED_SUBSCRIPTION, RELAY_SUBSCRIPTION, Names
from timewheel.core.plan import Cancel, Plan, Scheme, Tiered
from timewheel.core.planfile import save_plan
from timewheel.core.topology import topology
from timewheel.dead_letters import DeadLetterPosition, DeadLetters, dead_letters, drop, parked_box, replay_parked
from timewheel.errors import NoSuchTarget
from timewheel.events import TimerParked
from timewheel.inspect.status import status_of
from timewheel.producers import DelayedProducer
from timewheel.provision import ensure
from timewheel.provision.former_topics import RemovalStage, remove_drained
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


@pytest.mark.short
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


ParkedCommand = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def tiered(pulsar_broker: Broker, topic: str) -> Plan:
    tiered = retrying(topic, SCHEMES["tiered"], subscriptions=(SUBSCRIPTION, OTHER), cancel=Cancel(skew_ms=100))
    return provisioned(pulsar_broker, tiered)


@pytest.fixture
def parked_command(pulsar_broker: Broker, tiered: Plan, tmp_path: Path) -> ParkedCommand:
    save_plan(tiered, tmp_path / "plan.toml")

    def command(word: str, *arguments: str, whose: str = SUBSCRIPTION) -> subprocess.CompletedProcess[str]:
        urls = ["--admin-url", pulsar_broker.admin_url]
        urls += ["--service-url", pulsar_broker.service_url] if word in ("replay", "discard") else []
        whose_option = ["--subscription", whose] if whose else []
        return timewheel("parked", word, tmp_path / "plan.toml", *arguments, *whose_option, *urls)

    return command


def park(client: Any, broker: Broker, plan: Plan, *names: str, **options: Any) -> None:
    """Send these, and have the handler give them up."""

    def handle(message: DelayedMessage) -> None:
        raise ParkTimer(f"nobody called {message.timer_id}")

    with DelayedProducer(client, plan) as producer:
        for name in names:
            producer.send(b"\x00" + name.encode(), timer_id=name, partition_key="schlüssel", properties={"a": "b"})
    consumer = DelayedConsumer(client, plan, SUBSCRIPTION, **options)
    with running(consumer, handle):
        eventually(lambda: consumer.counts.parked == len(names) and left(broker, plan) == 0, WAIT_S)


def parked(broker: Broker, plan: Plan) -> DeadLetters:
    with AdminClient(broker.admin_url) as admin:
        return dead_letters(admin, parked_box(plan, SUBSCRIPTION))


def test_parked_timers_are_listed_shown_handled_again_and_discarded(
    client: Any, pulsar_broker: Broker, tiered: Plan, parked_command: ParkedCommand
) -> None:
    with DelayedProducer(client, tiered) as producer:
        park(client, pulsar_broker, tiered, "ann", "bob", "eve")
        producer.cancel("bob")  # whoever has it handled again wants that all the same

    listed = well(parked_command("list", "--json"))
    found = json.loads(listed.stdout)["dead_letters"]
    assert {one["timer_id"]: one["reason"] for one in found} == {
        "ann": "nobody called ann",
        "bob": "nobody called bob",
        "eve": "nobody called eve",
    }
    assert "3 of 3 parked timers" in parked_command("list").stdout
    assert json.loads(parked_command("list", "--json", whose=OTHER).stdout)["dead_letters"] == []
    shown = parked_command("show", "--id", "ann")
    assert "payload  4 bytes: b'\\x00ann'" in shown.stdout, shown.stdout
    assert "property a = b" in shown.stdout

    assert parked_command("replay").returncode == 2, "somebody has to say which"
    several = parked_command("list", whose="")
    assert (several.returncode, "the plan has several: billing, audit" in _words(several.stderr)) == (2, True)
    unknown = parked_command("list", whose="nobody")
    assert (unknown.returncode, "no subscription 'nobody', but billing, audit" in _words(unknown.stderr)) == (1, True)
    dry = well(parked_command("replay", "--all", "--dry-run", "--json"))
    assert all(
        one["sent_to"].startswith(f"{Names(tiered).retry(SUBSCRIPTION)}-")
        for one in json.loads(dry.stdout)["dead_letters"]
    )
    assert len(parked(pulsar_broker, tiered).dead_letters) == 3

    sent = parked_command("replay", "--reason", "called bob", "--id", "bob")
    assert "1 sent to be handled again, 0 left, of 1 selected" in sent.stdout, sent.stdout + sent.stderr
    gone = parked_command("discard", "--id", "eve")
    assert "1 discarded, 0 left" in gone.stdout, gone.stdout + gone.stderr
    assert {one.timer_id for one in parked(pulsar_broker, tiered).dead_letters} == {"ann"}

    seen: list[DelayedMessage] = []
    other = Handled()
    with (
        running(DelayedConsumer(client, tiered, SUBSCRIPTION), seen.append),
        running(DelayedConsumer(client, tiered, OTHER, relay=False), other),
    ):
        eventually(lambda: left(pulsar_broker, tiered) == left(pulsar_broker, tiered, OTHER) == 0, WAIT_S)
    (bob,) = seen
    assert (bob.timer_id, bob.attempt, bob.data(), bob.partition_key()) == ("bob", 0, b"\x00bob", "schlüssel")
    assert bob.properties() == {"a": "b"}
    assert (bob.generation or 0) > 0
    assert sorted(str(name) for name in other.times) == ["ann", "eve"], "the other one had them once; bob was cancelled"


class Order(Record):  # type: ignore[misc]  # pulsar ships no types
    number = Integer()


def test_it_keeps_its_schema(client: Any, pulsar_broker: Broker, tiered: Plan, parked_command: ParkedCommand) -> None:
    with DelayedProducer(client, tiered, schema=AvroSchema(Order)) as producer:
        producer.send(Order(number=7), timer_id="o")
    numbers: list[int] = []

    def handle(message: DelayedMessage) -> None:
        numbers.append(message.value().number)
        if not message.generation and not message.attempt:
            raise RetryLater(timedelta(milliseconds=100))
        if not message.generation:
            raise ParkTimer("at the second attempt")

    consumer = DelayedConsumer(client, tiered, SUBSCRIPTION, schema=AvroSchema(Order))
    with running(consumer, handle):
        eventually(lambda: consumer.counts.parked == 1, WAIT_S)
        eventually(lambda: len(parked(pulsar_broker, tiered).dead_letters) == 1, WAIT_S)
        well(parked_command("replay", "--all"))
        eventually(lambda: numbers == [7, 7, 7], WAIT_S)


def test_what_cannot_be_done_is_one_line(
    client: Any, pulsar_broker: Broker, tiered: Plan, parked_command: ParkedCommand, topic: str
) -> None:
    park(client, pulsar_broker, tiered, "t")
    held = client.subscribe(
        f"{Names(tiered).parked(SUBSCRIPTION)}", "timewheel-parked", consumer_type=pulsar.ConsumerType.Exclusive
    )
    refused = parked_command("discard", "--all")
    assert refused.returncode == 1
    assert "its subscription could not be opened" in refused.stderr
    held.close()
    assert parked_command("show", "12-7").returncode == 2
    assert DeadLetterPosition.parse("12:7") is not None
    assert parked_command("replay", "--all", "--rate", "nan").returncode == 2
    # Of a subscription that the plan had before, all but handling them again is possible.
    later = replace(tiered, subscriptions=("mail",), revision=2)
    with AdminClient(pulsar_broker.admin_url) as admin:
        (former,) = dead_letters(admin, parked_box(later, SUBSCRIPTION)).dead_letters
        (results,) = replay_parked(client, admin, later, SUBSCRIPTION, [former], rng=random.Random(1))
        assert "has no retry topic in this plan" in (results.refused or "")
        (dropped,) = drop(client, parked_box(later, SUBSCRIPTION), [former])
        assert dropped.refused is None
    without = Plan(due_topic=f"{topic}-other", subscriptions=(SUBSCRIPTION,))
    with pytest.raises(NoSuchTarget, match="retry = true"), AdminClient(pulsar_broker.admin_url) as admin:
        dead_letters(admin, parked_box(without, SUBSCRIPTION))


def test_what_is_parked_is_named_once_its_plan_keeps_nothing_back(
    client: Any, pulsar_broker: Broker, tiered: Plan
) -> None:
    park(client, pulsar_broker, tiered, "t")
    without, topic = replace(tiered, retry=False, cancel=None, revision=2), Names(tiered).parked(SUBSCRIPTION)
    with AdminClient(pulsar_broker.admin_url) as admin:
        report = ensure(admin, without, now_ms=admin.clock.now_ms())
        assert [(one.severity.word, one.subject) for one in report.findings if one.subject == topic] == [
            ("warning", topic)
        ]
        assert [one.name for one in status_of(admin, without).former] == [topic]
        (waits,) = [one for one in remove_drained(admin, without, let_go_ms=0) if one.topic == topic]
        assert (waits.stage, waits.backlog) == (RemovalStage.WAITS, 1)
        box = parked_box(without, SUBSCRIPTION)
        drop(client, box, dead_letters(admin, box).dead_letters)
        eventually(lambda: status_of(admin, without).former == (), 60)
        assert all(one.subject != topic for one in ensure(admin, without, now_ms=admin.clock.now_ms()).findings)
        removals = {one.topic: one.stage for one in remove_drained(admin, without)}
        assert removals[topic] is RemovalStage.REMOVED


def _words(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


def test_the_status_tells_what_is_tried_again_and_what_is_parked(
    client: Any, pulsar_broker: Broker, tiered: Plan, tmp_path: Path
) -> None:
    park(client, pulsar_broker, tiered, "ann", "bob")

    def handle(_: DelayedMessage) -> None:
        raise RetryLater(timedelta(seconds=20))

    with DelayedProducer(client, tiered) as producer:
        producer.send(b"x", timer_id="later")
    consumer = DelayedConsumer(client, tiered, SUBSCRIPTION, relay=False)
    with running(consumer, handle):
        eventually(lambda: consumer.counts.retried == 1, WAIT_S)
    with AdminClient(pulsar_broker.admin_url) as admin:
        found = status_of(admin, tiered)
        assert found.parked == 2
        kinds = {one.topic: one.kind for one in found.topics()}
        assert kinds[Names(tiered).retry(SUBSCRIPTION)] == "retry"
        (held,) = [one for one in found.topics() if one.kind == "tier" and one.entries]
        assert round(held.timers.count) == 1, "it waits in a tier, as any timer does"
        assert status_of(admin, provisioned(pulsar_broker, retrying(f"{tiered.due_topic}-2"))).parked == 0
    save_plan(tiered, tmp_path / "plan.toml")
    said = timewheel("status", tmp_path / "plan.toml", "--admin-url", pulsar_broker.admin_url)
    expected = "2 entries of parked timers wait for you, with one or many in each: timewheel parked list "
    assert expected in said.stdout, said.stderr


def given_up(client: Any, broker: Broker, plan: Plan, count: int, *, attempts: int) -> None:
    """All fail, with much to say about it, until they are parked."""

    def handle(message: DelayedMessage) -> None:
        raise ValueError(f"{message.timer_id} {'€' * 900}")

    policy = RetryPolicy(max_attempts=attempts, backoff=FixedBackoff(SECOND))
    consumer = DelayedConsumer(client, plan, SUBSCRIPTION, retry=policy)
    with running(consumer, handle):
        eventually(lambda: consumer.counts.parked == count and left(broker, plan) == 0, WAIT_S)


def test_what_is_large_is_parked_whole_or_in_parts_and_a_key_of_bytes_stays(
    client: Any, pulsar_broker: Broker, plan: Plan
) -> None:
    producer = client.create_producer(Names(plan).part(plan.due_topic, 0), batching_enabled=False)
    large = largest(producer, Envelope("large", now_ms(), now_ms()), room=1_000)
    in_parts = largest(producer, Envelope("in parts", now_ms(), now_ms()))
    producer.send(b"small", properties=Envelope("small", now_ms(), now_ms()).properties())
    building = _pulsar.MessageBuilder()
    building.content(b"x")
    building.properties(Envelope("odd", now_ms(), now_ms()).properties())
    building.partition_key(b"\xff\x00k")
    producer._producer.send(building.build())
    given_up(client, pulsar_broker, plan, 4, attempts=2)
    found: dict[str, list[Any]] = {}
    for message in parked_in(client, plan, 1 + 7 + 1 + 1):
        found.setdefault(message.properties()["tw-id"], []).append(message)

    (whole,), (small,), (odd,), parts = (found[name] for name in ("large", "small", "odd", "in parts"))
    assert whole.data() == large
    assert "tw-parked-error" not in whole.properties()
    assert whole.properties()["tw-parked-reason"].startswith("it was tried 2 times")
    assert "€" in small.properties()["tw-parked-error"]
    told = [part.properties()["tw-parked-part"] for part in parts]
    assert told == [*(f"payload {number}/6" for number in range(1, 7)), "rest 1/1"]
    assert b"".join(part.data() for part in parts[:-1]) == in_parts
    assert json.loads(parts[-1].data())["properties"]["tw-id"] == "in parts"
    assert "it cannot be stored to be tried again" in parts[0].properties()["tw-parked-reason"]
    with pytest.raises(UnicodeDecodeError) as caught:
        odd.partition_key()
    assert caught.value.object == b"\xff\x00k"

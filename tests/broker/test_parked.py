"""`timewheel parked` on a real broker: parked timers are listed, shown, handled again and discarded; none is lost."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import _pulsar
import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, Record

from tests.broker.due_topic import SUBSCRIPTION, Handled, now_ms, running
from tests.broker.test_cancel import SCHEMES, provisioned
from tests.broker.test_retry import OTHER, SECOND, WAIT_S, left, parked_in, retrying
from tests.support.command_line import timewheel
from timewheel.broker.admin import AdminClient
from timewheel.consumers import DelayedConsumer, DelayedMessage, FixedBackoff, ParkTimer, RetryLater, RetryPolicy
from timewheel.core.cancel_policy import Cancel
from timewheel.core.envelope import Envelope
from timewheel.core.names import Names
from timewheel.core.plan import Plan
from timewheel.core.planfile import save_plan
from timewheel.dead_letters import DeadLetterPosition, DeadLetters, dead_letters, drop, parked_box, replay_parked
from timewheel.errors import NoSuchTarget
from timewheel.inspect.status import status_of
from timewheel.producers import DelayedProducer
from timewheel.provision.former_removal import RemovalStage, remove_drained
from timewheel.provision.provisioning import ensure
from timewheel.testing import Broker, eventually

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def plan(pulsar_broker: Broker, topic: str) -> Plan:
    plan = retrying(topic, SCHEMES["tiered"], subscriptions=(SUBSCRIPTION, OTHER), cancel=Cancel(skew_ms=100))
    return provisioned(pulsar_broker, plan)


@pytest.fixture
def run(pulsar_broker: Broker, plan: Plan, tmp_path: Path) -> Run:
    save_plan(plan, tmp_path / "plan.toml")

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
    client: Any, pulsar_broker: Broker, plan: Plan, run: Run
) -> None:
    with DelayedProducer(client, plan) as producer:
        park(client, pulsar_broker, plan, "ann", "bob", "eve")
        producer.cancel("bob")  # whoever has it handled again wants that all the same

    listed = run("list", "--json")
    assert listed.returncode == 0, listed.stderr
    found = json.loads(listed.stdout)["dead_letters"]
    assert {one["timer_id"]: one["reason"] for one in found} == {
        "ann": "nobody called ann",
        "bob": "nobody called bob",
        "eve": "nobody called eve",
    }
    assert "3 of 3 parked timers" in run("list").stdout
    assert json.loads(run("list", "--json", whose=OTHER).stdout)["dead_letters"] == []
    shown = run("show", "--id", "ann")
    assert "payload  4 bytes: b'\\x00ann'" in shown.stdout, shown.stdout
    assert "property a = b" in shown.stdout

    assert run("replay").returncode == 2, "somebody has to say which"
    several = run("list", whose="")
    assert (several.returncode, "the plan has several: billing, audit" in _words(several.stderr)) == (2, True)
    unknown = run("list", whose="nobody")
    assert (unknown.returncode, "no subscription 'nobody', but billing, audit" in _words(unknown.stderr)) == (1, True)
    dry = run("replay", "--all", "--dry-run", "--json")
    assert dry.returncode == 0, dry.stderr
    assert all(
        one["sent_to"].startswith(f"{Names(plan).retry(SUBSCRIPTION)}-")
        for one in json.loads(dry.stdout)["dead_letters"]
    )
    assert len(parked(pulsar_broker, plan).dead_letters) == 3

    sent = run("replay", "--reason", "called bob", "--id", "bob")
    assert "1 sent to be handled again, 0 left, of 1 selected" in sent.stdout, sent.stdout + sent.stderr
    gone = run("discard", "--id", "eve")
    assert "1 discarded, 0 left" in gone.stdout, gone.stdout + gone.stderr
    assert {one.timer_id for one in parked(pulsar_broker, plan).dead_letters} == {"ann"}

    seen: list[DelayedMessage] = []
    other = Handled()
    with (
        running(DelayedConsumer(client, plan, SUBSCRIPTION), seen.append),
        running(DelayedConsumer(client, plan, OTHER, relay=False), other),
    ):
        eventually(lambda: left(pulsar_broker, plan) == left(pulsar_broker, plan, OTHER) == 0, WAIT_S)
    (bob,) = seen
    assert (bob.timer_id, bob.attempt, bob.data(), bob.partition_key()) == ("bob", 0, b"\x00bob", "schlüssel")
    assert bob.properties() == {"a": "b"}
    assert (bob.generation or 0) > 0
    assert sorted(str(name) for name in other.times) == ["ann", "eve"], "the other one had them once; bob was cancelled"


class Order(Record):  # type: ignore[misc]  # pulsar ships no types
    number = Integer()


def test_it_keeps_its_schema(client: Any, pulsar_broker: Broker, plan: Plan, run: Run) -> None:
    with DelayedProducer(client, plan, schema=AvroSchema(Order)) as producer:
        producer.send(Order(number=7), timer_id="o")
    numbers: list[int] = []

    def handle(message: DelayedMessage) -> None:
        numbers.append(message.value().number)
        if not message.generation and not message.attempt:
            raise RetryLater(timedelta(milliseconds=100))
        if not message.generation:
            raise ParkTimer("at the second attempt")

    consumer = DelayedConsumer(client, plan, SUBSCRIPTION, schema=AvroSchema(Order))
    with running(consumer, handle):
        eventually(lambda: consumer.counts.parked == 1, WAIT_S)
        eventually(lambda: len(parked(pulsar_broker, plan).dead_letters) == 1, WAIT_S)
        replayed = run("replay", "--all")
        assert replayed.returncode == 0, replayed.stdout + replayed.stderr
        eventually(lambda: numbers == [7, 7, 7], WAIT_S)


def test_what_cannot_be_done_is_one_line(client: Any, pulsar_broker: Broker, plan: Plan, run: Run, topic: str) -> None:
    park(client, pulsar_broker, plan, "t")
    held = client.subscribe(
        f"{Names(plan).parked(SUBSCRIPTION)}", "timewheel-parked", consumer_type=pulsar.ConsumerType.Exclusive
    )
    refused = run("discard", "--all")
    assert refused.returncode == 1
    assert "its subscription could not be opened" in refused.stderr
    held.close()
    assert run("show", "12-7").returncode == 2
    assert DeadLetterPosition.parse("12:7") is not None
    assert run("replay", "--all", "--rate", "nan").returncode == 2
    # Of a subscription that the plan had before, all but handling them again is possible.
    later = replace(plan, subscriptions=("mail",), revision=2)
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
    client: Any, pulsar_broker: Broker, plan: Plan
) -> None:
    park(client, pulsar_broker, plan, "t")
    without, topic = replace(plan, retry=False, cancel=None, revision=2), Names(plan).parked(SUBSCRIPTION)
    with AdminClient(pulsar_broker.admin_url) as admin:
        report = ensure(admin, without, now_ms=admin.clock.now_ms())
        assert [(one.level, one.where) for one in report.findings if one.where == topic] == [("warning", topic)]
        assert [one.name for one in status_of(admin, without).former] == [topic]
        (waits,) = [one for one in remove_drained(admin, without, let_go_ms=0) if one.topic == topic]
        assert (waits.stage, waits.backlog) == (RemovalStage.WAITS, 1)
        box = parked_box(without, SUBSCRIPTION)
        drop(client, box, dead_letters(admin, box).dead_letters)
        eventually(lambda: status_of(admin, without).former == (), 60)
        assert all(one.where != topic for one in ensure(admin, without, now_ms=admin.clock.now_ms()).findings)
        removals = {one.topic: one.stage for one in remove_drained(admin, without)}
        assert removals[topic] is RemovalStage.REMOVED


def _words(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


def test_the_status_tells_what_is_tried_again_and_what_is_parked(
    client: Any, pulsar_broker: Broker, plan: Plan, tmp_path: Path
) -> None:
    park(client, pulsar_broker, plan, "ann", "bob")

    def handle(_: DelayedMessage) -> None:
        raise RetryLater(timedelta(seconds=20))

    with DelayedProducer(client, plan) as producer:
        producer.send(b"x", timer_id="later")
    consumer = DelayedConsumer(client, plan, SUBSCRIPTION, relay=False)
    with running(consumer, handle):
        eventually(lambda: consumer.counts.retried == 1, WAIT_S)
    with AdminClient(pulsar_broker.admin_url) as admin:
        found = status_of(admin, plan)
        assert found.parked == 2
        kinds = {one.topic: one.kind for one in found.topics()}
        assert kinds[Names(plan).retry(SUBSCRIPTION)] == "retry"
        (held,) = [one for one in found.topics() if one.kind == "tier" and one.entries]
        assert round(held.timers.count) == 1, "it waits in a tier, as any timer does"
        assert status_of(admin, provisioned(pulsar_broker, retrying(f"{plan.due_topic}-2"))).parked == 0
    save_plan(plan, tmp_path / "plan.toml")
    said = timewheel("status", tmp_path / "plan.toml", "--admin-url", pulsar_broker.admin_url)
    expected = "2 entries of parked timers wait for you, with one or many in each: timewheel parked list "
    assert expected in said.stdout, said.stderr


MAX_BYTES = 5 * 1024 * 1024


@pytest.fixture
def natively(pulsar_broker: Broker, topic: str) -> Plan:
    return provisioned(pulsar_broker, retrying(topic))


def given_up(client: Any, broker: Broker, plan: Plan, count: int, *, attempts: int) -> None:
    """All fail, with much to say about it, until they are parked."""

    def handle(message: DelayedMessage) -> None:
        raise ValueError(f"{message.timer_id} {'€' * 900}")

    policy = RetryPolicy(max_attempts=attempts, backoff=FixedBackoff(SECOND))
    consumer = DelayedConsumer(client, plan, SUBSCRIPTION, retry=policy)
    with running(consumer, handle):
        eventually(lambda: consumer.counts.parked == count and left(broker, plan) == 0, WAIT_S)


def largest(producer: Any, room: int) -> bytes:
    """The largest payload that a producer takes, but for so much."""
    own = Envelope("large", now_ms(), now_ms()).properties()
    for less in range(room, room + 400, 2):
        payload = os.urandom(MAX_BYTES - less)
        try:
            producer.send(payload, properties=own)
        except pulsar.MessageTooBig:
            continue
        return payload
    raise AssertionError("no size is taken")


def test_a_large_timer_is_parked_whole_without_its_error(client: Any, pulsar_broker: Broker, natively: Plan) -> None:
    producer = client.create_producer(Names(natively).part(natively.due_topic, 0), batching_enabled=False)
    payload = largest(producer, 1_000)
    producer.send(b"small", properties=Envelope("small", now_ms(), now_ms()).properties())
    given_up(client, pulsar_broker, natively, 2, attempts=2)
    found = {message.properties()["tw-id"]: message for message in parked_in(client, natively, 2)}
    assert found["large"].data() == payload
    assert "tw-parked-error" not in found["large"].properties()
    assert found["large"].properties()["tw-parked-reason"].startswith("it was tried 2 times")
    assert "€" in found["small"].properties()["tw-parked-error"]


def test_the_largest_that_a_client_sends_is_parked_in_parts(client: Any, pulsar_broker: Broker, natively: Plan) -> None:
    producer = client.create_producer(Names(natively).part(natively.due_topic, 0), batching_enabled=False)
    payload = largest(producer, 0)
    producer.send(b"small", properties=Envelope("small", now_ms(), now_ms()).properties())
    given_up(client, pulsar_broker, natively, 2, attempts=2)
    parts = [message for message in parked_in(client, natively, 8) if message.properties()["tw-id"] == "large"]
    assert [part.properties()["tw-parked-part"] for part in parts] == [
        *(f"payload {number}/6" for number in range(1, 7)),
        "rest 1/1",
    ]
    assert b"".join(part.data() for part in parts[:-1]) == payload
    assert json.loads(parts[-1].data())["properties"]["tw-id"] == "large"
    assert "it cannot be stored to be tried again" in parts[0].properties()["tw-parked-reason"]


def test_a_key_of_bytes_stays_through_another_attempt(client: Any, pulsar_broker: Broker, natively: Plan) -> None:
    producer = client.create_producer(Names(natively).part(natively.due_topic, 0), batching_enabled=False)
    building = _pulsar.MessageBuilder()
    building.content(b"x")
    building.properties(Envelope("odd", now_ms(), now_ms()).properties())
    building.partition_key(b"\xff\x00k")
    producer._producer.send(building.build())
    given_up(client, pulsar_broker, natively, 1, attempts=2)
    (message,) = parked_in(client, natively, 1)
    with pytest.raises(UnicodeDecodeError) as caught:
        message.partition_key()
    assert caught.value.object == b"\xff\x00k"

"""A due topic without partitions, in every scheme and beside plain clients, and subscriptions of any name."""

from __future__ import annotations

import datetime as dt
import random
import threading
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.test_cancel import SCHEMES, TIERED, WAIT_S, plan_on, provisioned
from tests.broker.conftest import Connect
from tests.broker.due_topic import SUBSCRIPTION, Events, Handled, backlog, now_ms, running
from tests.broker.relay_stage import BUSINESS, Stage
from tests.broker.relay_stage import plan_of as short_plan
from tests.broker.shadow_stage import PlainConsumer
from tests.contract.client_contract import ANY_NAME
from tests.support.command_line import timewheel, well
from timewheel.broker.admin.client import AdminClient
from timewheel.consumers import DelayedConsumer, DelayedMessage, FixedBackoff, ParkTimer, RetryLater, RetryPolicy
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.cancellations import Answer
from timewheel.core.clock import SystemClock
from timewheel.core.durations import HOUR_MS, MINUTE_MS
from timewheel.core.envelope import Envelope
from timewheel.core.errors import TopologyError
from timewheel.core.names import partition_topic
from timewheel.core.plan import Calendar, Cancel, Native, Plan, Scheme, Tiered
from timewheel.core.planfile import save_plan
from timewheel.core.topology import UndrainedTopics
from timewheel.dead_letters import dead_letter_box, dead_letters, parked_box, replay, replay_parked
from timewheel.inspect.doctor import inspect_plan, verdict_on
from timewheel.inspect.gaps import inspect_gaps
from timewheel.inspect.gaps.explain import explain
from timewheel.inspect.plan_sample import sample_plan
from timewheel.inspect.status import status_of
from timewheel.inspect.whereis import State, Wanted, whereis
from timewheel.metrics import Exporter
from timewheel.producers import DelayedProducer
from timewheel.provision import ensure
from timewheel.provision.former_topics import FormerTopics, remove_drained
from timewheel.relay import Relay
from timewheel.testing import Broker, eventually

pytestmark = pytest.mark.short

SECOND = dt.timedelta(seconds=1)
OTHER = "audit"  # of plain clients


def plan_of(topic: str, scheme: Scheme = TIERED, **changes: Any) -> Plan:
    return plan_on(topic, scheme, **{"partitions": 0, "cancel": None, **changes})


def stored_names(admin: AdminClient, topic: str) -> set[str]:
    """What the broker stores of a topic and of all that is beside it, by the ends of the names."""
    namespace = topic.removeprefix("persistent://").rpartition("/")[0]
    return {name.removeprefix(topic) for name in admin.topics.list(namespace) if name.startswith(topic)}


@pytest.mark.parametrize("name", [name for name in SCHEMES if name != "calendar"])
def test_timers_reach_their_handler_on_time_and_a_plain_consumer_beside_it(
    client: Any, admin: AdminClient, pulsar_broker: Broker, topic: str, name: str
) -> None:
    plan = provisioned(pulsar_broker, plan_of(topic, SCHEMES[name], subscriptions=(SUBSCRIPTION, OTHER)))
    delays = [0, 400, 1_000, 2_500, 4_000, 6_500]
    sent: list[str] = []
    handled = Handled()
    consumer = DelayedConsumer(client, plan, SUBSCRIPTION)
    plain = PlainConsumer(client, topic, OTHER)
    with closing(plain), running(consumer, handled), DelayedProducer(client, plan) as producer:
        plainly = client.create_producer(topic)
        plainly.send(b"plain")
        plainly.close()
        for number in range(60):
            after = dt.timedelta(milliseconds=delays[number % len(delays)])
            timer = producer.send(
                b"%d" % number, deliver_after=after, timer_id=f"t{number}", partition_key=f"k{number % 7}"
            )
            assert timer.partition == 0
            sent.append(timer.id)
        eventually(lambda: all(handled.times[one] for one in sent) and len(plain.handled) == 61, WAIT_S)
        eventually(lambda: backlog(pulsar_broker, topic) == backlog(pulsar_broker, topic, OTHER) == 0, WAIT_S)
    assert handled.times == Counter([*sent, None]), "its own, and what a plain client sent"
    assert plain.handled.keys() == {*map(str, range(60)), "plain"}
    # A timer that comes late into a slot is sent twice (broker-facts: slot-sweep), and only ours drops the second.
    assert name == "wheel" or plain.handled.total() == 61
    assert handled.early == 0
    assert all(len(set(threads)) == 1 for key, threads in handled.threads.items() if key), "a key keeps its worker"
    assert "-partition-0" not in stored_names(admin, topic), "nobody made a partition beside it"
    assert all(part.endswith("-partition-0") for part in stored_names(admin, topic) - {""})


def test_what_was_in_a_users_topic_before_stays_and_is_handled(client: Any, admin: AdminClient, topic: str) -> None:
    admin.topics.create_unpartitioned(topic)
    admin.subscriptions.create(topic, SUBSCRIPTION)
    producer = client.create_producer(topic)
    producer.send(b"before", deliver_after=SECOND)
    plan = plan_of(topic)
    steps = [str(step) for step in ensure(admin, plan, now_ms=now_ms()).steps if step.topic == topic]
    assert not any(step.startswith("create") for step in steps), "the topic and its subscription are used as they are"
    assert ensure(admin, plan, now_ms=now_ms()).steps == ()
    seen: list[bytes] = []

    def handle(message: DelayedMessage) -> None:
        seen.append(message.data())

    with running(DelayedConsumer(client, plan, SUBSCRIPTION), handle):
        eventually(lambda: seen == [b"before"], WAIT_S)


def test_what_was_interrupted_is_finished(admin: AdminClient, topic: str) -> None:
    plan = plan_of(topic)
    admin.topics.create_unpartitioned(topic)
    done = ensure(admin, plan, now_ms=now_ms())
    assert f"create subscription {SUBSCRIPTION} at earliest" in {
        str(step) for step in done.steps if step.topic == topic
    }
    assert admin.topics.stats(topic).deduplication == "Enabled"
    assert ensure(admin, plan, now_ms=now_ms()).steps == ()
    assert admin.topics.partitions(topic) == 0


@pytest.mark.parametrize(("found", "wanted"), [(0, 3), (1, 0)])
def test_the_one_form_is_refused_for_the_other_and_nothing_is_made(
    admin: AdminClient, pulsar_broker: Broker, topic: str, found: int, wanted: int
) -> None:
    provisioned(pulsar_broker, plan_of(topic, partitions=found))
    before = stored_names(admin, topic)
    for grow in (False, True):
        with pytest.raises(TopologyError, match=f"write partitions = {found} in the plan"):
            ensure(admin, plan_of(topic, partitions=wanted), now_ms=now_ms(), grow=grow)
    assert stored_names(admin, topic) == before
    (finding,) = [
        one
        for one in verdict_on(inspect_plan(admin, plan_of(topic, partitions=wanted), target="p.toml")).findings
        if one.subject == topic and one.slug == "topic-in-the-way"
    ]
    assert f"partitions = {found}" in finding.cure


@pytest.mark.parametrize("partitions", [0, 1])
@pytest.mark.parametrize("automatic", [True, False])
def test_who_comes_before_provisioning_is_refused_and_makes_nothing(
    client: Any, admin: AdminClient, namespace: str, automatic: bool, partitions: int
) -> None:
    override = {"allowAutoTopicCreation": automatic, "topicType": "non-partitioned"}
    admin._http.call("POST", f"/namespaces/{namespace}/autoTopicCreation", body=override)
    topic = f"persistent://{namespace}/due"
    plan = plan_of(topic, partitions=partitions)
    with DelayedProducer(client, plan) as producer:
        for after in (dt.timedelta(0), 5 * SECOND):
            with pytest.raises(TopologyError, match="timewheel topics ensure"):
                producer.send(b"x", deliver_after=after)
    with pytest.raises(TopologyError, match="timewheel topics ensure"):
        DelayedConsumer(client, plan, SUBSCRIPTION, relay=False).start()
    with pytest.raises(TopologyError, match="timewheel topics ensure"):
        Relay(client, plan).check()
    assert stored_names(admin, topic) == set()


def test_who_has_a_plan_of_the_wrong_form_is_told_the_right_one(client: Any, pulsar_broker: Broker, topic: str) -> None:
    provisioned(pulsar_broker, plan_of(topic, partitions=2))
    wrong = plan_of(topic)
    with DelayedProducer(client, wrong) as producer, pytest.raises(TopologyError, match="write partitions = 2"):
        producer.send(b"x")
    with pytest.raises(TopologyError, match="write partitions = 2"):
        DelayedConsumer(client, wrong, SUBSCRIPTION, relay=False).start()
    with pytest.raises(TopologyError, match="write partitions = 2"):
        Relay(client, wrong).check()


def test_a_plan_with_partitions_makes_none_beside_a_topic_without(
    client: Any, admin: AdminClient, pulsar_broker: Broker, topic: str
) -> None:
    provisioned(pulsar_broker, plan_of(topic))
    wrong = plan_of(topic, partitions=1)
    with DelayedProducer(client, wrong) as producer, pytest.raises(TopologyError, match="partitioned topic"):
        producer.send(b"x")
    with pytest.raises(TopologyError, match="partitioned topic"):
        DelayedConsumer(client, wrong, SUBSCRIPTION, relay=False).start()
    assert "-partition-0" not in stored_names(admin, topic)


def test_what_fails_is_tried_again_parked_and_handled_again(
    client: Any, admin: AdminClient, pulsar_broker: Broker, topic: str
) -> None:
    plan = provisioned(pulsar_broker, plan_of(topic, retry=True))
    attempts: Counter[str] = Counter()
    good = threading.Event()

    def handle(message: DelayedMessage) -> None:
        assert message.timer_id is not None
        attempts[message.timer_id] += 1
        if message.timer_id == "poison" and not good.is_set():
            raise ValueError("not yet")
        if message.timer_id == "shaky" and attempts["shaky"] < 3:
            raise ValueError("not yet")

    policy = RetryPolicy(max_attempts=3, backoff=FixedBackoff(2 * SECOND))  # through a tier
    consumer = DelayedConsumer(client, plan, SUBSCRIPTION, retry=policy)
    with DelayedProducer(client, plan) as producer:
        for name in ("poison", "shaky", "sound"):
            producer.send(b"x", timer_id=name, partition_key=name)
    with running(consumer, handle):
        eventually(lambda: consumer.counts.parked == 1 and attempts["shaky"] == 3, WAIT_S)
        good.set()
        found = eventually(lambda: dead_letters(admin, parked_box(plan, SUBSCRIPTION)).dead_letters, WAIT_S)
        assert [dead_letter.source for dead_letter in found if not dead_letter.source.startswith(topic)] == []
        results = replay_parked(client, admin, plan, SUBSCRIPTION, found, rng=random.Random(1))
        assert [one.refused for one in results] == [None]
        eventually(lambda: consumer.counts.done == 3, WAIT_S)
    assert attempts == {"poison": 4, "shaky": 3, "sound": 1}


def test_what_is_cancelled_or_moved_in_time_is_not_handed_out(client: Any, pulsar_broker: Broker, topic: str) -> None:
    plan = provisioned(pulsar_broker, plan_of(topic, cancel=Cancel(skew_ms=100)))
    handled = Handled()
    with DelayedProducer(client, plan) as producer:
        timers = [producer.send(b"x", deliver_after=4 * SECOND, timer_id=f"t{number}") for number in range(20)]
        answers = {producer.cancel(timer).answer for timer in timers[:10]}
        assert answers == {Answer.CERTAIN}
        with running(DelayedConsumer(client, plan, SUBSCRIPTION), handled):
            eventually(lambda: len(handled.times) == 10, WAIT_S)
    assert handled.times == dict.fromkeys([timer.id for timer in timers[10:]], 1)


def test_a_dead_letter_goes_back_into_it(pulsar_broker: Broker) -> None:
    plan = short_plan(partitions=0)
    with Stage(pulsar_broker, plan) as stage:
        at_ms = now_ms()
        stage.put(stage.tiers[-1], Envelope("endless", at_ms + 1_000, at_ms, hops=10_000), b"x")
        stage.flush()
        stage.relay()
        found = eventually(lambda: dead_letters(stage.admin, dead_letter_box(plan)).dead_letters, WAIT_S)
        results = replay(stage.client, stage.admin, plan, found, due_now=True)
        assert [(one.sent_to, one.refused) for one in results] == [(plan.due_topic, None)]
        stage.await_due(1)
        assert dead_letters(stage.admin, dead_letter_box(plan)).dead_letters == ()


def test_it_is_healthy_and_every_look_sees_what_waits_in_it(pulsar_broker: Broker) -> None:
    tiered = Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS,))
    plan = short_plan(tiered, partitions=0, guard_ms=1_000, max_delay_ms=24 * HOUR_MS)
    with Stage(pulsar_broker, plan) as stage, DelayedProducer(stage.client, plan) as producer:
        stage.relay()
        held = producer.send(b"x", deliver_after=dt.timedelta(hours=5))
        due = producer.send(b"x", deliver_after=dt.timedelta(minutes=30))
        now = producer.send(b"x")
        handled = Handled()
        consumer = DelayedConsumer(stage.client, plan, BUSINESS, relay=False)
        with running(consumer, handled):
            eventually(lambda: handled.times[now.id], WAIT_S)
            verdict = verdict_on(inspect_plan(stage.admin, plan, target="plan.toml"))
            assert {one.slug for one in verdict.findings if one.severity.name in ("ERROR", "WARNING")} <= {
                "auto-creation"
            }
        states = {
            timer.id: whereis(stage.admin, plan, Wanted.of(timer.id, due_ms=timer.due_ms)) for timer in (held, due, now)
        }
        assert states[held.id].state is State.HELD
        here = states[due.id].here
        assert here is not None
        assert (states[due.id].state, here.topic) == (State.DUE, plan.due_topic)
        assert states[now.id].state in (State.HANDLED, State.REMOVED)
        status = status_of(stage.admin, plan)
        counts = {place.topic.removeprefix(plan.due_topic): place.entries for place in status.places}
        assert counts == {"": 1, ".tw.tier-1h-partition-0": 1}
        assert status.missing == ()
        sample = sample_plan(stage.admin, plan, stage.admin.clock)
        assert [(one.name, one.partitions) for one in sample.due] == [(plan.due_topic, 0)]
        assert sample.in_due.population + sample.in_holding.population == 3


def test_timers_of_other_tiers_are_drained_into_it(pulsar_broker: Broker) -> None:
    before = short_plan(Tiered(window_ms=1_500, tiers_ms=(1_500, 3_000)), partitions=0, relay="service")
    with Stage(pulsar_broker, before) as stage:
        held = stage.hold([5_000] * 20)
        after = replace(before, scheme=Tiered(window_ms=1_500, tiers_ms=(1_500,)), revision=2)
        ensure(stage.admin, after, now_ms=now_ms())
        events = Events()
        relay = Relay(stage.client, after, hooks=(events,), former_topics=FormerTopics(stage.admin, after))
        with relay:
            stage.await_due(len(held))
            eventually(lambda: relay.ready, WAIT_S)
    assert not events.named("relay_former_topic_unreadable")


def test_a_calendar_in_its_place_is_refused_while_timers_wait_there_and_never_removes_it(pulsar_broker: Broker) -> None:
    before = short_plan(Native(), partitions=0)
    after = replace(before, scheme=Calendar(interval_ms=MINUTE_MS), partitions=1)
    with Stage(pulsar_broker, before) as stage:
        with DelayedProducer(stage.client, before) as producer:
            timer = producer.send(b"x", deliver_after=2 * SECOND)
        with pytest.raises(UndrainedTopics, match="the plan that says partitions = 0"):
            ensure(stage.admin, after, now_ms=now_ms())
        handled = Handled()
        with running(DelayedConsumer(stage.client, before, BUSINESS), handled):
            eventually(lambda: handled.times[timer.id], WAIT_S)
            eventually(lambda: backlog(pulsar_broker, before.due_topic, BUSINESS) == 0, WAIT_S)
        ensure(stage.admin, after, now_ms=now_ms())
        assert remove_drained(stage.admin, after, let_go_ms=0) == ()
        assert stage.admin.topics.partitions(before.due_topic) == 0


def test_the_commands_take_its_plan_and_the_exporter_tells_of_it(pulsar_broker: Broker, tmp_path: Path) -> None:
    plan = short_plan(Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS,)), partitions=0, max_delay_ms=24 * HOUR_MS)
    file = tmp_path / "plan.toml"
    save_plan(plan, file)

    def said(*arguments: str) -> str:
        done = well(timewheel(*arguments))
        return done.stdout + done.stderr

    admin_url = ("--admin-url", pulsar_broker.admin_url)
    assert "create with no partitions" in said("topics", "ensure", str(file), *admin_url)
    with Stage(pulsar_broker, plan) as stage, DelayedProducer(stage.client, plan) as producer:
        timers = [producer.send(b"x", deliver_after=dt.timedelta(minutes=minutes)) for minutes in (5, 10, 300)]
        said("status", str(file), *admin_url)
        due = timers[0].due_at.isoformat()
        assert plan.due_topic in said("whereis", str(file), timers[0].id, "--due", due, "--json", *admin_url)
        local = plan.due_topic.rpartition("/")[2]
        assert local in said("gaps", str(file), *admin_url)
        assert local in said("gaps", plan.due_topic, *admin_url)
        assert "without partitions" in said("sample", plan.due_topic, "-o", str(tmp_path / "s.parquet"), *admin_url)
        exporter = Exporter(stage.admin, [], [plan])
        assert exporter.inspect()
        told = {sample.labels.get("topic") for family in exporter.collect() for sample in family.samples}
        assert plan.due_topic in told


FUNCTION = "public/default/notifier"  # as Pulsar Functions name theirs
LOW = BrokerProfile(name="a low limit", gap_limit_ranges=5)
PAIRS = 20


def test_a_subscription_of_any_name_is_seen_everywhere(pulsar_broker: Broker, connect: Connect, topic: str) -> None:
    client: Any = connect(pulsar_broker)
    changes: dict[str, Any] = {"cancel": None, "retry": True, "partitions": 1, "max_delay_ms": 3_600_000}
    plan = provisioned(pulsar_broker, plan_on(topic, subscriptions=(ANY_NAME, FUNCTION), **changes))
    later = dt.timedelta(minutes=30)
    with DelayedProducer(client, plan) as producer:
        for number in range(PAIRS):
            producer.send(b"x", timer_id=f"now-{number}")
            producer.send(b"x", timer_id=f"later-{number}", deliver_after=later)
        last = producer.send(b"x", timer_id="last", deliver_after=later)
        sent_ms = now_ms()
    done: set[str | None] = set()

    def handle(message: DelayedMessage) -> None:
        if message.timer_id == "now-0":
            raise ParkTimer("nobody called it")
        if message.timer_id == "now-1" and not message.attempt:
            raise RetryLater(dt.timedelta(milliseconds=100))
        done.add(message.timer_id)

    with running(DelayedConsumer(client, plan, ANY_NAME), handle):
        eventually(lambda: len(done) == PAIRS - 1, WAIT_S, message="all but the parked one were handled")

    part = partition_topic(topic, 0)
    with AdminClient(pulsar_broker.admin_url) as admin:
        # Every other entry is acknowledged: as many gaps as timers that were due, but for those before the first one.
        eventually(lambda: admin.topics.stats(part).subscriptions[ANY_NAME].gap_count == PAIRS - 1, WAIT_S)
        (worst, _) = inspect_gaps(admin, [part], LOW).subscriptions
        assert (worst.subscription, worst.gap_count, worst.again_entries) == (ANY_NAME, PAIRS - 1, PAIRS - 1 - 6)
        explained = explain(admin, topic, ANY_NAME, LOW)
        assert explained.shares[0].cause.name == "DELAYS"
        found = status_of(admin, plan)
        assert found.unseen == ()
        assert {place.topic: (place.subscription, round(place.timers.count)) for place in found.places} == {
            part: (FUNCTION, 2 * PAIRS + 1),
            f"{topic}.tw.retry.a:b%2Fc%20d%25é-partition-0": (ANY_NAME, 0),
            f"{topic}.tw.retry.public%2Fdefault%2Fnotifier-partition-0": (FUNCTION, 0),
        }
        assert found.parked == 1
        sampled = sample_plan(admin, plan, clock=SystemClock())
        assert sampled.due[0].parts[0].cursors[ANY_NAME].gap_count == PAIRS - 1
        place = whereis(admin, plan, Wanted.of(last.id, sent_ms=sent_ms, due_ms=last.due_ms))
        assert (place.state, place.sightings[-1].waits_for) == (State.DUE, (ANY_NAME, FUNCTION))
        (dead_letter,) = dead_letters(admin, parked_box(plan, ANY_NAME)).dead_letters
        assert dead_letter.reason == "nobody called it"

"""Provisioning on a real broker, as functions and as `timewheel topics`."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import httpx
import pulsar
import pytest

from tests.support.command_line import timewheel, well
from tests.support.own_broker import own_broker
from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.policies import (
    AGE_QUOTA,
    DEDUPLICATION,
    INACTIVE_TOPIC,
    MESSAGE_TTL_S,
    SIZE_QUOTA,
    SUBSCRIPTION_EXPIRY_MIN,
    BacklogQuota,
    InactiveTopic,
    Policy,
)
from timewheel.core.durations import DAY_MS, HOUR_MS, SECOND_MS
from timewheel.core.errors import AdminUnreachable, TopologyError
from timewheel.core.names import RELAY_SUBSCRIPTION, partition_topic, parts_of
from timewheel.core.plan import Calendar, Native, Plan, Ring, Scheme, Tiered, Wheel
from timewheel.core.planfile import save_plan
from timewheel.core.topology import TopicSpec, topology
from timewheel.provision.provisioned import provisioned
from timewheel.provision.provisioning import Report, ensure
from timewheel.testing import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from timewheel.testing import Broker


NOW_MS = 1_767_225_600_000
TIERED = Tiered(window_ms=12 * HOUR_MS, tiers_ms=(12 * HOUR_MS, DAY_MS))
SCHEMES: list[Scheme] = [
    Native(),
    TIERED,
    replace(TIERED, hold="broker"),
    Calendar(),
    Wheel(rings=(Ring(slot_ms=DAY_MS, slots=8),)),
]


def plan_in(namespace: str, scheme: Scheme = TIERED, **changed: Any) -> Plan:
    return Plan(
        **{
            "due_topic": f"persistent://{namespace}/reminders",
            "subscriptions": ("billing", "audit"),
            "scheme": scheme,
            "partitions": 2,
            "max_delay_ms": 5 * DAY_MS,
            **changed,
        }
    )


def go(admin: AdminClient, plan: Plan, **options: Any) -> Report:
    return ensure(admin, plan, now_ms=NOW_MS, **options)


def snapshot(admin: AdminClient, *namespaces: str) -> object:
    """All that provisioning could have changed in these namespaces."""
    topics = [topic for namespace in namespaces for topic in admin.topics.list_partitioned(namespace)]
    policies: list[Policy[Any]] = [MESSAGE_TTL_S, SIZE_QUOTA, AGE_QUOTA, INACTIVE_TOPIC, DEDUPLICATION]
    return [
        (
            topic,
            admin.topics.partitions(topic),
            sorted(admin.subscriptions.list(topic)),
            [admin.topic_policies.get(topic, policy) for policy in policies],
        )
        for topic in sorted(topics)
    ], [sorted(admin.topics.list(namespace)) for namespace in namespaces]


def check_complete(admin: AdminClient, spec: TopicSpec) -> None:
    """A topic is as its specification says, by other calls than provisioning makes."""
    assert admin.topics.partitions(spec.name) == spec.partitions
    stats = admin.topics.partitioned_stats(spec.name)
    assert len(stats.partitions) == spec.partitions
    for partition in stats.partitions.values():
        assert set(partition.subscriptions) == set(spec.subscriptions)
        assert (partition.deduplication == "Enabled") is spec.deduplication
    assert admin.topic_policies.get(spec.name, MESSAGE_TTL_S, applied=True) == 0
    size = admin.topic_policies.get(spec.name, SIZE_QUOTA, applied=True)
    age = admin.topic_policies.get(spec.name, AGE_QUOTA, applied=True)
    inactive = admin.topic_policies.get(spec.name, INACTIVE_TOPIC, applied=True)
    assert size is not None
    assert age is not None
    assert inactive is not None
    assert (size.limit_bytes, age.limit_s, inactive.delete) == (-1, -1, False)


# -------------------------------------------------------------------- on a broker that does all it can to lose messages


TTL, QUOTA, IDLE = "acme/ttl", "acme/quota", "acme/idle"


def backlog(admin: AdminClient, topic: str, subscription: str) -> int:
    stats = admin.topics.stats(partition_topic(topic, 0), precise_backlog=True)
    return stats.subscriptions[subscription].backlog


def publish_for_later(client: Any, topic: str, count: int) -> None:
    """Messages that are due long after every check of the test."""
    producer = client.create_producer(partition_topic(topic, 0), batching_enabled=False)
    for _ in range(count):
        producer.send(b"x" * 500, deliver_after=timedelta(minutes=10))
    producer.close()


def harsh_namespaces(admin: AdminClient) -> dict[str, Plan]:
    """Three namespaces that drop messages or topics, each with a provisioned plan and a topic without protection."""
    assert admin.tenants.create("acme")
    for namespace in (TTL, QUOTA, IDLE):
        assert admin.namespaces.create(namespace)
    admin.namespaces.set_policy(TTL, MESSAGE_TTL_S, 1)
    admin.namespaces.set_policy(QUOTA, SIZE_QUOTA, BacklogQuota(limit_bytes=1_000, action="consumer_backlog_eviction"))
    caught_up = InactiveTopic(delete=True, after_s=1, mode="delete_when_subscriptions_caught_up")
    admin.namespaces.set_policy(IDLE, INACTIVE_TOPIC, caught_up)
    plans = {
        namespace: plan_in(namespace, replace(TIERED, hold="broker"), partitions=1, subscriptions=("billing",))
        for namespace in (TTL, QUOTA, IDLE)
    }
    for plan in plans.values():
        go(admin, plan)
        admin.topics.create(unprotected(plan), 1)
        admin.subscriptions.create(unprotected(plan), "billing")
    return plans


def unprotected(plan: Plan) -> str:
    return f"{plan.due_topic}-unprotected"


@pytest.fixture(scope="module")
def harsh() -> Iterator[tuple[AdminClient, dict[str, Plan]]]:
    """Three namespaces that drop messages or topics; messages that nobody consumes in those that drop messages."""
    config = {
        "messageExpiryCheckIntervalInMinutes": "1",  # the broker's finest
        "backlogQuotaCheckIntervalInSeconds": "1",
        "brokerDeleteInactiveTopicsFrequencySeconds": "1",
    }
    with own_broker(config) as broker, AdminClient(broker.admin_url) as admin:
        plans = harsh_namespaces(admin)
        client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        with closing(client):
            for plan in (plans[QUOTA], plans[TTL]):
                for topic in (*go(admin, plan).topics, unprotected(plan)):
                    publish_for_later(client, topic, 20)
        yield admin, plans


def check_dropped_elsewhere_only(admin: AdminClient, plan: Plan) -> None:
    """What was published is gone from the topic without protection, and all there in those of the plan."""
    bitten = unprotected(plan)
    eventually(lambda: backlog(admin, bitten, "billing") < 20, timeout=150, message=bitten)
    for spec in topology(plan, NOW_MS).topics:
        assert [backlog(admin, spec.name, subscription) for subscription in spec.subscriptions] == [20]


@pytest.mark.short
def test_delayed_messages_survive_a_quota_that_drops_them_elsewhere(harsh: tuple[AdminClient, dict[str, Plan]]) -> None:
    admin, plans = harsh
    check_dropped_elsewhere_only(admin, plans[QUOTA])


def test_topics_without_a_message_stay_where_others_are_deleted(harsh: tuple[AdminClient, dict[str, Plan]]) -> None:
    admin, plans = harsh
    bitten = partition_topic(unprotected(plans[IDLE]), 0)
    eventually(lambda: bitten not in admin.topics.list(IDLE), timeout=60, message=bitten)
    for spec in topology(plans[IDLE], NOW_MS).topics:
        assert partition_topic(spec.name, 0) in admin.topics.list(IDLE)
        check_complete(admin, spec)


# ------------------------------------------------------------------------------------------- complete, kept, supplied


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: f"{type(scheme).__name__}-{getattr(scheme, 'hold', '')}")
def test_a_provisioned_plan_is_complete_and_a_second_run_changes_nothing(
    admin: AdminClient, namespace: str, scheme: Scheme
) -> None:
    plan = plan_in(namespace, scheme)
    first = go(admin, plan)
    wanted = topology(plan, NOW_MS).topics
    assert set(first.topics) == {spec.name for spec in wanted}
    assert first.findings == ()
    for spec in wanted:
        check_complete(admin, spec)
    before = snapshot(admin, namespace)

    second = go(admin, plan)

    assert (second.steps, second.findings, second.dry_run) == ((), (), False)
    assert snapshot(admin, namespace) == before


def test_policies_of_the_topic_beat_those_of_its_namespace(admin: AdminClient, namespace: str) -> None:
    admin.namespaces.set_policy(namespace, MESSAGE_TTL_S, 1)
    admin.namespaces.set_policy(namespace, SIZE_QUOTA, BacklogQuota(limit_bytes=10, action="consumer_backlog_eviction"))
    admin.namespaces.set_policy(namespace, AGE_QUOTA, BacklogQuota(limit_s=1, action="consumer_backlog_eviction"))
    admin.namespaces.set_policy(namespace, INACTIVE_TOPIC, InactiveTopic(delete=True, after_s=1))
    admin.namespaces.set_policy(namespace, DEDUPLICATION, False)
    plan = plan_in(namespace)
    go(admin, plan)
    for spec in topology(plan, NOW_MS).topics:
        check_complete(admin, spec)


def test_a_dry_run_tells_all_and_changes_nothing(admin: AdminClient, namespace: str, tenant: str) -> None:
    held = f"{tenant}/held-{uuid.uuid4().hex[:8]}"
    plan = plan_in(namespace, holding_namespace=held)
    before = snapshot(admin, namespace)

    told = go(admin, plan, dry_run=True, create_namespaces=True)

    assert snapshot(admin, namespace) == before
    assert held not in admin.namespaces.list(tenant)
    assert told.dry_run
    done = go(admin, plan, create_namespaces=True)
    assert done.steps == told.steps
    assert str(told.steps[0]) == "create namespace"
    assert go(admin, plan, dry_run=True).steps == ()


def test_what_is_lacking_is_supplied_and_what_somebody_set_is_kept(admin: AdminClient, namespace: str) -> None:
    plan = plan_in(namespace)
    go(admin, plan)
    admin.subscriptions.delete(plan.due_topic, "audit")
    admin.topic_policies.set(plan.due_topic, MESSAGE_TTL_S, 60)
    kept = BacklogQuota(limit_bytes=-1, action="producer_exception")
    admin.topic_policies.set(plan.due_topic, SIZE_QUOTA, kept)
    eventually(lambda: admin.topic_policies.get(plan.due_topic, SIZE_QUOTA) == kept)

    report = go(admin, plan)

    assert [(step.topic, str(step)) for step in report.steps] == [
        (plan.due_topic, "create subscription audit at earliest"),
        (plan.due_topic, "set messageTTL = 0 (never)"),
    ]
    assert admin.topic_policies.get(plan.due_topic, SIZE_QUOTA) == kept
    assert go(admin, plan).steps == ()


# ---------------------------------------------------------------------------------------- nothing is lost on the way


def read_all(client: Any, topic: str, subscription: str, count: int) -> list[bytes]:
    consumer = client.subscribe(topic, subscription, consumer_type=pulsar.ConsumerType.Shared)
    found = []
    for _ in range(count):
        message = consumer.receive(timeout_millis=10_000)
        consumer.acknowledge(message)
        found.append(message.data())
    consumer.close()
    return found


class Interrupted(httpx.BaseTransport):
    """HTTP to the broker that breaks before the n-th change; reads go on, so a retry cannot be told from a crash."""

    def __init__(self, changes: int) -> None:
        self._inner = httpx.HTTPTransport()
        self._left = changes

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.method != "GET":
            self._left -= 1
            if self._left < 0:
                raise httpx.ConnectError("cut off", request=request)
        return self._inner.handle_request(request)

    def close(self) -> None:
        self._inner.close()


@pytest.mark.short
def test_wherever_it_is_interrupted_a_second_run_completes_it_and_no_publish_in_between_is_lost(
    admin: AdminClient, tenant: str, pulsar_broker: Broker, pulsar_client: Any
) -> None:
    steps = 1 + 3 * (1 + 1 + 5)  # a namespace; three topics, each with a subscription and five policies
    for changes in range(1_000):
        namespace = f"{tenant}/cut-{uuid.uuid4().hex[:8]}"
        plan = plan_in(
            namespace, Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS,)), partitions=1, subscriptions=("billing",)
        )
        wanted = topology(plan, NOW_MS).topics
        finished = False
        with AdminClient(pulsar_broker.admin_url, transport=Interrupted(changes), retry_for_s=0) as cut:
            try:
                go(cut, plan, create_namespaces=True)
                finished = True
            except AdminUnreachable:
                pass
        there = [spec for spec in wanted if admin.topics.partitions(spec.name)] if changes else []
        # A holding topic is there only if all is there that its timers go to.
        if any(spec.role == "tier" for spec in there):
            for spec in wanted:
                if spec.role != "tier":
                    check_complete(admin, spec)
        for spec in there:
            producer = pulsar_client.create_producer(partition_topic(spec.name, 0))
            producer.send(b"in between")
            producer.close()
        # What comes last, the note beside the due topic, is no step.
        assert bool(go(admin, plan, create_namespaces=True).steps) is (changes < steps)
        assert provisioned(admin, plan.due_topic) is not None
        for spec in wanted:
            check_complete(admin, spec)
        for spec in there:
            (subscription,) = spec.subscriptions
            assert read_all(pulsar_client, partition_topic(spec.name, 0), subscription, 1) == [b"in between"]
        if finished:
            assert changes == steps + 1
            return


def test_three_at_once_do_no_harm(admin: AdminClient, namespace: str) -> None:
    for attempt in range(5):  # they must meet
        plan = plan_in(namespace, due_topic=f"persistent://{namespace}/reminders-{attempt}")
        with ThreadPoolExecutor(3) as pool:
            for future in [pool.submit(go, admin, plan) for _ in range(3)]:
                future.result()
        for spec in topology(plan, NOW_MS).topics:
            check_complete(admin, spec)
        assert go(admin, plan).steps == ()


@pytest.mark.real
def test_a_partition_that_an_interrupted_creation_left_out_is_made(admin: AdminClient, namespace: str) -> None:
    plan = plan_in(namespace)
    go(admin, plan)
    tier = topology(plan, NOW_MS).holding[0].name
    admin.topics.delete_unpartitioned(partition_topic(tier, 1))

    report = go(admin, plan)

    assert [str(step) for step in report.steps] == [
        "create missing partitions 1",
        f"create subscription {RELAY_SUBSCRIPTION} at earliest",
    ]
    for spec in topology(plan, NOW_MS).topics:
        check_complete(admin, spec)


# --------------------------------------------------------------------------------------------------- what it refuses


def test_a_missing_namespace_or_tenant_is_named_with_the_command_that_makes_it(
    admin: AdminClient, tenant: str, namespace: str
) -> None:
    missing = f"{tenant}/none-{uuid.uuid4().hex[:8]}"
    with pytest.raises(TopologyError, match=f"namespaces create {missing}"):
        go(admin, plan_in(namespace, holding_namespace=missing))
    assert admin.topics.list(namespace) == (), "nothing is made before all has been looked at"
    with pytest.raises(TopologyError, match="tenants create nobody"):
        go(admin, plan_in("nobody/none"), create_namespaces=True)


def test_partitions_grow_on_purpose_only_and_are_never_taken_away(
    admin: AdminClient, namespace: str, pulsar_client: Any
) -> None:
    plan = plan_in(namespace)
    go(admin, plan)
    grown = replace(plan, partitions=3)
    before = snapshot(admin, namespace)
    with pytest.raises(TopologyError, match="growing moves keys"):
        go(admin, grown)
    assert snapshot(admin, namespace) == before

    told = go(admin, grown, grow=True, dry_run=True)
    assert snapshot(admin, namespace) == before
    done = go(admin, grown, grow=True)

    assert done.steps == told.steps
    assert next(str(step) for step in done.steps if step.topic == plan.due_topic) == "grow from 2 to 3 partitions"
    for spec in topology(grown, NOW_MS).topics:
        check_complete(admin, spec)
    producer = pulsar_client.create_producer(partition_topic(plan.due_topic, 2))
    producer.send(b"on the new one")
    producer.close()
    assert read_all(pulsar_client, partition_topic(plan.due_topic, 2), "audit", 1) == [b"on the new one"]
    with pytest.raises(TopologyError, match="cannot be taken away"):
        go(admin, plan, grow=True)


def test_a_publish_before_provisioning_is_found_and_not_papered_over(
    admin: AdminClient, namespace: str, pulsar_client: Any, pulsar_broker: Broker
) -> None:
    plan = plan_in(namespace, partitions=1)
    stray = partition_topic(plan.due_topic, 0)
    if pulsar_broker.version.startswith("4.0."):
        producer = pulsar_client.create_producer(stray)  # the broker makes the partition, alone
        producer.send(b"nobody will read this")
        producer.close()
        with pytest.raises(TopologyError, match="before it was provisioned") as caught:
            go(admin, plan)
        assert stray in caught.value.remedy
        assert admin.topics.list(namespace) == (stray,)
        admin.topics.delete_unpartitioned(stray)
    else:
        with pytest.raises(pulsar.PulsarException):
            pulsar_client.create_producer(stray)
    assert go(admin, plan).findings == ()


# --------------------------------------------------------------- looked for once a minute, so the first tests began it


@pytest.mark.short
def test_delayed_messages_survive_a_time_to_live_that_drops_them_elsewhere(
    harsh: tuple[AdminClient, dict[str, Plan]],
) -> None:
    admin, plans = harsh
    check_dropped_elsewhere_only(admin, plans[TTL])


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_subscription_that_a_plan_adds_begins_with_what_is_sent_from_then_on_and_one_that_went_with_all_there_is(
    admin: AdminClient, namespace: str, pulsar_client: Any, partitions: int
) -> None:
    plan = plan_in(namespace, Native(), partitions=partitions, subscriptions=("billing",))
    go(admin, plan)
    (part, *_) = parts_of(plan.due_topic, partitions)
    producer = pulsar_client.create_producer(part)
    producer.send(b"handled before")
    assert read_all(pulsar_client, part, "billing", 1) == [b"handled before"]
    producer.send(b"waits", deliver_after=timedelta(seconds=1))
    both = replace(plan, subscriptions=("billing", "audit"), revision=2)
    step = "create subscription audit at latest"

    assert [str(one) for one in go(admin, both, dry_run=True).steps] == [step]
    assert [str(one) for one in go(admin, both).steps] == [step]
    assert go(admin, both).steps == ()

    producer.send(b"after it")
    assert read_all(pulsar_client, part, "audit", 1) == [b"after it"]
    assert {*read_all(pulsar_client, part, "billing", 2)} == {b"after it", b"waits"}
    # Removed by hand, or by expiry: what it has not handled may be among what is there.
    producer.send(b"not yet handled by audit")
    admin.subscriptions.delete(plan.due_topic, "audit")
    assert [str(one) for one in go(admin, both).steps] == ["create subscription audit at earliest"]
    assert b"not yet handled by audit" in read_all(pulsar_client, part, "audit", 4)
    # Taken out of the plan and added again, it is a new one.
    go(admin, replace(plan, revision=3))
    admin.subscriptions.delete(plan.due_topic, "audit")
    assert [str(one) for one in go(admin, replace(both, revision=4)).steps] == [step]
    producer.close()


PLAN_FILE = """
format = 1
due_topic = "persistent://{namespace}/reminders"
subscriptions = ["billing"]
partitions = 2
{table}
"""
TIERS_TABLE = '[tiered]\nwindow = "1d"\ntiers = ["1d", "5d"]'


@pytest.fixture
def plan_file(tmp_path: Path, namespace: str) -> Path:
    path = tmp_path / "reminders.toml"
    path.write_text(PLAN_FILE.format(namespace=namespace, table=TIERS_TABLE))
    return path


def test_ensure_shows_does_and_then_has_nothing_to_do(
    admin: AdminClient, namespace: str, plan_file: Path, pulsar_broker: Broker
) -> None:
    where = ["--admin-url", pulsar_broker.admin_url]

    told = timewheel("topics", "ensure", str(plan_file), *where, "--dry-run")
    assert (told.returncode, told.stderr) == (0, "")
    # Four topics: the due topic, two tiers, dead letters; each with a subscription and five policies.
    named = "subscription billing"
    assert f"\npersistent://{namespace}/reminders: create with 2 partitions, {named}, 5 policies\n" in told.stdout
    lines = told.stdout.splitlines()
    assert len(lines) == 5
    assert lines[-1] == "4 topics: would take 28 steps"
    every = timewheel("topics", "ensure", str(plan_file), *where, "--dry-run", "--verbose", env={"COLUMNS": "40"})
    assert len(every.stdout.splitlines()) == 29
    assert f"persistent://{namespace}/reminders: create subscription billing at earliest" in every.stdout
    assert admin.topics.list(namespace) == ()

    done = timewheel("topics", "ensure", str(plan_file), *where, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert len(report["steps"]) == 28
    assert report["findings"] == []
    assert report["steps"][7] == {"topic": f"persistent://{namespace}/reminders", "step": "create with 2 partitions"}
    assert len(admin.topics.list_partitioned(namespace)) == 4

    again = timewheel("topics", "ensure", str(plan_file), *where)
    assert (again.returncode, again.stdout, again.stderr) == (0, "4 topics: all as it should be\n", "")


def test_ensure_fails_where_messages_can_be_lost(
    admin: AdminClient, namespace: str, plan_file: Path, pulsar_broker: Broker
) -> None:
    admin.namespaces.set_policy(namespace, SUBSCRIPTION_EXPIRY_MIN, 30)
    done = timewheel("topics", "ensure", str(plan_file), "--admin-url", pulsar_broker.admin_url)
    assert done.returncode == 1
    assert f"set-subscription-expiration-time {namespace} -t 0" in done.stdout
    assert len(admin.topics.list_partitioned(namespace)) == 4, "what can be done is done"


def test_a_bad_plan_and_a_plan_that_does_not_roll_are_usage_errors(tmp_path: Path, plan_file: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text(PLAN_FILE.format(namespace="acme/crm", table='[tiered]\nwindow = "1d"\ntiers = ["2d"]'))
    done = timewheel("topics", "ensure", str(bad))
    assert (done.returncode, "tiered.tiers" in done.stderr) == (2, True)
    done = timewheel("topics", "roll", str(plan_file))
    assert (done.returncode, "no calendar plan" in done.stderr) == (2, True)


@pytest.mark.short
def test_roll_watches_until_it_is_told_to_end(
    admin: AdminClient, namespace: str, tmp_path: Path, pulsar_broker: Broker
) -> None:
    plan = Plan(
        due_topic=f"persistent://{namespace}/reminders",
        subscriptions=("billing",),
        scheme=Calendar(interval_ms=2 * SECOND_MS),
        max_delay_ms=4 * SECOND_MS,
        guard_ms=0,
    )
    path = tmp_path / "calendar.toml"
    save_plan(plan, path)
    where = [str(path), "--admin-url", pulsar_broker.admin_url]

    once = well(timewheel("topics", "roll", *where, "--dry-run", "--json"))
    assert json.loads(once.stdout)["open_topics"] == 0

    command = [sys.executable, "-m", "timewheel", "topics", "roll", *where, "--watch", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watcher:
        try:
            assert watcher.stdout is not None
            seen: list[str] = []
            made: set[str] = set()

            def turned_over() -> bool:
                assert watcher.stdout is not None
                rolled = json.loads(watcher.stdout.readline())
                made.update(admin.topics.list_partitioned(namespace))
                seen.extend(topic["topic"] for topic in rolled["retired"] if topic["stage"] == "deleted")
                return len(seen) >= 3

            # Empty topics of two seconds each: made ahead, passed, removed.
            eventually(turned_over, timeout=60)
            assert set(seen) <= made
            assert not set(seen) & set(admin.topics.list_partitioned(namespace))
        finally:
            watcher.send_signal(signal.SIGTERM)
        watcher.stdout.read()
        assert watcher.wait(30) == 0
    assert len(seen) == len(set(seen)), "each once"


def test_a_first_plan_for_a_topic_with_native_timers_says_that_they_stay(
    admin: AdminClient, namespace: str, plan_file: Path, pulsar_broker: Broker, pulsar_client: Any
) -> None:
    topic, where = f"persistent://{namespace}/reminders", ["--admin-url", pulsar_broker.admin_url]
    admin.topics.create(topic, 2)
    consumer = pulsar_client.subscribe(topic, "billing", pulsar.ConsumerType.Shared)
    producer = pulsar_client.create_producer(topic)
    for _ in range(20):
        producer.send(b"renew", deliver_after=dt.timedelta(days=3))

    def delayed() -> int:
        return admin.topics.partitioned_stats(topic).total.subscriptions["billing"].delayed

    eventually(lambda: delayed() == 20, 60, message="the broker has read all of them")

    first = timewheel("topics", "ensure", str(plan_file), *where)
    said = f"info: {topic}: 20 timers wait here under the broker's own delay, and a partition may have 10,000 gaps."
    assert first.returncode == 0
    assert said in first.stdout
    assert "first a shadow" not in first.stdout, "so few"
    assert "own delay" not in timewheel("topics", "ensure", str(plan_file), *where).stdout, "later on some always wait"
    consumer.close()
    producer.close()


def test_of_two_plans_of_a_topic_the_older_is_named_and_what_is_printed_ends_the_circle(
    plan_file: Path, pulsar_broker: Broker
) -> None:
    """The doctor asked for the old file's topics, and ensure, run for that, refused it for the new partitions."""
    where = ["--admin-url", pulsar_broker.admin_url]
    new = plan_file.with_name("new.toml")
    grown = plan_file.read_text().replace("partitions = 2", "partitions = 4")
    new.write_text("revision = 2\n" + grown.replace('"5d"]', '"10d"]'))
    for options in ([str(plan_file)], [str(new), "--grow"], [str(new), "--remove-drained"]):
        assert timewheel("topics", "ensure", *options, *where).returncode == 0

    found = timewheel("doctor", str(plan_file), *where, env=os.environ | {"COLUMNS": "400"})
    assert found.returncode == 4
    assert "was provisioned by revision 2 of its plan, and this file has revision 1: it is the older" in found.stdout
    assert "missing-topic" not in found.stdout
    for options in (["--dry-run"], [], ["--grow"]):
        refused = timewheel("topics", "ensure", str(plan_file), *options, *where)
        assert refused.returncode == 1
        assert "use the file with revision = 2 for all processes, and remove this one" in refused.stderr
        assert "timewheel topics ensure" in refused.stderr
    # The newer file goes on working, and is not in its own way.
    assert timewheel("topics", "ensure", str(new), *where).returncode == 0
    sound = timewheel("doctor", str(new), *where)
    assert "topic-in-the-way" not in sound.stdout
    assert "missing-topic" not in sound.stdout
    # Back to the old plan, as printed; then the other file is the older of the two.
    plan_file.write_text(f"revision = 3\n{grown}")
    assert timewheel("topics", "ensure", str(plan_file), *where).returncode == 0
    assert "missing-topic" not in timewheel("doctor", str(plan_file), *where).stdout
    assert "use the file with revision = 3" in timewheel("topics", "ensure", str(new), *where).stderr

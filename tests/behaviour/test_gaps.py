"""`timewheel gaps` and `timewheel gaps explain` on a real broker: every target, every output, every cause."""

from __future__ import annotations

import csv
import json
import re
import shlex
import subprocess
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pulsar
import pytest

from tests.support.command_line import timewheel, well
from timewheel.broker.admin.client import AdminClient
from timewheel.cli.gaps import aid_of
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.plan import Native, Plan
from timewheel.core.planfile import save_plan
from timewheel.inspect.gaps import Level, inspect_gaps, topics_of
from timewheel.inspect.gaps.explain import Cause, Explained, advice_on, explain
from timewheel.testing import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Evidence
    from timewheel.testing import Broker

HOUR_MS = 3_600_000
SETTLE_TIMEOUT_S = 60.0
RECEIVE_TIMEOUT_MS = 10_000
SHARED = pulsar.ConsumerType.Shared
LOW = BrokerProfile(name="a low limit", gap_limit_ranges=100)


def send(client: Any, topic: str, count: int, delay_ms: Callable[[int], int] = lambda _: 0, **options: Any) -> None:
    """Numbered messages, unbatched, each delayed as it says; 0: not."""
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    now_ms = time.time_ns() // 1_000_000
    key = options.get("key", lambda _: None)
    for number in range(count):
        after_ms = delay_ms(number)
        producer.send_async(
            str(number).encode(), None, deliver_at=now_ms + after_ms if after_ms else None, partition_key=key(number)
        )
    producer.flush()
    producer.close()


def consume(client: Any, topic: str, count: int, is_acked: Callable[[int], bool], **options: Any) -> Any:
    """A consumer that has received so many and acknowledged some, and stays connected."""
    settings: dict[str, Any] = {"consumer_type": SHARED, "initial_position": pulsar.InitialPosition.Earliest, **options}
    consumer = client.subscribe(topic, "billing", **settings)
    for _ in range(count):
        message = consumer.receive(RECEIVE_TIMEOUT_MS)
        if is_acked(int(message.data())):
            consumer.acknowledge(message)
    return consumer


def settled(admin: AdminClient, topic: str, gaps: int) -> None:
    eventually(
        lambda: (
            sum(one.gap_count for one in inspect_gaps(admin, topics_of(admin, [topic]).topics, LOW).subscriptions)
            == gaps
        ),
        SETTLE_TIMEOUT_S,
        message=f"{gaps} gaps",
    )


def run(broker: Broker, *arguments: str) -> subprocess.CompletedProcess[str]:
    return timewheel("gaps", *arguments, "--admin-url", broker.admin_url)


def is_odd(number: int) -> bool:
    return number % 2 == 1


def test_the_command_shows_topics_of_any_kind(
    pulsar_broker: Broker, admin: AdminClient, pulsar_client: Any, namespace: str, tmp_path: Path
) -> None:
    plain, parts, plan_topic = (f"persistent://{namespace}/{name}" for name in ("plain", "parts", "planned"))
    admin.topics.create_unpartitioned(plain)
    admin.topics.create(parts, 2)
    admin.topics.create_unpartitioned(f"persistent://{namespace}/bare")
    for topic in (plain, parts):
        admin.subscriptions.create(topic, "billing")
    send(pulsar_client, plain, 240)
    send(pulsar_client, f"{parts}-partition-1", 180)
    consumers = [
        consume(pulsar_client, plain, 240, is_odd),
        consume(pulsar_client, f"{parts}-partition-1", 180, is_odd),
    ]
    settled(admin, plain, 120)
    settled(admin, parts, 90)
    out, log = tmp_path / "gaps.csv", tmp_path / "gaps.jsonl"

    told = run(
        pulsar_broker,
        namespace,
        "--gap-limit",
        "100",
        "--json",
        "--csv",
        str(out),
        "--fail-at",
        "alarm",
        "--log",
        str(log),
    )

    assert told.returncode == 4, told.stderr
    facts = json.loads(told.stdout)
    assert [(one["topic"], one["level"], one["gaps"], one["again_entries"]) for one in facts["subscriptions"]] == [
        (plain, "alarm", 120, 19),  # 101 ranges of one entry each are kept
        (parts, "watch", 90, 0),
    ]
    assert (facts["gap_limit"], facts["gap_limit_source"]) == (100, "as given")
    assert facts["without_subscription"] == [f"persistent://{namespace}/bare"]
    worst = facts["subscriptions"][0]["partitions"][0]
    # The last message is acknowledged, and before it stand 120 open ones.
    assert (worst["acked_entries"], worst["span_entries"], worst["backlog"], worst["unacked"]) == (120, 240, 120, 120)
    assert worst["pinned_ledgers"] == 1
    assert worst["pinned_bytes"] > 0
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["topic"], row["gaps"]) for row in rows] == [(plain, "120"), (parts, "90")]
    assert len(log.read_text().splitlines()) == 2

    one = run(pulsar_broker, f"{namespace}/parts", "--gap-limit", "100", "--fail-at", "watch")
    assert one.returncode == 3, one.stderr
    assert "90 in parts-partition-1, the worst; 90 in all partitions" in one.stdout
    assert "would deliver no acknowledged entry again" in one.stdout
    single = well(run(pulsar_broker, plain, "--gap-limit", "100"))
    assert "would deliver 19 acknowledged entries again: 19 messages" in single.stdout
    # With the broker's own limit of 10,000 all is well.
    tenant = run(pulsar_broker, namespace.partition("/")[0], "--fail-at", "watch")
    assert (tenant.returncode, "all is well" in tenant.stdout) == (0, True), tenant.stdout
    assert "read from the broker" in tenant.stdout

    plan = Plan(due_topic=plan_topic, subscriptions=("billing",))
    admin.topics.create(plan_topic, 1)
    admin.subscriptions.create(plan_topic, "billing")
    plan_file = tmp_path / "plan.toml"
    save_plan(plan, plan_file)
    planned = well(run(pulsar_broker, str(plan_file), "--json", "--watch", "--every", "1s", "--times", "2"))
    lines = [json.loads(line) for line in planned.stdout.splitlines()]
    assert [[one["topic"] for one in line["subscriptions"]] for line in lines] == [[plan_topic]] * 2
    for consumer in consumers:
        consumer.close()


@pytest.mark.parametrize(
    ("arguments", "status", "problem"),
    [
        (("nobody/nothing/at-all",), 1, "there is no such topic, and no namespace nobody/nothing: correct the name"),
        (("nobody/nothing",), 1, "there is no such namespace"),
        (("nobody",), 1, "there is no such tenant"),
        ((), 2, "name topics, namespaces, tenants or plan files, or give --all"),
        (("public", "--all"), 2, "name topics, namespaces, tenants or plan files, or give --all"),
        (("public", "--fail-at", "sometimes"), 2, "one of never, watch, alarm"),
        (("public", "--watch", "--every", "1ms"), 2, "at least 1s"),
        (("public", "--log", "/no/such/folder/gaps.jsonl"), 2, "there is no folder"),
        (("explain", "nobody/nothing/at-all"), 1, "there is no such topic"),
    ],
)
def test_what_cannot_be_meant_is_one_line(
    pulsar_broker: Broker, arguments: tuple[str, ...], status: int, problem: str
) -> None:
    told = run(pulsar_broker, *arguments)
    assert told.returncode == status
    assert problem in " ".join(told.stderr.replace("│", " ").split())
    assert "Traceback" not in told.stderr


TOPICS = 5_000
GOAL_S = 60


@pytest.mark.proof
def test_a_cluster_of_five_thousand_topics_is_seen_within_a_minute(
    pulsar_broker: Broker, admin: AdminClient, namespace: str, evidence: Evidence
) -> None:
    for number in range(TOPICS // 100):
        topic = f"persistent://{namespace}/many-{number}"
        admin.topics.create(topic, 100)
        admin.subscriptions.create(topic, "billing")  # loads every partition

    began_s = time.monotonic()
    told = run(pulsar_broker, namespace, "--json")
    took_s = time.monotonic() - began_s

    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["topics"] == TOPICS
    assert took_s < GOAL_S
    evidence("`timewheel gaps` on a cluster", {"partitions": TOPICS, "took, s": round(took_s), "requests at once": 16})


@pytest.mark.real
def test_unacknowledged_messages_are_named_with_who_has_them(
    admin: AdminClient, pulsar_client: Any, topic: str
) -> None:
    admin.topics.create_unpartitioned(topic)
    consumer = consume_after(admin, pulsar_client, topic, 300, is_odd, consumer_name="slow-one")
    found = explain(admin, topic, None, LOW)
    assert shares(found) == {Cause.UNACKNOWLEDGED: 1.0}
    (advice,) = advice_on(found, LOW)
    assert any(text.startswith("slow-one has 150 in flight, acknowledged last") for text in advice.evidence)
    assert any("set-max-unacked-messages-per-consumer" in command for command in advice.commands)
    consumer.close()


def test_mixed_delays_are_named_with_the_law_and_what_helps(
    pulsar_broker: Broker, admin: AdminClient, pulsar_client: Any, topic: str
) -> None:
    admin.topics.create(topic, 1)
    admin.subscriptions.create(topic, "billing")
    part = f"{topic}-partition-0"
    # Half are due at once, with their own delay or with none; the others in an hour.
    send(pulsar_client, part, 300, lambda number: HOUR_MS if number % 2 == 0 else (0 if number % 4 == 1 else 1))
    consumer = consume(pulsar_client, topic, 150, lambda _: True)
    settled(admin, topic, 150)

    found = explain(admin, topic, "billing", LOW)

    assert shares(found) == {Cause.DELAYS: 1.0}
    (advice,) = advice_on(found, LOW)
    assert "the broker holds 150 delayed messages of this subscription" in advice.evidence
    assert any("25 % of the sampled entries have no delay" in text for text in advice.evidence)
    assert "send messages without a delay to a topic of their own" in advice.helps
    assert advice.helps[0].startswith("first aid: a shadow moves timers far from due")
    assert advice.commands[:3] == (
        f"timewheel shadow start {topic} -o shadow.toml --dry-run",
        "timewheel shadow start shadow.toml",
        "timewheel shadow run shadow.toml",
    )
    assert advice.commands[3] == f"timewheel sample {topic} -o delays.parquet"
    told = well(run(pulsar_broker, "explain", topic))
    assert "100 % of the gaps: mixed delays" in told.stdout
    as_json = json.loads(run(pulsar_broker, "explain", topic, "--json").stdout)
    assert [(one["cause"], one["share"]) for one in as_json["causes"]] == [("delays", 1.0)]
    # What is printed of one of its partitions is about the topic, which alone can have a plan.
    (of_partition,) = advice_on(explain(admin, part, "billing", LOW), LOW)
    assert of_partition.commands == advice.commands
    consumer.close()


def test_where_the_sdk_has_a_plan_too_many_gaps_are_answered_with_another_plan(
    pulsar_broker: Broker, admin: AdminClient, pulsar_client: Any, topic: str, tmp_path: Path
) -> None:
    """No shadow can stand beside it."""
    admin.topics.create(topic, 1)
    admin.subscriptions.create(topic, "billing")
    send(pulsar_client, f"{topic}-partition-0", 300, lambda number: HOUR_MS if number % 2 == 0 else 1)
    consumer = consume(pulsar_client, topic, 150, lambda _: True)
    settled(admin, topic, 150)
    file = tmp_path / "plan.toml"
    save_plan(Plan(due_topic=topic, subscriptions=("billing",), scheme=Native(), partitions=1), file)

    told = run(pulsar_broker, str(file), "--gap-limit", "150")

    assert "shadow" not in told.stdout
    line = next(line for line in told.stdout.splitlines() if "a shorter window, or more partitions: " in line)
    command, *words = shlex.split(line.rpartition(": ")[2])
    assert [command, *words] == ["timewheel", "plan", "check", str(file), "--broker", pulsar_broker.admin_url]
    checked = timewheel(*words, "--no-change")
    assert "150 gaps in the fullest partition" in checked.stdout, checked.stderr
    # A shadow's own plan has its shadow, and the topic alone names no plan.
    assert f"shadow start {topic}" in run(pulsar_broker, topic, "--gap-limit", "150").stdout
    consumer.close()


def test_without_a_consumer_what_is_delayed_is_told_by_the_entries(
    pulsar_broker: Broker, admin: AdminClient, pulsar_client: Any, topic: str
) -> None:
    """The broker, which has no reader to read for, calls none of them delayed."""
    admin.topics.create(topic, 1)
    admin.subscriptions.create(topic, "billing")
    part = f"{topic}-partition-0"
    send(pulsar_client, part, 60, lambda number: HOUR_MS if number % 2 == 0 else 0)
    consume(pulsar_client, topic, 30, lambda _: True).close()
    settled(admin, topic, 30)
    admin.topics.unload(part)

    looked = run(pulsar_broker, topic).stdout
    assert "30 entries: 30 delayed or ready: which is not known, as no consumer is connected" in looked
    (row,) = json.loads(run(pulsar_broker, topic, "--json").stdout)["subscriptions"]
    assert (row["delayed"], row["ready"], row["unknown"]) == (0, 0, 30)

    told = run(pulsar_broker, "explain", topic).stdout
    assert "subscription billing (no consumer)" in told
    assert "0 delayed messages" not in told
    assert re.search(r"of 30 sampled open entries 30 are delayed; the first of these is due in \d+", told)
    assert "no consumer is connected" in told


@pytest.mark.real
def test_a_topic_that_only_looks_like_a_partition_gets_commands_that_are_about_itself(
    pulsar_broker: Broker, admin: AdminClient, pulsar_client: Any, topic: str
) -> None:
    # A client that names a partition makes it, be there a partitioned topic or not.
    alone = f"{topic}-partition-1"
    consumer = pulsar_client.subscribe(alone, "billing", consumer_type=SHARED)
    send(pulsar_client, alone, 300, lambda number: HOUR_MS if number % 2 == 0 else 0)
    for _ in range(150):
        consumer.acknowledge(consumer.receive(RECEIVE_TIMEOUT_MS))
    settled(admin, alone, 150)

    said = " ".join(aid_of(inspect_gaps(admin, topics_of(admin, [alone]).topics, LOW)))
    (explained,) = re.findall(r"timewheel gaps (explain \S+)$", said)
    assert "no shadow helps" in said
    assert "shadow start" not in said

    again = well(run(pulsar_broker, *explained.split()))
    assert f"{alone}, subscription billing" in again.stdout
    assert "no shadow helps" in again.stdout
    assert "  try " not in again.stdout
    checked = timewheel("doctor", alone, "--admin-url", pulsar_broker.admin_url)
    assert "there is no such topic" not in checked.stderr
    assert alone in checked.stdout
    consumer.close()


@pytest.mark.real
def test_a_slow_key_is_named(admin: AdminClient, pulsar_client: Any, topic: str) -> None:
    admin.topics.create_unpartitioned(topic)
    admin.subscriptions.create(topic, "billing")
    by_key = {"consumer_type": pulsar.ConsumerType.KeyShared, "receiver_queue_size": 5}
    consumers = [
        pulsar_client.subscribe(topic, "billing", consumer_name=name, **by_key) for name in ("first", "second")
    ]
    send(pulsar_client, topic, 400, key=lambda number: "hot" if number % 2 == 0 else f"key-{number % 40}")
    # Whoever gets the hot key does not come back from it; the other goes on.
    stuck = None
    acked = 0
    for consumer in consumers:
        try:
            while True:
                message = consumer.receive(1_000)
                if message.partition_key() == "hot":
                    stuck = consumer
                    break
                consumer.acknowledge(message)
                acked += 1
        except pulsar.Timeout:
            continue
    assert stuck is not None
    assert acked > 40
    eventually(lambda: explain(admin, topic, None, LOW).holes > 20, SETTLE_TIMEOUT_S)

    found = explain(admin, topic, None, LOW)

    assert shares(found) == {Cause.KEYS: 1.0}
    assert found.hottest_key == "hot"
    (advice,) = advice_on(found, LOW)
    assert any(text.startswith("key 'hot' has ") for text in advice.evidence)
    assert {holder.consumer.name for holder in found.holders} == {"first", "second"}
    for consumer in consumers:
        consumer.close()


def test_single_acknowledgements_are_named(admin: AdminClient, pulsar_client: Any, topic: str) -> None:
    admin.topics.create_unpartitioned(topic)
    failover = pulsar.ConsumerType.Failover
    consumer = consume_after(admin, pulsar_client, topic, 300, is_odd, consumer_type=failover)
    found = explain(admin, topic, None, LOW)
    assert shares(found) == {Cause.SINGLE: 1.0}
    assert any("acknowledge_cumulative" in text for text in advice_on(found, LOW)[0].helps)
    consumer.close()


def test_several_causes_are_told_apart_in_shares(admin: AdminClient, pulsar_client: Any, topic: str) -> None:
    admin.topics.create_unpartitioned(topic)
    admin.subscriptions.create(topic, "billing")
    # Of eight: three delayed, one held, and after each of these one that is acknowledged.
    send(pulsar_client, topic, 800, lambda number: HOUR_MS if number % 8 in {0, 2, 4} else 0)
    consumer = consume(pulsar_client, topic, 500, is_odd)
    settled(admin, topic, 400)

    found = explain(admin, topic, None, LOW)
    assert shares(found) == {Cause.DELAYS: 0.75, Cause.UNACKNOWLEDGED: 0.25}
    assert (found.holes, found.inspected) == (400, 400)

    sampled = explain(admin, topic, None, LOW, holes=100, seed=5)
    assert sampled.inspected == 100
    for share in sampled.shares:
        assert abs(share.share - shares(found)[share.cause]) <= 1.5 * share.error
    consumer.close()


def test_a_topic_without_gaps_has_nothing_to_explain(pulsar_broker: Broker, admin: AdminClient, topic: str) -> None:
    admin.topics.create_unpartitioned(topic)
    admin.subscriptions.create(topic, "billing")
    told = run(pulsar_broker, "explain", topic)
    assert (told.returncode, "there is nothing to explain" in told.stdout) == (0, True), told.stderr
    other = run(pulsar_broker, "explain", topic, "--subscription", "other")
    assert (other.returncode, "there is no such subscription" in other.stderr) == (1, True)
    assert inspect_gaps(admin, [topic], LOW).level is Level.OK


def consume_after(
    admin: AdminClient, client: Any, topic: str, count: int, is_acked: Callable[[int], bool], **options: Any
) -> Any:
    """Send so many, and consume them."""
    admin.subscriptions.create(topic, "billing")
    send(client, topic, count)
    consumer = consume(client, topic, count, is_acked, **options)
    settled(admin, topic, sum(map(is_acked, range(count))))
    return consumer


def shares(found: Explained) -> dict[Cause, float]:
    return {share.cause: share.share for share in found.shares}

"""What looks at a shadowed topic sees what is there: before anything moves, meanwhile, and whether the books balance."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.broker.producing import now_ms
from timewheel.admin.client import AdminClient
from timewheel.admin.policies import MESSAGE_TTL_S
from timewheel.binary_protocol.dialing import Dialer
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.names import Names
from timewheel.core.plan import Plan, Tiered
from timewheel.core.planfile import save_plan
from timewheel.shadow.machine.states import State, wish_in
from timewheel.shadow.surveying import survey
from timewheel.testing import Broker, eventually

TIMEOUT_MS = 20_000
GROUP = "billing"
FAR, NEAR = 200, 100


@pytest.fixture
def admin(pulsar_broker: Broker) -> Iterator[AdminClient]:
    with AdminClient(pulsar_broker.admin_url) as opened:
        yield opened


@pytest.fixture
def dialer(pulsar_broker: Broker) -> Dialer:
    return Dialer(pulsar_broker.service_url)


def plan_for(topic: str, **changes: Any) -> Plan:
    return replace(
        Plan(
            due_topic=topic,
            subscriptions=(GROUP,),
            scheme=Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS, 12 * HOUR_MS)),
            partitions=0,
            relay="service",
            readers="any",
            intake=True,
        ),
        **changes,
    )


@pytest.fixture
def plan(admin: AdminClient, topic: str) -> Plan:
    """Of a topic without partitions that is there, with its subscription."""
    admin.topics.create_unpartitioned(topic)
    admin.subscriptions.create(topic, GROUP)
    return plan_for(topic)


def send_mixed(client: Any, topic: str, *, far: int = FAR, near: int = NEAR, due: int = 0) -> None:
    """Far from due, due soon, and without a delay, by turns."""
    producer = client.create_producer(topic, block_if_queue_full=True)
    began_ms = now_ms()
    for number in range(max(far, near, due)):
        for count, delay_ms in ((far, 2 * DAY_MS), (near, MINUTE_MS * 10), (due, 0)):
            if number < count:
                options = {"deliver_at": began_ms + delay_ms + number} if delay_ms else {}
                producer.send_async(b"x" * 20, lambda *_: None, properties={"n": str(number)}, **options)
    producer.flush()
    producer.close()


def acknowledge_due(client: Any, topic: str, count: int) -> Any:
    """A Shared consumer, still open, that has acknowledged what was due."""
    consumer = client.subscribe(
        topic, GROUP, consumer_type=pulsar.ConsumerType.Shared, initial_position=pulsar.InitialPosition.Earliest
    )
    for _ in range(count):
        consumer.acknowledge(consumer.receive(TIMEOUT_MS))
    return consumer


def run(broker: Broker, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable, "-m", "timewheel", "shadow", *arguments,
            "--admin-url", broker.admin_url, "--service-url", broker.service_url,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )  # fmt: skip


def saved(plan: Plan, folder: Path) -> str:
    save_plan(plan, folder / "plan.toml")
    return str(folder / "plan.toml")


# Before anything moves.


def test_a_survey_counts_fates_and_gaps_exactly(
    pulsar_client: Any, admin: AdminClient, dialer: Dialer, plan: Plan
) -> None:
    send_mixed(pulsar_client, plan.due_topic, due=FAR)
    acknowledge_due(pulsar_client, plan.due_topic, FAR)
    eventually(
        lambda: admin.topics.internal_stats(plan.due_topic).cursors[GROUP].gap_count == FAR,
        message="all gaps are there",
    )
    found = survey(admin, dialer, plan, target="plan.toml")
    assert found.is_whole
    assert not found.is_refused, found.findings
    assert {name: amount.entries for name, amount in found.fates.items()} == {"lifted": FAR, "near": NEAR}
    assert found.lifted.size_bytes == 20 * FAR
    (part,) = found.parts
    (one,) = part.subscriptions
    assert (one.name, one.type, one.pending, one.acked) == (GROUP, "Shared", FAR + NEAR, FAR)
    # far, near, acknowledged by turns: a gap in each round; of the near ones there are half as many rounds
    assert one.gaps == FAR
    assert NEAR - 1 <= one.gaps_after <= NEAR
    assert found.delays is not None
    assert found.delays.longest_ms >= 2 * DAY_MS
    assert found.cost is not None
    # intake, twice three of the long tier, then some of the short one, and back
    assert 5 <= found.cost.writes <= 20


def test_a_large_topic_is_read_in_stretches(pulsar_client: Any, admin: AdminClient, dialer: Dialer, plan: Plan) -> None:
    send_mixed(pulsar_client, plan.due_topic, far=1_000, near=500)
    acknowledge_due(pulsar_client, plan.due_topic, 0)
    found = survey(admin, dialer, plan, target="plan.toml", most=300)
    assert not found.is_whole
    assert found.parts[0].read == 300
    assert found.parts[0].entries == 1_500
    assert abs(found.lifted.entries - 1_000) < 100


def test_what_stands_against_it_is_named(
    pulsar_client: Any, pulsar_broker: Broker, admin: AdminClient, plan: Plan, tmp_path: Path
) -> None:
    topic = plan.due_topic
    send_mixed(pulsar_client, topic, far=20, near=0)
    admin.subscriptions.create(topic, "audit")
    pulsar_client.subscribe(topic, "audit", consumer_type=pulsar.ConsumerType.Failover)
    admin.topic_policies.set(topic, MESSAGE_TTL_S, 3_600)
    admin.topic_policies.await_value(topic, MESSAGE_TTL_S, 3_600)
    other = replace(plan, partitions=2)
    done = run(pulsar_broker, "start", "--dry-run", "--json", saved(other, tmp_path))
    assert done.returncode == 3, done.stderr
    facts = json.loads(done.stdout)
    slugs = {one["slug"] for one in facts["findings"] if one["severity"] == "error"}
    assert slugs == {"subscription-in-order", "subscriptions-differ", "ttl-below-delays", "partitions-differ"}
    assert not facts["started"]


def test_a_shadow_is_started(
    pulsar_client: Any, pulsar_broker: Broker, admin: AdminClient, plan: Plan, tmp_path: Path
) -> None:
    send_mixed(pulsar_client, plan.due_topic, far=20, near=20)
    acknowledge_due(pulsar_client, plan.due_topic, 0)
    plan_file = saved(plan, tmp_path)
    shown = run(pulsar_broker, "start", "--dry-run", plan_file)
    assert shown.returncode == 0, shown.stderr + shown.stdout
    assert "far from due: lifted" in shown.stdout
    assert admin.topics.partitions(Names(plan).intake) is None
    done = run(pulsar_broker, "start", plan_file)
    assert done.returncode == 0, done.stderr
    assert "shadow run" in done.stdout
    first = wish_in(admin.topics.properties(Names(plan).intake))
    assert first.state is State.SHADOWING
    assert abs(first.since_ms - now_ms()) < MINUTE_MS
    assert run(pulsar_broker, "start", plan_file).returncode == 0
    assert wish_in(admin.topics.properties(Names(plan).intake)) == first

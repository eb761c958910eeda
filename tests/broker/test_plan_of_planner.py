"""From a history to timers on a broker: a plan is made, its topics are ensured, the SDK runs it as it is written."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pulsar
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from tests.broker.due_topic import ShiftedClock, now_ms
from tests.support.checkout import ROOT
from tests.support.command_line import timewheel, well
from timewheel.broker.admin.client import AdminClient
from timewheel.cli.app import app
from timewheel.consumers import DelayedConsumer
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.envelope import Envelope
from timewheel.core.names import RELAY_SUBSCRIPTION, Names, partition_topic
from timewheel.core.plan import Plan, Tiered
from timewheel.core.routing import Hold, Router
from timewheel.core.steps import steps
from timewheel.core.topology import topology
from timewheel.inspect.profile import profile_of
from timewheel.producers import DelayedProducer, Timer
from timewheel.relay import Relay
from timewheel.spark_planner.choice import choose
from timewheel.spark_planner.choice.candidates import candidate_plans
from timewheel.testing import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.broker.conftest import Connect
    from timewheel.testing import Broker

pytestmark = pytest.mark.short

HISTORY = ROOT / "examples" / "history" / "renewals.parquet"
SUBSCRIPTION = "billing"
NEAR_DELAYS_MS = (0, 500, 1_000, 1_500, 2_000, 2_500, 3_000, 3_500)
HOUR_MS = 3_600_000


class Planned(NamedTuple):
    """The planner's answer, and the file that it wrote."""

    file: Path
    answer: dict[str, Any]

    @property
    def plan(self) -> Plan:
        return Plan.load(self.file)


def some_candidates(*arguments: Any) -> tuple[Plan, ...]:
    """Every twelfth: more are priced in tests/planner/test_cli_plan.py."""
    return candidate_plans(*arguments)[::12]


@pytest.fixture(scope="module")
def planned(spark: SparkSession, pulsar_broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Planned:
    """Ten times the shipped example, for this broker. With so few topics allowed, native partitions are no way out."""
    assert SparkSession.getActiveSession() is spark, "the command takes the one that is there"
    folder = tmp_path_factory.mktemp("planner")
    file, history = folder / "plan.toml", folder / "tenth.parquet"
    rows = pq.read_table(HISTORY)
    pq.write_table(rows.take(np.arange(0, rows.num_rows, 10)), history)  # a tenth of it plans as well, and sooner
    arguments = [
        "plan", str(history), "--as-is", "--growth", "100", "--max-topics", "8", "--broker", pulsar_broker.admin_url,
        "--due-topic", f"persistent://public/default/renewals-{uuid.uuid4().hex[:8]}", "--subscription", SUBSCRIPTION,
        "-o", str(file), "--json",
    ]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "candidate_plans", some_candidates)
        done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    well(timewheel("topics", "ensure", str(file), "--admin-url", pulsar_broker.admin_url))
    return Planned(file, json.loads(done.stdout))


def far_delays_ms(plan: Plan) -> list[int]:
    """For each tier two delays with which a timer goes there at once."""
    tiers = [step for step in steps(plan) if step.kind == "tier"]
    return [tier.min_remaining_ms + slack_ms for tier in tiers for slack_ms in (HOUR_MS, 2 * HOUR_MS)]


def send(producer: DelayedProducer, delay_ms: int) -> Timer:
    return producer.send(b"after %d ms" % delay_ms, deliver_after=dt.timedelta(milliseconds=delay_ms))


def held(admin: AdminClient, plan: Plan) -> dict[str, int]:
    """Timers that wait in each holding topic for the relay, none of them passed over: no gap."""
    found = {}
    for topic in topology(plan, now_ms()).holding:
        total = admin.topics.partitioned_stats(topic.name, precise_backlog=True).total
        subscription = total.subscriptions[RELAY_SUBSCRIPTION]
        assert subscription.gap_count == 0
        found[topic.name] = subscription.backlog
    return found


def test_the_plan_is_for_the_broker_that_was_named(planned: Planned, admin: AdminClient) -> None:
    assert BrokerProfile.from_mapping(planned.answer["profile"]) == profile_of(admin)
    assert planned.plan.tick_ms == profile_of(admin).tick_ms
    assert planned.answer["keeps_limits"]
    assert planned.answer["recommended"]["partitions"] == planned.plan.partitions
    # The history's renewals are up to 61 days ahead.
    assert planned.plan.max_delay_ms == 90 * 24 * HOUR_MS


def test_the_sdk_sends_and_receives_through_it_as_it_is_written(
    planned: Planned, admin: AdminClient, pulsar_broker: Broker, connect: Connect
) -> None:
    plan, client = planned.plan, connect(pulsar_broker)
    assert isinstance(plan.scheme, Tiered), "ten times the example needs a relay, or this test shows too little"
    router, before = Router(plan), held(admin, plan)
    expected = dict(before)
    with DelayedConsumer(client, plan, SUBSCRIPTION) as consumer, DelayedProducer(client, plan) as producer:
        for delay_ms in far_delays_ms(plan):
            at_ms = now_ms()
            route = router.route(at_ms + delay_ms, at_ms)
            assert isinstance(route, Hold)
            send(producer, delay_ms)
            expected[route.topic] += 1
        near = [send(producer, delay_ms) for delay_ms in NEAR_DELAYS_MS]
        assert min(expected.values()) >= 2, "every tier was asked"

        due_at = {timer.id: timer.due_at for timer in near}
        payloads: dict[str | None, bytes] = {}
        while len(payloads) < len(near):
            message = consumer.receive(timeout=dt.timedelta(seconds=30))
            assert dt.datetime.now(dt.UTC) >= due_at[message.timer_id or ""]
            assert message.timer_id not in payloads
            payloads[message.timer_id] = message.data()
            consumer.acknowledge(message)
        sent = zip(near, NEAR_DELAYS_MS, strict=True)
        assert payloads == {timer.id: b"after %d ms" % delay_ms for timer, delay_ms in sent}
        eventually(lambda: consumer.ready, 60)
        # The relay inside the consumer has all others, and nothing of them comes before its time.
        eventually(lambda: held(admin, plan) == expected, 60)
        for topic in expected:
            partitions = admin.topics.partitioned_stats(topic, clients=True).partitions.values()
            readers = [one.subscriptions[RELAY_SUBSCRIPTION].consumers or () for one in partitions]
            assert [len(found) for found in readers] == [1] * plan.partitions, topic
        assert all_stored(client, plan).keys() == due_at.keys()
        assert held(admin, plan) == expected


def test_what_it_holds_goes_on_when_its_stay_is_over(
    planned: Planned, admin: AdminClient, pulsar_broker: Broker, connect: Connect
) -> None:
    """Days pass by the relay's clock: out of the smallest tier timers go to the due topic, and no other one moves."""
    plan, client = planned.plan, connect(pulsar_broker)
    smallest = next(step for step in reversed(steps(plan)) if step.kind == "tier")
    with DelayedProducer(client, plan) as producer:
        sent = {delay_ms: send(producer, delay_ms) for delay_ms in far_delays_ms(plan)}
    leaving = {timer.id for delay_ms, timer in sent.items() if delay_ms < 2 * smallest.stay_ms}
    tier = Names(plan).of_step(smallest)[0]
    before = held(admin, plan)
    assert len(leaving) == 2
    assert before[tier] >= 2

    relay = Relay(client, plan, clock=ShiftedClock(smallest.stay_ms))
    relay.start()
    try:
        eventually(lambda: held(admin, plan)[tier] == 0, 60)
        assert relay.status().total("late") == 0
    finally:
        relay.stop()

    assert held(admin, plan) == {**before, tier: 0}
    arrived = all_stored(client, plan)
    assert {timer.id for timer in sent.values()} & arrived.keys() == leaving
    for delay_ms, timer in sent.items():
        if timer.id in leaving:
            payload, envelope = arrived[timer.id]
            assert payload == b"after %d ms" % delay_ms
            assert (envelope.due_ms, envelope.hops) == (timer.due_ms, 1)


def all_stored(client: Any, plan: Plan) -> dict[str, tuple[bytes, Envelope]]:
    """Every timer that ever came to the due topic: payload and envelope by id. No copies."""
    found: dict[str, tuple[bytes, Envelope]] = {}
    for partition in range(plan.partitions):
        reader = client.create_reader(partition_topic(plan.due_topic, partition), pulsar.MessageId.earliest)
        while reader.has_message_available():
            message = reader.read_next(10_000)
            envelope = Envelope.read(message.properties())
            assert envelope is not None
            assert envelope.timer_id not in found
            found[envelope.timer_id] = message.data(), envelope
        reader.close()
    return found

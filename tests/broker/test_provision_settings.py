"""Provisioning on brokers whose own settings are in the way."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pulsar
import pytest

from tests.support.own_broker import own_broker
from timewheel.broker.admin.client import AdminClient
from timewheel.core.durations import DAY_MS
from timewheel.core.errors import TopologyError
from timewheel.core.names import partition_topic
from timewheel.core.plan import Plan, Tiered
from timewheel.provision.provisioning import ensure
from timewheel.testing import eventually

if TYPE_CHECKING:
    from tests.broker.conftest import Connect
    from timewheel.testing import LocalPulsar

NOW_MS = 1_767_225_600_000


def test_a_broker_without_policies_of_topics_is_refused(forgetful: LocalPulsar, topic: str) -> None:
    plan = Plan(due_topic=topic, subscriptions=("billing",))
    with (
        AdminClient(forgetful.admin_url) as admin,
        pytest.raises(TopologyError, match="topicLevelPoliciesEnabled=true"),
    ):
        ensure(admin, plan, now_ms=NOW_MS)


@pytest.mark.short
def test_delayed_delivery_that_is_off_is_an_error(undelaying: LocalPulsar, connect: Connect, topic: str) -> None:
    plan = Plan(due_topic=topic, subscriptions=("billing",))
    with AdminClient(undelaying.admin_url) as admin:
        (finding,) = ensure(admin, plan, now_ms=NOW_MS).errors
    assert finding.subject == plan.due_topic
    assert finding.slug == "delays-off"
    # It is true: a message that is due in an hour comes now.
    client = connect(undelaying)
    producer = client.create_producer(partition_topic(plan.due_topic, 0))
    producer.send(b"early", deliver_after=timedelta(hours=1))
    consumer = client.subscribe(topic, "billing", consumer_type=pulsar.ConsumerType.Shared)
    assert consumer.receive(timeout_millis=10_000).data() == b"early"


@pytest.mark.short
def test_the_names_that_a_broker_remembers_are_counted(connect: Connect, topic: str) -> None:
    plan = Plan(due_topic=topic, subscriptions=("billing",), scheme=Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS,)))
    few = {"brokerDeduplicationMaxNumberOfProducers": "5", "brokerDeduplicationEntriesInterval": "10"}
    with own_broker(few) as broker, AdminClient(broker.admin_url) as admin:
        assert ensure(admin, plan, now_ms=NOW_MS).findings == ()
        client = connect(broker)
        for number in range(4):
            producer = client.create_producer(partition_topic(topic, 0), f"producer-{number}", batching_enabled=False)
            for _ in range(10):
                producer.send(b"")

        def told() -> bool:
            findings = ensure(admin, plan, now_ms=NOW_MS).findings
            said = "4 producers' names are remembered of a partition, of 5"
            return [said in finding.read for finding in findings if finding.subject == topic] == [True]

        eventually(told, 60)

"""Provisioning on brokers whose own settings are in the way."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pulsar
import pytest

from timewheel.admin.client import AdminClient
from timewheel.core.errors import TopologyError
from timewheel.core.names import partition_topic
from timewheel.core.plan import Plan
from timewheel.ops.provision import ensure

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


def test_delayed_delivery_that_is_off_is_an_error(undelaying: LocalPulsar, connect: Connect, topic: str) -> None:
    plan = Plan(due_topic=topic, subscriptions=("billing",))
    with AdminClient(undelaying.admin_url) as admin:
        (finding,) = ensure(admin, plan, now_ms=NOW_MS).errors
    assert finding.where == plan.due_topic
    assert "delivered at once" in finding.problem
    # It is true: a message that is due in an hour comes now.
    client = connect(undelaying)
    producer = client.create_producer(partition_topic(plan.due_topic, 0))
    producer.send(b"early", deliver_after=timedelta(hours=1))
    consumer = client.subscribe(topic, "billing", consumer_type=pulsar.ConsumerType.Shared)
    assert consumer.receive(timeout_millis=10_000).data() == b"early"

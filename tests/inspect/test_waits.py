"""What a broker does only a moment later is waited for by the client's clock, and not for ever."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.broker_stats import internal_json
from tests.support.manual_clock import LeapingClock
from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.policies import MESSAGE_TTL_S
from timewheel.core import Calendar, Plan, Tiered
from timewheel.core.errors import AdminError, TopologyError
from timewheel.core.topology import topology
from timewheel.provision import calendar_life, provisioning
from timewheel.provision.provision_steps import CreateSubscription

TOPIC = "persistent://acme/crm/reminders"
DAY_MS = 86_400_000
NOW_MS = 20_000 * DAY_MS


def ok(value: Any = None) -> httpx.Response:
    return httpx.Response(200, json=value) if value is not None else httpx.Response(200)


def refusal(status: int, reason: str = "because") -> httpx.Response:
    return httpx.Response(status, json={"reason": reason})


class Broker:
    """Answers a call by the end of its path: one answer after another, the last one again and again."""

    def __init__(self, **answers: list[httpx.Response]) -> None:
        self._answers = answers
        self.calls = 0
        self.clock = LeapingClock()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.calls += 1
        answers = self._answers[request.url.path.rpartition("/")[2].replace("-", "_")]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return httpx.Response(answer.status_code, content=answer.content)

    def admin(self) -> AdminClient:
        return AdminClient("http://asked:8080", transport=httpx.MockTransport(self), clock=self.clock)


def test_a_policy_is_read_back_until_it_is_there() -> None:
    broker = Broker(messageTTL=[ok(), ok(), ok(60)])
    broker.admin().topic_policies.await_value(TOPIC, MESSAGE_TTL_S, 60)
    assert broker.clock.waits_ms == [50, 50]


SCHEME = Tiered(window_ms=DAY_MS // 2, tiers_ms=(DAY_MS // 2,))
SPEC = topology(Plan(due_topic=TOPIC, subscriptions=("billing",), scheme=SCHEME), NOW_MS).topics[0]
UNLOADED = {"deduplicationStatus": "Initialized"}


@pytest.mark.parametrize(
    ("answers", "wait", "said", "waited_ms"),
    [
        (
            {"messageTTL": [ok()]},
            lambda admin: admin.topic_policies.await_value(TOPIC, MESSAGE_TTL_S, 60),
            "10 s after it was set",
            10_000,
        ),
        (
            {"partitioned_stats": [ok({"metadata": {"partitions": 1}, "partitions": {TOPIC: UNLOADED}})]},
            lambda admin: provisioning._await_deduplication(admin, SPEC),
            "deduplication is set, and Initialized 30 s later",
            30_000,
        ),
        (
            {"partitions": [refusal(409), refusal(404)]},
            lambda admin: provisioning._create_topic(admin, TOPIC, 4),
            "another process is creating it",
            10_000,
        ),
    ],
    ids=["a policy", "deduplication", "a topic that somebody else creates"],
)
def test_what_never_comes_is_waited_for_so_long(answers: Any, wait: Any, said: str, waited_ms: int) -> None:
    broker = Broker(**answers)
    with pytest.raises(TopologyError, match=said):
        wait(broker.admin())
    assert sum(broker.clock.waits_ms) == waited_ms


def test_a_subscription_that_somebody_else_is_creating_is_asked_for_again_for_10_seconds() -> None:
    broker = Broker(partitions=[ok({"partitions": 4})], billing=[refusal(412, "failed to fence")])
    with pytest.raises(AdminError, match="failed to fence"):
        provisioning._create_subscription(broker.admin(), CreateSubscription(topic=TOPIC, subscription="billing"))
    # Pauses are of up to 0.2 s, and none is begun that would end after 10 s.
    assert 9_800 <= sum(broker.clock.waits_ms) < 10_000
    assert broker.calls > 10 / 0.2


def test_a_partition_without_its_topic_is_looked_at_again_a_second_later() -> None:
    plan = Plan(due_topic=TOPIC, subscriptions=("billing",), scheme=Calendar())
    orphan = f"{TOPIC}.tw.1d-20241004-partition-0"
    seen = [ok([orphan]), ok([])]  # gone when looked at again: somebody was deleting its topic
    broker = Broker(crm=seen, partitioned=[ok([])], internalStats=[ok(internal_json(numberOfEntries=7))])
    assert calendar_life._orphans(broker.admin(), plan) == ()
    assert broker.clock.waits_ms == [1_000]

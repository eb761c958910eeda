"""A subscription may be called anything that a broker takes, on a real broker: every look and every topic knows it."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from tests.broker.due_topic import now_ms, running
from tests.broker.test_cancel import plan_on, provisioned
from tests.contract.client_contract import ANY_NAME
from timewheel.broker.admin import AdminClient
from timewheel.consumers import DelayedConsumer, DelayedMessage, ParkTimer, RetryLater
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.clock import SystemClock
from timewheel.core.names import partition_topic
from timewheel.dead_letters import dead_letters, parked_box
from timewheel.inspect.gaps import inspect_gaps
from timewheel.inspect.gaps.explain import explain
from timewheel.inspect.plan_sample import sample_plan
from timewheel.inspect.status import status_of
from timewheel.inspect.whereis import State, Wanted, whereis
from timewheel.producers import DelayedProducer
from timewheel.testing import eventually

if TYPE_CHECKING:
    from tests.broker.conftest import Connect
    from timewheel.testing import Broker

FUNCTION = "public/default/notifier"
"""As Pulsar Functions name theirs."""
LOW = BrokerProfile(name="a low limit", gap_limit_ranges=5)
PAIRS = 20
WAIT_S = 60


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

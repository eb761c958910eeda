"""Bookies that are away while hops are under way, and a broker that dies with them."""

from __future__ import annotations

import datetime as dt

import pytest

from timewheel.consumers import DelayedConsumer
from timewheel.core import parse_plan
from timewheel.core.names import partition_topic
from timewheel.producers import DelayedProducer
from timewheel.provision import ensure
from timewheel.testing.virtual import VirtualPulsar

BEGINS = dt.datetime(2027, 1, 1, tzinfo=dt.UTC)
PLAN = parse_plan("""
format = 1
due_topic = "persistent://public/default/reminders"
subscriptions = ["billing"]
max_delay = "1h"
guard = "10s"
[tiered]
window = "1m"
tiers = ["1m", "5m"]
""")


@pytest.mark.parametrize("number", [1, 40])
def test_a_hop_that_is_under_way_when_its_broker_dies_is_made_again_though_its_number_was_taken(number: int) -> None:
    """Brokers return the number of an entry that they have not stored yet as the last number of its producer."""
    handled: list[bytes] = []
    with VirtualPulsar(begins=BEGINS, brokers=2) as virtual:
        with virtual.admin() as admin:
            ensure(admin, PLAN, now_ms=round(BEGINS.timestamp() * 1_000))

        def service() -> None:
            with DelayedConsumer(virtual.client(), PLAN, "billing") as consumer:
                consumer.run(lambda message: handled.append(message.data()))

        begun = virtual.start(service)
        with DelayedProducer(virtual.client(), PLAN) as producer:
            for one in range(number):
                producer.send(b"%d" % one, deliver_after=dt.timedelta(minutes=6, seconds=30))
        shortest = partition_topic(f"{PLAN.due_topic}.tw.tier-1m", 0)
        other = virtual.cluster.brokers[1]
        virtual.cluster.topics[shortest].owner = other
        virtual.advance(minutes=4, seconds=55)
        virtual.stop_writes()
        virtual.advance(seconds=10)
        assert not virtual.pending(shortest), "its hop is under way to the bookies"
        begun.kill()
        virtual.start(service)
        virtual.advance(minutes=2)
        virtual.kill_broker(1)
        virtual.resume_writes()
        virtual.advance(minutes=10)
    assert sorted(handled) == sorted(b"%d" % one for one in range(number))

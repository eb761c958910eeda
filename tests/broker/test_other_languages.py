"""Clients of other languages: they send under the broker's delay, or to the intake, and read the due topic as ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.broker.producing import make_plan
from tests.support.other_languages import Line, Program, java, node, timers
from timewheel.consumers.relay.relay import Relay
from timewheel.core.keys import partition_for_key
from timewheel.core.names import Names, partition_topic
from timewheel.core.plan import Plan, Tiered
from timewheel.testing import Broker

KEYS = ("customer-7", "Zürich", "日本", "😀")
DELAYS_MS = dict(zip(KEYS, (1_500, 500, 3_000, 0), strict=True))
FAR_MS = dict(zip(KEYS, (5_000, 3_000, 9_000, 0), strict=True))
"""Past the window, past a tier, and due at once."""
PROGRAMS = pytest.mark.parametrize("program", [java, node], ids=["java", "node"])


def by_key(lines: list[Line]) -> dict[str, Line]:
    found = {line["key"]: line for line in lines}
    assert len(found) == len(lines), "each once"
    return found


def assert_in_time(sent: list[Line], received: list[Line]) -> None:
    due_ms = {line["key"]: line["due_ms"] for line in sent}
    early = [line for line in received if line["at_ms"] < due_ms[line["key"]]]
    assert early == []


@PROGRAMS
def test_the_due_topic_of_a_plan_takes_what_knows_nothing_of_it(
    pulsar_broker: Broker, topic: str, program: Program
) -> None:
    plan = make_plan(pulsar_broker, topic, partitions=3, readers="any")
    said = program(
        pulsar_broker, "plain", topic, timers(DELAYS_MS), "receive", topic, plan.subscriptions[0], len(DELAYS_MS)
    )
    assert list(by_key(said.sent)) == list(KEYS)
    received = by_key(said.received)
    assert set(received) == set(KEYS)
    assert_in_time(said.sent, said.received)
    for line in received.values():
        assert line["payload"] == "renew"
        assert line["properties"] == {"sender": "java" if program is java else "node"}


INTAKE = Tiered(window_ms=2_000, tiers_ms=(2_000, 4_000))


@pytest.fixture
def taking_in(pulsar_broker: Broker, pulsar_client: Any, topic: str) -> Iterator[Plan]:
    """A plan whose intake is relayed. Nothing is lifted, so that nothing need stand before it."""
    plan = make_plan(
        pulsar_broker,
        topic,
        INTAKE,
        partitions=3,
        readers="any",
        relay="service",
        intake=True,
        guard_ms=500,
        max_delay_ms=60_000,
    )
    relay = Relay(pulsar_client, plan, gate=lambda _source, consumer, _handle: consumer)
    relay.start()
    yield plan
    relay.stop()


@PROGRAMS
def test_a_due_time_in_the_intake_is_a_timer(
    pulsar_broker: Broker, taking_in: Plan, topic: str, program: Program
) -> None:
    """All that its sender knows is the topic's name and ``tw-due``; it comes in time, by its key's partition."""
    said = program(pulsar_broker, "intake", topic, timers(FAR_MS), "receive", topic, "billing", len(FAR_MS))
    due_ms = {line["key"]: line["due_ms"] for line in said.sent}
    received = by_key(said.received)
    assert set(received) == set(KEYS)
    assert_in_time(said.sent, said.received)
    places = set()
    for key, line in received.items():
        properties = line["properties"]
        version, due, generation, _hops, _entered, revision = properties["tw-timer"].split()
        assert (version, due, generation, revision) == ("1", str(due_ms[key]), "0", "1")
        assert set(properties) == {"sender", "tw-id", "tw-timer"}
        partition = partition_for_key(key, taking_in.partitions)
        assert properties["tw-id"].startswith(partition_topic(Names(taking_in).intake, partition) + ":")
        if program is java:  # the WebSocket API does not tell the partition
            assert line["topic"] == partition_topic(topic, partition)
        places.add(properties["tw-id"])
    assert len(places) == len(KEYS), "though Java's client puts several of them into one entry"

"""Producers of a partition beyond what may be open at a time; what they send is tried on the broker."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest

from timewheel.consumers.relay.driver.hop_producers import MAX_PRODUCERS, HopProducers
from timewheel.core.names import Names
from timewheel.core.plan import Plan
from timewheel.wire.native import NO_SCHEMA

SOURCE = "persistent://acme/crm/held-partition-3"
NAMES = Names(Plan(due_topic="persistent://acme/crm/held", subscriptions=("billing",), partitions=4))


class Opened:
    """A producer that refuses to flush when told to."""

    def __init__(self, topic: str, name: str | None) -> None:
        self.topic, self.name = topic, name
        self.refuses = False
        self.done: list[str] = []

    def flush(self) -> None:
        self.done.append("flush")
        if self.refuses:
            raise pulsar.ConnectError("not now")

    def close(self) -> None:
        self.done.append("close")


class Client:
    """Gives such producers, each name to one holder at a time."""

    def __init__(self) -> None:
        self.opened: list[Opened] = []

    def create_producer(self, topic: str, *, producer_name: str | None = None, **options: Any) -> Opened:
        fixed = producer_name is not None and producer_name.startswith("tw|")
        assert ("initial_sequence_id" in options) != fixed, (
            "with a random name it needs a first number, with a fixed one the broker is asked for the last"
        )
        assert producer_name is None or all(one.name != producer_name or "close" in one.done for one in self.opened), (
            "a name that is held"
        )
        self.opened.append(Opened(topic, producer_name))
        return self.opened[-1]


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def full(client: Client) -> HopProducers:
    """As many open as may be."""
    producers = HopProducers(client, SOURCE, 3, names=NAMES, fingerprint="f", max_pending=10, send_timeout_ms=1_000)
    for number in range(MAX_PRODUCERS):
        producers.to(f"persistent://acme/crm/t-{number}", NO_SCHEMA, named=True)
    return producers


def test_the_oldest_makes_room_and_nothing_of_it_is_under_way(client: Client, full: HopProducers) -> None:
    full.to("persistent://acme/crm/more", NO_SCHEMA, named=True)
    assert len(full) == MAX_PRODUCERS
    assert client.opened[0].done == ["flush", "close"]
    assert all(not one.done for one in client.opened[1:])


def test_one_that_refuses_to_flush_is_closed_and_its_name_is_free(client: Client, full: HopProducers) -> None:
    oldest = client.opened[0]
    oldest.refuses = True
    with pytest.raises(pulsar.ConnectError):
        full.to("persistent://acme/crm/more", NO_SCHEMA, named=True)
    assert oldest.done == ["flush", "close"]
    again = full.to("persistent://acme/crm/t-0", NO_SCHEMA, named=True)
    assert again.name == oldest.name


def test_all_names_are_given_back(client: Client, full: HopProducers) -> None:
    full.give_back()
    assert len(full) == 0
    assert all(one.done == ["close"] for one in client.opened)


def test_unnamed_producers_have_random_names_and_a_first_number_of_their_own(client: Client) -> None:
    """broker-facts: numbers-used-twice"""
    producers = HopProducers(client, SOURCE, 3, names=NAMES, fingerprint="f", max_pending=10, send_timeout_ms=1_000)
    for delayed in (True, False):
        producers.to("persistent://acme/crm/t", NO_SCHEMA, named=False, delayed=delayed)
    producers.to_dead_letters("persistent://acme/crm/dead")
    names = [one.name for one in client.opened]
    assert len(set(names)) == 3
    assert all(name is not None and name.startswith("tw-") for name in names)

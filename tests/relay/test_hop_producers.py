"""Producers of a partition beyond what may be open at a time; what they send is tried on the broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pulsar
import pytest

from timewheel.client.native import NO_SCHEMA
from timewheel.client.positions import Position
from timewheel.core.names import Names
from timewheel.core.plan import Plan
from timewheel.relay.driver.hop_producers import MAX_PRODUCERS, HeldNames, HopProducers
from timewheel.relay.machine.order import sequence_id

SOURCE = "persistent://acme/crm/held-partition-3"
NAMES = Names(Plan(due_topic="persistent://acme/crm/held", subscriptions=("billing",), partitions=4))


class Opened:
    """A producer that refuses to flush when told to."""

    def __init__(self, topic: str, name: str | None) -> None:
        self.topic, self.name = topic, name
        self.refuses = False
        self.mark = -1
        self.done: list[str] = []

    def last_sequence_id(self) -> int:
        return self.mark

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
        self.marks: dict[str, int] = {}
        """By topic: of whoever has a fixed name there."""

    def create_producer(self, topic: str, *, producer_name: str | None = None, **options: Any) -> Opened:
        fixed = producer_name is not None and producer_name.startswith("tw|")
        assert ("initial_sequence_id" in options) != fixed, (
            "with a random name it needs a first number, with a fixed one the broker is asked for the last"
        )
        assert producer_name is None or all(one.name != producer_name or "close" in one.done for one in self.opened), (
            "a name that is held"
        )
        opened = Opened(topic, producer_name)
        if fixed:
            opened.mark = self.marks.get(topic, -1)
        self.opened.append(opened)
        return opened


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


LAST = Position(7, 5, -1)
"""Of the source, whose head is at 7:3."""


@pytest.mark.parametrize("lane", ["single", "group"])
@pytest.mark.parametrize(
    ("mark", "asks", "is_forged"),
    [
        (-1, 0, False),
        (sequence_id(Position(7, 2, -1)), 0, False),
        (sequence_id(Position(7, 3, -1)), 0, False),
        (sequence_id(Position(7, 5, -1)), 1, False),
        (sequence_id(Position(7, 5, 900)), 1, False),
        (sequence_id(Position(7, 6, -1)), 1, True),
        (sequence_id(Position(8, 0, -1)), 1, True),
        (1 << 62, 1, True),
    ],
)
def test_nothing_is_sent_under_a_name_whose_mark_its_relay_cannot_have_left(
    client: Client, lane: str, mark: int, asks: int, *, is_forged: bool
) -> None:
    """broker-facts: numbers-of-others"""
    asked: list[Position] = []
    told: list[Any] = []

    def last() -> Position:
        asked.append(LAST)
        return LAST

    tools: Any = SimpleNamespace(
        client=client,
        names=NAMES,
        router=SimpleNamespace(fingerprint="f"),
        max_in_flight=10,
        send_timeout_ms=1_000,
        alarms=SimpleNamespace(raised=told.append),
    )
    source: Any = SimpleNamespace(name=SOURCE, partition=3)
    producers = HopProducers.of(source, tools, HeldNames(), lambda: Position(7, 3, -1), last)
    topic = "persistent://acme/crm/t"
    client.marks[f"{topic}-partition-3"] = mark

    def take() -> Any:
        if lane == "single":
            return producers.to(topic, NO_SCHEMA, named=True)
        producer, its_mark = producers.for_groups(topic, NO_SCHEMA)
        assert its_mark == (-1 if is_forged else mark)
        return producer

    producer = take()
    assert take() is producer
    assert len(asked) == asks
    assert [event.destination for event in told] == [f"{topic}-partition-3"] * is_forged
    fixed = client.opened[0]
    assert (producer is fixed) is not is_forged
    assert not fixed.done, "it is the lease"
    number = sequence_id(Position(7, 4, -1))
    assert producers.is_new(producer, number) is (is_forged or number > mark)
    producers.give_back()
    assert all(one.done == ["close"] for one in client.opened)


def test_the_lease_of_a_forged_name_is_free_when_its_stand_in_makes_room(client: Client) -> None:
    producers = HopProducers(
        client,
        SOURCE,
        3,
        names=NAMES,
        fingerprint="f",
        max_pending=10,
        send_timeout_ms=1_000,
        is_forged=lambda *_: True,
    )
    first = "persistent://acme/crm/t-0"
    client.marks[f"{first}-partition-3"] = 1 << 62
    stand_in = producers.to(first, NO_SCHEMA, named=True)
    for number in range(1, MAX_PRODUCERS + 1):
        producers.to(f"persistent://acme/crm/t-{number}", NO_SCHEMA, named=True)
    assert stand_in.done == ["flush", "close"]
    assert client.opened[0].done == ["close"]
    assert producers.to(first, NO_SCHEMA, named=True) is not stand_in, "its name can be had again"

"""Redeliveries are counted where the raw client hands messages out, by positions alone."""

from __future__ import annotations

from dataclasses import dataclass

from timewheel.core.envelope import ID_PROPERTY
from timewheel.testing.evidence.recorder import Deliveries

TOPIC = "persistent://public/default/due-partition-0"


@dataclass(frozen=True)
class Id:
    ledger: int
    entry: int
    batch: int = -1

    def ledger_id(self) -> int:
        return self.ledger

    def entry_id(self) -> int:
        return self.entry

    def batch_index(self) -> int:
        return self.batch

    def partition(self) -> int:
        return 0


@dataclass(frozen=True)
class Message:
    """As much of a message as is recorded."""

    id: Id
    timer: str = "t0000001"
    topic: str = TOPIC

    def message_id(self) -> Id:
        return self.id

    def properties(self) -> dict[str, str]:
        return {ID_PROPERTY: self.timer}

    def topic_name(self) -> str:
        return self.topic


def of_business() -> Deliveries:
    return Deliveries(lambda message: message.properties().get(ID_PROPERTY))


def receive(deliveries: Deliveries, *messages: Message) -> None:
    for message in messages:
        deliveries.received(message)  # type: ignore[arg-type] # what is not recorded is left out


def test_a_delivery_after_its_acknowledgement_returned_is_a_redelivery() -> None:
    deliveries, message = of_business(), Message(Id(7, 1))
    receive(deliveries, message)
    deliveries.acknowledged(message)
    receive(deliveries, message)
    assert deliveries.redelivered == 1
    assert deliveries.redelivered_of == {"t0000001": 1}
    assert len(deliveries.times_of["t0000001"]) == 2


def test_a_delivery_before_its_acknowledgement_is_none() -> None:
    deliveries, message = of_business(), Message(Id(7, 1))
    receive(deliveries, message, message)
    assert deliveries.redelivered == 0


def test_an_acknowledgement_by_id_counts_too() -> None:
    deliveries, message = of_business(), Message(Id(7, 1))
    deliveries.acknowledged(message.id)
    receive(deliveries, message)
    assert deliveries.redelivered == 1


def test_the_same_timer_at_another_position_is_another_copy_and_no_redelivery() -> None:
    deliveries = of_business()
    deliveries.acknowledged(Message(Id(7, 1)))
    receive(deliveries, Message(Id(7, 2)))
    assert deliveries.redelivered == 0
    assert len(deliveries.times_of["t0000001"]) == 1


def test_a_cumulative_acknowledgement_covers_what_lies_before_it_in_its_topic_only() -> None:
    deliveries = Deliveries(None)
    deliveries.acknowledged_cumulative(TOPIC, Message(Id(7, 5, 3)))
    receive(deliveries, Message(Id(7, 4)), Message(Id(7, 5, 3)), Message(Id(7, 5, 4)), Message(Id(8, 0)))
    assert deliveries.redelivered == 2  # entry 4, and message 3 of entry 5
    receive(deliveries, Message(Id(7, 1), topic="persistent://public/default/other-partition-0"))
    assert deliveries.redelivered == 2


def test_an_older_cumulative_acknowledgement_takes_nothing_back() -> None:
    deliveries = Deliveries(None)
    deliveries.acknowledged_cumulative(TOPIC, Message(Id(7, 5)))
    deliveries.acknowledged_cumulative(TOPIC, Message(Id(7, 2)))
    receive(deliveries, Message(Id(7, 4)))
    assert deliveries.redelivered == 1

"""Redeliveries are counted where the raw client hands messages out, by positions alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.client_messages import client_message
from timewheel.core.envelope import ID_PROPERTY
from timewheel.testing.evidence.recorder import Deliveries

TOPIC = "persistent://public/default/due-partition-0"


def message_at(*at: int, topic: str = TOPIC) -> Any:
    ledger, entry, batch = (*at, -1)[:3]
    return client_message({ID_PROPERTY: "t0000001"}, topic=topic, at=(ledger, entry, batch))


def of_business() -> Deliveries:
    return Deliveries(lambda message: message.properties().get(ID_PROPERTY))


def receive(deliveries: Deliveries, *messages: Any) -> None:
    for message in messages:
        deliveries.received(message)


def test_a_delivery_after_its_acknowledgement_returned_is_a_redelivery() -> None:
    deliveries, message = of_business(), message_at(7, 1)
    receive(deliveries, message)
    deliveries.acknowledged(message)
    receive(deliveries, message)
    assert deliveries.redelivered == 1
    assert deliveries.redelivered_of == {"t0000001": 1}
    assert len(deliveries.times_of["t0000001"]) == 2


HERE, BEFORE, BEHIND = message_at(7, 1), message_at(7, 0), message_at(7, 2)


@pytest.mark.parametrize(
    ("acknowledged", "cumulatively", "received", "redelivered"),
    [
        ([], [], [HERE, HERE], 0),  # before its acknowledgement it is none
        ([HERE.message_id()], [], [HERE], 1),  # an acknowledgement by id counts too
        ([HERE], [], [BEHIND], 0),  # the same timer at another position is another copy
        ([], [BEHIND, BEFORE], [HERE], 1),  # an older cumulative one takes nothing back
    ],
)
def test_what_came_again_is_told_by_positions(
    acknowledged: list[Any], cumulatively: list[Any], received: list[Any], redelivered: int
) -> None:
    deliveries = of_business()
    for message in acknowledged:
        deliveries.acknowledged(message)
    for message in cumulatively:
        deliveries.acknowledged_cumulative(TOPIC, message)
    receive(deliveries, *received)
    assert deliveries.redelivered == redelivered
    assert len(deliveries.times_of["t0000001"]) == len(received)


def test_a_cumulative_acknowledgement_covers_what_lies_before_it_in_its_topic_only() -> None:
    deliveries = Deliveries(None)
    deliveries.acknowledged_cumulative(TOPIC, message_at(7, 5, 3))
    receive(deliveries, message_at(7, 4), message_at(7, 5, 3), message_at(7, 5, 4), message_at(8, 0))
    assert deliveries.redelivered == 2  # entry 4, and message 3 of entry 5
    receive(deliveries, message_at(7, 1, topic="persistent://public/default/other-partition-0"))
    assert deliveries.redelivered == 2

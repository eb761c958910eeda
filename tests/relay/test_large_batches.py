"""A batch of more messages than a relay takes is one dead letter, however many they are."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.relay.relay_world import PLAN, ROUTER, SOURCE_PARTITION, START_MS
from timewheel.broker.protocol.wire import number_field
from timewheel.client.positions import Position
from timewheel.core.grouping import LARGEST_BATCH
from timewheel.core.limits import OutOfOrder
from timewheel.core.next_hop import NextHop
from timewheel.core.steps import steps
from timewheel.relay.driver.dead_letter_writer import Verdicts
from timewheel.relay.driver.session import Reader
from timewheel.relay.machine.broker_held import BrokerHeld
from timewheel.relay.machine.interface import Acknowledge, Counts, Examine, StoreDeadLetter
from timewheel.relay.machine.order import Spot
from timewheel.relay.machine.relay_held import Forwarding

BATCH_SIZE_FIELD = 6
"""``batch_size`` of ``MessageIdData`` in PulsarApi.proto."""
HOP, IN_ORDER = NextHop(ROUTER, steps(PLAN)[0]), OutOfOrder(PLAN)


class Relay:
    """A machine that is handed entries as a client hands them out."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.reader = Reader(SOURCE_PARTITION, PLAN, Verdicts())
        self.dead_letters: list[tuple[Position, str]] = []
        self.acknowledged: list[Position] = []

    def entry(self, ledger: int, entry: int, messages: int) -> None:
        message_id = SimpleNamespace(serialize=lambda: number_field(BATCH_SIZE_FIELD, messages))
        for index in range(messages):
            position = Position(ledger, entry, index)
            message = SimpleNamespace(properties=dict, schema_version=lambda: "")
            reading = self.reader.read(position, message, message_id)
            command = self.machine.received(position, messages, reading, position, START_MS)
            if isinstance(command, Examine):
                self.machine.found(command.before)
                command = self.machine.tick(START_MS)
            if isinstance(command, StoreDeadLetter):
                self.dead_letters.append((position, command.reason))
                command = self.machine.confirmed([command.ordinal] if self.is_broker_held else command.ordinal)
            if isinstance(command, Acknowledge):
                self.acknowledged += command.receipts

    @property
    def is_broker_held(self) -> bool:
        return isinstance(self.machine, BrokerHeld)


def relay_held() -> Relay:
    known = Spot(Position(7, 0, -1), 0)
    return Relay(Forwarding(HOP, IN_ORDER, known=known))


def broker_held() -> Relay:
    return Relay(BrokerHeld(HOP, IN_ORDER, window_limit=100, counts=Counts(), rng=random.Random(1)))


@pytest.mark.parametrize("held", [relay_held, broker_held])
@pytest.mark.parametrize("ledger", [7, 8])
def test_a_batch_beyond_the_bound_is_one_letter_at_its_last(held: Any, ledger: int) -> None:
    it, many, entry = held(), LARGEST_BATCH + 1, 8 - ledger
    it.entry(ledger, entry, many)
    ((position, reason),) = it.dead_letters
    assert position == (ledger, entry, many - 1)
    assert str(many) in reason
    assert str(LARGEST_BATCH) in reason
    if it.is_broker_held:
        assert len(set(it.acknowledged)) == many, "a broker takes an entry for done when all of it is"
    else:
        assert it.machine.confirmed_to == Spot(position, many)
    it.entry(ledger, entry + 1, 2)
    assert [place for place, _ in it.dead_letters[1:]] == [(ledger, entry + 1, 0), (ledger, entry + 1, 1)]


@pytest.mark.parametrize("held", [relay_held, broker_held])
def test_a_batch_at_the_bound_is_read_message_by_message(held: Any) -> None:
    it = held()
    it.entry(7, 1, LARGEST_BATCH)
    assert len(it.dead_letters) == LARGEST_BATCH

"""The confirmed prefix."""

from __future__ import annotations

from timewheel.client.positions import Position
from timewheel.relay.machine.order import Item, Spot, Window


def item(number: int) -> Item:
    return Item(Spot(Position(1, number, -1), 0), None, number)


def test_a_confirmation_twice_is_one() -> None:
    window = Window()
    window.push(item(0))
    assert len(window.confirm(0)) == 1
    assert window.confirm(0) == []

"""The confirmed prefix."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from timewheel.client.positions import Position
from timewheel.relay.machine.order import Spot
from timewheel.relay.machine.window import Item, Window


def item(number: int) -> Item:
    return Item(Spot(Position(1, number, -1), 0), None, number)


@given(st.permutations(range(12)))
def test_the_prefix_grows_only_over_what_is_confirmed_without_a_gap(order: list[int]) -> None:
    window = Window()
    assert [window.push(item(number)) for number in range(12)] == list(range(12))
    confirmed: set[int] = set()
    prefix: list[int] = []
    for ordinal in order:
        confirmed.add(ordinal)
        prefix += [grown.receipt for grown in window.confirm(ordinal)]
        assert set(prefix) <= confirmed
        assert prefix == list(range(len(prefix)))
        assert len(prefix) == 12 or len(prefix) not in confirmed, "and as far as it can"
        assert len(window) == 12 - len(prefix)


def test_a_withdrawn_ordinal_is_given_again() -> None:
    window = Window()
    window.push(item(0))
    assert window.push(item(1)) == 1
    window.withdraw()
    assert window.push(item(2)) == 1
    assert [grown.receipt for grown in window.confirm(0) + window.confirm(1)] == [0, 2]


def test_a_confirmation_twice_is_one() -> None:
    window = Window()
    window.push(item(0))
    assert len(window.confirm(0)) == 1
    assert window.confirm(0) == []

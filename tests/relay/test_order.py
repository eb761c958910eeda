"""Positions: what stands behind what, their numbers, when messages arrived, and where a subscription begins."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.relay.failover_world import FailoverWorld
from timewheel.client.native import batch_size_of
from timewheel.client.positions import Position
from timewheel.relay.machine import order

_batches = st.lists(st.integers(0, 5), min_size=1, max_size=30)  # sizes of entries; 0: unbatched
_positions = st.builds(Position, st.integers(1, 2**31 - 1), st.integers(0, 2**20 - 1), st.integers(-1, 4_094))


def topic(ledgers: list[list[int]]) -> list[order.Spot]:
    return [
        order.Spot(Position(2 * number + 3, entry, index), size)
        for number, sizes in enumerate(ledgers)
        for entry, size in enumerate(sizes)
        for index in (range(size) if size else [-1])
    ]


@given(st.lists(_batches, min_size=1, max_size=4))
def test_a_whole_topic_is_contiguous(ledgers: list[list[int]]) -> None:
    seen = order.Contiguity()
    spots = topic(ledgers)
    sights = [seen.see(spot) for spot in spots]
    assert sights.count(order.Sight.NEXT_LEDGER) == len(ledgers) - 1
    assert sights.count(order.Sight.NEXT) == len(spots) - (len(ledgers) - 1)


@given(st.lists(_batches, min_size=1, max_size=4), st.data())
def test_a_missing_message_is_a_hole_unless_it_ends_a_ledger(ledgers: list[list[int]], data: st.DataObject) -> None:
    spots = topic(ledgers)
    if len(spots) < 3:
        return
    missing = data.draw(st.integers(1, len(spots) - 2))
    seen = order.Contiguity()
    for spot in spots[:missing]:
        assert seen.see(spot) in {order.Sight.NEXT, order.Sight.NEXT_LEDGER}
    gone, behind = spots[missing].position, spots[missing + 1].position
    # How long a closed ledger was is not told: its last entry as a whole cannot be missed.
    ends_a_ledger = behind.ledger != gone.ledger and gone.batch_index <= 0
    assert seen.see(spots[missing + 1]) is (order.Sight.NEXT_LEDGER if ends_a_ledger else order.Sight.HOLE)


AFTER = order.Spot(Position(7, 3, -1), 0)
IN_BATCH = order.Spot(Position(7, 3, 1), 3)


@pytest.mark.parametrize(
    ("after", "before", "found", "first", "hidden", "hidden_if_gone"),
    [
        # after, before, what a reader finds, where that begins, hidden, hidden if the ledger is gone
        (AFTER, Position(7, 5, -1), Position(7, 5, -1), None, True, True),
        (AFTER, Position(7, 9_999, -1), Position(7, 9_999, -1), None, True, True),
        (AFTER, Position(7, 9, -1), Position(7, 6, -1), None, True, True),  # and a jump behind it
        (AFTER, Position(7, 5, -1), Position(7, 4, -1), None, False, False),  # it can be read: a jump
        (AFTER, Position(7, 4, -1), Position(7, 4, -1), None, False, False),  # the doubt was at fault
        (AFTER, Position(7, 8, -1), Position(7, 6, -1), Position(7, 4, -1), False, False),  # whole, in chunks
        (AFTER, Position(7, 8, -1), Position(7, 7, -1), Position(7, 5, -1), True, True),  # and behind what is hidden
        (AFTER, Position(7, 5, -1), Position(7, 6, -1), None, False, False),  # gone meanwhile: nothing is proven
        (AFTER, Position(9, 0, -1), Position(9, 0, -1), None, False, False),  # the end of a ledger
        (AFTER, Position(9, 2, -1), Position(9, 2, -1), None, True, True),  # the start of another
        (IN_BATCH, Position(7, 4, -1), Position(7, 4, -1), None, True, True),
        (IN_BATCH, Position(7, 4, -1), Position(7, 3, 2), None, False, False),
        (IN_BATCH, Position(9, 0, -1), Position(9, 0, -1), None, True, False),  # trimmed with the rest of the batch
        (IN_BATCH, Position(9, 2, -1), Position(9, 2, -1), None, True, True),
    ],
)
def test_what_is_hidden(
    after: order.Spot, before: Position, found: Position, first: Position | None, *, hidden: bool, hidden_if_gone: bool
) -> None:
    is_it = [order.is_hidden(after, before, first or found, found, is_gone=is_gone) for is_gone in (False, True)]
    assert is_it == [hidden, hidden_if_gone]


@given(st.lists(_batches, min_size=1, max_size=3), st.data())
def test_what_can_be_read_is_never_taken_for_hidden(ledgers: list[list[int]], data: st.DataObject) -> None:
    """Whatever the subscription left out, and whatever is hidden further on."""
    spots = topic(ledgers)
    at = data.draw(st.integers(0, len(spots) - 1))
    behind = spots[at + 1 :]
    if not behind:
        return
    before = data.draw(st.sampled_from(behind)).position
    found = data.draw(st.sampled_from(behind)).position
    claims = order.is_hidden(spots[at], before, found, found, is_gone=data.draw(st.booleans()))
    assert not (claims and found == behind[0].position)
    assert not (claims and found > before)
    if found != behind[0].position and found <= before and not order.follows(spots[at], found):
        assert claims or found.entry == 0, "a ledger's start may be behind one that is gone"


@given(st.lists(_batches, min_size=1, max_size=4), st.data())
def test_what_was_seen_is_seen_again(ledgers: list[list[int]], data: st.DataObject) -> None:
    spots = topic(ledgers)
    seen = order.Contiguity()
    for spot in spots:
        seen.see(spot)
    start = data.draw(st.integers(0, len(spots) - 1))
    assert {seen.see(spot) for spot in spots[start:]} == {order.Sight.AGAIN}


@given(_positions, _positions)
def test_sequence_ids_ascend_with_positions_and_fit_the_broker(one: Position, other: Position) -> None:
    assert (one < other) == (order.sequence_id(one) < order.sequence_id(other))
    assert 0 < order.sequence_id(one) < 2**63


def test_out_of_range_there_is_no_sequence_id() -> None:
    for position in (Position(2**31, 0, 0), Position(1, 2**20, 0), Position(1, 0, 4_095)):
        assert order.sequence_id(position) == order.NO_SEQUENCE_ID
    assert order.sequence_id(Position(1, 0, 4_094)) == 1 << 32 | 4_095


class _Serialized:
    def __init__(self, data: str) -> None:
        self._data = bytes.fromhex(data)

    def serialize(self) -> bytes:
        return self._data


def test_the_size_of_a_batch_is_read_from_the_message_id_as_the_client_writes_it() -> None:
    # (5, 0, partition 0, index 4) of 5; (5, 3) unbatched; (300, 1) of 1,000 - as recorded from pulsar-client 3.13
    assert batch_size_of(_Serialized("08051000180020043005")) == 5
    assert batch_size_of(_Serialized("080510031800")) == 0
    assert batch_size_of(_Serialized("08ac02100118002000" + "30e807")) == 1_000
    assert batch_size_of(object()) == 0, "a client that does not tell"


def item(number: int) -> order.Item:
    return order.Item(order.Spot(Position(1, number, -1), 0), None, number)


def test_a_confirmation_twice_is_one() -> None:
    window = order.Window()
    window.push(item(0))
    assert len(window.confirm(0)) == 1
    assert window.confirm(0) == []


STAY_MS = 256_000
EVERY_MS = 1_000


def place(entry: int, batch_index: int = -1) -> Position:
    return Position(7, entry, batch_index)


def test_a_message_had_arrived_by_the_first_end_that_it_is_not_behind() -> None:
    arrivals = order.Arrivals(STAY_MS, 10)
    assert arrivals.arrived_by(place(0), 50) == 50, "nothing is known: now"
    arrivals.ended(place(3), 100)
    arrivals.ended(place(3), 200)
    arrivals.ended(place(5, 0), 300)
    assert [arrivals.arrived_by(place(entry), 900) for entry in (0, 3, 4)] == [100, 100, 300]
    assert arrivals.arrived_by(place(5, 9), 900) == 300, "the same entry"
    assert arrivals.arrived_by(place(6), 900) == 900
    assert arrivals.arrived_by(place(0), 900) == 900, "forgotten"


def test_the_end_is_of_use_from_time_to_time_and_only_where_messages_stay() -> None:
    arrivals = order.Arrivals(STAY_MS, 10)
    assert arrivals.wants_end(0)
    arrivals.ended(None, 0)
    assert not arrivals.wants_end(EVERY_MS - 1)
    assert arrivals.wants_end(EVERY_MS)
    assert arrivals.wants_end(-1), "the clock was set back"
    assert not order.Arrivals(0, 10).wants_end(0)


def test_many_ends_are_thinned_out_and_none_bounds_too_early() -> None:
    arrivals = order.Arrivals(STAY_MS, 10)
    for number in range(10 * order.MAX_MARKS):
        arrivals.ended(place(number), number * EVERY_MS)
    assert len(arrivals._marks) <= order.MAX_MARKS
    early = [arrivals.arrived_by(place(number), 1 << 60) < number * EVERY_MS for number in range(10 * order.MAX_MARKS)]
    assert not any(early)


SEEDS = range(1_000)


class Forgetful(order.Beginning):
    """A control: each subscription begins from nothing."""

    def outlives(self) -> None:
        order.Beginning.__init__(self)


def after(meetings: int) -> Callable[[], order.Beginning]:
    """Make a control that believes after so many meetings, in whichever subscriptions."""

    class Hasty(order.Beginning):
        def outlives(self) -> None:
            self._meetings_needed = meetings

    return Hasty


@pytest.mark.parametrize("relays", [1, 2, 3])
def test_relays_that_subscribe_anew_at_encrypted_batches_lose_and_repeat_nothing(relays: int) -> None:
    worlds = [FailoverWorld(seed, relays=relays) for seed in SEEDS]
    assert sum(world.lost for world in worlds) == 0
    assert sum(world.repeated for world in worlds) == 0
    assert not any(world.is_stuck for world in worlds)


@pytest.mark.parametrize("meetings", [1, order.MEETINGS])
def test_control_carrying_a_beginning_that_became_false_loses(meetings: int) -> None:
    """Another relay met the messages before it once more, while this relay subscribed anew."""
    worlds = [FailoverWorld(seed, relays=2, beginning=after(meetings)) for seed in SEEDS]
    assert sum(world.lost for world in worlds) > 0


def test_control_forgetting_its_beginning_never_gets_past_an_encrypted_batch() -> None:
    assert any(FailoverWorld(seed, relays=1, beginning=Forgetful).is_stuck for seed in range(10))


def test_a_beginning_over_subscriptions_takes_more_meetings() -> None:
    it = order.Beginning()
    first = Position(7, 3, -1)
    assert it.see(first, 0) is order.Sign.ASK
    it.outlives()
    assert [it.see(first, 0) for _ in range(3)] == [order.Sign.ASK, order.Sign.ASK, order.Sign.BEGUN]
    assert it.see(Position(7, 2, -1), 0) is order.Sign.ASK, "an earlier message begins anew"

"""By when a message had arrived: as early as an end of its topic shows."""

from __future__ import annotations

from timewheel.client.positions import Position
from timewheel.relay.machine.order import MAX_MARKS, Arrivals

STAY_MS = 256_000
EVERY_MS = 1_000


def at(entry: int, batch_index: int = -1) -> Position:
    return Position(7, entry, batch_index)


def test_a_message_had_arrived_by_the_first_end_that_it_is_not_behind() -> None:
    arrivals = Arrivals(STAY_MS, 10)
    assert arrivals.arrived_by(at(0), 50) == 50, "nothing is known: now"
    arrivals.ended(at(3), 100)
    arrivals.ended(at(3), 200)
    arrivals.ended(at(5, 0), 300)
    assert [arrivals.arrived_by(at(entry), 900) for entry in (0, 3, 4)] == [100, 100, 300]
    assert arrivals.arrived_by(at(5, 9), 900) == 300, "the same entry"
    assert arrivals.arrived_by(at(6), 900) == 900
    assert arrivals.arrived_by(at(0), 900) == 900, "forgotten"


def test_the_end_is_of_use_from_time_to_time_and_only_where_messages_stay() -> None:
    arrivals = Arrivals(STAY_MS, 10)
    assert arrivals.wants_end(0)
    arrivals.ended(None, 0)
    assert not arrivals.wants_end(EVERY_MS - 1)
    assert arrivals.wants_end(EVERY_MS)
    assert arrivals.wants_end(-1), "the clock was set back"
    assert not Arrivals(0, 10).wants_end(0)


def test_many_ends_are_thinned_out_and_none_bounds_too_early() -> None:
    arrivals = Arrivals(STAY_MS, 10)
    for number in range(10 * MAX_MARKS):
        arrivals.ended(at(number), number * EVERY_MS)
    assert len(arrivals._marks) <= MAX_MARKS
    early = [arrivals.arrived_by(at(number), 1 << 60) < number * EVERY_MS for number in range(10 * MAX_MARKS)]
    assert not any(early)

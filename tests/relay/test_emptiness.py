"""When a relay puts a probe, and what proves a slot empty."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from timewheel.client.positions import Position
from timewheel.relay.machine.backoff import PROBE_LONGEST_MS, Emptiness, is_proven
from timewheel.relay.machine.order import Spot


@pytest.mark.parametrize(
    ("last", "confirmed", "proven"),
    [
        (Position(-1, -1, -1), None, True),
        (Position(7, -1, -1), None, True),  # a ledger was opened, and nothing written
        (Position(7, 3, -1), None, False),
        (Position(7, 3, -1), Position(7, 2, -1), False),
        (Position(7, 3, -1), Position(7, 3, -1), True),
        (Position(7, 3, -1), Position(9, 0, -1), True),
    ],
)
def test_only_a_last_position_that_is_confirmed_proves_it(
    last: Position, confirmed: Position | None, *, proven: bool
) -> None:
    assert is_proven(last, None if confirmed is None else Spot(confirmed, 0)) == proven


def probed_at(emptiness: Emptiness, from_ms: int, to_ms: int) -> list[int]:
    """Asked every tenth of a second; each probe is stored at once, and goes to another relay."""
    found = []
    for now_ms in range(from_ms, to_ms, 100):
        if emptiness.take_probe(now_ms):
            found.append(now_ms)
            assert not emptiness.take_probe(now_ms), "one at a time"
            emptiness.probed()
    return found


def test_probes_are_put_at_once_and_then_rarer_and_rarer() -> None:
    at_ms = probed_at(Emptiness(random.Random(7)), 0, 120_000)
    assert at_ms[0] == 0
    pauses = [later - sooner for sooner, later in pairwise(at_ms)]
    assert all(PROBE_LONGEST_MS / 2 <= pause <= PROBE_LONGEST_MS + 100 for pause in pauses[4:])


def test_a_clock_that_is_set_back_holds_no_probe_back() -> None:
    emptiness = Emptiness(random.Random(7))
    probed_at(emptiness, 3_600_000, 3_700_000)
    assert probed_at(emptiness, 0, 1_000) == [0]

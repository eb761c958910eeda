"""A pace is kept in the long run, whatever the rate and however late one wakes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timewheel.consumers.receiver import BURST_MS, Pace


@given(st.floats(0.1, 100_000), st.integers(0, 2**31), st.integers(1, 2_000))
def test_no_second_has_more_than_the_rate_and_a_burst(per_s: float, seed: int, count: int) -> None:
    pace, rng = Pace(per_s), random.Random(seed)
    now_ms, taken = 1_000_000, list[int]()
    for _ in range(count):
        now_ms += pace.wait_ms(now_ms) + rng.choice([0, 0, 0, 1, 5])
        pace.take(now_ms)
        taken.append(now_ms)
    allowed = per_s * (1 + BURST_MS / 1_000) + 2
    for index, at_ms in enumerate(taken):
        later = index + int(allowed)
        if later < len(taken):
            assert taken[later] - at_ms >= 999


@pytest.mark.parametrize("per_s", [1, 7, 1_000, 30_000])
def test_who_always_has_something_gets_the_whole_rate(per_s: int) -> None:
    pace, now_ms, taken = Pace(per_s), 0, 0
    while now_ms < 10_000:
        now_ms += pace.wait_ms(now_ms)
        pace.take(now_ms)
        taken += 1
    assert taken == pytest.approx(10 * per_s, rel=0.02, abs=2)


def test_a_pause_is_not_made_up_for() -> None:
    pace = Pace(100)
    for now_ms in (0, 60_000):
        first = 0
        while pace.wait_ms(now_ms) == 0:
            pace.take(now_ms)
            first += 1
        assert first == 2, "ten milliseconds' worth, and one"

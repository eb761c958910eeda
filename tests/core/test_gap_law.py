"""The law of gaps against counting, and both against their closed forms."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.cursor import exact_gaps
from timewheel.core import DAY_MS, HOUR_MS
from timewheel.core.gap_law import describe_span, expected_gaps, shows_day, shows_full


def cursor_ranges(acknowledged_ms: list[int], moment_ms: int) -> int:
    """A broker's cursor by brute force: mark-delete up to the first open entry, then runs of acknowledged ones."""
    done = [time_ms <= moment_ms for time_ms in acknowledged_ms]
    while done and done[0]:
        done.pop(0)
    return sum(1 for index, now in enumerate(done) if now and not done[index - 1])


@given(st.lists(st.integers(0, 30), max_size=40))
def test_the_exact_count_is_that_of_a_cursor(acknowledged_ms: list[int]) -> None:
    moments_ms = list(range(-1, 32))
    assert exact_gaps(acknowledged_ms, moments_ms) == [cursor_ranges(acknowledged_ms, at) for at in moments_ms]


@given(st.lists(st.integers(0, 30), max_size=40))
def test_bins_of_one_entry_make_the_law_exact(acknowledged_ms: list[int]) -> None:
    moments_ms = list(range(-1, 32))
    law = expected_gaps(enumerate(acknowledged_ms), moments_ms, bin_ms=1)
    assert law == pytest.approx(exact_gaps(acknowledged_ms, moments_ms))


def test_a_fixed_delay_makes_no_gaps_at_all() -> None:
    arrivals = [(sent_ms, sent_ms + 5_000) for sent_ms in range(0, 20_000, 7)]
    moments_ms = range(0, 30_000, 100)
    assert max(exact_gaps([acknowledged for _, acknowledged in arrivals], moments_ms)) == 0
    assert max(expected_gaps(arrivals, moments_ms, bin_ms=1)) == 0
    # Within a bin the order counts as random, so a coarse one sees gaps where the delay is fixed: at most the
    # quarter of the bin's 14 or 15 entries, and the one between two bins.
    assert max(expected_gaps(arrivals, moments_ms, bin_ms=100)) <= 15 / 4 + 1


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_a_burst_of_n_has_n_times_f_times_one_less_f_ranges(share: float) -> None:
    n, rng = 40_000, random.Random(7)
    acknowledged = [rng.randrange(1_000_000) for _ in range(n)]
    moment_ms = int(share * 1_000_000)
    law = n * share * (1 - share)
    assert exact_gaps(acknowledged, [moment_ms])[0] == pytest.approx(law, abs=3 * math.sqrt(law))
    assert expected_gaps([(0, time_ms) for time_ms in acknowledged], [moment_ms], bin_ms=1)[0] == (
        pytest.approx(law, abs=3 * math.sqrt(law))
    )


def test_uniform_delays_over_a_window_make_rate_times_window_over_six() -> None:
    # One entry per 2 ms for 200 s, delays uniform over 30 s: L W / 6 = 0.5 x 30,000 / 6 = 2,500.
    rng = random.Random(11)
    arrivals = [(sent_ms, sent_ms + rng.randrange(30_000)) for sent_ms in range(0, 200_000, 2)]
    steady_ms = list(range(60_000, 200_000, 10_000))
    exact = exact_gaps([acknowledged for _, acknowledged in arrivals], steady_ms)
    law = expected_gaps(arrivals, steady_ms, bin_ms=200)
    assert sum(exact) / len(exact) == pytest.approx(2_500, rel=0.03)
    assert sum(law) / len(law) == pytest.approx(2_500, rel=0.03)


# Each has 5,000 entries of its own, so that four histories of each shape and bin say as much as eight; the closed forms
# above are exact.
@settings(max_examples=50)
@given(
    seed=st.integers(0, 10_000),
    longest_ms=st.integers(2_000, 60_000),
    shape=st.sampled_from(["uniform", "exponential", "two delays", "mixed"]),
    bin_ms=st.sampled_from([50, 200, 500]),
)
def test_the_law_is_within_15_percent_and_three_roots_of_the_count(
    seed: int, longest_ms: int, shape: str, bin_ms: int
) -> None:
    rng = random.Random(seed)

    def delay_ms() -> float:
        match shape:
            case "uniform":
                return rng.uniform(0, longest_ms)
            case "exponential":
                return rng.expovariate(4 / longest_ms)
            case "two delays":
                return rng.choice([longest_ms / 10, longest_ms])
            case _:
                return rng.expovariate(20 / longest_ms) if rng.random() < 0.9 else rng.uniform(0, longest_ms)

    arrivals = [(sent_ms, sent_ms + int(delay_ms())) for sent_ms in range(0, 100_000, 20)]
    moments_ms = list(range(0, 100_000 + longest_ms, 2_000))
    exact = exact_gaps([acknowledged for _, acknowledged in arrivals], moments_ms)
    law = expected_gaps(arrivals, moments_ms, bin_ms)
    highest = max(law)
    assert abs(max(exact) - highest) <= 0.15 * highest + 3 * math.sqrt(highest)


@pytest.mark.parametrize(
    ("span_ms", "warm_up_ms", "day", "full"),
    [
        (0, 0, False, False),  # a single send, or all at once: no rate at all
        (2_000, 27 * DAY_MS, False, False),
        (2 * HOUR_MS, HOUR_MS, False, True),
        (DAY_MS - HOUR_MS - 1, 1, False, True),
        (DAY_MS - HOUR_MS, 1, True, True),  # a day's sends: the first and the last lie some time within it
        (DAY_MS, DAY_MS + 1, True, False),
        (DAY_MS, DAY_MS, True, True),
        (21 * DAY_MS, 19 * DAY_MS, True, True),
    ],
)
def test_a_history_is_long_enough_from_a_day_and_its_delays_on(
    span_ms: int, warm_up_ms: int, day: bool, full: bool
) -> None:
    assert (shows_day(span_ms), shows_full(span_ms, warm_up_ms)) == (day, full)
    assert (describe_span(span_ms, warm_up_ms) == "") == (day and full)

"""A history that is too short: when the topic is full, and the band that holds what it comes to."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from tests.conftest import Evidence
from tests.support.exact_play import native_peak
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.plan import Plan
from timewheel.spark_planner.extrapolation import ConfidenceInterval, confidence, continuation, days_of, warm_up
from timewheel.spark_planner.history.generate import START_MS
from timewheel.spark_planner.summary.cells import Cells

NATIVE = Plan(due_topic="persistent://a/b/c", subscriptions=("s",))
A_DAY = 4_000
LONGEST_MS = 30 * DAY_MS
LIFE_DAYS = 150


def process(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """4,000 timers a day for 150 days, at any time and with any delay up to 30 days."""
    rng = np.random.default_rng(seed)
    number = int(rng.poisson(A_DAY * LIFE_DAYS))
    sent_ms = START_MS + np.sort(rng.integers(0, LIFE_DAYS * DAY_MS, number))
    return sent_ms, sent_ms + rng.integers(0, LONGEST_MS, number)


def banded(sent_ms: np.ndarray, due_ms: np.ndarray) -> tuple[int, ConfidenceInterval | None]:
    """(the peak of a history that was continued, its band)."""
    cells = Cells.of_timers(sent_ms, due_ms).bounded(400_000)
    found = warm_up(cells)
    assert found is not None
    rng = np.random.default_rng(0)
    continued = continuation(days_of(cells), found.warm_up_ms, rng)
    dues = [due_ms]
    for from_ms, until_ms, shift_ms in continued.stretches:
        dues.append(due_ms[(sent_ms >= from_ms) & (sent_ms < until_ms)] + shift_ms)
    return native_peak(np.concatenate(dues)), confidence(cells, NATIVE, continued, rng)


class Held(NamedTuple):
    """Of some seeds."""

    inside: int  # by how many the peak of all 150 days is within the band
    widths: list[float]  # how wide the bands are
    alone: list[int]  # the peaks of the first days alone
    life: list[int]  # the peaks of all 150


def held(days: int, seeds: range) -> Held:
    """Continue the first days of the process by each seed."""
    inside, widths, alone, life = 0, [], [], []
    for seed in seeds:
        sent_ms, due_ms = process(seed)
        is_early = sent_ms < START_MS + days * DAY_MS
        peak, found = banded(sent_ms[is_early], due_ms[is_early])
        assert found is not None
        alone.append(native_peak(due_ms[is_early]))
        life.append(native_peak(due_ms))
        inside += found.low * peak <= life[-1] <= found.high * peak
        widths.append(found.high - found.low)
    return Held(inside, widths, alone, life)


def test_the_band_holds_what_the_topic_comes_to() -> None:
    found = held(7, range(10))
    # Of ten at 95 % eight or more hold in all but one of a hundred tries; these seeds are one try.
    assert found.inside >= 8
    assert max(found.widths) < 0.1, "a band that holds anything says nothing"


@pytest.mark.proof
@pytest.mark.parametrize("days", [7, 14])
def test_the_band_holds_in_ninety_of_a_hundred(days: int, evidence: Evidence) -> None:
    found = held(days, range(100))
    assert found.inside >= 90
    evidence(
        f"{days} days of a process with delays up to 30",
        {
            "seeds": 100,
            "gaps of these days alone": np.mean(found.alone),
            "of 150 days": np.mean(found.life),
            "peak of 150 days within the band": found.inside,
            "mean width of it, percent": round(100 * np.mean(found.widths), 1),
        },
        on_broker=False,
    )


def width(sent_ms: np.ndarray, due_ms: np.ndarray) -> float:
    _, found = banded(sent_ms, due_ms)
    assert found is not None
    return found.high - found.low


def test_fewer_days_make_it_wider() -> None:
    sent_ms, due_ms = process(1)
    early = [sent_ms < START_MS + days * DAY_MS for days in (3, 7, 20)]
    widths = [width(sent_ms[is_early], due_ms[is_early]) for is_early in early]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 1.5 * widths[2]


def test_days_that_differ_make_it_wider() -> None:
    rng = np.random.default_rng(1)
    widths = []
    for volumes in ([4_000] * 7, [8_000, 1_000] * 3 + [2_000]):
        days_ms = np.repeat(START_MS + DAY_MS * np.arange(7), volumes)
        sent_ms = np.sort(days_ms + rng.integers(0, DAY_MS, len(days_ms)))
        widths.append(width(sent_ms, sent_ms + rng.integers(0, LONGEST_MS, len(sent_ms))))
    assert widths[1] > 2 * widths[0]


@pytest.mark.parametrize("days", [1, 2])
def test_of_fewer_than_three_days_nothing_is_said(days: int) -> None:
    sent_ms, due_ms = process(1)
    is_early = sent_ms < START_MS + days * DAY_MS + 2 * 3_600_000
    assert banded(sent_ms[is_early], due_ms[is_early])[1] is None


def test_where_no_gap_is_there_is_no_band() -> None:
    sent_ms = START_MS + np.arange(7 * A_DAY) * (DAY_MS // A_DAY)
    assert banded(sent_ms, sent_ms + 30 * DAY_MS)[1] is None


def sent_for(days: int, delays_ms: np.ndarray) -> Cells:
    sent_ms = START_MS + np.sort(np.random.default_rng(days).integers(0, days * DAY_MS, days * A_DAY))
    return Cells.of_timers(sent_ms, sent_ms + delays_ms[: len(sent_ms)])


def uniform(days: int, longest_ms: int) -> Cells:
    return sent_for(days, np.random.default_rng(1).integers(0, longest_ms, days * A_DAY))


def counted(due_ms: np.ndarray, at_ms: int, sent_ms: np.ndarray) -> tuple[int, int]:
    """(waiting, native gaps) at a moment, by the definition."""
    here = due_ms[sent_ms <= at_ms]
    return int((here > at_ms).sum()), int(((here[1:] <= at_ms) & (here[:-1] > at_ms)).sum())


@pytest.mark.parametrize("days", [2, 7, 14, 26])
def test_thirty_days_of_delays_in_a_shorter_history(days: int) -> None:
    found = warm_up(uniform(days, 30 * DAY_MS))
    assert found is not None
    # 4,000 a day, uniform over 30 days: 15 days' sends wait, and a sixth of 30 days' are gaps.
    assert found.pending == pytest.approx(60_000, rel=0.02)
    assert found.gaps == pytest.approx(20_000, rel=0.02)


def test_it_is_what_a_long_history_comes_to() -> None:
    rng = np.random.default_rng(3)
    days, kinds = 100, rng.random(100 * A_DAY)
    delays_ms = np.where(kinds < 0.5, rng.exponential(2 * DAY_MS, len(kinds)), rng.integers(0, 20 * DAY_MS, len(kinds)))
    delays_ms = np.where(kinds > 0.8, 10 * DAY_MS, delays_ms).astype(np.int64)
    sent_ms = START_MS + np.sort(rng.integers(0, days * DAY_MS, len(kinds)))
    moments = [START_MS + day * DAY_MS for day in range(40, 100, 3)]
    waiting, gaps = np.mean([counted(sent_ms + delays_ms, at_ms, sent_ms) for at_ms in moments], axis=0)
    is_early = sent_ms < START_MS + 5 * DAY_MS
    found = warm_up(Cells.of_timers(sent_ms[is_early], (sent_ms + delays_ms)[is_early]))
    assert found is not None
    assert found.pending == pytest.approx(waiting, rel=0.03)
    assert found.gaps == pytest.approx(gaps, rel=0.03)


@pytest.mark.parametrize(
    ("days", "longest_ms"), [(60, 30 * DAY_MS), (28, 30 * DAY_MS), (10, 7 * DAY_MS), (1, 23 * HOUR_MS)]
)
def test_a_history_in_which_the_topic_fills_up_needs_nothing(days: int, longest_ms: int) -> None:
    assert warm_up(uniform(days, longest_ms)) is None


def test_a_topic_is_full_when_one_percent_of_what_waits_is_missing() -> None:
    # Uniform over W: what waits longer than T is (W - T) ** 2 / 2 W of W / 2, so T is nine tenths of W.
    found = warm_up(uniform(7, 30 * DAY_MS))
    assert found is not None
    assert found.warm_up_ms == pytest.approx(27 * DAY_MS, rel=0.01)
    # Exponential with a mean of ten days: exp(-T / 10) = 0.01.
    found = warm_up(sent_for(20, np.random.default_rng(1).exponential(10 * DAY_MS, 20 * A_DAY).astype(np.int64)))
    assert found is not None
    assert found.warm_up_ms == pytest.approx(46 * DAY_MS, rel=0.02)


def test_a_few_timers_of_years_do_not_make_a_history_short() -> None:
    delays_ms = np.random.default_rng(1).integers(0, DAY_MS, 10 * A_DAY)
    delays_ms[::40_000] = 100 * DAY_MS
    assert warm_up(sent_for(10, delays_ms)) is None


def test_a_burst_of_a_minute_is_no_rate() -> None:
    sent_ms = START_MS + np.arange(60_000)
    due_ms = sent_ms + np.random.default_rng(1).integers(0, 8 * HOUR_MS, 60_000)
    assert int(sent_ms[-1] - sent_ms[0]) < MINUTE_MS
    found = warm_up(Cells.of_timers(sent_ms, due_ms))
    assert found is not None
    assert not found.has_rate
    assert (found.history_ms, found.pending, found.gaps) == (59_999, 0, 0)
    assert found.warm_up_ms == pytest.approx(8 * HOUR_MS, rel=0.15), "99 % of what will wait does by then"


def test_one_fixed_delay_fills_the_topic_and_leaves_no_gap() -> None:
    found = warm_up(sent_for(3, np.full(3 * A_DAY, 10 * DAY_MS)))
    assert found is not None
    assert found.pending == pytest.approx(10 * A_DAY, rel=0.01)
    assert found.gaps == pytest.approx(0, abs=1)

"""A history that is shorter than its delays is told, with what the topic will hold."""

from __future__ import annotations

import numpy as np
import pytest

from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.spark_planner.history.generate import START_MS
from timewheel.spark_planner.results.steady import steady_state
from timewheel.spark_planner.summary.cells import Cells

A_DAY = 4_000


def sent_for(days: int, delays_ms: np.ndarray) -> Cells:
    sent_ms = START_MS + np.sort(np.random.default_rng(days).integers(0, days * DAY_MS, days * A_DAY))
    return Cells.of_timers(sent_ms, sent_ms + delays_ms[: len(sent_ms)])


def uniform(days: int, longest_ms: int) -> Cells:
    return sent_for(days, np.random.default_rng(1).integers(0, longest_ms, days * A_DAY))


def counted(due_ms: np.ndarray, at_ms: int, sent_ms: np.ndarray) -> tuple[int, int]:
    """(waiting, native gaps) at a moment, by the definition."""
    here = due_ms[sent_ms <= at_ms]
    return int((here > at_ms).sum()), int(((here[1:] <= at_ms) & (here[:-1] > at_ms)).sum())


@pytest.mark.parametrize("days", [2, 7, 14, 29])
def test_thirty_days_of_delays_in_a_shorter_history(days: int) -> None:
    found = steady_state(uniform(days, 30 * DAY_MS))
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
    found = steady_state(Cells.of_timers(sent_ms[is_early], (sent_ms + delays_ms)[is_early]))
    assert found is not None
    assert found.pending == pytest.approx(waiting, rel=0.03)
    assert found.gaps == pytest.approx(gaps, rel=0.03)


@pytest.mark.parametrize(
    ("days", "longest_ms"), [(60, 30 * DAY_MS), (30, 30 * DAY_MS), (10, 7 * DAY_MS), (1, 23 * HOUR_MS)]
)
def test_a_history_that_is_longer_than_its_delays_says_nothing(days: int, longest_ms: int) -> None:
    assert steady_state(uniform(days, longest_ms)) is None


def test_a_burst_of_a_minute_is_no_rate() -> None:
    sent_ms = START_MS + np.arange(60_000)
    due_ms = sent_ms + np.random.default_rng(1).integers(0, 8 * HOUR_MS, 60_000)
    assert int(sent_ms[-1] - sent_ms[0]) < MINUTE_MS
    assert steady_state(Cells.of_timers(sent_ms, due_ms)) is None


def test_one_fixed_delay_fills_the_topic_and_leaves_no_gap() -> None:
    found = steady_state(sent_for(3, np.full(3 * A_DAY, 10 * DAY_MS)))
    assert found is not None
    assert found.pending == pytest.approx(10 * A_DAY, rel=0.01)
    assert found.gaps == pytest.approx(0, abs=1)


def test_it_is_said_in_words() -> None:
    found = steady_state(uniform(7, 30 * DAY_MS))
    assert found is not None
    said = found.said(6_949)
    assert said.startswith("This history spans 7d, and 1 % of its timers wait longer than 30d.")
    assert "gaps (estimated), not 6,949." in said
    assert said.endswith("plan from one that is longer than 30d.")

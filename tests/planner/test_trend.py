"""The trend of a history: told only where there is one, and a date that follows from it."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.workloads import START_MS
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.spark_planner.extrapolation import LONGEST_WEEKS, Trend, trend_of
from timewheel.spark_planner.summary.cells import Cells

WEEK_MS = 7 * DAY_MS


def sent(volumes: list[int]) -> Cells:
    """So many timers a day, evenly over each; the last is sent in the last millisecond of the last day."""
    days = [
        START_MS + day * DAY_MS + (np.arange(1, volume + 1) * DAY_MS) // volume - 1
        for day, volume in enumerate(volumes)
    ]
    sent_ms = np.concatenate(days)
    return Cells.of_timers(sent_ms, sent_ms + HOUR_MS)


def weeks(*volumes: int) -> list[int]:
    """Weeks of so many timers a day, on Saturdays and Sundays half of it."""
    return [volume // (2 if day >= 5 else 1) for volume in volumes for day in range(7)]


def test_a_topic_that_doubles_in_four_weeks_is_told_and_dated() -> None:
    found = trend_of(sent(weeks(1_000, 1_189, 1_414, 1_682, 2_000)))
    assert found is not None
    assert (found.weeks, found.first_timers, found.last_timers) == (5, 6_000, 12_000)
    assert found.weekly_growth == pytest.approx(2 ** (1 / 4) - 1)
    assert found.end_ms == START_MS + 5 * WEEK_MS
    # Twice as much again is four weeks more, four times eight.
    assert found.reached_ms(2.0) == pytest.approx(found.end_ms + 4 * WEEK_MS, abs=2)
    assert found.reached_ms(4.0) == pytest.approx(found.end_ms + 8 * WEEK_MS, abs=2)
    assert found.reached_ms(0.9) == found.end_ms
    assert found.reached_ms(1e100) is None, "in more than ten years"


@pytest.mark.parametrize(
    ("volumes", "why"),
    [
        (weeks(1_000, 1_000, 1_000, 1_000), "flat"),
        (weeks(2_000, 1_500, 1_000), "falling"),
        (weeks(1_000, 1_010, 1_050), "less than a tenth"),
        (
            [1_000, 400, 900, 1_600, 700, 1_200, 1_000] * 2 + [1_600, 900, 1_200, 400, 1_700, 700, 1_100],
            "as days differ",
        ),
    ],
)
def test_no_growth_is_seen_where_there_is_none(volumes: list[int], why: str) -> None:
    found = trend_of(sent(volumes))
    assert found is not None
    assert found.weekly_growth == 0, why
    assert found.reached_ms(1.5) is None


@pytest.mark.parametrize("volumes", [weeks(100, 200), weeks(100, 200, 400)[1:], [500]])
def test_of_less_than_three_weeks_nothing_is_told(volumes: list[int]) -> None:
    assert trend_of(sent(volumes)) is None


def test_a_burst_of_a_minute_and_an_empty_history_have_no_trend() -> None:
    none = np.zeros(0, np.int64)
    assert trend_of(Cells.of_timers(none, none)) is None
    burst_ms = START_MS + np.arange(1_000)
    assert trend_of(Cells.of_timers(burst_ms, burst_ms + HOUR_MS)) is None


def test_a_campaign_in_the_last_week_is_no_growth() -> None:
    volumes = weeks(1_000, 1_000, 1_000, 1_000)
    plain = trend_of(sent(volumes))
    volumes[-3] *= 30
    found = trend_of(sent(volumes))
    assert found is not None
    assert plain is not None
    # Six pairs of days are left: that day, a Friday of 1,000, is compared in neither week.
    assert (found.first_timers, found.last_timers) == (plain.first_timers - 1_000, plain.last_timers - 1_000)
    assert found.weekly_growth == 0


@given(growth=st.floats(0.001, 3.0), times=st.floats(1.0, 1_000.0))
def test_the_volume_at_the_date_is_the_one_that_was_asked_for(growth: float, times: float) -> None:
    end_ms = int(dt.datetime(2026, 1, 1, tzinfo=dt.UTC).timestamp() * 1_000)
    found = Trend(weeks=3, first_timers=1, last_timers=1, weekly_growth=growth, end_ms=end_ms)
    at_ms = found.reached_ms(times)
    if at_ms is None:
        assert (1 + growth) ** LONGEST_WEEKS < times * 1.001
    else:
        assert (1 + growth) ** ((at_ms - end_ms) / WEEK_MS) == pytest.approx(times, rel=1e-6)

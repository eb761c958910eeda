"""The days of a history: which go on, and which do not."""

from __future__ import annotations

import numpy as np
import pytest

from examples.history.generate import START_MS
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.spark_planner.extrapolation import Days, days_of
from timewheel.spark_planner.summary.cells import Cells

A_DAY = 2_400


def sent(volumes: list[float], *, busy: dict[int, int] | None = None) -> Cells:
    """Timers of so many ordinary days' volume a day, and so many more at noon of some days."""
    rng = np.random.default_rng(5)
    times = [
        START_MS + day * DAY_MS + np.sort(rng.integers(0, DAY_MS, int(volume * A_DAY)))
        for day, volume in enumerate(volumes)
    ]
    times += [
        START_MS + day * DAY_MS + 12 * HOUR_MS + rng.integers(0, HOUR_MS, more) for day, more in (busy or {}).items()
    ]
    # The last send of all is the last millisecond of a day, so that the days are those of the clock.
    sent_ms = np.sort(np.concatenate([*times, [START_MS + len(volumes) * DAY_MS - 1]]))
    return Cells.of_timers(sent_ms, sent_ms + 30 * DAY_MS)


def test_all_days_go_on() -> None:
    found = days_of(sent([1.0] * 5))
    assert found.begins_ms == tuple(START_MS + day * DAY_MS for day in range(5))
    assert (found.drawn, found.campaigns, found.weekly_growth) == ((0, 1, 2, 3, 4), (), 0.0)
    assert found.end_ms == START_MS + 5 * DAY_MS


@pytest.mark.parametrize(("lacks_ms", "days"), [(9 * HOUR_MS, (1, 2, 3)), (40 * 60_000, (0, 1, 2, 3))])
def test_days_are_counted_back_from_the_last_send_and_the_first_may_lack_minutes(
    lacks_ms: int, days: tuple[int, ...]
) -> None:
    late = sent([1.0] * 4)
    found = days_of(late.where(late.publish_min_ms >= START_MS + lacks_ms))
    assert found.begins_ms == tuple(START_MS + day * DAY_MS for day in days)


MUCH = 4 * A_DAY
EVERY_WEEK = (0, 7, 14, 21)


@pytest.mark.parametrize(
    ("days", "busy", "campaigns"),
    [
        pytest.param(7, {3: MUCH}, (3,), id="once is left out"),
        pytest.param(28, {15: MUCH}, (15,), id="once in four weeks is left out"),
        pytest.param(16, {3: MUCH, 4: MUCH}, (3, 4), id="once, over two days"),
        pytest.param(16, {3: MUCH, 9: MUCH}, (), id="twice goes on"),
        pytest.param(7, {3: 0}, (), id="nothing more"),
        pytest.param(7, {3: 300}, (), id="a little more is no campaign"),
        pytest.param(8, dict.fromkeys((1, 3, 5, 7), MUCH), (), id="every other day is how the topic is used"),
        # Four of 28 days are few enough to be left out, but then no Monday would be there to draw for a Monday.
        pytest.param(28, dict.fromkeys(EVERY_WEEK, MUCH), (), id="every week goes on"),
        pytest.param(3, {1: MUCH}, (), id="of three days nobody can tell what is ordinary"),
    ],
)
def test_campaigns_that_came_once_are_left_out(days: int, busy: dict[int, int], campaigns: tuple[int, ...]) -> None:
    found = days_of(sent([1.0] * days, busy=busy))
    assert found.campaigns == campaigns
    assert found.drawn == tuple(day for day in range(days) if day not in campaigns)
    assert found.by_weekday == (days == 28)


def test_weekends_are_no_trend() -> None:
    found = days_of(sent([1.0, 1.0, 1.0, 1.0, 1.0, 0.2, 0.2] * 2))
    assert (found.weekly_growth, len(found.drawn)) == (0.0, 14)


@pytest.mark.parametrize("weekly", [0.3, -0.2])
@pytest.mark.parametrize("days", [14, 17, 28])
def test_a_volume_that_changes_goes_on_as_its_last_week_is(days: int, weekly: float) -> None:
    found = days_of(sent([(1 + weekly) ** (day / 7) for day in range(days)]))
    assert found.weekly_growth == pytest.approx(weekly, abs=0.05)
    assert found.drawn == tuple(range(days - 7, days))


def test_three_weeks_are_drawn_by_weekday() -> None:
    assert not days_of(sent([1.0] * 20)).by_weekday
    assert days_of(sent([1.0] * 21)).by_weekday


def test_a_day_is_a_day() -> None:
    assert days_of(sent([1.0])) == Days(begins_ms=(START_MS,), drawn=(0,), campaigns=(), weekly_growth=0.0)

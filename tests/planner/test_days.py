"""The days of a history: which go on, and which do not."""

from __future__ import annotations

import numpy as np
import pytest

from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.spark_planner.extrapolation import Days, days_of
from timewheel.spark_planner.history.generate import START_MS
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


def test_days_are_counted_back_from_the_last_send() -> None:
    late = sent([1.0] * 4)
    cut = late.where(late.publish_min_ms >= START_MS + 9 * HOUR_MS)
    found = days_of(cut)
    assert found.begins_ms == tuple(START_MS + day * DAY_MS for day in (1, 2, 3))


def test_a_first_day_that_lacks_minutes_is_a_day() -> None:
    late = sent([1.0] * 4)
    assert len(days_of(late.where(late.publish_min_ms >= START_MS + 40 * 60_000)).begins_ms) == 4


def test_a_campaign_that_came_once_is_left_out() -> None:
    found = days_of(sent([1.0] * 7, busy={3: 4 * A_DAY}))
    assert found.campaigns == (3,)
    assert found.drawn == (0, 1, 2, 4, 5, 6)


@pytest.mark.parametrize("more", [0, 300])
def test_what_is_a_little_more_is_no_campaign(more: int) -> None:
    assert days_of(sent([1.0] * 7, busy={3: more})).campaigns == ()


def test_campaigns_that_come_every_other_day_are_how_the_topic_is_used() -> None:
    found = days_of(sent([1.0] * 8, busy=dict.fromkeys((1, 3, 5, 7), 4 * A_DAY)))
    assert (found.campaigns, len(found.drawn)) == ((), 8)


def test_a_campaign_that_comes_every_week_goes_on() -> None:
    """Four of 28 days are few enough to be left out, but then no Monday would be there to draw for a Monday."""
    found = days_of(sent([1.0] * 28, busy=dict.fromkeys((0, 7, 14, 21), 4 * A_DAY)))
    assert (found.campaigns, len(found.drawn)) == ((), 28)
    assert found.by_weekday


def test_a_campaign_that_came_once_in_four_weeks_is_left_out() -> None:
    found = days_of(sent([1.0] * 28, busy={15: 4 * A_DAY}))
    assert found.campaigns == (15,)
    assert found.by_weekday


def test_of_three_days_nobody_can_tell_what_is_ordinary() -> None:
    assert days_of(sent([1.0] * 3, busy={1: 4 * A_DAY})).campaigns == ()


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

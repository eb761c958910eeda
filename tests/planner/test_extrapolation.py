"""Extrapolation: which days of a history go on, how, and when there is a trend."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from examples.history.generate import START_MS
from tests.support.plans import plan_of
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.plan import Tiered
from timewheel.spark_planner.exact.replay import Asked, count_exactly, grid_for
from timewheel.spark_planner.exact.sends import Stretch, extended, keep
from timewheel.spark_planner.extrapolation import (
    LONGEST_WEEKS,
    Days,
    Trend,
    continuation,
    days_of,
    extended_cells,
    trend_of,
)
from timewheel.spark_planner.summary.cells import Cells


def days_without(number: int, *campaigns: int) -> Days:
    return Days(
        begins_ms=tuple(START_MS + day * DAY_MS for day in range(number)),
        drawn=tuple(day for day in range(number) if day not in campaigns),
        campaigns=campaigns,
        weekly_growth=0.0,
    )


DAYS = days_without(5, 2)
PLANS = (plan_of(partitions=3), plan_of(Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS, DAY_MS))))


def test_each_day_comes_as_often_as_the_others_and_no_campaign_does() -> None:
    found = continuation(DAYS, 20 * DAY_MS, np.random.default_rng(0))
    # The topic is full from day 20,478 since 1970 on, and the next interval of ten days is from day 20,480 to 20,490;
    # the history ends with day 20,463.
    assert len(found.sources) == 27
    counts = Counter(found.sources)
    assert set(counts) == {0, 1, 3, 4}
    assert max(counts.values()) - min(counts.values()) <= 1


def test_the_days_follow_each_other_at_the_same_time_of_the_clock() -> None:
    found = continuation(DAYS, 20 * DAY_MS, np.random.default_rng(0))
    assert found.stretches[0].from_ms + found.stretches[0].shift_ms == DAYS.end_ms
    for stretch, following in pairwise(found.stretches):
        assert stretch.until_ms + stretch.shift_ms == following.from_ms + following.shift_ms
    assert all(stretch.shift_ms % DAY_MS == 0 < stretch.shift_ms for stretch in found.stretches)


def test_a_long_history_goes_on_for_a_week_at_least() -> None:
    assert len(continuation(DAYS, 5 * DAY_MS, np.random.default_rng(0)).sources) == 7


@pytest.mark.parametrize("warm_up_days", range(6, 60, 5))
def test_an_interval_of_each_calendar_is_complete_after_the_warm_up(warm_up_days: int) -> None:
    found = continuation(DAYS, warm_up_days * DAY_MS, np.random.default_rng(0))
    full_ms, end_ms = START_MS + warm_up_days * DAY_MS, DAYS.end_ms + len(found.sources) * DAY_MS
    for days in {1, 2, 5, 7, 10} if warm_up_days > 10 else {1, 2, 5}:
        begins_ms = [day * DAY_MS for day in range(full_ms // DAY_MS, end_ms // DAY_MS) if day % days == 0]
        assert begins_ms[0] >= full_ms
        assert begins_ms[0] + days * DAY_MS <= end_ms
    assert len(found.sources) <= warm_up_days - 5 + 20, "never twice the longest interval after the warm-up"


def test_intervals_are_not_completed_beyond_the_most_days() -> None:
    # Twenty days fill the topic, of which five are there, and seven more it is to be full.
    assert len(continuation(DAYS, 20 * DAY_MS, np.random.default_rng(0), most=26).sources) == 22


def test_three_weeks_go_on_by_weekday() -> None:
    found = continuation(days_without(24), 60 * DAY_MS, np.random.default_rng(0))
    assert all((24 + further) % 7 == source % 7 for further, source in enumerate(found.sources))
    assert all(stretch.shift_ms % (7 * DAY_MS) == 0 for stretch in found.stretches)


def test_where_a_weekday_is_missing_days_come_in_an_order_by_chance() -> None:
    """There would be no Monday to draw for a Monday, and the search for one would never end."""
    days = days_without(28, 0, 7, 14, 21)
    found = continuation(days, 60 * DAY_MS, np.random.default_rng(0))
    assert set(found.sources) == set(days.drawn)


def test_another_seed_is_another_order() -> None:
    assert (
        continuation(DAYS, 20 * DAY_MS, np.random.default_rng(0)).sources
        != continuation(DAYS, 20 * DAY_MS, np.random.default_rng(1)).sources
    )


def _sends(seed: int, number: int = 4_000) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    sent_ms = START_MS + np.sort(rng.integers(0, 5 * DAY_MS, number))
    return sent_ms, sent_ms + rng.integers(0, 9 * DAY_MS, number)


def _by_hand(sent_ms: np.ndarray, due_ms: np.ndarray, stretches: tuple[Stretch, ...]) -> tuple[np.ndarray, np.ndarray]:
    found = [(sent_ms, due_ms)]
    for from_ms, until_ms, shift_ms in stretches:
        inside = (sent_ms >= from_ms) & (sent_ms < until_ms)
        found.append((sent_ms[inside] + shift_ms, due_ms[inside] + shift_ms))
    return np.concatenate([sent for sent, _ in found]), np.concatenate([due for _, due in found])


def test_cells_go_on_as_the_timers_do() -> None:
    sent_ms, due_ms = _sends(1)
    stretches = continuation(DAYS, 12 * DAY_MS, np.random.default_rng(3)).stretches
    # At the finest level no cell lies across the end of a day.
    found = extended_cells(Cells.of_timers(sent_ms, due_ms), stretches, 10**6)
    wanted = Cells.of_timers(*_by_hand(sent_ms, due_ms, stretches))
    assert found.timers == wanted.timers
    for mine, theirs in zip(found.facts(), wanted.facts(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_cells_that_go_on_stay_within_their_limit() -> None:
    sent_ms, due_ms = _sends(1)
    stretches = continuation(DAYS, 12 * DAY_MS, np.random.default_rng(3)).stretches
    found = extended_cells(Cells.of_timers(sent_ms, due_ms), stretches, 1_000)
    assert len(found) <= 1_000
    assert found.timers == len(_by_hand(sent_ms, due_ms, stretches)[0])


@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
def test_sends_that_go_on_are_counted_as_if_the_history_had_them(spark: SparkSession, *, shuffled: bool) -> None:
    sent_ms, due_ms = _sends(2)
    rng = np.random.default_rng(4)
    key = rng.integers(0, 9, len(sent_ms))
    stretches = continuation(DAYS, 12 * DAY_MS, rng).stretches
    order = rng.permutation(len(sent_ms)) if shuffled else np.arange(len(sent_ms))
    cached = keep(_frame(spark, sent_ms[order], due_ms[order], key[order]), sends_per_chunk=700)
    longer = extended(cached, {"t": stretches})
    copied = [
        row for from_ms, until_ms, _ in stretches for row in np.flatnonzero((sent_ms >= from_ms) & (sent_ms < until_ms))
    ]
    keys = np.concatenate([key, key[copied]])
    by_hand = keep(_frame(spark, *_by_hand(sent_ms, due_ms, stretches), keys))
    try:
        counts = (
            count_exactly(of, [Asked(plan=plan, grid=grid_for(of)) for plan in PLANS]) for of in (longer, by_hand)
        )
        for found, wanted in zip(*counts, strict=True):
            assert found.entries == wanted.entries == len(keys)
            assert found.hop_count == wanted.hop_count
            assert found.peak_of_total == wanted.peak_of_total
            assert found.peak_per_partition == wanted.peak_per_partition
    finally:
        for one in (cached, longer, by_hand):
            one.forget()


def _frame(spark: SparkSession, sent_ms: np.ndarray, due_ms: np.ndarray, key: np.ndarray) -> DataFrame:
    rows = [
        (sent, due, None if number == 0 else f"key-{number}", 0, "t")
        for sent, due, number in zip(sent_ms.tolist(), due_ms.tolist(), key.tolist(), strict=True)
    ]
    schema = "publish_ms long, due_ms long, key string, size_bytes long, topic string"
    return spark.createDataFrame(rows, schema).coalesce(1)


# ---------------------------------------------------------------- The days of a history: which go on, and which do not.
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


# ------------------------------- The trend of a history: told only where there is one, and a date that follows from it.
WEEK_MS = 7 * DAY_MS


def sent_evenly(volumes: list[int]) -> Cells:
    """So many timers a day, evenly over each; the last is sent_evenly in the last millisecond of the last day."""
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
    found = trend_of(sent_evenly(weeks(1_000, 1_189, 1_414, 1_682, 2_000)))
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
    found = trend_of(sent_evenly(volumes))
    assert found is not None
    assert found.weekly_growth == 0, why
    assert found.reached_ms(1.5) is None


@pytest.mark.parametrize("volumes", [weeks(100, 200), weeks(100, 200, 400)[1:], [500]])
def test_of_less_than_three_weeks_nothing_is_told(volumes: list[int]) -> None:
    assert trend_of(sent_evenly(volumes)) is None


def test_a_burst_of_a_minute_and_an_empty_history_have_no_trend() -> None:
    none = np.zeros(0, np.int64)
    assert trend_of(Cells.of_timers(none, none)) is None
    burst_ms = START_MS + np.arange(1_000)
    assert trend_of(Cells.of_timers(burst_ms, burst_ms + HOUR_MS)) is None


def test_a_campaign_in_the_last_week_is_no_growth() -> None:
    volumes = weeks(1_000, 1_000, 1_000, 1_000)
    plain = trend_of(sent_evenly(volumes))
    volumes[-3] *= 30
    found = trend_of(sent_evenly(volumes))
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

"""A history that goes on by days of its own: as cells, and as sends."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

from examples.history.generate import START_MS
from tests.support.plans import plan_of
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.plan import Tiered
from timewheel.spark_planner.exact.replay import Asked, count_exactly, grid_for
from timewheel.spark_planner.exact.sends import Stretch, extended, keep
from timewheel.spark_planner.extrapolation import Days, continuation, extended_cells
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

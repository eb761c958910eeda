"""Generated histories are a function of the seed, and have the shape that their kind says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

from examples.history.generate import (
    DAY_AND_NIGHT,
    START_MS,
    WORKLOADS,
    Bursts,
    Exponential,
    Fixed,
    Share,
    Workload,
    generate,
)
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.spark_planner.history import columns

ROWS = 20_000


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    return [tuple(row) for row in frame.collect()]


def times(frame: DataFrame) -> tuple[np.ndarray, np.ndarray]:
    return times_of(frame.toArrow())


def times_of(table: Any) -> tuple[np.ndarray, np.ndarray]:
    return table[columns.PUBLISH_MS].to_numpy(), table[columns.DUE_MS].to_numpy()


@pytest.fixture(scope="module")
def made(spark: SparkSession) -> Callable[[str], Any]:
    """The rows of a named kind, made once."""

    @cache
    def table(name: str) -> Any:
        frame = generate(spark, WORKLOADS[name], rows=ROWS, partitions=2)
        assert frame.schema == columns.HISTORY_SCHEMA
        return frame.toArrow()

    return table


def test_a_seed_gives_the_same_rows_however_they_are_cut(spark: SparkSession) -> None:
    workload = replace(WORKLOADS["half-nine"], keys=5, topics=("a", "b"))
    once = rows(generate(spark, workload, rows=500, seed=7, partitions=1))
    assert rows(generate(spark, workload, rows=500, seed=7, partitions=5)) == once
    assert rows(generate(spark, workload, rows=500, seed=8, partitions=1)) != once
    # The first of them, in full: a change of Spark or of ours that alters histories must be seen.
    assert once[0] == FIRST_OF_SEED_7


LONG_DRAWN = ("full-hours", "uniform-day", "long-mixture", "nine-next-day")
FIRST_OF_SEED_7 = (1_767_574_061_539, 1_767_690_000_000, 1_208, "key-3", "a")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.short if name in LONG_DRAWN else ()) for name in WORKLOADS]
)
def test_every_kind_is_a_history_in_order_of_publishing(made: Callable[[str], Any], name: str) -> None:
    workload, table = WORKLOADS[name], made(name)
    publish_ms, due_ms = times_of(table)
    assert len(publish_ms) == ROWS
    assert (np.diff(publish_ms) >= 0).all()
    assert publish_ms[0] >= START_MS
    assert publish_ms[-1] < START_MS + workload.span_ms
    assert (due_ms >= publish_ms).all()
    sizes = table[columns.SIZE_BYTES].to_numpy()
    assert workload.least_bytes <= sizes.min() < 250
    assert 1_750 < sizes.max() <= workload.max_bytes
    assert table[columns.KEY].null_count == ROWS
    assert set(table[columns.TOPIC].to_pylist()) == {""}


def test_each_kind_has_the_shape_that_it_says(made: Callable[[str], Any]) -> None:
    publish_ms, due_ms = times_of(made("mixture"))
    # 10 % uniform over 1 h to 7 d, and of the exponential ones exp(-6) = 0.25 % are above 1 h: 10.2 %.
    assert (due_ms - publish_ms >= HOUR_MS).mean() == pytest.approx(0.102, abs=0.01)
    publish_ms, due_ms = times_of(made("fixed-three"))
    assert np.unique(due_ms - publish_ms).tolist() == [HOUR_MS, DAY_MS, 5 * DAY_MS]
    publish_ms, due_ms = times_of(made("nine-next-day"))
    assert (due_ms == (publish_ms // DAY_MS + 1) * DAY_MS + 9 * HOUR_MS).all()
    publish_ms, due_ms = times_of(made("full-hours"))
    assert (due_ms % HOUR_MS == 0).all()
    publish_ms, due_ms = times_of(made("campaign"))
    assert publish_ms[-1] - publish_ms[0] < MINUTE_MS
    publish_ms, _ = times_of(made("hourly-bursts"))
    assert (publish_ms % HOUR_MS < 2 * MINUTE_MS).all()
    publish_ms, _ = times_of(made("seasons"))
    weights = np.array(DAY_AND_NIGHT.weights)
    # Of 64 rows that are drawn together some 4 may fall to either side of an hour's begin and end, on each of 10 days.
    hours = np.bincount(publish_ms % DAY_MS // HOUR_MS, minlength=24)
    assert hours == pytest.approx(ROWS * weights / weights.sum(), abs=4 * 20**0.5 * 3)


def test_times_and_delays_are_drawn_independently(spark: SparkSession) -> None:
    workload = Workload(span_ms=DAY_MS, shares=(Share(weight=1, delay=Exponential(mean_ms=HOUR_MS)),))
    publish_ms, due_ms = times(generate(spark, workload, rows=ROWS))
    delay_ms = (due_ms - publish_ms).astype(np.float64)
    steps_ms = np.diff(publish_ms).astype(np.float64)
    # The spread of a correlation of 20,000 independent pairs is 1 / sqrt(20,000) = 0.007.
    assert abs(np.corrcoef(delay_ms[1:], delay_ms[:-1])[0, 1]) < 0.03
    assert abs(np.corrcoef(delay_ms[1:], steps_ms)[0, 1]) < 0.03


@pytest.mark.parametrize(("together", "spread"), [(1, 0.0), (64, 1.0)])
def test_senders_are_paced_or_come_by_chance(spark: SparkSession, together: int, spread: float) -> None:
    workload = replace(WORKLOADS["mixture"], span_ms=DAY_MS, drawn_together=together)
    publish_ms, _ = times(generate(spark, workload, rows=ROWS))
    # How many fall into the time of four: by chance their variance is their mean.
    counts = np.bincount((publish_ms - START_MS) * (ROWS // 4) // DAY_MS, minlength=ROWS // 4)
    assert counts.sum() == ROWS
    assert counts.var() / 4 == pytest.approx(spread, abs=0.15)


def test_workloads_that_contradict_themselves_are_refused() -> None:
    shares = (Share(weight=1, delay=Fixed(delay_ms=1)),)
    with pytest.raises(ValueError, match="weight above 0"):
        Workload(span_ms=DAY_MS, shares=())
    with pytest.raises(ValueError, match="whole days"):
        Workload(span_ms=HOUR_MS, shares=shares)
    with pytest.raises(ValueError, match="ends before"):
        Workload(span_ms=DAY_MS, shares=shares, publishing=Bursts(every_ms=10, within_ms=11))
    with pytest.raises(ValueError, match="at least 1"):
        Workload(span_ms=DAY_MS, shares=shares, drawn_together=0)

"""Evaluation against exact counts, on every generated workload: what benchmarks/accuracy.py asks, of fewer rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

from benchmarks.accuracy import HAS_NO_GAPS, LARGE_GAPS, PLANS, ROWS, Comparison, compared, survey_of, uniform_peak
from examples.history.generate import WORKLOADS, generate
from tests.support.exact_play import play
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.plan import Plan
from timewheel.spark_planner.exact.replay import replay
from timewheel.spark_planner.history import columns

if TYPE_CHECKING:
    from tests.conftest import Evidence


@dataclass(frozen=True)
class Workload:
    """A generated history, read by Spark, and played through each plan by the tests' own numpy."""

    history: DataFrame
    comparisons: dict[str, Comparison]


SHORT: dict[str, list[pytest.MarkDecorator]] = {"campaign": [], "fixed-hour": [pytest.mark.short]}
"""The smallest with many gaps, and one without; the others are proofs, 20 s each."""
FEWER = {"fixed-hour": 50_000}
"""Rows that are enough to find that there is no gap, and no more than a percent of a uniform spread's evaluated."""


def rows_of(name: str) -> int:
    return FEWER.get(name, ROWS[name])


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=SHORT.get(name, [pytest.mark.proof])) for name in ROWS]
)
def workload(spark: SparkSession, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Workload:
    name: str = request.param
    # Kept: each pass over a generated frame would draw all of it again.
    path = str(tmp_path_factory.mktemp("accuracy") / name)
    generate(spark, WORKLOADS[name], rows=rows_of(name)).write.parquet(path)
    history = spark.read.parquet(path)
    table = history.select(columns.PUBLISH_MS, columns.DUE_MS).toArrow()
    publish_ms, due_ms = (table[name].to_numpy() for name in (columns.PUBLISH_MS, columns.DUE_MS))

    def exact(plan: Plan) -> int:
        return play(plan, publish_ms, due_ms).peak()

    found = {one.plan: one for one in compared(name, survey_of(history), exact)}
    return Workload(history=history, comparisons=found)


def test_all_kinds_are_compared_and_nine_are_large() -> None:
    assert set(ROWS) == set(WORKLOADS)
    assert len(set(ROWS) - HAS_NO_GAPS) == 9


@pytest.mark.short
def test_the_evaluation_is_within_a_percent_of_the_exact_count(workload: Workload, evidence: Evidence) -> None:
    assert set(workload.comparisons) == set(PLANS)
    assert [one for one in workload.comparisons.values() if not one.holds] == []
    native = workload.comparisons["native"]
    assert native.exact == 0 if native.workload in HAS_NO_GAPS else native.exact > LARGE_GAPS
    evidence(
        f"evaluation beside the exact count: {native.workload}",
        {
            "timers": rows_of(native.workload),
            "plans": len(workload.comparisons),
            "native peak": native.exact,
            "off at most": max(abs(one.evaluated - one.exact) for one in workload.comparisons.values()),
        },
        on_broker=False,
    )


@pytest.mark.parametrize("workload", ["campaign"], indirect=True)
@pytest.mark.parametrize("plan", PLANS)
def test_the_replay_on_spark_counts_what_was_compared_with(workload: Workload, plan: str) -> None:
    peak = replay(workload.history, PLANS[plan], exact_peak=True).peak_of_total
    assert peak.is_exact
    assert peak.gap_count == workload.comparisons[plan].exact


def test_an_even_spread_peaks_at_a_sixth_of_what_waits_or_a_quarter_of_a_burst() -> None:
    assert uniform_peak(240_000, DAY_MS, HOUR_MS) == pytest.approx(240_000 / 24 / 6)
    assert uniform_peak(240_000, 1, 8 * HOUR_MS) == pytest.approx(60_000)
    assert uniform_peak(240_000, DAY_MS, 0) == 0
    # Sent over 4 h, due within 6 h: against the same played.
    rng = np.random.default_rng(1)
    publish_ms = np.sort(rng.integers(0, 4 * HOUR_MS, 240_000))
    exact = play(PLANS["native"], publish_ms, publish_ms + rng.integers(0, 6 * HOUR_MS, 240_000)).peak()
    assert uniform_peak(240_000, 4 * HOUR_MS, 6 * HOUR_MS) == pytest.approx(exact, rel=0.01)
    assert uniform_peak(240_000, MINUTE_MS, MINUTE_MS) == pytest.approx(40_000)

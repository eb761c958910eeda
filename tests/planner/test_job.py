"""The whole job on small histories: the statistic, a choice among a few plans, and the exact replay behind it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from examples.history.generate import START_MS
from tests.support.exact_play import native_peak
from tests.support.workloads import WORKLOADS
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.plan import Calendar, Native, Plan, Tiered
from timewheel.spark_planner.job import History, Planned, plan_for, survey
from timewheel.spark_planner.results.facts import delay_quantile_ms, delay_spans, verdict
from timewheel.spark_planner.session import Progress, no_report, told

ROWS = 30_000
BASE = Plan(due_topic="persistent://acme/crm/reminders", subscriptions=("billing",))
# Natively this history has about 1,000 gaps (shared arithmetic: rate times half the mean difference of two delays).
PROFILE = BrokerProfile.from_mapping({"base": "4.0", "name": "4.0, small", "gap_limit_ranges": 400})
CANDIDATES = [
    replace(BASE, scheme=scheme)
    for scheme in (
        Native(),
        Calendar(interval_ms=DAY_MS),
        Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS, 6 * HOUR_MS, DAY_MS)),
        Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS,)),
    )
]


@pytest.fixture(scope="module")
def raw(spark: SparkSession) -> DataFrame:
    """Two topics and three rows that are none: due before it was sent, no due time, no publish time."""
    sent_ms, due_ms = WORKLOADS["mixture"](np.random.default_rng(5), ROWS, 2)
    rows = [
        (int(sent), int(due), "renewals" if number % 3 else "retries")
        for number, (sent, due) in enumerate(zip(sent_ms, due_ms, strict=True))
    ]
    first = rows[0][0]
    bad = [(first, first - 1, "renewals"), (first, None, "renewals"), (None, first, "renewals")]
    return spark.createDataFrame(rows + bad, "publish_ms bigint, due_ms bigint, topic string")


@pytest.fixture(scope="module")
def heard() -> list[Progress]:
    return []


@pytest.fixture(scope="module")
def history(raw: DataFrame, heard: list[Progress]) -> History:
    return survey(raw, on_progress=heard.append)


@pytest.fixture(scope="module")
def planned(history: History, heard: list[Progress]) -> Planned:
    return plan_for(history, "renewals", BASE, PROFILE, candidates=CANDIDATES, as_is=True, on_progress=heard.append)


def test_only_the_timers_of_the_topic_are_replayed(planned: Planned) -> None:
    assert planned.native.replay.entries == planned.recommended.replay.entries == ROWS - ROWS // 3
    assert planned.native.evaluation.timers == ROWS - ROWS // 3


def test_the_choice_is_proved_by_the_exact_count(planned: Planned) -> None:
    assert planned.keeps_limits
    assert not planned.choice.recommended.broken
    counted = planned.recommended.replay.peak_per_partition
    assert counted.is_exact
    assert counted.gap_count <= 0.8 * PROFILE.gap_limit_ranges < planned.native.replay.peak_of_total.gap_count
    # A thousand gaps are a random number: its root, 32, is 3 % of it.
    assert abs(planned.native.peak_gaps_error) < 0.1
    hops = planned.recommended.replay.hop_count / planned.recommended.replay.entries
    assert planned.recommended.evaluation.hops_mean == pytest.approx(hops, rel=0.02)


def test_growth_is_planned_for_and_predicted_apart_from_what_was(history: History, planned: Planned) -> None:
    grown = plan_for(history, "renewals", BASE, PROFILE, candidates=CANDIDATES[:1], growth=3.0, as_is=True)
    assert grown.plan.partitions >= 2 * planned.native.evaluation.gap_fraction / 0.8
    assert grown.choice.native.peak_gaps == pytest.approx(3 * planned.choice.native.peak_gaps, rel=0.01)
    assert grown.native.replay.peak_of_total == planned.native.replay.peak_of_total


@pytest.mark.usefixtures("planned")
def test_every_stage_is_told_from_nothing_to_all(heard: list[Progress]) -> None:
    stages = list(dict.fromkeys(progress.stage for progress in heard))
    assert stages[:3] == ["reading the history", "putting the history in order", "pricing candidates for renewals"]
    assert stages[3].startswith("counting ")
    assert stages[-1] == "replaying simple rules", "today's plan and the new one were counted in full already"
    for stage in stages:
        fractions = [progress.fraction for progress in heard if progress.stage == stage]
        known = [fraction for fraction in fractions if fraction is not None]
        assert known == sorted(known)
        assert known[-1] == 1.0


def test_the_callers_job_group_is_left_as_it_was(spark: SparkSession) -> None:
    spark.sparkContext.setJobGroup("mine", "my own jobs")
    with told(spark, "a stage", no_report, one_job=True):
        assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") != "mine"
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") == "mine"


def test_the_shares_of_delays_are_those_of_the_timers(history: History) -> None:
    cells = history.cells("renewals")
    spans = delay_spans(cells)
    assert sum(spans.values()) == pytest.approx(cells.timers)
    # 90 % are exponential with a mean of ten minutes, of which 1 - exp(-0.1) are below one; the others are above 1 h.
    assert spans["under 1m"] / cells.timers == pytest.approx(0.9 * (1 - np.exp(-0.1)), abs=0.01)
    # Of 10 % between 1 h and 7 d, 48 h of 167 h lie between 5 d and 7 d.
    assert spans["5d to 10d"] / cells.timers == pytest.approx(0.1 * 48 / 167, abs=0.005)
    assert delay_quantile_ms(cells, 1.0) == int(cells.delay_max_ms.max())


# --------------------------------------------------------------------------- histories whose delays are not independent
def _campaigns(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Each hour a batch of 1,500, sent within a minute and sorted by due time, up to a day ahead."""
    sent_ms, due_ms = [], []
    for hour in range(48):
        begin_ms = START_MS + hour * HOUR_MS
        sent_ms.append(begin_ms + np.sort(rng.integers(0, 60_000, 1_500)))
        due_ms.append(begin_ms + 60_000 + np.sort(rng.integers(0, DAY_MS, 1_500)))
    return np.concatenate(sent_ms), np.concatenate(due_ms)


def _in_turns(_: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Delays of 1 h, 12 h and a day in turns."""
    sent_ms = START_MS + 4_000 * np.arange(60_000)
    return sent_ms, sent_ms + np.array([HOUR_MS, 12 * HOUR_MS, DAY_MS])[np.arange(60_000) % 3]


def _planned(spark: SparkSession, sent_ms: np.ndarray, due_ms: np.ndarray, limit: int) -> Planned:
    table = pa.table({"publish_ms": sent_ms, "due_ms": due_ms})
    history = survey(spark.createDataFrame(table, "publish_ms bigint, due_ms bigint"))
    profile = BrokerProfile.from_mapping({"base": "4.0", "name": "4.0, small", "gap_limit_ranges": limit})
    planned = plan_for(history, "", BASE, profile, candidates=CANDIDATES, as_is=True)
    history.cached.forget()
    return planned


def test_sorted_campaigns_stay_where_they_are_though_the_law_sees_thousands_of_gaps(spark: SparkSession) -> None:
    sent_ms, due_ms = _campaigns(np.random.default_rng(1))
    true = native_peak(due_ms)
    planned = _planned(spark, sent_ms, due_ms, limit=2_000)
    assert planned.choice.native.peak_gaps > 20 * true
    assert true < 100
    assert planned.plan == replace(planned.plan, scheme=Native(), partitions=1)
    # A burst of timers of one delay fills a ledger: its end splits ranges.
    found = planned.native.replay.peak_of_total.gap_count
    assert true <= found <= true + 10
    assert planned.keeps_limits
    assert f"at most {found} gaps (counted)" in verdict(planned)


@pytest.mark.short
def test_delays_in_turns_get_the_partitions_that_the_law_does_not_see(spark: SparkSession) -> None:
    sent_ms, due_ms = _in_turns(np.random.default_rng(1))
    true = native_peak(due_ms)
    limit = int(true * 1.1)  # above what the law says, and 0.8 of it below what is true
    planned = _planned(spark, sent_ms, due_ms, limit)
    assert planned.choice.native.peak_gaps < 0.8 * limit < true
    assert planned.native.replay.peak_of_total.gap_count == true
    assert planned.plan != replace(planned.plan, scheme=Native(), partitions=1)
    assert planned.recommended.replay.peak_per_partition.gap_count <= 0.8 * limit
    assert planned.keeps_limits

"""`timewheel plan --shadow` counts each candidate as a shadow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from pyspark.sql import SparkSession

from examples.history.generate import START_MS
from tests.support.planned_shadow import shadow_play
from tests.support.plans import plan_of
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import HOUR_MS
from timewheel.spark_planner.choice.candidates import as_shadow
from timewheel.spark_planner.choice.constraints import Constraints
from timewheel.spark_planner.job import History, Planned, plan_for, survey
from timewheel.spark_planner.results.facts import verdict

TIMERS = 600
PROFILE = BrokerProfile.named("4.0")
TOPIC = plan_of(partitions=0, tick_ms=PROFILE.tick_ms, relay="service", readers="any")


@pytest.fixture(scope="module")
def burst() -> list[tuple[int, int]]:
    """Half is due within seconds, the rest in hours to weeks: originals that are moved part the near ones."""
    rng = np.random.default_rng(7)
    sent_ms = START_MS + np.arange(TIMERS) // 4
    far_ms = rng.choice([1, 6, 24, 72, 408, 696], TIMERS) * HOUR_MS
    due_ms = sent_ms + np.where(rng.random(TIMERS) < 0.5, rng.integers(2_000, 8_000, TIMERS), far_ms)
    return list(zip(sent_ms.tolist(), due_ms.tolist(), strict=True))


@pytest.fixture(scope="module")
def history(spark: SparkSession, burst: list[tuple[int, int]]) -> Iterator[History]:
    found = survey(spark.createDataFrame(burst, "publish_ms bigint, due_ms bigint").coalesce(1))
    yield found
    found.cached.forget()


@pytest.fixture(scope="module")
def planned(history: History) -> Planned:
    return plan_for(history, "", as_shadow(TOPIC), PROFILE)


def test_the_figure_is_of_a_shadow_whose_originals_are_acknowledged_as_they_are_moved(
    planned: Planned, burst: list[tuple[int, int]]
) -> None:
    assert planned.plan.intake
    gaps = planned.recommended.replay.peak_per_partition.gap_count
    assert gaps == shadow_play(planned.plan, burst).peak_gaps()
    assert verdict(planned).startswith("Use a shadow with ")
    assert f"at most {gaps} gaps in a partition (counted)" in verdict(planned)


def test_a_topic_that_has_its_partitions_is_planned_with_no_more() -> None:
    limits = Constraints(partitions_min=3, partitions_max=3)
    assert limits.max_partitions(TOPIC) == 1, "of a topic that is not partitioned none can be made"
    assert limits.max_partitions(replace(TOPIC, partitions=3)) == 3
    with pytest.raises(ValueError, match="at most partitions_max"):
        Constraints(partitions_min=3, partitions_max=2)

"""A sample of a topic as a history: read without an option, and priced by its scale as the whole topic would be."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from tests.support.exact_play import play
from tests.support.plans import plan_of
from tests.support.workloads import WORKLOADS
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.plan import Native, Tiered
from timewheel.inspect.sample import Sample, SampledEntry, draw, figures_of, write_sample
from timewheel.spark_planner.choice.constraints import max_countable
from timewheel.spark_planner.history.read import read_history
from timewheel.spark_planner.job import survey
from timewheel.spark_planner.pricing.evaluate import evaluate
from timewheel.spark_planner.summary.cells import Cells

TOPIC = "persistent://acme/crm/reminders"
PROFILE = BrokerProfile.named("4.0")
POPULATION = 200_000
SAMPLES = 10_000


NATIVE = plan_of(Native())
TIERED = plan_of(Tiered(window_ms=12 * HOUR_MS, tiers_ms=(12 * HOUR_MS, DAY_MS, 5 * DAY_MS)))


def sampled(name: str) -> tuple[Cells, Sample]:
    """The whole of a workload, and what `timewheel sample` would have of it."""
    sent_ms, due_ms = WORKLOADS[name](np.random.default_rng(5), POPULATION, 10)
    entries = tuple(
        SampledEntry(
            publish_ms=int(sent_ms[number]),
            due_ms=int(due_ms[number]),
            size_bytes=250,
            key=f"key-{number}",
            is_delayed=True,
            is_overdue=False,
            batch_messages=0,
        )
        for number in sorted(draw(POPULATION, SAMPLES, 0))
    )
    taken = Sample(topic=TOPIC, partitions=4, population=POPULATION, seed=0, sampled_at_ms=0, entries=entries, unread=0)
    return Cells.of_timers(sent_ms, due_ms, np.full(len(sent_ms), 250)), taken


def cells_of(taken: Sample) -> Cells:
    publish_ms, due_ms, size_bytes = (
        np.array([getattr(entry, name) for entry in taken.entries]) for name in ("publish_ms", "due_ms", "size_bytes")
    )
    return Cells.of_timers(publish_ms, due_ms, size_bytes)


def test_a_sample_file_is_a_history_without_an_option(spark: SparkSession, tmp_path: Path) -> None:
    _, taken = sampled("mixture")
    path = tmp_path / "delays.parquet"
    write_sample(taken, figures_of(taken), path)

    history = survey(read_history(spark, str(path)))

    assert history.statistic.timers == history.statistic.rows == SAMPLES
    assert history.topic() == TOPIC
    row = history.timers_of(TOPIC).orderBy("publish_ms").first()
    first = taken.entries[0]
    assert row is not None
    assert tuple(row) == (first.publish_ms, first.due_ms, 250, first.key, TOPIC)


@pytest.mark.parametrize("name", ["mixture", "fixed 1h, 1d, 5d", "campaign", "seasons", "full hours"])
def test_grown_by_its_scale_a_sample_is_priced_as_the_topic(name: str) -> None:
    whole, taken = sampled(name)
    few, growth = cells_of(taken), taken.scale

    for plan in (NATIVE, TIERED):
        truth = evaluate(plan, whole.bounded(100_000), PROFILE)
        found = evaluate(plan, few.bounded(100_000), PROFILE, growth=growth)
        # A peak of n entries stands on n / scale of the sample, whose chance of a few roots makes the highest moment
        # higher: the error grows as the peak shrinks, and is to the safe side.
        for real, priced in ((truth.peak_gaps, found.peak_gaps), (truth.peak_pending, found.peak_pending)):
            assert real * 0.95 <= priced <= real + 4 * math.sqrt(real * growth) + growth
        assert found.hops_mean == pytest.approx(truth.hops_mean, abs=0.05)


def test_what_is_counted_on_a_sample_bears_out_what_the_topic_does() -> None:
    sent_ms, due_ms = WORKLOADS["mixture"](np.random.default_rng(5), POPULATION, 10)
    allowed = play(NATIVE, sent_ms, due_ms).peak()
    peaks = []
    for seed in range(20):
        few = sorted(draw(POPULATION, 2_000, seed))
        peaks.append(play(NATIVE, sent_ms[few], due_ms[few]).peak())

    # About 67 by the law, and some roots of that above it: a hundred times as much is more than the topic's own peak.
    assert sum(100 * counted > allowed for counted in peaks) > 10
    assert max(peaks) <= max_countable(allowed, 100)
    assert min(peaks) > max_countable(allowed / 2, 100)


@pytest.mark.parametrize(
    ("allowed", "growth", "most"),
    [
        (8_000, 1, 8_000),  # the whole is held to the limit as it is
        (240, 1, 240),
        (8_000, 1.5, 5_379),  # 7,693 and 3.5 roots of it are 8,000: so 5,129 and 3.5 roots of that; its share is 5,333
        (8_000, 2, 4_063),
        (8_000, 100, 107),
        (8_000, 2_000, 10),  # a mean of 4: hardly more than no limit at all, and the law has the say
        (8_000, 0.5, 15_820),  # of a smaller volume the count is more certain: 16,000 would be too many
    ],
)
def test_what_may_be_counted_on_a_history_for_so_many_times_its_volume(allowed: int, growth: float, most: int) -> None:
    assert max_countable(allowed, growth) == most


@pytest.mark.parametrize("allowed", [240, 8_000, 40_000])
def test_more_volume_never_allows_for_a_greater_count(allowed: int) -> None:
    counts = [max_countable(allowed, growth) for growth in (1, 1.01, 2, 10, 100, 1_000, 10_000)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == allowed
    # Chance is never taken for the whole of it: of twice what is allowed some count is refused.
    assert all(
        max_countable(2 * allowed, growth) > most for growth, most in zip((1, 1.01, 2, 10), counts, strict=False)
    )


def test_the_laws_figure_is_that_of_a_steady_topic_and_says_nothing_of_the_clock() -> None:
    whole, taken = sampled("fixed 1h, 1d, 5d")
    figures = figures_of(taken)
    # Three delays, a third each: F (1 - F) is 2/9 from 1 h to 5 d. The history has 10 days of sending.
    law = POPULATION / (10 * DAY_MS) * (5 * DAY_MS - HOUR_MS) * 2 / 9
    assert figures.law_gaps == pytest.approx(law, rel=0.02)
    assert evaluate(NATIVE, whole.bounded(100_000), PROFILE).peak_gaps == pytest.approx(law, rel=0.02)

    assert figures.law_gaps is not None
    assert figures.law_gaps_error is not None
    assert abs(figures.law_gaps - law) <= 1.5 * figures.law_gaps_error
    _, on_the_clock = sampled("09:00 next day")
    # Delays are even over a day, for which the law says a sixth; all of a day are due at once, so there are none.
    assert figures_of(on_the_clock).law_gaps == pytest.approx(POPULATION / 10 / 6, rel=0.02)

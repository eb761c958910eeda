"""The shadow as the planner prices it, against a brute force that plays every timer through move and hops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from pyspark.sql import SparkSession

from examples.history.generate import START_MS
from tests.support.planned_shadow import shadow_play
from tests.support.plans import plan_of, shadow_of
from tests.support.workloads import WORKLOADS
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.plan import Native, Ring, Scheme, Tiered, Wheel
from timewheel.core.steps import far_ms
from timewheel.shadow.machine.move_decider import MoveDecider
from timewheel.spark_planner.choice.candidates import article_plans, as_shadow, candidate_plans
from timewheel.spark_planner.choice.choose import choose
from timewheel.spark_planner.choice.constraints import Constraints
from timewheel.spark_planner.job import History, Planned, plan_for, survey
from timewheel.spark_planner.pricing.evaluate import Evaluation, Shadowed, evaluate
from timewheel.spark_planner.results.facts import verdict
from timewheel.spark_planner.summary.cells import Cells

PROFILE = BrokerProfile.named("4.0")
ROWS, DAYS = 30_000, 10
TIERS = Tiered(window_ms=2 * HOUR_MS, tiers_ms=(2 * HOUR_MS, DAY_MS))
DAY_TIERS = Tiered(window_ms=12 * HOUR_MS, tiers_ms=(12 * HOUR_MS, 3 * DAY_MS))
RINGS = Wheel(rings=(Ring(slot_ms=HOUR_MS, slots=30), Ring(slot_ms=DAY_MS, slots=33)))
AT_NINE = {"09:00 next day", "half 09:00, half exponential"}
"""All due at one moment, where the law takes turns for chance under every plan with tiers; the replay counts them."""
SCHEMES: dict[str, Scheme] = {"tiers": TIERS, "tiers of days": DAY_TIERS, "rings": RINGS}


def history(workload: str, seed: int = 3) -> tuple[list[tuple[int, int]], Cells]:
    sent_ms, due_ms = WORKLOADS[workload](np.random.default_rng(seed), ROWS, DAYS)
    timers = list(zip(sent_ms.tolist(), due_ms.tolist(), strict=True))
    return timers, Cells.of_timers(sent_ms, due_ms, np.full(len(sent_ms), 250))


def shadowed(found: Evaluation) -> Shadowed:
    assert found.shadow is not None
    return found.shadow


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_what_is_priced_is_what_happens(workload: str, scheme: str) -> None:
    plan = shadow_of(SCHEMES[scheme], partitions=2)
    timers, cells = history(workload)
    found, played = evaluate(plan, cells, PROFILE), shadow_play(plan, timers)

    assert found.timers == pytest.approx(ROWS)
    assert shadowed(found).moved == pytest.approx(played.moves, rel=0.01, abs=1)
    assert found.hops_mean * ROWS == pytest.approx(played.hops, rel=0.02, abs=1)
    assert found.hops_max == pytest.approx(played.max_hops, abs=1)
    assert found.republished_entries == pytest.approx(played.hops + played.moves, rel=0.02, abs=2)
    assert shadowed(found).extra_reads_per_timer * ROWS == pytest.approx(played.reads, rel=0.02)
    # The greatest of many moments is above the mean by some roots of it.
    for told, counted in (
        (shadowed(found).peak_stale_entries, played.peak_stale_entries()),
        (found.peak_pending, played.peak_pending()),
    ):
        assert told == pytest.approx(counted, rel=0.02, abs=4 * counted**0.5 + 1)
    gaps = played.peak_gaps()
    assert found.peak_gaps == pytest.approx(gaps, rel=0.5 if workload in AT_NINE else 0.08, abs=4 * gaps**0.5 + 3)


def test_gaps_are_near_due_ones_only_and_a_struck_original_parts_two_of_them() -> None:
    """By hand: what is moved between two that are near is acknowledged at once, and so makes a gap."""
    plan = shadow_of(Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS,)), guard_ms=0)
    minute = [(n * MINUTE_MS, n * MINUTE_MS + delay_ms) for n, delay_ms in enumerate((30 * MINUTE_MS, DAY_MS) * 20)]
    played = shadow_play(plan, minute)
    # For half an hour 15 near ones wait, one every two minutes, and behind each stands one that was acknowledged.
    assert played.peak_gaps() == 15
    assert played.moves == 20
    assert shadow_play(plan, [(sent_ms, sent_ms + DAY_MS) for sent_ms, _ in minute]).peak_gaps() == 0


def test_writes_and_reads_of_lifted_timers() -> None:
    timers, cells = history("mixture")
    plan = shadow_of(DAY_TIERS)
    found = evaluate(plan, cells, PROFILE)
    played = shadow_play(plan, timers)
    told = shadowed(found)
    # Moves that go together are one entry: at this rate hardly any do.
    assert told.intake_entries == pytest.approx(played.moves, rel=0.05)
    assert found.written_entries == pytest.approx(ROWS + told.extra_writes_per_moved * told.moved)
    assert 2 <= told.extra_writes_per_moved <= (played.moves + played.hops) / played.moves
    assert found.written_bytes == pytest.approx((ROWS + played.moves + played.hops) * (250 + 150) * 2, rel=0.01)
    burst = Cells.of_timers(np.zeros(5_000, np.int64), np.full(5_000, 2 * DAY_MS), np.full(5_000, 250))
    assert shadowed(evaluate(plan, burst, PROFILE)).intake_entries < 10


def test_ghosts_take_memory_until_they_are_due_by_the_broker() -> None:
    timers, cells = history("mixture")
    plan = shadow_of(DAY_TIERS)
    counted = shadow_play(plan, timers).peak_stale_entries()
    for name, each in (("4.0", 27), ("4.2", 560), ("5.0", 560)):
        profile = BrokerProfile.named(name)
        found = evaluate(plan, cells, profile)
        assert shadowed(found).stale_index_bytes == pytest.approx(each * counted, rel=0.05)
        assert found.delayed_index_bytes == pytest.approx(
            found.peak_pending * profile.index_bytes_per_pending + shadowed(found).stale_index_bytes
        )
    assert shadowed(evaluate(plan, cells, replace(PROFILE, tick_ms=250))).lateness_ms == 250


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_is_far_is_what_the_shadow_says(scheme: str) -> None:
    assert far_ms(shadow_of(SCHEMES[scheme])) == MoveDecider(shadow_of(SCHEMES[scheme])).far_ms
    _, cells = history("mixture")
    assert shadowed(evaluate(shadow_of(SCHEMES[scheme]), cells, PROFILE)).far_ms == far_ms(shadow_of(SCHEMES[scheme]))


def test_beyond_max_delay_nothing_is_lifted() -> None:
    plan = shadow_of(TIERS, max_delay_ms=2 * DAY_MS)
    sent_ms = np.arange(1_000) * MINUTE_MS
    cells = Cells.of_timers(sent_ms, sent_ms + np.where(sent_ms % 2, DAY_MS, 3 * DAY_MS), np.full(1_000, 9))
    sent = [(int(at_ms), int(at_ms) + 3 * DAY_MS) for at_ms in sent_ms]
    assert shadow_play(plan, sent).moves == 0
    assert shadowed(evaluate(plan, cells, PROFILE)).moved == pytest.approx(0)


def test_growth_multiplies_and_partitions_divide() -> None:
    _, cells = history("mixture")
    once, thrice = evaluate(shadow_of(TIERS), cells, PROFILE), evaluate(shadow_of(TIERS), cells, PROFILE, growth=3.0)
    assert shadowed(thrice).moved == pytest.approx(3 * shadowed(once).moved)
    assert shadowed(thrice).peak_stale_entries == pytest.approx(3 * shadowed(once).peak_stale_entries, rel=1e-4)
    assert thrice.peak_gaps == pytest.approx(3 * once.peak_gaps, rel=1e-4)
    four = evaluate(shadow_of(TIERS), cells, PROFILE, 4)
    assert four.peak_gaps_per_partition == pytest.approx(once.peak_gaps_per_partition / 4)
    # Of each partition of the intake one subscription, and of the journal two.
    assert four.consumers - evaluate(shadow_of(TIERS, intake=False), cells, PROFILE, 4).consumers == 3 * 4


def test_candidates_of_a_base_with_an_intake_are_shadows_and_today_is_not() -> None:
    base = replace(shadow_of(TIERS), scheme=TIERS)
    made = candidate_plans(base, 7 * DAY_MS)
    assert len(made) > 100
    assert all(plan.intake and isinstance(plan.scheme, Tiered | Wheel) for plan in made)
    assert set(article_plans(base, 7 * DAY_MS)) == {"1 day", "1 day and 5 days", "12 hours"}
    _, cells = history("mixture")
    choice = choose(cells, base, PROFILE, Constraints(gap_fraction=0.1))
    assert choice.recommended.evaluation.plan.intake
    assert not choice.recommended.broken
    assert choice.native.plan == replace(
        base, scheme=Native(), intake=False, max_delay_ms=choice.native.plan.max_delay_ms
    )
    assert choice.native.shadow is None


# --------------------------------------------------------- `timewheel plan --shadow` counts each candidate as a shadow.
TIMERS = 600
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
def surveyed(spark: SparkSession, burst: list[tuple[int, int]]) -> Iterator[History]:
    found = survey(spark.createDataFrame(burst, "publish_ms bigint, due_ms bigint").coalesce(1))
    yield found
    found.cached.forget()


@pytest.fixture(scope="module")
def planned(surveyed: History) -> Planned:
    return plan_for(surveyed, "", as_shadow(TOPIC), PROFILE)


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

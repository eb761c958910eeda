"""One plan has one figure, counted. Where no plan is enough, the answer says why, and what is; each is followed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from pyspark.sql import SparkSession

from examples.history.generate import START_MS
from tests.planner.test_survey import with_limit
from tests.support.cursor import exact_gaps
from timewheel.core.durations import DAY_MS, HOUR_MS, spelled
from timewheel.core.gap_law import WATCH_SHARE
from timewheel.core.plan import Native, Plan, Ring, Tiered, Wheel
from timewheel.spark_planner.choice.constraints import TWICE, Constraints, max_countable
from timewheel.spark_planner.exact.replay import routes
from timewheel.spark_planner.job import History, Planned, least_limit, never_held_ms, plan_for, survey
from timewheel.spark_planner.results.facts import verdict
from timewheel.spark_planner.results.report_page import gaps_over_time, headlines
from timewheel.spark_planner.results.tables import plans_table, room_table, rules_table

pytestmark = pytest.mark.short

TIMERS = 2_000
BASE = Plan(
    due_topic="persistent://acme/crm/reminders", subscriptions=("billing",), partitions=0, max_delay_ms=60 * DAY_MS
)
SCHEMES = (
    Native(),
    Tiered(window_ms=12 * HOUR_MS, tiers_ms=(12 * HOUR_MS, 5 * DAY_MS)),
    Tiered(window_ms=2 * HOUR_MS, tiers_ms=(2 * HOUR_MS, DAY_MS)),
)
CANDIDATES = [replace(BASE, scheme=scheme) for scheme in SCHEMES]
RETRIES_MS = (2_000, 8_000)


@pytest.fixture(scope="module")
def burst() -> tuple[np.ndarray, np.ndarray]:
    """A topic's first second: half is due within seconds, the rest in hours to weeks."""
    return burst_of(7)


def burst_of(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    sent_ms = START_MS + np.arange(TIMERS) // 4
    far_ms = (rng.choice([1, 6, 24, 72, 408, 696], TIMERS) * HOUR_MS * rng.uniform(0.9, 1.1, TIMERS)).astype(np.int64)
    return sent_ms, sent_ms + np.where(rng.random(TIMERS) < 0.5, rng.integers(*RETRIES_MS, TIMERS), far_ms)


@pytest.fixture(scope="module")
def history(spark: SparkSession, burst: tuple[np.ndarray, np.ndarray]) -> Iterator[History]:
    rows = list(zip(*(column.tolist() for column in burst), strict=True))
    found = survey(spark.createDataFrame(rows, "publish_ms bigint, due_ms bigint").coalesce(1))
    yield found
    found.cached.forget()


def by_hand(plan: Plan, sent_ms: np.ndarray, due_ms: np.ndarray) -> int:
    way = routes(plan, sent_ms, due_ms)
    acknowledged = way.acknowledged_ms[np.argsort(way.arrival_ms, kind="stable")].tolist()
    return int(max(exact_gaps(acknowledged, sorted(set(acknowledged)))))


@pytest.fixture(scope="module")
def alone(burst: tuple[np.ndarray, np.ndarray]) -> int:
    """The gaps of what is due within seconds, which no plan holds back."""
    sent_ms, due_ms = burst
    return by_hand(CANDIDATES[0], *(column[due_ms - sent_ms <= RETRIES_MS[1]] for column in (sent_ms, due_ms)))


@pytest.fixture(scope="module")
def refused(history: History, alone: int) -> Planned:
    return plan_for(history, "", BASE, with_limit(int(alone * 1.15)), candidates=CANDIDATES)


def test_all_figures_of_a_plan_are_the_count(refused: Planned, burst: tuple[np.ndarray, np.ndarray]) -> None:
    gaps = by_hand(refused.plan, *burst)
    assert refused.recommended.replay.peak_per_partition.gap_count == gaps
    assert refused.choice.counted[refused.plan] == gaps
    assert all(plan == refused.plan or counted >= gaps for plan, counted in refused.choice.counted.items())
    now, then, _ = headlines(refused)
    assert then.value == f"{gaps:,}"
    assert now.value == f"{by_hand(CANDIDATES[0], *burst):,}"
    assert f"at most {gaps:,} gaps in a partition (counted)" in verdict(refused)
    assert f"with {gaps:,} gaps (counted) in a partition at the peak" in refused.choice.reasons[0]
    chart = gaps_over_time(refused)
    assert [f"{max(count for _, count in line.points):,.0f}" for line in chart.series] == [now.value, then.value]


def test_why_no_plan_is_enough_is_said_in_figures(refused: Planned, burst: tuple[np.ndarray, np.ndarray]) -> None:
    found, (sent_ms, due_ms) = refused.hindrance, burst
    assert found is not None
    is_near = due_ms - sent_ms < found.never_held_ms
    alone = by_hand(CANDIDATES[0], sent_ms[is_near], due_ms[is_near])
    assert not refused.keeps_limits
    assert refused.choice.recommended.broken == ("gap_fraction",)
    assert found.allowed < alone == found.never_held_gaps
    assert found.never_held_timers == np.count_nonzero(is_near)
    assert found.never_held_ms == min(filter(None, map(never_held_ms, CANDIDATES))), "of all plans that were tried"
    said = verdict(refused)
    assert f"{found.never_held_timers:,} timers due within {spelled(found.never_held_ms)} of" in said
    assert f"leave {alone:,} gaps by themselves (counted)" in said
    assert "smaller --gap-fraction" not in said


def test_the_broker_keeps_the_gaps_of_the_plan_that_is_told_all_the_same(refused: Planned, alone: int) -> None:
    gaps = refused.recommended.replay.peak_per_partition.gap_count
    assert alone <= gaps <= refused.profile.gap_limit_ranges


@pytest.mark.parametrize("remedy", ["partitions", "limit", "fraction"])
def test_each_remedy_that_is_said_is_one(history: History, refused: Planned, remedy: str) -> None:
    found, profile, constraints, base, candidates = refused.hindrance, refused.profile, Constraints(), BASE, CANDIDATES
    assert found is not None
    said = verdict(refused)
    match remedy:
        case "partitions":
            assert f"a new due topic with {found.partitions} partitions (plan without --unpartitioned)" in said
            base = replace(BASE, partitions=1)
            candidates = [replace(one, partitions=1) for one in CANDIDATES]
        case "limit":
            assert f"a broker that keeps {found.gap_limit_ranges:,} ranges where" in said
            profile = with_limit(found.gap_limit_ranges)
        case _:
            assert found.gap_fraction is not None
            assert f"(--gap-fraction {found.gap_fraction:g})" in said
            constraints = Constraints(gap_fraction=found.gap_fraction)
    planned = plan_for(history, "", base, profile, constraints, candidates=candidates)
    assert planned.keeps_limits
    assert planned.hindrance is None


def test_where_the_broker_keeps_no_plans_gaps_the_one_with_the_fewest_is_told(history: History, alone: int) -> None:
    planned = plan_for(history, "", BASE, with_limit(alone // 2), candidates=CANDIDATES)
    assert planned.hindrance is not None
    assert planned.hindrance.gap_fraction is None
    assert planned.choice.counted[planned.plan] == min(planned.choice.counted.values())
    assert "--gap-fraction" not in verdict(planned)


def test_what_a_plan_never_holds() -> None:
    assert never_held_ms(BASE) == 0, "native delays hold nothing back"
    tiered = replace(BASE, scheme=SCHEMES[1])
    assert never_held_ms(tiered) == 12 * HOUR_MS + tiered.guard_ms
    rings = (Ring(slot_ms=HOUR_MS, slots=100), Ring(slot_ms=4 * DAY_MS, slots=20))
    assert never_held_ms(replace(BASE, scheme=Wheel(rings=rings))) == BASE.guard_ms


def test_the_least_limit_is_the_first_that_is_enough() -> None:
    assert least_limit(867, lambda ranges: ranges * 8 // 10) == 1_084


def test_a_plan_has_one_verdict_in_all_of_an_answer(refused: Planned, burst: tuple[np.ndarray, np.ndarray]) -> None:
    allowed = int(0.8 * refused.profile.gap_limit_ranges)
    header, rows = plans_table(refused).header, plans_table(refused).rows
    for row, plan in zip(rows, (refused.native.evaluation.plan, refused.plan), strict=True):
        gaps, found = by_hand(plan, *burst), dict(zip(header, row, strict=True))
        assert (found["gaps"], found["known"]) == (f"{gaps:,}", "counted")
        assert found["of its limit"] == f"{gaps / refused.profile.gap_limit_ranges:.0%}"
        assert ("gaps" in found["breaks"]) == (gaps > allowed)
    table = rules_table(refused)
    assert dict(zip(table.header, table.rows[0], strict=True))["gaps"] == f"{by_hand(refused.plan, *burst):,}"
    for row, (_, one) in zip(table.rows[1:], refused.choice.article, strict=True):
        found = dict(zip(table.header, row, strict=True))
        gaps = by_hand(one.evaluation.plan, *burst)
        assert ("gaps" in found["breaks"]) == (gaps > allowed)
        assert found["gaps"] == (f"{gaps:,}" if gaps <= allowed else f"over {allowed:,}")


def test_growth_starts_from_the_count(refused: Planned) -> None:
    room = next(one for one in refused.choice.rooms if one.limit.startswith("80%"))
    assert room.times < 1, "the plan is not within that limit now"
    assert f"{room.limit}: at {room.times:,.2f} times" in "".join(refused.choice.reasons)
    counted = refused.recommended.replay.peak_per_partition.gap_count
    # At that volume the count would just be allowed.
    assert max_countable(0.8 * refused.profile.gap_limit_ranges, room.times) == counted


@pytest.mark.parametrize("growth", [1.0, 3.0])
def test_the_room_of_a_count_is_the_volume_at_which_it_is_refused(refused: Planned, growth: float) -> None:
    evaluation, profile = refused.recommended.evaluation, refused.profile
    limits = Constraints(gap_margin=1.25)
    allowed = limits.allowed_gaps(profile.gap_limit_ranges)
    rooms = {room.limit[:3]: room.times for room in limits.rooms(evaluation, profile, 100, growth)}
    assert max_countable(allowed, growth * rooms["80%"] * 0.99) >= 100
    assert max_countable(allowed, growth * rooms["80%"] * 1.01) < 100


def test_a_sampled_topic_is_not_cured_by_leaving_an_option_away_that_was_not_given(
    refused: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timewheel.spark_planner.results.facts.sample_note", lambda source: source)
    assert "partitions (plan again with --due-topic and its name)" in verdict(refused)
    assert "--unpartitioned" not in verdict(refused)


def test_a_short_burst_is_not_told_as_a_days_volume(refused: Planned) -> None:
    assert room_table(refused).header[2] == "timers within 1m"
    assert "timers a day" not in " ".join(refused.choice.reasons)
    assert "the mean of a minute, though this history is shorter" in headlines(refused)[2].lines


def test_where_every_candidate_was_counted_no_others_are_told_as_estimated(refused: Planned) -> None:
    assert {plan.scheme for plan in refused.choice.counted} == set(SCHEMES)
    assert f"of {len(SCHEMES)} (all counted), " in refused.choice.reasons[0]


def test_for_how_long_the_limit_is_broken_is_told(refused: Planned, burst: tuple[np.ndarray, np.ndarray]) -> None:
    found = refused.hindrance
    assert found is not None
    way = routes(refused.plan, *burst)
    acknowledged = way.acknowledged_ms[np.argsort(way.arrival_ms, kind="stable")]
    moments = np.unique(acknowledged)
    gaps = exact_gaps(acknowledged.tolist(), moments.tolist())
    above_ms = sum(int(length) for length, count in zip(np.diff(moments), gaps, strict=False) if count > found.allowed)
    # To the grid that it was timed on: spans of ten minutes, and in those in doubt 65,536 moments.
    assert 0 < above_ms <= found.lasts_ms <= above_ms + 1_000
    assert found.mostly_gaps < found.allowed
    assert f"This plan leaves more for {spelled(found.lasts_ms)} at most, and for 99% of the time" in verdict(refused)


def test_a_plan_above_the_warning_line_says_so(history: History, refused: Planned) -> None:
    """The remedy of less room was once called a plan that fits, and the commands warned of it from the first day."""
    found = refused.hindrance
    assert found is not None
    assert found.gap_fraction is not None
    asked = Constraints(gap_fraction=found.gap_fraction)
    planned = plan_for(history, "", BASE, refused.profile, asked, candidates=CANDIDATES)
    limit, gaps = planned.profile.gap_limit_ranges, planned.recommended.replay.peak_per_partition.gap_count
    assert planned.keeps_limits
    assert WATCH_SHARE * limit < gaps <= limit
    assert "That fits the limit, but is above the 80% of it" in verdict(planned)
    assert "for more room plan again with --gap-fraction 0.8." in verdict(planned)


def test_a_burst_that_fits_says_how_many_more_timers_break_it(
    history: History, burst: tuple[np.ndarray, np.ndarray], alone: int
) -> None:
    planned = plan_for(history, "", BASE, with_limit(int(alone * 1.6)), candidates=CANDIDATES)
    limit = planned.profile.gap_limit_ranges
    assert planned.keeps_limits
    assert 1 < planned.gap_room < TWICE
    assert planned.is_short_of_room
    said = verdict(planned)
    assert f"This history is SHORT, and shows one burst: {planned.gap_room:.2g} times as many timers at a time" in said
    assert "above the 80%" not in said
    # A second burst beside the first, as the next day brings it.
    both = [np.concatenate(column) for column in zip(burst, burst_of(8), strict=True)]
    order = np.argsort(both[0], kind="stable")
    assert by_hand(planned.plan, *(column[order] for column in both)) > limit
    # As the answer says: with room for twice as many, or when the history is all that there will be.
    parts = [replace(plan, partitions=1) for plan in CANDIDATES]
    base = replace(BASE, partitions=1)
    for growth, as_is in ((TWICE, False), (1.0, True)):
        again = plan_for(history, "", base, planned.profile, candidates=parts, growth=growth, as_is=as_is)
        assert again.keeps_limits
        assert not again.is_short_of_room
        assert "SHORT" not in verdict(again)

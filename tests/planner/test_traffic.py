"""A plan from a history that is shorter than its delays is for the topic as it will be."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from examples.history.generate import START_MS
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS
from timewheel.core.plan import Native, Plan, Tiered
from timewheel.spark_planner import extrapolation as continued
from timewheel.spark_planner.history.sampled import SAMPLE_NOTE
from timewheel.spark_planner.job import History, Passes, Planned, compare, plan_for, survey, traffic_of
from timewheel.spark_planner.results import tables
from timewheel.spark_planner.results.facts import (
    describe_growth,
    describe_native,
    describe_traffic,
    extrapolation_facts,
    planned_facts,
    reached_on,
    trend_in,
    verdict,
)
from timewheel.spark_planner.results.report_page import report_page

A_DAY = 500
LONGEST_MS = 30 * DAY_MS
BASE = Plan(due_topic="persistent://acme/crm/reminders", subscriptions=("billing",))
# In the steady state native delays leave 500 a day * 30 days / 6 = 2,500 gaps; in seven days some 870.
PROFILE = BrokerProfile.from_mapping({"base": "4.0", "name": "4.0, small", "gap_limit_ranges": 1_250})
CANDIDATES = [
    replace(BASE, scheme=scheme) for scheme in (Native(), Tiered(window_ms=10 * DAY_MS, tiers_ms=(10 * DAY_MS,)))
]


def sent_for(spark: SparkSession, days: int, *, campaign_day: int | None = None, growth: float = 0.0) -> History:
    """The first days of one and the same process."""
    rng = np.random.default_rng(8)
    volumes = (A_DAY * (1 + growth) ** (np.arange(days) / 7)).astype(int)
    sent_ms = [START_MS + day * DAY_MS + np.sort(rng.integers(0, DAY_MS, volume)) for day, volume in enumerate(volumes)]
    if campaign_day is not None:
        sent_ms.append(START_MS + campaign_day * DAY_MS + np.sort(rng.integers(0, DAY_MS // 24, 10 * A_DAY)))
    every_ms = np.sort(np.concatenate(sent_ms))
    due_ms = every_ms + rng.integers(0, LONGEST_MS, len(every_ms))
    rows = list(zip(every_ms.tolist(), due_ms.tolist(), strict=True))
    return survey(spark.createDataFrame(rows, "publish_ms bigint, due_ms bigint").coalesce(1))


@pytest.fixture(scope="module")
def week(spark: SparkSession) -> Iterator[History]:
    history = sent_for(spark, 7)
    yield history
    history.cached.forget()


@pytest.fixture(scope="module")
def planned(week: History) -> Planned:
    return plan_for(week, "", BASE, PROFILE, candidates=CANDIDATES)


def test_as_it_is_a_week_says_that_native_delays_will_do(week: History) -> None:
    """The defect that this is for: the limit would be broken unseen after a month."""
    alone = plan_for(week, "", BASE, PROFILE, candidates=CANDIDATES, as_is=True)
    assert alone.plan == replace(BASE, max_delay_ms=alone.plan.max_delay_ms)
    assert alone.native.replay.peak_of_total.gap_count == pytest.approx(870, rel=0.05)
    (said,) = describe_traffic(alone.traffic)
    assert said.endswith("All figures here are of the history alone (--as-is).")
    assert alone.traffic.warm_up is not None
    assert alone.traffic.warm_up.gaps == pytest.approx(2_500, rel=0.03)
    assert f"about {alone.traffic.warm_up.gaps:,.0f} gaps (estimated)" in said


def test_a_week_is_planned_for_as_sixty_days_are(planned: Planned, spark: SparkSession) -> None:
    long = sent_for(spark, 60)
    settled = plan_for(long, "", BASE, PROFILE, candidates=CANDIDATES)
    assert settled.traffic.warm_up is None
    assert settled.plan == planned.plan
    assert planned.plan.partitions == 3
    peak = settled.native.replay.peak_of_total.gap_count
    assert planned.native.replay.peak_of_total.gap_count == pytest.approx(peak, rel=0.05)
    assert planned.traffic.confidence is not None
    counted = planned.native.replay.peak_of_total.gap_count
    assert planned.traffic.confidence.low * counted <= peak <= planned.traffic.confidence.high * counted
    long.cached.forget()


def test_limits_are_kept_at_the_upper_end(planned: Planned) -> None:
    assert planned.constraints.gap_margin == 1
    plans = [planned.plan, planned.choice.native.plan, *planned.choice.counted]
    bands = {plan: planned.traffic.band(plan) for plan in plans}
    assert len({band.high for band in bands.values() if band is not None}) > 1, "each scheme has its own"
    for plan, band in bands.items():
        assert band is not None
        assert band.high > 1
        assert planned.choice.allowance.gaps(plan) == int(0.8 * PROFILE.gap_limit_ranges / band.high + 1e-6)
    fullest = planned.recommended.replay.peak_per_partition.gap_count
    assert fullest <= planned.choice.allowance.gaps(planned.plan)
    assert planned.keeps_limits


def test_the_answer_begins_with_it(planned: Planned) -> None:
    (said,) = describe_traffic(planned.traffic)
    assert said.startswith(
        "This history spans 7d, but with its delays a topic takes 27d to fill up: it shows the topic while "
        "it fills, not its steady state."
    )
    assert "So it was continued by 36 days, drawn from 7 of its own" in said
    (native,) = describe_native(planned)
    assert planned.native_alone is not None
    alone, counted = (one.peak_of_total.gap_count for one in (planned.native_alone, planned.native.replay))
    assert f"leave at most {alone:,} gaps in the history alone, and {counted:,} when it is continued" in native
    assert "with 95 % confidence. This plan leaves between" in native
    assert "this history, continued, leaves at most" in verdict(planned)
    page = report_page(planned)
    assert said[:60] in page
    assert "continued from here" in page
    continued = planned.traffic.continuation
    assert continued is not None
    # Seven days from the fifth of January on, and 36 more: the last send is some minutes before midnight, and the first
    # interval of ten days after the warm-up ends with 15 February.
    assert "this volume, and the history continued by 36 days, until 2026-02-16" in page
    low, high = planned.traffic.confidence.low * counted, planned.traffic.confidence.high * counted  # type: ignore[union-attr]
    assert f"between {low:,.0f} and {high:,.0f} with 95% confidence" in page
    facts = json.loads(json.dumps(planned_facts(planned)))["steady_state"]
    assert (facts["continued_days"], facts["days_drawn_from"], facts["not_continued"]) == (36, 7, None)


def test_plans_are_compared_on_the_same(week: History, planned: Planned) -> None:
    found = compare(week, "", {"native": planned.native.evaluation.plan}, PROFILE)["native"]
    assert found.replay.peak_of_total == planned.native.replay.peak_of_total
    alone = compare(week, "", {"native": planned.native.evaluation.plan}, PROFILE, as_is=True)["native"]
    assert alone.replay.entries == 7 * A_DAY
    # Days are counted from the last send, not from midnight: some have one timer more than others.
    assert found.replay.entries == pytest.approx(43 * A_DAY, abs=10)


def test_nothing_that_was_continued_stays_in_the_cache(week: History) -> None:
    with Passes([traffic_of(week, "")], PROFILE) as passes:
        made = passes.continued.frame
        levels = [made.storageLevel]
    levels.append(made.storageLevel)
    assert [(level.useMemory, level.useDisk) for level in levels] == [(True, True), (False, False)]
    assert week.cached.stored.storageLevel.useMemory, "the history's own sends are the caller's to forget"


def test_what_is_left_out_is_named(spark: SparkSession) -> None:
    found = traffic_of(sent_for(spark, 7, campaign_day=2), "")
    assert found.continuation is not None
    assert len(found.continuation.days.drawn) == 6
    assert any(said.startswith("Not continued: the campaign of 2026-01-07,") for said in describe_traffic(found))


def test_a_trend_is_told(spark: SparkSession) -> None:
    found = traffic_of(sent_for(spark, 15, growth=0.3), "")
    assert any("changes by +3" in said and "like its last week" in said for said in describe_traffic(found))


def test_a_burst_is_not_continued_and_is_said_first(spark: SparkSession) -> None:
    rows = [(START_MS + i, START_MS + i + (i % 4) * 10 * DAY_MS) for i in range(2_000)]
    found = traffic_of(survey(spark.createDataFrame(rows, "publish_ms bigint, due_ms bigint").coalesce(1)), "")

    assert found.unfit == "burst"
    (said,) = describe_traffic(found)
    assert said.startswith("This history spans 1999ms, less than a day, and with its delays a topic takes ")
    assert "are of the history alone. Plan from a history of a day or more" in said
    facts = extrapolation_facts(found)
    assert facts is not None
    assert (facts["not_continued"], facts["estimated_pending"], facts["continued_days"]) == ("burst", None, 0)


def test_what_would_be_too_much_is_not_continued(week: History, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most, why in (("MAX_TIMERS", 10_000, "--growth 10"), ("MAX_DAYS", 20, "too long to continue it")):
        with monkeypatch.context() as patch:
            patch.setattr(continued, name, most)
            found = traffic_of(week, "")
        assert found.continuation is None
        assert found.cells is week.cells("")
        assert why in describe_traffic(found)[0]


# ---------------- When limits are reached, in words and facts: by the history's own days, whatever it was continued by.
A_WEEK = 1.10


def planned_from(spark: SparkSession, days: int, weekly: float, longest_days: int, source: str = "given") -> Planned:
    """Native delays on one partition, with room for more than there is."""
    rng = np.random.default_rng(8)
    volumes = (200 * weekly ** (np.arange(days) // 7)).astype(int)
    sent = [
        START_MS + day * DAY_MS + (np.arange(1, count + 1) * DAY_MS) // count - 1 for day, count in enumerate(volumes)
    ]
    sent_ms = np.concatenate(sent)
    due_ms = sent_ms + rng.integers(0, longest_days * DAY_MS, len(sent_ms))
    rows = list(zip(sent_ms.tolist(), due_ms.tolist(), strict=True))
    history = survey(spark.createDataFrame(rows, "publish_ms bigint, due_ms bigint").coalesce(1), source=source)
    profile = BrokerProfile.from_mapping({"base": "4.0", "name": "4.0, small", "gap_limit_ranges": 4_000})
    return plan_for(history, "", BASE, profile, candidates=[replace(BASE, scheme=Native())])


@pytest.fixture(scope="module")
def growing(spark: SparkSession) -> Planned:
    return planned_from(spark, 28, A_WEEK, 4)


def test_the_date_is_where_the_growth_of_the_history_leads(growing: Planned) -> None:
    trend, room = trend_in(growing), growing.choice.rooms[0]
    assert trend is not None
    # 200, 220, 242, 266 a day: whole timers, so not quite ten percent.
    assert trend.weekly_growth == pytest.approx((266 / 200) ** (1 / 3) - 1)
    assert room.times > 2
    weeks = np.log(room.times) / np.log1p(trend.weekly_growth)
    end = dt.datetime.fromtimestamp((START_MS + 28 * DAY_MS) / 1_000, dt.UTC)
    day = f"{end + dt.timedelta(weeks=float(weeks)):%Y-%m-%d}"
    assert reached_on(growing, room, trend) == day
    said = describe_growth(growing)
    assert said.startswith("This history grows by 10.0% a week (the last of 4 full weeks against the first): at this ")
    assert said.endswith(f"growth {room.limit} is reached about {day} (estimated).")
    assert said in report_page(growing).replace("&#39;", "'")
    facts = json.loads(json.dumps(planned_facts(growing)))["growth_seen"]
    assert facts["limits_reached_on"][room.limit] == day
    assert (facts["first_week_timers"], facts["last_week_timers"]) == (1_400, 1_862)
    table = tables.room_table(growing)
    assert table.header[-1] == "about"
    assert table.rows[0][-1] == day


def test_a_volume_that_was_planned_for_is_reached_before_its_limits(growing: Planned) -> None:
    trend, room = trend_in(growing), growing.choice.rooms[0]
    assert trend is not None
    # Rooms are in times of the volume planned for: half of the room beyond twice the volume is the same day.
    choice = growing.choice
    twice = replace(growing, choice=replace(choice, allowance=replace(choice.allowance, growth=2.0)))
    assert reached_on(twice, replace(room, times=room.times / 2), trend) == reached_on(growing, room, trend)
    full = replace(growing, choice=replace(growing.choice, rooms=(replace(room, times=0.9),)))
    assert describe_growth(full).endswith(f", and by the estimate it has reached {room.limit}.")
    endless = replace(growing, choice=replace(growing.choice, rooms=(replace(room, times=1e300),)))
    assert describe_growth(endless).endswith("at this growth no limit is reached within ten years.")


def test_a_flat_history_says_so_and_has_no_dates(spark: SparkSession) -> None:
    flat = planned_from(spark, 21, 1.0, 4)
    said = describe_growth(flat)
    assert said.startswith(
        "No growth is seen in this history: of its 3 full weeks the last has 1,400 timers, the first 1,400"
    )
    assert "about" not in tables.room_table(flat).header


@pytest.mark.short
def test_a_continued_history_is_judged_by_its_own_days(spark: SparkSession) -> None:
    # Nineteen days, continued to many weeks: the cells repeat, and are no trend.
    short = planned_from(spark, 19, A_WEEK, 30)
    assert short.traffic.continuation is not None
    assert describe_growth(short) == ""
    assert planned_facts(short)["growth_seen"] is None
    longer = planned_from(spark, 22, A_WEEK, 30)
    assert longer.traffic.continuation is not None
    trend = trend_in(longer)
    assert trend is not None
    assert (trend.weeks, trend.end_ms) == (3, START_MS + 22 * DAY_MS)


def test_of_a_sample_nothing_is_told(growing: Planned, tmp_path: Path) -> None:
    path = tmp_path / "sample.parquet"
    note = json.dumps({"topic": "t", "rows": 1, "population": 10, "scale": 10.0, "partitions": 1}).encode()
    pq.write_table(pa.table({"publish_ms": [0]}).replace_schema_metadata({SAMPLE_NOTE: note}), path)
    history = replace(growing.history, source=str(path))
    traffic = replace(growing.traffic, history=history)
    sampled = replace(growing, native=replace(growing.native, traffic=traffic))
    assert describe_growth(growing)
    assert describe_growth(sampled) == ""

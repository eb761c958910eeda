"""When limits are reached, in words and facts: by the history's own days, whatever it was continued by."""

from __future__ import annotations

import datetime as dt
import json
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
from timewheel.core.plan import Native, Plan
from timewheel.spark_planner.history.sampled import SAMPLE_NOTE
from timewheel.spark_planner.job import Planned, plan_for, survey
from timewheel.spark_planner.results import tables
from timewheel.spark_planner.results.facts import describe_growth, planned_facts, reached_on, trend_in
from timewheel.spark_planner.results.report_page import report_page

BASE = Plan(due_topic="persistent://acme/crm/reminders", subscriptions=("billing",))
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

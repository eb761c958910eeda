"""The unit of every number is told by somebody, or the history is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's world calls it

from timewheel.spark_planner import ColumnMapping, read_history, survey
from timewheel.spark_planner.errors import BadColumnMapping, NoSuchTopic, TooManyTopics, UnitUnknown
from timewheel.spark_planner.history import columns
from timewheel.spark_planner.history.read import (
    EARLIEST_MS,
    LATEST_MS,
    TIME_UNITS,
    UNITS_PER_MS,
    assessed,
    sound_rows,
    stem_of,
    unit_of_name,
    unit_of_times,
)
from timewheel.spark_planner.results.facts import reading
from timewheel.spark_planner.summary.statistic import TOPIC_LIMIT

T0_MS = 1_767_571_200_000
HOUR_MS = 3_600_000
UNITS: dict[str, str] = {
    ending: unit
    for unit, endings in (
        ("ns", ("ns", "nanos", "nanoseconds")),
        ("us", ("us", "micros", "microseconds")),
        ("ms", ("ms", "millis", "milliseconds")),
        ("s", ("s", "sec", "secs", "seconds")),
        ("m", ("min", "mins", "minutes")),
        ("h", ("h", "hr", "hrs", "hours")),
        ("d", ("d", "days")),
    )
    for ending in endings
}


def read_rows(raw: DataFrame, **options: Any) -> list[tuple[int, int]]:
    frame = raw.transform(assessed(ColumnMapping(**options))).transform(sound_rows)
    return [(row[columns.PUBLISH_MS], row[columns.DUE_MS]) for row in frame.collect()]


@pytest.mark.parametrize("ending", UNITS)
def test_a_name_that_ends_with_a_unit_tells_it(ending: str) -> None:
    names = (f"delay_{ending}", f"wait.{ending}", f"DELAY_{ending.upper()}", f"delay {ending}")
    camel = (f"delay{ending.capitalize()}",)
    assert {unit_of_name(name) for name in names + camel} == {UNITS[ending]}
    assert stem_of(f"delay_{ending}") == stem_of(f"delay{ending.capitalize()}") == "delay"


@pytest.mark.parametrize(
    "name", ["delay", "delays", "status", "items", "delay_m", "wait_months", "is", "ms", "", "due_"]
)
def test_other_names_tell_none(name: str) -> None:
    assert unit_of_name(name) is None
    assert stem_of(name) == name


@given(st.integers(EARLIEST_MS, LATEST_MS - 1), st.sampled_from(TIME_UNITS))
def test_a_time_of_this_century_is_one_in_one_unit_only(at_ms: int, unit: str) -> None:
    assert unit_of_times("sent", "time-unit", [at_ms * UNITS_PER_MS[unit]]) == unit


def test_one_bad_value_does_not_decide_the_unit_of_times() -> None:
    assert unit_of_times("sent", "time-unit", [-1, T0_MS / 1_000, 7, T0_MS / 1_000]) == "s"
    assert unit_of_times("sent", "time-unit", []) == "ms"
    with pytest.raises(UnitUnknown, match=r"'sent' begins with 5, 1e\+300.*s: 1970-01-01 00:00:05, no time.*time-unit"):
        unit_of_times("sent", "time-unit", [5, 1e300])


@pytest.mark.parametrize("unit", UNITS_PER_MS)
@pytest.mark.parametrize("reported_by", ["ending", "option"])
def test_delays_are_read_in_the_unit_that_is_told(spark: SparkSession, unit: str, reported_by: str) -> None:
    ending = {"m": "minutes"}.get(unit, unit)
    name, option = (f"delay_{ending}", "auto") if reported_by == "ending" else ("delay", unit)
    delay = 2 * HOUR_MS * UNITS_PER_MS[unit]
    raw = spark.createDataFrame([(T0_MS, delay)], f"publish_ms bigint, {name} double")
    assert read_rows(raw, delay_unit=option) == [(T0_MS, T0_MS + 2 * HOUR_MS)]


@pytest.mark.parametrize(
    ("schema", "options"),
    [
        ("publish_ms bigint, delay bigint", {}),
        ("publish_ms bigint, delay string", {}),
        ("publish_ms bigint, wait double", {"delay": "wait"}),
        ("sent bigint, delay bigint", {"publish": "sent", "time_unit": "ms"}),  # which says nothing of the delays
    ],
)
def test_delays_without_a_unit_are_refused_with_every_reading(
    spark: SparkSession, schema: str, options: dict[str, Any]
) -> None:
    name, _, kind = schema.rpartition(", ")[2].partition(" ")
    raw = spark.createDataFrame([(T0_MS, 7_200), (T0_MS, 90)], schema.replace(kind, "bigint"))
    raw = raw.withColumn(name, F.col(name).cast(kind))
    with pytest.raises(UnitUnknown) as caught:
        survey(raw, ColumnMapping(**options))
    assert list(caught.value.values) == [7_200, 90]
    assert {unit: texts[0] for unit, texts in caught.value.readings.items()} == {
        "ns": "0.0072ms",
        "us": "7ms",
        "ms": "8s",
        "s": "2h",
        "m": "5d",
        "h": "300d",
        "d": "over ten years",
    }
    assert "--delay-unit" in str(caught.value)


@pytest.mark.parametrize("unit", TIME_UNITS)
@pytest.mark.parametrize("kind", ["bigint", "double", "string"])
def test_times_are_read_in_the_only_unit_that_they_can_be_in(spark: SparkSession, unit: str, kind: str) -> None:
    rows = [(T0_MS + 1_000 * i, T0_MS + 1_000 * i + HOUR_MS) for i in range(3)]
    raw = spark.createDataFrame(rows, "publish bigint, due bigint").select(
        *(
            (F.col(name) * F.lit(UNITS_PER_MS[unit])).cast("bigint").cast(kind).alias(name)
            for name in ("publish", "due")
        )
    )
    assert sorted(read_rows(raw)) == rows


def test_publish_and_due_may_count_in_different_units(spark: SparkSession) -> None:
    raw = spark.createDataFrame([(T0_MS // 1_000, (T0_MS + 5) * 1_000)], "publish_s bigint, due_us bigint")
    assert read_rows(raw) == [(T0_MS, T0_MS + 5)]


def test_two_columns_that_could_both_be_meant_are_named(spark: SparkSession) -> None:
    raw = spark.createDataFrame([(T0_MS, 1, 1)], "publish_ms bigint, delay_s bigint, delay_minutes bigint")
    with pytest.raises(BadColumnMapping, match="'delay_s' and 'delay_minutes' could both be meant"):
        raw.transform(assessed(ColumnMapping()))
    assert read_rows(raw, delay="delay_minutes") == [(T0_MS, T0_MS + 60_000)]


def test_a_json_field_that_comes_late_is_read(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "late.jsonl"
    lines = [{"publish_ms": T0_MS, "due_ms": T0_MS}] * 3_000 + [{"publish_ms": T0_MS, "due_ms": T0_MS, "key": "k"}]
    path.write_text("\n".join(map(json.dumps, lines)))
    found = read_history(spark, str(path)).transform(assessed(ColumnMapping())).transform(sound_rows)
    assert found.where(F.col(columns.KEY) == "k").count() == 1
    assert found.count() == 3_001


# ------------------------------------------------------------------------------------------------- more topics than one
@pytest.fixture(scope="module")
def of_many_topics(spark: SparkSession) -> DataFrame:
    rows = [(T0_MS, T0_MS + i, f"topic-{i}") for i in range(TOPIC_LIMIT + 10)]
    return spark.createDataFrame(rows, "publish_ms bigint, due_ms bigint, topic string")


def test_the_one_topic_that_is_asked_for_is_read_out_of_any_number(of_many_topics: DataFrame) -> None:
    with pytest.raises(TooManyTopics, match="--topic"):
        survey(of_many_topics)
    history = survey(of_many_topics, topic="topic-7")
    assert history.topic() == "topic-7"
    assert history.statistic.timers == 1


def test_a_topic_that_is_not_there_is_told_with_those_that_are(of_many_topics: DataFrame) -> None:
    with pytest.raises(NoSuchTopic, match=r"no timer of topic 'other'.*'topic-0'"):
        survey(of_many_topics, topic="other")
    with pytest.raises(NoSuchTopic, match="names no topics"):
        survey(of_many_topics.drop("topic"), topic="other")


# --------------------------------------------------------------------------------------------------------- what is told
def test_what_was_read_is_told_so_that_a_wrong_unit_is_seen(spark: SparkSession) -> None:
    rows = [(T0_MS + i, HOUR_MS + 60_000 * (i % 60)) for i in range(900)] + [(T0_MS, 30 * 24 * HOUR_MS)]
    history = survey(spark.createDataFrame(rows, "publish_ms bigint, delay_ms bigint"))
    said = reading(history.cells(""))
    assert re.fullmatch(
        r"As read: 901 timers sent from 2026-01-05 00:00 to 2026-01-05 00:00 UTC; half of the delays are within 9\dm, "
        r"99 % within 1[12]\dm, the longest is 30d\.",
        said,
    ), said

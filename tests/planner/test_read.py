"""Reading a history: formats, columns, and the quarantine of its rows."""

from __future__ import annotations

import datetime as dt
import json
import re
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's world calls it

from tests.support.statistics import statistic_of
from timewheel.spark_planner.errors import (
    BadColumnMapping,
    EmptyHistory,
    HistoryUnreadable,
    MissingColumn,
    NoSuchTopic,
    NoValidRows,
    TooManyTopics,
    UnitUnknown,
    WrongTimeUnit,
)
from timewheel.spark_planner.history import columns, read
from timewheel.spark_planner.job import survey
from timewheel.spark_planner.results.facts import reading
from timewheel.spark_planner.summary.cells import Cells
from timewheel.spark_planner.summary.statistic import TOPIC_LIMIT, Statistic

T0_MS = 1_767_571_200_000
ROWS = [(T0_MS + 7 * i, T0_MS + 7 * i + 3_600_000 * (i % 3), 100 + i, f"k{i % 2}", "t") for i in range(6)]


def normalised(raw: DataFrame, mapping: read.ColumnMapping) -> list[tuple[Any, ...]]:
    frame = raw.transform(read.assessed(mapping))
    kinds = [[(field.name, field.dataType) for field in schema] for schema in (frame.schema, columns.ASSESSED_SCHEMA)]
    assert kinds[0] == kinds[1]
    sound = frame.transform(read.sound_rows)
    assert sound.schema == columns.HISTORY_SCHEMA
    return sorted(tuple(row) for row in sound.collect())


@pytest.fixture(scope="module")
def usual(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS, columns.HISTORY_SCHEMA).coalesce(1)


@pytest.mark.parametrize("file_format", ["parquet", "csv", "json", "orc"])
@pytest.mark.parametrize("named_by", ["ending", "option"])
def test_every_format_gives_the_same_rows(
    spark: SparkSession, usual: DataFrame, tmp_path: Path, file_format: str, named_by: str
) -> None:
    writer = usual.write.option("header", "true") if file_format == "csv" else usual.write
    path = str(tmp_path / (f"history.{file_format}" if named_by == "ending" else "history"))
    writer.format(file_format).save(path)
    raw = read.read_history(spark, path, file_format="auto" if named_by == "ending" else file_format)
    assert normalised(raw, read.ColumnMapping()) == ROWS


def test_a_table_is_read_by_its_name(spark: SparkSession, usual: DataFrame) -> None:
    usual.createOrReplaceTempView("sent_timers")
    assert normalised(read.read_history(spark, "sent_timers"), read.ColumnMapping()) == ROWS
    assert normalised(read.read_history(spark, "sent_timers", file_format="table"), read.ColumnMapping()) == ROWS
    assert not Path("spark-warehouse").exists()  # which Spark would leave wherever a plan is made


TIMES: tuple[tuple[str, read.TimeUnit], ...] = (
    ("{}", "auto"),
    ("{}", "ms"),
    ("cast({} as double)", "auto"),
    ("cast({} as string)", "auto"),
    ("cast(cast({} / 1000 as decimal(20,3)) as string)", "s"),
    ("{} / 1000d", "s"),
    ("{} * 1000", "us"),
    ("{} * 1000000", "ns"),
    ("timestamp_millis({})", "auto"),
    ("timestamp_millis({})", "timestamp"),
    ("cast(timestamp_millis({}) as timestamp_ntz)", "auto"),
    ("date_format(timestamp_millis({}), \"yyyy-MM-dd'T'HH:mm:ss.SSSXXX\")", "auto"),
    ("date_format(timestamp_millis({}), 'yyyy-MM-dd HH:mm:ss.SSS')", "timestamp"),
)


@pytest.fixture(scope="module")
def read_as(usual: DataFrame) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """(publish, due) of the usual rows by the way in which they were written; all ways in one job, for time's sake."""

    def frame(expression: str, unit: read.TimeUnit) -> DataFrame:
        raw = usual.selectExpr(expression.format("publish_ms") + " as sent", expression.format("due_ms") + " as due")
        found = raw.transform(read.assessed(read.ColumnMapping(publish="sent", due="due", time_unit=unit)))
        return found.select(F.lit(expression).alias("expression"), F.lit(unit).alias("unit"), "publish_ms", "due_ms")

    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for row in reduce(DataFrame.unionAll, (frame(*way) for way in TIMES)).collect():
        found.setdefault((row["expression"], row["unit"]), []).append((row["publish_ms"], row["due_ms"]))
    return found


@pytest.mark.parametrize("way", TIMES, ids=" as ".join)
def test_times_of_every_type_and_unit(
    read_as: dict[tuple[str, str], list[tuple[int, int]]], way: tuple[str, read.TimeUnit]
) -> None:
    assert sorted(read_as[way]) == [(publish_ms, due_ms) for publish_ms, due_ms, *_ in ROWS]


def test_a_delay_may_be_an_interval(spark: SparkSession) -> None:
    raw = spark.createDataFrame(
        [(T0_MS, dt.timedelta(days=1, milliseconds=5))], "publish_ms bigint, wait interval day to second"
    )
    assert normalised(raw, read.ColumnMapping(delay="wait")) == [(T0_MS, T0_MS + 86_400_005, 0, None, "")]


def test_columns_called_like_ours_do_no_harm(spark: SparkSession) -> None:
    raw = spark.createDataFrame(
        [(T0_MS, T0_MS + 1, "why", "raw")], "publish_ms bigint, due_ms bigint, reason string, raw string"
    )
    assert normalised(raw, read.ColumnMapping(topic="reason", key="raw")) == [(T0_MS, T0_MS + 1, 0, "raw", "why")]


# ------------------------------------------------------------------------------------------------------ what is refused
def test_a_missing_column_names_those_that_exist_and_the_option(usual: DataFrame) -> None:
    with pytest.raises(MissingColumn, match=r"'sent_at'.*'publish_ms', 'due_ms'.*--publish") as caught:
        usual.transform(read.assessed(read.ColumnMapping(publish="sent_at")))
    assert (caught.value.column, caught.value.option) == ("sent_at", "publish")
    assert caught.value.existing == columns.HISTORY_COLUMNS


def test_due_or_delay_but_not_both_and_not_neither(usual: DataFrame) -> None:
    with pytest.raises(BadColumnMapping, match="not both"):
        read.ColumnMapping(due="due_ms", delay="delay_ms")
    with pytest.raises(BadColumnMapping, match="'publish_ms', 'size_bytes'"):
        usual.select("publish_ms", "size_bytes").transform(read.assessed(read.ColumnMapping()))


@pytest.mark.parametrize(
    ("expression", "mapping", "message"),
    [
        ("true as publish_ms", {}, "boolean holds no times"),
        ("current_date() as publish_ms", {}, "date holds no times"),
        ("1 as publish_ms", {"time_unit": "timestamp"}, "not a timestamp"),
        ("current_timestamp() as publish_ms", {"time_unit": "ms"}, "counts in no unit"),
        ("1 as publish_ms, array(1) as size_bytes", {}, "array<int> holds no numbers"),
    ],
)
def test_types_that_cannot_be_meant_are_refused(
    spark: SparkSession, expression: str, mapping: dict[str, Any], message: str
) -> None:
    raw = spark.range(1).selectExpr("1 as due_ms", *expression.split(", "))
    with pytest.raises(BadColumnMapping, match=message):
        raw.transform(read.assessed(read.ColumnMapping(**mapping)))


def test_a_unit_that_there_is_not_is_refused() -> None:
    with pytest.raises(BadColumnMapping, match="--time-unit: no unit 'fortnight': one of auto, ms"):
        read.ColumnMapping(time_unit="fortnight")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("damaged.parquet", "this is no parquet", {}, r"check that it is whole"),
        ("x.csv", "publish_ms,due_ms\n1,2\n", {"file_format": "no-such-format"}, r"name a format that this Spark has"),
        ("table", None, {"file_format": "table"}, r"check the table's name"),
        ("list.json", "[1, 2]\n", {}, r"one object per line"),
    ],
)
def test_what_cannot_be_read_says_what_to_do(
    spark: SparkSession, tmp_path: Path, name: str, content: str | None, options: dict[str, str], message: str
) -> None:
    path = str(tmp_path / name) if name != "table" else "no_such_table"
    if content is not None:
        Path(path).write_text(content)
    with pytest.raises(HistoryUnreadable, match=message) as caught:
        read.read_history(spark, path, **options)
    assert caught.value.source == path


TEN_YEARS_MS = 10 * 365 * 86_400_000
NAN, INF = float("nan"), float("inf")

WITH_DUE: list[tuple[str | None, tuple[Any, ...]]] = [
    (None, (str(T0_MS), str(T0_MS), "10", "t")),
    (None, (str(T0_MS), str(T0_MS + TEN_YEARS_MS), None, "t")),  # no size is a size that is not known
    (None, ("2026-01-05T00:00:00Z", "2026-01-05 01:00:00", "0", "t")),
    ("publish_missing", (None, str(T0_MS), "10", "t")),
    ("publish_missing", (None, None, "-1", None)),  # the first reason is the row's
    ("publish_not_a_time", ("soon", str(T0_MS), "10", "t")),
    ("publish_not_a_time", ("12d", str(T0_MS), "10", "t")),  # Java reads that as a number
    ("publish_absurd", ("1767571200", str(T0_MS), "10", "t")),
    ("publish_absurd", ("-1", str(T0_MS), "10", "t")),
    ("publish_absurd", ("99999999999999999999", str(T0_MS), "10", "t")),  # past 64 bits
    ("due_missing", (str(T0_MS), None, "10", "t")),
    *(("due_missing", (str(T0_MS), none, "10", "t")) for none in ("", " ", r"\N", "NULL", "None", "NaN")),
    # Spark reads these as times of the day on which it reads them.
    *(("due_not_a_time", (str(T0_MS), text, "10", "t")) for text in ("09:30", "T09:30:00Z", "now", "today", "2026-01")),
    ("due_before_publish", (str(T0_MS), str(T0_MS - 1), "10", "t")),
    ("delay_absurd", (str(T0_MS), str(T0_MS + TEN_YEARS_MS + 1), "10", "t")),
    ("delay_absurd", (str(T0_MS), "99999999999999999999", "10", "t")),
    *(("topic_missing", (str(T0_MS), str(T0_MS), "10", none)) for none in (None, r"\N")),
    (None, (str(T0_MS), str(T0_MS), "10", "")),  # as a normalised history without topics has it
    (None, (str(T0_MS), str(T0_MS), "10", "t" * read.MAX_TOPIC_BYTES)),
    ("topic_absurd", (str(T0_MS), str(T0_MS), "10", "t" * (read.MAX_TOPIC_BYTES + 1))),
]
WITH_BOTH: list[tuple[str | None, tuple[Any, ...]]] = [
    (None, (T0_MS, T0_MS + 60_000, 60.0)),
    (None, (T0_MS, T0_MS + 60_999, 60.0)),  # whole seconds, cut off
    (None, (T0_MS, T0_MS + 60_000, None)),
    (None, (T0_MS, T0_MS + 60_000, NAN)),
    ("due_delay_conflict", (T0_MS, T0_MS + 60_000, 58.0)),
    ("due_delay_conflict", (T0_MS, T0_MS + 60_000, 60_000.0)),  # which holds milliseconds
    ("due_before_publish", (T0_MS, T0_MS - 1, 60.0)),
]
WITH_DELAY: list[tuple[str | None, tuple[Any, ...]]] = [
    (None, (float(T0_MS), 0.0)),
    (None, (float(T0_MS), float(TEN_YEARS_MS))),
    ("publish_not_a_time", (NAN, 1.0)),
    ("publish_absurd", (INF, 1.0)),
    ("publish_absurd", (-1e300, 1.0)),
    ("delay_missing", (float(T0_MS), None)),
    ("delay_not_a_number", (float(T0_MS), NAN)),
    ("delay_negative", (float(T0_MS), -1.0)),
    ("delay_absurd", (float(T0_MS), INF)),
]


def counts(cases: list[tuple[str | None, tuple[Any, ...]]]) -> dict[str, int]:
    reasons = [reason for reason, _ in cases if reason is not None]
    return {reason: reasons.count(reason) for reason in reasons}


@pytest.mark.parametrize(
    ("cases", "schema"),
    [
        (WITH_DUE, "publish_ms string, due_ms string, size_bytes string, topic string"),
        (WITH_DELAY, "publish_ms double, delay_ms double"),
        (WITH_BOTH, "publish_ms bigint, due_ms bigint, delay_s double"),
    ],
    ids=["due", "delay", "both"],
)
def test_each_bad_row_has_its_reason_and_all_are_counted_in_the_pass(
    spark: SparkSession, cases: list[tuple[str | None, tuple[Any, ...]]], schema: str
) -> None:
    frame = spark.createDataFrame([row for _, row in cases], schema).transform(read.assessed(read.ColumnMapping()))
    found = frame.collect()
    assert [row[columns.REASON] for row in found] == [reason for reason, _ in cases]
    assert [row[columns.RAW] is None for row in found] == [reason is None for reason, _ in cases]
    sound = len(cases) - sum(counts(cases).values())
    assert frame.transform(read.sound_rows).count() == sound

    statistic = statistic_of(frame)
    assert statistic.quarantined == counts(cases)
    assert (statistic.rows, statistic.timers) == (len(cases), sound)


WITH_COPIES: list[tuple[str | None, tuple[Any, ...]]] = [
    # A hop's copy comes later, in whichever row of the history it stands, with the same due time or a reader's.
    ("later_copy", (T0_MS + 60_000, T0_MS + 90_000, "a")),
    (None, (T0_MS, T0_MS + 90_000, "a")),
    ("later_copy", (T0_MS + 80_000, T0_MS + 90_000, "a")),
    # A bad row is no copy, and does not stand for its timer.
    ("due_before_publish", (T0_MS, T0_MS - 1, "b")),
    (None, (T0_MS + 5, T0_MS + 90_000, "b")),
    # Without an id each row is a timer, also beside one whose id looks like a row's.
    (None, (T0_MS, T0_MS + 90_000, None)),
    (None, (T0_MS, T0_MS + 90_000, None)),
    (None, (T0_MS, T0_MS + 90_000, "")),
    (None, (T0_MS, T0_MS + 90_000, "")),
    (None, (T0_MS, T0_MS + 90_000, r"\N")),
    (None, (T0_MS, T0_MS + 90_000, r"\N")),
    (None, (T0_MS, T0_MS + 90_000, "0")),
    (None, (T0_MS, T0_MS + 90_000, "row 0")),
    ("later_copy", (T0_MS + 1, T0_MS + 90_000, "0")),
]


@pytest.mark.parametrize("partitions", [1, 4])
def test_of_the_copies_of_a_timer_the_first_that_was_sent_counts(spark: SparkSession, partitions: int) -> None:
    rows = [(number, *row) for number, (_, row) in enumerate(WITH_COPIES)]
    raw = spark.createDataFrame(rows, "size_bytes int, publish_ms bigint, due_ms bigint, timer_id string")
    frame = raw.repartition(partitions).transform(read.assessed(read.ColumnMapping()))
    found = {row[columns.SIZE_BYTES]: row[columns.REASON] for row in frame.collect()}
    assert [found[number] for number in range(len(rows))] == [reason for reason, _ in WITH_COPIES]
    statistic = statistic_of(frame)
    assert statistic.quarantined == counts(WITH_COPIES)
    assert '"timer_id":"a"' in statistic.samples["later_copy"][-1]


def test_an_id_is_one_of_its_topic(spark: SparkSession) -> None:
    rows = [(T0_MS, T0_MS, "7", topic) for topic in ("a", "b", "b")]
    raw = spark.createDataFrame(rows, "publish_ms bigint, due_ms bigint, timer_id string, topic string")
    statistic = statistic_of(raw.transform(read.assessed(read.ColumnMapping())))
    assert {topic: cells.timers for topic, cells in statistic.cells.items()} == {"a": 1, "b": 1}


def test_who_names_no_timers_pays_for_no_shuffle(spark: SparkSession) -> None:
    raw = spark.createDataFrame([(T0_MS, T0_MS, "a")] * 2, "publish_ms bigint, due_ms bigint, id string")
    plain = raw.transform(read.assessed(read.ColumnMapping()))
    assert statistic_of(plain).timers == 2
    assert statistic_of(raw.transform(read.assessed(read.ColumnMapping(timer_id="id")))).timers == 1


def test_every_reason_is_tried_above() -> None:
    assert {reason for reason, _ in WITH_DUE + WITH_DELAY + WITH_BOTH + WITH_COPIES} - {None} == set(read.REASONS)


def test_a_timer_without_a_sound_size_is_a_timer_and_its_size_is_unknown(spark: SparkSession) -> None:
    sizes = ["big", "-1", str(read.MAX_SIZE_BYTES + 1), str(read.MAX_SIZE_BYTES), None, "", "7"]
    rows = [(T0_MS, T0_MS, size) for size in sizes] + [(None, T0_MS, "big")]
    frame = spark.createDataFrame(rows, "publish_ms bigint, due_ms bigint, size_bytes string").transform(
        read.assessed(read.ColumnMapping())
    )
    found = frame.collect()
    remarks = ["size_not_a_number", "size_negative", "size_absurd", None, None, None, None, None]
    assert [row[columns.REMARK] for row in found] == remarks
    assert [row[columns.SIZE_BYTES] for row in found[:-1]] == [0, 0, 0, read.MAX_SIZE_BYTES, 0, 0, 7]
    statistic = statistic_of(frame)
    assert (statistic.rows, statistic.timers, statistic.quarantined) == (8, 7, {"publish_missing": 1})
    assert statistic.remarked == {"size_not_a_number": 1, "size_absurd": 1, "size_negative": 1}
    assert set(statistic.remarked) == set(read.REMARKS)
    assert json.loads(statistic.samples["size_negative"][0])["size"] == "-1"


def test_a_delay_of_no_known_unit_is_not_held_against_the_due_time(spark: SparkSession) -> None:
    raw = spark.createDataFrame([(T0_MS, T0_MS + 60_000, 1)] * 3, "publish_ms bigint, due_ms bigint, delay bigint")
    assert statistic_of(raw.transform(read.assessed(read.ColumnMapping()))).timers == 3
    told = raw.transform(read.assessed(read.ColumnMapping(delay_unit="s")))
    assert [row[columns.REASON] for row in told.collect()] == ["due_delay_conflict"] * 3


def test_a_few_raw_rows_of_each_reason_are_kept(spark: SparkSession) -> None:
    rows = [(T0_MS, T0_MS)] + [(T0_MS, T0_MS - 1 - i) for i in range(50)]
    statistic = statistic_of(
        spark.createDataFrame(rows, "publish_ms bigint, due_ms bigint")
        .repartition(3)
        .transform(read.assessed(read.ColumnMapping()))
    )
    samples = [json.loads(text) for text in statistic.samples["due_before_publish"]]
    # The five first in the order of their text, whatever the tasks were.
    dues = sorted(str(T0_MS - 1 - i) for i in range(50))[:5]
    assert samples == [{"publish": str(T0_MS), "due": due} for due in dues]


def test_an_empty_history_is_an_error(spark: SparkSession) -> None:
    raw = spark.createDataFrame([], "publish_ms bigint, due_ms bigint")
    with pytest.raises(EmptyHistory, match="no row"):
        statistic_of(raw.transform(read.assessed(read.ColumnMapping())))


def test_a_history_of_bad_rows_is_an_error_that_shows_one(spark: SparkSession) -> None:
    raw = spark.createDataFrame([(T0_MS, T0_MS - 5), (None, T0_MS)], "publish_ms bigint, due_ms bigint")
    with pytest.raises(
        NoValidRows, match=r"none of the history's 2 rows.*1 due_before_publish, 1 publish_missing"
    ) as caught:
        statistic_of(raw.transform(read.assessed(read.ColumnMapping())))
    assert caught.value.quarantined == {"due_before_publish": 1, "publish_missing": 1}
    assert str(T0_MS - 5) in str(caught.value)


@pytest.mark.parametrize(
    ("factor", "given", "unit"), [(1e-3, "auto", "s"), (1e3, "ms", "us"), (1e6, "auto", "ns"), (1.0, "s", "ms")]
)
def test_times_in_another_unit_name_the_option_to_give(
    spark: SparkSession, factor: float, given: Any, unit: str
) -> None:
    rows = [(int((T0_MS + i) * factor), int((T0_MS + i + 60_000) * factor)) for i in range(20)] + [(None, 1)]
    raw = spark.createDataFrame(rows, "publish_ms bigint, due_ms bigint")
    with pytest.raises(WrongTimeUnit, match=f"20 of the history's 21 rows.*--time-unit {unit}") as caught:
        statistic_of(raw.transform(read.assessed(read.ColumnMapping(time_unit=given))))
    assert (caught.value.option, caught.value.unit, caught.value.absurd_rows) == ("time-unit", unit, 20)
    right = statistic_of(raw.transform(read.assessed(read.ColumnMapping(time_unit=unit))))  # type: ignore[arg-type]
    assert (right.timers, right.quarantined) == (20, {"publish_missing": 1})


def test_delays_in_another_unit_name_the_option_to_give(spark: SparkSession) -> None:
    raw = spark.createDataFrame(
        [(T0_MS, 86_400_000_000_000 + i) for i in range(20)], "publish_ms bigint, delay_ms bigint"
    )
    with pytest.raises(WrongTimeUnit, match="--delay-unit us"):  # a day in nanoseconds; in us it is 2.7 years
        statistic_of(raw.transform(read.assessed(read.ColumnMapping())))


def test_some_absurd_rows_are_rows_and_not_the_unit(spark: SparkSession) -> None:
    rows = [(T0_MS, T0_MS)] * 3 + [(T0_MS // 1_000, T0_MS // 1_000)] * 7
    raw = spark.createDataFrame(rows, "publish_ms bigint, due_ms bigint")
    assert statistic_of(raw.transform(read.assessed(read.ColumnMapping()))).quarantined == {"publish_absurd": 7}


@pytest.mark.parametrize(
    ("quarantined", "said"),
    [
        ({}, ""),
        ({"due_missing": 50}, ""),
        ({"due_missing": 51}, "51 of 1,001 rows (5.1%)"),
        ({"due_missing": 50, "due_not_a_time": 1}, "51 of 1,001 rows (5.1%)"),
        ({"later_copy": 9_000}, ""),  # the timer is in the answer
        ({"later_copy": 9_000, "due_not_a_time": 950}, "write times with their dates"),
    ],
)
def test_a_twentieth_of_the_rows_may_be_left_out(quarantined: dict[str, int], said: str) -> None:
    cells = Cells.of_timers(np.full(950, T0_MS), np.full(950, T0_MS + 1))
    found = Statistic(cells={"": cells}, quarantined=quarantined).too_few
    assert (said in found) if said else found == ""


# --------------------------------------------- The unit of every number is told by somebody, or the history is refused.
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
    frame = raw.transform(read.assessed(read.ColumnMapping(**options))).transform(read.sound_rows)
    return [(row[columns.PUBLISH_MS], row[columns.DUE_MS]) for row in frame.collect()]


@pytest.mark.parametrize("ending", UNITS)
def test_a_name_that_ends_with_a_unit_tells_it(ending: str) -> None:
    names = (f"delay_{ending}", f"wait.{ending}", f"DELAY_{ending.upper()}", f"delay {ending}")
    camel = (f"delay{ending.capitalize()}",)
    assert {read.unit_of_name(name) for name in names + camel} == {UNITS[ending]}
    assert read.stem_of(f"delay_{ending}") == read.stem_of(f"delay{ending.capitalize()}") == "delay"


@pytest.mark.parametrize(
    "name", ["delay", "delays", "status", "items", "delay_m", "wait_months", "is", "ms", "", "due_"]
)
def test_other_names_tell_none(name: str) -> None:
    assert read.unit_of_name(name) is None
    assert read.stem_of(name) == name


@given(st.integers(read.EARLIEST_MS, read.LATEST_MS - 1), st.sampled_from(read.TIME_UNITS))
def test_a_time_of_this_century_is_one_in_one_unit_only(at_ms: int, unit: str) -> None:
    assert read.unit_of_times("sent", "time-unit", [at_ms * read.UNITS_PER_MS[unit]]) == unit


def test_one_bad_value_does_not_decide_the_unit_of_times() -> None:
    assert read.unit_of_times("sent", "time-unit", [-1, T0_MS / 1_000, 7, T0_MS / 1_000]) == "s"
    assert read.unit_of_times("sent", "time-unit", []) == "ms"
    with pytest.raises(UnitUnknown, match=r"'sent' begins with 5, 1e\+300.*s: 1970-01-01 00:00:05, no time.*time-unit"):
        read.unit_of_times("sent", "time-unit", [5, 1e300])


@pytest.mark.parametrize("unit", read.UNITS_PER_MS)
@pytest.mark.parametrize("reported_by", ["ending", "option"])
def test_delays_are_read_in_the_unit_that_is_told(spark: SparkSession, unit: str, reported_by: str) -> None:
    ending = {"m": "minutes"}.get(unit, unit)
    name, option = (f"delay_{ending}", "auto") if reported_by == "ending" else ("delay", unit)
    delay = 2 * HOUR_MS * read.UNITS_PER_MS[unit]
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
        survey(raw, read.ColumnMapping(**options))
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


@pytest.mark.parametrize("unit", read.TIME_UNITS)
@pytest.mark.parametrize("kind", ["bigint", "double", "string"])
def test_times_are_read_in_the_only_unit_that_they_can_be_in(spark: SparkSession, unit: str, kind: str) -> None:
    rows = [(T0_MS + 1_000 * i, T0_MS + 1_000 * i + HOUR_MS) for i in range(3)]
    raw = spark.createDataFrame(rows, "publish bigint, due bigint").select(
        *(
            (F.col(name) * F.lit(read.UNITS_PER_MS[unit])).cast("bigint").cast(kind).alias(name)
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
        raw.transform(read.assessed(read.ColumnMapping()))
    assert read_rows(raw, delay="delay_minutes") == [(T0_MS, T0_MS + 60_000)]


def test_a_json_field_that_comes_late_is_read(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "late.jsonl"
    lines = [{"publish_ms": T0_MS, "due_ms": T0_MS}] * 3_000 + [{"publish_ms": T0_MS, "due_ms": T0_MS, "key": "k"}]
    path.write_text("\n".join(map(json.dumps, lines)))
    found = (
        read.read_history(spark, str(path)).transform(read.assessed(read.ColumnMapping())).transform(read.sound_rows)
    )
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

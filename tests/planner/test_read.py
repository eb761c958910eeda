"""Histories of every format and unit come out as the same rows, and what cannot be read says what to do."""

from __future__ import annotations

import datetime as dt
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's world calls it

from timewheel.spark_planner.errors import BadColumnMapping, HistoryUnreadable, MissingColumn
from timewheel.spark_planner.history import columns
from timewheel.spark_planner.history.read import ColumnMapping, TimeUnit, assessed, read_history, sound_rows

T0_MS = 1_767_571_200_000
ROWS = [(T0_MS + 7 * i, T0_MS + 7 * i + 3_600_000 * (i % 3), 100 + i, f"k{i % 2}", "t") for i in range(6)]


def normalised(raw: DataFrame, mapping: ColumnMapping) -> list[tuple[Any, ...]]:
    frame = raw.transform(assessed(mapping))
    kinds = [[(field.name, field.dataType) for field in schema] for schema in (frame.schema, columns.ASSESSED_SCHEMA)]
    assert kinds[0] == kinds[1]
    sound = frame.transform(sound_rows)
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
    raw = read_history(spark, path, file_format="auto" if named_by == "ending" else file_format)
    assert normalised(raw, ColumnMapping()) == ROWS


def test_a_table_is_read_by_its_name(spark: SparkSession, usual: DataFrame) -> None:
    usual.createOrReplaceTempView("sent_timers")
    assert normalised(read_history(spark, "sent_timers"), ColumnMapping()) == ROWS
    assert normalised(read_history(spark, "sent_timers", file_format="table"), ColumnMapping()) == ROWS
    assert not Path("spark-warehouse").exists()  # which Spark would leave wherever a plan is made


def test_a_compressed_csv_with_foreign_names_and_seconds(spark: SparkSession, usual: DataFrame, tmp_path: Path) -> None:
    seconds = usual.select(
        (F.col("publish_ms") / 1000).cast("decimal(20,3)").alias("sent at"),
        ((F.col("due_ms") - F.col("publish_ms")) / 60_000).alias("wait.minutes"),
        F.col("size_bytes").alias("bytes"),
    )
    path = str(tmp_path / "log.csv.gz")
    seconds.write.option("header", "true").option("compression", "gzip").csv(path)
    mapping = ColumnMapping(publish="sent at", delay="wait.minutes", size="bytes", time_unit="s", delay_unit="m")
    assert normalised(read_history(spark, path), mapping) == [(p, d, s, None, "") for p, d, s, _, _ in ROWS]


TIMES: tuple[tuple[str, TimeUnit], ...] = (
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

    def frame(expression: str, unit: TimeUnit) -> DataFrame:
        raw = usual.selectExpr(expression.format("publish_ms") + " as sent", expression.format("due_ms") + " as due")
        found = raw.transform(assessed(ColumnMapping(publish="sent", due="due", time_unit=unit)))
        return found.select(F.lit(expression).alias("expression"), F.lit(unit).alias("unit"), "publish_ms", "due_ms")

    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for row in reduce(DataFrame.unionAll, (frame(*way) for way in TIMES)).collect():
        found.setdefault((row["expression"], row["unit"]), []).append((row["publish_ms"], row["due_ms"]))
    return found


@pytest.mark.parametrize("way", TIMES, ids=" as ".join)
def test_times_of_every_type_and_unit(
    read_as: dict[tuple[str, str], list[tuple[int, int]]], way: tuple[str, TimeUnit]
) -> None:
    assert sorted(read_as[way]) == [(publish_ms, due_ms) for publish_ms, due_ms, *_ in ROWS]


def test_a_delay_may_be_an_interval(spark: SparkSession) -> None:
    raw = spark.createDataFrame(
        [(T0_MS, dt.timedelta(days=1, milliseconds=5))], "publish_ms bigint, wait interval day to second"
    )
    assert normalised(raw, ColumnMapping(delay="wait")) == [(T0_MS, T0_MS + 86_400_005, 0, None, "")]


def test_columns_called_like_ours_do_no_harm(spark: SparkSession) -> None:
    raw = spark.createDataFrame(
        [(T0_MS, T0_MS + 1, "why", "raw")], "publish_ms bigint, due_ms bigint, reason string, raw string"
    )
    assert normalised(raw, ColumnMapping(topic="reason", key="raw")) == [(T0_MS, T0_MS + 1, 0, "raw", "why")]


# ------------------------------------------------------------------------------------------------------ what is refused
def test_a_missing_column_names_those_that_exist_and_the_option(usual: DataFrame) -> None:
    with pytest.raises(MissingColumn, match=r"'sent_at'.*'publish_ms', 'due_ms'.*option publish") as caught:
        usual.transform(assessed(ColumnMapping(publish="sent_at")))
    assert (caught.value.column, caught.value.option) == ("sent_at", "publish")
    assert caught.value.existing == columns.HISTORY_COLUMNS


def test_due_or_delay_but_not_both_and_not_neither(usual: DataFrame) -> None:
    with pytest.raises(BadColumnMapping, match="not both"):
        ColumnMapping(due="due_ms", delay="delay_ms")
    with pytest.raises(BadColumnMapping, match="'publish_ms', 'size_bytes'"):
        usual.select("publish_ms", "size_bytes").transform(assessed(ColumnMapping()))


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
        raw.transform(assessed(ColumnMapping(**mapping)))


def test_a_unit_that_there_is_not_is_refused() -> None:
    with pytest.raises(BadColumnMapping, match="time-unit: no unit 'fortnight': one of auto, ms"):
        ColumnMapping(time_unit="fortnight")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("nowhere.parquet", None, {}, r"PATH_NOT_FOUND.*check the path"),
        ("nowhere", None, {}, r"check the path"),
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
        read_history(spark, path, **options)
    assert caught.value.source == path

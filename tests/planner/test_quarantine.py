"""No bad row gets into a plan, and none is dropped in silence."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession

from timewheel.spark_planner.errors import EmptyHistory, NoValidRows, WrongTimeUnit
from timewheel.spark_planner.history import columns
from timewheel.spark_planner.history.read import (
    MAX_SIZE_BYTES,
    MAX_TOPIC_BYTES,
    REASONS,
    REMARKS,
    ColumnMapping,
    assessed,
    sound_rows,
)
from timewheel.spark_planner.summary.statistic import statistic_of

T0_MS = 1_767_571_200_000
TEN_YEARS_MS = 10 * 365 * 86_400_000
NAN, INF = float("nan"), float("inf")

WITH_DUE: list[tuple[str | None, tuple[Any, ...]]] = [
    (None, (str(T0_MS), str(T0_MS), "10", "t")),
    (None, (str(T0_MS), str(T0_MS + TEN_YEARS_MS), None, "")),  # no size is a size that is not known
    (None, ("2026-01-05T00:00:00Z", "2026-01-05 01:00:00", "0", "t")),
    ("publish_missing", (None, str(T0_MS), "10", "t")),
    ("publish_missing", (None, None, "-1", None)),  # the first reason is the row's
    ("publish_not_a_time", ("soon", str(T0_MS), "10", "t")),
    ("publish_not_a_time", ("12d", str(T0_MS), "10", "t")),  # Java reads that as a number
    ("publish_absurd", ("1767571200", str(T0_MS), "10", "t")),
    ("publish_absurd", ("-1", str(T0_MS), "10", "t")),
    ("publish_absurd", ("99999999999999999999", str(T0_MS), "10", "t")),  # past 64 bits
    ("due_missing", (str(T0_MS), None, "10", "t")),
    ("due_not_a_time", (str(T0_MS), "", "10", "t")),
    ("due_before_publish", (str(T0_MS), str(T0_MS - 1), "10", "t")),
    ("delay_absurd", (str(T0_MS), str(T0_MS + TEN_YEARS_MS + 1), "10", "t")),
    ("delay_absurd", (str(T0_MS), "99999999999999999999", "10", "t")),
    ("topic_missing", (str(T0_MS), str(T0_MS), "10", None)),
    (None, (str(T0_MS), str(T0_MS), "10", "t" * MAX_TOPIC_BYTES)),
    ("topic_absurd", (str(T0_MS), str(T0_MS), "10", "t" * (MAX_TOPIC_BYTES + 1))),
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
    frame = spark.createDataFrame([row for _, row in cases], schema).transform(assessed(ColumnMapping()))
    found = frame.collect()
    assert [row[columns.REASON] for row in found] == [reason for reason, _ in cases]
    assert [row[columns.RAW] is None for row in found] == [reason is None for reason, _ in cases]
    sound = len(cases) - sum(counts(cases).values())
    assert frame.transform(sound_rows).count() == sound

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
    (None, (T0_MS, T0_MS + 90_000, "0")),
    (None, (T0_MS, T0_MS + 90_000, "row 0")),
    ("later_copy", (T0_MS + 1, T0_MS + 90_000, "0")),
]


@pytest.mark.parametrize("partitions", [1, 4])
def test_of_the_copies_of_a_timer_the_first_that_was_sent_counts(spark: SparkSession, partitions: int) -> None:
    rows = [(number, *row) for number, (_, row) in enumerate(WITH_COPIES)]
    raw = spark.createDataFrame(rows, "size_bytes int, publish_ms bigint, due_ms bigint, timer_id string")
    frame = raw.repartition(partitions).transform(assessed(ColumnMapping()))
    found = {row[columns.SIZE_BYTES]: row[columns.REASON] for row in frame.collect()}
    assert [found[number] for number in range(len(rows))] == [reason for reason, _ in WITH_COPIES]
    statistic = statistic_of(frame)
    assert statistic.quarantined == counts(WITH_COPIES)
    assert '"timer_id":"a"' in statistic.samples["later_copy"][-1]


def test_an_id_is_one_of_its_topic(spark: SparkSession) -> None:
    rows = [(T0_MS, T0_MS, "7", topic) for topic in ("a", "b", "b")]
    raw = spark.createDataFrame(rows, "publish_ms bigint, due_ms bigint, timer_id string, topic string")
    statistic = statistic_of(raw.transform(assessed(ColumnMapping())))
    assert {topic: cells.timers for topic, cells in statistic.cells.items()} == {"a": 1, "b": 1}


def test_who_names_no_timers_pays_for_no_shuffle(spark: SparkSession) -> None:
    raw = spark.createDataFrame([(T0_MS, T0_MS, "a")] * 2, "publish_ms bigint, due_ms bigint, id string")
    plain = raw.transform(assessed(ColumnMapping()))
    assert statistic_of(plain).timers == 2
    assert statistic_of(raw.transform(assessed(ColumnMapping(timer_id="id")))).timers == 1


def test_every_reason_is_tried_above() -> None:
    assert {reason for reason, _ in WITH_DUE + WITH_DELAY + WITH_BOTH + WITH_COPIES} - {None} == set(REASONS)


def test_a_timer_without_a_sound_size_is_a_timer_and_its_size_is_unknown(spark: SparkSession) -> None:
    sizes = ["big", "-1", str(MAX_SIZE_BYTES + 1), str(MAX_SIZE_BYTES), None, "", "7"]
    rows = [(T0_MS, T0_MS, size) for size in sizes] + [(None, T0_MS, "big")]
    frame = spark.createDataFrame(rows, "publish_ms bigint, due_ms bigint, size_bytes string").transform(
        assessed(ColumnMapping())
    )
    found = frame.collect()
    remarks = ["size_not_a_number", "size_negative", "size_absurd", None, None, "size_not_a_number", None, None]
    assert [row[columns.REMARK] for row in found] == remarks
    assert [row[columns.SIZE_BYTES] for row in found[:-1]] == [0, 0, 0, MAX_SIZE_BYTES, 0, 0, 7]
    statistic = statistic_of(frame)
    assert (statistic.rows, statistic.timers, statistic.quarantined) == (8, 7, {"publish_missing": 1})
    assert statistic.remarked == {"size_not_a_number": 2, "size_absurd": 1, "size_negative": 1}
    assert set(statistic.remarked) == set(REMARKS)
    assert json.loads(statistic.samples["size_negative"][0])["size"] == "-1"


def test_a_delay_of_no_known_unit_is_not_held_against_the_due_time(spark: SparkSession) -> None:
    raw = spark.createDataFrame([(T0_MS, T0_MS + 60_000, 1)] * 3, "publish_ms bigint, due_ms bigint, delay bigint")
    assert statistic_of(raw.transform(assessed(ColumnMapping()))).timers == 3
    told = raw.transform(assessed(ColumnMapping(delay_unit="s")))
    assert [row[columns.REASON] for row in told.collect()] == ["due_delay_conflict"] * 3


def test_a_few_raw_rows_of_each_reason_are_kept(spark: SparkSession) -> None:
    rows = [(T0_MS, T0_MS)] + [(T0_MS, T0_MS - 1 - i) for i in range(50)]
    statistic = statistic_of(
        spark.createDataFrame(rows, "publish_ms bigint, due_ms bigint")
        .repartition(3)
        .transform(assessed(ColumnMapping()))
    )
    samples = [json.loads(text) for text in statistic.samples["due_before_publish"]]
    # The five first in the order of their text, whatever the tasks were.
    dues = sorted(str(T0_MS - 1 - i) for i in range(50))[:5]
    assert samples == [{"publish": str(T0_MS), "due": due} for due in dues]


def test_an_empty_history_is_an_error(spark: SparkSession) -> None:
    raw = spark.createDataFrame([], "publish_ms bigint, due_ms bigint")
    with pytest.raises(EmptyHistory, match="no row"):
        statistic_of(raw.transform(assessed(ColumnMapping())))


def test_a_history_of_bad_rows_is_an_error_that_shows_one(spark: SparkSession) -> None:
    raw = spark.createDataFrame([(T0_MS, T0_MS - 5), (None, T0_MS)], "publish_ms bigint, due_ms bigint")
    with pytest.raises(
        NoValidRows, match=r"none of the history's 2 rows.*1 due_before_publish, 1 publish_missing"
    ) as caught:
        statistic_of(raw.transform(assessed(ColumnMapping())))
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
    with pytest.raises(WrongTimeUnit, match=f"20 of the history's 21 rows.*option time-unit {unit}") as caught:
        statistic_of(raw.transform(assessed(ColumnMapping(time_unit=given))))
    assert (caught.value.option, caught.value.unit, caught.value.absurd_rows) == ("time-unit", unit, 20)
    right = statistic_of(raw.transform(assessed(ColumnMapping(time_unit=unit))))  # type: ignore[arg-type]
    assert (right.timers, right.quarantined) == (20, {"publish_missing": 1})


def test_delays_in_another_unit_name_the_option_to_give(spark: SparkSession) -> None:
    raw = spark.createDataFrame(
        [(T0_MS, 86_400_000_000_000 + i) for i in range(20)], "publish_ms bigint, delay_ms bigint"
    )
    with pytest.raises(WrongTimeUnit, match="option delay-unit us"):  # a day in nanoseconds; in us it is 2.7 years
        statistic_of(raw.transform(assessed(ColumnMapping())))


def test_some_absurd_rows_are_rows_and_not_the_unit(spark: SparkSession) -> None:
    rows = [(T0_MS, T0_MS)] * 3 + [(T0_MS // 1_000, T0_MS // 1_000)] * 7
    raw = spark.createDataFrame(rows, "publish_ms bigint, due_ms bigint")
    assert statistic_of(raw.transform(assessed(ColumnMapping()))).quarantined == {"publish_absurd": 7}

"""The shipped histories are what their scripts make, and worth a plan."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from examples.history import make_reminders
from examples.history.make_renewals import PATH, ROWS, renewals
from tests.support.cursor import exact_gaps
from timewheel.core.durations import DAY_MS
from timewheel.spark_planner.history.read import ColumnMapping, assessed, read_history
from timewheel.spark_planner.summary.statistic import statistic_of

PERSISTED_RANGES = 10_000  # what a cursor keeps by default (managedLedgerMaxUnackedRangesToPersist)


def test_the_file_is_small_and_what_its_script_makes(spark: SparkSession) -> None:
    assert PATH.stat().st_size <= 200_000
    shipped = pq.read_table(PATH)
    assert shipped.num_rows == ROWS
    made = renewals(spark)
    assert shipped.cast(made.schema).equals(made)


@pytest.mark.short
def test_it_is_read_without_options_and_has_no_bad_row(spark: SparkSession) -> None:
    statistic = statistic_of(read_history(spark, str(PATH)).transform(assessed(ColumnMapping())))
    assert (statistic.timers, statistic.quarantined) == (ROWS, {})


def test_one_topic_could_not_hold_it() -> None:
    due_ms = pq.read_table(PATH)["due_ms"].to_pylist()  # in order of publishing
    assert max(exact_gaps(due_ms, sorted(set(due_ms)))) > 1.1 * PERSISTED_RANGES


def test_the_reminders_are_small_and_what_their_script_makes() -> None:
    assert make_reminders.PATH.stat().st_size <= 500_000
    assert pq.read_table(make_reminders.PATH).equals(make_reminders.reminders())


def test_the_reminders_go_on_for_longer_than_their_delays_and_need_more_than_native_ones() -> None:
    table = pq.read_table(make_reminders.PATH)
    sent_ms, due_ms = (table[name].to_numpy() for name in ("publish_ms", "due_ms"))
    assert 20 * DAY_MS < sent_ms[-1] - sent_ms[0] < 21 * DAY_MS
    assert (due_ms - sent_ms).max() < sent_ms[-1] - sent_ms[0]
    assert max(exact_gaps(due_ms.tolist(), sorted(set(due_ms.tolist())))) > 1.05 * PERSISTED_RANGES

"""The shipped history is what its script makes, and worth a plan."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from examples.history.make_renewals import PATH, ROWS, renewals
from timewheel.core.gap_law import exact_gaps, peak
from timewheel.spark_planner.history.mapping import ColumnMapping
from timewheel.spark_planner.history.quarantine import assessed
from timewheel.spark_planner.history.read import read_history
from timewheel.spark_planner.summary.histogram import statistic_of

PERSISTED_RANGES = 10_000
"""What a cursor keeps by default (managedLedgerMaxUnackedRangesToPersist)."""


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
    assert peak(exact_gaps(due_ms, sorted(set(due_ms)))) > 1.1 * PERSISTED_RANGES

"""The shipped histories are what their scripts make, and worth a plan."""

from __future__ import annotations

from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from examples.history import make_reminders
from examples.history.make_renewals import PATH, ROWS, renewals
from tests.support.checkout import ROOT
from tests.support.exact_play import native_peak
from tests.support.statistics import statistic_of
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS
from timewheel.core.plan import Calendar, Native, Plan, Scheme, Tiered
from timewheel.spark_planner.history.read import ColumnMapping, assessed, read_history
from timewheel.spark_planner.job import plan_for, survey

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


def test_the_reminders_are_small_and_what_their_script_makes() -> None:
    assert make_reminders.PATH.stat().st_size <= 500_000
    assert pq.read_table(make_reminders.PATH).equals(make_reminders.reminders())


def test_the_page_tells_what_the_reminders_need(spark: SparkSession) -> None:
    table = pq.read_table(make_reminders.PATH)
    sent_ms, delay_ms = (table[name].to_numpy() for name in ("publish_ms", "delay_ms"))
    assert delay_ms.max() < sent_ms[-1] - sent_ms[0]
    history = survey(read_history(spark, str(make_reminders.PATH)))
    base = Plan(due_topic="persistent://public/default/reminders", subscriptions=("timers",), max_delay_ms=90 * DAY_MS)
    tiered = Tiered(window_ms=20 * DAY_MS, tiers_ms=(20 * DAY_MS,))
    schemes: tuple[Scheme, ...] = (Native(), Calendar(interval_ms=20 * DAY_MS), tiered)
    candidates = [replace(base, scheme=scheme) for scheme in schemes]
    planned = plan_for(history, "", base, BrokerProfile.named("4.0"), candidates=candidates)
    history.cached.forget()
    assert planned.keeps_limits
    assert (planned.plan.scheme, planned.plan.partitions) == (tiered, 1), "tiers are what a reader comes to see"
    native, gaps = (one.replay.peak_per_partition.gap_count for one in (planned.native, planned.recommended))
    # Ends of ledgers split ranges.
    assert native_peak(sent_ms + delay_ms) <= native <= 1.01 * native_peak(sent_ms + delay_ms)
    page = (ROOT / "docs" / "how-to" / "choose-a-plan.md").read_text(encoding="utf-8")
    said = (
        f"native delays leave {native:,} gaps, where the broker keeps {PERSISTED_RANGES:,}. With the chosen plan timers"
    )
    assert f"{said} wait in a topic of 20 days, and {gaps:,} gaps are left." in page

"""Rows that repeat others are counted, wherever Spark found them, and told."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS
from timewheel.core.plan import Native, Plan
from timewheel.spark_planner.exact.sends import Sends, repeated
from timewheel.spark_planner.history.read import read_history
from timewheel.spark_planner.job import Planned, plan_for, survey
from timewheel.spark_planner.results.facts import describe_copies, planned_facts
from timewheel.spark_planner.results.report_page import report_page

PLAN = Plan(due_topic="persistent://acme/crm/a", subscriptions=("b",), scheme=Native(), max_delay_ms=9 * DAY_MS)
START_MS = 1_767_571_200_000
rows = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(-1, 2)), max_size=40)


@given(rows, st.booleans())
def test_each_but_the_first_of_its_like_is_counted(sent: list[tuple[int, int, int]], keyed: bool) -> None:
    sent = sorted(sent, key=lambda row: row[0])
    publish_ms, due_ms, key = (np.array([row[part] for row in sent], np.int64) for part in range(3))
    sends = Sends(publish_ms=publish_ms, due_ms=due_ms, key_hash=key if keyed else None)
    alike = Counter(row if keyed else row[:2] for row in sent)
    assert repeated(sends) == sum(count - 1 for count in alike.values())


def timers(number: int, *, ids: bool = False) -> pa.Table:
    rng = np.random.default_rng(2)
    sent_ms = np.sort(rng.choice(3 * DAY_MS, number, replace=False)) + START_MS
    columns = {"publish_ms": sent_ms, "due_ms": sent_ms + rng.integers(0, DAY_MS, number)}
    return pa.table({**columns, **({"timer_id": [str(one) for one in range(number)]} if ids else {})})


def planned_for(spark: SparkSession, folder: Path, *tables: pa.Table) -> Planned:
    for number, table in enumerate(tables):
        pq.write_table(table, folder / f"{number}.parquet")
    history = survey(read_history(spark, str(folder)))
    found = plan_for(history, "", PLAN, BrokerProfile.named("4.0"), candidates=[PLAN], as_is=True)
    history.cached.forget()
    return found


def test_a_file_that_came_twice_is_told(spark: SparkSession, tmp_path: Path) -> None:
    once = timers(3_000)
    found = planned_for(spark, tmp_path, once, once)
    assert found.history.statistic.timers == 6_000
    assert found.repeated == 3_000
    said = describe_copies(found)
    assert said.startswith("3,000 of 6,000 rows (50%) repeat another one")
    assert "--timer-id" in said
    assert planned_facts(found)["copies"] == {"repeated_rows": 3_000}
    assert said.split(" If ", maxsplit=1)[0] in report_page(found)


@pytest.mark.parametrize(("again", "told"), [(0, False), (20, False), (40, True)])
def test_few_are_not_worth_a_sentence(spark: SparkSession, tmp_path: Path, again: int, told: bool) -> None:
    once = timers(3_000)
    both = pa.concat_tables([once, once.slice(100, again)]).sort_by("publish_ms")
    found = planned_for(spark, tmp_path, both)
    assert found.repeated == again
    assert bool(describe_copies(found)) == told


def test_where_timers_have_ids_none_is_a_copy(spark: SparkSession, tmp_path: Path) -> None:
    once = timers(500, ids=True)
    others = once.set_column(2, "timer_id", pa.array([f"other-{one}" for one in range(500)]))
    found = planned_for(spark, tmp_path, once, others, once)
    assert found.history.statistic.timers == 1_000
    assert found.history.statistic.quarantined == {"later_copy": 500}
    assert found.repeated == 0
    assert describe_copies(found) == ""

"""Routing as Spark columns equals the router's, step by step."""

from __future__ import annotations

from collections import Counter
from functools import reduce

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that every user of PySpark knows

from tests.core.plan_space import NOW_MS, journey, plans, sends
from timewheel.core.keys import java_string_hash, partition_for_key
from timewheel.core.plan import Calendar, Plan
from timewheel.core.steps import steps
from timewheel.spark_planner.exact import routed
from timewheel.spark_planner.history.columns import DUE_MS, HISTORY_SCHEMA, KEY, PUBLISH_MS

SENDS_PER_PLAN = 50
"""Spark compiles code for each plan, so plans are dear and sends are cheap."""
PLANS_PER_JOB = 20
KINDS = ("native", "tiered", "calendar", "wheel")

Row = tuple[int, int, int, str | None, str]

keys = st.none() | st.sampled_from(["", "a", "order-17", "Grüße", "😀", "ключ", "𐐷ab"]) | st.text(max_size=20)
printable_keys = keys.filter(lambda key: key is None or not any("\ud800" <= letter <= "\udfff" for letter in key))


@st.composite
def journeys(draw: st.DrawFn, *kinds: str) -> tuple[Plan, list[Row]]:
    plan = draw(plans(*kinds))
    found: list[Row] = []
    for _ in range(SENDS_PER_PLAN):
        due_ms, publish_ms = draw(sends(plan))
        found.append((publish_ms, due_ms, 0, draw(printable_keys), ""))
    return plan, found


def expected(plan: Plan, row: Row) -> tuple[object, ...]:
    publish_ms, due_ms, _, key, _ = row
    way = journey(plan, due_ms, publish_ms)
    table = steps(plan)[:-1]
    taken = Counter(
        next(
            number
            for number, step in enumerate(table)
            if (hold.stay_ms and step.stay_ms == hold.stay_ms)
            or (
                step.slot_ms and due_ms // step.slot_ms * step.slot_ms - step.headstart_ms == hold.release_at_ms > at_ms
            )
        )
        for at_ms, hold in way.holds
    )
    interval = 0
    if isinstance(plan.scheme, Calendar):
        interval = max(due_ms, publish_ms) // plan.scheme.interval_ms
    return (
        way.arrived_ms,
        max(due_ms, way.arrived_ms),
        len(way.holds),
        [taken[number] for number in range(len(table))],
        interval,
        partition_for_key(key, plan.partitions) if key else None,
    )


@pytest.mark.parametrize("plans_per_kind", [6, pytest.param(60, marks=pytest.mark.proof)])
def test_routes_of_spark_are_the_routers(spark: SparkSession, plans_per_kind: int) -> None:
    cases: list[tuple[Plan, list[Row]]] = []

    def gather(case: tuple[Plan, list[Row]]) -> None:
        cases.append(case)

    for kind in KINDS:
        some_of_it = given(journeys(kind))(gather)
        settings(
            max_examples=plans_per_kind,
            phases=[Phase.generate],
            suppress_health_check=[HealthCheck.too_slow],
            database=None,
        )(some_of_it)()
    assert len(cases) >= len(KINDS) * plans_per_kind // 2
    assert {type(plan.scheme).__name__ for plan, _ in cases} == {"Native", "Tiered", "Calendar", "Wheel"}

    for start in range(0, len(cases), PLANS_PER_JOB):
        some = cases[start : start + PLANS_PER_JOB]
        frames: list[DataFrame] = []
        for number, (plan, rows) in enumerate(some):
            frame = spark.createDataFrame(
                [(number * SENDS_PER_PLAN + index, *row) for index, row in enumerate(rows)],
                f"number bigint, {PUBLISH_MS} bigint, {DUE_MS} bigint, size_bytes bigint, {KEY} string, topic string",
            )
            frames.append(frame.transform(routed.with_route(plan)))
        found = sorted(reduce(DataFrame.unionByName, frames).collect(), key=lambda row: row["number"])
        wanted = [(plan, row) for plan, rows in some for row in rows]
        assert len(found) == len(wanted)
        for row, (plan, sent) in zip(found, wanted, strict=True):
            assert (
                row[routed.ARRIVAL_MS],
                row[routed.ACKNOWLEDGED_MS],
                row[routed.HOPS],
                row[routed.STEP_HOPS],
                row[routed.INTERVAL],
                row[routed.KEY_PARTITION],
            ) == expected(plan, sent), (plan, sent)


def test_keys_have_javas_hash(spark: SparkSession) -> None:
    texts = ["", "a", "ab", "polygenelubricants", "Grüße", "😀", "\U00010437", "x" * 500, "\x00", "\uffff", "日本語"]
    # "polygenelubricants".hashCode() is Integer.MIN_VALUE in Java: only the sign bit, which is cleared.
    assert java_string_hash("polygenelubricants") == 0
    frame = spark.createDataFrame([(text,) for text in texts], "text string")
    found = [row[0] for row in frame.select(routed.java_string_hash(F.col("text"))).collect()]
    assert found == [java_string_hash(text) for text in texts]


def test_a_history_keeps_its_columns_and_their_types(spark: SparkSession) -> None:
    history = spark.createDataFrame([(NOW_MS, NOW_MS + 5, 1, "k", "t")], HISTORY_SCHEMA)
    found = history.transform(routed.with_route(Plan(due_topic="persistent://a/b/c", subscriptions=("s",))))
    assert [(field.name, field.dataType.simpleString()) for field in found.schema.fields] == [
        *((field.name, field.dataType.simpleString()) for field in HISTORY_SCHEMA.fields),
        (routed.ARRIVAL_MS, "bigint"),
        (routed.ACKNOWLEDGED_MS, "bigint"),
        (routed.HOPS, "bigint"),
        (routed.STEP_HOPS, "array<bigint>"),
        (routed.INTERVAL, "bigint"),
        (routed.KEY_PARTITION, "int"),
    ]

"""One pass: each row is read once, the cells are those of all rows whatever the cut, and they stay within the limit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's world calls it

from examples.history.generate import WORKLOADS, generate
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.plan import Calendar, Native, Plan, Tiered
from timewheel.spark_planner.errors import HistoryUnreadable, StatisticUnreadable, TooManyTopics
from timewheel.spark_planner.history import columns
from timewheel.spark_planner.history.read import ColumnMapping, assessed, read_history
from timewheel.spark_planner.job import plan_for, survey
from timewheel.spark_planner.summary.cells import CELL_LIMIT, Cells, bounded_together
from timewheel.spark_planner.summary.statistic import (
    BUFFER_ROWS,
    COARSEST_CELLS,
    TOPIC_LIMIT,
    Gathered,
    Statistic,
    cells_table,
    gather_parts,
    gather_rows,
    statistic_of,
)

ROWS = 40_000
LEAST_CELL_LIMIT = COARSEST_CELLS * TOPIC_LIMIT
USUAL = assessed(ColumnMapping())


@pytest.fixture(scope="module")
def history(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("history") / "mixture.parquet")
    workload = replace(WORKLOADS["mixture"], topics=("a", "b"), keys=3)
    generate(spark, workload, rows=ROWS, partitions=3).write.parquet(path)
    return path


def same(one: Statistic, other: Statistic) -> bool:
    return cells_table(one.cells).equals(cells_table(other.cells)) and (one.quarantined, one.samples) == (
        other.quarantined,
        other.samples,
    )


def of_numpy(frame: DataFrame, limit: int) -> dict[str, Cells]:
    table = frame.toArrow()
    topics = np.array(table[columns.TOPIC].to_pylist())
    names = (columns.PUBLISH_MS, columns.DUE_MS, columns.SIZE_BYTES)
    arrays = [table[name].to_numpy() for name in names]
    return bounded_together(
        {topic: Cells.of_timers(*(array[topics == topic] for array in arrays)) for topic in sorted(set(topics))}, limit
    )


# ----------------------------------------------------------------------------------- what Spark itself says that it did
def executions(spark: SparkSession) -> Any:
    """Spark's own record of what it ran (what its web page shows)."""
    java: Any = spark
    java.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    return java._jsparkSession.sharedState().statusStore()


def rows_out_of(kind: str, store: Any, first: int) -> list[tuple[str, int]]:
    """(node, rows) of every node of a kind since execution number ``first``."""
    found = []
    runs = store.executionsList(first, 1_000).iterator()
    while runs.hasNext():
        run = runs.next().executionId()
        metrics, nodes = store.executionMetrics(run), store.planGraph(run).allNodes().iterator()
        while nodes.hasNext():
            node = nodes.next()
            each = node.metrics().iterator()
            while each.hasNext():
                metric = each.next()
                if node.name().startswith(kind) and metric.name() == "number of output rows":
                    found.append((node.name().strip(), int(metrics.get(metric.accumulatorId()).get().replace(",", ""))))
    return found


@pytest.mark.parametrize("file_format", ["parquet", "csv", "json"])
def test_each_row_is_read_exactly_once(spark: SparkSession, history: str, tmp_path: Path, file_format: str) -> None:
    path = history
    if file_format != "parquet":
        path = str(tmp_path / f"history.{file_format}")
        writer = spark.read.parquet(history).write
        writer.format(file_format).option("header", "true").save(path)
    # Reading names and the JSON head are runs of their own, which look at the front of one file.
    frame = read_history(spark, path).transform(USUAL)
    before = executions(spark).executionsCount()
    statistic = statistic_of(frame)
    store = executions(spark)
    assert store.executionsCount() == before + 1
    assert rows_out_of("Scan", store, before) == [(f"Scan {file_format}", ROWS)]
    assert statistic.rows == statistic.timers == ROWS


def test_a_whole_plan_reads_the_source_twice(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "history.parquet")
    generate(spark, WORKLOADS["mixture"], rows=ROWS, partitions=3).write.parquet(path)
    before = executions(spark).executionsCount()
    found = survey(read_history(spark, path))
    base = Plan(due_topic="persistent://acme/crm/reminders", subscriptions=("billing",))
    schemes = (Native(), Calendar(interval_ms=DAY_MS), Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS, DAY_MS)))
    profile = BrokerProfile.from_mapping({"base": "4.0", "name": "small", "gap_limit_ranges": 400})
    planned = plan_for(
        found, "", base, profile, candidates=[replace(base, scheme=scheme) for scheme in schemes], as_is=True
    )
    assert len(planned.choice.counted) >= len(schemes)
    # Once for the statistic and once to keep the sends in order, however many plans are counted how often.
    assert rows_out_of("Scan", executions(spark), before).count(("Scan parquet", ROWS)) == 2
    found.cached.forget()


def test_the_column_of_keys_is_not_read(spark: SparkSession, history: str) -> None:
    frame = read_history(spark, history).transform(USUAL)
    before = executions(spark).executionsCount()
    statistic_of(frame)
    plan = executions(spark).executionsList(before, 1).head().physicalPlanDescription()
    schema = next(line for line in plan.splitlines() if line.startswith("ReadSchema"))
    assert "publish_ms" in schema
    assert "key" not in schema


# ------------------------------------------------------------------------------------------------------------ the cells
@pytest.mark.parametrize("limit", [CELL_LIMIT, 20_000])
def test_the_cells_are_those_of_all_rows_at_once(spark: SparkSession, history: str, limit: int) -> None:
    frame = read_history(spark, history)
    statistic = statistic_of(frame.transform(USUAL), cell_limit=limit)
    expected = of_numpy(frame, limit)
    assert list(statistic.cells) == ["a", "b"]
    assert cells_table(statistic.cells).equals(cells_table(expected))
    assert len(statistic) <= limit
    assert len({cells.level for cells in statistic.cells.values()}) == 1


def test_the_result_does_not_depend_on_how_rows_are_cut_and_ordered(spark: SparkSession, history: str) -> None:
    raw = read_history(spark, history)
    # Some rows are bad, so that counts and samples are compared too.
    raw = raw.withColumn("due_ms", F.when(F.col("size_bytes") % 100 == 0, F.lit(None)).otherwise(F.col("due_ms")))
    once = statistic_of(raw.coalesce(1).transform(USUAL), cell_limit=20_000)
    assert once.quarantined["due_missing"] > 200
    assert once.rows == ROWS
    for cut in (raw.repartition(7, "key", "size_bytes"), raw.orderBy(F.desc("due_ms"))):
        assert same(statistic_of(cut.transform(USUAL), cell_limit=20_000), once)


def test_no_more_than_the_limit_leaves_any_task(spark: SparkSession, history: str) -> None:
    frame = read_history(spark, history).repartition(6).transform(USUAL)
    before = executions(spark).executionsCount()
    statistic = statistic_of(frame, cell_limit=LEAST_CELL_LIMIT)
    # From the last task back to the first ones: one limit to the driver, one per gathering task, one per first task.
    last, gathering, first = sorted(rows for _, rows in rows_out_of("MapInArrow", executions(spark), before))
    assert last == len(statistic) <= LEAST_CELL_LIMIT
    assert gathering <= 2 * LEAST_CELL_LIMIT
    assert first <= 6 * LEAST_CELL_LIMIT


def test_a_task_holds_no_more_for_more_rows() -> None:
    rng, start_ms = np.random.default_rng(3), 1_767_571_200_000
    held = 0

    def batches() -> Iterator[Any]:
        nonlocal held
        for _ in range(24):
            size = BUFFER_ROWS // 4
            publish_ms = start_ms + rng.integers(0, 10 * 86_400_000, size)
            delay_ms = rng.exponential(600_000, size).astype(np.int64)
            values = [
                publish_ms,
                publish_ms + delay_ms,
                np.full(size, 7),
                np.full(size, ""),
                *[pa.nulls(size, pa.string())] * 3,
            ]
            names = ["publish_ms", "due_ms", "size_bytes", "topic", "reason", "remark", "raw"]
            yield pa.RecordBatch.from_arrays([pa.array(value) for value in values], names)
            held = max(held, sum(map(len, gathered.cells.values())))

    gathered = Gathered(cell_limit=20_000, topic_limit=1)
    gather_rows(batches(), gathered)
    assert held <= 20_000
    assert sum(cells.timers for cells in gathered.cells.values()) == 24 * (BUFFER_ROWS // 4)
    # And what it hands on is read back as it was.
    again = gather_parts(gathered.parts(0), Gathered(cell_limit=20_000, topic_limit=1))
    assert cells_table(again.cells).equals(cells_table(gathered.cells))


# --------------------------------------------------------------------------------------------------------------- errors
def test_more_topics_than_the_limit_are_refused_with_some_of_them(spark: SparkSession) -> None:
    raw = spark.range(2_000).selectExpr(
        "1767571200000 as publish_ms", "1767571200000 as due_ms", "format_string('t%04d', id) as topic"
    )
    with pytest.raises(TooManyTopics, match=r"more than 64 topics.*'t0000'") as caught:
        statistic_of(raw.transform(USUAL))
    assert caught.value.limit == TOPIC_LIMIT
    few = raw.where(F.col("topic") < "t0064").repartition(5)
    assert len(statistic_of(few.transform(USUAL)).cells) == 64
    # No task sees three topics here, but all together do.
    spread = raw.limit(3).repartition(3)
    with pytest.raises(TooManyTopics):
        statistic_of(spread.transform(USUAL), topic_limit=2)


def test_limits_that_cannot_hold_are_refused(spark: SparkSession, history: str) -> None:
    frame = read_history(spark, history).transform(USUAL)
    with pytest.raises(ValueError, match="cell_limit"):
        statistic_of(frame, cell_limit=LEAST_CELL_LIMIT - 1)
    with pytest.raises(ValueError, match="topic_limit"):
        statistic_of(frame, topic_limit=0)
    with pytest.raises(ValueError, match="2000 topics may need 600000"):
        statistic_of(frame, topic_limit=2_000)


def test_a_file_that_turns_out_to_be_damaged_is_named(spark: SparkSession, history: str, tmp_path: Path) -> None:
    path = tmp_path / "damaged.parquet"
    spark.read.parquet(history).coalesce(1).write.parquet(str(path))
    (part,) = path.glob("part-*")
    (path / f".{part.name}.crc").unlink()
    content = bytearray(part.read_bytes())
    content[1_000:50_000] = bytes(49_000)  # the footer is whole: it is found out by reading only
    part.write_bytes(content)
    frame = read_history(spark, str(path)).transform(USUAL)
    with pytest.raises(HistoryUnreadable, match=r"damaged\.parquet.*check that it is whole"):
        statistic_of(frame, source=str(path))


# ------------------------------------------------------------------------------------------------------- kept for later
def test_a_statistic_is_saved_and_loaded_whole(spark: SparkSession, history: str, tmp_path: Path) -> None:
    raw = read_history(spark, history).withColumn(
        "due_ms", F.when(F.col("size_bytes") == 500, F.lit(None)).otherwise(F.col("due_ms"))
    )
    statistic = statistic_of(raw.transform(USUAL), cell_limit=20_000)
    path = tmp_path / "statistic.parquet"
    statistic.save(path)
    loaded = Statistic.load(path)
    assert same(loaded, statistic)
    assert (loaded.rows, loaded.timers, loaded.slot_ms) == (statistic.rows, statistic.timers, statistic.slot_ms)
    assert loaded.first_publish_ms == statistic.first_publish_ms < loaded.last_publish_ms == statistic.last_publish_ms
    assert path.stat().st_size < 2_000_000


def test_a_file_that_is_no_statistic_is_refused(history: str, tmp_path: Path) -> None:
    for path in (Path(history), tmp_path / "nowhere"):
        with pytest.raises(StatisticUnreadable, match="make it afresh"):
            Statistic.load(path)

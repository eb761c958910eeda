"""One pass: each row is read once, the cells are those of all rows whatever the cut, and they stay within the limit."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's world calls it

from examples.history.generate import START_MS, WORKLOADS, generate
from tests.support.statistics import statistic_of
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.plan import Calendar, Native, Plan, Tiered
from timewheel.spark_planner.errors import HistoryUnreadable, StatisticUnreadable, TooManyTopics
from timewheel.spark_planner.exact.sends import read
from timewheel.spark_planner.history import columns
from timewheel.spark_planner.history.read import ColumnMapping, assessed, read_history
from timewheel.spark_planner.job import plan_for, survey
from timewheel.spark_planner.summary.cells import (
    BUCKET_BITS,
    CELL_LIMIT,
    COARSEST_CELLS,
    LEVELS,
    Cells,
    bounded_together,
    bucket_of,
)
from timewheel.spark_planner.summary.statistic import (
    TOPIC_LIMIT,
    Gathered,
    Statistic,
    cells_table,
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
        {topic: [Cells.of_timers(*(array[topics == topic] for array in arrays))] for topic in sorted(set(topics))},
        limit,
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
                rows = metrics.get(metric.accumulatorId())
                # A plan shows the nodes of its cache, also those that it did not run.
                if node.name().startswith(kind) and metric.name() == "number of output rows" and rows.isDefined():
                    found.append((node.name().strip(), int(rows.get().replace(",", ""))))
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
    scans = [scan for scan in rows_out_of("Scan", store, before) if scan[1]]  # a plan shows the scan of its cache too
    assert scans == [(f"Scan {file_format}", ROWS)]
    assert statistic.rows == statistic.timers == ROWS


def test_a_whole_plan_reads_the_source_once(spark: SparkSession, tmp_path: Path) -> None:
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
    # For the statistic and for the sends, however many plans are counted how often.
    assert rows_out_of("Scan", executions(spark), before).count(("Scan parquet", ROWS)) == 1
    found.cached.forget()


def test_files_that_changed_are_read_again(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "history.csv"
    for delays_ms in ((9, 8, 7), (1, 2, 3)):
        rows = [f"{START_MS + number},{START_MS + number + delay}" for number, delay in enumerate(delays_ms)]
        path.write_text("\n".join(["publish_ms,due_ms", *rows]))
        found = survey(read_history(spark, str(path)))
        assert int(found.cells("").delay_max_ms.max()) == max(delays_ms)
        assert [piece.last_due_ms - START_MS for piece in found.cached.pieces] == [
            max(number + delay for number, delay in enumerate(delays_ms))
        ]


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
    statistic, stored = read(frame, cell_limit=LEAST_CELL_LIMIT)
    parts = [Gathered.unpacked(part) for part in stored.toArrow()["part"].drop_null().to_pylist()]
    stored.unpersist()
    assert len(parts) == 6
    assert sum(cells.timers for part in parts for cells in part.cells.values()) == ROWS
    assert max(sum(map(len, part.cells.values())) for part in parts) <= LEAST_CELL_LIMIT
    assert len(statistic) <= LEAST_CELL_LIMIT


def test_a_task_holds_no_more_for_more_rows() -> None:
    rng, start_ms = np.random.default_rng(3), 1_767_571_200_000
    gathered, size = Gathered(cell_limit=20_000, topic_limit=1), 60_000
    for _ in range(24):
        publish_ms = start_ms + rng.integers(0, 10 * 86_400_000, size)
        due_ms = publish_ms + rng.exponential(600_000, size).astype(np.int64)
        gathered.add_cells({"": Cells.of_timers(publish_ms, due_ms, level=gathered.level)})
        assert sum(map(len, gathered.cells.values())) <= 20_000
    # And what it hands on is read back as it was.
    again = Gathered(cell_limit=20_000, topic_limit=1)
    again.add(Gathered.unpacked(gathered.packed()))
    assert again.cells[""].timers == 24 * size
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
    with pytest.raises(ValueError, match="10000 topics may need 540000"):
        statistic_of(frame, topic_limit=10_000)


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


# ----------------------------------- Cells: merging does not depend on order or cut, and nothing is lost by coarsening.
TIMERS = st.lists(
    st.tuples(
        st.integers(1_700_000_000_000, 1_700_000_000_000 + 10 * 86_400_000),  # publish
        st.one_of(st.integers(0, 100), st.integers(0, 10 * 365 * 86_400_000), st.just(3_600_000)),  # delay
        st.integers(0, 5_000_000),  # size
    ),
    max_size=60,
)
FACTS = ("count", *(f"{what}_{end}_ms" for what in ("publish", "delay", "due") for end in ("min", "max")), "size_bytes")
ARRAYS = ("slot", "bucket", *FACTS)


def cells_of(timers: list[tuple[int, int, int]], level: int = 0) -> Cells:
    publish, delay, size = np.array(timers, np.int64).reshape(-1, 3).T
    return Cells.of_timers(publish, publish + delay, size, level=level)


def rows(cells: Cells) -> list[tuple[int, ...]]:
    return [tuple(map(int, row)) for row in zip(*(getattr(cells, name) for name in ARRAYS), strict=True)]


def brute_force(timers: list[tuple[int, int, int]], level: int) -> list[tuple[int, ...]]:
    groups: defaultdict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
    bits = LEVELS[level].bits
    for publish, delay, size in timers:
        shift = max(max(delay, 1).bit_length() - 1 - bits, 0)
        groups[publish // LEVELS[level].slot_ms, (shift << bits) + (delay >> shift)].append((publish, delay, size))
    found: list[tuple[int, ...]] = []
    for (slot, bucket), members in sorted(groups.items()):
        publishes, delays = [publish for publish, _, _ in members], [delay for _, delay, _ in members]
        dues = [publish + delay for publish, delay, _ in members]
        extremes = (min(publishes), max(publishes), min(delays), max(delays), min(dues), max(dues))
        found.append((slot, bucket, len(members), *extremes, sum(size for _, _, size in members)))
    return found


@given(TIMERS, st.integers(0, len(LEVELS) - 1))
def test_cells_are_the_groups_that_a_dictionary_finds(timers: list[tuple[int, int, int]], level: int) -> None:
    assert rows(cells_of(timers, level)) == brute_force(timers, level)
    assert rows(cells_of(timers).coarsened(level)) == brute_force(timers, level)


@given(TIMERS, TIMERS, TIMERS, st.tuples(*[st.integers(0, len(LEVELS) - 1)] * 3))
def test_merging_is_associative_and_commutative_at_any_levels(
    first: list[tuple[int, int, int]],
    second: list[tuple[int, int, int]],
    third: list[tuple[int, int, int]],
    levels: tuple[int, int, int],
) -> None:
    a, b, c = (cells_of(timers, level) for timers, level in zip((first, second, third), levels, strict=True))
    together = rows(Cells.merged([a, b, c]))
    assert together == brute_force(first + second + third, max(levels))
    assert rows(Cells.merged([c, Cells.merged([b, a])])) == together
    assert rows(Cells.merged([Cells.merged([a, c]), b])) == together


@given(TIMERS, st.data())
def test_any_cut_of_a_history_gives_the_same_bounded_cells(
    timers: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    limit = data.draw(st.integers(1, 70))
    tasks = data.draw(st.lists(st.integers(0, 4), min_size=len(timers), max_size=len(timers)))
    parts = [
        cells_of([timer for timer, of in zip(timers, tasks, strict=True) if of == task]).bounded(limit)
        for task in range(5)
    ]
    whole = cells_of(timers).bounded(limit)
    merged = Cells.merged(data.draw(st.permutations(parts))).bounded(limit)
    assert (merged.level, rows(merged)) == (whole.level, rows(whole))


@given(TIMERS, st.integers(1, 70))
def test_bounding_keeps_counts_and_extremes_and_stops_at_the_first_level_that_fits(
    timers: list[tuple[int, int, int]], limit: int
) -> None:
    fine = cells_of(timers)
    cells = fine.bounded(limit)
    assert len(cells) <= limit or cells.level == len(LEVELS) - 1
    assert cells.level == 0 or len(cells_of(timers, cells.level - 1)) > limit
    assert cells.timers == len(timers)
    assert int(cells.size_bytes.sum()) == sum(size for _, _, size in timers)
    if timers:
        for name in ("publish", "delay", "due"):
            assert getattr(cells, f"{name}_min_ms").min() == getattr(fine, f"{name}_min_ms").min()
            assert getattr(cells, f"{name}_max_ms").max() == getattr(fine, f"{name}_max_ms").max()


@given(st.lists(TIMERS, min_size=1, max_size=4), st.data())
def test_topics_are_bounded_together_whatever_the_cut(
    topics: list[list[tuple[int, int, int]]], data: st.DataObject
) -> None:
    limit = data.draw(st.integers(1, 100))
    whole = bounded_together({str(topic): [cells_of(timers)] for topic, timers in enumerate(topics)}, limit)
    at = [data.draw(st.integers(0, len(timers))) for timers in topics]
    halves = [
        bounded_together({str(topic): [cells_of(timers[cut])] for topic, (timers, cut) in enumerate(cuts)}, limit)
        for cuts in (
            [(timers, slice(0, end)) for timers, end in zip(topics, at, strict=True)],
            [(timers, slice(end, None)) for timers, end in zip(topics, at, strict=True)],
        )
    ]
    merged = bounded_together({topic: [half[topic] for half in halves] for topic in whole}, limit)
    assert {topic: rows(cells) for topic, cells in merged.items()} == {t: rows(cells) for t, cells in whole.items()}
    assert len({cells.level for cells in whole.values()}) == 1


@given(st.integers(0, 2**53 - 1), st.integers(3, 5))
def test_buckets_are_ordered_narrow_and_nested(delay_ms: int, bits: int) -> None:
    def bucket(value: int, of_bits: int) -> int:
        return int(bucket_of(np.array([value], np.int64), of_bits)[0])

    assert bucket(delay_ms, bits) <= bucket(min(delay_ms + 1, 2**53 - 1), bits) < 1 << BUCKET_BITS
    # Within a bucket delays differ by less than one part in 2 ** bits; so twice that further on is another bucket.
    assert bucket(delay_ms, bits) < bucket(delay_ms + (delay_ms >> bits - 1) + 1, bits)
    lower, upper = (delay_ms >> 3) << 3, delay_ms
    if bucket(lower, 5) == bucket(upper, 5):
        assert bucket(lower, 3) == bucket(upper, 3)


def test_the_ladder_nests_and_its_last_rung_holds_any_history() -> None:
    for finer, coarser in pairwise(LEVELS):
        assert coarser.slot_ms % finer.slot_ms == 0
        assert coarser.bits <= finer.bits
    span_ms = LEVELS[-1].slot_ms
    assert span_ms > 4_000 * 365 * 86_400_000
    delays_ms = np.geomspace(1, 10 * 365 * 86_400_000, 1_000_000).astype(np.int64)
    assert len(Cells.of_timers(np.zeros_like(delays_ms), delays_ms, level=len(LEVELS) - 1)) <= COARSEST_CELLS


def test_cells_do_not_become_finer_again() -> None:
    with pytest.raises(ValueError, match="finer"):
        cells_of([(0, 1, 0)], level=3).coarsened(2)


def test_a_million_timers_of_one_fixed_delay_keep_its_width_of_nothing() -> None:
    publish_ms = 1_700_000_000_000 + np.arange(1_000_000, dtype=np.int64) * 864
    cells = Cells.of_timers(publish_ms, publish_ms + 3_600_000).bounded(10_000)
    assert len(cells) <= 10_000
    assert (cells.delay_min_ms == cells.delay_max_ms).all()

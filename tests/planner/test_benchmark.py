"""The planner's benchmark at its tiniest size: that it runs and measures what it says, never how fast."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from benchmarks import cells, planner
from benchmarks.planner import BEGIN_MS, DAYS, DRIVER, JVM, PYTHON, watched, write_mixture
from benchmarks.result import table
from timewheel.core.durations import DAY_MS
from timewheel.spark_planner.choice.candidates import candidate_plans

ROWS = 5_000


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mixture(tmp_path_factory.mktemp("mixture") / "history.parquet", ROWS)


def test_the_mixture_is_in_order_and_spread_over_its_days(history: Path) -> None:
    rows = pq.read_table(history)
    publish_ms, due_ms = (rows[name].to_numpy() for name in ("publish_ms", "due_ms"))

    assert len(rows) == ROWS
    assert (np.diff(publish_ms) >= 0).all()
    assert (due_ms >= publish_ms).all()
    assert publish_ms[0] >= BEGIN_MS
    assert publish_ms[-1] < BEGIN_MS + DAYS * DAY_MS
    # 0.9 x 10 min + 0.1 x 3.52 d = 0.3583 d on average, deviation of one 1.2 d, of the mean of 5,000 of them 0.017 d.
    assert (due_ms - publish_ms).mean() / DAY_MS == pytest.approx(0.3583, abs=3 * 0.017)


def test_all_ways_of_counting_agree_and_candidates_are_priced(spark: SparkSession, history: Path) -> None:
    some = candidate_plans(planner.PLAN, 7 * DAY_MS)[::8]  # all of them are priced in test_cli_plan.py
    with duckdb.connect() as connection:
        counted = planner.count_natively(spark, connection, history, ROWS, rounds=1)
        best = planner.best_of_all(spark, connection, history, ROWS, timed_candidates=1, candidates=some)

    assert len({result.figures["peak gaps"] for result in counted}) == 1
    assert len(counted) == 5
    assert all(float(result.figures["s"]) > 0 for result in [*counted, *best])
    assert int(best[0].figures["candidates"]) == len(some) >= 40
    assert [result.subject.partition(",")[0] for result in best] == ["timewheel", "DuckDB", "Polars"]
    # Goals are for sizes at which somebody waits.
    assert all(result.met is None for result in [*counted, *best])
    assert table(best).count("extrapolated") == 2
    verdict = planner.verdict([*counted, *best], [ROWS])
    assert [list(result.figures) for result in verdict] == [[f"{ROWS:,} rows"]] * 3
    # Of so few rows a query takes milliseconds, and pricing them seconds.
    assert str(verdict[1].figures[f"{ROWS:,} rows"]).partition(",")[0] in {"DuckDB", "Polars"}
    assert int(verdict[2].figures[f"{ROWS:,} rows"]) > int(best[0].figures["candidates"])


def test_duckdb_builds_the_same_cells_and_other_cells_are_told(
    spark: SparkSession, history: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with duckdb.connect() as connection:
        found = cells.side_by_side(spark, connection, history, ROWS, rounds=1)
        monkeypatch.setattr(cells, "duckdb_cells", lambda *_: dict.fromkeys(cells.FACTS, np.zeros(3)))
        with pytest.raises(RuntimeError, match="not the same cells: slot"):
            cells.side_by_side(spark, connection, history, ROWS, rounds=1)

    assert [result.subject.partition(",")[0] for result in found] == ["timewheel", "DuckDB"]
    assert found[1].figures["x DuckDB"] == 1


@pytest.mark.proof
def test_the_whole_command_is_timed_beside_duckdb(history: Path) -> None:
    ours, theirs = planner.command({ROWS: history})

    assert float(ours.figures["took s"]) > float(theirs.figures["took s"]) > 0
    assert float(theirs.figures[PYTHON]) > 50
    assert float(ours.figures["CPU s"]) > 1
    assert min(float(ours.figures[kind]) for kind in (PYTHON, JVM)) > 50
    assert ours.met is None
    assert history.with_suffix(".toml").exists()


def test_memory_is_watched_while_the_work_is_done() -> None:
    own_mb = psutil.Process().memory_full_info().pss / 1e6
    with watched() as most:
        block = np.ones(25_000_000)  # 200 MB
        reached = float(block.sum())
    assert reached == 25_000_000
    assert most[DRIVER] >= own_mb + 150
    assert most[PYTHON] >= most[DRIVER]
    assert most[JVM] == 0 or most[JVM] > 50  # the session of the other tests, if it runs

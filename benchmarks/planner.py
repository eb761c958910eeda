"""Is Spark the right tool for the planner, and at what price, next to DuckDB and Polars on one machine?

The history is the mixture of the docs (14 days, 90 % of the delays exponential with a mean of 10 minutes, 10 % uniform
from 1 hour to 7 days), one Parquet file in order of sends; the same file, the same two cores and the same run for all.

- exact native count: gap ranges of all timers in one due topic, at 5,000 moments. Ours looks whether the file is in
  order and sorts only if not. DuckDB and Polars sort; the rows "trusts order" leave that out, which gives a wrong
  number without a word for a file that is not in order. All have to find the same peak.
- best of 300 plans: ours reads the history once and prices every candidate from cells; DuckDB and Polars run one exact
  query per candidate. A few of those are timed, and the mean is taken times the number of candidates: that product is
  an extrapolation.
- memory: the Python processes of one pass (driver and workers) while the history grows.

Goals: the count within 3 times of DuckDB's time; best of 300 ahead of both; memory at the largest history at most 1.2
of that at the smallest. Starting Spark (6 to 9 s) is in none of the times.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.result import Result, table
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.plan import Native, Plan

SEED = 7
DAYS = 14
BEGIN_MS = 1_767_225_600_000
MOMENTS = 5_000
STEP_MS = (DAYS + 8) * DAY_MS // MOMENTS
ROW_GROUP_ROWS = 1 << 20
CORES = 2
ROUNDS = 5
SIZES = (1_000_000, 10_000_000)
GOAL_COUNT = 3.0
GOAL_MEMORY = 1.2
TIMED_CANDIDATES = 5
"""Spread evenly over all candidates; each is one exact query."""
POLL_S = 0.05
CACHE = Path(tempfile.gettempdir()) / "timewheel-bench-planner"

PLAN = Plan(due_topic="persistent://public/default/bench", subscriptions=("bench",), scheme=Native())


def history(rows: int) -> Path:
    """The Parquet file with so many timers; written once, a row group at a time."""
    path = CACHE / f"mixture-{rows}-{SEED}.parquet"
    if path.exists():
        return path
    CACHE.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(SEED)
    unfinished = path.with_suffix(".unfinished")
    writer: Any = None
    for first in range(0, rows, ROW_GROUP_ROWS):
        count = min(ROW_GROUP_ROWS, rows - first)
        # A stretch of time in proportion to its rows, so that all stretches together are one even stream in order.
        low_ms, high_ms = (BEGIN_MS + DAYS * DAY_MS * at // rows for at in (first, first + count))
        publish_ms = np.sort(rng.integers(low_ms, high_ms, count))
        delay_ms = np.where(
            rng.random(count) < 0.9, rng.exponential(10 * MINUTE_MS, count), rng.uniform(HOUR_MS, 7 * DAY_MS, count)
        ).astype(np.int64)
        group = pa.table(
            {
                "publish_ms": publish_ms,
                "due_ms": publish_ms + delay_ms,
                "size_bytes": np.full(count, 200, np.int64),
                "key": pa.nulls(count, pa.string()),
                "topic": pa.array([""] * count),
            }
        )
        writer = writer or pq.ParquetWriter(unfinished, group.schema)
        writer.write_table(group)
    writer.close()
    unfinished.rename(path)
    return path


# --- exact native count


def count_natively(spark: Any, duckdb: Any, rows: int, rounds: int) -> list[Result]:
    """All ways take turns; the median of each."""
    from benchmarks.rivals import duckdb_query, polars_query  # noqa: PLC0415 - Polars' threads are set by now
    from timewheel.spark_planner.grid import Grid  # noqa: PLC0415 - the planner is an extra
    from timewheel.spark_planner.replay import replay  # noqa: PLC0415

    path = history(rows)
    begin_ms = BEGIN_MS // STEP_MS * STEP_MS
    grid = Grid.regular(begin_ms, begin_ms + MOMENTS * STEP_MS, MOMENTS + 1)
    assert grid.step_ms == STEP_MS

    def ours() -> int:
        found = replay(spark.read.parquet(str(path)), PLAN, grid=grid)
        assert not found.was_sorted, "the file is in order"
        return found.peak_of_total.gap_count

    ways: dict[str, Callable[[], int]] = {
        "timewheel": ours,
        "DuckDB": duckdb_query(duckdb, path, PLAN, STEP_MS),
        "Polars": polars_query(path, PLAN, STEP_MS),
        "DuckDB, trusts order": duckdb_query(duckdb, path, PLAN, STEP_MS, trusts_order=True),
        "Polars, trusts order": polars_query(path, PLAN, STEP_MS, trusts_order=True),
    }
    peaks = {name: way() for name, way in ways.items()}  # not timed: code is compiled, the file gets into memory
    if len(set(peaks.values())) != 1:
        raise RuntimeError(f"not the same peak: {peaks}")
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            taken[name].append(timed(way))
    medians = {name: statistics.median(times) for name, times in taken.items()}
    return [
        Result(
            question="exact native count",
            subject=f"{name}, {rows:,} rows",
            figures={
                "s": seconds,
                "least s": min(taken[name]),
                "x DuckDB": seconds / medians["DuckDB"],
                "x Polars": seconds / medians["Polars"],
                "peak gaps": peaks[name],
            },
            goal=f"within {GOAL_COUNT:.0f} times of DuckDB" if name == "timewheel" else "",
            met=seconds <= GOAL_COUNT * medians["DuckDB"] if name == "timewheel" else None,
        )
        for name, seconds in medians.items()
    ]


# --- best of 300 plans


def best_of_all(spark: Any, duckdb: Any, rows: int) -> list[Result]:
    """One pass and all prices, against one query per candidate."""
    from benchmarks.rivals import duckdb_query, polars_query  # noqa: PLC0415 - see count_natively
    from timewheel.core.plan import Calendar  # noqa: PLC0415
    from timewheel.core.profile import BrokerProfile  # noqa: PLC0415
    from timewheel.spark_planner.choose import choose  # noqa: PLC0415

    path = history(rows)
    began_s = time.monotonic()
    cells = cells_of(spark, path)
    pass_s = time.monotonic() - began_s
    choice = choose(cells, PLAN, BrokerProfile.named("4.0"))
    all_s = time.monotonic() - began_s
    # A calendar's due topics would need a partitioned query: their candidates are left out of what is timed.
    plans = [one.evaluation.plan for one in choice.candidates]
    timeable = [plan for plan in plans if not isinstance(plan.scheme, Calendar)]
    some = timeable[:: max(1, len(timeable) // TIMED_CANDIDATES)][:TIMED_CANDIDATES]
    results = [
        Result(
            question="best of 300 plans",
            subject=f"timewheel, {rows:,} rows",
            figures={"s": all_s, "of which the pass, s": pass_s, "candidates": len(plans), "cells": len(cells)},
        )
    ]
    rivals: dict[str, Callable[[Plan], Callable[[], int]]] = {
        "DuckDB": lambda plan: duckdb_query(duckdb, path, plan, STEP_MS),
        "Polars": lambda plan: polars_query(path, plan, STEP_MS),
    }
    for name, query_of in rivals.items():
        query_of(some[0])()
        each_s = statistics.mean(timed(query_of(plan)) for plan in some)
        results.append(
            Result(
                question="best of 300 plans",
                subject=f"{name}, {rows:,} rows, extrapolated",
                figures={
                    "s": each_s * len(plans),
                    "each, s": each_s,
                    "timed": len(some),
                    "candidates": len(plans),
                    "x ours": each_s * len(plans) / all_s,
                },
                goal=f"timewheel ahead of {name}",
                met=all_s < each_s * len(plans),
            )
        )
    return results


def cells_of(spark: Any, path: Path) -> Any:
    """The planner's one pass over a history of one topic."""
    from timewheel.spark_planner.histogram import statistic_of  # noqa: PLC0415 - see count_natively
    from timewheel.spark_planner.mapping import ColumnMapping  # noqa: PLC0415
    from timewheel.spark_planner.quarantine import assessed  # noqa: PLC0415

    statistic = statistic_of(spark.read.parquet(str(path)).transform(assessed(ColumnMapping())))
    return statistic.cells[""]


# --- memory


def memory(sizes: Sequence[int]) -> list[Result]:
    """A process of its own for each size, so that none inherits another's high tide."""
    results: list[Result] = []
    least: dict[str, float] = {}
    for rows in sizes:
        path = history(rows)
        command = [sys.executable, "-m", "benchmarks.planner", "--one-pass", str(path)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        least = least or figures
        ratio = figures["Python MB"] / least["Python MB"]
        is_largest = rows == sizes[-1] and len(sizes) > 1
        results.append(
            Result(
                question="memory",
                subject=f"{rows:,} rows",
                figures={**figures, "x the smallest": ratio},
                goal=f"at most {GOAL_MEMORY} of the smallest" if is_largest else "",
                met=ratio <= GOAL_MEMORY if is_largest else None,
            )
        )
    return results


def one_pass(path: Path) -> dict[str, float]:
    """Statistic and evaluation of one plan, and the most memory that they had at once."""
    import threading  # noqa: PLC0415 - only this process watches itself

    from timewheel.core.profile import BrokerProfile  # noqa: PLC0415 - see count_natively
    from timewheel.spark_planner.evaluate import evaluate  # noqa: PLC0415

    spark = session()
    most = {"Python MB": 0.0, "Java MB": 0.0}
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(POLL_S):
            sums = dict.fromkeys(most, 0.0)
            for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
                try:
                    kind = "Java MB" if "java" in process.name() else "Python MB"
                    # Shared pages count once: workers are forks of one another.
                    sums[kind] += process.memory_full_info().pss / 1e6
                except psutil.Error:
                    continue  # it has just ended
            most.update({kind: max(before, sums[kind]) for kind, before in most.items()})

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        evaluate(PLAN, cells_of(spark, path), BrokerProfile.named("4.0"))
    finally:
        is_over.set()
        watcher.join()
        spark.stop()
    return most


# --- run


def session() -> Any:
    """Spark on as many cores as the others get."""
    from timewheel.spark_planner.session import local_session  # noqa: PLC0415 - the planner is an extra

    return local_session(cores=CORES)


def on_the_same_cores() -> Any:
    """This process and all that it starts on two cores, Spark's Java and Python included; returns DuckDB."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    os.environ["POLARS_MAX_THREADS"] = str(CORES)
    import duckdb  # noqa: PLC0415 - only this benchmark has it

    connection = duckdb.connect()
    connection.execute(f"set threads = {CORES}")
    return connection


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def main(
    quick: bool = False, *, sizes: Sequence[int] = SIZES, parts: Sequence[str] = ("count", "best", "memory")
) -> list[Result]:
    """Ask the three questions; quick: a million rows."""
    sizes = sizes[:1] if quick else sizes
    missing = [name for name in ("pyspark", "duckdb", "polars") if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(
            f"the planner's benchmark needs {', '.join(missing)}: pip install -c constraints.txt -e .[dev]"
        )
    results: list[Result] = []
    duckdb = on_the_same_cores()
    if {"count", "best"} & set(parts):
        spark = session()
        try:
            for rows in sizes:
                if "count" in parts:
                    results += count_natively(spark, duckdb, rows, ROUNDS)
                if "best" in parts:
                    results += best_of_all(spark, duckdb, rows)
        finally:
            spark.stop()
    if "memory" in parts:
        results += memory(sizes)
    for question in dict.fromkeys(result.question for result in results):
        print(table([result for result in results if result.question == question]), flush=True)
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a million rows")
    parser.add_argument("--rows", type=int, nargs="+", default=SIZES, metavar="N", help="sizes, ascending")
    parser.add_argument("--parts", nargs="+", default=("count", "best", "memory"), choices=("count", "best", "memory"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the results")
    parser.add_argument("--one-pass", type=Path, metavar="PARQUET", help="only that; prints its memory as JSON")
    arguments = parser.parse_args()
    if arguments.one_pass:
        print(json.dumps(one_pass(arguments.one_pass)))
    else:
        found = main(arguments.quick, sizes=arguments.rows, parts=arguments.parts)
        if arguments.json:
            rows_found = [asdict(result) for result in found]
            arguments.json.write_text(json.dumps(rows_found, indent=2) + "\n", encoding="utf-8")

"""What does Spark cost the planner, next to DuckDB and Polars?

The history is the mixture of the docs (14 days, 90 % of the delays exponential with a mean of 10 minutes, 10 % uniform
from 1 hour to 7 days), one Parquet file in order of sends; the same file, the same two cores and the same run for all.

- Exact native count: gap ranges of all timers in one due topic, at 5,000 moments. Ours looks whether the file is in
  order and sorts only if not. DuckDB and Polars sort; the rows "trusts order" leave that out, which gives a wrong
  number without a word for a file that is not in order. All have to find the same peak.
- Best of 300 plans: ours reads the history once, leaves out the candidates that would cost more with any number of
  gaps, and prices the others roughly from cells, and the best of them closely, which is right within a percent or so
  (docs/explanation/predictions.md). DuckDB and Polars run one exact query per candidate. A few of those are timed, and
  their mean is taken times the number of candidates: that product is an extrapolation. "Of the priced ones" is the same
  if they too were told what can be left out. "Pays from" is the number of plans from which on ours is the quicker way.
  `timewheel plan` counts the best of them exactly as well, which is not in these times.
- The whole command: `timewheel plan FILE --as-is -o plan.toml --report page.html` from the prompt to the page, Java's
  start included; DuckDB groups the same file into cells and counts a single plan. CPU is that of all processes, and on
  a busy machine the fairer figure. Memory is the most at any moment, in megabytes of the proportional set size. Java
  takes what its limit of 2 GB allows before it looks for what is no longer needed: that is not need. A first run, not
  timed, leaves the archive of Java's classes.

Goals: at 10 and 50 million rows the count within 2 times of DuckDB's time, and best of 300 ahead of both; the whole
command within 20, 40 and 200 s of 1, 10 and 50 million rows, on two idle cores; Python's memory, driver and workers, at
the largest history at most 1.2 of that at the smallest. Starting Spark is in none of the times but the command's.

The last table says who is quicker by size. By place: for one plan and a file on one machine's disk DuckDB or Polars
will do. Spark is the right tool where many plans are asked about, which is what a planner does; where the history lies
in a lake or on a cluster; and where it outgrows one machine's memory (the others' grows with the rows, ours does not).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.result import Result, show
from timewheel.core import DAY_MS, HOUR_MS, MINUTE_MS, Calendar, Native, Plan
from timewheel.core.steps import Step, steps

DRIVER: str = "driver MB"
WORKERS: str = "workers MB"
PYTHON: str = "Python MB"
JVM: str = "JVM MB"  # a process; Python processes below it; those two together at one moment; Java below it
CPU: str = "CPU s"
POLL_S = 0.1
LOOKING = 0.05  # the most of a watcher's time


@contextmanager
def watched(pid: int | None = None) -> Iterator[dict[str, float]]:
    """Look at a process (this one) and all below it until the block ends; the figures grow meanwhile.

    In megabytes of the proportional set size: pages that processes share, as forks do, count once. And seconds of CPU.
    A look at a large Java takes long, so looks take a small part of the time: else they would show in what is timed.
    """
    most = dict.fromkeys((DRIVER, WORKERS, PYTHON, JVM, CPU), 0.0)
    is_over = threading.Event()
    driver = psutil.Process(pid)
    cpu_s: dict[int, float] = {}

    def watch() -> None:
        over = False
        while not over:
            over = is_over.is_set()  # then this is the last look: at what the block has left
            began_s = time.perf_counter()
            now = dict.fromkeys(most, 0.0)
            with suppress(psutil.Error):  # it has just ended
                for process in [driver, *driver.children(recursive=True)]:
                    with suppress(psutil.Error):
                        own_mb = process.memory_full_info().pss / 1e6
                        kind = DRIVER if process == driver else JVM if "java" in process.name() else WORKERS
                        now[kind] += own_mb
                        cpu_s[process.pid] = sum(process.cpu_times()[:2])
            now[PYTHON] = now[DRIVER] + now[WORKERS]
            now[CPU] = sum(cpu_s.values())
            most.update({kind: max(before, now[kind]) for kind, before in most.items()})
            is_over.wait(max(POLL_S, (time.perf_counter() - began_s) / LOOKING))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield most
    finally:
        is_over.set()
        watcher.join()


SEED = 7
DAYS = 14
BEGIN_MS = 1_767_225_600_000
LONGEST_MS = 7 * DAY_MS  # of the uniform delays; the others are shorter but for one in 10**400
ROW_GROUP_ROWS = 1 << 20
PAYLOAD_BYTES = 200


def write_mixture(path: Path, rows: int) -> Path:
    """Write so many timers in order of sends, a row group at a time, as `columns.HISTORY_SCHEMA` has them.

    14 days whatever their number; 90 % of the delays exponential with a mean of 10 minutes, 10 % uniform from 1 hour to
    7 days.
    """
    rng = np.random.default_rng(SEED)
    writer: Any = None
    for first in range(0, rows, ROW_GROUP_ROWS):
        count = min(ROW_GROUP_ROWS, rows - first)
        # A stretch of time in proportion to its rows, so that all stretches together are one even stream in order.
        low_ms, high_ms = (BEGIN_MS + DAYS * DAY_MS * at // rows for at in (first, first + count))
        publish_ms = np.sort(rng.integers(low_ms, high_ms, count))
        delay_ms = np.where(
            rng.random(count) < 0.9, rng.exponential(10 * MINUTE_MS, count), rng.uniform(HOUR_MS, LONGEST_MS, count)
        ).astype(np.int64)
        group = pa.table(
            {
                "publish_ms": publish_ms,
                "due_ms": publish_ms + delay_ms,
                "size_bytes": np.full(count, PAYLOAD_BYTES, np.int64),
                "key": pa.nulls(count, pa.string()),
                "topic": pa.array(["bench"] * count),
            }
        )
        writer = writer or pq.ParquetWriter(path, group.schema)
        writer.write_table(group)
    writer.close()
    return path


Query = Callable[[], int]  # runs once, and returns the peak


def duckdb_query(connection: Any, path: Path, plan: Plan, step_ms: int, *, trusts_order: bool = False) -> Query:
    """The peak of one due partition, by SQL.

    Both rivals are written as well as we could, at the same resolution as ours. They take the same steps as we do:
    route, order by arrival, compare neighbours, sum up by moment. None of them deals with partitions, ledgers, keys or
    topics.

    It ``trusts_order`` only if the file is in order, which nobody looks at: then it does not sort.
    """
    released = "publish_ms"
    ways = ["way_0 as (select publish_ms, due_ms, publish_ms as at_ms, file_row_number from read_parquet($path,"
            " file_row_number = true))"]  # fmt: skip
    for number, step in enumerate(steps(plan)[:-1]):
        ways.append(
            f"way_{number + 1} as (select publish_ms, due_ms, {_sql_release(step)} as at_ms, file_row_number"
            f" from way_{number})"
        )
        released = "at_ms, publish_ms"
    order = "" if trusts_order else f"order by {released}, file_row_number"
    # Whole numbers of ours only; what comes from outside, the path, is a parameter.
    text = f"""
        with {", ".join(ways)},
        neighbours as (
            select greatest(due_ms, at_ms) as after, lag(greatest(due_ms, at_ms)) over ({order}) as before
            from way_{len(ways) - 1}),
        ranges as (select after, before from neighbours where after < before),
        changes as (
            select unnest([(after + {step_ms - 1}) // {step_ms}, (before + {step_ms - 1}) // {step_ms}]) as moment,
                unnest([1, -1]) as change
            from ranges),
        summed as (select moment, sum(change) as change from changes group by moment)
        select max(gaps) from (select sum(change) over (order by moment) as gaps from summed)"""

    def run() -> int:
        return int(connection.execute(text, {"path": str(path)}).fetchone()[0] or 0)

    return run


def polars_query(path: Path, plan: Plan, step_ms: int, *, trusts_order: bool = False) -> Query:
    """The same by Polars; arguments as for `duckdb_query`."""
    import polars as pl  # noqa: PLC0415 - its threads are set in the environment before it is imported

    def run() -> int:
        rows = pl.scan_parquet(path).select("publish_ms", "due_ms", at_ms=pl.col("publish_ms"))
        for step in steps(plan)[:-1]:
            rows = rows.with_columns(at_ms=_polars_release(step))
        if not trusts_order:
            rows = rows.sort("at_ms", "publish_ms", maintain_order=True)
        acknowledged = pl.max_horizontal("due_ms", "at_ms")
        ranges = rows.select(after=acknowledged, before=acknowledged.shift(1)).filter(
            pl.col("after") < pl.col("before")
        )
        changes = [
            ranges.group_by(moment=(pl.col(column) + (step_ms - 1)) // step_ms).agg(
                change=sign * pl.len().cast(pl.Int64)
            )
            for column, sign in (("after", 1), ("before", -1))
        ]
        summed = pl.concat(changes).group_by("moment").agg(pl.col("change").sum()).sort("moment")
        return int(summed.select(pl.col("change").cum_sum().max()).collect().item() or 0)

    return run


def _sql_release(step: Step) -> str:
    if step.kind == "slot":
        release = f"due_ms // {step.slot_ms} * {step.slot_ms} - {step.headstart_ms}"
        return f"greatest(at_ms, {release})"
    spare = f"(due_ms - at_ms - {step.min_remaining_ms})"
    return f"at_ms + case when {spare} >= 0 then ({spare} // {step.stay_ms} + 1) * {step.stay_ms} else 0 end"


def _polars_release(step: Step) -> Any:
    import polars as pl  # noqa: PLC0415 - see polars_query

    if step.kind == "slot":
        return pl.max_horizontal("at_ms", pl.col("due_ms") // step.slot_ms * step.slot_ms - step.headstart_ms)
    spare = pl.col("due_ms") - pl.col("at_ms") - step.min_remaining_ms
    return pl.col("at_ms") + pl.when(spare >= 0).then((spare // step.stay_ms + 1) * step.stay_ms).otherwise(0)


SHOWN = frozenset(("took s", "x DuckDB", "x ours", "pays from, plans", "CPU s", "Python MB"))
HIDDEN = ("trusts order", "10,000,000 rows, extrapolated", "one plan, 1,000,000 rows", "one plan, 10,000,000 rows")
MOMENTS = 5_000
STEP_MS = (DAYS * DAY_MS + LONGEST_MS + DAY_MS) // MOMENTS
CORES = 2
ROUNDS = 5
FEWER_ROUNDS = 3  # of the largest histories, whose times differ least
FEWER_FROM_ROWS = 20_000_000
SIZES = (1_000_000, 10_000_000, 50_000_000)
QUICK_SIZES = (20_000, 100_000)
GOALS_FROM_ROWS = 10_000_000  # below it a second of Spark's own is most of the time, and nobody waits for either
GOAL_COUNT = 2.0
GOAL_MEMORY = 1.2
TIMED_CANDIDATES = 5  # spread evenly over all candidates; each is one exact query
PARTS = ("count", "best", "command")
RIVALS = ("DuckDB", "Polars")

COUNT, BEST, VERDICT = "exact native count", "best of 300 plans", "where Spark is the right tool"
COMMAND, RIVAL_COMMAND = "the whole command", "DuckDB, cells and one plan"
COMMAND_S = {1_000_000: 20.0, 10_000_000: 40.0, 50_000_000: 200.0}
"""Goal by the number of rows: seconds on two idle cores."""
SLOT_MS, BITS = 512_000, 5  # cells of DuckDB: as coarse as ours are from ten million rows on
EVEN = 1.1  # times nearer to each other than this are called even

PLAN = Plan(due_topic="persistent://public/default/bench", subscriptions=("bench",), scheme=Native())


def tools() -> str:
    names = {"pyspark": "Spark", "duckdb": "DuckDB", "polars": "Polars"}
    return ", ".join(f"{name} {importlib.metadata.version(package)}" for package, name in names.items())


# --- exact native count


def count_natively(spark: Any, duckdb: Any, path: Path, rows: int, rounds: int) -> list[Result]:
    """All ways take turns; the median of each."""
    from timewheel.spark_planner import replay  # noqa: PLC0415 - the planner is an extra
    from timewheel.spark_planner.exact.ranges import Grid  # noqa: PLC0415 - the planner is an extra

    begin_ms = BEGIN_MS // STEP_MS * STEP_MS
    grid = Grid.regular(begin_ms, begin_ms + MOMENTS * STEP_MS, MOMENTS + 1)
    assert grid.step_ms == STEP_MS

    def ours() -> int:
        found = replay(spark.read.parquet(str(path)), PLAN, grid=grid)
        assert not found.was_sorted, "the file is in order"
        return found.peak_of_total.gap_count

    ways: dict[str, Callable[[], int]] = {
        "timewheel": ours,
        **{name: rival_query(name, duckdb, path, PLAN) for name in RIVALS},
        **{f"{name}, trusts order": rival_query(name, duckdb, path, PLAN, trusts_order=True) for name in RIVALS},
    }
    peaks = {name: way() for name, way in ways.items()}  # not timed: code is compiled, the file gets into memory
    if len(set(peaks.values())) != 1:
        raise RuntimeError(f"not the same peak: {peaks}")
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            taken[name].append(timed(way))
    medians = {name: statistics.median(times) for name, times in taken.items()}
    has_goal = rows >= GOALS_FROM_ROWS
    return [
        Result(
            question=COUNT,
            subject=f"{name}, {rows:,} rows",
            figures={
                "s": seconds,
                "least s": min(taken[name]),
                "x DuckDB": seconds / medians["DuckDB"],
                "x Polars": seconds / medians["Polars"],
                "peak gaps": peaks[name],
            },
            goal=f"within {GOAL_COUNT:.0f} times of DuckDB" if name == "timewheel" and has_goal else "",
            met=seconds <= GOAL_COUNT * medians["DuckDB"] if name == "timewheel" and has_goal else None,
        )
        for name, seconds in medians.items()
    ]


def rival_query(name: str, duckdb: Any, path: Path, plan: Plan, *, trusts_order: bool = False) -> Callable[[], int]:
    """The exact count of one due partition, by name."""
    if name == "DuckDB":
        return duckdb_query(duckdb, path, plan, STEP_MS, trusts_order=trusts_order)
    return polars_query(path, plan, STEP_MS, trusts_order=trusts_order)


# --- best of 300 plans


def best_of_all(
    spark: Any, duckdb: Any, path: Path, rows: int, *, timed_candidates: int, candidates: Sequence[Plan] | None = None
) -> list[Result]:
    """One pass and all prices, against one query per candidate; of these candidates, or of all."""
    from timewheel.core import BrokerProfile  # noqa: PLC0415 - see count_natively
    from timewheel.spark_planner.choice.candidates import candidate_plans  # noqa: PLC0415
    from timewheel.spark_planner.choice.choose import choose  # noqa: PLC0415 - see count_natively

    began_s = time.monotonic()
    cells = cells_of(spark, path)
    pass_s = time.monotonic() - began_s
    plans = candidate_plans(PLAN, int(cells.delay_max_ms.max())) if candidates is None else candidates
    choice = choose(cells, PLAN, BrokerProfile.named("4.0"), candidates=plans)
    all_s = time.monotonic() - began_s
    priced = len(choice.candidates)
    # A calendar's due topics would need a partitioned query: their candidates are left out of what is timed.
    timeable = [plan for plan in plans if not isinstance(plan.scheme, Calendar)]
    some = [timeable[len(timeable) * (2 * at + 1) // (2 * timed_candidates)] for at in range(timed_candidates)]
    taken: dict[str, list[float]] = {name: [] for name in RIVALS}
    for plan in some:  # the pass has brought the file into memory for them too
        for name in RIVALS:
            taken[name].append(timed(rival_query(name, duckdb, path, plan)))
    has_goal = rows >= GOALS_FROM_ROWS
    results = [
        Result(
            question=BEST,
            subject=f"timewheel, {rows:,} rows",
            figures={
                "s": all_s,
                "candidates": len(plans),
                "priced": priced,
                "of which the pass, s": pass_s,
                "cells": len(cells),
            },
        )
    ]
    for name, times in taken.items():
        each_s = statistics.mean(times)
        results.append(
            Result(
                question=BEST,
                subject=f"{name}, {rows:,} rows, extrapolated",
                figures={
                    "s": each_s * len(plans),
                    "candidates": len(plans),
                    "timed": len(times),
                    "each, s": each_s,
                    "x ours": each_s * len(plans) / all_s,
                    "x ours, of the priced ones": each_s * priced / all_s,
                    "pays from, plans": int(all_s / each_s) + 1,
                },
                goal=f"timewheel ahead of {name}" if has_goal else "",
                met=all_s < each_s * len(plans) if has_goal else None,
            )
        )
    return results


def cells_of(spark: Any, path: Path) -> Any:
    from timewheel.spark_planner import survey  # noqa: PLC0415 - see count_natively

    history = survey(spark.read.parquet(str(path)))
    history.stored.unpersist()
    return history.cells(history.topic())


# --- the whole command


def command(paths: dict[int, Path]) -> list[Result]:
    """Processes of their own for each, so that none inherits another's high tide; ours as a user runs it."""

    def run(*words: object) -> dict[str, float]:
        began_s = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        with process, watched(process.pid) as most:
            _, said = process.communicate()
            if process.returncode not in (0, 1, 3):  # 1 and 3: a plan was written, and there is a reservation
                raise RuntimeError(f"{words}: status {process.returncode}: {said}")
            took_s = time.perf_counter() - began_s
        return {"took s": took_s, **most}

    def ours(path: Path) -> dict[str, float]:
        files = ["-o", path.with_suffix(".toml"), "--report", path.with_suffix(".html")]
        return run("timewheel", "plan", path, "--as-is", *files)

    ours(paths[min(paths)])  # not timed: Java writes the archive of its classes
    found: dict[str, dict[int, dict[str, float]]] = {"timewheel plan": {}, RIVAL_COMMAND: {}}
    for rows, path in paths.items():
        found["timewheel plan"][rows] = ours(path)
        found[RIVAL_COMMAND][rows] = run("benchmarks.planner", "--rival", path)
    results: list[Result] = []
    for name, by_rows in found.items():
        least_mb = by_rows[min(paths)][PYTHON]
        for rows, figures in by_rows.items():
            took_s, ratio = figures["took s"], figures[PYTHON] / least_mb
            goals = []
            if name != RIVAL_COMMAND and rows in COMMAND_S:
                goals = [(f"within {COMMAND_S[rows]:.0f} s", took_s <= COMMAND_S[rows])]
                if rows == max(paths) and len(paths) > 1:
                    goals.append((f"memory at most {GOAL_MEMORY} of the smallest", ratio <= GOAL_MEMORY))
            results.append(
                Result(
                    question=COMMAND,
                    subject=f"{name}, {rows:,} rows",
                    figures={
                        "took s": took_s,
                        PYTHON: figures[PYTHON],
                        "Python x the smallest": ratio,
                        **({} if name == RIVAL_COMMAND else {CPU: figures[CPU], JVM: figures[JVM]}),
                    },
                    goal=", ".join(goal for goal, _ in goals),
                    met=all(met for _, met in goals) if goals else None,
                )
            )
    return results


def rival_command(path: Path) -> None:
    """What the whole command does, as far as DuckDB has words for it."""
    from benchmarks.cells import duckdb_cells  # noqa: PLC0415 - it takes the file and DuckDB from here

    with on_the_same_cores() as duckdb:
        duckdb_cells(duckdb, path, SLOT_MS, BITS)
        duckdb_query(duckdb, path, PLAN, STEP_MS)()


# --- verdict


def verdict(results: Sequence[Result], sizes: Sequence[int]) -> list[Result]:
    """Who is the quicker at what, by size, the better of the others against ours."""

    def seconds(question: str, rows: int) -> dict[str, float]:
        name_of = {f"{name}, {rows:,} rows": name for name in ("timewheel", *RIVALS)}
        own = [result for result in results if result.question == question]
        return {
            name: float(result.figures["s"])
            for subject, name in name_of.items()
            for result in own
            if result.subject.removesuffix(", extrapolated") == subject
        }

    def quicker(question: str, rows: int) -> str:
        taken = seconds(question, rows)
        ours = taken.pop("timewheel")
        name, least = min(taken.items(), key=lambda item: item[1])
        if max(ours, least) < EVEN * min(ours, least):
            return "even"
        return f"Spark, {least / ours:.1f} x" if ours < least else f"{name}, {ours / least:.1f} x"

    def pays_from(rows: int) -> int:
        own = [result for result in results if result.question == BEST and f" {rows:,} rows" in result.subject]
        return max(int(result.figures.get("pays from, plans", 0)) for result in own)

    return [
        Result(question=VERDICT, subject=subject, figures={f"{rows:,} rows": answer(rows) for rows in sizes})
        for subject, answer in (
            ("one plan, counted exactly: quicker is", lambda rows: quicker(COUNT, rows)),
            ("the best of all candidates: quicker is", lambda rows: quicker(BEST, rows)),
            ("plans from which on Spark is quicker", pays_from),
        )
    ]


# --- run


@contextmanager
def session(cores: int = CORES) -> Iterator[Any]:
    from timewheel.spark_planner import local_session  # noqa: PLC0415 - the planner is an extra

    spark = local_session(cores=cores)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def on_the_same_cores() -> Iterator[Any]:
    """This process and all that it starts on two cores, Spark's Java and Python included; gives DuckDB."""
    has_cores = hasattr(os, "sched_setaffinity")
    before = os.sched_getaffinity(0) if has_cores else set[int]()
    if has_cores:
        os.sched_setaffinity(0, sorted(before)[:CORES])
    os.environ["POLARS_MAX_THREADS"] = str(CORES)
    import duckdb  # noqa: PLC0415 - only this benchmark has it

    try:
        with duckdb.connect() as connection:
            connection.execute(f"set threads = {CORES}")
            yield connection
    finally:
        if has_cores:  # whatever is asked next in this process is about all cores
            os.sched_setaffinity(0, before)


def rounds_of(rows: int) -> int:
    return ROUNDS if rows < FEWER_FROM_ROWS else FEWER_ROUNDS


def timed(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def main(quick: bool = False, *, sizes: Sequence[int] | None = None, parts: Sequence[str] = PARTS) -> list[Result]:
    missing = [name for name in ("pyspark", "duckdb", "polars") if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(
            f"the planner's benchmark needs {', '.join(missing)}: pip install -c constraints.txt -e .[dev]"
        )
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="timewheel-bench-planner-") as folder:
        paths = {
            rows: write_mixture(Path(folder, f"{rows}.parquet"), rows)
            for rows in sorted(sizes or (QUICK_SIZES if quick else SIZES))
        }
        if {"count", "best"} & set(parts):
            with on_the_same_cores() as duckdb, session() as spark:
                for rows, path in paths.items():
                    if "count" in parts:
                        results += count_natively(spark, duckdb, path, rows, 1 if quick else rounds_of(rows))
                    if "best" in parts:
                        some = 1 if quick else TIMED_CANDIDATES
                        results += best_of_all(spark, duckdb, path, rows, timed_candidates=some)
        if "command" in parts:
            with on_the_same_cores():
                results += command(paths)
    if {"count", "best"} <= set(parts):
        results += verdict(results, list(paths))
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="to see that it runs, not how fast")
    parser.add_argument("--rows", type=int, nargs="+", metavar="N", help="sizes")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--rival", type=Path, metavar="PARQUET", help="only DuckDB's part of the whole command")
    arguments = parser.parse_args()
    if arguments.rival:
        rival_command(arguments.rival)
    else:
        show(main(arguments.quick, sizes=arguments.rows, parts=arguments.parts))

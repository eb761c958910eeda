"""What does the planner's pass cost, next to DuckDB?

The pass reads every row, checks it, and groups it into cells by a slot of publish times and a bucket of delays, each
with its count, sums and limits; what follows works on those alone. DuckDB groups the same Parquet file into the same
cells on the same two cores, with one query. It is told how coarse the cells have to be, which the pass has to find out;
and it neither checks rows, nor counts bad ones, nor minds a second topic. Both have to find the same cells.

Spark hands its rows to Python and back, and gathers cells in three stages: DuckDB does without all of that. The pass is
meant for a history that lies in a lake or on a cluster; on one machine it is the slower way, and this says by how much.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.planner import (
    QUICK_SIZES,
    RIVALS,
    SIZES,
    cells_of,
    on_the_same_cores,
    session,
    timed,
    tools,
    write_mixture,
)
from benchmarks.result import Result
from benchmarks.turns import in_turns, medians

__all__ = ["main", "tools"]

SHOWN = frozenset(("x DuckDB",))
QUESTION = "the same cells"
ROUNDS = 3
FACTS = (
    "slot", "bucket", "count", "publish_min_ms", "publish_max_ms",
    "delay_min_ms", "delay_max_ms", "due_min_ms", "due_max_ms", "size_bytes",
)  # fmt: skip


def duckdb_cells(connection: Any, path: Path, slot_ms: int, bits: int) -> dict[str, Any]:
    """The cells of `cells.Cells`, ordered, by name of their facts."""
    text = f"""
        with timers as (
            select publish_ms, due_ms, due_ms - publish_ms as delay_ms, size_bytes,
                greatest(floor(log2(greatest(due_ms - publish_ms, 1)))::int - {bits}, 0) as shift
            from read_parquet($path))
        select publish_ms // {slot_ms} as slot, ((shift::bigint << {bits}) + (delay_ms >> shift)) as bucket,
            count(*) as count, min(publish_ms) as publish_min_ms, max(publish_ms) as publish_max_ms,
            min(delay_ms) as delay_min_ms, max(delay_ms) as delay_max_ms,
            min(due_ms) as due_min_ms, max(due_ms) as due_max_ms, sum(size_bytes)::bigint as size_bytes
        from timers group by all order by slot, bucket"""
    found: dict[str, Any] = connection.execute(text, {"path": str(path)}).fetchnumpy()
    return found


def side_by_side(spark: Any, duckdb: Any, path: Path, rows: int, rounds: int) -> list[Result]:
    """Both take turns; the median of each."""
    from timewheel.spark_planner.summary.cells import LEVELS  # noqa: PLC0415 - the planner is an extra

    cells = cells_of(spark, path)  # not timed: code is compiled, the file gets into memory
    level = LEVELS[cells.level]
    theirs = duckdb_cells(duckdb, path, level.slot_ms, level.bits)
    for fact in FACTS:
        if not np.array_equal(getattr(cells, fact), np.asarray(theirs[fact])):
            raise RuntimeError(f"not the same cells: {fact}")
    ways = {
        "timewheel": partial(timed, partial(cells_of, spark, path)),
        RIVALS[0]: partial(timed, partial(duckdb_cells, duckdb, path, level.slot_ms, level.bits)),
    }
    taken = medians(in_turns(ways, rounds))
    return [
        Result(
            question=QUESTION,
            subject=f"{name}, {rows:,} rows",
            figures={
                "s": seconds,
                "x DuckDB": seconds / taken[RIVALS[0]],
                "cells": len(cells),
                "slot, s": level.slot_ms // 1_000,
            },
        )
        for name, seconds in taken.items()
    ]


def main(quick: bool = False, *, sizes: Sequence[int] | None = None) -> list[Result]:
    results: list[Result] = []
    temporary = tempfile.TemporaryDirectory(prefix="timewheel-bench-cells-")
    with temporary as folder, on_the_same_cores() as duckdb, session() as spark:
        for rows in sorted(sizes or (QUICK_SIZES if quick else SIZES)):
            path = write_mixture(Path(folder, f"{rows}.parquet"), rows)
            results += side_by_side(spark, duckdb, path, rows, 1 if quick else ROUNDS)
    return results

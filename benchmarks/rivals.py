"""The exact count of gap ranges as one query for DuckDB and for Polars: what the planner is measured against.

Both are written as well as we could, at the same resolution as ours. They take the same steps as the planner: route,
order by arrival, compare neighbours, sum up by moment. None of them deals with partitions, ledgers, keys or topics.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from timewheel.core import Plan
from timewheel.core.steps import Step, steps

__all__ = ["Query", "duckdb_query", "polars_query"]

Query = Callable[[], int]
"""Runs once, and returns the peak."""


def duckdb_query(connection: Any, path: Path, plan: Plan, step_ms: int, *, trusts_order: bool = False) -> Query:
    """The peak of one due partition, by SQL.

    Args:
        connection: Of DuckDB, its threads set.
        path: The Parquet file.
        plan: With one due topic; its arrivals are in the order of sends if it has no hops.
        step_ms: Distance of the moments.
        trusts_order: Do not sort: right only if the file is in order, which nobody looks at.
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

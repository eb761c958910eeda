"""The single Spark pass over a history: every row is read once, and at most the limit of cells reaches the driver.

Each task makes cells of its rows; a few tasks gather these cells, and a last task gathers theirs, each within the same
limit. So neither a task nor the driver needs more memory for a longer history, and the driver never holds a limit of
cells per task.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's world calls it

from timewheel.spark_planner.errors import EmptyHistory, NoValidRows, TooManyTopics
from timewheel.spark_planner.history import columns
from timewheel.spark_planner.history.quarantine import REMARKS, refuse_wrong_unit
from timewheel.spark_planner.history.read import SPARK_ERRORS, unreadable
from timewheel.spark_planner.summary.cells import CELL_LIMIT
from timewheel.spark_planner.summary.gather import TOO_MANY_TOPICS, Gathered, gather_parts, gather_rows
from timewheel.spark_planner.summary.statistic import Statistic

__all__ = ["TOPIC_LIMIT", "statistic_of"]

TOPIC_LIMIT = 64
"""Most topics of a history by default: a column of ids given by mistake is detected early."""
COARSEST_CELLS = 300
"""Most cells of a topic at the coarsest level."""
GATHERING_TASKS = 32
"""Tasks between the first tasks and the last: the last merges at most so many limits of cells, one after the other."""
_DAMAGED = "[FAILED_READ_FILE"
"""Start of Spark's error for a file that it cannot read during a job."""


def statistic_of(
    history: DataFrame, *, cell_limit: int = CELL_LIMIT, topic_limit: int = TOPIC_LIMIT, source: str = "given"
) -> Statistic:
    """Run the pass.

    Args:
        history: DataFrame of `columns.ASSESSED_SCHEMA`: ``raw.transform(assessed(mapping))``.
        cell_limit: The most cells of all topics together, at least `COARSEST_CELLS` for each possible topic.
        topic_limit: The most topics.
        source: The history's name for errors.

    Returns:
        The statistic, the same for the same rows with any storage and partitioning.

    Raises:
        EmptyHistory: The history has no rows.
        NoValidRows: All rows are in quarantine.
        WrongTimeUnit: Nearly all rows are in quarantine because of the unit of their times.
        TooManyTopics: There are more topics than the limit.
        HistoryUnreadable: A file is damaged or was removed.
    """
    if topic_limit < 1:
        raise ValueError(f"topic_limit = {topic_limit}: at least 1")
    if cell_limit < COARSEST_CELLS * topic_limit:
        raise ValueError(f"cell_limit = {cell_limit}: {topic_limit} topics may need {COARSEST_CELLS * topic_limit}")
    parts = (
        history.transform(_handed_over)
        .transform(_made_of_rows(cell_limit, topic_limit))
        .transform(_gathered_in(GATHERING_TASKS, cell_limit, topic_limit))
        .transform(_gathered_in(1, cell_limit, topic_limit))
    )
    try:
        table = parts.toArrow()
    except SPARK_ERRORS as error:
        if _DAMAGED in str(error):
            raise unreadable(source, error) from None
        raise
    # The last task's rows, read by the same fold.
    found = gather_parts(table.to_batches(), Gathered(cell_limit=cell_limit, topic_limit=topic_limit))
    return _checked(found, topic_limit)


def _checked(found: Gathered, topic_limit: int) -> Statistic:
    if TOO_MANY_TOPICS in found.quarantined:
        raise TooManyTopics(topic_limit, found.samples[TOO_MANY_TOPICS])
    by_count = sorted(found.quarantined.items(), key=lambda item: (-item[1], item[0]))
    statistic = Statistic(
        cells=dict(sorted(found.cells.items())),
        quarantined={reason: count for reason, count in by_count if reason not in REMARKS},
        remarked={remark: count for remark, count in by_count if remark in REMARKS},
        samples={reason: found.samples[reason] for reason, _ in by_count},
    )
    if statistic.rows == 0:
        raise EmptyHistory
    refuse_wrong_unit(statistic.rows, statistic.quarantined, statistic.samples)
    if statistic.timers == 0:
        raise NoValidRows(statistic.rows, statistic.quarantined, statistic.samples)
    return statistic


def _handed_over(history: DataFrame) -> DataFrame:
    """Select the columns for the kernel. The key is not needed: a key column in a columnar file is not even read."""
    return history.select(
        columns.PUBLISH_MS,
        columns.DUE_MS,
        columns.SIZE_BYTES,
        # Of a row in quarantine only the reason and the text are used, and its topic may be of any length.
        F.when(F.col(columns.REASON).isNull(), F.col(columns.TOPIC)).alias(columns.TOPIC),
        columns.REASON,
        columns.REMARK,
        columns.RAW,
    )


def _made_of_rows(cell_limit: int, topic_limit: int) -> Any:
    def kernel(batches: Iterator[Any]) -> Iterator[Any]:
        gathered = gather_rows(batches, Gathered(cell_limit=cell_limit, topic_limit=topic_limit))
        yield from gathered.parts(_this_task())

    return lambda frame: frame.mapInArrow(kernel, columns.PARTS_SCHEMA)


def _gathered_in(tasks: int, cell_limit: int, topic_limit: int) -> Any:
    def kernel(batches: Iterator[Any]) -> Iterator[Any]:
        gathered = gather_parts(batches, Gathered(cell_limit=cell_limit, topic_limit=topic_limit))
        yield from gathered.parts(_this_task())

    # By number and not by hash: with few parts each task gets its share. More tasks than the session's shuffle
    # partitions would be started in vain.
    def transform(frame: DataFrame) -> DataFrame:
        shuffles = int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 200)
        number = min(tasks, shuffles)
        to = F.pmod(F.col(columns.TASK), F.lit(number))
        return frame.repartitionById(number, to).mapInArrow(kernel, columns.PARTS_SCHEMA)

    return transform


def _this_task() -> int:
    context = TaskContext.get()
    assert context is not None  # kernels run in tasks only
    return context.partitionId()

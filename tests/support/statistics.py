"""The statistic of an assessed history alone, without its sends."""

from __future__ import annotations

from pyspark.sql import DataFrame

from timewheel.spark_planner.exact.sends import read
from timewheel.spark_planner.summary.cells import CELL_LIMIT
from timewheel.spark_planner.summary.statistic import TOPIC_LIMIT, Statistic


def statistic_of(
    history: DataFrame, *, cell_limit: int = CELL_LIMIT, topic_limit: int = TOPIC_LIMIT, source: str = "given"
) -> Statistic:
    statistic, stored = read(history, cell_limit=cell_limit, topic_limit=topic_limit, source=source)
    stored.unpersist()
    return statistic

"""Native gaps by the day of sending, counted in one pass over the stored sends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - the name that every user of PySpark knows
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from timewheel.core.durations import DAY_MS
from timewheel.spark_planner.exact.pieces import rows_of, sends_of
from timewheel.spark_planner.exact.sends import CachedSends, few_at_once
from timewheel.spark_planner.history.columns import TOPIC
from timewheel.spark_planner.history.topics import rows_by_topic
from timewheel.spark_planner.summary.daily_gaps import FINEST_STEP_MS, DailyGaps

__all__ = ["daily_gaps"]

MAX_CHANGES = 2_000_000
"""Changes of all topics and days together: 50 MB on the driver."""
MOMENTS_A_DAY = 4_096
"""Most moments for the timers of a day,"""
LEAST_MOMENTS = 64
"""and fewest moments, for any number of topics and days."""

_DAY, _MOMENT, _CHANGE = "day", "moment", "change"
_SCHEMA = StructType(
    [
        StructField(TOPIC, StringType(), nullable=False),
        *(StructField(name, LongType(), nullable=False) for name in (_DAY, _MOMENT, _CHANGE)),
    ]
)
_ARROW = to_arrow_schema(_SCHEMA)


def daily_gaps(cached: CachedSends) -> dict[str, DailyGaps]:
    """Count the native gaps of every topic on a single partition, by day; without gaps the result has no changes.

    The first timer of a piece is not compared with the timer before it: at most one gap per piece is missed.
    """
    step_ms = _step_ms(cached)

    def kernel(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in rows_of(batch):
                sends = sends_of(row)
                found = DailyGaps.of_sends(sends.publish_ms, sends.due_ms, step_ms)
                named = pa.repeat(pa.scalar(row[TOPIC]), len(found))
                yield pa.RecordBatch.from_arrays(
                    [named, *map(pa.array, (found.day, found.moment, found.change))], schema=_ARROW
                )

    summed = (
        cached.frame.mapInArrow(kernel, _SCHEMA)
        .groupBy(TOPIC, _DAY, _MOMENT)
        .agg(F.sum(_CHANGE).alias(_CHANGE))
        .where(F.col(_CHANGE) != 0)
    )
    with few_at_once(cached.frame.sparkSession):
        table = summed.toArrow()
    names, rows_of_each = rows_by_topic(table[TOPIC])
    columns = [np.ascontiguousarray(table[name].to_numpy()) for name in (_DAY, _MOMENT, _CHANGE)]
    found = {}
    for name, rows in zip(names, rows_of_each, strict=True):
        day, moment, change = (column[rows] for column in columns)
        found[name] = DailyGaps.merged([DailyGaps(step_ms=step_ms, day=day, moment=moment, change=change)])
    return {piece.topic: found.get(piece.topic, DailyGaps.none(step_ms)) for piece in cached.pieces}


def _step_ms(cached: CachedSends) -> int:
    """Return the step that bounds the number of stored changes, for histories and delays of any length."""
    days = {(piece.topic, day) for piece in cached.pieces for day in _days(piece.first_ms, piece.last_ms)}
    moments = min(max(MAX_CHANGES // max(len(days), 1), LEAST_MOMENTS), MOMENTS_A_DAY)
    longest_ms = max((piece.last_due_ms - piece.first_ms for piece in cached.pieces), default=0)
    step_ms = FINEST_STEP_MS
    while step_ms * moments < longest_ms:
        step_ms *= 2
    return step_ms


def _days(first_ms: int, last_ms: int) -> range:
    return range(first_ms // DAY_MS, last_ms // DAY_MS + 1)

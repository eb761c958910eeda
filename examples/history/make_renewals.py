"""How renewals.parquet was made: ``python -m examples.history.make_renewals``. It needs the extra ``planner``.

A service of subscriptions takes over 45,000 contracts within five days. Most timers remind of a renewal, at 09:00 UTC
of a day within the next two months; some retry a payment soon, some ask a day later whether all is well. It is small,
and still more than one topic under the broker's delay can hold: from the third week to the sixth, over 10,000 gaps.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from examples.history.generate import DAY_AND_NIGHT, Exponential, Fixed, OnTheClock, Share, Workload, generate
from timewheel.core import DAY_MS, HOUR_MS
from timewheel.spark_planner import local_session

PATH = Path(__file__).with_name("renewals.parquet")
ROWS = 45_000
RENEWALS = Workload(
    span_ms=5 * DAY_MS,
    publishing=DAY_AND_NIGHT,
    shares=(
        Share(weight=0.85, delay=OnTheClock(time_of_day_ms=9 * HOUR_MS, least_days=1, max_days=60)),
        Share(weight=0.1, delay=Exponential(mean_ms=2 * HOUR_MS)),
        Share(weight=0.05, delay=Fixed(delay_ms=DAY_MS)),
    ),
    least_bytes=400,
    max_bytes=400,
    drawn_together=1,
)


def renewals(spark: SparkSession) -> pa.Table:
    """The rows of the file, in its order: publish time, due time and size."""
    history = generate(spark, RENEWALS, rows=ROWS, seed=2026)
    return history.select("publish_ms", "due_ms", "size_bytes").toArrow()


def main() -> None:
    spark = local_session(cores=1)
    try:
        table = renewals(spark)
    finally:
        spark.stop()
    # Publish times ascend by little, so that their differences are small; the rest repeats itself.
    pq.write_table(
        table,
        PATH,
        compression="zstd",
        compression_level=19,
        use_dictionary=["due_ms", "size_bytes"],  # pyright: ignore[reportArgumentType] # pyarrow says bool, and takes names
        column_encoding={"publish_ms": "DELTA_BINARY_PACKED"},
    )
    print(f"{PATH.name}: {len(table)} timers, {PATH.stat().st_size} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()

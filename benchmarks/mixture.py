"""The history that the planner's benchmark asks about: the mixture of the docs, in one Parquet file of any length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from timewheel.core import DAY_MS, HOUR_MS, MINUTE_MS

__all__ = ["BEGIN_MS", "DAYS", "LONGEST_MS", "SEED", "write_mixture"]

SEED = 7
DAYS = 14
BEGIN_MS = 1_767_225_600_000
LONGEST_MS = 7 * DAY_MS
"""Of the uniform delays; the others are shorter but for one in 10**400."""
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
                "topic": pa.array([""] * count),
            }
        )
        writer = writer or pq.ParquetWriter(path, group.schema)
        writer.write_table(group)
    writer.close()
    return path

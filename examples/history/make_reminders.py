"""How reminders.parquet was made: ``python examples/history/make_reminders.py``. It needs the extra ``planner``.

Fifteen weeks of a shop that goes on. Every quarter of an hour a job sends two timers for each of its nineteen orders:
a check of the payment in five seconds, and a reminder in 30 to 89 days. So each check, once it is handled, lies between
two reminders that wait for weeks: a gap.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from timewheel.core import DAY_MS, MINUTE_MS, SECOND_MS

PATH = Path(__file__).with_name("reminders.parquet")
SEED = 3
START_MS = 1_767_571_200_000
"""2026-01-05 00:00 UTC, a Monday."""
DAYS, JOBS_A_DAY, ORDERS_A_JOB = 105, 96, 19
CHECK_MS = 5 * SECOND_MS
REMINDER_DAYS = (30, 90)


def reminders() -> pa.Table:
    """The rows of the file, in its order: publish time, delay and the order as key."""
    rng = np.random.default_rng(SEED)
    jobs, orders = DAYS * JOBS_A_DAY, DAYS * JOBS_A_DAY * ORDERS_A_JOB
    begins_ms = START_MS + np.arange(jobs) * (DAY_MS // JOBS_A_DAY) + rng.integers(0, MINUTE_MS, jobs)
    sent_ms = np.repeat(begins_ms, 2 * ORDERS_A_JOB) + np.tile(np.arange(2 * ORDERS_A_JOB), jobs)
    delay_ms = np.stack([np.full(orders, CHECK_MS), rng.integers(*REMINDER_DAYS, orders) * DAY_MS], axis=1).ravel()
    keys = [f"order-{number:06}" for number in np.repeat(np.arange(orders), 2)]
    return pa.table({"publish_ms": sent_ms, "delay_ms": delay_ms, "key": keys})


def main() -> None:
    table = reminders()
    # Publish times and keys ascend by little, so that their differences are small; there are sixty delays.
    pq.write_table(
        table,
        PATH,
        compression="zstd",
        compression_level=19,
        use_dictionary=["delay_ms"],  # pyright: ignore[reportArgumentType] # pyarrow says bool, and takes names
        column_encoding={"publish_ms": "DELTA_BINARY_PACKED", "key": "DELTA_BYTE_ARRAY"},
    )
    print(f"{PATH.name}: {len(table)} timers, {PATH.stat().st_size} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()

"""How reminders.parquet was made: ``python examples/history/make_reminders.py``. It needs the extra ``planner``.

Three weeks of a service that goes on. Forty jobs a day send 150 timers each, within seconds: half of them retry
something soon, the others remind of something in an hour, six hours, a day, three days or seventeen, more or less. So
what is due in seconds lies between what is due in weeks, and every handled retry leaves a gap.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from timewheel.core import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS

PATH = Path(__file__).with_name("reminders.parquet")
SEED = 3
START_MS = 1_767_571_200_000
"""2026-01-05 00:00 UTC, a Monday."""
DAYS, JOBS_A_DAY, TIMERS_A_JOB = 21, 40, 150
RETRY_MS = (2 * SECOND_MS, 8 * SECOND_MS)
REMINDER_HOURS = (1, 6, 24, 72, 17 * 24)


def reminders() -> pa.Table:
    """The rows of the file, in its order: publish time and due time."""
    rng = np.random.default_rng(SEED)
    jobs, timers = DAYS * JOBS_A_DAY, DAYS * JOBS_A_DAY * TIMERS_A_JOB
    begins_ms = START_MS + np.arange(jobs) * (DAY_MS // JOBS_A_DAY) + rng.integers(0, MINUTE_MS, jobs)
    sent_ms = np.repeat(begins_ms, TIMERS_A_JOB) + np.tile(np.arange(TIMERS_A_JOB), jobs)
    reminder_ms = rng.choice(REMINDER_HOURS, timers) * HOUR_MS * rng.uniform(0.9, 1.1, timers)
    delay_ms = np.where(rng.random(timers) < 0.5, rng.integers(*RETRY_MS, timers), reminder_ms)
    # Due at whole seconds, as people's reminders are; and the file is small.
    due_ms = -(-(sent_ms + delay_ms.astype(np.int64)) // SECOND_MS) * SECOND_MS
    return pa.table({"publish_ms": sent_ms, "due_ms": due_ms})


def main() -> None:
    table = reminders()
    # Publish times ascend by little, so that their differences are small.
    pq.write_table(
        table,
        PATH,
        compression="zstd",
        compression_level=19,
        use_dictionary=False,
        column_encoding={"publish_ms": "DELTA_BINARY_PACKED", "due_ms": "DELTA_BINARY_PACKED"},
    )
    print(f"{PATH.name}: {len(table)} timers, {PATH.stat().st_size} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()

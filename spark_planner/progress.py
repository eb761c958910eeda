"""Progress of a job: reports of Spark's tasks, as a stage, a fraction and the remaining seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import SparkSession

from timewheel.spark_planner.running import Running, running

__all__ = ["Progress", "ProgressCallback", "no_report", "told"]

LOOK_INTERVAL_S = 0.5
CANCEL_TIMEOUT_S = 5.0
LEAST_FRACTION = 0.05
"""Least fraction for an estimate of the remaining time: below it the estimate would jump."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a stage of a job.

    Args:
        stage: The stage in a few words.
        fraction: From 0 to 1, never falling within a stage; None: the amount of work is unknown until the end.
        seconds_left: Remaining seconds of this stage at the current speed; None: not known yet.
    """

    stage: str
    fraction: float | None
    seconds_left: float | None


ProgressCallback = Callable[[Progress], None]
"""Callback for progress, called about twice a second, from a thread of its own."""


def no_report(progress: Progress) -> None:
    """Ignore the progress."""
    del progress


@contextmanager
def told(spark: SparkSession, stage: str, on_progress: ProgressCallback, *, one_job: bool) -> Iterator[None]:
    """Report the progress of the Spark jobs that this thread runs inside the block.

    Args:
        spark: The session of the jobs.
        stage: Description of the jobs.
        on_progress: Receives the progress.
        one_job: True if the block runs a single job, so that its tasks are all the work.
    """
    with running(spark, stage) as jobs:
        on_progress(Progress(stage=stage, fraction=0.0 if one_job else None, seconds_left=None))
        ended = threading.Event()
        watcher = threading.Thread(
            target=_watch, args=(jobs, stage, on_progress, ended), name="timewheel-progress", daemon=True
        )
        if one_job:
            watcher.start()
        try:
            yield
        except KeyboardInterrupt:
            # Otherwise Spark would continue. This thread may be in the middle of a call to Spark, so another thread
            # cancels.
            canceller = threading.Thread(target=jobs.cancel, daemon=True)
            canceller.start()
            canceller.join(CANCEL_TIMEOUT_S)
            raise
        finally:
            ended.set()
            if one_job:
                watcher.join()
    on_progress(Progress(stage=stage, fraction=1.0, seconds_left=0.0))


def _watch(jobs: Running, stage: str, on_progress: ProgressCallback, ended: threading.Event) -> None:
    began_s, highest = time.monotonic(), 0.0
    while not ended.wait(LOOK_INTERVAL_S):
        fraction = jobs.fraction()
        if fraction is None:
            return  # the session ends: there is no more progress
        highest = max(highest, fraction)
        spent_s = time.monotonic() - began_s
        left_s = spent_s * (1 - highest) / highest if highest >= LEAST_FRACTION else None
        on_progress(Progress(stage=stage, fraction=highest, seconds_left=left_s))

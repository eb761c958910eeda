"""Telling how far a job is: what Spark's tasks say, as a stage, a fraction and the seconds that are left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import SparkSession

from timewheel.spark_planner.running import Running, running

__all__ = ["Progress", "Tell", "told", "untold"]

LOOK_INTERVAL_S = 0.5
CANCEL_TIMEOUT_S = 5.0
LEAST_FRACTION = 0.05
"""With less done than this a guess at the time left would jump."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far one stage of a job is.

    Args:
        stage: What is done, in a few words.
        fraction: From 0 to 1, never falling within a stage; None: how much there is to do is not known before the end.
        seconds_left: Of this stage, if it goes on as fast; None: nothing can be said yet.
    """

    stage: str
    fraction: float | None
    seconds_left: float | None


Tell = Callable[[Progress], None]
"""Called about twice a second, from a thread of its own."""


def untold(progress: Progress) -> None:
    """Tell nobody."""
    del progress


@contextmanager
def told(spark: SparkSession, stage: str, tell: Tell, *, one_job: bool) -> Iterator[None]:
    """Tell how far the Spark jobs are that this thread runs inside the block.

    Args:
        spark: Their session.
        stage: What they do.
        tell: Who is told.
        one_job: They are one job, so that its tasks are all that there is to do.
    """
    with running(spark, stage) as jobs:
        tell(Progress(stage=stage, fraction=0.0 if one_job else None, seconds_left=None))
        ended = threading.Event()
        watcher = threading.Thread(
            target=_watch, args=(jobs, stage, tell, ended), name="timewheel-progress", daemon=True
        )
        if one_job:
            watcher.start()
        try:
            yield
        except KeyboardInterrupt:
            # Spark would go on. This thread's line to it may be in the middle of an answer, so another thread tells it.
            canceller = threading.Thread(target=jobs.cancel, daemon=True)
            canceller.start()
            canceller.join(CANCEL_TIMEOUT_S)
            raise
        finally:
            ended.set()
            if one_job:
                watcher.join()
    tell(Progress(stage=stage, fraction=1.0, seconds_left=0.0))


def _watch(jobs: Running, stage: str, tell: Tell, ended: threading.Event) -> None:
    began_s, highest = time.monotonic(), 0.0
    while not ended.wait(LOOK_INTERVAL_S):
        fraction = jobs.fraction()
        if fraction is None:
            return  # the session ends: nothing is left to be told
        highest = max(highest, fraction)
        spent_s = time.monotonic() - began_s
        left_s = spent_s * (1 - highest) / highest if highest >= LEAST_FRACTION else None
        tell(Progress(stage=stage, fraction=highest, seconds_left=left_s))

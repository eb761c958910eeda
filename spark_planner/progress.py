"""Progress and cancellation of Spark jobs: a stage, a fraction and the remaining seconds.

A session of this process counts tasks by job group, which only its context knows. A session of Spark Connect has no
context; its server reports the progress of each request to the client.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

_GROUP, _DESCRIPTION = "spark.jobGroup.id", "spark.job.description"
_CONNECT = "pyspark.sql.connect."


class Running(Protocol):
    """The jobs that this thread runs within a block."""

    def fraction(self) -> float | None:
        """Return the fraction of completed tasks, from 0 to 1; None: the session has ended."""

    def cancel(self) -> None:
        """Cancel the jobs; called from another thread."""


@contextmanager
def running(spark: SparkSession, what: str) -> Iterator[Running]:
    """Watch the jobs of a block; the caller's job settings of this thread are restored, also after an error."""
    # After an interrupt they are not restored: this thread may be in the middle of a call to Java.
    # Checked by name: an import of the class needs libraries that only users of Connect have.
    jobs = _OfServer(spark) if type(spark).__module__.startswith(_CONNECT) else _InProcess(spark, what)
    try:
        yield jobs
    except KeyboardInterrupt:
        raise
    except BaseException:
        jobs.end()
        raise
    jobs.end()


class _InProcess:
    """Jobs of a session in this process, by job group."""

    def __init__(self, spark: SparkSession, what: str) -> None:
        self._context = spark.sparkContext
        self._group = f"timewheel-{uuid4().hex}"
        self._before = {name: self._context.getLocalProperty(name) for name in (_GROUP, _DESCRIPTION)}
        self._context.setJobGroup(self._group, what)

    def fraction(self) -> float | None:
        try:
            return self._fraction()
        except Py4JError:
            return None

    def _fraction(self) -> float:
        tracker = self._context.statusTracker()
        done, known = 0, 0
        for job_id in tracker.getJobIdsForGroup(self._group):
            job = tracker.getJobInfo(job_id)
            for stage_id in job.stageIds if job else ():
                stage = tracker.getStageInfo(int(stage_id))
                if stage is not None:
                    done, known = done + stage.numCompletedTasks, known + stage.numTasks
        return done / known if known else 0.0

    def cancel(self) -> None:
        self._context.cancelJobGroup(self._group)

    def end(self) -> None:
        for name, value in self._before.items():
            self._context.setLocalProperty(name, value)  # type: ignore[arg-type] # None takes it away


class _OfServer:
    """Jobs of a session of a server, by a tag on the requests of this thread."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._tag = f"timewheel-{uuid4().hex}"
        self._tasks: Mapping[int, tuple[int, int]] = {}
        spark.addTag(self._tag)
        spark.registerProgressHandler(self._reported)  # type: ignore[arg-type] # any callable will do

    def _reported(self, stages: Iterable[Any] | None, **_: Any) -> None:
        # A new mapping each time, since another thread reads it.
        self._tasks = {
            **self._tasks,
            **{stage.stage_id: (stage.num_completed_tasks, stage.num_tasks) for stage in stages or ()},
        }

    def fraction(self) -> float | None:
        tasks = self._tasks.values()
        known = sum(number for _, number in tasks)
        return sum(done for done, _ in tasks) / known if known else 0.0

    def cancel(self) -> None:
        self._spark.interruptTag(self._tag)

    def end(self) -> None:
        self._spark.removeProgressHandler(self._reported)  # type: ignore[arg-type]
        self._spark.removeTag(self._tag)


LOOK_INTERVAL_S = 0.5
CANCEL_TIMEOUT_S = 5.0
LEAST_FRACTION = 0.05  # least fraction for an estimate of the remaining time: below it the estimate would jump


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
    """Report the progress of the Spark jobs that this thread runs inside the block."""
    # ``one_job``: the block runs a single job, so that its tasks are all the work.
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

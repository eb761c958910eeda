"""Spark sessions: a local one for the command line, tests and benchmarks; progress and cancellation of jobs on any.

Java starts in half the time with an archive of the classes that it loaded and checked before (class data sharing). The
first local session of a machine has Java write one into the user's cache folder when it ends; later sessions read it.
Java itself refuses an archive that is damaged or belongs to another Java or another Spark, and starts without it.

All other functions of the planner receive their session, so that they also run in a notebook or on a cluster.

A session of this process counts tasks by job group, which only its context knows. A session of Spark Connect has no
context; its server reports the progress of each request to the client.
"""

from __future__ import annotations

import fcntl
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from shutil import which
from typing import Any
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from timewheel.core.user_cache import cache_folder

_GROUP, _DESCRIPTION = "spark.jobGroup.id", "spark.job.description"
_CONNECT = "pyspark.sql.connect."


class _InProcess:
    """Jobs of a session in this process, by job group."""

    def __init__(self, spark: SparkSession, what: str) -> None:
        self._context = spark.sparkContext
        self._group = f"timewheel-{uuid4().hex}"
        self._before = {name: self._context.getLocalProperty(name) for name in (_GROUP, _DESCRIPTION)}
        self._context.setJobGroup(self._group, what)

    def fraction(self) -> float | None:
        """Return the fraction of completed tasks, from 0 to 1; None: the session has ended."""
        done, known = 0, 0
        try:
            tracker = self._context.statusTracker()
            for job_id in tracker.getJobIdsForGroup(self._group):
                job = tracker.getJobInfo(job_id)
                for stage_id in job.stageIds if job else ():
                    stage = tracker.getStageInfo(int(stage_id))
                    if stage is not None:
                        done, known = done + stage.numCompletedTasks, known + stage.numTasks
        except Py4JError:
            return None
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
    del progress


@contextmanager
def told(spark: SparkSession, stage: str, on_progress: ProgressCallback, *, one_job: bool) -> Iterator[None]:
    """Report the progress of the Spark jobs that this thread runs inside the block."""
    # ``one_job``: the block runs a single job, so that its tasks are all the work.
    # The session's class is checked by name: its import needs libraries that only users of Connect have.
    jobs = _OfServer(spark) if type(spark).__module__.startswith(_CONNECT) else _InProcess(spark, stage)
    ended = threading.Event()
    watcher = threading.Thread(
        target=_watch, args=(jobs, stage, on_progress, ended), name="timewheel-progress", daemon=True
    )
    is_interrupted = False
    try:
        on_progress(Progress(stage=stage, fraction=0.0 if one_job else None, seconds_left=None))
        if one_job:
            watcher.start()
        yield
    except KeyboardInterrupt:
        # Otherwise Spark would continue. This thread may be in the middle of a call to Spark, so another thread
        # cancels, and the caller's job settings are not restored.
        is_interrupted = True
        canceller = threading.Thread(target=jobs.cancel, daemon=True)
        canceller.start()
        canceller.join(CANCEL_TIMEOUT_S)
        raise
    finally:
        ended.set()
        if watcher.is_alive():
            watcher.join()
        if not is_interrupted:
            jobs.end()
    _CLASSES.release(has_run=True)
    on_progress(Progress(stage=stage, fraction=1.0, seconds_left=0.0))


def _watch(jobs: _InProcess | _OfServer, stage: str, on_progress: ProgressCallback, ended: threading.Event) -> None:
    began_s, highest = time.monotonic(), 0.0
    while not ended.wait(LOOK_INTERVAL_S):
        fraction = jobs.fraction()
        if fraction is None:
            return  # the session ends: there is no more progress
        highest = max(highest, fraction)
        spent_s = time.monotonic() - began_s
        left_s = spent_s * (1 - highest) / highest if highest >= LEAST_FRACTION else None
        on_progress(Progress(stage=stage, fraction=highest, seconds_left=left_s))


ARROW_BATCH_ROWS = 65_536
"""Rows that Spark hands to a Python kernel at once: with Spark's 10,000 numpy's overhead would exceed its work; ten
times this number only makes the batches (here 4 MB) larger.
"""

_JAVA_WARNING = re.compile(rb"WARNING: |\[[\d.]+s\]\[warning\]")
"""Start of Java's own warnings; a line of its log begins with a date, and Spark's errors with other words."""
_LAST_WORDS_S = 10.0  # time for the remaining output of a Java process that could not start
_STDERR = 2
_PYTHON = "PYSPARK_PYTHON"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_JAVA_FLAGS = (
    # Java's log uses our file: errors only, and without the lines that Spark prints when it picks its own file.
    f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}",
    "-XX:+IgnoreUnrecognizedVMOptions",
    # Rows are short-lived, and two cores have no thread to spare for a collector.
    "-XX:+UseSerialGC",
    # The second compiler takes half of Java's CPU in a session of seconds, and halves that of ten million rows: so it
    # compiles what ran a hundred thousand times. All are 20 times Java's own.
    "-XX:Tier4InvocationThreshold=100000",
    "-XX:Tier4MinInvocationThreshold=12000",
    "-XX:Tier4CompileThreshold=300000",
    "-XX:Tier4BackEdgeThreshold=800000",
)


def local_settings(*, cores: int | None = None, memory: str = "2g") -> dict[str, str]:
    """Return the settings of a local session, each with its reason in the code."""
    # ``memory`` is the heap of the only Java process, in Java's notation; Python kernels need their own memory on top.
    return {
        "spark.master": f"local[{cores or '*'}]",
        # A single process is driver and executor, so this heap sorts and shuffles too; Spark's default of 1g spills
        # early.
        "spark.driver.memory": memory,
        # Only this process connects: a host name that does not resolve must not stop a plan.
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        _JAVA_OPTIONS: " ".join(_JAVA_FLAGS),
        # No web server on a port of its own; the terminal has our progress, and Spark's bar would write over it.
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Workers are forked with their imports done.
        "spark.python.daemon.module": f"{__package__}.worker_daemon",
        # Linux's malloc otherwise keeps what a worker has freed: a third of its memory after a few tasks.
        "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(1 << 25),
        "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(1 << 25),
        # Spark creates this folder when it looks up a table's name, by default in the current folder.
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir(), f"timewheel-spark-{os.getuid()}")),
        # A time without a zone in a history is UTC, on every machine.
        "spark.sql.session.timeZone": "UTC",
        # pandas writes times in nanoseconds, for which Spark has no type: as integers they can be read.
        "spark.sql.legacy.parquet.nanosAsLong": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_BATCH_ROWS),
        # With any limit but the highest on a batch's bytes, Spark 4.3 measures the batch after every single row: 0.3 us
        # each, two thirds of a pass. Rows are a few numbers; the text of some rows is bounded (`quarantine`).
        "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
        # 200 shuffle tasks on a few cores cost more than the shuffle; four per core leave room against skew.
        "spark.sql.shuffle.partitions": str(4 * (cores or 4)),
    }


def local_session(
    *, cores: int | None = None, memory: str = "2g", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Start Spark in a Java process, to be stopped by the caller; an active session is returned unchanged.

    Args:
        cores: See `local_settings`.
        memory: See `local_settings`.
        settings: Further Spark settings, which take precedence.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    conf = SparkConf(loadDefaults=False).setAppName("timewheel planner")
    conf.setAll(list({**local_settings(cores=cores, memory=memory), **(settings or {})}.items()))
    with _workers_run(sys.executable):
        if SparkContext._gateway is None:  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - it outlives a session
            SparkContext._ensure_initialized(gateway=_java(conf))  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        session: SparkSession = SparkSession.builder.config(conf=conf).getOrCreate()
    return session


class ClassArchive:
    """The archive of Java's classes: read by Java if it is there, else written by the next Java when it ends.

    Java keeps ``NAME.lock`` locked while it writes ``NAME.new``, so that no other session waits for it, or reads half
    of it. The lock file is empty until a job has run, which has loaded the classes that matter.
    """

    def __init__(self) -> None:
        self._lock: int | None = None  # held until a job has run; Java has inherited it

    def options(self, folder: Path, name: str) -> str:
        """Return Java's options for an archive; empty: there is none, and this session writes none."""
        if not _QUOTABLE.fullmatch(f"{folder}/{name}"):
            return ""
        new = folder / f"{name}.new"
        try:
            ready = next(filter(_is_whole, folder.glob(f"{name}.*.jsa")), None)
            if ready is None:
                folder.mkdir(parents=True, exist_ok=True)
                self._lock = os.open(new.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not (os.read(self._lock, 1) and _has_header(new)):
                    return f'"-XX:ArchiveClassesAtExit={new}"'
                ready = new.replace(folder / f"{name}.{new.stat().st_size}.jsa")
                os.ftruncate(self._lock, 0)  # an archive that is lost will be written again
        except OSError:  # another session writes it, Java could not, or nothing can be written here
            self.release()
            return ""
        self.release()
        with suppress(OSError):  # a disk that is read-only has an archive all the same
            os.utime(ready)
            for other in folder.glob(f"{_ARCHIVE}*"):
                if other.stat().st_mtime < time.time() - _UNUSED_S:
                    other.unlink()
        # Java maps it into memory as it is: verified, it cannot be damaged, and a shorter file would end Java.
        return f'"-XX:SharedArchiveFile={ready}" -XX:+VerifySharedSpaces'

    @property
    def inherited(self) -> tuple[int, ...]:
        """The file that the started Java has to keep open."""
        return () if self._lock is None else (self._lock,)

    def release(self, *, has_run: bool = False) -> None:
        if self._lock is not None:
            with suppress(OSError):
                if has_run:
                    os.write(self._lock, b"run")
            os.close(self._lock)
            self._lock = None


def _is_whole(archive: Path) -> bool:
    return archive.stem.endswith(f".{archive.stat().st_size}")


def _has_header(archive: Path) -> bool:
    """Return whether Java wrote an archive to its end: the header comes last."""
    with archive.open("rb") as written:
        return any(written.read(4))


_ARCHIVE = "spark-"
_UNUSED_S = 30 * 86_400.0  # an archive of another Java or Spark, of 180 MB
_QUOTABLE = re.compile(r"[\w/.@+=, -]+")  # Java separates archives by colons
_CLASSES = ClassArchive()


def _archive_options() -> str:
    """Return Java's options for the archive of this Java and this Spark; empty: without an archive."""
    home = os.environ.get("JAVA_HOME")
    java = which("java", path=f"{home}/bin" if home else None)
    try:
        of = [Path(java or "java").resolve(), Path(_find_spark_home(), "jars")]
        known = repr([(str(path), path.stat().st_mtime_ns) for path in of])
        return _CLASSES.options(cache_folder(), f"{_ARCHIVE}{sha256(known.encode()).hexdigest()[:16]}")
    except (OSError, RuntimeError):  # no Java, of which Spark tells; no home folder
        return ""


def _java(conf: SparkConf) -> Any:
    """Start Java as Spark does, and pass on what it writes to our stderr, except for its own warnings."""
    # Spark gives every Java `--add-modules=jdk.incubator.vector`, and Java warns of that before it runs any code: no
    # option and no log setting silences the warning.
    conf.set(_JAVA_OPTIONS, f"{conf.get(_JAVA_OPTIONS)} {_archive_options()}")
    ours, theirs = os.pipe()
    passing_on = threading.Thread(target=_pass_on, args=(ours,), name="spark-stderr", daemon=True)
    passing_on.start()
    try:
        with os.fdopen(theirs, "wb") as output:
            popen = {"stdout": output, "stderr": output, "pass_fds": _CLASSES.inherited}
            return launch_gateway(conf, popen_kwargs=popen)  # type: ignore[no-untyped-call]
    except Exception:
        _CLASSES.release()
        passing_on.join(_LAST_WORDS_S)
        raise


def _pass_on(java_output: int) -> None:
    with os.fdopen(java_output, "rb") as lines, suppress(OSError):  # OSError: our stderr is closed
        for line in lines:
            if not _JAVA_WARNING.match(line):
                os.write(_STDERR, line)


@contextmanager
def _workers_run(python: str) -> Iterator[None]:
    """Make Spark's workers run this interpreter, which can import the kernels, and not the first python3 on PATH."""
    # Spark reads the interpreter only from the environment, once, when a session starts.
    before = os.environ.get(_PYTHON)
    os.environ[_PYTHON] = python
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PYTHON]
        else:
            os.environ[_PYTHON] = before

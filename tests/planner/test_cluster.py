"""The planner on a standalone cluster of Spark, handed to its workers as the wheel with ``spark-submit --py-files``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.history.make_renewals import PATH, ROWS
from tests.support.distribution import build_wheel, copy_of_checkout
from tests.support.processes import ran
from timewheel.core.durations import DAY_MS
from timewheel.testing import eventually
from timewheel.testing.ports import LOOPBACK, free_ports

if TYPE_CHECKING:
    from tests.conftest import Evidence

PROGRAM = Path(__file__).parents[2] / "examples" / "plan_on_cluster.py"
ENVIRONMENT = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": LOOPBACK}
SETTINGS = {
    # Nothing but this machine is reached, and no web server is started.
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.host": LOOPBACK,
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
}


@contextmanager
def spark_class(folder: Path, name: str, *options: object) -> Iterator[Path]:
    """Run a class of Spark in a process of its own; yields its log."""
    log = folder / f"{name.rpartition('.')[2]}-{len(list(folder.glob('*.log')))}.log"
    command = [str(Path(sys.executable).with_name("spark-class")), name, *map(str, options)]
    with (
        log.open("w") as out,
        subprocess.Popen(command, env=ENVIRONMENT, stdout=out, stderr=out, cwd=folder) as process,
    ):
        try:
            yield log
        finally:
            process.terminate()


@contextmanager
def cluster(folder: Path, workers: int) -> Iterator[str]:
    """Run a master and workers of a core and 600 MB each; yields the master's address."""
    port, *ports = free_ports(2 + workers)
    master = f"spark://{LOOPBACK}:{port}"
    deploy = "org.apache.spark.deploy"
    with ExitStack() as stack:
        where = "--host", LOOPBACK, "--webui-port"
        log = stack.enter_context(spark_class(folder, f"{deploy}.master.Master", *where, ports[0], "--port", port))
        eventually(lambda: "New state: ALIVE" in log.read_text(), 60)
        for number in range(workers):
            options = "--cores", 1, "--memory", "600m", "--work-dir", folder / "work" / str(number), master
            stack.enter_context(spark_class(folder, f"{deploy}.worker.Worker", *where, ports[1 + number], *options))
        eventually(lambda: log.read_text().count("Registering worker") == workers, 60)
        yield master


def submitted(folder: Path, master: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a program with ``spark-submit`` to its end."""
    settings = [text for name, value in SETTINGS.items() for text in ("--conf", f"{name}={value}")]
    submit = Path(sys.executable).with_name("spark-submit")
    done = ran([submit, "--master", master, *settings, *arguments], cwd=folder, env=ENVIRONMENT, timeout=1_100)
    assert done.returncode == 0, done.stderr[-3_000:]
    return done


def planned(folder: Path, master: str, *options: object) -> tuple[bytes, bytes]:
    """Run the example; returns the plan file and the page."""
    folder.mkdir()
    submitted(folder, master, *options, PROGRAM, PATH, "plan.toml", "why.html")
    return (folder / "plan.toml").read_bytes(), (folder / "why.html").read_bytes()


@pytest.mark.proof
def test_a_cluster_writes_the_plan_and_the_page_of_one_process(tmp_path: Path, evidence: Evidence) -> None:
    wheel = build_wheel(copy_of_checkout(tmp_path / "checkout", links=True), tmp_path / "wheel")
    # What does not end in .zip, Spark gives to nobody but the driver.
    package = wheel.rename(tmp_path / "timewheel.zip")
    with cluster(tmp_path, workers=2) as master:
        plan, page = planned(tmp_path / "cluster", master, "--py-files", package)
    assert len({copy.parents[2] for copy in (tmp_path / "work").rglob(package.name)}) == 2, "both workers had the wheel"
    assert (plan, page) == planned(tmp_path / "alone", "local[2]")
    assert f"{ROWS:,} timers".encode() in page
    evidence(
        "the planner on a master and two workers, beside one process",
        {"timers": ROWS, "plan": "the same bytes", "page": "the same bytes"},
        on_broker=False,
    )


TIMERS, TOPICS = 2_000_000, 4_000
FLEET_PROGRAM = r"""
import json
import os
import re
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.plan import Plan
from timewheel.spark_planner.fleet import FLEET_TOPICS, plan_all
from timewheel.spark_planner.history.read import read_history
from timewheel.spark_planner.job import survey


def base_of(topic):
    return Plan(due_topic=f"persistent://acme/fleet/{topic}", subscriptions=("billing",))


def most_mb(process):
    return int(re.search(r"VmHWM:\s*(\d+)", Path(f"/proc/{process}/status").read_text())[1]) * 1_024 / 1e6


spark = SparkSession.builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")  # Spark's warnings have stacks too
history = survey(read_history(spark, sys.argv[1]), topic_limit=FLEET_TOPICS)
profile = BrokerProfile.from_mapping({"base": "4.0", "name": "small", "gap_limit_ranges": 600})
fleet = plan_all(history, base_of, profile, most=2, as_is=True)
figures = {
    "timers": history.statistic.timers,
    "topics": len(fleet.topics),
    "planned": sum(planned.keeps_limits for planned in fleet.planned.values()),
    "Python MB": round(most_mb(os.getpid())),
    "Java MB": round(most_mb(os.getppid())),
}
print("FOUND", json.dumps(figures))
spark.stop()
"""


@pytest.mark.proof
@pytest.mark.timeout(1_200)
def test_four_thousand_topics_are_planned_with_a_driver_under_a_gigabyte(tmp_path: Path, evidence: Evidence) -> None:
    rng = np.random.default_rng(6)
    share = 1 / np.sqrt(np.arange(1, TOPICS + 1))
    sent_ms = 1_767_571_200_000 + np.sort(rng.integers(0, 60 * DAY_MS, TIMERS))
    topic = pa.array(rng.choice(TOPICS, TIMERS, p=share / share.sum()).astype(np.int32))
    names = pa.array([f"topic-{number:05}" for number in range(TOPICS)])
    columns = {
        "publish_ms": sent_ms,
        "due_ms": sent_ms + rng.integers(0, 30 * DAY_MS, TIMERS),
        "topic": pa.DictionaryArray.from_arrays(topic, names),
    }
    pq.write_table(pa.table(columns), tmp_path / "fleet.parquet")
    (tmp_path / "program.py").write_text(FLEET_PROGRAM)
    # Java that runs out of memory would otherwise go on without an answer.
    options = ["--driver-java-options", "-XX:+ExitOnOutOfMemoryError", "--executor-memory", "1400m"]
    # Spark's default of 200 tasks for each shuffle takes minutes on two cores.
    options += ["--conf", "spark.sql.shuffle.partitions=8"]
    program = tmp_path / "program.py", tmp_path / "fleet.parquet"
    done = submitted(tmp_path, "local-cluster[2,1,2048]", *options, *program)
    assert "\tat " not in done.stderr, "no stack of Java"
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    figures = json.loads(line.removeprefix("FOUND "))
    assert (figures["timers"], figures["topics"], figures["planned"]) == (TIMERS, TOPICS, 2)
    assert figures["Python MB"] + figures["Java MB"] < 1_000
    evidence("a fleet on two workers, with a driver of 512 MB heap", figures, on_broker=False)

"""The planner on a standalone cluster of Spark, handed to its workers as the wheel with ``spark-submit --py-files``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples.history.make_renewals import PATH, ROWS
from tests.support.distribution import build_wheel, copy_of_checkout
from tests.support.processes import ran
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


def planned(folder: Path, master: str, *options: object) -> tuple[bytes, bytes]:
    """Run the example; returns the plan file and the page."""
    folder.mkdir()
    settings = [text for name, value in SETTINGS.items() for text in ("--conf", f"{name}={value}")]
    submit = Path(sys.executable).with_name("spark-submit")
    command = [submit, "--master", master, *settings, *options, PROGRAM, PATH, "plan.toml", "why.html"]
    done = ran(command, cwd=folder, env=ENVIRONMENT, timeout=500)
    assert done.returncode == 0, done.stderr[-3_000:]
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

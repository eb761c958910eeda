"""The planner on a cluster of two workers, handed to them as its wheel with ``spark-submit --py-files``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples.history.make_renewals import PATH, ROWS
from tests.support.distribution import build_wheel, copy_of_checkout
from tests.support.processes import ran

if TYPE_CHECKING:
    from tests.conftest import Evidence

PROGRAM = """
import json
import sys

from pyspark.sql import SparkSession

from timewheel.core.durations import DAY_MS
from timewheel.core.plan import Native, Plan, Tiered
from timewheel.core.broker_profile import BrokerProfile
from timewheel.spark_planner.job import plan_for
from timewheel.spark_planner.job import survey
from timewheel.spark_planner.history.read import read_history


def where(number):
    import os
    import timewheel.core

    return os.environ["SPARK_EXECUTOR_DIRS"], timewheel.core.__file__


spark = SparkSession.builder.getOrCreate()
history = survey(read_history(spark, sys.argv[1]))
schemes = [Native(), Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS, 10 * DAY_MS))]
plans = [
    Plan(due_topic="persistent://acme/crm/a", subscriptions=("b",), scheme=scheme, max_delay_ms=90 * DAY_MS)
    for scheme in schemes
]
planned = plan_for(history, "", plans[0], BrokerProfile.named("4.0"), candidates=plans, as_is=True)
workers = spark.sparkContext.parallelize(range(8), 8).map(where).collect()
found = {
    "timers": history.statistic.timers,
    "counted": planned.native.replay.peak_of_total.gap_count,
    "predicted": planned.native.evaluation.peak_gaps,
    "folders": sorted({folder for folder, _ in workers}),
    "modules": sorted({module for _, module in workers}),
}
print("FOUND", json.dumps(found))
spark.stop()
"""


@pytest.mark.proof
def test_two_workers_with_the_wheel_find_what_one_process_does(tmp_path: Path, evidence: Evidence) -> None:
    wheel = build_wheel(copy_of_checkout(tmp_path / "checkout", links=True), tmp_path / "wheel")
    package = wheel.rename(
        tmp_path / "timewheel.zip"
    )  # what does not end in .zip, Spark gives to nobody but the driver
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    settings = {
        # Nothing but this machine is reached, and no web server is started.
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.executor.memory": "512m",
    }
    options = [text for name, value in settings.items() for text in ("--conf", f"{name}={value}")]
    submit = Path(sys.executable).with_name("spark-submit")
    done = ran(
        [submit, "--master", "local-cluster[2,1,512]", *options, "--py-files", package, program, PATH],
        cwd=tmp_path,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    found = json.loads(line.removeprefix("FOUND "))
    assert found["timers"] == ROWS
    assert found["counted"] == 11_280  # as `timewheel plan` counts it in one process
    assert found["predicted"] == pytest.approx(found["counted"], rel=0.01)
    assert len(found["folders"]) == 2
    assert all(package.name in module for module in found["modules"])
    evidence(
        "the planner on a cluster of two workers",
        {"timers": found["timers"], "counted": found["counted"], "predicted": found["predicted"]},
        on_broker=False,
    )

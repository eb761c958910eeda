"""The planner on Spark Connect: a session that is a client of a server, with DataFrames and nothing else of Spark."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from examples.history.make_renewals import PATH, ROWS
from tests.support.checkout import ROOT
from tests.support.processes import ran

PROGRAM = """
import json
import sys
import threading
import time
import _thread

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from timewheel.core import DAY_MS, BrokerProfile, Native, Plan, Tiered
from timewheel.spark_planner import plan_for, read_history, survey
from timewheel.spark_planner.session import told

spark = SparkSession.builder.remote("local[2]").getOrCreate()
spark.conf.set("spark.sql.shuffle.partitions", "2")
stages, marks, began_s = [], {}, time.monotonic()


def on_progress(progress):
    stages.append((progress.stage, progress.fraction))
    marks.setdefault(progress.stage, time.monotonic() - began_s)


history = survey(read_history(spark, sys.argv[1]), on_progress=on_progress)
schemes = [Native(), Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS, 10 * DAY_MS))]
plans = [
    Plan(due_topic="persistent://acme/crm/a", subscriptions=("b",), scheme=scheme, max_delay_ms=90 * DAY_MS)
    for scheme in schemes
]
profile = BrokerProfile.named("4.0")
planned = plan_for(history, "", plans[0], profile, candidates=plans, as_is=True, on_progress=on_progress)
daily = history.survey(on_progress)

# And what is interrupted ends, on the server as well.
interrupted = False
slow = spark.range(1 << 40, numPartitions=2).select(F.sum(F.hash("id")))
try:
    with told(spark, "endless", on_progress, one_job=True):
        threading.Timer(3.0, _thread.interrupt_main).start()
        slow.collect()
except KeyboardInterrupt:
    interrupted = True
marks["end"] = time.monotonic() - began_s
print("FOUND", json.dumps({
    "kind": type(spark).__module__,
    "timers": history.statistic.timers,
    "counted": planned.native.replay.peak_of_total.gap_count,
    "daily": daily.gaps[""].peak,
    "plan": [type(planned.plan.scheme).__name__, planned.plan.partitions],
    "seconds": {name: round(at_s) for name, at_s in marks.items()},
    "stages": sorted({stage for stage, _ in stages}),
    "fractions": sorted({round(fraction, 2) for stage, fraction in stages if stage == "endless" and fraction}),
    "interrupted": interrupted,
    "after": spark.range(10).count(),
}))
spark.stop()
"""


@pytest.mark.proof
def test_a_short_plan_by_a_client_of_a_server_is_that_of_one_process(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))},
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = ran([sys.executable, program, PATH], cwd=tmp_path, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3_000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    found = json.loads(line.removeprefix("FOUND "))
    assert found["kind"].startswith("pyspark.sql.connect")
    assert found["timers"] == ROWS
    assert found["counted"] == 11_280  # as `timewheel plan` counts it in one process
    assert found["daily"] == pytest.approx(11_273, rel=0.01)
    assert found["plan"] == ["Native", 2]
    assert {"reading the history", "putting the history in order", "endless"} <= set(found["stages"])
    assert found["interrupted"]
    assert found["after"] == 10


"""Where a session of this process is watched: there is no other way to know how far its jobs are."""

"""Plan on a Spark cluster, with the history where the cluster has it.

``spark-submit --py-files timewheel.zip plan_on_cluster.py HISTORY PLAN REPORT``

timewheel.zip is the wheel, under a name that Spark passes on to the workers. They need numpy, pandas and pyarrow too;
the driver needs the extra ``planner``. Plan and report are written on the driver's machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from timewheel.core import BrokerProfile, Plan, save_plan
from timewheel.spark_planner import (
    ColumnMapping,
    Constraints,
    Progress,
    plan_for,
    read_history,
    report_page,
    survey,
    verdict,
)


def on_progress(progress: Progress) -> None:
    if progress.fraction == 1.0:
        print(f"{progress.stage}: done", file=sys.stderr)


def main() -> None:
    source, plan_file, report_file = sys.argv[1:]
    spark = SparkSession.builder.appName("timewheel plan").getOrCreate()
    # Without a zone of its own a time in a history is UTC.
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    history = survey(read_history(spark, source), ColumnMapping(), source=source, on_progress=on_progress)
    planned = plan_for(
        history,
        history.topic(),
        Plan(due_topic="persistent://acme/crm/reminders", subscriptions=("crm",)),
        BrokerProfile.named("4.0"),
        Constraints(gap_fraction=0.8),
        on_progress=on_progress,
    )
    print(verdict(planned))
    save_plan(planned.plan, plan_file)
    Path(report_file).write_text(report_page(planned, plan_file=plan_file), encoding="utf-8")
    spark.stop()


if __name__ == "__main__":
    main()

"""The Spark session that all tests of the planner share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from tests.support import spark_daemon
from tests.support.checkout import ROOT
from timewheel.spark_planner.session import local_session, local_settings

__all__ = ["shared_session"]

_JAVA = "spark.driver.extraJavaOptions"


@contextmanager
def shared_session() -> Iterator[SparkSession]:
    """A small local session, stopped at the end."""
    session = local_session(
        cores=2,
        memory="1g",
        settings={
            # Two tasks per shuffle on two cores: the tests' frames are small, and each further task costs 10-50 ms.
            "spark.sql.shuffle.partitions": "2",
            # Workers are forked with their imports done; from wherever the tests were started.
            "spark.python.daemon.module": spark_daemon.__name__,
            "spark.executorEnv.PYTHONPATH": str(ROOT),
            # Tests end before Java's second compiler has earned what it costs.
            _JAVA: f"{local_settings()[_JAVA]} -XX:TieredStopAtLevel=1",
        },
    )
    yield session
    session.stop()

"""The Spark session that all tests of the planner share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from tests.support import spark_daemon
from tests.support.checkout import ROOT
from timewheel.spark_planner.session import local_session, small_settings


@contextmanager
def shared_session() -> Iterator[SparkSession]:
    """Start a small local session, and stop it at the end."""
    session = local_session(
        cores=2,
        memory="1g",
        settings={
            **small_settings(),
            # Workers are forked with their imports done; the path works from any working directory.
            "spark.python.daemon.module": spark_daemon.__name__,
            "spark.executorEnv.PYTHONPATH": str(ROOT),
        },
    )
    yield session
    session.stop()

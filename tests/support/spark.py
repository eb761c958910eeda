"""The Spark session that all tests of the planner share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from timewheel.spark_planner.session import local_session, local_settings

JAVA_OPTIONS = "spark.driver.extraJavaOptions"


@contextmanager
def shared_session() -> Iterator[SparkSession]:
    """Start a small local session, and stop it at the end."""
    settings = {
        "spark.sql.shuffle.partitions": "2",
        # Histories of tests are small: Java's second compiler would take a third of its CPU, and gain nothing.
        JAVA_OPTIONS: f"{local_settings()[JAVA_OPTIONS]} -XX:TieredStopAtLevel=1",
    }
    session = local_session(cores=2, memory="1g", settings=settings)
    yield session
    session.stop()

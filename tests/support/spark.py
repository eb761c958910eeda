"""The Spark session that all tests of the planner share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from timewheel.spark_planner.session import local_session


@contextmanager
def shared_session() -> Iterator[SparkSession]:
    """Start a small local session, and stop it at the end."""
    session = local_session(cores=2, memory="1g", settings={"spark.sql.shuffle.partitions": "2"})
    yield session
    session.stop()

"""One Spark session for all of the planner's tests: starting Java takes longer than any of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from timewheel.spark_planner.session import local_session, local_settings

_JAVA = "spark.driver.extraJavaOptions"


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = local_session(
        cores=2,
        memory="1g",
        settings={
            # Two tasks per shuffle on two cores: the tests' frames are small, and each further task costs 10-50 ms.
            "spark.sql.shuffle.partitions": "2",
            # Tests end before Java's second compiler has earned what it costs.
            _JAVA: f"{local_settings()[_JAVA]} -XX:TieredStopAtLevel=1",
        },
    )
    yield session
    session.stop()

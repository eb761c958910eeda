"""Spreading the pricing of candidates over Spark's cores: each is worked out by itself from the same few megabytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import SparkSession

from timewheel.core.plan import Plan
from timewheel.spark_planner.choice.choose import Assessed, Spread

__all__ = ["over_spark"]

PLANS_PER_TASK = 4
"""A second or so each: short enough to share out evenly, long enough to make starting it cheap."""


def over_spark(spark: SparkSession) -> Spread:
    """How `choose.choose` can go through its candidates on a session's workers; they need this package.

    The cells are sent to each worker once.
    """

    def spread(function: Callable[[Plan], Assessed], plans: Sequence[Plan]) -> Sequence[Assessed]:
        context = spark.sparkContext
        shared = context.broadcast(function)

        def apply(plan: Plan) -> Assessed:
            return shared.value(plan)  # .value only here: it is then what the worker has, not sent with every task

        try:
            tasks = max(-(-len(plans) // PLANS_PER_TASK), 1)
            return list(context.parallelize(list(plans), tasks).map(apply).collect())
        finally:
            shared.unpersist()

    return spread

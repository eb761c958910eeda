"""A plan's routing as Spark columns: the step table of `timewheel.core.steps`, in closed form and without a UDF.

A timer never goes back to an earlier step of its table, so each step is taken once, with a count: a tier with
``remaining >= min_remaining`` holds it ``(remaining - min_remaining) // stay + 1`` times, a ring once if its slot's
release is still to come. Times are not negative (a history's are not), so Spark's division, which cuts off towards
zero, is Python's ``//``.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every user of PySpark knows

from timewheel.core.plan import Plan
from timewheel.core.steps import Step, steps
from timewheel.spark_planner.history.columns import DUE_MS, KEY, PUBLISH_MS

__all__ = [
    "ACKNOWLEDGED_MS",
    "ARRIVAL_MS",
    "HOPS",
    "INTERVAL",
    "KEY_PARTITION",
    "STEP_HOPS",
    "java_string_hash",
    "with_route",
]

ARRIVAL_MS = "arrival_ms"
"""When it gets into its due topic: the last nominal release, or the send. bigint."""
ACKNOWLEDGED_MS = "acknowledged_ms"
"""When it is acknowledged: when it is due, or on arrival if that is later. bigint."""
HOPS = "hops"
"""How often it is published again on its way. bigint."""
STEP_HOPS = "step_hops"
"""How often each step of the plan's table holds it, in the table's order and without the closing due step: an array of
bigint whose sum is `HOPS`."""
INTERVAL = "interval"
"""Number of its calendar interval since 1970; 0 where there is one due topic. bigint."""
KEY_PARTITION = "key_partition"
"""The partition that its key belongs to; null without a key: then partitions take turns by the order of sends. int."""

_HASH_MODULUS = 2**32
_SIGN_CLEARED = 2**31
_HEX_PER_UNIT = 4
"""Hexadecimal digits of a UTF-16 code unit."""


def with_route(plan: Plan) -> Callable[[DataFrame], DataFrame]:
    """A step for ``DataFrame.transform``: adds the way of each timer under a plan.

    The frame has `PUBLISH_MS`, `DUE_MS` (bigint, not negative) and `KEY`; added are `ARRIVAL_MS`, `ACKNOWLEDGED_MS`,
    `HOPS`, `STEP_HOPS`, `INTERVAL` and `KEY_PARTITION`.
    """
    *held, due = steps(plan)

    def routed(history: DataFrame) -> DataFrame:
        taken: list[Column] = []
        frame = history.withColumn(ARRIVAL_MS, F.col(PUBLISH_MS))
        for number, step in enumerate(held):
            # A column of its own for each step: as one nested expression the table would double with every step.
            name = f"_taken_{number}"
            frame = frame.withColumn(name, _times_taken(step))
            taken.append(F.col(name))
            frame = frame.withColumn(ARRIVAL_MS, _released(step, taken[-1]))
        return frame.select(
            *history.columns,
            ARRIVAL_MS,
            F.greatest(DUE_MS, ARRIVAL_MS).alias(ACKNOWLEDGED_MS),
            sum(taken, start=F.lit(0).cast("bigint")).alias(HOPS),
            F.array(*taken).cast("array<bigint>").alias(STEP_HOPS),
            _interval(due).alias(INTERVAL),
            _key_partition(plan.partitions).alias(KEY_PARTITION),
        )

    return routed


def java_string_hash(text: Column) -> Column:
    """`timewheel.core.keys.java_string_hash` as a column: over UTF-16 code units, sign bit cleared. bigint."""
    # Spark keeps UTF-8; encoding makes surrogate pairs of what is beyond a code unit, as Java's strings have it.
    digits = F.hex(F.encode(text, "UTF-16BE"))
    units = F.transform(
        # From 0 by steps, so that an empty text has no unit: a sequence from 1 to 0 would count down.
        F.filter(F.sequence(F.lit(0), F.length(digits), F.lit(_HEX_PER_UNIT)), lambda at: at < F.length(digits)),
        lambda at: F.conv(F.substring(digits, at + F.lit(1), F.lit(_HEX_PER_UNIT)), 16, 10).cast("bigint"),
    )
    value = F.aggregate(
        units, F.lit(0).cast("bigint"), lambda value, unit: (value * F.lit(31) + unit) % F.lit(_HASH_MODULUS)
    )
    return value % F.lit(_SIGN_CLEARED)


def _times_taken(step: Step) -> Column:
    """How often a timer that is at `ARRIVAL_MS` takes this step."""
    none, once = F.lit(0).cast("bigint"), F.lit(1).cast("bigint")
    if step.kind == "slot":
        return F.when(_slot_release(step) > F.col(ARRIVAL_MS), once).otherwise(none)
    spare = F.col(DUE_MS) - F.col(ARRIVAL_MS) - F.lit(step.min_remaining_ms)
    return F.when(spare >= 0, _floor_divided(spare, step.stay_ms) + once).otherwise(none)


def _released(step: Step, taken: Column) -> Column:
    """Where a timer is in time after it took the step so often."""
    if step.kind == "slot":
        return F.when(taken > 0, _slot_release(step)).otherwise(F.col(ARRIVAL_MS))
    return F.col(ARRIVAL_MS) + taken * F.lit(step.stay_ms)


def _slot_release(step: Step) -> Column:
    return _floor_divided(F.col(DUE_MS), step.slot_ms) * F.lit(step.slot_ms) - F.lit(step.headstart_ms)


def _interval(due: Step) -> Column:
    if not due.interval_ms:
        return F.lit(0).cast("bigint")
    # As Router.to_due: a timer that is past due goes to the interval of its send (broker-facts: removing-a-topic).
    return _floor_divided(F.greatest(F.col(DUE_MS), F.col(ARRIVAL_MS)), due.interval_ms)


def _key_partition(partitions: int) -> Column:
    # An empty key is no key, as in the producer.
    has_key = F.length(F.col(KEY)) > 0
    if partitions == 1:
        return F.when(has_key, F.lit(0)).cast("int")
    return F.when(has_key, java_string_hash(F.col(KEY)) % F.lit(partitions)).cast("int")


def _floor_divided(value: Column, by: int) -> Column:
    """``value // by`` of a value that is not negative, in whole numbers: a division of floats is wrong past 2 ** 53."""
    return F.call_function("div", value, F.lit(by))

"""The planner on the demo's own ledger. Imported only if the extra `planner` is installed."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from timewheel.core.durations import DAY_MS
from timewheel.core.plan import Native
from timewheel.core.planfile import dump_plan
from timewheel.demo.foresight import Foreseen, Foresight
from timewheel.demo.results import Result
from timewheel.demo.verdict import Measured
from timewheel.spark_planner.choice.candidates import candidate_plans
from timewheel.spark_planner.choice.choose import choose
from timewheel.spark_planner.choice.constraints import Constraints
from timewheel.spark_planner.history.read import ColumnMapping, read_history
from timewheel.spark_planner.job import History, survey
from timewheel.spark_planner.pricing.evaluate import redelivered_at_moments
from timewheel.spark_planner.pricing.simulation import simulation_of
from timewheel.spark_planner.session import ProgressCallback, no_report, told

COLUMNS = ColumnMapping(publish="attempted_ms", due="due_ms", topic="scheme")
"""Columns of the ledger: each scheme is a topic of its own in this history."""
EVERY_CANDIDATE = 4
"""Every fourth of the planner's candidates is priced, and none is replayed: the demo is short, and measured
more."""
ONE_PARTITION = 1  # number of partitions of all the demo's topics


def foresee(
    spark: SparkSession, result: Result, ledger: Path, *, began_s: float, on_progress: ProgressCallback = no_report
) -> Foresight:
    history = survey(read_history(spark, str(ledger)), COLUMNS, source=str(ledger), on_progress=on_progress)
    rows = [_foreseen(history, result, row) for row in result.rows if row.scheme in history.statistic.cells]
    settings = result.settings
    scheme = settings.schemes[0]  # all play the same delays
    base = replace(
        settings.plan(scheme), due_topic="persistent://public/default/reminders", scheme=Native(), intake=False
    )
    with told(spark, "pricing candidates", on_progress, one_job=False):
        choice = choose(
            history.cells(scheme),
            base,
            result.broker.profile,
            _prices(settings.day_ms),
            candidates=candidate_plans(base, settings.span_ms, settings.span_ms)[::EVERY_CANDIDATE],
        )
    return Foresight(
        rows=rows,
        verdict=choice.reasons[0],
        plan=dump_plan(choice.recommended.evaluation.plan),
        candidates=choice.considered,
        seconds=time.monotonic() - began_s,
    )


def _foreseen(history: History, result: Result, row: Measured) -> Foreseen:
    profile = result.broker.profile
    simulation = simulation_of(
        result.settings.plan(row.scheme), history.cells(row.scheme), moments_ms=[result.unloads_ms[row.scheme]]
    )
    return Foreseen(
        scheme=row.scheme,
        predicted_peak=simulation.gaps.peak_gaps,
        measured_peak=row.due_peak,
        predicted_redelivered=float(redelivered_at_moments(simulation, profile, ONE_PARTITION, profile.ack_format)[-1]),
        measured_redelivered=row.redelivered_due,
    )


def _prices(day_ms: int) -> Constraints:
    """Scale the default prices of topics and relays, which are for real days: here a day's price is paid in seconds."""
    usual, days = Constraints(), DAY_MS / day_ms
    return replace(
        usual,
        topic_writes_per_second=usual.topic_writes_per_second * days,
        relay_writes_per_second=usual.relay_writes_per_second * days,
    )

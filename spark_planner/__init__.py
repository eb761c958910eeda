"""The planner: computes a plan from a history of delays, with Spark.

    history = survey(read_history(spark, "delays.parquet"))
    planned = plan_for(history, history.topic(), base, BrokerProfile.named("4.2"))

It needs the extra `planner`, and Java 17 or newer. Names are loaded on first use, so
that importing this package costs nothing; without the extra the first use raises
`timewheel.errors.ExtraMissing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timewheel.core.extras import missing_extra
from timewheel.core.lazy_exports import names_on_first_use

if TYPE_CHECKING:
    from timewheel.spark_planner.choice.assessed import Assessed
    from timewheel.spark_planner.choice.candidates import as_shadow, candidate_plans
    from timewheel.spark_planner.choice.choose import Choice, choose
    from timewheel.spark_planner.choice.constraints import Constraints, Cost, Room
    from timewheel.spark_planner.estimating import Estimated, NativeFound, estimate
    from timewheel.spark_planner.exact.grid import Grid
    from timewheel.spark_planner.exact.replay import Replay, replay, replay_all
    from timewheel.spark_planner.exact.sends import CachedSends, keep
    from timewheel.spark_planner.fleet import Fleet, NativeFit, NativeGaps, plan_all
    from timewheel.spark_planner.history.generate import (
        DAY_AND_NIGHT,
        WORKLOADS,
        Bursts,
        Delay,
        Exponential,
        Fixed,
        FullHours,
        OnTheClock,
        Publishing,
        Seasons,
        Share,
        Uniform,
        Workload,
        generate,
    )
    from timewheel.spark_planner.history.keys import KeyShares
    from timewheel.spark_planner.history.mapping import ColumnMapping
    from timewheel.spark_planner.history.read import read_history
    from timewheel.spark_planner.job import Planned, Prediction, compare, plan_for, predict
    from timewheel.spark_planner.pricing.evaluate import evaluate
    from timewheel.spark_planner.pricing.evaluation import Evaluation, Shadowed
    from timewheel.spark_planner.progress import Progress, ProgressCallback
    from timewheel.spark_planner.results.estimated import estimated_facts, estimated_verdict
    from timewheel.spark_planner.results.facts import planned_facts, prediction_facts
    from timewheel.spark_planner.results.money import Prices
    from timewheel.spark_planner.results.report_page import report_page
    from timewheel.spark_planner.results.verdict import verdict
    from timewheel.spark_planner.session import local_session
    from timewheel.spark_planner.summary.cells import Cells
    from timewheel.spark_planner.summary.daily_gaps import DailyGaps
    from timewheel.spark_planner.summary.statistic import Statistic
    from timewheel.spark_planner.summary.store import add_survey, drop_days_before, load_survey, stored_days
    from timewheel.spark_planner.summary.survey import Survey
    from timewheel.spark_planner.traffic import History, Traffic, survey, traffic_of

__all__ = [
    "DAY_AND_NIGHT",
    "WORKLOADS",
    "Assessed",
    "Bursts",
    "CachedSends",
    "Cells",
    "Choice",
    "ColumnMapping",
    "Constraints",
    "Cost",
    "DailyGaps",
    "Delay",
    "Estimated",
    "Evaluation",
    "Exponential",
    "Fixed",
    "Fleet",
    "FullHours",
    "Grid",
    "History",
    "KeyShares",
    "NativeFit",
    "NativeFound",
    "NativeGaps",
    "OnTheClock",
    "Planned",
    "Prediction",
    "Prices",
    "Progress",
    "ProgressCallback",
    "Publishing",
    "Replay",
    "Room",
    "Seasons",
    "Shadowed",
    "Share",
    "Statistic",
    "Survey",
    "Traffic",
    "Uniform",
    "Workload",
    "add_survey",
    "as_shadow",
    "candidate_plans",
    "choose",
    "compare",
    "drop_days_before",
    "estimate",
    "estimated_facts",
    "estimated_verdict",
    "evaluate",
    "generate",
    "keep",
    "load_survey",
    "local_session",
    "plan_all",
    "plan_for",
    "planned_facts",
    "predict",
    "prediction_facts",
    "read_history",
    "replay",
    "replay_all",
    "report_page",
    "stored_days",
    "survey",
    "traffic_of",
    "verdict",
]

_NAMES_OF = {
    "choice.candidates": ("as_shadow", "candidate_plans"),
    "choice.assessed": ("Assessed",),
    "choice.choose": ("Choice", "choose"),
    "choice.constraints": ("Constraints", "Cost", "Room"),
    "exact.grid": ("Grid",),
    "exact.replay": ("Replay", "replay", "replay_all"),
    "exact.sends": ("CachedSends", "keep"),
    "fleet": ("Fleet", "NativeGaps", "NativeFit", "plan_all"),
    "estimating": ("Estimated", "NativeFound", "estimate"),
    "history.generate": (
        *("DAY_AND_NIGHT", "WORKLOADS", "Workload", "generate"),
        *("Publishing", "Bursts", "Seasons"),
        *("Delay", "Exponential", "Fixed", "FullHours", "OnTheClock", "Share", "Uniform"),
    ),
    "history.keys": ("KeyShares",),
    "history.mapping": ("ColumnMapping",),
    "history.read": ("read_history",),
    "job": ("Planned", "Prediction", "compare", "plan_for", "predict"),
    "pricing.evaluate": ("evaluate",),
    "pricing.evaluation": ("Evaluation", "Shadowed"),
    "progress": ("Progress", "ProgressCallback"),
    "results.estimated": ("estimated_facts", "estimated_verdict"),
    "results.facts": ("planned_facts", "prediction_facts"),
    "results.money": ("Prices",),
    "results.report_page": ("report_page",),
    "results.verdict": ("verdict",),
    "session": ("local_session",),
    "summary.cells": ("Cells",),
    "summary.daily_gaps": ("DailyGaps",),
    "summary.statistic": ("Statistic",),
    "summary.store": ("add_survey", "drop_days_before", "load_survey", "stored_days"),
    "summary.survey": ("Survey",),
    "traffic": ("History", "Traffic", "survey", "traffic_of"),
}
__getattr__ = names_on_first_use(
    __name__,
    {name: f".{module}" for module, names in _NAMES_OF.items() for name in names},
    missing_extra("the planner", "planner"),
)

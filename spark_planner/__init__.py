"""The planner: computes a plan from a history of delays, with Spark.

    history = survey(read_history(spark, "delays.parquet"))
    planned = plan_for(history, history.topic(), base, BrokerProfile.named("4.2"))

It needs the extra `planner`, and Java 17 or newer. Names are loaded on first use, so
that importing this package costs nothing; without the extra the first use raises
`timewheel.errors.ExtraMissing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timewheel.core.extras import missing_extra, names_on_first_use

if TYPE_CHECKING:
    from .choice.candidates import as_shadow, candidate_plans
    from .choice.choose import Assessed, Choice, choose
    from .choice.constraints import Constraints, Cost, Room
    from .estimating import Estimated, NativeFound, estimate
    from .exact.ranges import Grid
    from .exact.replay import Replay, replay, replay_all
    from .exact.sends import CachedSends, keep
    from .fleet import Fleet, NativeFit, NativeGaps, plan_all
    from .history.generate import (
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
    from .history.keys import KeyShares
    from .history.read import ColumnMapping, read_history
    from .job import History, Planned, Prediction, Traffic, compare, plan_for, predict, survey, traffic_of
    from .pricing.evaluate import Evaluation, Shadowed, evaluate
    from .results.facts import Prices, estimated_facts, estimated_verdict, planned_facts, prediction_facts, verdict
    from .results.report_page import report_page
    from .session import Progress, ProgressCallback, local_session
    from .summary.cells import Cells
    from .summary.statistic import Statistic
    from .summary.survey import DailyGaps, Survey, add_survey, drop_days_before, load_survey, stored_days

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
    "choice.candidates": "as_shadow candidate_plans",
    "choice.choose": "Assessed Choice choose",
    "choice.constraints": "Constraints Cost Room",
    "estimating": "Estimated NativeFound estimate",
    "exact.ranges": "Grid",
    "exact.replay": "Replay replay replay_all",
    "exact.sends": "CachedSends keep",
    "fleet": "Fleet NativeFit NativeGaps plan_all",
    "history.generate": "Bursts DAY_AND_NIGHT Delay Exponential Fixed FullHours OnTheClock Publishing "
    "Seasons Share Uniform WORKLOADS Workload generate",
    "history.keys": "KeyShares",
    "history.read": "ColumnMapping read_history",
    "job": "History Planned Prediction Traffic compare plan_for predict survey traffic_of",
    "pricing.evaluate": "Evaluation Shadowed evaluate",
    "results.facts": "Prices estimated_facts estimated_verdict planned_facts prediction_facts verdict",
    "results.report_page": "report_page",
    "session": "Progress ProgressCallback local_session",
    "summary.cells": "Cells",
    "summary.statistic": "Statistic",
    "summary.survey": "DailyGaps Survey add_survey drop_days_before load_survey stored_days",
}
__getattr__ = names_on_first_use(
    __name__,
    {name: f".{module}" for module, names in _NAMES_OF.items() for name in names.split()},
    missing_extra("the planner", "planner"),
)

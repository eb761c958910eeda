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
    from .choice.choose import Choice
    from .choice.constraints import Constraints, Cost
    from .estimating import Estimated, estimate
    from .exact.ranges import Grid
    from .exact.replay import Replay, replay
    from .exact.sends import CachedSends, keep
    from .fleet import Fleet, plan_all
    from .history.keys import KeyShares
    from .history.read import ColumnMapping, read_history
    from .job import History, Planned, Prediction, Traffic, compare, plan_for, predict, survey, traffic_of
    from .results.facts import Prices, verdict
    from .results.report_page import report_page
    from .session import Progress, ProgressCallback, local_session
    from .summary.statistic import Statistic
    from .summary.survey import Survey, add_survey, drop_days_before, load_survey, stored_days

__all__ = [
    "CachedSends",
    "Choice",
    "ColumnMapping",
    "Constraints",
    "Cost",
    "Estimated",
    "Fleet",
    "Grid",
    "History",
    "KeyShares",
    "Planned",
    "Prediction",
    "Prices",
    "Progress",
    "ProgressCallback",
    "Replay",
    "Statistic",
    "Survey",
    "Traffic",
    "add_survey",
    "compare",
    "drop_days_before",
    "estimate",
    "keep",
    "load_survey",
    "local_session",
    "plan_all",
    "plan_for",
    "predict",
    "read_history",
    "replay",
    "report_page",
    "stored_days",
    "survey",
    "traffic_of",
    "verdict",
]

__getattr__ = names_on_first_use(
    __name__,
    {
        ".choice.choose": "Choice",
        ".choice.constraints": "Constraints Cost",
        ".estimating": "Estimated estimate",
        ".exact.replay": "Replay replay",
        ".exact.ranges": "Grid",
        ".exact.sends": "CachedSends keep",
        ".fleet": "Fleet plan_all",
        ".history.keys": "KeyShares",
        ".history.read": "ColumnMapping read_history",
        ".job": "History Planned Prediction Traffic compare plan_for predict survey traffic_of",
        ".results.facts": "Prices verdict",
        ".results.report_page": "report_page",
        ".session": "Progress ProgressCallback local_session",
        ".summary.statistic": "Statistic",
        ".summary.survey": "Survey add_survey drop_days_before load_survey stored_days",
    },
    missing_extra("the planner", "planner"),
)

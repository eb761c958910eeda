"""How near is the planner's evaluation to the truth, on histories of every kind?

Each generated workload (`examples.history.generate`) is read by Spark into the planner's statistic, and
five plans are evaluated from that: native, tiers under a window of half a day and of an hour, day topics, two rings.
The truth is the exact replay on Spark of the same rows through the same plan, its peak settled between the moments of
its grid too. "From few cells" is what all candidates are compared by, before the best is evaluated from all cells.

Goals: a peak above 20,000 gaps within 1 % of itself. Below that (also where a fixed delay or a due time on the clock
leaves none) an error of at most 1 % of what as many timers, sent over the same span with delays spread evenly from none
to the longest, would peak at natively. A peak of n gaps is a random number whose chance is about the root of n.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.planner import session
from benchmarks.result import Result
from timewheel.core import DAY_MS, HOUR_MS, BrokerProfile, Calendar, Native, Plan, Ring, Scheme, Tiered, Wheel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from timewheel.spark_planner.summary.cells import Cells


ROWS: Mapping[str, int] = {
    "mixture": 650_000,
    "fixed-hour": 200_000,
    "fixed-three": 200_000,
    "nine-next-day": 200_000,
    "half-nine": 650_000,
    "campaign": 90_000,
    "seasons": 650_000,
    "full-hours": 450_000,
    "uniform-day": 1_300_000,
    "hourly-bursts": 700_000,
    "long-mixture": 900_000,
}
"""With so many timers each workload peaks above `LARGE_GAPS` natively, if it has gaps at all."""
HAS_NO_GAPS = frozenset({"fixed-hour", "nine-next-day"})
LARGE_GAPS = 20_000
SHARE = 0.01
FULL_TIMES = 2  # the whole benchmark takes as many times the rows
CORES = 4


def _plan(scheme: Scheme) -> Plan:
    return Plan(due_topic="persistent://public/default/bench", subscriptions=("bench",), scheme=scheme)


PLANS: Mapping[str, Plan] = {
    "native": _plan(Native()),
    "tiered 12h": _plan(Tiered(window_ms=12 * HOUR_MS, tiers_ms=(12 * HOUR_MS, DAY_MS, 5 * DAY_MS))),
    "tiered 1h": _plan(Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS, 6 * HOUR_MS, DAY_MS, 5 * DAY_MS))),
    "day topics": _plan(Calendar(interval_ms=DAY_MS)),
    "rings": _plan(Wheel(rings=(Ring(slot_ms=HOUR_MS, slots=30), Ring(slot_ms=DAY_MS, slots=33)))),
}
PROFILE = BrokerProfile.named("4.0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Peak gaps of one plan on one workload.

    They are counted, evaluated from all cells, priced from the few cells that candidates are compared by, and what an
    even spread of the same volume and span would peak at.
    """

    workload: str
    plan: str
    exact: int
    evaluated: float
    priced: float
    uniform: float

    @property
    def allowed(self) -> float:
        return SHARE * (self.exact if self.exact > LARGE_GAPS else self.uniform)

    @property
    def holds(self) -> bool:
        """Whether the evaluation keeps it; few cells may be twice as far off, as the best is evaluated from all."""
        return abs(self.evaluated - self.exact) <= self.allowed and abs(self.priced - self.exact) <= 2 * self.allowed


def uniform_peak(timers: float, span_ms: float, longest_ms: float) -> float:
    """The law's peak of timers sent evenly over a span, with delays spread evenly from none to the longest.

    Sending that outlasts the delays makes ``L W / 6``; sending at one instant a quarter of the timers.
    """
    if longest_ms <= 0:
        return 0.0
    if span_ms >= longest_ms:
        return timers / span_ms * longest_ms / 6
    return timers * (1 / 4 - (span_ms / longest_ms) ** 2 / 12)


def compared(workload: str, cells: Cells, exact_of: Callable[[Plan], int]) -> Iterator[Comparison]:
    from timewheel.spark_planner import Constraints  # noqa: PLC0415 - the planner is an extra
    from timewheel.spark_planner.choice.choose import assess, coarse_cells  # noqa: PLC0415
    from timewheel.spark_planner.pricing.evaluate import evaluate  # noqa: PLC0415 - the planner is an extra

    span_ms = float(cells.publish_max_ms.max() - cells.publish_min_ms.min())
    uniform = uniform_peak(cells.timers, span_ms, float(cells.delay_max_ms.max()))
    few = coarse_cells(cells)
    for name, plan in PLANS.items():
        yield Comparison(
            workload=workload,
            plan=name,
            exact=exact_of(plan),
            evaluated=evaluate(plan, cells, PROFILE).peak_gaps,
            priced=assess(plan, few, PROFILE, Constraints()).evaluation.peak_gaps,
            uniform=uniform,
        )


def survey_of(frame: DataFrame) -> Cells:
    from timewheel.spark_planner import survey  # noqa: PLC0415 - the planner is an extra

    return survey(frame.drop("topic")).cells("")  # an empty topic is a missing one to whom reads a history


def main(quick: bool = False) -> list[Result]:
    with session(CORES) as spark, tempfile.TemporaryDirectory(prefix="timewheel-accuracy-") as folder:
        return [
            _result(one)
            for name, rows in ROWS.items()
            for one in _on(spark, name, rows if quick else FULL_TIMES * rows, Path(folder, name))
        ]


def _on(spark: SparkSession, name: str, rows: int, path: Path) -> Iterator[Comparison]:
    from examples.history.generate import WORKLOADS, generate  # noqa: PLC0415 - the planner is an extra
    from timewheel.spark_planner import replay  # noqa: PLC0415 - as above

    generate(spark, WORKLOADS[name], rows=rows).write.parquet(str(path))
    history = spark.read.parquet(str(path))

    def exact(plan: Plan) -> int:
        peak = replay(history, plan, exact_peak=True).peak_of_total
        assert peak.is_exact
        return peak.gap_count

    yield from compared(name, survey_of(history), exact)


def _result(one: Comparison) -> Result:
    return Result(
        question="accuracy",
        subject=f"{one.workload}, {one.plan}",
        figures={
            "counted": one.exact,
            "evaluated": round(one.evaluated),
            "from few cells": round(one.priced),
            "error": f"{one.evaluated - one.exact:+,.0f}",
            "of the peak": f"{one.evaluated / one.exact - 1:+.2%}" if one.exact else "",
            "allowed": round(one.allowed),
        },
        goal="within 1 % of the peak" if one.exact > LARGE_GAPS else "within 1 % of an even spread's peak",
        met=one.holds,
    )

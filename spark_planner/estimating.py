"""Estimation: a plan from a survey, without the rows of its history, and so without Spark.

Native gaps were counted when the survey was made. The gaps of every other plan are estimated from cells, by the gap
law, which takes the delays of neighbours as independent. The native gaps show how far they are dependent: if the count
differs from the law there, an estimate may only decide to keep native delays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.plan import Native, Plan

from .choice.choose import Answer, Assessed, Counts, Priced, decide
from .choice.constraints import REDELIVERED, TWICE, Constraints, times_until
from .extrapolation import Continued, continued_from
from .history.keys import EVEN
from .pricing.simulation import NATIVE, simulation_of
from .summary.cells import Cells
from .summary.survey import DailyGaps, Survey

SURE_WITHIN = 0.1
"""Greatest difference of count and law under native delays at which estimates of other plans are accepted."""
LEAST_GAPS = 10.0  # least mean number of gaps for a meaningful ratio
MOMENTS = 4_000  # moments at which counted and estimated gaps are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeFound:
    """Gaps of native delays on a single partition."""

    counted: int  # the most gaps in the history alone, at the survey's moments
    apart_ms: int  # distance of these moments
    ratio: float  # ratio of counted gaps to gaps of the law, on average over time; 1 if there are too few gaps
    peak: float  # the most gaps to plan for: the count, or for a continued history the peak by the law times ``ratio``

    @property
    def independent(self) -> bool:
        """True if neighbours' delays can be taken as independent."""
        return abs(self.ratio - 1) <= SURE_WITHIN


def native_found(gaps: DailyGaps, alone: Cells, continued: Continued) -> NativeFound:
    """Compare the counted gaps with the gap law."""
    law, ratio = simulation_of(NATIVE, alone).gaps, 1.0
    if len(law.at_ms):
        at_ms = np.linspace(law.at_ms[0], law.at_ms[-1], MOMENTS)
        # A count is exact only at its own moments.
        at_ms = np.unique(at_ms // gaps.step_ms) * gaps.step_ms
        estimated = np.interp(at_ms, law.at_ms, law.gaps).mean()
        counted = gaps.at(at_ms).mean()
        if max(estimated, counted) >= LEAST_GAPS:
            ratio = float(counted / max(estimated, 1e-9))
    peak = float(gaps.peak)
    if continued.continuation is not None:
        peak = ratio * simulation_of(NATIVE, continued.cells).gaps.peak_gaps
    return NativeFound(counted=gaps.peak, apart_ms=gaps.step_ms, ratio=ratio, peak=peak)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Estimated(Answer):
    """The planner's result without the rows. The only counted plan of its choice is the native plan with one partition.

    Args:
        continued: The timers that the plan is made for.
        native: Gaps of native delays.
    """

    survey: Survey
    topic: str
    continued: Continued
    native: NativeFound

    @property
    def is_certain(self) -> bool:
        """True if the plan is based on a count, or on a law that holds here."""
        return isinstance(self.plan.scheme, Native) or self.native.independent

    @property
    def keeps_limits(self) -> bool:
        """True if the plan is certain and breaks no constraint."""
        return self.is_certain and not self.choice.recommended.broken

    @property
    def peak_gaps(self) -> float:
        """The most gaps in a partition at the planned volume, as the choice was made by them."""
        if isinstance(self.plan.scheme, Native):
            return self.native.peak * self.growth * self.keys.fullest(self.plan.own_partitions)
        return self.choice.recommended.evaluation.peak_gaps_per_partition * max(self.native.ratio, 1.0)

    @property
    def gap_room(self) -> float:
        """Multiple of the history's volume at which the plan's gaps reach the broker's limit."""
        return self.growth * times_until(self.peak_gaps, self.profile.gap_limit_ranges)

    @property
    def is_short_of_room(self) -> bool:
        """True if the history is too short to be continued, and `TWICE` as many timers would break the gap limit."""
        return self.continued.is_short and self.gap_room < TWICE


class _ByLaw(Counts):
    """Takes estimates of the history's volume for counts."""

    def __init__(self, priced: Priced, native: NativeFound) -> None:
        super().__init__(list(priced.priced), priced.limits, priced.keys)
        self._priced, self._native = priced, native

    def allowed(self, plan: Plan) -> int:
        return self._priced.allowance.gaps(plan)

    def count(self, plans: Iterable[Plan]) -> Sequence[int]:
        return [self._gaps(plan) for plan in plans]

    confirm = count

    def _gaps(self, plan: Plan) -> int:
        law = self._priced.as_it_is(plan, growth=1.0)
        # Above the law if native delays leave more gaps. Fewer native gaps do not imply fewer under other plans.
        gaps = law.evaluation.peak_gaps_per_partition * max(self._native.ratio, 1.0)
        if isinstance(plan.scheme, Native):
            gaps = self._native.peak * self.keys.fullest(plan.own_partitions)
        again = law.evaluation.redelivered.worst_entries if REDELIVERED in law.broken else 0.0
        return math.ceil(max(gaps, self.allowed(plan) + again if again else 0.0))

    def assess(self, plan: Plan) -> Assessed:
        return self._priced.as_it_is(plan)

    def further(self, below: float) -> Sequence[Assessed]:
        return self._priced.further(below)


def estimate(
    survey: Survey,
    topic: str,
    base: Plan,
    profile: BrokerProfile,
    constraints: Constraints | None = None,
    *,
    candidates: Sequence[Plan] | None = None,
    max_delay_ms: int | None = None,
    growth: float = 1.0,
    as_is: bool = False,
) -> Estimated:
    """Choose a plan for a topic of a survey; the other arguments are those of `job.plan_for`."""
    alone = survey.statistic.cells[topic]
    keys = survey.keys.get(topic, EVEN)
    continued = continued_from(alone, as_is=as_is)
    native = native_found(survey.gaps.get(topic, DailyGaps.none()), alone, continued)
    upper_of = continued.upper_of
    priced = Priced(continued.cells, base, profile, constraints, candidates, max_delay_ms, growth, keys, upper_of)
    counts = _ByLaw(priced, native)
    decided = counts.made(decide(counts))
    # Only a single partition of the history alone was counted; all else is an estimate.
    counted = {
        plan: math.ceil(native.peak)
        for plan in decided.counted
        if continued.continuation is None and isinstance(plan.scheme, Native) and plan.own_partitions == 1
    }
    return Estimated(
        survey=survey,
        topic=topic,
        profile=profile,
        continued=continued,
        choice=priced.choice(priced.recommended(decided.winner), counted),
        native=native,
        keys=keys,
    )

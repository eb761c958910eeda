"""Estimation: a plan from a survey, without the rows of its history, and so without Spark.

Native gaps were counted when the survey was made. The gaps of every other plan are estimated from cells, by the gap
law, which takes the delays of neighbours as independent. The native gaps show how far they are dependent: if the count
differs from the law there, an estimate may only decide to keep native delays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.plan import Native, Plan

from .choice.choose import Choice, assess, coarse_cells, decide, price_candidates
from .choice.constraints import TWICE, Constraints, max_countable, times_until
from .extrapolation import Continued, continued_from
from .history.keys import EVEN, KeyShares
from .pricing.gap_curve import GapCurve
from .pricing.simulation import NATIVE, simulation_of
from .summary.cells import Cells
from .summary.survey import DailyGaps, Survey

SURE_WITHIN = 0.1
"""Greatest difference of count and law under native delays at which estimates of other plans are accepted."""
LEAST_GAPS = 10.0  # least mean number of gaps for a meaningful ratio
MOMENTS = 4_000  # moments at which counted and estimated gaps are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeFound:
    """Gaps of native delays on a single partition.

    Args:
        counted: The most gaps in the history alone, at the survey's moments.
        apart_ms: Distance of these moments.
        ratio: Ratio of counted gaps to gaps of the law, on average over time; 1 if there are too few gaps.
        peak: The most gaps to plan for: the count, or for a continued history the peak by the law times ``ratio``.
    """

    counted: int
    apart_ms: int
    ratio: float
    peak: float

    @property
    def independent(self) -> bool:
        """True if neighbours' delays can be taken as independent."""
        return abs(self.ratio - 1) <= SURE_WITHIN


def native_found(gaps: DailyGaps, alone: Cells, continued: Continued) -> NativeFound:
    """Compare the counted gaps with the gap law."""
    counted, ratio = gaps.peak, _ratio(gaps, simulation_of(NATIVE, alone).gaps)
    peak = float(counted)
    if continued.continuation is not None:
        peak = ratio * simulation_of(NATIVE, continued.cells).gaps.peak_gaps
    return NativeFound(counted=counted, apart_ms=gaps.step_ms, ratio=ratio, peak=peak)


def _ratio(gaps: DailyGaps, law: GapCurve) -> float:
    if not len(law.at_ms):
        return 1.0
    at_ms = np.linspace(law.at_ms[0], law.at_ms[-1], MOMENTS)
    # A count is exact only at its own moments.
    at_ms = np.unique(at_ms // gaps.step_ms) * gaps.step_ms
    estimated = np.interp(at_ms, law.at_ms, law.gaps).mean()
    counted = gaps.at(at_ms).mean()
    return 1.0 if max(estimated, counted) < LEAST_GAPS else float(counted / max(estimated, 1e-9))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Estimated:
    """The planner's result without the rows.

    Args:
        survey: The survey of the history.
        topic: Topic of the survey.
        profile: The broker.
        constraints: The user's limits, with the margin that the traffic requires.
        growth: Planned volume, as a multiple of the history's volume.
        continued: The timers that the plan is made for.
        choice: The recommended plan; its only counted plan is the native plan with one partition.
        native: Gaps of native delays.
        keys: The topic's heaviest keys.
    """

    survey: Survey
    topic: str
    profile: BrokerProfile
    constraints: Constraints
    growth: float
    continued: Continued
    choice: Choice
    native: NativeFound
    keys: KeyShares

    @property
    def plan(self) -> Plan:
        """The recommended plan, partitions included."""
        return self.choice.recommended.evaluation.plan

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
        evaluation = self.choice.recommended.evaluation
        if isinstance(self.plan.scheme, Native):
            return self.native.peak * self.growth * self.keys.fullest(self.plan.own_partitions)
        return evaluation.peak_gaps_per_partition * max(self.native.ratio, 1.0)

    @property
    def gap_room(self) -> float:
        """Multiple of the history's volume at which the plan's gaps reach the broker's limit."""
        return self.growth * times_until(self.peak_gaps, self.profile.gap_limit_ranges)

    @property
    def is_short_of_room(self) -> bool:
        """True if the history is too short to be continued, and `TWICE` as many timers would break the gap limit."""
        return self.continued.is_short and self.gap_room < TWICE


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
    """Choose a plan for a topic of a survey.

    Args:
        survey: Survey of a history.
        topic: Topic of the survey.
        base: Names, subscriptions, guard; see `candidates.candidate_plans`.
        profile: The broker.
        constraints: The user's limits and prices; None: the defaults.
        candidates: Plans to use instead of `candidates.candidate_plans`.
        max_delay_ms: The longest delay that candidates accept; None: the history's longest delay, rounded up.
        growth: Volume to plan for, as a multiple of the history's volume.
        as_is: Take the history as complete, regardless of its length.
    """
    alone = survey.statistic.cells[topic]
    keys = survey.keys.get(topic, EVEN)
    continued = continued_from(alone, as_is=as_is)
    native = native_found(survey.gaps.get(topic, DailyGaps.none()), alone, continued)
    asked = constraints or Constraints()
    limits = replace(asked, gap_margin=asked.gap_margin * continued.upper)
    assess_one = partial(
        assess, cells=coarse_cells(continued.cells), profile=profile, constraints=limits, keys=keys, as_it_is=True
    )

    def gaps_of(plan: Plan) -> int:
        if isinstance(plan.scheme, Native):
            return math.ceil(native.peak * keys.fullest(plan.own_partitions))
        # Above the law if native delays leave more gaps. Fewer native gaps do not imply fewer under other plans.
        return math.ceil(assess_one(plan).evaluation.peak_gaps_per_partition * max(native.ratio, 1.0))

    priced = price_candidates(
        continued.cells,
        base,
        profile,
        limits,
        candidates=candidates,
        max_delay_ms=max_delay_ms,
        growth=growth,
        keys=keys,
    )
    decided = decide(
        priced.screening.priced,
        limits,
        allowed=max_countable(limits.allowed_gaps(profile.gap_limit_ranges), growth),
        count=lambda plans: [gaps_of(plan) for plan in plans],
        assess=partial(assess_one, growth=growth),
        keys=keys,
        further=priced.screening.further,
    )
    # Only a single partition of the history alone was counted; all else is an estimate.
    is_counted = continued.continuation is None
    counted = {
        plan: gaps
        for plan, gaps in decided.counted.items()
        if is_counted and isinstance(plan.scheme, Native) and plan.own_partitions == 1
    }
    choice = priced.choice(priced.recommended(decided.winner), counted)
    return Estimated(
        survey=survey,
        topic=topic,
        profile=profile,
        constraints=limits,
        growth=growth,
        continued=continued,
        choice=choice,
        native=native,
        keys=keys,
    )

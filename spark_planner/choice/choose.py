"""Choice of the recommended plan among the candidates, with the reasons in sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.plan import Native, Plan
from timewheel.spark_planner.choice.assessed import Assessed, assess, rank
from timewheel.spark_planner.choice.candidates import article_plans, candidate_plans
from timewheel.spark_planner.choice.constraints import Constraints, Room, max_countable
from timewheel.spark_planner.choice.reasons import reasons_for
from timewheel.spark_planner.choice.screening import Screening
from timewheel.spark_planner.choice.ties import tied_with
from timewheel.spark_planner.history.keys import EVEN, KeyShares
from timewheel.spark_planner.pricing.bursts import with_bursts_apart
from timewheel.spark_planner.pricing.evaluate import price
from timewheel.spark_planner.pricing.evaluation import Evaluation
from timewheel.spark_planner.pricing.resolution import QUICK
from timewheel.spark_planner.pricing.simulation import simulation_of
from timewheel.spark_planner.summary.cells import Cells

__all__ = ["Choice", "Decided", "Further", "Settle", "choose", "coarse_cells"]

MANY = 64
"""Above this number, candidates are screened: priced from `SCREENING_CELLS` cells and at `QUICK` resolution."""
SCREENING_CELLS = 12_000
PRICING_CELLS = 30_000
"""Peaks differ by less than a percent from those of all cells (tests/planner/test_flow.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The planner's choice.

    Args:
        recommended: The cheapest candidate that breaks no constraint; without such a candidate, the candidate that
            breaks fewest.
        native: The native plan with one partition: the plan that a user has today.
        considered: Number of candidates. Candidates that were not priced cost more, regardless of their gaps.
        candidates: The priced candidates, in a fixed order.
        front: The Pareto front of these in peak gaps and cost, the cheapest first; if any candidate breaks nothing,
            only such candidates.
        article: The plans of the source article's rules of thumb, by rule name.
        rooms: The volume at which each limit is reached, the nearest first.
        reasons: Sentences, at most `reasons.MOST`.
        counted: The most gaps of any partition, for candidates that were counted and not only estimated.
        beside: The same for the recommended plan, native delays and the rules of thumb; a figure above the limit is a
            lower bound. Empty if nothing was counted.
        ties: Other candidates that break nothing and whose cost is within `ties.TIE` of the recommended plan's, the
            strongest rival first.
    """

    recommended: Assessed
    native: Evaluation
    considered: int
    candidates: tuple[Assessed, ...]
    front: tuple[Assessed, ...]
    article: tuple[tuple[str, Assessed], ...]
    rooms: tuple[Room, ...]
    reasons: tuple[str, ...]
    counted: Mapping[Plan, int] = field(default_factory=dict)
    beside: Mapping[Plan, int] = field(default_factory=dict)
    ties: tuple[Evaluation, ...] = ()

    @property
    def known(self) -> Mapping[Plan, int]:
        """All counts, those of candidates and those beside them."""
        return {**self.counted, **self.beside}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """The decision by counting gaps timer by timer.

    Args:
        winner: The cheapest plan whose count is within the limit and that breaks no other constraint; None: there is
            none.
        counted: The most gaps of any partition, for every counted plan, partitions included.
    """

    winner: Assessed | None
    counted: Mapping[Plan, int]


Further = Callable[[float], Sequence[Assessed]]
"""Prices the next few candidates that may cost less than this; empty: there are none."""
Settle = Callable[[Sequence[Assessed], Further], Decided]
"""Decides among the priced candidates, and may ask for more of them."""

Count = Callable[[Sequence[Plan], str, float], Sequence[int]]
"""Counts the most gaps of any partition under each plan. Takes the stage's name and a threshold: above the threshold a
lower bound is enough.
"""


def choose(
    cells: Cells,
    base: Plan,
    profile: BrokerProfile,
    constraints: Constraints | None = None,
    *,
    candidates: Sequence[Plan] | None = None,
    max_delay_ms: int | None = None,
    growth: float = 1.0,
    keys: KeyShares = EVEN,
    settle: Settle | None = None,
    count: Count | None = None,
) -> Choice:
    """Price the candidates that may be the best on a history, and recommend a plan.

    Without ``settle``, the best candidate is priced again from all cells, until the best candidate has a price from all
    cells: a burst that coarse cells blur can cost a plan its rank, but cannot be overlooked.

    Args:
        cells: The history of one topic.
        base: Everything that is not chosen: names, subscriptions, guard; see `candidate_plans`.
        profile: The broker.
        constraints: The user's limits and prices; None: the defaults.
        candidates: Plans to use instead of `candidate_plans`.
        max_delay_ms: The longest delay that candidates accept; None: the history's longest delay, rounded up.
        growth: Volume to plan for, as a multiple of the history's volume.
        keys: Distribution of keys over partitions.
        settle: Decides among the priced candidates; None: the prices decide.
        count: Counts the plans that the result shows beside the candidates; None: only the counts of ``settle`` are
            known.

    Raises:
        ValueError: The cells have no timers, or there is no candidate.
        MaxDelayTooShort: The history has longer delays than ``max_delay_ms``.
    """
    if not len(cells):
        raise ValueError("the history has no timers, so there is nothing to plan for")
    limits = Constraints() if constraints is None else constraints
    longest_ms = int(cells.delay_max_ms.max())
    plans = candidate_plans(base, longest_ms, max_delay_ms) if candidates is None else tuple(candidates)
    if not plans:
        raise ValueError("no candidate to choose from")
    coarse = coarse_cells(cells)
    closely = partial(assess, profile=profile, constraints=limits, growth=growth, keys=keys)
    if len(plans) > MANY:
        quickly = partial(closely, cells=coarse_cells(cells, SCREENING_CELLS), resolution=QUICK)
    else:
        quickly = partial(closely, cells=coarse)
    screening = Screening(plans, cells, limits, growth, quickly)
    screening.until_certain()
    settled = Decided(winner=None, counted={}) if settle is None else settle(screening.priced, screening.further)
    if settled.winner is not None:
        screening.put(settled.winner)
    recommended = settled.winner or _best_priced_closely(screening, partial(closely, cells=cells))
    assessed = tuple(screening.priced)
    # If the count refuted all candidates, none fits, regardless of the estimates.
    fitting = [] if recommended.broken else [one for one in assessed if not one.broken]
    article = article_plans(base, longest_ms, max_delay_ms)
    by_rule = {name: closely(plan, coarse) for name, plan in article.items()}
    native = price(simulation_of(_native(plans), cells, growth), profile, 1)
    allowed = limits.allowed_gaps(profile.gap_limit_ranges)
    beside: dict[Plan, int] = {}
    if count is not None:
        shown = [recommended.evaluation.plan, native.plan]
        rules = [one.evaluation.plan for one in by_rule.values()]
        beside |= zip(rules, count(rules, "replaying simple rules", allowed), strict=True)
        beside |= zip(shown, count(shown, "replaying today's plan and the new one", math.inf), strict=True)
    known = {**settled.counted, **beside}
    by_rule = {
        name: one.judged(known.get(one.evaluation.plan), max_countable(allowed, growth))
        for name, one in by_rule.items()
    }
    rooms = limits.rooms(recommended.evaluation, profile, known.get(recommended.evaluation.plan), growth)
    rivals = [one.evaluation for one in fitting]
    ties = tied_with(recommended.evaluation, rivals, limits, settled.counted, allowed / growth)
    return Choice(
        recommended=recommended,
        native=native,
        considered=len(plans),
        candidates=assessed,
        front=front_of(fitting or assessed),
        article=tuple(by_rule.items()),
        rooms=rooms,
        reasons=reasons_for(
            recommended.evaluation,
            recommended.broken,
            native,
            [one.evaluation for one in sorted(assessed, key=rank)],
            len(fitting),
            ties,
            rooms,
            limits,
            settled.counted,
            known,
            growth,
            len(plans),
        ),
        counted=settled.counted,
        beside=beside,
        ties=ties,
    )


def _best_priced_closely(screening: Screening, closely: Callable[[Plan], Assessed]) -> Assessed:
    close: set[Plan] = set()
    while (best := min(screening.priced, key=rank).evaluation.plan) not in close:
        found = closely(best)
        screening.put(found)
        close.add(found.evaluation.plan)
        # The close price may be higher than that of candidates that were not priced yet.
        screening.until_certain()
    return min(screening.priced, key=rank)


def coarse_cells(cells: Cells, limit: int = PRICING_CELLS) -> tuple[Cells, ...]:
    """Reduce the cells to the few from which candidates are priced, with cells of bursts apart."""
    bounded = cells.bounded(limit)
    return (cells,) if bounded.level == cells.level else with_bursts_apart(cells, bounded.level)


def front_of(assessed: Sequence[Assessed]) -> tuple[Assessed, ...]:
    """Return the Pareto front in peak gaps and cost, the cheapest first."""
    front: list[Assessed] = []
    fewest = float("inf")
    for one in sorted(assessed, key=lambda one: (one.cost_writes_per_second, one.evaluation.peak_gaps)):
        if one.evaluation.peak_gaps < fewest:
            front.append(one)
            fewest = one.evaluation.peak_gaps
    return tuple(front)


def _native(plans: Sequence[Plan]) -> Plan:
    return replace(plans[0], scheme=Native(), intake=False).with_partitions(1)

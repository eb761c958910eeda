"""Choose: the plan to recommend among the candidates, and the reasons in sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.plan import Native, Plan
from timewheel.spark_planner.choice.candidates import article_plans, candidate_plans
from timewheel.spark_planner.choice.constraints import Constraints, Cost, Room
from timewheel.spark_planner.choice.reasons import reasons_for
from timewheel.spark_planner.choice.ties import tied_with
from timewheel.spark_planner.pricing.bursts import with_bursts_apart
from timewheel.spark_planner.pricing.course import course_of
from timewheel.spark_planner.pricing.evaluate import price
from timewheel.spark_planner.pricing.evaluation import Evaluation
from timewheel.spark_planner.summary.cells import Cells

__all__ = ["Assessed", "Choice", "Decided", "Settle", "Spread", "assess", "assess_as_it_is", "choose", "coarse_cells"]

SCREENING_CELLS = 5_000
"""All candidates are priced from so many cells: the time of a candidate goes with their number."""
CLOSELY = 40
"""So many of the best, and the best of each scheme, are priced again from `PRICING_CELLS`."""
PRICING_CELLS = 30_000
"""Peaks move by less than a percent against all cells (tests/planner/test_flow.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessed:
    """One candidate with the fewest partitions that keep gaps and silence within their limits.

    Args:
        evaluation: Its plan has these partitions.
        broken: Names of the constraints that it breaks all the same.
        cost: To run it, at the constraints' prices.
    """

    evaluation: Evaluation
    broken: tuple[str, ...]
    cost: Cost

    @property
    def cost_writes_per_second(self) -> float:
        """All of its cost."""
        return self.cost.writes_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What the planner found.

    Args:
        recommended: The cheapest candidate that breaks no constraint; if there is none, the one that breaks fewest.
        native: The native plan with one partition: what a user has today.
        candidates: All, in their fixed order.
        front: Those that no other beats in both peak gaps and cost, the cheapest first; only such as break nothing, if
            there are any.
        article: What the source article's rules of thumb give, by name.
        rooms: At which volume each limit is reached, the nearest first.
        reasons: Sentences, at most `reasons.MOST`.
        counted: The most gaps of any partition, of the plans that were not only estimated.
        ties: Other candidates that break nothing and cost as much within `ties.TIE`, the strongest rival first.
    """

    recommended: Assessed
    native: Evaluation
    candidates: tuple[Assessed, ...]
    front: tuple[Assessed, ...]
    article: tuple[tuple[str, Assessed], ...]
    rooms: tuple[Room, ...]
    reasons: tuple[str, ...]
    counted: Mapping[Plan, int] = field(default_factory=dict)
    ties: tuple[Evaluation, ...] = ()


Spread = Callable[[Callable[[Plan], Assessed], Sequence[Plan]], Iterable[Assessed]]
"""How candidates are assessed: ``map``, or the same over processes or Spark. The function and its results pickle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What was decided by counting gaps timer by timer.

    Args:
        winner: The cheapest that was counted within the limit and breaks no other; None: there is none.
        counted: The most gaps of any partition, of every plan that was counted, partitions included.
    """

    winner: Assessed | None
    counted: Mapping[Plan, int]


Settle = Callable[[Sequence[Assessed]], Decided]
"""What decides among the priced candidates."""


def assess(
    plan: Plan, cells: Cells | tuple[Cells, ...], profile: BrokerProfile, constraints: Constraints, growth: float = 1.0
) -> Assessed:
    """Evaluate a candidate with the fewest partitions that it needs."""
    course = course_of(plan, cells, growth)
    return _assessed(price(course, profile, constraints.least_partitions(course, profile)), constraints)


def assess_as_it_is(
    plan: Plan, cells: Cells | tuple[Cells, ...], profile: BrokerProfile, constraints: Constraints, growth: float = 1.0
) -> Assessed:
    """Evaluate a candidate with its own partitions."""
    return _assessed(price(course_of(plan, cells, growth), profile, plan.partitions), constraints)


def _assessed(evaluation: Evaluation, constraints: Constraints) -> Assessed:
    return Assessed(
        evaluation=evaluation,
        broken=constraints.broken_by(evaluation),
        cost=constraints.cost_of(evaluation),
    )


def choose(
    cells: Cells,
    base: Plan,
    profile: BrokerProfile,
    constraints: Constraints | None = None,
    *,
    candidates: Sequence[Plan] | None = None,
    max_delay_ms: int | None = None,
    growth: float = 1.0,
    spread: Spread = map,
    settle: Settle | None = None,
) -> Choice:
    """Price all candidates on a history and recommend one.

    All are priced from few cells, and the best of them again from more. Whichever is then the best is priced again from
    all cells, until the best is one of those: a burst that coarse cells blur can cost a plan its place, but cannot be
    overlooked.

    Args:
        cells: The history of one topic.
        base: What is not to be chosen: names, subscriptions, guard; see `candidate_plans`.
        profile: The broker.
        constraints: What the user asks for; None: the defaults.
        candidates: Instead of those of `candidate_plans`.
        max_delay_ms: Of the candidates; None: the history's longest delay, rounded up.
        growth: Plan for as many times the history's volume.
        spread: How to go through them.
        settle: Decides, once all are priced; None: the prices do.

    Raises:
        ValueError: There is not one timer in the cells, or no candidate.
        MaxDelayTooShort: The history has longer delays than ``max_delay_ms``.
    """
    if not len(cells):
        raise ValueError("the history has no timers, so there is nothing to plan for")
    limits = Constraints() if constraints is None else constraints
    longest_ms = int(cells.delay_max_ms.max())
    plans = candidate_plans(base, longest_ms, max_delay_ms) if candidates is None else tuple(candidates)
    if not plans:
        raise ValueError("no candidate to choose from")
    rough, coarse = coarse_cells(cells, SCREENING_CELLS), coarse_cells(cells)
    job = partial(assess, profile=profile, constraints=limits, growth=growth)
    article = article_plans(base, longest_ms, max_delay_ms)
    priced = list(spread(partial(job, cells=rough), plans))
    again = [] if rough[0] is cells else _best(priced)
    found = list(spread(partial(job, cells=coarse), [*(plans[index] for index in again), *article.values()]))
    for index, one in zip(again, found, strict=False):
        priced[index] = one
    by_rule = dict(zip(article, found[len(again) :], strict=True))
    finely = set(range(len(priced))) if rough[0] is cells else set(again) if coarse[0] is cells else set[int]()
    while (best := min(range(len(priced)), key=lambda index: _rank(priced[index]))) not in finely:
        priced[best] = assess(plans[best], cells, profile, limits, growth)
        finely.add(best)
    settled = Decided(winner=None, counted={}) if settle is None else settle(priced)
    if settled.winner is not None:
        best = next(at for at, plan in enumerate(plans) if plan.scheme == settled.winner.evaluation.plan.scheme)
        priced[best] = settled.winner
    assessed, recommended = tuple(priced), priced[best]
    fitting = [one for one in assessed if not one.broken]
    native = price(course_of(_native(plans), cells, growth), profile, 1)
    rooms = limits.rooms(recommended.evaluation, profile)
    allowed = limits.allowed_gaps(profile.gap_limit_ranges) / growth
    rivals = [] if recommended.broken else [one.evaluation for one in fitting]
    ties = tied_with(recommended.evaluation, rivals, limits, settled.counted, allowed)
    return Choice(
        recommended=recommended,
        native=native,
        candidates=assessed,
        front=front_of(fitting or assessed),
        article=tuple(by_rule.items()),
        rooms=rooms,
        reasons=reasons_for(
            recommended.evaluation,
            recommended.broken,
            native,
            [one.evaluation for one in sorted(assessed, key=_rank)],
            len(fitting),
            ties,
            rooms,
            limits,
            settled.counted,
            growth,
        ),
        counted=settled.counted,
        ties=ties,
    )


def coarse_cells(cells: Cells, limit: int = PRICING_CELLS) -> tuple[Cells, ...]:
    """From what candidates are priced: few cells, and those of bursts apart."""
    bounded = cells.bounded(limit)
    return (cells,) if bounded.level == cells.level else with_bursts_apart(cells, bounded.level)


def front_of(assessed: Sequence[Assessed]) -> tuple[Assessed, ...]:
    """Those that no other beats in both peak gaps and cost, the cheapest first."""
    front: list[Assessed] = []
    fewest = float("inf")
    for one in sorted(assessed, key=lambda one: (one.cost_writes_per_second, one.evaluation.peak_gaps)):
        if one.evaluation.peak_gaps < fewest:
            front.append(one)
            fewest = one.evaluation.peak_gaps
    return tuple(front)


def _best(priced: Sequence[Assessed]) -> list[int]:
    """The best, and the best of each scheme, as indexes."""
    ranked = sorted(range(len(priced)), key=lambda index: _rank(priced[index]))
    of_scheme = {type(priced[index].evaluation.plan.scheme): index for index in reversed(ranked)}
    return list(dict.fromkeys([*ranked[:CLOSELY], *of_scheme.values()]))


def _rank(one: Assessed) -> tuple[int, float, float, str]:
    # Equal in cost: the fewer gaps, and then a fixed order, so that the same history gives the same plan.
    return len(one.broken), one.cost_writes_per_second, one.evaluation.peak_gaps, repr(one.evaluation.plan.scheme)


def _native(plans: Sequence[Plan]) -> Plan:
    return replace(plans[0], scheme=Native(), partitions=1)

"""Choose: the plan to recommend among the candidates, and the reasons in sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.plan import Native, Plan
from timewheel.spark_planner.choice.candidates import article_plans, candidate_plans
from timewheel.spark_planner.choice.constraints import Constraints, Cost, Room
from timewheel.spark_planner.choice.reasons import reasons_for
from timewheel.spark_planner.pricing.bursts import with_bursts_apart
from timewheel.spark_planner.pricing.course import course_of
from timewheel.spark_planner.pricing.evaluate import price
from timewheel.spark_planner.pricing.evaluation import Evaluation
from timewheel.spark_planner.summary.cells import Cells

__all__ = ["Assessed", "Choice", "Spread", "assess", "choose", "coarse_cells"]

PRICING_CELLS = 30_000
"""All candidates are priced from so many cells, and the best of them again from all: the time of a candidate goes with
their number, and peaks move by less than a percent (tests/planner/test_flow.py)."""


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
        reasons: Sentences.
    """

    recommended: Assessed
    native: Evaluation
    candidates: tuple[Assessed, ...]
    front: tuple[Assessed, ...]
    article: tuple[tuple[str, Assessed], ...]
    rooms: tuple[Room, ...]
    reasons: tuple[str, ...]


Spread = Callable[[Callable[[Plan], Assessed], Sequence[Plan]], Iterable[Assessed]]
"""How candidates are assessed: ``map``, or the same over processes or Spark. The function and its results pickle."""


def assess(
    plan: Plan, cells: Cells | tuple[Cells, ...], profile: BrokerProfile, constraints: Constraints, growth: float = 1.0
) -> Assessed:
    """Evaluate a candidate with the fewest partitions that it needs."""
    course = course_of(plan, cells, growth)
    evaluation = price(course, profile, constraints.least_partitions(course, profile))
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
) -> Choice:
    """Price all candidates on a history and recommend one.

    All are priced from at most `PRICING_CELLS` cells. Whichever is then the best is priced again from all cells, until
    the best is one of those: a burst that coarse cells blur can cost a plan its place, but cannot be overlooked.

    Args:
        cells: The history of one topic.
        base: What is not to be chosen: names, subscriptions, guard; see `candidate_plans`.
        profile: The broker.
        constraints: What the user asks for; None: the defaults.
        candidates: Instead of those of `candidate_plans`.
        max_delay_ms: Of the candidates; None: the history's longest delay, rounded up.
        growth: Plan for as many times the history's volume.
        spread: How to go through them.

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
    coarse = coarse_cells(cells)
    job = partial(assess, cells=coarse, profile=profile, constraints=limits, growth=growth)
    article = article_plans(base, longest_ms, max_delay_ms)
    found = list(spread(job, [*plans, *article.values()]))
    priced, by_rule = found[: len(plans)], dict(zip(article, found[len(plans) :], strict=True))
    finely = set(range(len(priced))) if coarse[0] is cells else set[int]()
    while (best := min(range(len(priced)), key=lambda index: _rank(priced[index]))) not in finely:
        priced[best] = assess(plans[best], cells, profile, limits, growth)
        finely.add(best)
    assessed, recommended = tuple(priced), priced[best]
    fitting = [one for one in assessed if not one.broken]
    native = price(course_of(_native(plans), cells, growth), profile, 1)
    rooms = limits.rooms(recommended.evaluation, profile)
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
            {name: one.evaluation for name, one in by_rule.items()},
            rooms,
            limits,
        ),
    )


def coarse_cells(cells: Cells) -> tuple[Cells, ...]:
    """From what all candidates are priced: few cells, and those of bursts apart."""
    bounded = cells.bounded(PRICING_CELLS)
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


def _rank(one: Assessed) -> tuple[int, float, float, str]:
    # Equal in cost: the fewer gaps, and then a fixed order, so that the same history gives the same plan.
    return len(one.broken), one.cost_writes_per_second, one.evaluation.peak_gaps, repr(one.evaluation.plan.scheme)


def _native(plans: Sequence[Plan]) -> Plan:
    return replace(plans[0], scheme=Native(), partitions=1)

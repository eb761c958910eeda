"""Screening: the selection of candidates that are worth pricing, from some hundred.

A lower bound of a plan's cost is known without pricing: every timer is written once when it is sent, and once more into
its due topic if it hops at all; and every topic has a partition. So candidates are priced in the order of their lower
bounds, until no bound is below the price of the best. All other candidates are known to cost more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from timewheel.core.plan import Plan
from timewheel.core.steps import far_ms, steps
from timewheel.core.topology import topology
from timewheel.spark_planner.choice.assessed import Assessed
from timewheel.spark_planner.choice.constraints import Constraints
from timewheel.spark_planner.pricing.flow import held
from timewheel.spark_planner.summary.cells import Cells

__all__ = ["Screening", "least_cost"]

BOUND_CELLS = 2_000
"""Cells for the lower bounds: a hundredth of a second for all candidates."""
MARGIN = 0.95
"""Share of the written entries in the bound: a cell hops or not by its middle, though some of its timers may differ."""
CHEAPEST = 40
"""This many of the cheapest candidates are always priced,"""
SPREAD = 20
"""and this many evenly over the others, to show the cost of fewer gaps."""
AT_ONCE = 40


class Screening:
    """Candidates, with the prices known so far."""

    def __init__(
        self,
        plans: Sequence[Plan],
        cells: Cells,
        constraints: Constraints,
        growth: float,
        assess: Callable[[Plan], Assessed],
    ) -> None:
        """Compute the lower bounds of all candidates; price none.

        Args:
            plans: All candidates.
            cells: The history of one topic.
            constraints: Source of the prices.
            growth: Volume, as a multiple of the history's volume.
            assess: Prices a plan with the fewest partitions that it needs.
        """
        few = cells.bounded(BOUND_CELLS)
        self.plans = tuple(plans)
        self._bounds = [least_cost(plan, few, constraints, growth) for plan in plans]
        self._order = sorted(range(len(plans)), key=lambda index: (self._bounds[index], index))
        self._assess = assess
        self._found: dict[int, Assessed] = {}

    @property
    def priced(self) -> list[Assessed]:
        """The priced candidates, in the order of the plans."""
        return [self._found[index] for index in sorted(self._found)]

    def begin(self) -> None:
        """Price the cheapest candidates, the cheapest of each scheme, and some of the others."""
        of_scheme = {type(self.plans[index].scheme): index for index in reversed(self._order)}
        rest = self._order[CHEAPEST:]
        evenly = rest if len(rest) <= SPREAD else [rest[len(rest) * turn // SPREAD] for turn in range(SPREAD)]
        self._price([*self._order[:CHEAPEST], *of_scheme.values(), *evenly])

    def further(self, below: float) -> list[Assessed]:
        """Price the next few candidates that may cost less than ``below``; empty: all others cost at least as much."""
        wanted = [index for index in self._order if index not in self._found and self._bounds[index] < below]
        return self._price(wanted[:AT_ONCE])

    def until_certain(self) -> None:
        """Price candidates until the cheapest that breaks nothing costs less than the lower bounds of all others."""
        self.begin()
        while self.further(self._best_cost):
            pass

    def put(self, found: Assessed) -> None:
        """Replace the price of a candidate by a closer price."""
        scheme = found.evaluation.plan.scheme
        index = next(index for index, plan in enumerate(self.plans) if plan.scheme == scheme)
        self._found[index] = found

    @property
    def _best_cost(self) -> float:
        return min((one.cost_writes_per_second for one in self.priced if not one.broken), default=math.inf)

    def _price(self, indexes: Sequence[int]) -> list[Assessed]:
        new = [index for index in dict.fromkeys(indexes) if index not in self._found]
        found = {index: self._assess(self.plans[index]) for index in new}
        self._found |= found
        return list(found.values())


def least_cost(plan: Plan, cells: Cells, constraints: Constraints, growth: float = 1.0) -> float:
    """Return the least possible cost of a plan, regardless of its gaps, in entries written a second.

    Args:
        plan: The plan; its partitions do not matter.
        cells: The history of one topic.
        constraints: Source of the prices.
        growth: Volume, as a multiple of the history's volume.
    """
    table = steps(plan)
    publish_ms, due_ms = cells.middle_ms, (cells.due_min_ms + cells.due_max_ms) // 2
    step, _ = held(table, publish_ms.astype(np.float64), due_ms.astype(np.float64))
    # Beside a shadow, near timers stay, even if a step would accept them.
    hops = due_ms - publish_ms >= far_ms(plan) if plan.intake else step != len(table) - 1
    hopping = float(cells.count[hops].sum())
    first_ms, last_ms = int(cells.publish_min_ms.min()), int(cells.publish_max_ms.max())
    shape = topology(plan.with_partitions(1), last_ms)
    cost = constraints.cost(
        written_entries=MARGIN * growth * (cells.timers + hopping),
        history_ms=last_ms - first_ms,
        partition_topics=sum(len(topic.parts) for topic in shape.topics),
        needs_relay=plan.needs_relay,
    )
    return cost.writes_per_second

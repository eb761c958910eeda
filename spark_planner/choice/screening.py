"""Screening: which of some hundred candidates are worth pricing.

What a plan costs at the least is known without pricing it: every timer is written once when it is sent, and once more
into its due topic if it hops at all; and every topic has a partition. So candidates are priced in the order of their
least cost, until nothing is left that could cost less than the best. The others are known to cost more.
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
"""From which least costs are told: a hundredth of a second for all candidates."""
MARGIN = 0.95
"""Of the written entries: a cell's middle hops or does not, though some of its timers may do the other."""
CHEAPEST = 40
"""So many are priced in any case,"""
SPREAD = 20
"""and so many evenly over the others, so that what fewer gaps cost can be seen."""
AT_ONCE = 40


class Screening:
    """Candidates, and what they were priced at so far."""

    def __init__(
        self,
        plans: Sequence[Plan],
        cells: Cells,
        constraints: Constraints,
        growth: float,
        assess: Callable[[Plan], Assessed],
    ) -> None:
        """Tell their least costs; prices none.

        Args:
            plans: All candidates.
            cells: The history of one topic.
            constraints: At whose prices.
            growth: As many times the history's volume.
            assess: Prices one with the fewest partitions that it needs.
        """
        few = cells.bounded(BOUND_CELLS)
        self.plans = tuple(plans)
        self._bounds = [least_cost(plan, few, constraints, growth) for plan in plans]
        self._order = sorted(range(len(plans)), key=lambda index: (self._bounds[index], index))
        self._assess = assess
        self._found: dict[int, Assessed] = {}

    @property
    def priced(self) -> list[Assessed]:
        """Those that were, in the order of the plans."""
        return [self._found[index] for index in sorted(self._found)]

    def begin(self) -> None:
        """Price the cheapest, the cheapest of each scheme, and some of the others."""
        of_scheme = {type(self.plans[index].scheme): index for index in reversed(self._order)}
        rest = self._order[CHEAPEST:]
        evenly = rest if len(rest) <= SPREAD else [rest[len(rest) * turn // SPREAD] for turn in range(SPREAD)]
        self._price([*self._order[:CHEAPEST], *of_scheme.values(), *evenly])

    def further(self, below: float) -> list[Assessed]:
        """Price the next few that may cost less than this; none: all others cost at least as much."""
        wanted = [index for index in self._order if index not in self._found and self._bounds[index] < below]
        return self._price(wanted[:AT_ONCE])

    def until_certain(self) -> None:
        """Price until the cheapest that breaks nothing is cheaper than what the others cost at the least."""
        self.begin()
        while self.further(self._best_cost):
            pass

    def put(self, found: Assessed) -> None:
        """A closer price of one of the candidates, in place of the first."""
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
    """What a plan costs at the least, whatever its gaps are, in entries written a second.

    Args:
        plan: Its partitions do not matter.
        cells: Of one topic.
        constraints: At whose prices.
        growth: As many times the history's volume.
    """
    table = steps(plan)
    publish_ms, due_ms = cells.middle_ms, (cells.due_min_ms + cells.due_max_ms) // 2
    step, _ = held(table, publish_ms.astype(np.float64), due_ms.astype(np.float64))
    # Beside a shadow what is near stays, whatever step would take it.
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

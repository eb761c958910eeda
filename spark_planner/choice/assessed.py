"""Assessed: a candidate with its price and the limits that it breaks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.plan import Plan
from timewheel.spark_planner.choice.constraints import GAP_FRACTION, Constraints, Cost
from timewheel.spark_planner.history.keys import EVEN, KeyShares
from timewheel.spark_planner.pricing.evaluate import price
from timewheel.spark_planner.pricing.evaluation import Evaluation
from timewheel.spark_planner.pricing.resolution import CLOSE, Resolution
from timewheel.spark_planner.pricing.simulation import simulation_of
from timewheel.spark_planner.summary.cells import Cells

__all__ = ["Assessed", "assess", "rank"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessed:
    """A candidate with the fewest partitions that keep gaps and silence within their limits.

    Args:
        evaluation: The evaluation of the plan with these partitions.
        broken: Names of the constraints that the plan breaks all the same.
        cost: Cost of running the plan, at the constraints' prices.
    """

    evaluation: Evaluation
    broken: tuple[str, ...]
    cost: Cost

    @property
    def cost_writes_per_second(self) -> float:
        """Total cost, in entries written a second."""
        return self.cost.writes_per_second

    def judged(self, counted: int | None, allowed: float) -> Assessed:
        """Replace the estimated verdict on gaps by the counted verdict. None: the plan was not counted."""
        if counted is None:
            return self
        others = tuple(name for name in self.broken if name != GAP_FRACTION)
        return replace(self, broken=(*others, *([GAP_FRACTION] if counted > allowed else [])))


def assess(
    plan: Plan,
    cells: Cells | tuple[Cells, ...],
    profile: BrokerProfile,
    constraints: Constraints,
    growth: float = 1.0,
    resolution: Resolution = CLOSE,
    keys: KeyShares = EVEN,
    *,
    as_it_is: bool = False,
) -> Assessed:
    """Evaluate a candidate with the fewest partitions that it needs, or with its own if ``as_it_is``."""
    simulation = simulation_of(plan, cells, growth, resolution=resolution, keys=keys)
    partitions = plan.own_partitions if as_it_is else constraints.least_partitions(simulation, profile)
    evaluation = price(simulation, profile, partitions)
    return Assessed(
        evaluation=evaluation,
        broken=constraints.broken_by(evaluation),
        cost=constraints.cost_of(evaluation),
    )


def rank(one: Assessed) -> tuple[int, float, float, str]:
    """Sort key of candidates, the best first.

    At equal cost, fewer gaps win, and then a fixed order, so that the same history gives the same plan.
    """
    return len(one.broken), one.cost_writes_per_second, one.evaluation.peak_gaps, repr(one.evaluation.plan.scheme)

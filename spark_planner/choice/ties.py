"""Ties: candidates that cost as much as the recommended plan, and the differences between the two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from timewheel.core.plan import Plan
from timewheel.spark_planner.choice.constraints import Constraints
from timewheel.spark_planner.pricing.evaluation import Evaluation

__all__ = ["TIE", "advantages", "drawbacks", "tied_with"]

TIE = 0.05
"""Tolerance, as a fraction of the recommended plan's cost: prices of topics and relays are estimates, no more exact."""
FEWER_GAPS = 0.8
"""Ratio of estimates below which they differ; closer estimates do not decide."""


def tied_with(
    chosen: Evaluation,
    fitting: Sequence[Evaluation],
    constraints: Constraints,
    counted: Mapping[Plan, int],
    allowed: float,
) -> tuple[Evaluation, ...]:
    """Return the candidates within `TIE` of the recommended plan's cost, those with the most advantages first.

    Args:
        chosen: The recommended plan.
        fitting: All candidates that keep the limits, by estimate.
        constraints: The prices.
        counted: The most gaps of any partition, for plans that were counted and not only estimated.
        allowed: The most gaps that may be counted: a candidate with a higher count is no rival.
    """
    most = constraints.cost_of(chosen).writes_per_second * (1 + TIE)
    rivals = [
        one
        for one in fitting
        if one.plan.scheme != chosen.plan.scheme
        and constraints.cost_of(one).writes_per_second <= most
        and counted.get(one.plan, 0) <= allowed
    ]

    def rank(one: Evaluation) -> tuple[bool, int, float, str]:
        # A plan without a relay is the greatest advantage; equal candidates get a fixed order.
        spares_relay = chosen.needs_relay and not one.needs_relay
        cost = constraints.cost_of(one).writes_per_second
        return not spares_relay, -len(advantages(one, chosen)), cost, repr(one.plan.scheme)

    return tuple(sorted(rivals, key=rank))


def advantages(one: Evaluation, other: Evaluation) -> tuple[str, ...]:
    """Return the advantages of a plan over another plan of the same cost, in words."""
    found = []
    if other.needs_relay and not one.needs_relay:
        found.append("no relay")
    if one.partition_topics < other.partition_topics:
        found.append("fewer topics")
    if one.peak_gaps_per_partition < FEWER_GAPS * other.peak_gaps_per_partition:
        found.append("fewer gaps in a partition")
    if one.hops_mean < FEWER_GAPS * other.hops_mean:
        found.append("fewer hops")
    return tuple(found)


def drawbacks(one: Evaluation, other: Evaluation) -> tuple[str, ...]:
    """Return the disadvantages of a plan against another plan of the same cost, in words."""
    return tuple(name.replace("fewer", "more").replace("no relay", "a relay to run") for name in advantages(other, one))

"""Ties: candidates that cost as much as the recommended one, and what would decide between the two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from timewheel.core.plan import Plan
from timewheel.spark_planner.choice.constraints import Constraints
from timewheel.spark_planner.pricing.evaluation import Evaluation

__all__ = ["TIE", "advantages", "drawbacks", "tied_with"]

TIE = 0.05
"""Of the recommended plan's cost: prices of topics and relays are a judgement, and know no less."""
FEWER_GAPS = 0.8
"""Estimates that are closer than that say nothing."""


def tied_with(
    chosen: Evaluation,
    fitting: Sequence[Evaluation],
    constraints: Constraints,
    counted: Mapping[Plan, int],
    allowed: float,
) -> tuple[Evaluation, ...]:
    """The candidates within `TIE` of what the recommended one costs, those with most in their favour first.

    Args:
        chosen: The recommended plan.
        fitting: All that keep the limits, as far as was estimated.
        constraints: The prices.
        counted: The most gaps of any partition, of the plans that were not only estimated.
        allowed: The most that may be counted: whoever was counted above it is no rival.
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
        # To run no relay is worth most; equal in all: a fixed order.
        spares_relay = chosen.needs_relay and not one.needs_relay
        cost = constraints.cost_of(one).writes_per_second
        return not spares_relay, -len(advantages(one, chosen)), cost, repr(one.plan.scheme)

    return tuple(sorted(rivals, key=rank))


def advantages(one: Evaluation, other: Evaluation) -> tuple[str, ...]:
    """What speaks for a plan against another that costs as much, in words."""
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
    """What speaks against it, in words."""
    return tuple(name.replace("fewer", "more").replace("no relay", "a relay to run") for name in advantages(other, one))

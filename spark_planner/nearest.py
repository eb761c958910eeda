"""Nearest: the plan to recommend where none is within the gap limit, and why none is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from timewheel.core.plan import MAX_PARTITIONS, Plan
from timewheel.spark_planner.choice.assessed import Assessed
from timewheel.spark_planner.choice.constraints import GAP_FRACTION, Constraints, most_countable
from timewheel.spark_planner.choice.hindrance import NEAREST, Hindrance, least_limit, nearest, never_held_ms
from timewheel.spark_planner.replays import Replays

__all__ = ["Nearest"]


@dataclass(frozen=True, slots=True)
class Nearest:
    """What to recommend where no plan is within the gap limit, and why none is.

    Args:
        replays: Of the topic.
        limits: That were asked for.
        growth: Volumes of the traffic.
        kept: Ranges that the broker keeps.
        assess: Prices a plan.
    """

    replays: Replays
    limits: Constraints
    growth: float
    kept: int
    assess: Callable[[Plan], Assessed]

    @property
    def allowed(self) -> int:
        """The most gaps of a partition that a count may find."""
        return self._allowed(self.limits, self.kept)

    def is_hopeless(self, plans: Sequence[Plan]) -> bool:
        """Whether what no candidate holds back is too much by itself: further entries take no gap away, and none of
        them can have more partitions.
        """
        if any(plan.is_partitioned for plan in plans):
            return False
        within_ms = min(filter(None, map(never_held_ms, plans)), default=0)
        return within_ms > 0 and self.replays.sent_for_less(within_ms)[1] > self.allowed

    def of(self, counted: Mapping[Plan, int]) -> Assessed | None:
        """Of what was counted; None: nothing was."""
        plans = sorted(counted, key=lambda plan: counted[plan])[:NEAREST]
        if not plans:
            return None
        gaps = dict(zip(plans, self.replays.count(plans), strict=True))
        priced = {plan: self.assess(plan) for plan in plans}
        costs = {plan: one.cost_writes_per_second for plan, one in priced.items()}
        kept = self._allowed(replace(self.limits, gap_fraction=1.0), self.kept)
        found = priced[nearest(gaps, costs, kept)]
        return replace(found, broken=(*(name for name in found.broken if name != GAP_FRACTION), GAP_FRACTION))

    def hindrance(self, plan: Plan, native: Plan) -> Hindrance | None:
        """Why a plan is not within the gap limit, and what would be; None: it is."""
        (gaps,) = self.replays.count([plan])
        if gaps <= self.allowed:
            return None
        within_ms = never_held_ms(plan)
        timers, by_themselves = self.replays.sent_for_less(within_ms)
        return Hindrance(
            allowed=self.allowed,
            never_held_ms=within_ms,
            never_held_timers=timers,
            never_held_gaps=by_themselves,
            partitions=None if plan.is_partitioned or plan.intake else self._partitions((native, plan), gaps),
            gap_limit_ranges=least_limit(gaps, partial(self._allowed, self.limits)),
        )

    def _partitions(self, plans: Sequence[Plan], gaps: int) -> int | None:
        """How many a due topic must have for one of these plans to be within all limits, as far as was tried."""
        least = max(math.ceil(gaps / max(self.allowed, 1)), 2)
        tried = [replace(plan, partitions=n) for n in (least, least + 1, 2 * least) for plan in plans]
        tried = [plan for plan in tried if plan.partitions <= MAX_PARTITIONS]
        counts = self.replays.count(tried, refuted_above=self.allowed)
        fit = (plan for plan, gaps in zip(tried, counts, strict=True) if gaps <= self.allowed)
        return next((one.partitions for one in fit if not set(self.assess(one).broken) - {GAP_FRACTION}), None)

    def _allowed(self, limits: Constraints, kept: int) -> int:
        return most_countable(limits.allowed_gaps(kept), self.growth)

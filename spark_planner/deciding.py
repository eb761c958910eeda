"""Decision: the cheapest plan that keeps the gap limit by count; if no plan does, the nearest, with the cause."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from timewheel.core.plan import MAX_PARTITIONS, Plan
from timewheel.spark_planner.choice.assessed import Assessed
from timewheel.spark_planner.choice.choose import Decided, Further
from timewheel.spark_planner.choice.constraints import GAP_FRACTION, Constraints, max_countable
from timewheel.spark_planner.choice.decide import at_once_for, decide
from timewheel.spark_planner.choice.hindrance import MOSTLY, Hindrance, least_limit, never_held_ms
from timewheel.spark_planner.replays import Replays

__all__ = ["Deciding"]

NEAREST = 4
"""Number of nearest plans of each kind: those with the fewest counted gaps, the cheapest of those that exceed the limit
for the shortest time, and those with the fewest estimated gaps. One of them is recommended if no plan is enough.
"""
ABOUT = 1.05
"""Ratio to the least value within which values count as equal."""
PERCENTS = [percent / 100 for percent in range(1, 101)]


@dataclass(frozen=True, slots=True)
class Deciding:
    """Decides the plan of a topic by counts.

    Args:
        replays: Replays of the topic.
        plans: All candidates.
        limits: The requested limits.
        growth: Planned volume, as a multiple of the traffic's volume.
        cached: Ranges that the broker stores.
        assess: Prices a plan with its own partitions.
    """

    replays: Replays
    plans: Sequence[Plan]
    limits: Constraints
    growth: float
    cached: int
    assess: Callable[[Plan], Assessed]

    @property
    def allowed(self) -> int:
        """The most gaps of a partition that a count may find."""
        return self._allowed(self.limits, self.cached)

    @property
    def keepable(self) -> int:
        """The most gaps that a count may find so that the broker stores all, regardless of the requested fraction."""
        return self._allowed(self._with(1.0), self.cached)

    def decided(self, priced: Sequence[Assessed], further: Further) -> Decided:
        """Return the cheapest plan within the limit, else the cheapest whose gaps the broker stores, or the nearest."""
        counted: dict[Plan, int] = {}
        known, winner, is_within = list(priced), None, False

        def noted(below: float) -> Sequence[Assessed]:
            # Candidates priced in one round are not yielded again in the next.
            more = further(below)
            known.extend(more)
            return more

        for allowed in dict.fromkeys((self.allowed, self.keepable)):
            found = decide(
                tuple(known),
                self.limits,
                allowed=allowed,
                count=partial(self.replays.count, refuted_above=allowed),
                assess=self.assess,
                keys=self.replays.keys(),
                further=noted,
                is_hopeless=partial(self._is_hopeless, allowed),
                at_once=at_once_for(self.replays.traffic.cells.timers),
            )
            counted |= found.counted
            winner = found.winner
            if winner is not None:
                is_within = allowed == self.allowed
                break
        winner = winner or self._nearest(known, counted)
        if winner is not None and not is_within:
            winner = winner.judged(self.allowed + 1, self.allowed)
        return Decided(winner=winner, counted=self.replays.counted(counted))

    def _is_hopeless(self, allowed: int) -> bool:
        """Return whether timers that no candidate holds back leave too many gaps: further entries take no gap away, and
        no candidate can have more partitions.
        """
        if any(plan.is_partitioned for plan in self.plans):
            return False
        within_ms = self._never_held_ms
        return within_ms > 0 and self.replays.sent_for_less(within_ms)[1] > allowed

    @property
    def _never_held_ms(self) -> int:
        """Delay below which none of the plans holds a timer back."""
        return min(filter(None, map(never_held_ms, self.plans)), default=0)

    def _nearest(self, priced: Sequence[Assessed], counted: Mapping[Plan, int]) -> Assessed | None:
        """Return the plan nearest to the limit: above it for the shortest time, with about the fewest gaps.

        Among equal plans, the cheapest wins.

        A peak of seconds only matters for an unload in these seconds; a lasting peak matters for any unload. None: no
        plan was counted, since every plan breaks another limit.
        """
        if not counted:
            return None
        costs = {one.evaluation.plan.scheme: one.cost_writes_per_second for one in priced}
        estimated = sorted(priced, key=lambda one: one.evaluation.peak_gaps_per_partition)
        by_gaps = sorted(counted, key=lambda plan: counted[plan])
        by_cost = sorted(self._shortest(counted), key=lambda plan: costs[plan.scheme])
        plans = [*by_gaps[:NEAREST], *by_cost[:NEAREST], *(one.evaluation.plan for one in estimated[:NEAREST])]
        gaps = dict(zip(plans, self.replays.count(plans), strict=True))
        shortest = self._shortest(gaps)
        fewest = min(gaps[plan] for plan in shortest)
        return self.assess(
            min((plan for plan in shortest if gaps[plan] <= ABOUT * fewest), key=lambda plan: costs[plan.scheme])
        )

    def _shortest(self, plans: Iterable[Plan]) -> list[Plan]:
        """Return the plans that are above the limit for about the shortest time."""
        lasts_ms = {plan: self.replays.above_ms(plan, self.allowed) for plan in plans}
        return [plan for plan in lasts_ms if lasts_ms[plan] <= ABOUT * min(lasts_ms.values())]

    def hindrance(self, plan: Plan, native: Plan) -> Hindrance | None:
        """Return the cause that a plan exceeds the gap limit, with the remedies; None: the plan keeps the limit."""
        (gaps,) = self.replays.count([plan])
        if gaps <= self.allowed:
            return None
        within_ms = self._never_held_ms
        timers, by_themselves = self.replays.sent_for_less(within_ms)
        lasts_ms, mostly_gaps = self.replays.lasting(plan, self.allowed, MOSTLY)
        return Hindrance(
            lasts_ms=lasts_ms,
            mostly_gaps=mostly_gaps,
            allowed=self.allowed,
            never_held_ms=within_ms,
            never_held_timers=timers,
            never_held_gaps=by_themselves,
            partitions=None if plan.is_partitioned or plan.intake else self._partitions((native, plan), gaps),
            gap_limit_ranges=least_limit(gaps, partial(self._allowed, self.limits)),
            gap_fraction=next(
                (part for part in PERCENTS if self._allowed(self._with(part), self.cached) >= gaps), None
            ),
        )

    def _partitions(self, plans: Sequence[Plan], gaps: int) -> int | None:
        """Return the partitions of a due topic with which either plan would keep all limits; None: no tried number."""
        least = max(math.ceil(gaps / max(self.allowed, 1)), 2)
        tried = [replace(plan, partitions=n) for n in (least, least + 1, 2 * least) for plan in plans]
        tried = [plan for plan in tried if plan.partitions <= MAX_PARTITIONS]
        counts = self.replays.count(tried, refuted_above=self.allowed)
        fit = (plan for plan, gaps in zip(tried, counts, strict=True) if gaps <= self.allowed)
        return next((one.partitions for one in fit if not set(self.assess(one).broken) - {GAP_FRACTION}), None)

    def _with(self, gap_fraction: float) -> Constraints:
        return replace(self.limits, gap_fraction=gap_fraction)

    def _allowed(self, limits: Constraints, cached: int) -> int:
        return max_countable(limits.allowed_gaps(cached), self.growth)

"""Decision by count: the cheapest candidate whose gaps, counted timer by timer, keep the limit.

The gap law estimates gaps from the mixture of delays. The estimate is right for independent neighbouring delays, and
can be wrong by any factor for dependent delays. So estimates only determine the order of counting. Every candidate that
could be cheaper than the cheapest candidate counted within the limit is counted too, each with the partitions that its
last count asks for, until no such candidate is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from timewheel.core.plan import MAX_PARTITIONS, Plan
from timewheel.spark_planner.choice.assessed import Assessed
from timewheel.spark_planner.choice.choose import Decided, Further
from timewheel.spark_planner.choice.constraints import GAP_FRACTION, SILENCE_SECONDS, Constraints
from timewheel.spark_planner.history.keys import EVEN, KeyShares

__all__ = ["HELPED", "at_once_for", "decide"]

AT_ONCE = 20
"""Most candidates that are counted in one pass,"""
LEAST_AT_ONCE = 4
TIMERS_AT_ONCE = 40_000_000
"""and fewer for a long history: this many timers times candidates. Later candidates may then need no count."""
LEAST_RATIO = 0.25
"""Lowest assumed ratio of count to estimate, until a count shows a lower ratio."""
DOUBT = 2.0
"""Safety factor on the worst ratio of count to estimate so far."""
HELPED = 0.95
"""Greatest ratio to the previous count at which more partitions have helped."""
LEAST_GAPS = 20.0
"""Smaller estimates show nothing about the error of estimates: random variation is as large."""

Count = Callable[[Sequence[Plan]], Sequence[int]]
"""Counts the most gaps of any partition under each plan; a figure above the limit is a lower bound."""
Assess = Callable[[Plan], Assessed]
"""Prices a plan with its own partitions."""


def _none_further(below: float) -> Sequence[Assessed]:
    del below
    return ()


def _never() -> bool:
    return False


def decide(
    candidates: Sequence[Assessed],
    constraints: Constraints,
    *,
    allowed: int,
    count: Count,
    assess: Assess,
    keys: KeyShares = EVEN,
    further: Further = _none_further,
    is_hopeless: Callable[[], bool] = _never,
    at_once: int = AT_ONCE,
) -> Decided:
    """Count candidates until the cheapest is certain.

    Args:
        candidates: Candidates with the partitions that their estimates ask for; estimates may be rough.
        constraints: All other limits, and the prices.
        allowed: The most gaps of a partition that a count may find.
        count: Counts several plans.
        assess: Prices a counted plan closely.
        keys: Distribution of keys over partitions.
        further: Prices more candidates, if the best counted candidate is dearer than these may be.
        is_hopeless: Returns whether no candidate can be within the limit; called after rounds without a winner.
        at_once: The most plans in one call of ``count``.
    """

    def known(found: Sequence[Assessed]) -> list[_Candidate]:
        table = [_Candidate(one, constraints, allowed, assess, keys) for one in found]
        return [one for one in table if one.can_win]

    table = known(candidates)
    # The first round takes the cheapest candidates, and the cheapest of each scheme at any cost.
    wanted = _first(table, at_once)
    while True:
        plans = [one.next_plan for one in wanted]
        for one, gaps in zip(wanted, count(plans), strict=True):
            one.note(gaps)
        winner = _winner(table)
        if winner is None and is_hopeless():
            break
        wanted = _contenders(table, winner)[:at_once]
        while not wanted and (more := further(_cost(winner))):
            table += known(more)
            wanted = _contenders(table, winner)[:at_once]
        if not wanted:
            break
    counted = {plan: gaps for one in table for plan, gaps in one.counted.items()}
    if winner is None:
        return Decided(winner=None, counted=counted)
    # The counted plan is within the limit, regardless of its estimate.
    return Decided(winner=replace(winner.close, broken=()), counted=counted)


def at_once_for(timers: int) -> int:
    """Return the number of candidates to count in one pass over so many timers."""
    return min(max(TIMERS_AT_ONCE // max(timers, 1), LEAST_AT_ONCE), AT_ONCE)


class _Candidate:
    """A scheme, with the counts and prices known for each number of partitions."""

    def __init__(
        self, estimated: Assessed, constraints: Constraints, allowed: int, assess: Assess, keys: KeyShares
    ) -> None:
        evaluation = estimated.evaluation
        self._constraints = constraints
        self._allowed = max(allowed, 0)
        self._assess = assess
        self._keys = keys
        self._estimated = estimated
        self._plan = evaluation.plan
        self._close: dict[int, Assessed] = {}
        self._gaps: dict[int, int] = {}
        self._least = constraints.partitions_for_silence(evaluation, keys)
        self._most = constraints.max_partitions(self._plan)
        self.can_win = not set(estimated.broken) - {GAP_FRACTION}

    @property
    def scheme(self) -> type:
        return type(self._plan.scheme)

    @property
    def estimated_cost(self) -> float:
        return self._estimated.cost_writes_per_second

    @property
    def fewest(self) -> int | None:
        """The fewest partitions that keep both the counted gaps and silence within their limits."""
        within = (partitions for partitions, gaps in self._gaps.items() if gaps <= self._allowed)
        return min((partitions for partitions in within if partitions >= self._least), default=None)

    @property
    def close(self) -> Assessed:
        """The close price with the fewest partitions."""
        assert self.fewest is not None
        return self._close[self.fewest]

    @property
    def is_close(self) -> bool:
        return self.fewest in self._close

    @property
    def cost(self) -> float:
        """Cost with the fewest partitions, as far as known."""
        assert self.fewest is not None
        if self.is_close:
            return self.close.cost_writes_per_second
        return self._constraints.cost_with(self._estimated.evaluation, self.fewest)

    def price_closely(self) -> None:
        """Price the scheme with the fewest partitions. Afterwards silence may need more, or no number may be enough."""
        assert self.fewest is not None
        found = self._assess(self.plan)
        self._close[self.fewest] = found
        self._least = self._constraints.partitions_for_silence(found.evaluation, self._keys)
        if set(found.broken) - {GAP_FRACTION, SILENCE_SECONDS}:
            self.can_win = False

    @property
    def plan(self) -> Plan:
        assert self.fewest is not None
        return self._with(self.fewest)

    @property
    def counted(self) -> dict[Plan, int]:
        return {self._with(partitions): gaps for partitions, gaps in self._gaps.items()}

    @property
    def next_partitions(self) -> int | None:
        """Partitions for the next count; None: no other number can help."""
        wanted = self._wanted_partitions
        return wanted if wanted is not None and wanted <= self._most else None

    @property
    def _wanted_partitions(self) -> int | None:
        """Partitions for the next count, which may exceed the maximum of the due topic."""
        if not self.can_win:
            return None
        if not self._gaps:
            return self._plan.own_partitions
        fewest = self.fewest
        if fewest is None:
            most = max(self._gaps)
            if most < self._least:
                return self._least
            if self._is_stuck:
                return None
            return None if most >= MAX_PARTITIONS else min(max(most + 1, self._needed(most)), MAX_PARTITIONS)
        too_few = max((partitions for partitions in self._gaps if partitions < fewest), default=0)
        floor = max(too_few + 1, self._least)
        if floor >= fewest:
            return None
        fewer = max(self._needed(fewest), floor)
        if fewer < fewest:
            return fewer
        # Gaps need not divide: a partition with all batches sorted by due time has no more gaps than each of four. So
        # the fewest partitions are tried first, then the numbers between. More partitions are assumed not to raise the
        # gaps of each.
        return (too_few + fewest) // 2 if too_few else floor

    @property
    def _is_stuck(self) -> bool:
        """True if more partitions do not help: all of a hot key's timers share a partition."""
        *_, before, last = [math.inf, *(self._gaps[partitions] for partitions in sorted(self._gaps))]
        return last > HELPED * before

    @property
    def next_plan(self) -> Plan:
        assert self.next_partitions is not None
        return self._with(self.next_partitions)

    def least_cost(self, ratio: float) -> float:
        """Return the least possible cost, if the estimate is ``1 / ratio`` times too high.

        For a counted scheme, this is the cost with the number of partitions of its next count.
        """
        partitions = self.next_partitions
        assert partitions is not None
        if not self._gaps:
            evaluation = self._estimated.evaluation
            # Independent of keys: they may weigh less in gaps than in timers.
            gaps = evaluation.peak_gaps_per_topic * ratio
            partitions = min(max(math.ceil(gaps / max(self._allowed, 1)), math.ceil(self._least * ratio)), partitions)
        return self._constraints.cost_with(self._estimated.evaluation, partitions)

    def ratio(self) -> float:
        """Return the ratio of count to estimate, both with the estimate's partitions; 1 if either says too little."""
        estimate, gaps = self._estimated.evaluation.peak_gaps_per_partition, self._gaps.get(self._plan.own_partitions)
        return 1.0 if gaps is None or estimate < LEAST_GAPS else gaps / estimate

    def note(self, gaps: int) -> None:
        """Record the count for the next number of partitions."""
        assert self.next_partitions is not None
        self._gaps[self.next_partitions] = gaps

    def _needed(self, partitions: int) -> int:
        # The fewest partitions that can be enough if gaps divide as timers do: all but the fullest may have a gap less.
        gaps = self._gaps[partitions]
        least = max(gaps - 1, 0) / self._keys.fullest(partitions) + min(gaps, 1)
        return self._keys.fewest(least / max(self._allowed, 1))

    def _with(self, partitions: int) -> Plan:
        return self._plan.with_partitions(partitions)


def _first(table: Sequence[_Candidate], at_once: int) -> list[_Candidate]:
    ranked = sorted(table, key=lambda one: one.estimated_cost)
    best = {one.scheme: one for one in reversed(ranked)}
    found = list(dict.fromkeys([*best.values(), *ranked]))
    return found[: max(at_once, len(best))]


def _winner(table: Sequence[_Candidate]) -> _Candidate | None:
    """Return the cheapest candidate whose count is within the limit, priced closely."""
    while True:
        within = [one for one in table if one.can_win and one.fewest is not None]
        best = min(within, key=lambda one: one.cost, default=None)
        if best is None or best.is_close:
            return best
        best.price_closely()


def _cost(winner: _Candidate | None) -> float:
    return math.inf if winner is None else winner.cost


def _contenders(table: Sequence[_Candidate], winner: _Candidate | None) -> list[_Candidate]:
    """Return the candidates that may still be cheaper, the cheapest first."""
    ratio = min(LEAST_RATIO, *(one.ratio() / DOUBT for one in table)) if table else LEAST_RATIO
    most = _cost(winner)
    costs = [(one.least_cost(ratio), number) for number, one in enumerate(table) if one.next_partitions is not None]
    return [table[number] for cost, number in sorted(costs) if cost < most]

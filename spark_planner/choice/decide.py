"""Deciding by the count: of all candidates the cheapest whose gaps, counted timer by timer, keep their limit.

The law estimates gaps from the mixture of delays. It is right where neighbouring delays are independent, and can be
wrong by any factor where they are not. So its estimates say only what to count first. Whatever could be cheaper than
the cheapest that was counted within the limit is counted too, each with the partitions that its last count asks for,
until nothing is left that could be.
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
"""Candidates that are counted in one pass,"""
LEAST_AT_ONCE = 4
TIMERS_AT_ONCE = 40_000_000
"""and of a long history fewer: as many as make so many ways of timers. What need not be counted then is not."""
LEAST_RATIO = 0.25
"""An estimate is taken to be at most so many times too high, until a count shows that it can be more."""
DOUBT = 2.0
"""And the next one may be off by as many times more than the worst that was seen."""
HELPED = 0.95
"""Of the count before, at most, or more partitions have not helped."""
LEAST_GAPS = 20.0
"""Estimates below say nothing of how far estimates are off: chance is as large."""

Count = Callable[[Sequence[Plan]], Sequence[int]]
"""The most gaps of any partition under each of these plans, counted; of those above the limit so many at least."""
Assess = Callable[[Plan], Assessed]
"""A plan priced with its own partitions."""


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
    """Count until the cheapest is certain.

    Args:
        candidates: Each with the partitions that its estimate asks for; estimates may be rough.
        constraints: What else they have to keep, and prices.
        allowed: The most gaps of a partition that a count may find.
        count: Counts several.
        assess: Prices closely a plan that was counted.
        keys: How partitions fill.
        further: Prices more candidates, where the count leaves the best dearer than what these may cost.
        is_hopeless: Whether no candidate can be within the limit; asked after rounds that found none.
        at_once: The most that are handed to ``count``.
    """

    def known(found: Sequence[Assessed]) -> list[_Candidate]:
        table = [_Candidate(one, constraints, allowed, assess, keys) for one in found]
        return [one for one in table if one.can_win]

    table = known(candidates)
    # In the first round the cheapest, and the cheapest of each scheme whatever it costs.
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
    # What was counted is within the limit, whatever the estimate says.
    return Decided(winner=replace(winner.close, broken=()), counted=counted)


def at_once_for(timers: int) -> int:
    """How many candidates to count in one pass over so many timers."""
    return min(max(TIMERS_AT_ONCE // max(timers, 1), LEAST_AT_ONCE), AT_ONCE)


class _Candidate:
    """One scheme, and what is known of it with one number of partitions or another."""

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
        self._most = constraints.most_partitions(self._plan)
        self.can_win = not set(estimated.broken) - {GAP_FRACTION}

    @property
    def scheme(self) -> type:
        return type(self._plan.scheme)

    @property
    def estimated_cost(self) -> float:
        return self._estimated.cost_writes_per_second

    @property
    def fewest(self) -> int | None:
        """The fewest partitions with which a count was within the limit, and silence is."""
        within = (partitions for partitions, gaps in self._gaps.items() if gaps <= self._allowed)
        return min((partitions for partitions in within if partitions >= self._least), default=None)

    @property
    def close(self) -> Assessed:
        """Priced closely with the fewest partitions."""
        assert self.fewest is not None
        return self._close[self.fewest]

    @property
    def is_close(self) -> bool:
        return self.fewest in self._close

    @property
    def cost(self) -> float:
        """With the fewest partitions, as far as is known."""
        assert self.fewest is not None
        if self.is_close:
            return self.close.cost_writes_per_second
        return self._constraints.cost_with(self._estimated.evaluation, self.fewest)

    def price_closely(self) -> None:
        """With the fewest partitions. It may turn out that silence asks for more, or that no number will do."""
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
        """How many to count it with next; None: no other number can help."""
        wanted = self._wanted_partitions
        return wanted if wanted is not None and wanted <= self._most else None

    @property
    def _wanted_partitions(self) -> int | None:
        """The same, though the due topic may not be able to have as many."""
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
        # Gaps need not divide: of batches that are sorted by due time one partition has no more than each of four. So
        # the fewest are tried, then what is between. More partitions have no more gaps each, as far as is known.
        return (too_few + fewest) // 2 if too_few else floor

    @property
    def _is_stuck(self) -> bool:
        """Whether more partitions do not help: all of a hot key's timers are in one of them."""
        *_, before, last = [math.inf, *(self._gaps[partitions] for partitions in sorted(self._gaps))]
        return last > HELPED * before

    @property
    def next_plan(self) -> Plan:
        assert self.next_partitions is not None
        return self._with(self.next_partitions)

    def least_cost(self, ratio: float) -> float:
        """What it may cost at the least, if its estimate is ``1 / ratio`` times too high; counted, what its next number
        of partitions costs.
        """
        partitions = self.next_partitions
        assert partitions is not None
        if not self._gaps:
            evaluation = self._estimated.evaluation
            # Whatever its keys are: they may weigh less in gaps than in timers.
            gaps = evaluation.peak_gaps_per_topic * ratio
            partitions = min(max(math.ceil(gaps / max(self._allowed, 1)), math.ceil(self._least * ratio)), partitions)
        return self._constraints.cost_with(self._estimated.evaluation, partitions)

    def ratio(self) -> float:
        """The count beside the estimate, both with the estimate's partitions; 1 where one of them says nothing."""
        estimate, gaps = self._estimated.evaluation.peak_gaps_per_partition, self._gaps.get(self._plan.own_partitions)
        return 1.0 if gaps is None or estimate < LEAST_GAPS else gaps / estimate

    def note(self, gaps: int) -> None:
        """It was counted with the next number of partitions."""
        assert self.next_partitions is not None
        self._gaps[self.next_partitions] = gaps

    def _needed(self, partitions: int) -> int:
        # The fewest that can be enough if gaps divide as timers do: all but the fullest may have one gap less.
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
    """The cheapest that was counted within the limit, priced closely."""
    while True:
        within = [one for one in table if one.can_win and one.fewest is not None]
        best = min(within, key=lambda one: one.cost, default=None)
        if best is None or best.is_close:
            return best
        best.price_closely()


def _cost(winner: _Candidate | None) -> float:
    return math.inf if winner is None else winner.cost


def _contenders(table: Sequence[_Candidate], winner: _Candidate | None) -> list[_Candidate]:
    """Those that may turn out cheaper, the cheapest first."""
    ratio = min(LEAST_RATIO, *(one.ratio() / DOUBT for one in table)) if table else LEAST_RATIO
    most = _cost(winner)
    costs = [(one.least_cost(ratio), number) for number, one in enumerate(table) if one.next_partitions is not None]
    return [table[number] for cost, number in sorted(costs) if cost < most]

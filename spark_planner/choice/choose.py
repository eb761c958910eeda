"""Chooses the recommended plan among the candidates: screening by price, then the decision by count.

Screening. A lower bound of a plan's cost is known without pricing: every timer is written once when it is sent, and
once more into its due topic if it hops at all; and every topic has a partition. So candidates are priced in the order
of their lower bounds, until no bound is below the price of the best. All other candidates are known to cost more.

Decision. The gap law estimates gaps from the mixture of delays. The estimate is right for independent neighbouring
delays, and can be wrong by any factor for dependent delays. So estimates only determine the order of counting. Every
candidate that could be cheaper than the cheapest candidate counted within the limit is counted too, each with the
partitions that its last count asks for, until no such candidate is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.plan import MAX_PARTITIONS, Native, Plan
from timewheel.core.steps import far_ms, steps
from timewheel.core.topology import topology

from ..history.keys import EVEN, KeyShares
from ..pricing.evaluate import Evaluation, price
from ..pricing.flow import CLOSE, QUICK, Resolution, held
from ..pricing.simulation import simulation_of, with_bursts_apart
from ..summary.cells import Cells
from .candidates import article_plans, candidate_plans
from .constraints import GAP_FRACTION, SILENCE_SECONDS, Constraints, Cost, Room, max_countable
from .reasons import reasons_for, tied_with


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessed:
    """A candidate with the fewest partitions that keep gaps and silence within their limits."""

    evaluation: Evaluation  # the evaluation of the plan with these partitions
    broken: tuple[str, ...]  # names of the constraints that the plan breaks all the same
    cost: Cost  # cost of running the plan, at the constraints' prices

    @classmethod
    def of(cls, evaluation: Evaluation, constraints: Constraints) -> Assessed:
        """Assess a plan with the partitions of its evaluation."""
        broken, cost = constraints.broken_by(evaluation), constraints.cost_of(evaluation)
        return cls(evaluation=evaluation, broken=broken, cost=cost)

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
    return Assessed.of(price(simulation, profile, partitions), constraints)


def rank(one: Assessed) -> tuple[int, float, float, str]:
    """Sort key of candidates, the best first."""
    return len(one.broken), one.cost_writes_per_second, one.evaluation.peak_gaps, repr(one.evaluation.plan.scheme)


BOUND_CELLS = 2_000  # cells for the lower bounds: a hundredth of a second for all candidates
MARGIN = 0.95
"""Share of the written entries in the bound: a cell hops or not by its middle, though some of its timers may differ."""
CHEAPEST = 40  # this many of the cheapest candidates are always priced,
SPREAD = 20  # and this many evenly over the others, to show the cost of fewer gaps
PRICED_AT_ONCE = 40


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
        """Compute the lower bounds of all candidates; price none."""
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

    def further(self, below: float) -> list[Assessed]:
        """Price the next few candidates that may cost less than ``below``; empty: all others cost at least as much."""
        wanted = [index for index in self._order if index not in self._found and self._bounds[index] < below]
        return self._price(wanted[:PRICED_AT_ONCE])

    def until_certain(self) -> None:
        """Price candidates until the cheapest that breaks nothing costs less than the lower bounds of all others."""
        of_scheme = {type(self.plans[index].scheme): index for index in reversed(self._order)}
        rest = self._order[CHEAPEST:]
        evenly = rest if len(rest) <= SPREAD else [rest[len(rest) * turn // SPREAD] for turn in range(SPREAD)]
        self._price([*self._order[:CHEAPEST], *of_scheme.values(), *evenly])
        while self.further(
            min((one.cost_writes_per_second for one in self.priced if not one.broken), default=math.inf)
        ):
            pass

    def put(self, found: Assessed) -> None:
        scheme = found.evaluation.plan.scheme
        self._found[next(index for index, plan in enumerate(self.plans) if plan.scheme == scheme)] = found

    def _price(self, indexes: Sequence[int]) -> list[Assessed]:
        new = [index for index in dict.fromkeys(indexes) if index not in self._found]
        found = {index: self._assess(self.plans[index]) for index in new}
        self._found |= found
        return list(found.values())


def least_cost(plan: Plan, cells: Cells, constraints: Constraints, growth: float = 1.0) -> float:
    """Return the least possible cost of a plan, regardless of its gaps, in entries written a second."""
    table = steps(plan)
    publish_ms, due_ms = cells.middle_ms, (cells.due_min_ms + cells.due_max_ms) // 2
    step, _ = held(table, publish_ms.astype(np.float64), due_ms.astype(np.float64))
    # Beside a shadow, near timers stay, even if a step would accept them.
    hops = due_ms - publish_ms >= far_ms(plan) if plan.intake else step != len(table) - 1
    first_ms, last_ms = int(cells.publish_min_ms.min()), int(cells.publish_max_ms.max())
    cost = constraints.cost(
        written_entries=MARGIN * growth * (cells.timers + float(cells.count[hops].sum())),
        history_ms=last_ms - first_ms,
        partition_topics=sum(len(topic.parts) for topic in topology(plan.with_partitions(1), last_ms).topics),
        needs_relay=plan.needs_relay,
    )
    return cost.writes_per_second


MANY = 64  # above this number, candidates are screened: priced from `SCREENING_CELLS` cells and at `QUICK` resolution
SCREENING_CELLS = 12_000
PRICING_CELLS = 30_000  # peaks differ by less than a percent from those of all cells (tests/planner/test_flow.py)


def coarse_cells(cells: Cells, limit: int = PRICING_CELLS) -> tuple[Cells, ...]:
    bounded = cells.bounded(limit)
    return (cells,) if bounded.level == cells.level else with_bursts_apart(cells, bounded.level)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The planner's choice.

    Args:
        recommended: The cheapest candidate that breaks no constraint; without such a candidate, the candidate that
            breaks fewest.
        native: The native plan with one partition: the plan that a user has today.
        considered: Number of candidates. Candidates that were not priced cost more, regardless of their gaps.
        candidates: The priced candidates, in a fixed order.
        front: The Pareto front of these in peak gaps and cost, the cheapest first; if any candidate breaks nothing,
            only such candidates.
        article: The plans of the source article's rules of thumb, by rule name.
        rooms: The volume at which each limit is reached, the nearest first.
        reasons: Sentences, at most `reasons.MOST`.
        counted: The most gaps of any partition, for candidates that were counted and not only estimated.
        beside: The same for the recommended plan, native delays and the rules of thumb; a figure above the limit is a
            lower bound. Empty if nothing was counted.
        ties: Other candidates that break nothing and whose cost is within `reasons.TIE` of the recommended plan's, the
            strongest rival first.
    """

    recommended: Assessed
    native: Evaluation
    considered: int
    candidates: tuple[Assessed, ...]
    front: tuple[Assessed, ...]
    article: tuple[tuple[str, Assessed], ...]
    rooms: tuple[Room, ...]
    reasons: tuple[str, ...]
    counted: Mapping[Plan, int] = field(default_factory=dict)
    beside: Mapping[Plan, int] = field(default_factory=dict)
    ties: tuple[Evaluation, ...] = ()

    @property
    def known(self) -> Mapping[Plan, int]:
        """All counts, those of candidates and those beside them."""
        return {**self.counted, **self.beside}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """The decision by counting gaps timer by timer."""

    # the cheapest plan whose count is within the limit and that breaks no other constraint; None: there is none
    winner: Assessed | None
    counted: Mapping[Plan, int]  # the most gaps of any partition, for every counted plan, partitions included


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """A plan of the planner, with its input."""

    profile: BrokerProfile  # the broker
    constraints: Constraints  # the user's limits, with the margin that the traffic requires
    growth: float  # planned volume, as a multiple of the history's volume
    choice: Choice  # the recommended plan among all candidates, at that volume
    keys: KeyShares  # the topic's heaviest keys

    @property
    def plan(self) -> Plan:
        """The recommended plan, partitions included."""
        return self.choice.recommended.evaluation.plan

    @property
    def max_countable_gaps(self) -> int:
        """The most gaps that a count of the history may find in a partition, see `max_countable`."""
        return max_countable(self.constraints.allowed_gaps(self.profile.gap_limit_ranges), self.growth)


def choose(
    cells: Cells,
    base: Plan,
    profile: BrokerProfile,
    constraints: Constraints | None = None,
    *,
    candidates: Sequence[Plan] | None = None,
    max_delay_ms: int | None = None,
    growth: float = 1.0,
    keys: KeyShares = EVEN,
) -> Choice:
    """Recommend a plan by price alone, for the cells of one topic; no gaps are counted. Arguments as in `plan_for`.

    Raises:
        ValueError: The cells have no timers, or there is no candidate.
        MaxDelayTooShort: The history has longer delays than ``max_delay_ms``.
    """
    priced = Priced(cells, base, profile, constraints or Constraints(), candidates, max_delay_ms, growth, keys)
    return priced.choice(priced.recommended(), {})


class Priced(Screening):
    """Candidates that were priced until no other can be cheaper, for a decision among them and for the choice."""

    def __init__(
        self,
        cells: Cells,
        base: Plan,
        profile: BrokerProfile,
        limits: Constraints,
        candidates: Sequence[Plan] | None,
        max_delay_ms: int | None,
        growth: float,
        keys: KeyShares,
    ) -> None:
        if not len(cells):
            raise ValueError("the history has no timers, so there is nothing to plan for")
        longest_ms = int(cells.delay_max_ms.max())
        plans = candidate_plans(base, longest_ms, max_delay_ms) if candidates is None else tuple(candidates)
        if not plans:
            raise ValueError("no candidate to choose from")
        self.profile, self.limits, self.growth, self.keys = profile, limits, growth, keys
        self._assessed = partial(assess, profile=profile, constraints=limits, growth=growth, keys=keys)
        self._closely = partial(self._assessed, cells=cells)
        coarse = coarse_cells(cells)
        self.as_it_is = partial(self._assessed, cells=coarse, as_it_is=True)  # prices a plan with its own partitions
        if len(plans) > MANY:
            quickly = partial(self._assessed, cells=coarse_cells(cells, SCREENING_CELLS), resolution=QUICK)
        else:
            quickly = partial(self._assessed, cells=coarse)
        super().__init__(plans, cells, limits, growth, quickly)
        self.until_certain()
        rules = article_plans(base, longest_ms, max_delay_ms)
        self.rules = {name: self._assessed(plan, coarse) for name, plan in rules.items()}
        native = replace(plans[0], scheme=Native(), intake=False).with_partitions(1)
        self.native = price(simulation_of(native, cells, growth), profile, 1)

    def recommended(self, winner: Assessed | None = None) -> Assessed:
        """Return the winner of a decision by counts; None: the best by price."""
        # A burst that coarse cells blur can cost a plan its rank, but cannot be overlooked: the best candidate is
        # priced again from all cells, until the best has such a price.
        if winner is not None:
            self.put(winner)
            return winner
        close: set[Plan] = set()
        while (best := min(self.priced, key=rank).evaluation.plan) not in close:
            found = self._closely(best)
            self.put(found)
            close.add(found.evaluation.plan)
            # The close price may be higher than that of candidates that were not priced yet.
            self.until_certain()
        return min(self.priced, key=rank)

    def choice(
        self, recommended: Assessed, counted: Mapping[Plan, int], beside: Mapping[Plan, int] | None = None
    ) -> Choice:
        chosen, limits, growth, assessed = recommended.evaluation, self.limits, self.growth, tuple(self.priced)
        # If the count refuted all candidates, none fits, regardless of the estimates.
        fitting = [] if recommended.broken else [one for one in assessed if not one.broken]
        allowed = limits.allowed_gaps(self.profile.gap_limit_ranges)
        known = {**counted, **(beside or {})}
        made = Choice(
            recommended=recommended,
            native=self.native,
            considered=len(self.plans),
            candidates=assessed,
            front=front_of(fitting or assessed),
            article=tuple(
                (name, one.judged(known.get(one.evaluation.plan), max_countable(allowed, growth)))
                for name, one in self.rules.items()
            ),
            rooms=limits.rooms(chosen, self.profile, known.get(chosen.plan), growth),
            reasons=(),
            counted=counted,
            beside=beside or {},
            ties=tied_with(chosen, [one.evaluation for one in fitting], limits, counted, allowed / growth),
        )
        ranked = [one.evaluation for one in sorted(assessed, key=rank)]
        return replace(made, reasons=reasons_for(made, ranked, len(fitting), limits, growth))


def front_of(assessed: Sequence[Assessed]) -> tuple[Assessed, ...]:
    """Return the Pareto front in peak gaps and cost, the cheapest first."""
    front: list[Assessed] = []
    for one in sorted(assessed, key=lambda one: (one.cost_writes_per_second, one.evaluation.peak_gaps)):
        if not front or one.evaluation.peak_gaps < front[-1].evaluation.peak_gaps:
            front.append(one)
    return tuple(front)


AT_ONCE = 20  # most candidates that are counted in one pass,
LEAST_AT_ONCE = 4
TIMERS_AT_ONCE = 40_000_000
"""and fewer for a long history: this many timers times candidates. Later candidates may then need no count."""
LEAST_RATIO = 0.25  # lowest assumed ratio of count to estimate, until a count shows a lower ratio
DOUBT = 2.0  # safety factor on the worst ratio of count to estimate so far
HELPED = 0.95  # greatest ratio to the previous count at which more partitions have helped
LEAST_GAPS = 20.0  # smaller estimates show nothing about the error of estimates: random variation is as large


@dataclass(slots=True)
class Counts:
    """The candidates of a decision, with a way to count their gaps; a subclass counts."""

    known: list[Assessed]  # with the partitions that their estimates ask for; estimates may be rough
    limits: Constraints  # all other limits, and the prices
    keys: KeyShares

    def count(self, plans: Sequence[Plan], allowed: int) -> Sequence[int]:
        """Count the most gaps of any partition under each plan; a figure above ``allowed`` is a lower bound."""
        raise NotImplementedError

    def assess(self, plan: Plan) -> Assessed:
        """Price a counted plan closely, with its own partitions."""
        raise NotImplementedError

    def further(self, below: float) -> Sequence[Assessed]:
        """Price the next few candidates that may cost less than this; empty: there are none."""
        del below
        return ()

    def is_hopeless(self, allowed: int) -> bool:
        """Return whether no candidate can be within the limit; called after rounds without a winner."""
        del allowed
        return False


def decide(counts: Counts, allowed: int, at_once: int = AT_ONCE) -> Decided:
    """Count candidates, at most ``at_once`` in a pass, until the cheapest with at most ``allowed`` gaps is certain."""
    table = _able(counts.known, counts, allowed)
    # The first round takes the cheapest candidates, and the cheapest of each scheme at any cost.
    ranked = sorted(table, key=lambda one: one.estimated.cost_writes_per_second)
    best = {type(one.plan.scheme): one for one in reversed(ranked)}
    wanted = list(dict.fromkeys([*best.values(), *ranked]))[: max(at_once, len(best))]
    while True:
        for one, gaps in zip(wanted, counts.count([one.next_plan for one in wanted], allowed), strict=True):
            one.note(gaps)
        winner = _winner(table)
        if winner is None and counts.is_hopeless(allowed):
            break
        most = math.inf if winner is None else winner.cost
        wanted = _contenders(table, most)[:at_once]
        while not wanted and (more := counts.further(most)):
            table += _able(more, counts, allowed)
            wanted = _contenders(table, most)[:at_once]
        if not wanted:
            break
    counted = {one.with_partitions(partitions): gaps for one in table for partitions, gaps in one.gaps.items()}
    # The counted plan is within the limit, regardless of its estimate.
    return Decided(winner=None if winner is None else replace(winner.close, broken=()), counted=counted)


def at_once_for(timers: int) -> int:
    return min(max(TIMERS_AT_ONCE // max(timers, 1), LEAST_AT_ONCE), AT_ONCE)


class _Candidate:
    """A scheme, with the counts and prices known for each number of partitions."""

    def __init__(self, estimated: Assessed, counts: Counts, allowed: int) -> None:
        self.estimated = estimated
        self.plan = estimated.evaluation.plan
        self.can_win = not set(estimated.broken) - {GAP_FRACTION}
        self.gaps: dict[int, int] = {}  # counts, by partitions
        self._counts = counts
        self._allowed = max(allowed, 0)
        self._close: dict[int, Assessed] = {}
        self._least = counts.limits.partitions_for_silence(estimated.evaluation, counts.keys)
        self._most = counts.limits.max_partitions(self.plan)

    @property
    def fewest(self) -> int | None:
        """The fewest partitions that keep both the counted gaps and silence within their limits."""
        within = (partitions for partitions, gaps in self.gaps.items() if gaps <= self._allowed)
        return min((partitions for partitions in within if partitions >= self._least), default=None)

    @property
    def close(self) -> Assessed:
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
        return self._counts.limits.cost_with(self.estimated.evaluation, self.fewest)

    def price_closely(self) -> None:
        """Price the scheme with the fewest partitions. Afterwards silence may need more, or no number may be enough."""
        assert self.fewest is not None
        found = self._close[self.fewest] = self._counts.assess(self.with_partitions(self.fewest))
        self._least = self._counts.limits.partitions_for_silence(found.evaluation, self._counts.keys)
        if set(found.broken) - {GAP_FRACTION, SILENCE_SECONDS}:
            self.can_win = False

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
        if not self.gaps:
            return self.plan.own_partitions
        fewest = self.fewest
        if fewest is None:
            most = max(self.gaps)
            if most < self._least:
                return self._least
            *_, before, last = [math.inf, *(self.gaps[partitions] for partitions in sorted(self.gaps))]
            # More partitions do not help if all of a hot key's timers share a partition.
            if last > HELPED * before or most >= MAX_PARTITIONS:
                return None
            return min(max(most + 1, self._needed(most)), MAX_PARTITIONS)
        too_few = max((partitions for partitions in self.gaps if partitions < fewest), default=0)
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
    def next_plan(self) -> Plan:
        assert self.next_partitions is not None
        return self.with_partitions(self.next_partitions)

    def least_cost(self, ratio: float) -> float:
        """Return the least possible cost, if the estimate is ``1 / ratio`` times too high."""
        partitions = self.next_partitions
        assert partitions is not None
        evaluation = self.estimated.evaluation
        if not self.gaps:
            # Independent of keys: they may weigh less in gaps than in timers.
            gaps = evaluation.peak_gaps_per_topic * ratio
            partitions = min(max(math.ceil(gaps / max(self._allowed, 1)), math.ceil(self._least * ratio)), partitions)
        return self._counts.limits.cost_with(evaluation, partitions)

    def ratio(self) -> float:
        """Return the ratio of count to estimate, both with the estimate's partitions; 1 if either says too little."""
        estimate, gaps = self.estimated.evaluation.peak_gaps_per_partition, self.gaps.get(self.plan.own_partitions)
        return 1.0 if gaps is None or estimate < LEAST_GAPS else gaps / estimate

    def note(self, gaps: int) -> None:
        assert self.next_partitions is not None
        self.gaps[self.next_partitions] = gaps

    def with_partitions(self, partitions: int) -> Plan:
        return self.plan.with_partitions(partitions)

    def _needed(self, partitions: int) -> int:
        # The fewest partitions that can be enough if gaps divide as timers do: all but the fullest may have a gap less.
        gaps, keys = self.gaps[partitions], self._counts.keys
        return keys.fewest((max(gaps - 1, 0) / keys.fullest(partitions) + min(gaps, 1)) / max(self._allowed, 1))


def _able(found: Sequence[Assessed], counts: Counts, allowed: int) -> list[_Candidate]:
    return [one for one in (_Candidate(each, counts, allowed) for each in found) if one.can_win]


def _winner(table: Sequence[_Candidate]) -> _Candidate | None:
    """Return the cheapest candidate whose count is within the limit, priced closely."""
    while True:
        within = [one for one in table if one.can_win and one.fewest is not None]
        best = min(within, key=lambda one: one.cost, default=None)
        if best is None or best.is_close:
            return best
        best.price_closely()


def _contenders(table: Sequence[_Candidate], most: float) -> list[_Candidate]:
    """Return the candidates that may still cost less, the cheapest first."""
    ratio = min(LEAST_RATIO, *(one.ratio() / DOUBT for one in table)) if table else LEAST_RATIO
    costs = [(one.least_cost(ratio), number) for number, one in enumerate(table) if one.next_partitions is not None]
    return [table[number] for cost, number in sorted(costs) if cost < most]

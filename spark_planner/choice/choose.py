"""Chooses the recommended plan among the candidates: screening by price, then the decision by count.

Screening. A lower bound of a plan's cost is known without pricing: every timer is written once when it is sent, and
once more into its due topic if it hops at all; and every topic has a partition. So candidates are priced in the order
of their lower bounds, until no bound is below the price of the best. All other candidates are known to cost more.

Decision. The gap law estimates gaps from the mixture of delays. The estimate is right for independent neighbouring
delays, and can be wrong by any factor for dependent delays. So estimates only determine the order of counting. A quick
count refutes; the full count of what it did not refute decides, and is the figure of the page. Every candidate that
could be cheaper than the cheapest that is confirmed is counted with the most partitions that are still cheaper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import NamedTuple, TypeVar

import numpy as np

from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.plan import Native, Plan
from timewheel.core.steps import far_ms, steps
from timewheel.core.topology import topology

from ..history.keys import EVEN, KeyShares
from ..pricing.evaluate import Evaluation, price
from ..pricing.flow import CLOSE, QUICK, Resolution, held
from ..pricing.simulation import NATIVE, Simulation, simulation_of, with_bursts_apart
from ..summary.cells import Cells
from .candidates import article_plans, candidate_plans
from .constraints import COUNTED_LIMITS, REDELIVERED, SILENCE_SECONDS, Allowance, Constraints, Cost, Room
from .reasons import Alternative, reasons_for, tied_with


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

    def judged(self, broken: tuple[str, ...] | None) -> Assessed:
        """Replace the estimated verdict on gaps and redelivery by the counted. None: the plan was not counted."""
        if broken is None:
            return self
        return replace(self, broken=(*(name for name in self.broken if name not in COUNTED_LIMITS), *broken))


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
    simulate: Callable[..., Simulation] = simulation_of,
) -> Assessed:
    """Evaluate a candidate with the fewest partitions that it needs, or with its own if ``as_it_is``."""
    simulation = simulate(plan.with_partitions(1), cells, growth, resolution=resolution, keys=keys)
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
        allowance: The limits, and the gaps that a count may find under each plan.
        recommended: The cheapest candidate that breaks no constraint; without such a candidate, the candidate that
            breaks fewest.
        native: The native plan with one partition: the plan that a user has today.
        considered: Number of candidates. Candidates that were not priced cost more, regardless of their gaps.
        candidates: The priced candidates, in a fixed order.
        article: The plans of the source article's rules of thumb, by rule name.
        rooms: The volume at which each limit is reached, the nearest first.
        reasons: Sentences, at most `reasons.MOST`.
        counted: The most gaps of any partition, for candidates that were counted and not only estimated.
        beside: The same for the recommended plan, native delays and the rules of thumb; a figure above the limit is a
            lower bound. Empty if nothing was counted.
        full: The plans that were counted in full, each with its `Replay.compared`; counts of others are quick.
        ties: Other candidates that break nothing and whose cost is within `reasons.TIE` of the recommended plan's, the
            strongest rival first.
    """

    allowance: Allowance
    recommended: Assessed
    native: Evaluation
    considered: int
    candidates: tuple[Assessed, ...]
    article: tuple[tuple[str, Assessed], ...]
    rooms: tuple[Room, ...]
    reasons: tuple[str, ...]
    counted: Mapping[Plan, int] = field(default_factory=dict)
    beside: Mapping[Plan, int] = field(default_factory=dict)
    full: Mapping[Plan, Sequence[int]] = field(default_factory=dict)
    ties: tuple[Alternative, ...] = ()

    @property
    def known(self) -> Mapping[Plan, int]:
        """All counts, those of candidates and those beside them."""
        return {**self.counted, **self.beside}

    def broken_by(self, plan: Plan) -> tuple[str, ...] | None:
        """Return the names of the limits that a plan breaks by its count; None: it was not counted."""
        count = self.known.get(plan)
        return None if count is None else self.allowance.broken_by(plan, count, self.full.get(plan, ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """The decision by counting gaps timer by timer."""

    # the cheapest plan whose full count is within the limit and that breaks no other constraint; None: there is none
    winner: Assessed | None
    counted: Mapping[Plan, int]  # the most gaps of any partition, for every counted plan, partitions included
    confirmed: Mapping[Plan, int]  # those of full counts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """A plan of the planner, with its input."""

    profile: BrokerProfile  # the broker
    choice: Choice  # the recommended plan among all candidates, at that volume
    keys: KeyShares  # the topic's heaviest keys

    @property
    def constraints(self) -> Constraints:
        """The user's limits."""
        return self.choice.allowance.constraints

    @property
    def growth(self) -> float:
        """Planned volume, as a multiple of the history's volume."""
        return self.choice.allowance.growth

    @property
    def plan(self) -> Plan:
        """The recommended plan, partitions included."""
        return self.choice.recommended.evaluation.plan


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
    priced = Priced(cells, base, profile, constraints, candidates, max_delay_ms, growth, keys)
    return priced.choice(priced.recommended(), {})


SIMULATIONS = 16  # kept, each of some megabytes: a decision asks for a plan with several numbers of partitions


class Priced(Screening):
    """Candidates that were priced until no other can be cheaper, for a decision among them and for the choice."""

    def __init__(
        self,
        cells: Cells,
        base: Plan,
        profile: BrokerProfile,
        constraints: Constraints | None,
        candidates: Sequence[Plan] | None,
        max_delay_ms: int | None,
        growth: float,
        keys: KeyShares,
        upper_of: Callable[[Plan], float] = lambda _: 1.0,
    ) -> None:
        if not len(cells):
            raise ValueError("the history has no timers, so there is nothing to plan for")
        longest_ms = int(cells.delay_max_ms.max())
        plans = candidate_plans(base, longest_ms, max_delay_ms) if candidates is None else tuple(candidates)
        if not plans:
            raise ValueError("no candidate to choose from")
        limits, ranges = constraints or Constraints(), profile.gap_limit_ranges
        self.allowance = Allowance(constraints=limits, ranges=ranges, growth=growth, upper_of=upper_of)
        self.profile, self.keys = profile, keys
        # The confidence interval of a plan is computed only when the plan is counted: until then that of native delays.
        self.limits = self.allowance.constraints_for(NATIVE)
        self._assessed = partial(
            assess,
            profile=profile,
            constraints=self.limits,
            growth=growth,
            keys=keys,
            simulate=lru_cache(SIMULATIONS)(simulation_of),
        )
        self._closely = partial(self._assessed, cells=(cells,))
        coarse = coarse_cells(cells)
        self.as_it_is = partial(self._assessed, cells=coarse, as_it_is=True)  # prices a plan with its own partitions
        if len(plans) > MANY:
            quickly = partial(self._assessed, cells=coarse_cells(cells, SCREENING_CELLS), resolution=QUICK)
        else:
            quickly = partial(self._assessed, cells=coarse)
        super().__init__(plans, cells, self.limits, growth, quickly)
        self.until_certain()
        rules = article_plans(base, longest_ms, max_delay_ms)
        self.rules = {name: self._assessed(plan, coarse) for name, plan in rules.items()}
        native = replace(plans[0], scheme=Native(), intake=False).with_partitions(1)
        self.native = self.as_it_is(native).evaluation

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
        self,
        recommended: Assessed,
        counted: Mapping[Plan, int],
        beside: Mapping[Plan, int] | None = None,
        full: Mapping[Plan, Sequence[int]] | None = None,
    ) -> Choice:
        chosen, allowance, assessed = recommended.evaluation, self.allowance, tuple(self.priced)
        limits, known = allowance.constraints_for(chosen.plan), {**counted, **(beside or {})}
        made = Choice(
            allowance=allowance,
            recommended=recommended,
            native=self.native,
            considered=len(self.plans),
            candidates=assessed,
            article=(),
            rooms=limits.rooms(
                chosen, self.profile, known.get(chosen.plan), allowance.growth, (full or {}).get(chosen.plan, ())
            ),
            reasons=(),
            counted=counted,
            beside=beside or {},
            full=dict.fromkeys(counted, ()) if full is None else full,
        )
        rules = ((name, one.judged(made.broken_by(one.evaluation.plan))) for name, one in self.rules.items())
        made = replace(made, article=tuple(rules), ties=tied_with(made))
        return replace(made, reasons=reasons_for(made))


AT_ONCE = 20  # most plans that are counted in one pass,
LEAST_AT_ONCE = 4
TIMERS_AT_ONCE = 40_000_000
"""and fewer for a long history: this many timers times plans. Later plans may then need no count."""
LEAST_RATIO = 0.25  # lowest assumed ratio of count to estimate, until a count shows a lower ratio
DOUBT = 2.0  # safety factor on the worst ratio of count to estimate so far
HELPED = 0.95  # greatest ratio to the previous count at which more partitions have helped
LEAST_GAPS = 20.0  # smaller estimates show nothing about the error of estimates: random variation is as large
EACH = 20  # native delays are counted on every number of partitions up to this, if it costs less than the winner
STRIDE = 1.25  # least ratio of the next number of partitions to the last, once several were refuted
SAME = 1e-9  # costs that differ by less are equal: rounding errors of floats

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Counts that a decision needs next; all of them may be made in one pass.

    Args:
        quick: Plans to count quickly, with the gaps allowed for each. The figure may be any lower bound that is above
            the allowed gaps if a quick count finds more than these: what it refutes is refuted.
        full: Plans to count in full, with the gaps allowed for each: the figures that decide. A figure is the gaps or,
            of a broker that writes bitmaps, the entries that it compares with its limit, if these are more.
        stage: The purpose, for reports of progress; empty: a round of candidates.
    """

    quick: Mapping[Plan, int] = field(default_factory=dict)
    full: Mapping[Plan, int] = field(default_factory=dict)
    stage: str = ""


Decision = Generator[Wanted, Sequence[int], T]
"""A decision in rounds: it yields what it wants counted, and receives the most gaps of any partition under each plan,
first those of ``quick``, then those of ``full``. So the decisions of several topics can share their passes.
"""


@dataclass(slots=True)
class Counts:
    """The candidates of a decision, with ways to count their gaps; a subclass counts."""

    known: list[Assessed]  # with the partitions that their estimates ask for; estimates may be rough
    limits: Constraints  # all other limits, and the prices
    keys: KeyShares

    def allowed(self, plan: Plan) -> int:
        """Return the most gaps of a partition that a count of this plan may find."""
        raise NotImplementedError

    def count(self, plans: Mapping[Plan, int]) -> Sequence[int]:
        """Count plans quickly, see `Wanted.quick`."""
        raise NotImplementedError

    def confirm(self, plans: Mapping[Plan, int]) -> Sequence[int]:
        """Count plans in full, see `Wanted.full`."""
        raise NotImplementedError

    def assess(self, plan: Plan) -> Assessed:
        """Price a counted plan closely, with its own partitions."""
        raise NotImplementedError

    def further(self, below: float) -> Sequence[Assessed]:
        """Price the next few candidates that may cost less than this; empty: there are none."""
        del below
        return ()

    def is_hopeless(self) -> bool:
        """Return whether no candidate can be within its limit; called after rounds in which no count was."""
        return False

    def made(self, decision: Decision[T]) -> T:
        """Run a decision to its end, on its own."""

        def count(wanted: Mapping[str, Wanted]) -> Mapping[str, Sequence[int]]:
            (one,) = wanted.values()
            quick = self.count(one.quick) if one.quick else ()
            return {"": [*quick, *(self.confirm(one.full) if one.full else ())]}

        return run({"": decision}, count)[""]


def run(
    decisions: Mapping[str, Decision[T]], count: Callable[[Mapping[str, Wanted]], Mapping[str, Sequence[int]]]
) -> dict[str, T]:
    """Run decisions by name to their ends, side by side; ``count`` makes the counts of a round."""
    made: dict[str, T] = {}
    gaps: Mapping[str, Sequence[int] | None] = dict.fromkeys(decisions)
    while gaps:
        wanted: dict[str, Wanted] = {}
        for name, known in gaps.items():
            try:
                wanted[name] = next(decisions[name]) if known is None else decisions[name].send(known)
            except StopIteration as end:
                made[name] = end.value
        gaps = count(wanted) if wanted else {}
    return made


def decide(counts: Counts, at_once: int = AT_ONCE) -> Decision[Decided]:
    """Count plans, at most ``at_once`` in a round, until the cheapest whose full count is within its limit is certain.

    Assumed without a count, except of native delays on up to `EACH` partitions: a scheme leaves no more gaps if its
    fullest partition gets fewer timers; and the gaps of a scheme that was not counted are not below `LEAST_RATIO` of
    its estimate, nor below the worst ratio that was counted by more than `DOUBT`. A scheme that more partitions have
    not helped gets more only as far as it stays cheaper than a plan that fits.
    """
    table = _able(counts.known, counts)
    broad = max(at_once // 10, 1)
    while True:
        best = _best(table)
        while more := counts.further(math.inf if best is None else best.cost):
            table += _able(more, counts)
            best = _best(table)
        asked = [] if best is None else _asked(table, best, broad)[:at_once]
        if best is None or not asked:
            break
        bid, full = best.cost, [one for one in asked if one.is_full]
        quick = [one for one in asked if not one.is_full]
        gaps = yield Wanted(
            quick={one.plan: one.candidate.allowed for one in quick},
            full={one.plan: one.candidate.allowed for one in full},
        )
        for ask, found in zip([*quick, *full], gaps, strict=True):
            ask.candidate.note(ask.partitions, found, full=ask.is_full)
        if best.bid is None or best.cost > bid:
            broad = min(2 * broad, at_once)
        if all(one.fewest is None for one in table) and counts.is_hopeless():
            best = None
            break
    counted, confirmed = {}, {}
    for one in table:
        for partitions, found in one.gaps.items():
            counted[plan := one.plan.with_partitions(partitions)] = found
            if partitions in one.full:
                confirmed[plan] = found
    # The counted plan is within the limit, regardless of its estimate.
    winner = None if best is None else replace(best.close, broken=())
    return Decided(winner=winner, counted=counted, confirmed=confirmed)


def at_once_for(timers: int) -> int:
    return min(max(TIMERS_AT_ONCE // max(timers, 1), LEAST_AT_ONCE), AT_ONCE)


class _Candidate:
    """A scheme, with the counts and prices known for each number of partitions."""

    def __init__(self, estimated: Assessed, counts: Counts) -> None:
        self.estimated = estimated
        self.plan = estimated.evaluation.plan
        self.is_native = isinstance(self.plan.scheme, Native)
        self.can_win = not set(estimated.broken) - COUNTED_LIMITS
        # By the law, of all partitions; of a broker that writes bitmaps what is delivered again, if that is more.
        self.law, self.is_bitmap = estimated.evaluation.peak_gaps_per_topic, REDELIVERED in estimated.broken
        if self.is_bitmap:
            self.law = max(self.law, estimated.evaluation.redelivered.worst_entries)
        self.gaps: dict[int, int] = {}  # figures that decide, by partitions: of a full count, if there is one
        self.full: set[int] = set()  # partitions that were counted in full
        self._passed = math.inf  # fewest partitions that a quick count did not refute
        self._counts = counts
        self._close: dict[int, Assessed] = {}
        self._price = estimated.evaluation  # the latest price
        self._least = counts.limits.partitions_for_silence(estimated.evaluation, counts.keys)
        self.most = counts.limits.max_partitions(self.plan)

    @cached_property
    def allowed(self) -> int:
        return max(self._counts.allowed(self.plan), 0)

    def note(self, partitions: int, gaps: int, *, full: bool) -> None:
        self.gaps[partitions] = gaps
        if full:
            self.full.add(partitions)
        elif not self._is_refuted(partitions):
            self._passed = min(self._passed, partitions)

    def needs_full(self, partitions: int) -> bool:
        """Return whether a quick count with these partitions would show nothing new."""
        return self.is_bitmap or partitions in self.gaps or partitions >= self._passed

    def _is_refuted(self, partitions: int) -> bool:
        return self.gaps[partitions] > self.allowed

    @property
    def fits(self) -> list[int]:
        """The partitions that keep silence within its limit, and that were counted and not refuted."""
        return [n for n in sorted(self.gaps) if n >= self._least and not self._is_refuted(n)] if self.can_win else []

    @property
    def fewest(self) -> int | None:
        """The first of these."""
        return next(iter(self.fits), None)

    @property
    def bid(self) -> int | None:
        """The fewest partitions that are thought to be enough; None: no number of partitions is."""
        if not self.can_win or self._least > self.most:
            return None
        if (fewest := self.fewest) is not None:
            return fewest
        wanted, last = max(self.plan.own_partitions, self._least), max(self.gaps, default=0)
        if self.is_bitmap:
            wanted = max(wanted, self._counts.keys.fewest(self.law / max(self.allowed, 1)))
        if last:
            # More partitions do not help if all of a hot key's timers share a partition.
            if last >= self.most or (self._unhelped and self.full.issuperset(self._unhelped)):
                return None
            stride = math.ceil(STRIDE * last) if len(self.gaps) > 2 else 0
            wanted = max(wanted, last + 1, self._needed(last), stride)
        return min(wanted, self.most)

    @property
    def _unhelped(self) -> tuple[int, ...]:
        """The two greatest numbers of partitions, if the greater has about as many gaps, though its fullest partition
        gets fewer timers, or no number would be enough by these: lower bounds prove nothing.
        """
        *_, before, last = [0, 0, *sorted(self.gaps)]
        if before < self._least or self.gaps[last] <= HELPED * self.gaps[before]:
            return ()
        share, allowed = self._counts.keys.fullest, max(self.allowed, 1)
        promised = min(map(share, range(last + 1, self.most + 1)), default=1.0)
        is_promised = max(self.gaps[last] - 1, 0) * promised <= allowed * share(last) * (1 + SAME)
        return () if share(last) > HELPED * share(before) and is_promised else (before, last)

    @property
    def close(self) -> Assessed:
        assert self.fewest is not None
        return self._close[self.fewest]

    @property
    def is_close(self) -> bool:
        return self.fewest is None or self.fewest in self._close

    @property
    def is_confirmed(self) -> bool:
        return self.fewest in self.full

    @property
    def cost(self) -> float:
        """Cost with the partitions of the bid, as far as known."""
        assert self.bid is not None
        return self.cost_with(self.bid)

    def cost_with(self, partitions: int) -> float:
        if partitions in self._close:
            return self._close[partitions].cost_writes_per_second
        return self._counts.limits.cost_with(self._price, partitions)

    def price_closely(self) -> None:
        """Price the scheme with the fewest partitions. Afterwards silence may need more, or no number may be enough."""
        assert self.fewest is not None
        found = self._close[self.fewest] = self._counts.assess(self.plan.with_partitions(self.fewest))
        self._price = found.evaluation
        self._least = self._counts.limits.partitions_for_silence(found.evaluation, self._counts.keys)
        if set(found.broken) - COUNTED_LIMITS - {SILENCE_SECONDS}:
            self.can_win = False

    def steps(self) -> list[int]:
        """Return the partitions to count next, in order to confirm the bid: itself, and fewer than it."""
        bid = self.bid
        assert bid is not None
        fewer = self._open(1, bid - 1)
        if self.fewest is None:
            # Lower bounds may look alike though more partitions help.
            return [n for n in self._unhelped if n not in self.full] or [bid, *fewer[-1:]]
        # Gaps need not divide: a partition with all batches sorted by due time has no more gaps than each of four. So
        # the fewest partitions are tried too.
        middle = fewer[len(fewer) // 2 if any(map(self._is_refuted, self.gaps)) else 0 :][:1]
        return list(dict.fromkeys(n for n in (self._needed(bid), *middle, *fewer[-1:]) if n in fewer))

    def rival(self, most: float, ratio: float) -> int | None:
        """Return the partitions that cost less than ``most`` and may be enough, of which the fullest gets the least.

        If a count refutes them, no number of partitions wins. An estimate is at most ``1 / ratio`` times too high.
        """
        least, top = 1, self._top(most) if self.can_win else 0
        if top and not self.gaps and not self.is_native:
            # Independent of keys: they may weigh less in gaps than in timers.
            least = math.ceil(self.law * ratio / max(self.allowed, 1))
        return min(self._open(least, top), key=lambda n: (self._counts.keys.fullest(n), n), default=None)

    def each(self, most: float) -> list[int]:
        """Return the numbers of partitions up to `EACH` that were not counted and cost less than ``most``."""
        top = min(self._top(most), EACH) if self.is_native and self.can_win else 0
        return [partitions for partitions in range(self._least, top + 1) if partitions not in self.gaps]

    def _open(self, low: int, high: int) -> list[int]:
        """Return the partitions that were not counted, of which the fullest gets less than all that were refuted."""
        share, fewest = self._counts.keys.fullest, self.fewest
        refuted = (share(n) for n in self.gaps if self._is_refuted(n))
        least = min((each for each in refuted if fewest is None or each >= share(fewest)), default=math.inf)
        every = range(max(low, self._least), high + 1)
        return [n for n in every if n not in self.gaps and share(n) < least * (1 - SAME)]

    def _top(self, most: float) -> int:
        """Return the most partitions that cost less, and are fewer than `fewest`; 0: there are none."""
        top = self.most if self.fewest is None else self.fewest - 1
        each = self._counts.limits.topic_writes_per_second * self._price.topics_of_a_partition
        if each > 0:
            top = min(top, max(int((most - self.cost_with(1)) / each) + 2, 0))
        while top and self.cost_with(top) >= most * (1 - SAME):
            top = top - 1 if each > 0 else 0
        return top

    def ratio(self) -> float:
        """Return the lowest ratio of count to estimate; 1 if either says too little."""
        keys = self._counts.keys
        known = (n for n in self.gaps if n in self.full or not self._is_refuted(n))
        expected = ((self.gaps[n], self.law * keys.fullest(n)) for n in known)
        return min((gaps / each for gaps, each in expected if each >= LEAST_GAPS), default=1.0)

    def _needed(self, partitions: int) -> int:
        # The fewest partitions that can be enough if gaps divide as timers do: all but the fullest may have a gap less.
        gaps, keys = self.gaps[partitions], self._counts.keys
        whole = max(gaps - 1, 0) / keys.fullest(partitions) + min(gaps, 1)
        return keys.fewest(whole / max(self.allowed, 1))


class _Ask(NamedTuple):
    """A count that is wanted."""

    candidate: _Candidate
    partitions: int
    is_full: bool

    @property
    def plan(self) -> Plan:
        return self.candidate.plan.with_partitions(self.partitions)


def _able(found: Sequence[Assessed], counts: Counts) -> list[_Candidate]:
    return [one for one in (_Candidate(each, counts) for each in found) if one.can_win]


def _best(table: Sequence[_Candidate]) -> _Candidate | None:
    """Return the candidate with the cheapest bid, priced closely if it was counted within its limit."""
    while True:
        best = min((one for one in table if one.bid is not None), key=lambda one: one.cost, default=None)
        if best is None or best.is_close:
            return best
        best.price_closely()


def _asked(table: Sequence[_Candidate], best: _Candidate, broad: int) -> list[_Ask]:
    """Return the counts that are wanted next, the most urgent first; empty: the best is confirmed, and certain."""
    most = best.cost
    ratio = min(LEAST_RATIO, *(one.ratio() / DOUBT for one in table))
    # Today's plan is counted in any case, and shows how far estimates are off.
    today = [_Ask(one, 1, True) for one in table if one.is_native and 1 not in one.full]
    wanted = [(best, partitions) for partitions in best.steps()]
    rivals = [(one, one.rival(most, ratio)) for one in table if one is not best]
    cheaper = [(one, partitions) for one, partitions in rivals if partitions is not None]
    # The next best too, since the best may be refuted; but none that costs more than a plan that is known to fit.
    enough = min((one.cost_with(n) for one in table for n in one.fits if n in one.full), default=math.inf)
    later = [one for one in table if one is not best and one.bid is not None and one.cost < enough]
    later.sort(key=lambda one: one.cost)
    if best.fewest is None:
        wanted += [(one, one.steps()[0]) for one in later[: broad - 1] if one.fewest is None]
    wanted += sorted(cheaper, key=lambda rival: rival[0].cost_with(rival[1]))
    if not wanted and not best.is_confirmed:
        assert best.fewest is not None
        more = [(best, best.fewest + 1), *((one, one.fewest) for one in later if one.fewest is not None)]
        others = [(one, n) for one, n in more if n not in one.full and n <= one.most and one.cost_with(n) < enough]
        others.sort(key=lambda other: other[0].cost_with(other[1]))
        wanted = [(best, best.fewest), *others[: broad - 1]]
    wanted += [(one, partitions) for one in table for partitions in one.each(most)]
    known = {(ask.candidate, ask.partitions) for ask in today}
    new = (ask for ask in dict.fromkeys(wanted) if ask not in known)
    return [*today, *(_Ask(one, partitions, one.needs_full(partitions)) for one, partitions in new)]

"""Candidates: what is not priced could not be the cheapest, what is counted wins whatever the estimates say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.workloads import WORKLOADS
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.plan import Calendar, Native, Plan, Scheme, Tiered
from timewheel.spark_planner import job as replays_module
from timewheel.spark_planner.choice.candidates import candidate_plans
from timewheel.spark_planner.choice.choose import (
    CHEAPEST,
    EACH,
    HELPED,
    LEAST_AT_ONCE,
    SPREAD,
    Assessed,
    Counts,
    Screening,
    assess,
    at_once_for,
    coarse_cells,
    decide,
    least_cost,
    rank,
)
from timewheel.spark_planner.choice.constraints import GAP_FRACTION, Allowance, Constraints
from timewheel.spark_planner.exact.ranges import Peak
from timewheel.spark_planner.exact.replay import Asked, Replay
from timewheel.spark_planner.exact.unload import Redelivery
from timewheel.spark_planner.history.keys import EVEN, KeyShares
from timewheel.spark_planner.job import Deciding, Passes, never_held_ms
from timewheel.spark_planner.pricing.flow import CLOSE, QUICK
from timewheel.spark_planner.summary.cells import Cells

BASE = Plan(due_topic="persistent://acme/crm/reminders", subscriptions=("billing",), max_delay_ms=30 * DAY_MS)
PROFILE = BrokerProfile.named("4.0")
ALLOWED = 8_000
MOST = 24  # partitions: more than `EACH`
LIMITS = Constraints(silence_seconds=None, partitions_max=MOST)
SCHEMES: tuple[Scheme, ...] = (
    Native(),
    Calendar(interval_ms=DAY_MS),
    Calendar(interval_ms=HOUR_MS),
    *(Tiered(window_ms=hours * HOUR_MS, tiers_ms=(hours * HOUR_MS, DAY_MS)) for hours in (1, 2, 3, 6, 12)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a decision reads of an evaluation."""

    plan: Plan
    written_entries: float
    peak_gaps_per_topic: float
    topics_of_a_partition: int = 1
    history_ms: float = 1_000_000.0
    silence_seconds: float = 0.0
    needs_relay: bool = False
    dead_letter_topics: int = 0

    @property
    def partition_topics(self) -> int:
        return self.topics_of_a_partition * self.plan.own_partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What is true of a scheme; counts by partitions, from one on."""

    full: Sequence[int]
    quick: Sequence[int] = ()  # found by a complete quick count; none: the same
    cost: float = 0.1  # without topics
    topics: int = 1
    estimated: float | None = None  # gaps of all partitions; None: right
    allowed: int = ALLOWED
    told: float = 1.0  # how near to the complete count the figure of a quick count is

    def quickly(self, partitions: int) -> int:
        gaps = (self.quick or self.full)[partitions - 1]
        least = self.allowed + 1 if gaps > self.allowed else 0
        return least + int(self.told * (gaps - least))

    def fits(self, partitions: int) -> bool:
        return self.full[partitions - 1] <= self.allowed

    @property
    def estimate(self) -> float:
        """That of a law which is right about the fewest partitions that are enough."""
        fewest = next(filter(self.fits, range(1, len(self.full))), len(self.full))
        return float(self.allowed * fewest) if self.estimated is None else self.estimated


class World(Counts):
    """Counts as they are true; candidates that wait are priced two at a time, once their least cost asks for it."""

    def __init__(self, truths: Sequence[Truth], keys: KeyShares = EVEN, waiting: int = 0, base: Plan = BASE) -> None:
        schemes = [scheme for scheme in SCHEMES if base.is_partitioned or not isinstance(scheme, Calendar)]
        self.truths = dict(zip(schemes, truths, strict=False))
        self.base, self.quick, self.full = base, list[Plan](), list[Plan]()
        self.passes = 0
        known = [self.at(scheme, self.own(truth, keys)) for scheme, truth in self.truths.items()]
        self.waiting = known[len(known) - waiting :]
        super().__init__(known[: len(known) - waiting], LIMITS, keys)

    def own(self, truth: Truth, keys: KeyShares) -> int:
        return min(keys.fewest(truth.estimate / max(truth.allowed, 1)), len(truth.full))

    def at(self, scheme: Scheme, partitions: int) -> Assessed:
        truth = self.truths[scheme]
        figures: Any = Figures(
            plan=replace(self.base, scheme=scheme).with_partitions(partitions),
            written_entries=1_000 * truth.cost,
            peak_gaps_per_topic=truth.estimate,
            topics_of_a_partition=truth.topics,
        )
        return Assessed(evaluation=figures, broken=(), cost=LIMITS.cost_of(figures))

    def cost(self, plan: Plan) -> float:
        return self.at(plan.scheme, plan.own_partitions).cost_writes_per_second

    def gaps(self, plan: Plan) -> int:
        return self.truths[plan.scheme].full[plan.own_partitions - 1]

    def enough(self) -> list[Plan]:
        """All plans that fit, the cheapest first."""
        every = (
            self.at(scheme, partitions).evaluation.plan
            for scheme, truth in self.truths.items()
            for partitions in range(1, len(truth.full) + 1)
            if truth.fits(partitions)
        )
        return sorted(every, key=self.cost)

    def allowed(self, plan: Plan) -> int:
        return self.truths[plan.scheme].allowed

    def count(self, plans: Mapping[Plan, int]) -> list[int]:
        assert plans == {plan: self.allowed(plan) for plan in plans}
        self._note(self.quick, plans)
        return [self.truths[plan.scheme].quickly(plan.own_partitions) for plan in plans]

    def confirm(self, plans: Mapping[Plan, int]) -> list[int]:
        self._note(self.full, plans)
        return [self.gaps(plan) for plan in plans]

    def _note(self, kind: list[Plan], plans: Iterable[Plan]) -> None:
        self.passes += 1
        enough = min((self.cost(plan) for plan in self.full if self.gaps(plan) <= self.allowed(plan)), default=math.inf)
        assert all(self.cost(plan) <= enough + 1e-9 for plan in plans), "what costs more is not counted"
        kind += plans
        assert len(kind) == len(set(kind)), "nothing is counted twice"

    def assess(self, plan: Plan) -> Assessed:
        return self.at(plan.scheme, plan.own_partitions)

    def further(self, below: float) -> list[Assessed]:
        found = [one for one in self.waiting if self.cost(one.evaluation.plan.with_partitions(1)) < below][:2]
        self.waiting = [one for one in self.waiting if one not in found]
        return found

    def decided(self, at_once: int = 4) -> Plan | None:
        """Return the winner's plan."""
        found = self.made(decide(self, at_once))
        assert found.confirmed == {plan: self.gaps(plan) for plan in self.full}
        assert found.counted.keys() == {*self.quick, *self.full}
        assert found.confirmed.items() <= found.counted.items()
        if found.winner is None:
            return None
        plan = found.winner.evaluation.plan
        assert self.gaps(plan) == found.confirmed[plan] <= self.allowed(plan)
        assert not found.winner.broken
        return plan


def divided(gaps: float, power: float = 1.0) -> list[int]:
    """Power 1: gaps divide over partitions; 0: each has as many as one alone."""
    return [math.ceil(gaps / partitions**power) for partitions in range(1, MOST + 1)]


@st.composite
def truths(draw: st.DrawFn, *, monotone: bool, least: int = 2) -> list[Truth]:
    found = []
    for _ in range(draw(st.integers(least, 5))):
        allowed = draw(st.sampled_from([ALLOWED, 100]))
        counts = st.lists(st.integers(0, 3 * allowed), min_size=MOST, max_size=MOST)
        powers = st.tuples(st.floats(0, 30.0 * allowed), st.floats(0, 1.3))
        full = draw(counts | powers.map(lambda drawn: divided(*drawn)))
        quick = [int(gaps * draw(st.sampled_from([1.0, 1.0, 0.6]))) for gaps in full]
        if monotone:
            full, quick = sorted(full, reverse=True), sorted(quick, reverse=True)
        found.append(
            Truth(
                full=full,
                quick=quick,
                allowed=allowed,
                cost=draw(st.sampled_from([0.1, 0.2, 1.0, 3.0])),
                topics=draw(st.integers(1, 3)),
                told=draw(st.floats(0, 1)),
            )
        )
    return found


def is_stuck(truth: Truth) -> bool:
    """More partitions once did not help, and later did."""
    fewest = next(filter(truth.fits, range(1, MOST + 1)))
    before = truth.full[: fewest - 1]
    return any(later > HELPED * gaps for number, gaps in enumerate(before) for later in before[number + 1 :])


ways = {"at_once": st.sampled_from([1, 4, 20]), "waiting": st.integers(0, 2)}


@given(truths=truths(monotone=True), off=st.lists(st.floats(0.05, 3.9), min_size=5, max_size=5), **ways)
def test_the_winner_is_the_cheapest_of_all_that_fit(
    truths: list[Truth], off: list[float], at_once: int, waiting: int
) -> None:
    """Whatever the estimates say, within `LEAST_RATIO`; and however little of a quick count is told."""
    estimated = [replace(truth, estimated=by * truth.estimate) for truth, by in zip(truths, off, strict=False)]
    world = World(estimated, waiting=waiting)
    winner, enough = world.decided(at_once), world.enough()
    if winner is None:
        assert all(is_stuck(world.truths[plan.scheme]) for plan in enough)
    else:
        assert world.cost(winner) == pytest.approx(world.cost(enough[0]))


@given(truths=truths(monotone=False), **ways)
def test_no_native_partitions_are_cheaper_than_the_winner_even_where_more_leave_more_gaps(
    truths: list[Truth], at_once: int, waiting: int
) -> None:
    world = World(truths, waiting=waiting)
    winner = world.decided(at_once)
    native = [plan for plan in world.enough() if isinstance(plan.scheme, Native) and plan.partitions <= EACH]
    if winner is not None and native:
        assert world.cost(winner) <= world.cost(native[0]) + 1e-9


@example(gaps=[16_000.0, 231_184.0, 0.0, 0.0, 262_381.0, 0.0, 7_999.0, 0.0], factor=1.3, power=1.0)
# Batches sorted by due time: 24 partitions were estimated.
@example(gaps=[7.0] * len(SCHEMES), factor=20_000.0, power=0.0)
@given(
    gaps=st.lists(st.floats(0, 150_000), min_size=len(SCHEMES), max_size=len(SCHEMES)),
    factor=st.floats(0.3, 200.0),
    power=st.floats(0.0, 1.3),
)
def test_a_law_that_is_wrong_by_one_factor_changes_nothing(gaps: list[float], factor: float, power: float) -> None:
    world = World([Truth(full=divided(one, power), estimated=one * factor, cost=n / 3) for n, one in enumerate(gaps)])
    winner, enough = world.decided(), world.enough()
    assert (winner is None) <= (power < 1)
    if winner is not None:
        assert world.cost(winner) == pytest.approx(world.cost(enough[0]))


NATIVE, DAYS = SCHEMES[:2]
CALENDAR = Truth(full=[0] * MOST, cost=3.3)
CASES = {
    # Runs of one sender: 7 partitions were estimated, a topic per day costs more than one and less than seven.
    "blocks": ([Truth(full=divided(5_116, 0.5), estimated=49_419.0), Truth(full=[341] * MOST, topics=3)], NATIVE, 1),
    # A herd within a minute: the first moments of the grid tell little of it, so that two look no better than one.
    "nine": ([Truth(full=divided(473), allowed=121, estimated=121.0, told=0.01)], NATIVE, 4),
    # Two delays in strict turns: two partitions have no gap, three have many.
    "turns": ([Truth(full=[9_000, 0, *[8_500] * (MOST - 2)], estimated=24_000.0)], NATIVE, 2),
    # Of six delays in turns: twelve partitions were estimated, and seven still cost less than a topic per day.
    "six": ([Truth(full=[*[9_000] * 5, 0, *[8_500] * (MOST - 6)], estimated=96_000.0), CALENDAR], NATIVE, 6),
    # With a second producer, which only a full count plays, two partitions are not enough.
    "two producers": ([Truth(full=divided(18_000), quick=[9_000, *[0] * (MOST - 1)])], NATIVE, 3),
    "only in full": ([Truth(full=[9_000] * MOST, quick=[0] * MOST), Truth(full=[0] * MOST, cost=99.0)], DAYS, 1),
}


@pytest.mark.parametrize("case", CASES)
def test_what_was_once_decided_wrongly(case: str) -> None:
    truths, scheme, partitions = CASES[case]
    world = World(truths)
    assert world.decided() == replace(BASE, scheme=scheme, partitions=partitions)


def test_of_several_that_only_the_full_count_refutes_not_each_takes_a_round() -> None:
    truths = [Truth(full=[9_000] * MOST, quick=[10] * MOST, cost=n, topics=99) for n in range(7)]
    world = World([*truths, Truth(full=[10] * MOST, cost=7.0)])
    assert world.decided(at_once=20) == replace(BASE, scheme=SCHEMES[7])
    assert world.passes <= 9


HOT = KeyShares(1_000, (("tenant-42", 300),))  # a key has three tenths of all timers


@pytest.mark.parametrize("factor", [1.0, 3.8])
def test_a_plan_whose_partitions_fill_unevenly_is_not_taken_for_dearer_than_it_is(factor: float) -> None:
    # With seven partitions the second would do, and cost less than all others. Its estimate, near four times too high,
    # says that no number of partitions would; those of the others are right.
    def kept(gaps: float, factor: float = 1.0, cost: float = 0.1) -> Truth:
        full = [math.ceil(gaps * HOT.fullest(partitions)) for partitions in range(1, MOST + 1)]
        return Truth(full=full, estimated=gaps * factor, cost=cost)

    world = World([kept(1_000_000.0), kept(20_000.0, factor, 1.0), kept(1_000.0, cost=20.0)], HOT)
    winner = world.decided(at_once=1)
    assert winner is not None
    assert winner.scheme == SCHEMES[1]
    assert winner == world.enough()[0]
    assert winner.partitions < 10


@example(fits=[7, 5], heavy=[(169, 0), (300, 0), (300, 0)], off=1.0)  # 6 partitions are no better than 5
@given(
    fits=st.lists(st.integers(1, MOST), min_size=2, max_size=4),
    heavy=st.lists(st.tuples(st.integers(100, 300), st.integers(0, 99)), min_size=2, max_size=3),
    off=st.floats(0.3, 3.9),
)
def test_heavy_keys_that_share_a_partition_of_some_numbers_do_not_hide_a_number_that_fits(
    fits: list[int], heavy: list[tuple[int, int]], off: float
) -> None:
    keys = KeyShares(1_000, tuple((f"tenant-{number}", timers) for timers, number in sorted(heavy, reverse=True)))
    shares = [keys.fullest(partitions) for partitions in range(1, MOST + 1)]
    truths = []
    for cost, just in enumerate(fits):
        gaps = ALLOWED / shares[just - 1]  # so many partitions are just enough
        full = [math.floor(gaps * share) for share in shares]
        truths.append(Truth(full=full, estimated=gaps * off, cost=float(cost)))
    world = World(truths, keys)
    winner = world.decided()
    assert winner is not None
    assert world.cost(winner) == pytest.approx(world.cost(world.enough()[0]))


def test_where_the_law_is_right_little_is_counted() -> None:
    cheap = [Truth(full=divided(1_000.0), cost=0.1 + n / 10, topics=3) for n in range(1, len(SCHEMES))]
    world = World([Truth(full=divided(90_000.0)), *cheap])
    winner = world.decided(at_once=20)
    assert winner == replace(BASE, scheme=SCHEMES[1])
    of_native = [plan.partitions for plan in [*world.full, *world.quick] if isinstance(plan.scheme, Native)]
    assert sorted(of_native) == [1, 2, 3], "those that cost less"
    assert len(world.quick) <= 4
    assert len(world.full) <= 3
    assert world.passes <= 3


def test_what_breaks_another_limit_is_not_counted() -> None:
    world = World([Truth(full=[100] * MOST)] * 3)
    world.known = [replace(one, broken=("hops_max",)) for one in world.known]
    assert world.decided() is None
    assert not world.quick


def test_partitions_that_do_not_help_are_not_tried_on_and_on() -> None:
    # All native timers have one key.
    world = World([Truth(full=[9_000] * MOST, estimated=500.0), Truth(full=[9_100] * MOST, estimated=500.0)])
    assert world.decided() is None
    assert len(world.quick) <= 6


@given(st.lists(st.integers(0, 3 * ALLOWED), min_size=6, max_size=6), st.sampled_from([1, 4, 20]))
def test_where_no_partition_can_be_had_the_cheapest_that_needs_none_wins_or_nothing_does(
    gaps: list[int], at_once: int
) -> None:
    world = World([Truth(full=[each], cost=n % 4) for n, each in enumerate(gaps)], base=replace(BASE, partitions=0))
    winner, enough = world.decided(at_once), world.enough()
    assert {plan.partitions for plan in [*world.quick, *world.full]} == {0}
    assert (winner is None) is (not enough)
    assert winner is None or world.cost(winner) == world.cost(enough[0])


def _cells(name: str, timers: int, days: int) -> Cells:
    sent_ms, due_ms = WORKLOADS[name](np.random.default_rng(5), timers, days)
    return Cells.of_timers(sent_ms, due_ms).bounded(8_000)


def _priced(cells: Cells, growth: float) -> dict[Plan, Assessed]:
    plans = candidate_plans(BASE, int(cells.delay_max_ms.max()))[::3]
    few = coarse_cells(cells, 2_000)
    return {plan: assess(plan, few, PROFILE, Constraints(), growth, QUICK) for plan in plans}


EVERYDAY = {"mixture", "seasons"}


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name in EVERYDAY else pytest.mark.short) for name in sorted(WORKLOADS)],
)
def history(request: pytest.FixtureRequest) -> tuple[Cells, dict[Plan, Assessed]]:
    cells = _cells(request.param, 20_000, 3)
    return cells, _priced(cells, 300.0)


def test_no_plan_costs_less_than_its_least_cost(history: tuple[Cells, dict[Plan, Assessed]]) -> None:
    cells, priced = history
    for plan, one in priced.items():
        assert least_cost(plan, cells, Constraints(), 300.0) <= one.cost_writes_per_second


def test_what_is_screened_has_the_cheapest_of_all(history: tuple[Cells, dict[Plan, Assessed]]) -> None:
    cells, priced = history
    screening = Screening(list(priced), cells, Constraints(), 300.0, priced.__getitem__)
    screening.until_certain()
    assert min(screening.priced, key=rank) == min(priced.values(), key=rank)
    # The cheapest of each scheme is among them whatever it costs: a reader asks for it.
    assert {type(one.evaluation.plan.scheme) for one in screening.priced} == {type(plan.scheme) for plan in priced}
    assert [one.evaluation.plan.scheme for one in screening.priced] == [
        plan.scheme for plan in priced if any(one.evaluation.plan.scheme == plan.scheme for one in screening.priced)
    ], "in the order of the plans"


def test_where_native_delays_do_the_others_are_not_priced() -> None:
    cells = _cells("mixture", 5_000, 3)
    plans = candidate_plans(BASE, int(cells.delay_max_ms.max()))
    asked: list[Plan] = []

    def one(plan: Plan) -> Assessed:
        asked.append(plan)
        return assess(plan, coarse_cells(cells, 2_000), PROFILE, Constraints(), 1.0, QUICK)

    screening = Screening(plans, cells, Constraints(), 1.0, one)
    screening.until_certain()
    assert min(screening.priced, key=rank).evaluation.plan.scheme == Native()
    assert len(asked) == len(set(asked)) <= CHEAPEST + SPREAD + 4 < len(plans) / 4


def test_further_ones_are_the_cheapest_of_the_rest_and_each_comes_once() -> None:
    cells = _cells("mixture", 5_000, 3)
    plans = candidate_plans(BASE, int(cells.delay_max_ms.max()))[::2]
    bound = partial(least_cost, cells=cells.bounded(2_000), constraints=Constraints())
    found = _priced(cells, 1.0)
    some = next(iter(found.values()))
    screening = Screening(plans, cells, Constraints(), 1.0, dict.fromkeys(plans, some).__getitem__)
    seen: list[float] = []
    while more := screening.further(float("inf")):
        seen.append(len(more))
    assert sum(seen) == len(plans)
    assert not screening.further(float("inf"))
    fresh = Screening(plans, cells, Constraints(), 1.0, dict.fromkeys(plans, some).__getitem__)
    assert not fresh.further(min(bound(plan) for plan in plans))


def test_quick_pricing_says_about_what_close_pricing_says(history: tuple[Cells, dict[Plan, Assessed]]) -> None:
    cells, _ = history
    plans = candidate_plans(BASE, int(cells.delay_max_ms.max()))[::40]
    for plan in plans:
        quick, close = (
            assess(plan, cells, PROFILE, Constraints(), 300.0, resolution).evaluation for resolution in (QUICK, CLOSE)
        )
        assert quick.peak_gaps == pytest.approx(close.peak_gaps, rel=0.25, abs=0.01 * close.peak_pending + 50)
        assert quick.written_entries == pytest.approx(close.written_entries, rel=0.1)


@pytest.mark.parametrize(("timers", "at_once"), [(0, 20), (2_000_000, 20), (4_000_000, 10), (10**9, LEAST_AT_ONCE)])
def test_of_a_long_history_fewer_are_counted_at_once(timers: int, at_once: int) -> None:
    assert at_once_for(timers) == at_once


def all_priced() -> dict[Scheme, Assessed]:
    """All schemes priced on some history; what they are said to leave is put in by each case."""
    rng = np.random.default_rng(1)
    sent_ms = np.sort(rng.integers(0, 10 * DAY_MS, 20_000)) + 1_767_571_200_000
    cells = Cells.of_timers(sent_ms, sent_ms + rng.integers(0, 3 * DAY_MS, 20_000))
    limits = Constraints(silence_seconds=None)
    return {scheme: assess(replace(BASE, scheme=scheme), cells, PROFILE, limits) for scheme in SCHEMES}


priced = pytest.fixture(scope="module", name="priced")(all_priced)


KEPT = 10_000
TOO_MANY = 50_000


class FakeReplays:
    """Counts the same for a scheme whatever its partitions, as where all timers have one key."""

    def __init__(self, gaps: dict[Any, int], lasts_ms: dict[Any, int] | None = None) -> None:
        self._lasts_ms = lasts_ms or {}
        self.traffic = SimpleNamespace(cells=SimpleNamespace(timers=20_000))
        self._gaps = gaps

    def keys(self) -> KeyShares:
        return EVEN

    def count(self, plans: Iterable[Plan]) -> list[int]:
        return [self._gaps.get(plan.scheme, TOO_MANY) for plan in plans]

    confirm = count

    def above_ms(self, plan: Plan, gap_count: int) -> int:
        del gap_count
        return self._lasts_ms.get(plan.scheme, 0)

    def lasting(self, plan: Plan, gap_count: int, share: float) -> tuple[int, int]:
        del share
        return self.above_ms(plan, gap_count), 0

    def known(self, plan: Plan) -> Any:
        return SimpleNamespace(peak_per_partition=SimpleNamespace(gap_count=self.count([plan])[0]), compared=())

    def counted(self, plans: dict[Plan, int]) -> dict[Plan, int]:
        return dict(plans)

    def sent_for_less(self, within_ms: int) -> tuple[int, int]:
        del within_ms
        return 0, 0


def facts(limits: Constraints) -> dict[str, Any]:
    return {"limits": limits, "allowance": Allowance(constraints=limits, ranges=KEPT)}


def decided(
    priced: dict[Any, Assessed],
    gaps: dict[Any, int],
    limits: Constraints = LIMITS,
    later: Sequence[Any] = (),
    lasts_ms: dict[Any, int] | None = None,
) -> Assessed:
    def at(plan: Plan) -> Assessed:
        found = priced[plan.scheme]
        few = replace(found.evaluation, plan=plan, peak_gaps_per_topic=100.0, peak_gaps_per_partition=100.0)
        return replace(found, evaluation=few, broken=())

    def further(below: float) -> list[Assessed]:
        del below
        found, waiting[:] = waiting[:2], waiting[2:]
        return found

    plans = {scheme: one.evaluation.plan for scheme, one in priced.items()}
    waiting = [at(plans[scheme]) for scheme in later]
    first = [at(plan) for scheme, plan in plans.items() if scheme not in later]
    found: Any = SimpleNamespace(
        priced=first, plans=list(plans.values()), as_it_is=at, further=further, **facts(limits)
    )
    replays: Any = FakeReplays(gaps, lasts_ms)
    deciding = Deciding(replays, found)
    winner = deciding.made(deciding.decided()).winner
    assert winner is not None
    return winner


@pytest.mark.parametrize("is_later", [False, True])
def test_what_was_priced_in_the_first_round_is_known_in_the_second(
    priced: dict[Any, Assessed], *, is_later: bool
) -> None:
    # The dearer of the two has fewer gaps: it is the nearest, but not the cheapest that the broker keeps.
    cheap, dear = SCHEMES[5], SCHEMES[4]
    winner = decided(priced, {cheap: 9_900, dear: 9_500}, later=(cheap, dear) if is_later else ())
    assert winner.evaluation.plan.scheme == cheap
    assert winner.broken == (GAP_FRACTION,)


def test_what_is_refuted_is_marked_where_all_that_the_broker_keeps_was_asked_for(priced: dict[Any, Assessed]) -> None:
    limits = replace(LIMITS, gap_fraction=1.0)
    assert decided(priced, {}, limits).broken == (GAP_FRACTION,)
    assert decided(priced, {SCHEMES[5]: 9_900}, limits).broken == ()


def test_the_reason_is_of_what_no_plan_that_was_tried_holds_back(priced: dict[Any, Assessed]) -> None:
    plans = [one.evaluation.plan for one in priced.values()]
    longest = max(plans, key=never_held_ms)
    some: Any = SimpleNamespace(priced=[], plans=plans, as_it_is=lambda plan: priced[plan.scheme], **facts(LIMITS))
    replays: Any = FakeReplays({})
    found = Deciding(replays, some).hindrance(longest, longest)
    assert found is not None
    assert found.never_held_ms == min(filter(None, map(never_held_ms, plans))) < never_held_ms(longest)


def test_of_plans_that_all_break_the_limit_the_one_for_the_shortest_time_is_the_nearest(
    priced: dict[Any, Assessed],
) -> None:
    # The first has the lower peak, and has it for days.
    long, short = SCHEMES[5], SCHEMES[4]
    days = dict.fromkeys(SCHEMES, DAY_MS)
    winner = decided(priced, {long: 19_000, short: 19_700}, lasts_ms={**days, short: 6_000})
    assert winner.evaluation.plan.scheme == short
    assert winner.broken == (GAP_FRACTION,)


def test_of_peaks_that_are_about_as_high_the_cheapest_is_taken(priced: dict[Any, Assessed]) -> None:
    dear, cheap = sorted(SCHEMES[4:6], key=lambda scheme: -priced[scheme].cost_writes_per_second)
    assert decided(priced, {dear: 19_000, cheap: 19_700}).evaluation.plan.scheme == cheap
    assert decided(priced, {dear: 19_000, cheap: 20_200}).evaluation.plan.scheme == dear


def test_a_round_that_has_nothing_left_to_count_has_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    stages: list[str] = []

    @contextmanager
    def told(_spark: Any, stage: str, _report: Any, *, one_job: bool) -> Iterator[None]:
        assert not one_job
        stages.append(stage)
        yield

    replay: Any = SimpleNamespace(peak_per_partition=Peak(gap_count=5, gap_count_limit=5, at_ms=0))
    monkeypatch.setattr(replays_module, "told", told)
    monkeypatch.setattr(replays_module, "grid_for", lambda *_: None)
    monkeypatch.setattr(replays_module, "count_exactly", lambda _, asked: [replay] * len(asked))
    traffic: Any = MagicMock(topic="t", continuation=None)
    replays = Passes([traffic], PROFILE).topics["t"]
    plans = [Plan(due_topic=f"persistent://a/b/{number}", subscriptions=("s",)) for number in range(3)]
    for wanted in (plans[:1], plans[:1], plans):
        assert replays.count(dict.fromkeys(wanted, 9)) == [5] * len(wanted)
    assert [stage.rpartition(", ")[2] for stage in stages if stage.startswith("counting")] == ["round 1", "round 2"]


def test_the_worse_of_two_routings_counts_by_gaps_and_by_redelivery() -> None:
    plan = replace(BASE, partitions=2)
    turns, chance = (Asked(plan=plan, grid=MagicMock(), profile=PROFILE, at_random=way) for way in (False, True))

    def replayed(asked: Asked, gaps: int, again: int) -> Replay:
        peak = Peak(gap_count=gaps, gap_count_limit=gaps, at_ms=0)
        return Replay(
            entries=0,
            hop_count=0,
            hop_count_max=0,
            gaps=MagicMock(),
            peak_of_total=peak,
            peak_per_partition=peak,
            was_sorted=False,
            redelivered={"ranges": Redelivery(entries=again, at_ms=1, moments=1)},
            at_random=asked.at_random,
        )

    replays = Passes([MagicMock(topic="t")], PROFILE).topics["t"]
    replays.store([turns, chance], [replayed(turns, 9, 100), replayed(chance, 12, 70)])
    known = replays.known(plan)
    assert (known.peak_per_partition.gap_count, known.at_random) == (12, True)
    assert known.redelivered["ranges"].entries == 100

"""Screening: what is not priced could not have been the cheapest."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from tests.support.workloads import WORKLOADS
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS
from timewheel.core.plan import Native, Plan
from timewheel.spark_planner.choice.candidates import candidate_plans
from timewheel.spark_planner.choice.choose import (
    CHEAPEST,
    LEAST_AT_ONCE,
    SPREAD,
    Assessed,
    Screening,
    assess,
    at_once_for,
    coarse_cells,
    least_cost,
    rank,
)
from timewheel.spark_planner.choice.constraints import Constraints
from timewheel.spark_planner.pricing.flow import CLOSE, QUICK
from timewheel.spark_planner.summary.cells import Cells

BASE = Plan(due_topic="persistent://acme/crm/reminders", subscriptions=("billing",), max_delay_ms=30 * DAY_MS)
PROFILE = BrokerProfile.named("4.0")


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

"""Deciding in rounds: within the limit that was asked for, then within what the broker keeps, then the nearest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.planner.test_decide import LIMITS, SCHEMES, all_priced
from timewheel.core.durations import DAY_MS
from timewheel.core.plan import Plan
from timewheel.spark_planner import job as replays_module
from timewheel.spark_planner.choice.choose import Assessed
from timewheel.spark_planner.choice.constraints import GAP_FRACTION, Constraints
from timewheel.spark_planner.history.keys import EVEN, KeyShares
from timewheel.spark_planner.job import Deciding, Replays, never_held_ms

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

    def count(self, plans: Sequence[Plan], refuted_above: float = math.inf) -> list[int]:
        del refuted_above
        return [self._gaps.get(plan.scheme, TOO_MANY) for plan in plans]

    def above_ms(self, plan: Plan, gap_count: int) -> int:
        del gap_count
        return self._lasts_ms.get(plan.scheme, 0)

    def lasting(self, plan: Plan, gap_count: int, share: float) -> tuple[int, int]:
        del share
        return self.above_ms(plan, gap_count), 0

    def counted(self, plans: dict[Plan, int]) -> dict[Plan, int]:
        return dict(plans)

    def sent_for_less(self, within_ms: int) -> tuple[int, int]:
        del within_ms
        return 0, 0


priced = pytest.fixture(scope="module", name="priced")(all_priced)


def facts(limits: Constraints) -> dict[str, Any]:
    return {"limits": limits, "growth": 1.0, "profile": SimpleNamespace(gap_limit_ranges=KEPT)}


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
    winner = Deciding(replays, found).decided().winner
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

    exact = SimpleNamespace(gap_count=5, is_exact=True)
    replay: Any = SimpleNamespace(peak_per_partition=exact, peak_of_total=exact)
    monkeypatch.setattr(replays_module, "told", told)
    monkeypatch.setattr(replays_module, "replay_all", lambda _, plans, **__: [replay] * len(plans))
    traffic: Any = MagicMock()
    traffic.cells.timers = 1
    replays = Replays(traffic, MagicMock())
    plans = [Plan(due_topic=f"persistent://a/b/{number}", subscriptions=("s",)) for number in range(3)]
    for wanted in (plans[:1], plans[:1], plans):
        assert replays.count(wanted) == [5] * len(wanted)
    assert [stage.rpartition(", ")[2] for stage in stages if stage.startswith("counting")] == ["round 1", "round 2"]

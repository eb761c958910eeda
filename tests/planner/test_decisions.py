"""What is recommended for histories whose delays depend on each other, against counting everything by brute force."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.support.dependent import DEPENDENT
from tests.support.exact_play import play
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.plan import Calendar, Native, Plan, Ring, Tiered, Wheel
from timewheel.spark_planner.choice.constraints import GAP_FRACTION, Constraints
from timewheel.spark_planner.job import plan_for, survey
from timewheel.spark_planner.pricing.evaluate import evaluate
from timewheel.spark_planner.summary.cells import Cells

if TYPE_CHECKING:
    from tests.conftest import Evidence

BASE = Plan(due_topic="persistent://acme/crm/reminders", subscriptions=("billing",), max_delay_ms=10 * DAY_MS)
ROWS = 24_000
SCHEMES = (
    Native(),
    Calendar(interval_ms=DAY_MS),
    Calendar(interval_ms=6 * HOUR_MS),
    Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS, 6 * HOUR_MS, DAY_MS)),
    Tiered(window_ms=6 * HOUR_MS, tiers_ms=(6 * HOUR_MS, DAY_MS)),
    Tiered(window_ms=12 * HOUR_MS, tiers_ms=(12 * HOUR_MS,)),
    Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS,)),
    Wheel(rings=(Ring(slot_ms=6 * HOUR_MS, slots=44, headstart_ms=HOUR_MS),)),
)
CANDIDATES = [replace(BASE, scheme=scheme) for scheme in SCHEMES]
# What is dear is what decides between partitions, tiers and topics: at these prices all of them win somewhere.
LIMITS = Constraints(topic_writes_per_second=0.05, relay_writes_per_second=0.2)
MAX_PARTITIONS = 16
"""With more, which timers happen to be neighbours in a partition decides more than how many there are."""
PARTS = {"native does": 1.3, "a third of native": 0.3, "a tenth": 0.1}
"""Limits, in parts of what native delays leave: at the first nobody has to migrate."""


@pytest.fixture(scope="module", params=[pytest.param(name, marks=pytest.mark.proof) for name in DEPENDENT])
def timers(request: pytest.FixtureRequest) -> tuple[str, np.ndarray, np.ndarray]:
    sent_ms, due_ms = DEPENDENT[request.param](np.random.default_rng(21), ROWS)
    assert (np.diff(sent_ms) >= 0).all()
    assert int((due_ms - sent_ms).max()) <= BASE.max_delay_ms
    return request.param, sent_ms, due_ms


def counted(plan: Plan, sent_ms: np.ndarray, due_ms: np.ndarray) -> int:
    return play(plan, sent_ms, due_ms).peak(per="partition")


@dataclass
class ByHand:
    """The cheapest plan, by counting all that could be."""

    sent_ms: np.ndarray
    due_ms: np.ndarray
    known: dict[Plan, int] = field(default_factory=dict)

    def gaps(self, plan: Plan) -> int:
        if plan not in self.known:
            self.known[plan] = counted(plan, self.sent_ms, self.due_ms)
        return self.known[plan]

    def cheapest(self, cells: Cells, profile: BrokerProfile, allowed: int) -> tuple[float, Plan | None]:
        """(its cost, the plan); none within `MAX_PARTITIONS` keeps its limits."""
        best: tuple[float, Plan | None] = (np.inf, None)
        for candidate in CANDIDATES:
            alone = evaluate(replace(candidate, partitions=1), cells, profile)
            for partitions in range(1, MAX_PARTITIONS + 1):
                if LIMITS.cost_with(alone, partitions) >= best[0]:
                    break  # and what hops write in groups is more with more partitions
                plan = replace(candidate, partitions=partitions)
                if self.gaps(plan) > allowed:
                    continue
                evaluation = evaluate(plan, cells, profile)
                if not set(LIMITS.broken_by(evaluation)) - {GAP_FRACTION}:
                    cost = LIMITS.cost_of(evaluation).writes_per_second
                    best = (cost, plan) if cost < best[0] else best
                    break
        return best


def test_the_recommendation_is_the_cheapest_that_the_count_bears_out(
    spark: SparkSession, timers: tuple[str, np.ndarray, np.ndarray], evidence: Evidence
) -> None:
    name, sent_ms, due_ms = timers
    table = pa.table({"publish_ms": sent_ms, "due_ms": due_ms})
    history = survey(spark.createDataFrame(table, "publish_ms bigint, due_ms bigint").coalesce(1))
    by_hand = ByHand(sent_ms, due_ms)
    native = by_hand.gaps(CANDIDATES[0])
    for part, times in PARTS.items():
        profile = BrokerProfile.from_mapping(
            {"base": "4.0", "name": "small", "gap_limit_ranges": max(int(times * native / LIMITS.gap_fraction), 4)}
        )
        allowed = int(LIMITS.gap_fraction * profile.gap_limit_ranges + 1e-9)
        planned = plan_for(history, "", BASE, profile, LIMITS, candidates=CANDIDATES, as_is=True)
        fullest = counted(planned.plan, sent_ms, due_ms)
        assert fullest == planned.recommended.replay.peak_per_partition.gap_count
        assert planned.keeps_limits == (fullest <= allowed), "what the count refutes is not said to keep its limits"
        cost, cheapest = by_hand.cheapest(history.cells(""), profile, allowed)
        if cheapest is not None:
            assert planned.keeps_limits, f"{part}: {cheapest} does"
            assert planned.choice.recommended.cost_writes_per_second <= cost * (1 + 1e-9), f"{part}: {cheapest}"
        if times >= 1:
            assert (planned.plan.scheme, planned.plan.partitions) == (Native(), 1), "a needless migration"
    tier = CANDIDATES[4]
    estimated, behind_a_tier = (
        round(evaluate(plan, history.cells(""), BrokerProfile.named("4.0")).peak_gaps) for plan in (CANDIDATES[0], tier)
    )
    evidence(
        f"the cheapest plan, {name}",
        {
            "native counted": native,
            "native estimated": estimated,
            "tiers of 6 h and 1 d counted": by_hand.gaps(tier),
            "tiers estimated": behind_a_tier,
            "limits": len(PARTS),
            "by hand": len(by_hand.known),
        },
        on_broker=False,
    )
    history.cached.forget()

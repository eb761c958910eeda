"""Entries of hops in groups: the law against a brute force that makes the groups one by one."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.plans import plan_of
from tests.support.workloads import START_MS
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.grouping import GROUP_MESSAGES
from timewheel.core.plan import Plan, Ring, Tiered, Wheel
from timewheel.core.routing import Hold, Router
from timewheel.core.steps import steps
from timewheel.spark_planner.pricing.flow import Stays, flow_of
from timewheel.spark_planner.pricing.simulation import at_resolution, grouped_entries, hop_rates
from timewheel.spark_planner.summary.cells import Cells

Integers = NDArray[np.int64]

ENTRY_BYTES = 200.0
LINGER_MS = 1_000
TIERED = plan_of(Tiered(window_ms=12 * HOUR_MS, tiers_ms=(12 * HOUR_MS, DAY_MS, 5 * DAY_MS)))
WHEEL = plan_of(Wheel(rings=(Ring(slot_ms=HOUR_MS, slots=30), Ring(slot_ms=DAY_MS, slots=33))))


@dataclass(slots=True)
class _Source:
    """The relay of one partition of one holding topic: what waits for others, and until when."""

    goes_at_ms: float = -1.0
    groups: dict[str, int] = field(default_factory=dict)


def brute_force(plan: Plan, sent_ms: Integers, due_ms: Integers) -> int:
    """The groups of all hops into holding topics, each timer moved as the router says."""
    router, entries = Router(plan), 0
    sources: dict[str, _Source] = {}
    moves = []
    for number, (sent, due) in enumerate(zip(sent_ms.tolist(), due_ms.tolist(), strict=True)):
        route = router.route(due, sent)
        if isinstance(route, Hold):
            moves.append((route.release_at_ms, number, route.topic, due))
    heapq.heapify(moves)
    while moves:
        at_ms, number, topic, due = heapq.heappop(moves)
        source = sources.setdefault(topic, _Source())
        if source.groups and at_ms >= source.goes_at_ms:
            entries += len(source.groups)
            source.groups.clear()
        route = router.route(due, at_ms)
        if not isinstance(route, Hold):
            continue
        if not source.groups:
            source.goes_at_ms = at_ms + LINGER_MS
        if source.groups.get(route.topic, 0) == GROUP_MESSAGES:
            entries += 1
            source.groups[route.topic] = 0
        source.groups[route.topic] = source.groups.get(route.topic, 0) + 1
        heapq.heappush(moves, (route.release_at_ms, number, route.topic, due))
    return entries + sum(len(source.groups) for source in sources.values())


def law(plan: Plan, sent_ms: Integers, due_ms: Integers) -> float:
    rates = hop_rates(steps(plan), _stays(plan, sent_ms, due_ms))
    return float(grouped_entries(rates, partitions=1, linger_ms=LINGER_MS, entry_bytes=ENTRY_BYTES).sum())


def stream(rows: int, span_ms: int) -> tuple[Integers, Integers]:
    """Sent evenly, by chance, with delays that all make hops."""
    rng = np.random.default_rng(3)
    sent_ms = np.sort(START_MS + rng.integers(0, span_ms, rows))
    return sent_ms, sent_ms + rng.integers(3 * DAY_MS // 2, 9 * DAY_MS, rows)


def campaign(rows: int) -> tuple[Integers, Integers]:
    """All within two seconds."""
    rng = np.random.default_rng(3)
    sent_ms = np.sort(START_MS + rng.integers(0, 2_000, rows))
    return sent_ms, sent_ms + 8 * DAY_MS


def both(first: tuple[Integers, Integers], second: tuple[Integers, Integers]) -> tuple[Integers, Integers]:
    sent_ms, due_ms = (np.concatenate(columns) for columns in zip(first, second, strict=True))
    order = np.argsort(sent_ms, kind="stable")
    return sent_ms[order], due_ms[order]


@pytest.mark.parametrize(
    ("plan", "timers", "entries_per_hop"),
    [
        # From hardly any company to much.
        (TIERED, stream(5_000, DAY_MS), (0.9, 1.0)),
        (TIERED, stream(40_000, DAY_MS), (0.7, 0.95)),
        (TIERED, stream(40_000, DAY_MS // 10), (0.4, 0.6)),
        (TIERED, stream(150_000, HOUR_MS), (0.05, 0.2)),
        (TIERED, both(stream(5_000, DAY_MS), campaign(20_000)), (0.1, 0.3)),
        (WHEEL, stream(50_000, 10 * DAY_MS), (0.0, 0.1)),
        (WHEEL, both(stream(5_000, DAY_MS), campaign(20_000)), (0.0, 0.1)),
    ],
)
def test_the_law_is_within_five_percent_of_groups_made_one_by_one(
    plan: Plan, timers: tuple[Integers, Integers], entries_per_hop: tuple[float, float]
) -> None:
    counted = brute_force(plan, *timers)
    assert law(plan, *timers) == pytest.approx(counted, rel=0.05)
    hops = sum(float(stays.count[stays.came_from >= 0].sum()) for stays in _stays(plan, *timers))
    low, high = entries_per_hop
    assert low <= counted / hops <= high, "the case is not what it is about"


def test_many_partitions_have_less_company() -> None:
    rates = hop_rates(steps(TIERED), _stays(TIERED, *stream(40_000, DAY_MS // 10)))
    found = [
        float(grouped_entries(rates, partitions=count, linger_ms=LINGER_MS, entry_bytes=ENTRY_BYTES).sum())
        for count in (1, 2, 16, 1_000)
    ]
    assert found == sorted(found)
    hops = sum(float((one.per_s * one.seconds).sum() + one.burst_size.sum()) for one in rates)
    assert 0.9 * hops < found[-1] <= hops * (1 + 1e-9)


def test_large_messages_fill_a_group_sooner() -> None:
    rates = hop_rates(steps(WHEEL), _stays(WHEEL, *stream(50_000, 10 * DAY_MS)))
    small, large = (
        float(grouped_entries(rates, partitions=1, linger_ms=LINGER_MS, entry_bytes=size).sum())
        for size in (100.0, 500_000.0)
    )
    assert large > 3 * small


def _stays(plan: Plan, sent_ms: Integers, due_ms: Integers) -> tuple[Stays, ...]:
    cells = Cells.of_timers(sent_ms, due_ms, np.full(len(sent_ms), 200)).bounded(100_000)
    return flow_of(plan, *at_resolution(plan, cells)).stays

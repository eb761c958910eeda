"""The ways of many sends at once are those of the router, one by one; and their keys have Java's hash."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.core.plan_space import journey, plans, sends
from tests.support.stored_entry import native_entry
from timewheel.core.names import java_string_hash
from timewheel.core.plan import Calendar, Plan
from timewheel.shadow.machine.move_decider import MoveDecider, MoveDecision
from timewheel.spark_planner.exact.replay import keeps_order, routes
from timewheel.spark_planner.exact.sends import NO_KEY, key_hashes

SENDS_PER_PLAN = 30


@st.composite
def sent(draw: st.DrawFn) -> tuple[Plan, list[tuple[int, int]]]:
    plan = draw(plans("native", "tiered", "calendar", "wheel"))
    return plan, [draw(sends(plan)) for _ in range(SENDS_PER_PLAN)]


@given(sent())
def test_ways_are_the_routers(case: tuple[Plan, list[tuple[int, int]]]) -> None:
    plan, rows = case
    due_ms, publish_ms = np.array(rows, np.int64).T
    found = routes(plan, publish_ms, due_ms)
    for number, (due, publish) in enumerate(rows):
        arrived_ms, hops = walked(plan, due, publish)
        arrival = int(found.arrival_ms[number])
        assert arrival == arrived_ms
        assert found.acknowledged_ms[number] == max(due, arrived_ms)
        assert found.hops[number] == hops
        if isinstance(plan.scheme, Calendar):
            assert found.interval is not None
            assert found.interval[number] == max(due, publish) // plan.scheme.interval_ms
        else:
            assert found.interval is None
        assert arrival == publish or not keeps_order(plan)


def walked(plan: Plan, due_ms: int, publish_ms: int) -> tuple[int, int]:
    """When a send arrives in its due topic, and its hops; under a plan with an intake it comes from a plain client."""
    if (
        plan.intake
        and MoveDecider(plan).decision(native_entry(publish_ms, due_ms), publish_ms) is not MoveDecision.MOVE
    ):
        return publish_ms, 0
    way = journey(plan, due_ms, publish_ms)
    return way.arrived_ms, len(way.holds) + plan.intake


@given(st.lists(st.none() | st.text(max_size=20), min_size=1))
def test_keys_have_javas_hash(texts: list[str | None]) -> None:
    texts = [text for text in texts if text is None or text.isprintable()]
    found = key_hashes(pa.chunked_array([pa.array(texts, pa.string())]))
    if not any(texts):
        assert found is None or set(found.tolist()) == {NO_KEY}
    else:
        assert found is not None
        assert found.tolist() == [java_string_hash(text) if text else NO_KEY for text in texts]

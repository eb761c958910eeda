"""How many producers are kept open, and for how long."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from tests.core.plan_space import NOW_MS, plans
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.plan import Calendar, Native, Plan, Ring, Scheme, Tiered, Wheel
from timewheel.core.topology import topology
from timewheel.producers.base_producer import idle_ms
from timewheel.producers.pool import MAX_PRODUCERS, room_for_all


def plan(scheme: Scheme, **more: Any) -> Plan:
    return Plan(due_topic="persistent://acme/crm/reminders", subscriptions=("billing",), scheme=scheme, **more)


@pytest.mark.parametrize(
    ("value", "room"),
    [
        (plan(Native(), partitions=64), 64),
        (plan(Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS, 5 * DAY_MS)), partitions=64), 192),
        (plan(Wheel(rings=(Ring(slot_ms=HOUR_MS, slots=30), Ring(slot_ms=DAY_MS, slots=32))), partitions=4), 252),
        (plan(Calendar(), max_delay_ms=30 * DAY_MS), 33),
        (plan(Native(), partitions=1_024), 1_024),
        (plan(Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS, 5 * DAY_MS)), partitions=0), 3),
        (plan(Wheel(rings=(Ring(slot_ms=DAY_MS, slots=1_000),)), partitions=64), MAX_PRODUCERS),
    ],
)
def test_the_room_by_scheme(value: Plan, room: int) -> None:
    assert room_for_all(value) == room


@given(plans())
def test_there_is_room_for_every_partition_of_every_topic(plan: Plan) -> None:
    sent_to = [spec for spec in topology(plan, NOW_MS).topics if spec.role in {"due", "tier", "slot", "cancellations"}]
    needed = min(sum(len(spec.parts) for spec in sent_to), MAX_PRODUCERS)
    assert needed <= room_for_all(plan) <= needed + plan.own_partitions


def test_a_producer_stays_open_for_hours_but_in_a_calendar() -> None:
    assert idle_ms(plan(Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS,)))) >= 4 * HOUR_MS
    assert idle_ms(plan(Calendar())) < HOUR_MS

from __future__ import annotations

import pytest

from timewheel.core import Native, Plan, Router, Tiered
from timewheel.core.early_delivery import OUT_OF_ORDER_EVERY, OutOfOrder, hold_bound_ms
from timewheel.core.plan import Readers
from timewheel.producers.prepare import prepare

HOUR_MS = 3_600_000
NOW_MS = 1_763_700_000_000


def plan_of(scheme: Native | Tiered, readers: Readers = "timewheel") -> Plan:
    return Plan(due_topic="persistent://a/b/c", subscriptions=("s",), scheme=scheme, readers=readers)


def asked_for(plan: Plan, due_ms: list[int]) -> list[int]:
    """How much before the due time the broker is asked for each."""
    router, out_of_order = Router(plan), OutOfOrder(plan)
    return [
        due - prepare(router, NOW_MS, 0, str, b"", bytes, deliver_at=due).in_its_turn(out_of_order).deliver_at_ms
        for due in due_ms
    ]


def test_one_in_a_thousand_is_asked_for_two_and_a_half_ticks_earlier() -> None:
    early_ms = asked_for(plan_of(Native()), [NOW_MS + HOUR_MS] * (2 * OUT_OF_ORDER_EVERY))
    # Lead 1.5 ticks of 1 s; those out of order 2.5 ticks more.
    assert early_ms == ([4_000] + [1_500] * (OUT_OF_ORDER_EVERY - 1)) * 2


def test_what_is_out_of_order_stays_within_the_consumers_hold() -> None:
    plan = plan_of(Native())
    assert max(asked_for(plan, [NOW_MS + HOUR_MS])) + 2 * plan.tick_ms <= hold_bound_ms(plan)


def test_nothing_is_out_of_order_where_any_client_may_read() -> None:
    assert set(asked_for(plan_of(Native(), "any"), [NOW_MS + HOUR_MS] * 10)) == {0}


@pytest.mark.parametrize("hold", ["relay", "broker"])
def test_only_delayed_messages_of_due_topics_go_out_of_order(hold: str) -> None:
    plan = plan_of(Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS,), hold=hold))  # type: ignore[arg-type]
    router, out_of_order = Router(plan), OutOfOrder(plan)
    held = prepare(router, NOW_MS, 0, str, b"", bytes, deliver_at=NOW_MS + 5 * HOUR_MS)
    at_once = prepare(router, NOW_MS, 0, str, b"", bytes)
    delayed = prepare(router, NOW_MS, 0, str, b"", bytes, deliver_at=NOW_MS + HOUR_MS // 2)
    assert held.in_its_turn(out_of_order) is held
    assert at_once.in_its_turn(out_of_order) is at_once
    # Those two did not take the turn of the first that counts.
    assert delayed.in_its_turn(out_of_order).deliver_at_ms == delayed.deliver_at_ms - 2_500
    assert delayed.in_its_turn(out_of_order) is delayed

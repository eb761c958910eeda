"""What a plan costs a month: each price for what it is a price of, and nothing where none is known."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.workloads import WORKLOADS
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS
from timewheel.core.plan import Native, Plan, Tiered
from timewheel.spark_planner.pricing.evaluate import Evaluation, evaluate
from timewheel.spark_planner.results.facts import Prices, monthly
from timewheel.spark_planner.summary.cells import Cells

BASE = Plan(due_topic="persistent://a/b/c", subscriptions=("s",))
AMOUNT = st.one_of(st.none(), st.floats(0, 1e6))
PRICES = st.builds(Prices, million_writes=AMOUNT, gb_month=AMOUNT, topic_month=AMOUNT, relay_month=AMOUNT)


def evaluation(plan: Plan) -> Evaluation:
    sent_ms, due_ms = WORKLOADS["mixture"](np.random.default_rng(3), 20_000, 2)
    return evaluate(plan, Cells.of_timers(sent_ms, due_ms).bounded(2_000), BrokerProfile.named("4.0"))


# Round numbers: a million timers a day of 0.5 days, 1.5 entries each, and 40 GB on disk.
NATIVE = replace(
    evaluation(replace(BASE, scheme=Native(), partitions=3)),
    timers=500_000,
    history_ms=DAY_MS / 2,
    written_entries=750_000,
    storage_bytes=40e9,
)
TIERED = replace(
    evaluation(replace(BASE, scheme=Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS,)))),
    timers=500_000,
    history_ms=DAY_MS / 2,
    written_entries=750_000,
    storage_bytes=40e9,
)
A_MONTH = 365.25 / 12


@pytest.mark.parametrize(
    ("plan", "prices", "parts"),
    [
        (NATIVE, {"million_writes": 2.0}, [("entries written", 2.0 * 1.5 * A_MONTH)]),
        (NATIVE, {"gb_month": 0.25}, [("bytes on disk", 10.0)]),
        (NATIVE, {"topic_month": 4.0}, [("partition topics", 12.0)]),
        (NATIVE, {"relay_month": 30.0}, [("relay", 0.0)]),
        (TIERED, {"relay_month": 30.0}, [("relay", 30.0)]),
        # Due topic, holding topic, dead letters, with a partition each.
        (TIERED, {"topic_month": 4.0, "relay_month": 30.0}, [("partition topics", 12.0), ("relay", 30.0)]),
        (NATIVE, {"gb_month": 0.0}, [("bytes on disk", 0.0)]),
    ],
)
def test_each_price_is_for_what_it_is_of(
    plan: Evaluation, prices: dict[str, Any], parts: list[tuple[str, float]]
) -> None:
    bill = monthly(plan, Prices(currency="CHF", **prices))
    assert bill is not None
    assert [name for name, _ in bill.parts] == [name for name, _ in parts]
    assert [amount for _, amount in bill.parts] == pytest.approx([amount for _, amount in parts])
    assert bill.total == pytest.approx(sum(amount for _, amount in parts))
    assert bill.said(1_234.5) == "1,234.50 CHF"


def test_without_a_price_there_is_no_bill() -> None:
    assert monthly(NATIVE, None) is None
    assert monthly(NATIVE, Prices()) is None


@given(prices=PRICES, times=st.floats(0, 100))
def test_a_bill_is_the_sum_of_what_is_known_and_in_proportion_to_prices(prices: Prices, times: float) -> None:
    known = [getattr(prices, field.name) is not None for field in fields(prices) if field.name != "currency"]
    bill = monthly(TIERED, prices)
    assert (bill is not None) == any(known)
    if bill is None:
        return
    assert len(bill.parts) == sum(known)
    assert all(amount >= 0 for _, amount in bill.parts)
    raised = {
        field.name: None if (price := getattr(prices, field.name)) is None else times * price
        for field in fields(prices)
        if field.name != "currency"
    }
    dearer = monthly(TIERED, Prices(**raised))  # type: ignore[arg-type] # the currency is left as it is
    assert dearer is not None
    assert dearer.total == pytest.approx(times * bill.total)


@pytest.mark.parametrize("price", [-1.0, float("inf"), float("nan")])
def test_a_price_that_makes_no_sense_is_refused(price: float) -> None:
    with pytest.raises(ValueError, match="gb_month = "):
        Prices(gb_month=price)

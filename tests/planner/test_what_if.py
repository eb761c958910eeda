"""What a plan costs elsewhere: at other positions of the sliders, and in money."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.what_if import at, cheapest
from tests.support.workloads import WORKLOADS
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.plan import Calendar, Native, Plan, Ring, Scheme, Tiered, Wheel
from timewheel.spark_planner.choice.choose import Choice, assess, choose
from timewheel.spark_planner.choice.constraints import Constraints
from timewheel.spark_planner.pricing.evaluate import Evaluation, evaluate
from timewheel.spark_planner.results.facts import Prices, monthly
from timewheel.spark_planner.results.report_page import Option, Setting, WhatIf, calibrated, statistic_of
from timewheel.spark_planner.summary.cells import Cells

PROFILE = BrokerProfile.from_mapping({"base": "4.0", "name": "4.0, a tenth", "gap_limit_ranges": 300})
LIMITS = Constraints(partition_topics=60)
SCHEMES: tuple[Scheme, ...] = (
    Native(),
    Calendar(interval_ms=DAY_MS),
    *(Tiered(window_ms=hours * HOUR_MS, tiers_ms=(hours * HOUR_MS, 2 * DAY_MS)) for hours in (1, 3, 6, 12)),
    Tiered(window_ms=6 * HOUR_MS, tiers_ms=(6 * HOUR_MS,)),
    Wheel(rings=(Ring(slot_ms=6 * HOUR_MS, slots=130),)),
)
PLANS = [Plan(due_topic="persistent://a/b/c", subscriptions=("s",), scheme=scheme) for scheme in SCHEMES]

NOTHING = Option(
    name="a plan",
    window_ms=0,
    written=1.0,
    gaps=0.0,
    share=1.0,
    stuck=0.0,
    margin=1.0,
    silence=0.0,
    cursor_bytes=0.0,
    topics=1,
    dead_letters=0,
    relay=0,
    late_above=None,
    full_above=None,
    broken=0,
)
EMPTY = WhatIf(
    options=(NOTHING,),
    recommended=0,
    start=Setting(growth=1.0, gap_fraction=0.8, window_ms=0, topic_price=0.5),
    limit_ranges=1_000,
    silence_seconds=10.0,
    partition_topics=None,
    relay_price=2.0,
    frame_bytes=5_000_000,
)


@pytest.fixture(scope="module")
def cells() -> Cells:
    sent_ms, due_ms = WORKLOADS["mixture"](np.random.default_rng(3), 60_000, 2)
    return Cells.of_timers(sent_ms, due_ms).bounded(4_000)


@pytest.fixture(scope="module")
def choice(cells: Cells) -> Choice:
    return choose(cells, PLANS[0], PROFILE, LIMITS, candidates=PLANS)


@pytest.fixture(scope="module")
def statistic(choice: Choice) -> WhatIf:
    return statistic_of(choice, PROFILE)


def test_where_it_begins_it_is_the_choice(choice: Choice, statistic: WhatIf) -> None:
    found, chosen = cheapest(statistic, statistic.start), choice.recommended
    assert found.option == statistic.recommended == choice.candidates.index(chosen)
    for number, one in enumerate(choice.candidates):
        there = at(statistic, number, statistic.start)
        assert there.partitions == one.evaluation.plan.partitions
        assert there.topics == one.evaluation.partition_topics
        assert there.gaps == pytest.approx(one.evaluation.peak_gaps_per_partition)
        assert there.cost == pytest.approx(one.cost_writes_per_second)
        assert there.broken == len(one.broken)


@pytest.mark.parametrize("growth", [0.25, 2.0, 5.0])
@pytest.mark.parametrize("gap_fraction", [0.2, 1.0])
@pytest.mark.parametrize("topic_price", [0.0, 5.0])
def test_elsewhere_it_is_what_the_planner_prices(
    statistic: WhatIf, cells: Cells, growth: float, gap_fraction: float, topic_price: float
) -> None:
    limits = replace(LIMITS, gap_fraction=gap_fraction, topic_writes_per_second=topic_price)
    setting = Setting(growth=growth, gap_fraction=gap_fraction, window_ms=0, topic_price=topic_price)
    priced = [assess(plan, cells, PROFILE, limits, growth) for plan in PLANS]
    for number, one in enumerate(priced):
        there = at(statistic, number, setting)
        # The law's gaps are in proportion to the volume, but for what chance pairs: one partition may be more or less.
        assert there.partitions == pytest.approx(one.evaluation.plan.partitions, abs=1, rel=0.02)
        assert there.gaps * there.partitions == pytest.approx(one.evaluation.peak_gaps_per_topic, rel=0.02, abs=2)
        # Hops go in groups, which are fuller where there are more: in proportion is too much above, too little below.
        dearer = there.cost / one.cost_writes_per_second
        assert 0.75 < dearer < 1.5
    best = min(priced, key=lambda one: (len(one.broken), one.cost_writes_per_second))
    found = cheapest(statistic, setting)
    assert priced[found.option].cost_writes_per_second <= 1.1 * best.cost_writes_per_second
    assert len(priced[found.option].broken) == len(best.broken)


def test_a_window_that_is_asked_for_leaves_only_its_plans(statistic: WhatIf) -> None:
    for hours in (1, 3, 6, 12):
        found = cheapest(statistic, replace(statistic.start, window_ms=hours * HOUR_MS))
        assert PLANS[found.option].scheme.window_ms == hours * HOUR_MS  # type: ignore[union-attr] # all of these are tiered


def test_the_recommended_plan_stays_where_nothing_is_cheaper(statistic: WhatIf) -> None:
    twin = statistic.options[statistic.recommended]
    first = replace(twin, name="its twin", gaps=twin.gaps * 0.99)
    doubled = replace(statistic, options=(first, *statistic.options), recommended=statistic.recommended + 1)
    assert cheapest(doubled, doubled.start).option == doubled.recommended
    cheaper = replace(doubled, options=(replace(first, written=twin.written * 0.5), *statistic.options))
    assert cheapest(cheaper, cheaper.start).option == 0


@pytest.mark.parametrize(
    ("counts", "growth", "expected"),
    [
        ({}, 1.0, (1_000.0, 0.0, 1.0)),  # not counted: as estimated
        ({1: 700}, 1.0, (700.0, 0.0, 1.0)),  # of 800 that are allowed
        ({2: 700}, 1.0, (1_400.0, 0.0, 1.0)),
        ({2: 300}, 3.0, (1_600.0, 0.0, 1.0)),  # 830 a partition at that volume, and two are enough
        # 900 of two were too many, though three have no more than 500: so two have to stay too few.
        ({2: 900, 3: 500}, 1.0, (1_600.0016, 0.0, 1_500 / 1_600.0016)),
        ({1: 900}, 1.0, (900.0, 0.0, 1.0)),  # never counted with enough
        ({1: 900, 2: 880}, 1.0, (1_760.0, 880.0, 1.0)),  # a hot key: more partitions do not help
    ],
)
def test_a_count_takes_the_place_of_the_estimate(
    counts: dict[int, int], growth: float, expected: tuple[float, float, float]
) -> None:
    fits = min((partitions for partitions, count in counts.items() if count <= 800), default=None)
    found = calibrated(1_000.0, counts, growth, allowed=800.0, fits=fits)
    assert found == pytest.approx(expected)
    gaps, stuck, share = found
    if fits is not None:
        option = replace(NOTHING, gaps=gaps, stuck=stuck, share=share)
        there = at(replace(EMPTY, options=(option,)), 0, EMPTY.start)
        assert there.partitions == fits
        assert growth != 1 or there.gaps == pytest.approx(counts[fits])


def test_a_hot_key_breaks_the_limit_whatever_its_partitions() -> None:
    stuck = replace(EMPTY, options=(replace(NOTHING, gaps=1_760.0, stuck=880.0),))
    found = at(stuck, 0, stuck.start)
    assert (found.gaps, found.broken) == (880.0, 1)
    smaller = at(stuck, 0, replace(stuck.start, growth=0.5))
    assert (smaller.gaps, smaller.broken) == (440.0, 0)


def test_a_relay_is_late_and_a_disk_full_above_their_volume() -> None:
    limited = replace(EMPTY, options=(replace(NOTHING, late_above=2.0, full_above=3.0, relay=1),))
    broken = [at(limited, 0, replace(limited.start, growth=growth)).broken for growth in (1.0, 2.0, 2.5, 3.5)]
    assert broken == [0, 0, 1, 2]


BASE = PLANS[0]
AMOUNT = st.one_of(st.none(), st.floats(0, 1e6))
PRICES = st.builds(Prices, million_writes=AMOUNT, gb_month=AMOUNT, topic_month=AMOUNT, relay_month=AMOUNT)


def evaluation(plan: Plan) -> Evaluation:
    sent_ms, due_ms = WORKLOADS["mixture"](np.random.default_rng(3), 20_000, 2)
    return evaluate(plan, Cells.of_timers(sent_ms, due_ms).bounded(2_000), BrokerProfile.named("4.0"))


# Round numbers: a million timers a day of 0.5 days, 1.5 entries each, and 40 GB on disk.
ROUND: dict[str, Any] = {"timers": 500_000, "history_ms": DAY_MS / 2, "written_entries": 750_000, "storage_bytes": 40e9}
NATIVE = replace(evaluation(replace(BASE, scheme=Native(), partitions=3)), **ROUND)
TIERED = replace(evaluation(replace(BASE, scheme=Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS,)))), **ROUND)
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

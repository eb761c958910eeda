"""A plan's rules: whoever holds a plan knows that it is valid."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given

from tests.core.plan_space import DUE_TOPIC, plans
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.errors import PlanError
from timewheel.core.plan import Calendar, Cancel, Native, Plan, Ring, Tiered, Wheel

ARTICLE = Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS, 5 * DAY_MS))


def plan(**changed: Any) -> Plan:
    return Plan(**{"due_topic": DUE_TOPIC, "subscriptions": ("billing",), "scheme": ARTICLE, **changed})


def rings(*sizes: tuple[int, int], headstart_ms: int | None = None) -> Wheel:
    return Wheel(rings=tuple(Ring(slot_ms=slot_ms, slots=slots, headstart_ms=headstart_ms) for slot_ms, slots in sizes))


@pytest.mark.parametrize(
    "scheme",
    [
        Native(),
        ARTICLE,
        Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS,)),  # smallest tier == window is the article's own plan
        Calendar(),
        rings((DAY_MS, 32)),  # horizon (32 - 2) x 1 d = 30 d = max_delay
        # 30 slots of an hour >= 24 h + 5 min + 2 h = 26.1 h
        rings((HOUR_MS, 30), (DAY_MS, 32)),
        rings((HOUR_MS, 27), (DAY_MS, 32)),  # the least that covers 26.1 h
    ],
)
def test_a_sensible_plan_is_accepted(scheme: Native | Tiered | Calendar | Wheel) -> None:
    assert plan(scheme=scheme).scheme == scheme


BROKEN: list[tuple[Any, ...]] = [
    ({"due_topic": "reminders"}, "due_topic", "persistent://tenant/namespace/topic"),
    ({"due_topic": "non-persistent://a/b/c"}, "due_topic", "persistent://"),
    ({"due_topic": "persistent://a/b/c d"}, "due_topic", "persistent://"),
    ({"due_topic": "persistent://a/b/c/d"}, "due_topic", "persistent://"),
    ({"due_topic": "persistent://a/b/c\n"}, "due_topic", "persistent://"),
    ({"due_topic": "persistent://a/b/c\x00"}, "due_topic", "persistent://"),
    ({"due_topic": "persistent://a/b/\ud800"}, "due_topic", "persistent://"),
    ({"due_topic": "persistent://a/b/c-partition-0"}, "due_topic", "no -partition- in it"),
    ({"due_topic": "persistent://a/b/c-partition-old"}, "due_topic", "no -partition- in it"),
    ({"due_topic": "persistent://a/b/c.tw.tier-1d"}, "due_topic", "timewheel's own"),
    ({"due_topic": 7}, "due_topic", "persistent://"),
    ({"holding_namespace": "held"}, "holding_namespace", "tenant/namespace"),
    ({"holding_namespace": "a/b/c"}, "holding_namespace", "tenant/namespace"),
    ({"subscriptions": ()}, "subscriptions", "from 1 to 64"),
    ({"subscriptions": tuple(f"s{n}" for n in range(65))}, "subscriptions", "from 1 to 64"),
    ({"subscriptions": ("a", "a")}, "subscriptions", "once"),
    ({"subscriptions": ("",)}, "subscriptions", "not empty"),
    ({"subscriptions": ("..",)}, "subscriptions", "not empty"),
    ({"subscriptions": ("a\nb",)}, "subscriptions", "printable"),
    ({"intake": 1}, "intake", "true or false"),
    ({"intake": True, "relay": "service", "scheme": Native()}, "intake", "a topic to wait in"),
    ({"intake": True, "relay": "service", "scheme": Calendar()}, "intake", "a topic to wait in"),
    ({"intake": True, "scheme": Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS,))}, "intake", 'relay = "service"'),
    ({"subscriptions": ["billing"]}, "subscriptions", "tuple"),
    ({"subscriptions": "billing"}, "subscriptions", "tuple"),
    ({"revision": 0}, "revision", "from 1 to 2147483647"),
    ({"partitions": -1}, "partitions", "from 0 to 1024"),
    ({"partitions": 1_025}, "partitions", "from 0 to 1024"),
    ({"partitions": 0, "scheme": Calendar()}, "partitions", "1 or more in a calendar"),
    ({"partitions": True}, "partitions", "whole number"),
    ({"partitions": 2.0}, "partitions", "whole number"),
    ({"max_delay_ms": 999}, "max_delay", "from 1s to 3650d"),
    ({"max_delay_ms": 3651 * DAY_MS}, "max_delay", "from 1s to 3650d"),
    ({"max_delay_ms": 10**5_000}, "max_delay", "from 1s to 3650d"),
    ({"guard_ms": -1}, "guard", "from 0s to 1d"),
    ({"guard_ms": DAY_MS + 1}, "guard", "from 0s to 1d"),
    ({"tick_ms": 0}, "tick", "from 1ms to 1m"),
    ({"jitter_ms": -1}, "jitter", "from 0s to"),
    ({"former_intervals_ms": [1_000]}, "former_intervals", "tuple"),
    ({"former_intervals_ms": (0,)}, "former_intervals", "from 1s to 366d"),
    ({"former_intervals_ms": (1_000,) * 17}, "former_intervals", "from 0 to 16"),
    ({"former_namespaces": ("acme",)}, "former_namespaces", "tenant/namespace"),
    ({"cancel": Cancel(), "readers": "any"}, "readers", '"timewheel" in a plan with [cancel]'),
    ({"relay": "elsewhere"}, "relay", "embedded, service"),
    ({"readers": "all"}, "readers", "timewheel, any"),
    ({"scheme": None}, "scheme", "Native, Tiered, Calendar or Wheel"),
    ({"scheme": replace(ARTICLE, hold="both")}, "tiered.hold", "relay, broker"),  # type: ignore[arg-type]
    ({"scheme": replace(ARTICLE, window_ms=999)}, "tiered.window", "from 1s"),
    ({"scheme": replace(ARTICLE, tiers_ms=())}, "tiered.tiers", "number of tiers from 1 to 16"),
    ({"scheme": replace(ARTICLE, tiers_ms=[DAY_MS])}, "tiered.tiers", "tuple"),  # type: ignore[arg-type]
    ({"scheme": replace(ARTICLE, tiers_ms=(999, DAY_MS))}, "tiered.tiers", "from 1s"),
    ({"scheme": replace(ARTICLE, tiers_ms=(5 * DAY_MS, DAY_MS))}, "tiered.tiers", "ascend"),
    ({"scheme": replace(ARTICLE, tiers_ms=(DAY_MS, DAY_MS))}, "tiered.tiers", "ascend"),
    # Due between the window of 12 h and the tier of 1 d, a timer would have no topic to wait in.
    ({"scheme": replace(ARTICLE, window_ms=12 * HOUR_MS)}, "tiered.tiers", "no topic to wait in"),
    # 30 d / 4 min = 10,800 hops.
    ({"scheme": Tiered(window_ms=HOUR_MS, tiers_ms=(4 * MINUTE_MS,))}, "tiered.tiers", "hops"),
    ({"scheme": Calendar(interval_ms=999)}, "calendar.interval", "from 1s"),
    # 30 d / 40 min = 1,080 topics.
    ({"scheme": Calendar(interval_ms=40 * MINUTE_MS)}, "calendar.interval", "topics within max_delay"),
    ({"scheme": Wheel(rings=())}, "wheel.rings", "number of rings from 1 to 6"),
    ({"scheme": Wheel(rings=[Ring(slot_ms=DAY_MS, slots=32)])}, "wheel.rings", "tuple"),  # type: ignore[arg-type]
    ({"scheme": rings((DAY_MS, 3))}, "wheel.rings.slots", "from 4 to 1000"),
    # A day ring of 31 slots looks (31 - 2) x 1 d = 29 d ahead.
    ({"scheme": rings((DAY_MS, 31))}, "max_delay", "horizon, (slots - 2) x slot = 29d"),
    ({"scheme": rings((DAY_MS, 32), (HOUR_MS, 30))}, "wheel.rings", "ascend"),
    ({"scheme": rings((7 * HOUR_MS, 30), (DAY_MS, 32))}, "wheel.rings.slot", "multiple"),
    # 24 h + 5 min + 2 h = 26.1 h: 27 slots of an hour.
    ({"scheme": rings((HOUR_MS, 26), (DAY_MS, 32))}, "wheel.rings.slots", "at least 27"),
    ({"scheme": rings((HOUR_MS, 800), headstart_ms=HOUR_MS + 1)}, "wheel.rings.headstart", "from 0s to 1h"),
    (
        {
            "scheme": Wheel(
                rings=(
                    Ring(slot_ms=HOUR_MS, slots=40, headstart_ms=10 * MINUTE_MS),
                    Ring(slot_ms=DAY_MS, slots=32, headstart_ms=5 * MINUTE_MS),
                )
            )
        },
        "wheel.rings.headstart",
        "at least the finer ring's",
    ),
]


@pytest.mark.parametrize(
    ("changed", "field", "limit"), BROKEN, ids=[f"{number}-{field}" for number, (_, field, _) in enumerate(BROKEN)]
)
def test_a_broken_rule_names_field_value_and_limit(changed: dict[str, Any], field: str, limit: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan(**changed)
    assert caught.value.field == field
    assert limit in caught.value.limit
    assert field in str(caught.value)
    assert caught.value.limit in str(caught.value)


@given(plans())
def test_a_plan_is_a_value(value: Plan) -> None:
    with pytest.raises(FrozenInstanceError):
        value.revision = 7  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(value)) == value
    assert hash(replace(value)) == hash(value)


def test_a_scheme_is_as_frozen_as_its_plan() -> None:
    with pytest.raises(FrozenInstanceError):
        ARTICLE.window_ms = 1  # type: ignore[misc]


def test_the_lead_is_one_and_a_half_ticks_and_none_for_foreign_readers() -> None:
    assert plan(tick_ms=1_000).lead_ms == 1_500
    assert plan(tick_ms=100).lead_ms == 150
    assert plan(readers="any").lead_ms == 0


@pytest.mark.parametrize(
    ("scheme", "needs_relay", "holds_in_relay"),
    [
        (Native(), False, False),
        (Calendar(), False, False),
        (ARTICLE, True, True),
        (replace(ARTICLE, hold="broker"), True, False),
        (rings((DAY_MS, 32)), True, True),
    ],
)
def test_who_holds_what(scheme: Native | Tiered | Calendar | Wheel, *, needs_relay: bool, holds_in_relay: bool) -> None:
    assert (plan(scheme=scheme).needs_relay, plan(scheme=scheme).holds_in_relay) == (needs_relay, holds_in_relay)


def test_partitions_of_a_due_topic_without_any_cannot_be_raised_and_ours_have_one() -> None:
    has_none = Plan(due_topic="persistent://acme/crm/reminders", subscriptions=("billing",), partitions=0)
    assert (has_none.is_partitioned, has_none.own_partitions, has_none.max_partitions) == (False, 1, 1)
    assert has_none.with_partitions(1) == has_none
    with pytest.raises(PlanError, match="from 1 to 1"):
        has_none.with_partitions(2)
    has_some = replace(has_none, partitions=3)
    assert (has_some.is_partitioned, has_some.own_partitions, has_some.with_partitions(5).partitions) == (True, 3, 5)


def test_a_plan_of_days_is_one_of_seconds_and_the_least_factor_is_named() -> None:
    plan_of_days = plan(scheme=Tiered(window_ms=12 * HOUR_MS, tiers_ms=(12 * HOUR_MS, DAY_MS, 5 * DAY_MS)))
    short = plan_of_days.scaled(2 / 86_400)
    assert short.scheme == Tiered(window_ms=1_000, tiers_ms=(1_000, 2_000, 10_000))
    assert (short.max_delay_ms, short.guard_ms, short.tick_ms) == (60_000, 7, plan_of_days.tick_ms)
    with pytest.raises(PlanError, match="at least 1000 / 43200000: 12h would be below 1s") as caught:
        plan_of_days.scaled(1 / 86_400)
    assert caught.value.value == 1 / 86_400
    assert plan_of_days.scaled(Fraction(1_000, 43_200_000)) == short
    native = plan(scheme=Native())
    with pytest.raises(PlanError, match=f"at least 1000 / {native.max_delay_ms}"):
        native.scaled(0)

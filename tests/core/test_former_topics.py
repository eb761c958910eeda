"""Which topics belong to an earlier plan of the same due topic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from tests.core.plan_space import DUE_TOPIC, NOW_MS, moments_ms, plans
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.errors import TopologyError
from timewheel.core.names import partition_topic
from timewheel.core.plan import Calendar, Cancel, Native, Plan, Ring, Scheme, Tiered, Wheel
from timewheel.core.topology import FormerTopic, UndrainedTopics, former_topics, topology

TIERED = Tiered(window_ms=12 * HOUR_MS, tiers_ms=(12 * HOUR_MS, DAY_MS))
WHEEL = Wheel(rings=(Ring(slot_ms=DAY_MS, slots=4),))
MORE_SLOTS = Wheel(rings=(Ring(slot_ms=DAY_MS, slots=5),))


def plan(scheme: Scheme = TIERED, **changed: Any) -> Plan:
    return Plan(due_topic=DUE_TOPIC, subscriptions=("billing",), scheme=scheme, max_delay_ms=2 * DAY_MS, **changed)


def listed(plan: Plan, now_ms: int = NOW_MS) -> list[str]:
    """What a broker lists once the plan is provisioned: every partition by its own name."""
    return [partition_topic(spec.name, number) for spec in topology(plan, now_ms).topics for number in range(2)]


def ends(topics: Iterable[FormerTopic]) -> list[str]:
    """The names' ends: of what a relay drains, and in brackets of what consumers read; in square ones who parked."""
    short = [(topic, topic.name.removeprefix(f"{DUE_TOPIC}.tw.")) for topic in topics]
    return [
        name
        if topic.holding
        else f"({name})"
        if topic.is_due
        else f"[{topic.parked_by}]"
        if topic.parked_by is not None
        else f"?{name}"
        for topic, name in short
    ]


DAYS = ["(1d-20260101)", "(1d-20260102)", "(1d-20260103)", "(1d-20260104)"]


@given(plans(), moments_ms)
def test_no_topic_of_a_plan_is_a_former_one_of_it(plan: Plan, now_ms: int) -> None:
    assert former_topics(plan, listed(plan, now_ms)) == ()


@pytest.mark.parametrize(
    ("before", "after", "former"),
    [
        (plan(), plan(replace(TIERED, tiers_ms=(12 * HOUR_MS, 2 * DAY_MS))), ["tier-1d"]),
        (plan(), plan(replace(TIERED, hold="broker")), ["tier-12h", "tier-1d"]),
        (plan(), plan(Native()), ["tier-12h", "tier-1d"]),
        (plan(), plan(guard_ms=HOUR_MS), []),
        (plan(WHEEL), plan(WHEEL, revision=2, guard_ms=HOUR_MS), []),
        (plan(WHEEL), plan(MORE_SLOTS), [f"ring-1d-4.{slot:03d}" for slot in range(4)]),
        (plan(WHEEL), plan(), [f"ring-1d-4.{slot:03d}" for slot in range(4)]),
        (plan(), plan(Calendar()), [f"({DUE_TOPIC})", "tier-12h", "tier-1d"]),
        (plan(Calendar()), plan(Calendar()), []),
        (plan(Calendar()), plan(Native()), DAYS),
        (plan(retry=True), plan(), ["[billing]", "?retry.billing"]),
        (plan(cancel=Cancel()), plan(Native()), ["[billing]", "?retry.billing", "tier-12h", "tier-1d"]),
        (plan(retry=True), plan(cancel=Cancel()), []),
        (plan(Calendar()), plan(Calendar(interval_ms=12 * HOUR_MS)), DAYS),
    ],
)
def test_what_a_change_of_the_plan_leaves_behind(before: Plan, after: Plan, former: list[str]) -> None:
    assert ends(former_topics(after, listed(before))) == former
    assert former_topics(after, [*listed(before), *listed(after)], beside=[before]) == (), "its relay runs beside"


def test_what_a_subscription_has_parked_that_the_plan_no_longer_names_is_found_under_its_whole_name() -> None:
    before = replace(plan(retry=True), subscriptions=("billing", "a b/c%20-partition-1"))
    (parked, retry) = former_topics(plan(retry=True), listed(before))
    assert (parked.parked_by, parked.holding, parked.is_due) == ("a b/c%20-partition-1", None, False)
    assert retry.parked_by is None


def test_a_holding_namespace_that_came_or_went_hides_nothing() -> None:
    before, after = plan(), plan(holding_namespace="acme/held")
    assert ends(former_topics(after, listed(before))) == ["tier-12h", "tier-1d"]
    gone = former_topics(before, listed(after))
    assert gone == (), "the plan does not tell where to look"
    told = former_topics(replace(before, former_namespaces=("acme/held",)), listed(after))
    assert {topic.name for topic in told if topic.holding} == {topic.name for topic in topology(after, 0).holding}


def test_intervals_that_the_plan_names_are_followed_and_the_due_topic_of_old_always_is() -> None:
    names = listed(plan(Calendar()))
    assert {topic.is_followed for topic in former_topics(plan(), names)} == {False}
    assert {topic.is_followed for topic in former_topics(plan(former_intervals_ms=(DAY_MS,)), names)} == {True}
    assert [topic.is_followed for topic in former_topics(plan(Calendar()), [f"{DUE_TOPIC}-partition-0"])] == [True]


def test_a_due_topic_of_old_without_partitions_is_none_that_a_calendars_consumers_read() -> None:
    (old,) = former_topics(plan(Calendar()), [DUE_TOPIC])
    assert (old.is_due, old.is_followed, old.is_partitioned) == (True, False, False)
    assert former_topics(plan(Calendar()), [DUE_TOPIC], beside=[plan(partitions=0)]) == (), "its consumers run beside"


def test_passed_intervals_dead_letters_and_strangers_are_none() -> None:
    passed = listed(plan(Calendar()), NOW_MS - 400 * DAY_MS)
    assert former_topics(plan(Calendar()), passed) == (), "consumers visit them until they are drained"
    names = [f"{DUE_TOPIC}.tw.dead-letter-partition-0", f"{DUE_TOPIC}.twice", f"{DUE_TOPIC}2.tw.tier-9d", DUE_TOPIC]
    assert former_topics(plan(Native()), names) == ()


def test_the_error_names_the_fullest_topics_and_keeps_them_all() -> None:
    topics = [FormerTopic(name=f"persistent://a/b/t.tw.tier-{number}d", backlog=number) for number in range(1, 6)]
    error = UndrainedTopics(topics, "wait")
    assert isinstance(error, TopologyError)
    assert error.topic == "persistent://a/b/t.tw.tier-5d"
    assert "tier-5d (5), " in str(error)
    assert "and 2 more;" in str(error)
    assert error.topics == tuple(topics)

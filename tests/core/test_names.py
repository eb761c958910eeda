"""Names: no two topics share one, whatever the plan."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.plan_space import DUE_TOPIC, moments_ms, plans
from timewheel.core.durations import DAY_MS
from timewheel.core.names import CalendarTopic, Names, partition_of, partition_topic, parts_of
from timewheel.core.plan import Calendar, Native, Plan, Ring, Tiered, Wheel
from timewheel.core.topology import holding_topic, topology

TIERED = Plan(
    due_topic=DUE_TOPIC, subscriptions=("billing",), scheme=Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS, 5 * DAY_MS))
)


@given(plans(), moments_ms)
def test_no_two_topics_of_a_plan_share_a_name(plan: Plan, now_ms: int) -> None:
    names = Counter(spec.name for spec in topology(plan, now_ms).topics)
    assert max(names.values()) == 1
    assert all(name == plan.due_topic or ".tw." in name for name in names)


@pytest.mark.parametrize(
    ("subscription", "ending"),
    [
        ("billing", "billing"),
        ("crm:billing=é+~", "crm:billing=é+~"),
        ("public/default/notifier", "public%2Fdefault%2Fnotifier"),
        ("a:b/c d%é", "a:b%2Fc%20d%25é"),
        ("a?b#c", "a%3Fb%23c"),
        ("x-partition-0", "x%2Dpartition-0"),
        ("-partition-partition-", "%2Dpartition%2Dpartition-"),
    ],
)
def test_a_topic_of_one_subscription_ends_in_its_name_with_what_no_topic_can_have_encoded(
    subscription: str, ending: str
) -> None:
    plan = replace(TIERED, subscriptions=(subscription,), retry=True)
    own = {spec.role: spec.name for spec in topology(plan, 0).topics}

    assert (own["retry"], own["parked"]) == (f"{DUE_TOPIC}.tw.retry.{ending}", f"{DUE_TOPIC}.tw.parked.{ending}")
    assert partition_of(partition_topic(own["retry"], 3)) == (own["retry"], 3)


@given(st.sets(st.text(st.sampled_from("a/%2F -partiton?#"), min_size=1), min_size=2, max_size=2))
def test_no_two_subscriptions_share_a_topic(subscriptions: set[str]) -> None:
    names = Names(TIERED)
    assert len({names.retry(one) for one in subscriptions}) == 2


@given(plans(), moments_ms)
def test_a_name_of_ours_is_never_a_due_topic(plan: Plan, now_ms: int) -> None:
    for spec in topology(plan, now_ms).topics:
        if spec.name != plan.due_topic:
            with pytest.raises(ValueError, match="due_topic"):
                Plan(due_topic=spec.name, subscriptions=("s",))


def test_a_rings_topics_tell_its_geometry_and_no_revision() -> None:
    plan = replace(TIERED, scheme=Wheel(rings=(Ring(slot_ms=DAY_MS, slots=32),)), revision=7)
    assert topology(plan, 0).holding[31].name == f"{DUE_TOPIC}.tw.ring-1d-32.031"
    assert topology(replace(plan, revision=8), 0).holding == topology(plan, 0).holding
    more = replace(plan, scheme=Wheel(rings=(Ring(slot_ms=DAY_MS, slots=33),)))
    assert not {topic.name for topic in topology(plan, 0).holding} & {t.name for t in topology(more, 0).holding}


@given(plans("tiered", "wheel"))
def test_a_holding_topics_name_reads_back_as_its_step_without_the_plan(plan: Plan) -> None:
    reader = replace(plan, scheme=Native(), intake=False, revision=1, max_delay_ms=DAY_MS)
    for topic in topology(plan, 0).holding:
        read = holding_topic(reader, topic.name)
        assert read is not None
        assert (read.name, read.slot, read.by_broker, read.step.kind) == (
            topic.name,
            topic.slot,
            topic.by_broker,
            topic.step.kind,
        )
        for name in ("stay_ms", "slot_ms", "slots"):
            assert getattr(read.step, name) == getattr(topic.step, name)
        assert 0 <= read.step.headstart_ms <= topic.step.slot_ms


@pytest.mark.parametrize(
    "suffix",
    [
        ".tier-24h",  # we would have written 1d
        ".tier-0s",
        ".tier-1w",
        ".tier-1d-partition-0",
        ".later-1d",
        ".ring-1d-32.032",
        ".ring-1d-032.001",
        ".ring-1d-32.1",
        ".ring-24h-32.001",
        ".r3.ring-1d.001",
        ".dead-letter",
        ".1d-20260101",
    ],
)
def test_what_we_would_not_have_written_is_no_holding_topic(suffix: str) -> None:
    assert holding_topic(TIERED, f"{DUE_TOPIC}.tw{suffix}") is None


def test_two_plans_that_share_a_holding_namespace_share_no_holding_topic() -> None:
    crm = replace(TIERED, holding_namespace="acme/held")
    assert {spec.name for spec in topology(crm, 0).topics} == {
        DUE_TOPIC,
        "persistent://acme/held/acme~crm~reminders.tw.tier-1d",
        "persistent://acme/held/acme~crm~reminders.tw.tier-5d",
        "persistent://acme/held/acme~crm~reminders.tw.dead-letter",
    }
    sales = replace(crm, due_topic="persistent://acme/sales/reminders")
    assert not {spec.name for spec in topology(crm, 0).topics} & {spec.name for spec in topology(sales, 0).topics}


def test_the_due_topics_own_namespace_needs_no_prefix() -> None:
    assert Names(replace(TIERED, holding_namespace="acme/crm")).dead_letter == Names(TIERED).dead_letter


@given(st.text(min_size=1), st.integers(0, 1_023))
def test_a_partitions_name_is_split_as_it_was_made(topic: str, partition: int) -> None:
    if "\n" not in topic:
        assert partition_of(partition_topic(topic, partition)) == (topic, partition)


def test_a_topic_that_is_no_partition_has_the_index_minus_one() -> None:
    assert partition_of(DUE_TOPIC) == (DUE_TOPIC, -1)


@pytest.mark.parametrize(
    ("partitions", "names"), [(0, ("t",)), (1, ("t-partition-0",)), (2, ("t-partition-0", "t-partition-1"))]
)
def test_a_topic_is_stored_under_its_partitions_names_or_its_own(partitions: int, names: tuple[str, ...]) -> None:
    assert parts_of("t", partitions) == names


@given(plans(), moments_ms, st.integers(0, 1_023))
def test_only_a_due_topic_without_partitions_is_stored_under_its_own_name(
    plan: Plan, now_ms: int, partition: int
) -> None:
    names = Names(plan)
    for spec in topology(plan, now_ms).topics:
        stored = names.part(spec.name, partition)
        assert stored == (partition_topic(spec.name, partition) if spec.partitions else spec.name)
        assert partition >= len(spec.parts) or stored in spec.parts or not spec.partitions


@given(plans("calendar"), moments_ms)
def test_a_calendar_topics_name_reads_back_as_its_interval(plan: Plan, now_ms: int) -> None:
    assert isinstance(plan.scheme, Calendar)
    interval_ms = plan.scheme.interval_ms
    interval = now_ms // interval_ms
    name = Names(plan).calendar_topic(interval)
    assert CalendarTopic.parse(plan.due_topic, name) == (plan.due_topic, interval_ms, interval * interval_ms)


@pytest.mark.parametrize(
    "suffix",
    [
        "",
        ".tw.",
        ".tw.tier-1d",
        ".tw.delay-1d",
        ".tw.dead-letter",
        ".tw.ring-1d-4.003",
        ".tw.1d-20260132",  # no such day
        ".tw.1d-2026010",
        ".tw.1d-20260101T0000Z",  # a day's name has no time
        ".tw.24h-20260101T0000Z",  # we would have written 1d
        ".tw.1h-20260101T0030Z",  # starts at no full hour
        ".tw.1h-20260101T0100Z-partition-0",
        ".tw.1h-20260101T0100",
        ".tw.1w-20260101",
        ".tw.0s-20260101T000000Z",
        ".tw.1d-20260101 ",
        ".tw.99999999d-20260101",
    ],
)
def test_what_we_would_not_have_written_is_no_calendar_topic(suffix: str) -> None:
    assert CalendarTopic.parse(DUE_TOPIC, DUE_TOPIC + suffix) is None


def test_another_due_topics_interval_is_not_ours() -> None:
    name = "persistent://acme/crm/reminders2.tw.1d-20260101"
    assert CalendarTopic.parse("persistent://acme/crm/reminders2", name) is not None
    assert CalendarTopic.parse("persistent://acme/crm/reminders", name) is None


@given(st.text(st.sampled_from("0123456789dhmsTZ.-"), max_size=30))
def test_any_text_reads_as_an_interval_or_none(label: str) -> None:
    topic = CalendarTopic.parse(DUE_TOPIC, f"{DUE_TOPIC}.tw.{label}")
    assert topic is None or topic.name == f"{DUE_TOPIC}.tw.{label}"

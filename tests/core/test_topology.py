"""The topology: every topic and subscription that must exist before the first publish."""

from __future__ import annotations

from typing import Any

from hypothesis import given

from tests.core.plan_space import DUE_TOPIC, NOW_MS, moments_ms, plans
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.names import DEAD_LETTER_SUBSCRIPTION, JOURNAL_SUBSCRIPTION, RELAY_SUBSCRIPTION
from timewheel.core.plan import Calendar, Cancel, Native, Plan, Ring, Tiered, Wheel
from timewheel.core.steps import longest_due_stay_ms
from timewheel.core.topology import calendar_intervals, entrances_of, topology


def plan(**changed: Any) -> Plan:
    return Plan(**{"due_topic": DUE_TOPIC, "subscriptions": ("billing", "audit"), "partitions": 4, **changed})


def test_a_tiered_plan_needs_its_due_topic_its_tiers_and_a_dead_letter_topic() -> None:
    value = plan(scheme=Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS, 5 * DAY_MS)))
    made = [
        (spec.name.removeprefix(DUE_TOPIC), spec.role, spec.partitions, spec.subscriptions, spec.deduplication)
        for spec in topology(value, NOW_MS).topics
    ]
    assert made == [
        ("", "due", 4, ("billing", "audit"), True),
        (".tw.tier-5d", "tier", 4, (RELAY_SUBSCRIPTION,), True),
        (".tw.tier-1d", "tier", 4, (RELAY_SUBSCRIPTION,), True),
        (".tw.dead-letter", "dead_letter", 1, (DEAD_LETTER_SUBSCRIPTION,), True),
    ]
    assert [spec.longest_stay_ms for spec in topology(value, NOW_MS).topics] == [
        DAY_MS + 5 * MINUTE_MS,
        5 * DAY_MS,
        DAY_MS,
        30 * DAY_MS,
    ]


def test_cancels_need_a_log_and_a_place_for_what_comes_too_late_for_it() -> None:
    value = plan(scheme=Native(), cancel=Cancel(keep_ms=2 * DAY_MS))
    due, *retries, log, one_parked, other_parked = topology(value, NOW_MS).topics
    parked = (one_parked, other_parked)
    assert [one.role for one in retries] == ["retry", "retry"], "what is parked can be handled all the same"
    assert (due.name, due.takes_hops) == (DUE_TOPIC, True)
    assert (log.name, log.role, log.partitions, log.subscriptions) == (
        f"{DUE_TOPIC}.tw.cancellations",
        "cancellations",
        1,
        ("timewheel-cancellations",),
    )
    assert [(one.name, one.partitions, one.subscriptions) for one in parked] == [
        (f"{DUE_TOPIC}.tw.parked.billing", 4, ("timewheel-parked",)),
        (f"{DUE_TOPIC}.tw.parked.audit", 4, ("timewheel-parked",)),
    ]
    assert not any(one.takes_hops for one in (log, *parked))
    assert {one.longest_stay_ms for one in (log, *parked)} == {value.max_delay_ms + 2 * DAY_MS}


def test_each_subscription_has_its_own_topics_for_what_is_tried_again_and_what_is_parked() -> None:
    tiered = Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS, DAY_MS))
    value = plan(scheme=tiered, retry=True)
    made = [spec for spec in topology(value, NOW_MS).topics if spec.role in {"retry", "parked"}]
    assert [(one.name, one.subscriptions) for one in made] == [
        (f"{DUE_TOPIC}.tw.retry.billing", ("billing",)),
        (f"{DUE_TOPIC}.tw.retry.audit", ("audit",)),
        (f"{DUE_TOPIC}.tw.parked.billing", ("timewheel-parked",)),
        (f"{DUE_TOPIC}.tw.parked.audit", ("timewheel-parked",)),
    ]
    due = topology(value, NOW_MS).topics[0]
    for retry in made[:2]:
        # Relays hop to it and the broker delays what is in it, as in the due topic.
        assert (retry.partitions, retry.deduplication, retry.longest_stay_ms) == (4, True, due.longest_stay_ms)
        assert retry.takes_hops
        assert retry.is_consumed
    assert not any(parked.takes_hops or parked.is_consumed for parked in made[2:])
    assert {spec.role for spec in topology(plan(scheme=tiered), NOW_MS).topics} == {"due", "tier", "dead_letter"}


def test_a_calendar_needs_the_running_interval_to_that_of_the_last_due_time_and_one_more() -> None:
    value = plan(scheme=Calendar(interval_ms=DAY_MS), max_delay_ms=3 * DAY_MS)
    names = [spec.name.removeprefix(f"{DUE_TOPIC}.tw.1d-") for spec in topology(value, NOW_MS + HOUR_MS).topics]
    # Sent on 1 January with at most 3 days: due on the 4th at the latest, and the 5th is made ahead.
    assert names == ["20260101", "20260102", "20260103", "20260104", "20260105"]


def test_a_wheel_needs_every_slot() -> None:
    value = plan(scheme=Wheel(rings=(Ring(slot_ms=HOUR_MS, slots=30), Ring(slot_ms=DAY_MS, slots=32))))
    made = topology(value, NOW_MS)
    assert len(made.holding) == 30 + 32
    assert len(made.topics) == 1 + 62 + 1
    assert {spec.longest_stay_ms for spec in made.topics if spec.role == "slot"} == {30 * HOUR_MS, 32 * DAY_MS}


def test_a_due_topic_without_partitions_leaves_its_name_and_all_of_ours_have_one() -> None:
    value = plan(
        scheme=Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS,)),
        partitions=0,
        retry=True,
        subscriptions=("s",),
        cancel=Cancel(),
    )
    parts = {part.removeprefix(DUE_TOPIC) for spec in topology(value, NOW_MS).topics for part in spec.parts}
    assert parts == {
        "",
        ".tw.tier-1h-partition-0",
        ".tw.retry.s-partition-0",
        ".tw.parked.s-partition-0",
        ".tw.dead-letter-partition-0",
        ".tw.cancellations-partition-0",
    }


@given(plans(), moments_ms)
def test_what_every_topology_keeps(plan: Plan, now_ms: int) -> None:
    made = topology(plan, now_ms)
    roles = {spec.name: spec for spec in made.topics}
    for spec in made.topics:
        assert spec.name in made
        assert spec.partitions == (
            plan.own_partitions if spec.role not in {"due", "dead_letter", "cancellations"} else spec.partitions
        )
        assert spec.partitions >= 1 or spec.name == plan.due_topic, "broker-facts: failover-and-takeover"
        assert spec.is_own is (spec.name != plan.due_topic)
        assert spec.subscriptions, "a publish without a subscription is lost to it"
        assert spec.longest_stay_ms > 0
        # On wherever a relay hops to (broker-facts: deduplicated-destinations).
        if spec.role not in {"cancellations", "parked"}:
            assert spec.deduplication is plan.needs_relay
    for topic in made.holding:
        assert roles[topic.name].subscriptions == (RELAY_SUBSCRIPTION,)
        assert roles[topic.name].partitions == plan.own_partitions, (
            "relays keep the index (broker-facts: keys-and-partitions)"
        )
    due = [spec for spec in made.topics if spec.role == "due"]
    assert all(spec.subscriptions == plan.subscriptions for spec in due)
    assert all(spec.longest_stay_ms == longest_due_stay_ms(plan) for spec in due)
    by_mark = not plan.is_partitioned
    assert [spec.role for spec in made.topics].count("dead_letter") == int(plan.needs_relay or by_mark)
    assert all(spec.partitions == plan.partitions for spec in due)
    assert [spec.role for spec in made.topics].count("cancellations") == int(plan.cancel is not None)
    if not isinstance(plan.scheme, Calendar):
        assert made == topology(plan, now_ms + DAY_MS)


@given(plans("calendar"), moments_ms)
def test_the_intervals_of_a_calendar_reach_from_now_past_the_longest_delay(plan: Plan, now_ms: int) -> None:
    assert isinstance(plan.scheme, Calendar)
    interval_ms = plan.scheme.interval_ms
    intervals = calendar_intervals(plan, now_ms)
    assert intervals[0] * interval_ms <= now_ms < (intervals[0] + 1) * interval_ms
    assert (intervals[-1]) * interval_ms > now_ms + plan.max_delay_ms >= (intervals[-1] - 1) * interval_ms


def test_an_intake_and_a_journal_stand_beside_the_due_topic() -> None:
    value = Plan(
        due_topic="persistent://acme/crm/reminders",
        holding_namespace="acme/held",
        subscriptions=("billing",),
        partitions=0,
        relay="service",
        scheme=Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS,)),
        intake=True,
    )
    intake, journal = (spec for spec in topology(value, NOW_MS).topics if spec.is_entrance)
    assert (intake.name, intake.partitions) == ("persistent://acme/crm/reminders.tw.intake", 1)
    assert (journal.name, journal.partitions) == ("persistent://acme/crm/reminders.tw.journal", 1)
    assert intake.subscriptions == (RELAY_SUBSCRIPTION,)
    assert journal.subscriptions == (RELAY_SUBSCRIPTION, JOURNAL_SUBSCRIPTION)
    assert journal.deduplication, "what is moved twice is stored once"
    names = [topic.name for topic in entrances_of(value)]
    assert names == [intake.name, journal.name]
    assert not {topic.name for topic in topology(value, NOW_MS).holding} & {*names}, "a plain relay must not hop it"
    assert entrances_of(plan(scheme=value.scheme)) == ()

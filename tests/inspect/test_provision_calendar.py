"""The life of a calendar topic, decided: the whole table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timewheel.broker.admin.client import AdminClient
from timewheel.core.clock import SystemClock
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.names import CalendarTopic
from timewheel.core.plan import Calendar, Native, Plan
from timewheel.provision.calendar_life import CalendarRoller, LifeState, Stage, grace_ms, roll, stage_of

START_MS = 1_767_225_600_000  # 2026-01-01
TOPIC = CalendarTopic("persistent://acme/crm/reminders", DAY_MS, START_MS)
END_MS = START_MS + DAY_MS
GRACE_MS = 5 * MINUTE_MS
PLAN_SUBSCRIPTIONS = ("billing", "audit")


def state(*, terminated: bool = True, entries: int = 0, **backlog: int) -> LifeState:
    return LifeState(
        interval=TOPIC, terminated=terminated, entries=entries, backlog=backlog, complete=frozenset(backlog)
    )


@pytest.mark.parametrize(
    ("found", "stage"),
    [
        (state(terminated=False, billing=0, audit=0), Stage.PASSED),
        (state(terminated=False, entries=9, billing=9, audit=0), Stage.PASSED),
        (state(entries=9, billing=9, audit=9), Stage.DRAINING),
        (state(entries=9, billing=0, audit=1), Stage.DRAINING),
        (state(entries=9, billing=0, audit=0, foreign=1), Stage.DRAINING),  # every subscription, not only the plan's
        (state(entries=9, billing=0, audit=0), Stage.DRAINED),
        (state(entries=0, billing=0, audit=0), Stage.DRAINED),
        (state(entries=9, billing=0), Stage.STRANDED),  # audit is gone, and nobody knows what it had handled
        (state(entries=9), Stage.STRANDED),
        (state(entries=0, billing=0), Stage.DRAINED),  # nothing was ever there to be handled
        (state(entries=0), Stage.DRAINED),
        (state(entries=9, foreign=0), Stage.STRANDED),
    ],
)
def test_the_stage_of_a_passed_topic(found: LifeState, stage: Stage) -> None:
    assert stage_of(found, PLAN_SUBSCRIPTIONS, END_MS + GRACE_MS, GRACE_MS) is stage


@given(
    terminated=st.booleans(),
    entries=st.integers(0, 3),
    backlog=st.dictionaries(st.sampled_from(["billing", "audit", "foreign"]), st.integers(0, 3)),
    now_ms=st.integers(START_MS - DAY_MS, END_MS + DAY_MS),
)
def test_a_topic_is_removed_only_once_it_has_passed_refuses_sends_and_is_drained(
    *, terminated: bool, entries: int, backlog: dict[str, int], now_ms: int
) -> None:
    found = LifeState(
        interval=TOPIC, terminated=terminated, entries=entries, backlog=backlog, complete=frozenset(backlog)
    )
    stage = stage_of(found, PLAN_SUBSCRIPTIONS, now_ms, GRACE_MS)
    if now_ms < END_MS + GRACE_MS:
        assert stage is Stage.OPEN
    if stage is Stage.DRAINED:
        assert now_ms >= END_MS + GRACE_MS
        assert terminated
        assert not any(backlog.values())
        assert not entries or backlog.keys() >= set(PLAN_SUBSCRIPTIONS)


def test_a_subscription_that_one_partition_lacks_is_not_complete() -> None:
    found = LifeState(
        interval=TOPIC, terminated=True, entries=9, backlog={"billing": 0, "audit": 0}, complete=frozenset({"billing"})
    )
    assert stage_of(found, PLAN_SUBSCRIPTIONS, END_MS + GRACE_MS, GRACE_MS) is Stage.STRANDED


def plan(interval_ms: int, guard_ms: int = GRACE_MS) -> Plan:
    return Plan(
        due_topic=TOPIC.due_topic,
        subscriptions=PLAN_SUBSCRIPTIONS,
        scheme=Calendar(interval_ms=interval_ms),
        max_delay_ms=10 * interval_ms,
        guard_ms=guard_ms,
    )


def test_the_grace_is_the_plans_guard() -> None:
    assert grace_ms(plan(DAY_MS, guard_ms=7_000)) == 7_000


@pytest.mark.parametrize(
    ("interval_ms", "pause_ms"), [(DAY_MS, MINUTE_MS), (HOUR_MS, MINUTE_MS), (60_000, 15_000), (1_000, 1_000)]
)
def test_a_keeper_looks_several_times_an_interval_and_at_least_once_a_minute(interval_ms: int, pause_ms: int) -> None:
    with AdminClient("http://localhost:1") as admin:
        assert CalendarRoller(admin, plan(interval_ms), SystemClock()).pause_ms == pause_ms


def test_only_a_calendar_rolls() -> None:
    native = Plan(due_topic=TOPIC.due_topic, subscriptions=("s",), scheme=Native())
    with AdminClient("http://localhost:1") as admin:
        with pytest.raises(TypeError, match="Native"):
            roll(admin, native, START_MS)
        with pytest.raises(TypeError, match="Native"):
            CalendarRoller(admin, native, SystemClock())

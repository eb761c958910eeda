"""Candidates: enough of them, each valid and different, the same in every run."""

from __future__ import annotations

import pytest

from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, round_duration
from timewheel.core.plan import Native, Plan, Tiered, Wheel
from timewheel.spark_planner.choice.candidates import article_plans, as_shadow, candidate_plans
from timewheel.spark_planner.errors import MaxDelayTooShort

BASE = Plan(due_topic="persistent://acme/crm/reminders", subscriptions=("billing",), revision=7)


@pytest.mark.parametrize("longest_ms", [3 * HOUR_MS, DAY_MS, 7 * DAY_MS, 30 * DAY_MS, 365 * DAY_MS])
def test_there_are_three_hundred_and_no_scheme_twice(longest_ms: int) -> None:
    plans = candidate_plans(BASE, longest_ms)
    assert len(plans) >= 300
    assert len({plan.scheme for plan in plans}) == len(plans)
    assert {type(plan.scheme).__name__ for plan in plans} == {"Native", "Calendar", "Tiered", "Wheel"}
    assert candidate_plans(BASE, longest_ms) == plans


def test_a_demo_whose_day_lasts_three_seconds_has_its_candidates_too() -> None:
    base = Plan(due_topic="persistent://a/b/c", subscriptions=("s",), guard_ms=150, max_delay_ms=30 * 3 * SECOND_MS)
    plans = candidate_plans(base, 30 * 3 * SECOND_MS)
    assert len(plans) >= 300
    assert all(plan.max_delay_ms >= 30 * 3 * SECOND_MS for plan in plans)


def test_the_base_stays_but_for_scheme_and_longest_delay() -> None:
    for plan in candidate_plans(BASE, 7 * DAY_MS):
        assert (plan.due_topic, plan.subscriptions, plan.revision, plan.guard_ms) == (
            BASE.due_topic,
            BASE.subscriptions,
            7,
            5 * MINUTE_MS,
        )
        assert plan.max_delay_ms == 10 * DAY_MS


def test_native_and_two_rings_and_tiers_of_every_number_are_among_them() -> None:
    schemes = {plan.scheme for plan in candidate_plans(BASE, 30 * DAY_MS)}
    assert Native() in schemes
    assert {len(scheme.tiers_ms) for scheme in schemes if isinstance(scheme, Tiered)} == {1, 2, 3, 4}
    assert any(isinstance(scheme, Wheel) and len(scheme.rings) == 2 for scheme in schemes)


@pytest.mark.parametrize("longest_ms", [5 * HOUR_MS, 7 * DAY_MS, 30 * DAY_MS, 365 * DAY_MS])
@pytest.mark.parametrize("base", [BASE, as_shadow(BASE)])
def test_the_simple_rules_are_among_them(base: Plan, longest_ms: int) -> None:
    plans = candidate_plans(base, longest_ms)
    assert set(article_plans(base, longest_ms).values()) <= set(plans)


def test_the_longest_delay_is_rounded_up_and_never_down() -> None:
    assert round_duration(DAY_MS) == DAY_MS
    assert round_duration(DAY_MS + 1) == 2 * DAY_MS
    assert round_duration(400 * DAY_MS) == 400 * DAY_MS


@pytest.mark.parametrize("max_delay_ms", [45 * DAY_MS, 365 * DAY_MS, 10 * 365 * DAY_MS])
def test_plans_reach_as_far_as_is_asked_for_and_their_windows_as_the_history(max_delay_ms: int) -> None:
    plans = candidate_plans(BASE, 7 * DAY_MS, max_delay_ms)
    assert len(plans) >= 300
    assert {plan.max_delay_ms for plan in plans} == {max_delay_ms}
    # A window beyond the history's delays would be native; the finest stay, which a long reach must not push out.
    windows_ms = [plan.scheme.window_ms for plan in plans if isinstance(plan.scheme, Tiered)]
    assert (min(windows_ms), max(windows_ms) < 10 * DAY_MS) == (10 * MINUTE_MS, True)
    longest_ms = max(plan.scheme.tiers_ms[-1] for plan in plans if isinstance(plan.scheme, Tiered))
    assert longest_ms > 7 * DAY_MS
    rules = article_plans(BASE, 7 * DAY_MS, max_delay_ms)
    assert {plan.max_delay_ms for plan in rules.values()} == {max_delay_ms}


def test_a_max_delay_that_refuses_timers_of_the_history_is_refused() -> None:
    assert candidate_plans(BASE, 7 * DAY_MS, 7 * DAY_MS)[0].max_delay_ms == 7 * DAY_MS
    with pytest.raises(MaxDelayTooShort, match=r"a max_delay of 6d is shorter .* longest delay, 8d") as told:
        candidate_plans(BASE, 7 * DAY_MS + 1, 6 * DAY_MS)
    assert (told.value.max_delay_ms, told.value.longest_delay_ms) == (6 * DAY_MS, 7 * DAY_MS + 1)

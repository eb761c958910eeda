"""Which interval topics are open when: tables, and a year in a few seconds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timewheel.consumers.rolling_topics import (
    FORMER_RETRY_MS,
    LOOK_BACK_INTERVALS,
    LOOK_MS,
    MAX_PAUSE_MS,
    MAX_VISITS,
    RollingTopics,
    open_ahead_ms,
    rest_ms,
)
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from timewheel.core.early_delivery import hold_bound_ms
from timewheel.core.plan import Plan

HOLD_MS = hold_bound_ms(Plan(due_topic="persistent://acme/crm/reminders", subscriptions=("billing",)))


def daily() -> RollingTopics:
    return RollingTopics(DAY_MS, HOLD_MS)


MIDNIGHT_MS = 20_454 * DAY_MS  # 2026-01-01T00:00:00Z is the beginning of interval 20,454 of a day


def test_the_lead_is_the_hold_bound_and_time_to_connect() -> None:
    assert open_ahead_ms(DAY_MS, HOLD_MS) == 6_000 + 30_000
    assert open_ahead_ms(2 * SECOND_MS, HOLD_MS) == 6_000 + 1_000


@pytest.mark.parametrize(
    ("at_ms", "live"),
    [
        (12 * HOUR_MS, [20_454]),
        (DAY_MS - 36_001, [20_454]),
        (DAY_MS - 36_000, [20_454, 20_455]),  # the lead of the next day begins
        (DAY_MS + 59_999, [20_454, 20_455]),
        (DAY_MS + 60_000, [20_455]),  # the rest of the last day is over
    ],
)
def test_an_interval_is_live_from_its_lead_to_the_end_of_its_rest(at_ms: int, live: list[int]) -> None:
    assert list(daily().live(MIDNIGHT_MS + at_ms)) == live


def test_the_running_interval_is_opened_first() -> None:
    rolling = RollingTopics(2 * SECOND_MS, HOLD_MS)
    now_ms = 1_000_000_000
    current = now_ms // 2_000
    assert rolling.step(now_ms, {}).open[:6] == (
        current,
        current + 1,
        current + 2,
        current + 3,
        current - 1,
        current - 2,
    )


def test_a_passed_topic_is_closed_only_when_it_was_quiet_for_the_rest() -> None:
    rolling = daily()
    now_ms = MIDNIGHT_MS + DAY_MS + HOUR_MS
    assert rolling.step(now_ms, {20_454: None, 20_455: 0}).close == ()
    assert rolling.step(now_ms, {20_454: MINUTE_MS - 1, 20_455: 0}).close == ()
    assert rolling.step(now_ms, {20_454: MINUTE_MS, 20_455: MINUTE_MS}).close == (20_454,)


def test_a_passed_topic_is_visited_at_growing_pauses_until_it_is_gone() -> None:
    rolling = daily()
    now_ms = MIDNIGHT_MS + DAY_MS + HOUR_MS
    for interval in range(20_455 - LOOK_BACK_INTERVALS, 20_454):
        rolling.missing(interval, now_ms)
    rolling.step(now_ms, {20_454: MINUTE_MS, 20_455: 0})
    for gone in rolling.step(now_ms, {20_454: MINUTE_MS, 20_455: 0}).open:
        rolling.missing(gone, now_ms)
    closed_ms = now_ms
    pauses_ms: list[int] = []
    while len(pauses_ms) < 9:
        now_ms += SECOND_MS
        changes = rolling.step(now_ms, {20_455: 0})
        for interval in changes.open:
            if interval != 20_454:
                assert rolling.missing(interval, now_ms)
                continue
            pauses_ms.append(now_ms - closed_ms)
            assert rolling.step(now_ms, {20_454: MINUTE_MS, 20_455: 0}).close == (20_454,)
            closed_ms = now_ms
    assert pauses_ms == [min(MINUTE_MS * 2**n, MAX_PAUSE_MS) for n in range(1, 10)]
    rolling.missing(20_454, now_ms)
    assert 20_454 not in rolling.step(now_ms + 10 * HOUR_MS, {20_455: 0}).open


def test_it_sleeps_to_the_next_interval_and_beside_a_passed_topic_until_that_has_been_quiet_for_the_rest() -> None:
    rolling = daily()
    now_ms = MIDNIGHT_MS + 12 * HOUR_MS
    rolling.step(now_ms, {20_454: 0})
    for interval in range(20_454 - LOOK_BACK_INTERVALS, 20_454):
        rolling.missing(interval, now_ms)
    assert rolling.step(now_ms, {20_454: 0}).wake_ms == MIDNIGHT_MS + DAY_MS - open_ahead_ms(DAY_MS, HOLD_MS)
    assert rolling.step(now_ms, {20_453: MINUTE_MS - 1_234, 20_454: 0}).wake_ms == now_ms + 1_234
    assert rolling.step(now_ms, {20_453: None, 20_454: 0}).wake_ms == now_ms + LOOK_MS


def test_a_former_calendars_missing_topics_are_looked_for_less_often() -> None:
    rolling = RollingTopics(DAY_MS, HOLD_MS, retry_ms=FORMER_RETRY_MS)
    now_ms = MIDNIGHT_MS + 12 * HOUR_MS
    assert not rolling.missing(20_454, now_ms)
    assert 20_454 not in rolling.step(now_ms + FORMER_RETRY_MS - 1, {}).open
    assert 20_454 in rolling.step(now_ms + FORMER_RETRY_MS, {}).open


def test_after_a_time_away_all_that_passed_is_visited_a_few_at_a_time_the_oldest_first() -> None:
    rolling = daily()
    now_ms = MIDNIGHT_MS + 12 * HOUR_MS
    oldest = 20_454 - LOOK_BACK_INTERVALS
    assert rolling.step(now_ms, {}).open == (20_454, *range(oldest, oldest + MAX_VISITS))
    still_open = dict.fromkeys(range(oldest, oldest + MAX_VISITS), 0) | {20_454: 0}
    assert rolling.step(now_ms, still_open).open == ()


def test_a_missing_topic_ahead_is_looked_for_again_and_a_passed_one_is_not() -> None:
    rolling = daily()
    now_ms = MIDNIGHT_MS + 12 * HOUR_MS
    assert not rolling.missing(20_454, now_ms)
    assert 20_454 not in rolling.step(now_ms, {}).open
    assert 20_454 in rolling.step(now_ms + SECOND_MS, {}).open
    assert rolling.missing(20_453, now_ms)
    assert 20_453 not in rolling.step(now_ms + DAY_MS, {}).open


@given(
    interval_ms=st.sampled_from([SECOND_MS, 2 * SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS]),
    start_ms=st.integers(10**12, 2 * 10**12),
    steps=st.lists(st.integers(0, 10**6), min_size=5, max_size=60),
)
def test_whenever_a_timer_may_come_its_topic_is_open(interval_ms: int, start_ms: int, steps: list[int]) -> None:
    rolling = RollingTopics(interval_ms, HOLD_MS)
    now_ms = start_ms
    is_open: set[int] = set()
    for early_by_ms in steps:
        changes = rolling.step(now_ms, dict.fromkeys(is_open, 10 * MINUTE_MS))
        is_open = (is_open - set(changes.close)) | set(changes.open)
        # The earliest that a timer of the next intervals can be delivered, to the last that it may be sent to.
        first, last = (now_ms + HOLD_MS) // interval_ms, (now_ms - rest_ms(interval_ms, HOLD_MS)) // interval_ms
        assert set(range(last, first + 1)) <= is_open
        assert len(is_open) <= len(rolling.live(now_ms)) + MAX_VISITS
        assert now_ms < changes.wake_ms
        # The follower wakes a little late; the lead has room for that.
        now_ms = changes.wake_ms + early_by_ms % (min(interval_ms, MINUTE_MS) // 2)

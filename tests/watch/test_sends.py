"""What was sent: each timer once, where it was sent, within the time of which nothing is gone."""

from __future__ import annotations

import random

import pytest

from tests.support.plan_samples import (
    NOW_MS,
    drawn_of,
    held_topic,
    part_of,
    plan_of,
    sample_of,
    timer,
)
from timewheel.client.positions import EntryPosition
from timewheel.core.durations import HOUR_MS
from timewheel.core.plan import Calendar, Ring, Tiered, Wheel
from timewheel.core.steps import steps
from timewheel.inspect.entries import Place
from timewheel.inspect.plan_sample import PlanSample, PlanTopic
from timewheel.watch.sends import SHARES, Sends, sends_of, window_of

TIERED = plan_of(scheme=Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS, 12 * HOUR_MS)))
DAY_TIER, HOUR_TIER, _ = steps(TIERED)
TIER = "persistent://acme/crm/reminders.tw.tier-12h"


def ago(hours: float) -> int:
    return NOW_MS - round(hours * HOUR_MS)


@pytest.mark.parametrize(
    ("due_since", "tier_since", "begins"),
    [
        (5, 20, 12 - 7),  # the due topic has trimmed what is older
        (30, 20, 20),  # the tier has, past its stay
        (30, 3, 12),  # a tier cannot have let anything go within its stay, however young its first entry is
        (None, 20, 0),  # an empty due topic shows nothing
        (30, None, 12),  # an empty tier that holds for 12 h: nothing was sent there since then
    ],
)
def test_the_window_begins_where_the_last_topic_is_whole(
    due_since: float | None, tier_since: float | None, begins: float
) -> None:
    due = part_of(1, first_stored_ms=None if due_since is None else ago(due_since))
    tier = part_of(1, name=TIER, first_stored_ms=None if tier_since is None else ago(tier_since))
    sample = sample_of(TIERED, [], due, holding=(held_topic(tier, DAY_TIER),))

    assert window_of(sample) == ago(begins)


def test_a_slot_is_whole_since_it_was_cleared_last() -> None:
    wheel = plan_of(scheme=Wheel(rings=(Ring(slot_ms=HOUR_MS, slots=6),)), max_delay_ms=4 * HOUR_MS)
    step, _ = steps(wheel)
    due = part_of(1, first_stored_ms=ago(100))
    hour = NOW_MS // HOUR_MS
    slots = tuple(
        held_topic(part_of(0, name=f"slot-{slot}", first_stored_ms=None), step, slot % 6) for slot in range(6)
    )
    cleared_ms = max(
        start * HOUR_MS - step.headstart_ms
        for start in range(hour - 6, hour + 2)
        if start * HOUR_MS - step.headstart_ms <= NOW_MS
    )

    assert window_of(sample_of(wheel, [], due, holding=slots)) == cleared_ms


def test_a_calendars_topics_to_come_lose_nothing_and_those_that_passed_are_not_seen() -> None:
    plan = plan_of(scheme=Calendar(interval_ms=24 * HOUR_MS))
    today = NOW_MS // (24 * HOUR_MS) * 24 * HOUR_MS
    tomorrow = today + 24 * HOUR_MS
    topics = (
        PlanTopic(
            name="a", parts=(part_of(9, first_stored_ms=today - HOUR_MS),), partitions=0, interval_start_ms=today
        ),
        PlanTopic(name="b", parts=(part_of(9, first_stored_ms=NOW_MS - 5),), partitions=0, interval_start_ms=tomorrow),
        PlanTopic(name="c", parts=(part_of(0, first_stored_ms=None),), partitions=0, interval_start_ms=tomorrow * 2),
    )
    nothing = drawn_of([])
    sample = PlanSample(plan=plan, at_ms=NOW_MS, due=topics, holding=(), missing=(), in_due=nothing, in_holding=nothing)

    assert window_of(sample) == today


def test_a_timer_counts_once_where_it_was_sent() -> None:
    due = part_of(4, first_stored_ms=ago(13))
    tier = part_of(2, name=TIER, first_stored_ms=ago(40))
    lying = [
        timer(0, ago(13), ago(12.5)),
        timer(1, ago(2), ago(1)),
        timer(2, ago(1), ago(-0.5), hops=1),  # came out of the tier: it counts there
        timer(3, ago(1), ago(-0.5), hops=None),  # a stranger's, sent past the plan: it counts
    ]
    held = [
        timer(0, ago(20), ago(5), place=Place(TIER, EntryPosition(1, 0))),  # before the window
        timer(1, ago(10), ago(-5), place=Place(TIER, EntryPosition(1, 1))),
    ]
    sample = sample_of(TIERED, lying, due, held=held, holding=(held_topic(tier, DAY_TIER),))

    found = sends_of(sample)

    assert (found.from_ms, found.until_ms) == (ago(13), NOW_MS)
    assert [(one.entered_ms, one.due_ms) for one in found.timers] == [
        (ago(13), ago(12.5)),
        (ago(10), ago(-5)),
        (ago(2), ago(1)),
        (ago(1), ago(-0.5)),
    ]


def test_long_delays_are_no_more_frequent_than_they_are_sent() -> None:
    """Half of the sends wait an hour and half of them 100 h. At any time 99 % of what waits is of the second half."""
    source = random.Random(3)
    sent = sorted(source.randrange(ago(200), NOW_MS) for _ in range(8_000))
    timers = [timer(n, at, at + (HOUR_MS if n % 2 else 100 * HOUR_MS)) for n, at in enumerate(sent)]
    waiting = [one for one in timers if one.due_ms > NOW_MS]
    assert sum(one.due_ms - one.entered_ms > HOUR_MS for one in waiting) / len(waiting) > 0.98
    # Brokers keep all from the first that waits on.
    kept = timers[timers.index(waiting[0]) :]
    sample = sample_of(plan_of(), kept, part_of(len(kept), first_stored_ms=kept[0].stored_ms))

    found = sends_of(sample)

    assert found.per_second == pytest.approx(8_000 / 200 / 3_600, rel=0.05)
    delays_ms, shares = found.delays()
    long = sum(share for delay_ms, share in zip(delays_ms, shares, strict=True) if delay_ms > HOUR_MS)
    assert long == pytest.approx(0.5, abs=0.02)
    assert found.quantiles_ms()[SHARES.index(0.25)] == HOUR_MS
    assert found.quantiles_ms()[SHARES.index(0.75)] == 100 * HOUR_MS


def test_topics_that_are_sampled_less_closely_count_more_and_the_planner_gets_all_alike() -> None:
    lying = [timer(n, ago(1), ago(1) + 1_000) for n in range(100)]
    held = [timer(n, ago(1), ago(1) + 9 * HOUR_MS, place=Place(TIER, EntryPosition(1, n))) for n in range(200)]
    due = part_of(100, first_stored_ms=ago(2))
    tier = part_of(2_000, name=TIER, first_stored_ms=ago(40))
    sample = sample_of(TIERED, lying, due, held=held, holding=(held_topic(tier, DAY_TIER),), held_population=2_000)

    found = sends_of(sample)

    assert found.per_second == pytest.approx(2_100 / 7_200)
    assert found.quantiles_ms()[0] == 9 * HOUR_MS, "100 of 2,100 are below"
    even, scale = found.evenly()
    assert scale == 10
    short = sum(one.due_ms - one.entered_ms == 1_000 for one in even)
    assert len(even) - short == 200
    assert 3 <= short <= 20, "one of ten of the 100 that were all looked at"


def test_nothing_is_said_of_few() -> None:
    none = Sends(from_ms=0, until_ms=0, timers=(), weights=())

    assert not none.is_enough
    assert (none.per_second, none.share_error, none.quantiles_ms(), none.evenly()) == (0, 1, (), ((), 1))

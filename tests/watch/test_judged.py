"""From what was read to the verdict and to the changed plan: sends, drift, standing gaps; no broker, no Spark."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.plan_samples import (
    NOW_MS,
    SUBSCRIPTION,
    TOPIC,
    drawn_of,
    held_topic,
    part_of,
    plan_of,
    sample_of,
    timer,
)
from timewheel.client.positions import EntryPosition
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.plan import Calendar, Native, Ring, Tiered, Wheel
from timewheel.core.planfile import parse_plan
from timewheel.core.steps import steps
from timewheel.inspect.entries import Place
from timewheel.inspect.plan_sample import PlanSample, PlanTopic, StoredTimer, draw_pairs
from timewheel.spark_planner.choice.constraints import Constraints
from timewheel.spark_planner.summary.cells import Cells
from timewheel.watch.change import changed_plan, diff_of
from timewheel.watch.checking import MAX_TURNS, Checked, Level, evaluated, expected, turns_of
from timewheel.watch.comparison import GapComparison, comparisons, together
from timewheel.watch.outlook import WEEK_MS, CheckLine
from timewheel.watch.sends import SHARES, Reference, Sends, drift, reference_of, sends_of, window_of
from timewheel.watch.text import checked_facts, comparison_table, describe_sends, headline

PROFILE = replace(BrokerProfile.named("4.0"), gap_limit_ranges=1_000)
TIERED = plan_of(scheme=Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS, 6 * HOUR_MS)), max_delay_ms=30 * DAY_MS)


def sent(hours: float, longest_ms: int, *, every_ms: int = 20_000) -> list[StoredTimer]:
    """One after the other, with delays that are uniform."""
    source = random.Random(1)
    begin = NOW_MS - round(hours * HOUR_MS)
    return [
        timer(n, at_ms, at_ms + source.randrange(longest_ms)) for n, at_ms in enumerate(range(begin, NOW_MS, every_ms))
    ]


def gaps_of(timers: Iterable[StoredTimer]) -> int:
    due = [one.due_ms <= NOW_MS for one in timers]
    return sum(second and not first for first, second in pairwise(due))


def checked(timers: list[StoredTimer] | None = None, counted: int | None = None, **options: Any) -> Checked:
    lying = sent(48, DAY_MS) if timers is None else timers
    waiting = sum(one.due_ms > NOW_MS for one in lying)
    part = part_of(
        len(lying),
        first_stored_ms=lying[0].stored_ms,
        counted=gaps_of(lying) if counted is None else counted,
        backlog=options.pop("backlog", waiting),
    )
    plan = options.pop("plan", plan_of())
    constraints = Constraints(silence_seconds=None)
    return evaluated(sample_of(plan, lying, part), PROFILE, constraints, **options)


def names(found: Checked, level: Level) -> list[str]:
    return [finding.name for finding in found.findings if finding.level is level]


def test_a_topic_that_holds_what_it_should_is_fine() -> None:
    found = checked()

    assert found.level is Level.FINE
    assert names(found, Level.FINE) == ["alone"]
    assert found.expected is not None
    # One in 20 s, delays uniform up to a day: the law has a sixth of a day's sends.
    assert found.expected.evaluation.peak_gaps == pytest.approx(4_320 / 6, rel=0.06)
    assert headline(found).startswith("The plan holds: ")


@pytest.mark.parametrize(
    ("changes", "level", "name"),
    [
        ({"counted": 900}, Level.BROKEN, "gaps"),
        ({"counted": 100}, Level.ATTENTION, "disagree"),
        ({"backlog": 17_000}, Level.ATTENTION, "overdue"),
        ({"plan": plan_of(max_delay_ms=HOUR_MS)}, Level.ATTENTION, "astray"),
        ({"timers": sent(0.05, DAY_MS)}, Level.FINE, "few"),
        ({"timers": sent(3, DAY_MS)}, Level.FINE, "no_day"),
        ({"timers": sent(0.5, 30 * DAY_MS, every_ms=100)}, Level.FINE, "short"),
        ({"timers": sent(48, 2 * DAY_MS, every_ms=5_000), "counted": 700}, Level.ATTENTION, "expected"),
    ],
)
def test_what_is_wrong_has_a_name_and_a_level(changes: dict[str, Any], level: Level, name: str) -> None:
    found = checked(**changes)

    assert name in names(found, level), found.findings
    assert found.findings[0].level is found.level
    if name == "short":
        assert found.level is Level.FINE, "a burst of half an hour is no rate that could go on for a month"
        assert found.line().peak is None


def test_a_relay_that_does_not_run_is_told_by_what_waits_too_long() -> None:
    step, *_ = steps(TIERED)
    tier = part_of(50, name="tier", first_stored_ms=NOW_MS - 30 * HOUR_MS, subscription="tw-relay")
    places = [Place("tier", EntryPosition(1, n)) for n in range(50)]
    held = [timer(0, NOW_MS - 8 * HOUR_MS, NOW_MS + DAY_MS, place=place) for place in places]
    part = part_of(1, first_stored_ms=NOW_MS - 30 * HOUR_MS, backlog=1)
    lying = [timer(0, NOW_MS - HOUR_MS, NOW_MS + HOUR_MS // 2)]

    moved = part_of(50, name="tier", first_stored_ms=NOW_MS, subscription="tw-relay", mark_delete=EntryPosition(1, 49))

    late, done = (
        evaluated(sample_of(TIERED, lying, part, held=held, holding=(held_topic(one, step),)), PROFILE, Constraints())
        for one in (tier, moved)
    )

    assert "stuck" in names(late, Level.ATTENTION)
    assert "about 50 timers wait" in next(one.text for one in late.findings if one.name == "stuck")
    assert "stuck" not in names(done, Level.ATTENTION)


def test_topics_that_are_missing_need_attention() -> None:
    lying = sent(48, DAY_MS)
    part = part_of(len(lying), first_stored_ms=lying[0].stored_ms, counted=gaps_of(lying), backlog=10**9)
    found = evaluated(sample_of(plan_of(), lying, part, missing=("a", "b")), PROFILE, Constraints())

    assert "missing" in names(found, Level.ATTENTION)
    assert any("a and 1 more are missing" in one.text for one in found.findings)


def line(weeks_ago: float, times: float, now: CheckLine, **changes: Any) -> CheckLine:
    assert now.per_second is not None
    assert now.peak is not None
    at_ms = now.at_ms - round(weeks_ago * WEEK_MS)
    return replace(now, at_ms=at_ms, per_second=now.per_second * times, peak=now.peak * times, **changes)


@pytest.mark.parametrize(("horizon_weeks", "level"), [(12, Level.ATTENTION), (1, Level.FINE)])
def test_growth_leads_to_a_date_and_a_level_by_the_horizon(horizon_weeks: int, level: Level) -> None:
    lying = sent(48, DAY_MS, every_ms=30_000)
    now = checked(lying).line()
    earlier = [line(weeks, 1.05**-weeks, now) for weeks in range(5, 0, -1)]

    found = checked(lying, earlier=earlier, horizon_ms=horizon_weeks * WEEK_MS)

    told = next(one for one in found.findings if one.name == "growth")
    assert told.level is level
    assert "at this growth (+5.0% a week over 5 weeks" in told.text
    assert "the limit is reached on 20" in told.text
    assert found.needs_change == (level is Level.ATTENTION)
    # The first check of this plan is what later ones are held against: sends are 1.28 times those.
    assert found.drift is not None
    assert found.drift.rate == pytest.approx(1.05**5, rel=1e-3)
    assert found.drift.is_rate


def test_a_change_of_the_plan_begins_its_gaps_anew() -> None:
    lying = sent(48, DAY_MS, every_ms=30_000)
    now = checked(lying).line()
    earlier = [line(weeks, 1.05**-weeks, now, revision=7) for weeks in range(5, 0, -1)]

    found = checked(lying, earlier=earlier)

    assert found.outlook.volume is not None
    assert found.outlook.gaps is None
    assert found.drift is None


def sends(timers: list[StoredTimer], hours: float) -> Sends:
    return Sends(
        from_ms=NOW_MS - round(hours * HOUR_MS), until_ms=NOW_MS, timers=tuple(timers), weights=(1.0,) * len(timers)
    )


@pytest.mark.parametrize("hours", [5, 12, 30, 60])
def test_a_window_shorter_than_the_delays_still_says_what_a_full_topic_holds(hours: float) -> None:
    """Delays uniform up to five days: a sixth of five days' sends are gaps, natively, whatever was seen of them."""
    found = expected(sends(sent(hours, 5 * DAY_MS), hours), plan_of(), PROFILE, Constraints())

    assert found.evaluation.peak_gaps == pytest.approx(5 * 4_320 / 6, rel=0.06)
    assert found.says_no_day == (hours < 24)
    assert not found.is_short
    # And under tiers: nearly all arrive with the window left or less.
    tiered = expected(sends(sent(hours, 5 * DAY_MS), hours), TIERED, PROFILE, Constraints())
    assert tiered.evaluation.peak_gaps < found.evaluation.peak_gaps / 50


@pytest.mark.parametrize(
    ("window_ms", "longest_ms", "turns"), [(100, 0, 2), (100, 100, 3), (100, 950, 12), (1, 10**6, MAX_TURNS)]
)
def test_a_window_comes_again_until_its_first_turn_is_all_due(window_ms: int, longest_ms: int, turns: int) -> None:
    assert turns_of(window_ms, longest_ms) == turns


# --- the change


def test_a_changed_plan_keeps_what_waits_in_reach() -> None:
    before = plan_of(scheme=Calendar(interval_ms=DAY_MS), partitions=4, revision=8, jitter_ms=5_000)
    planned = replace(before, scheme=TIERED.scheme, partitions=1)

    after = changed_plan(before, planned)

    assert (after.scheme, after.partitions, after.revision) == (TIERED.scheme, 4, 9)
    assert after.former_intervals_ms == (DAY_MS,)
    assert after.jitter_ms == 5_000
    unpartitioned = replace(planned, partitions=0)
    assert changed_plan(unpartitioned, unpartitioned).partitions == 0


def test_the_diff_is_of_plan_files() -> None:
    before = plan_of(scheme=Native())
    after = changed_plan(before, replace(before, partitions=3))

    text = diff_of(before, after, "reminders.toml")

    assert text.startswith("--- reminders.toml\n+++ reminders.toml (new)\n")
    assert "-revision = 1\n+revision = 2\n" in text
    assert "-partitions = 1\n+partitions = 3\n" in text
    added = "".join(row[1:] for row in text.splitlines(keepends=True)[3:] if row[0] in "+ ")
    assert "format = 1" in added
    assert parse_plan(added + "[native]\n").partitions == 3


# --- what is shown


def test_the_words_and_the_facts_have_the_same_figures() -> None:
    found = checked()
    facts = checked_facts(found)
    (whole,) = facts["subscriptions"]

    assert (facts["level"], facts["due_topic"]) == ("fine", TOPIC)
    assert (whole["subscription"], whole["counted"], whole["agrees"]) == (SUBSCRIPTION, gaps_of(sent(48, DAY_MS)), True)
    shown = comparison_table(found)
    assert shown.rows[0][0] == f"{SUBSCRIPTION}, all partitions"
    assert shown.rows[0][4] == f"{whole['counted']:,}"
    said = dict(describe_sends(found))
    assert said["sent"].startswith("0.05 +- ")
    assert facts["sends"]["per_second"] == pytest.approx(0.05)
    assert set(facts["sends"]["delays_ms"]) == {"0.1", "0.25", "0.5", "0.75", "0.9", "0.99"}


TICK_MS = 1  # so short that the band is the sample's alone


def comparison(due: list[bool], *, per_ledger: int = 10**6, mark_delete: int = -1) -> GapComparison:
    """Of a topic whose entries are due, or not."""
    places = [EntryPosition(1 + number // per_ledger, number % per_ledger) for number in range(len(due))]
    ledgers = tuple(
        (1 + number // per_ledger, len(due[number : number + per_ledger])) for number in range(0, len(due), per_ledger)
    )
    timers = [
        timer(0, NOW_MS - 100_000, NOW_MS - 50_000 if is_due else NOW_MS + 50_000, place=Place(TOPIC, place))
        for is_due, place in zip(due, places, strict=True)
    ]
    marked = EntryPosition(1, -1) if mark_delete < 0 else places[mark_delete]
    part = part_of(len(due), ledgers=ledgers, mark_delete=marked)
    (found,) = comparisons(sample_of(plan_of(), timers, part), TICK_MS)
    return found


def counted(due: list[bool], per_ledger: int, mark_delete: int) -> int:
    """Runs of acknowledged entries behind the mark-delete position, each cut where a ledger ends."""
    runs, before = 0, None
    for number in range(mark_delete + 1, len(due)):
        if due[number] and (before is not True or number % per_ledger == 0):
            runs += 1
        before = due[number]
    return runs


@pytest.mark.parametrize(
    ("due", "gaps"),
    [
        ([False], 0),
        ([False, True], 1),
        ([False, True, True, False, True], 2),
        ([False, False, False], 0),
        ([True, True, False, True], 1),  # what is before the first open one is not behind it
    ],
)
def test_a_gap_begins_where_a_done_entry_follows_an_open_one(due: list[bool], gaps: int) -> None:
    assert comparison(due).predicted == gaps


@given(st.lists(st.booleans(), min_size=2, max_size=60), st.integers(1, 12), st.data())
def test_who_sees_all_counts_as_the_broker_does(due: list[bool], per_ledger: int, data: st.DataObject) -> None:
    first_open = due.index(False) if False in due else len(due)
    # All that is behind the mark-delete position begins with an entry that is open.
    mark_delete = data.draw(st.sampled_from([first_open - 1, -1])) if first_open in (0, len(due)) else first_open - 1
    if first_open == len(due):
        return  # nothing waits: brokers then move the mark-delete position to the end
    found = comparison(due, per_ledger=per_ledger, mark_delete=mark_delete)

    assert found.predicted == counted(due, per_ledger, mark_delete)
    assert found.error == 0
    assert found.pending == due[mark_delete + 1 :].count(False)


def test_the_truth_lies_within_the_band_of_a_sample_in_19_of_20() -> None:
    """Of neighbours that are alike: due times come in runs of 20, which single entries would not show."""
    source = random.Random(5)
    due = [False] + [is_due for _ in range(500) for is_due in [source.random() < 0.4] * 20]
    truth = counted(due, 10**6, -1)
    timers = [timer(n, NOW_MS - 9, NOW_MS - 50_000 if one else NOW_MS + 50_000) for n, one in enumerate(due)]
    part = part_of(len(due))
    within = 0
    for seed in range(60):
        chosen = [timers[number] for number in draw_pairs(len(due), 1_500, seed)]
        (found,) = comparisons(sample_of(plan_of(), chosen, part, population=len(due)), TICK_MS)
        within += abs(found.predicted - truth) <= found.error
    assert within >= 54


@given(st.integers(2, 400), st.integers(2, 60), st.integers(0, 10**6))
def test_pairs_are_neighbours_and_no_more_than_asked_for(population: int, samples: int, seed: int) -> None:
    found = draw_pairs(population, samples, seed)

    assert len(found) == len(set(found)) <= samples
    assert set(found) <= set(range(population))
    if population <= samples:
        assert len(found) == population
    else:
        assert all({number - 1, number + 1} & set(found) for number in found)


def test_each_entry_of_a_topic_has_the_same_chance() -> None:
    times = [0] * 20
    for seed in range(4_000):
        for number in draw_pairs(20, 4, seed):
            times[number] += 1

    # Two heads of 19, each with its neighbour: a number is in a pair by 2 of 19 heads, the ends by 1.
    assert all(abs(count / 4_000 - 0.205) < 0.03 for count in times[1:-1])
    assert all(abs(count / 4_000 - 2 / 19) < 0.03 for count in (times[0], times[-1]))


BASE = GapComparison(
    name=TOPIC, subscription=SUBSCRIPTION, counted=100, predicted=100.0, less=10.0, more=5.0, error=20.0,
    pending=1_000.0, pending_error=50.0, fresh=10.0, backlog=1_000,
)  # fmt: skip


@pytest.mark.parametrize(
    ("count", "agrees"),
    [(100, True), (65, True), (64, False), (130, True), (131, False)],  # 100 - 10 - 20 - 5, 100 + 5 + 20 + 5
)
def test_a_count_agrees_within_ticks_sample_and_tolerance(count: int, agrees: bool) -> None:
    assert replace(BASE, counted=count).agrees == agrees


@pytest.mark.parametrize(("backlog", "overdue"), [(1_000, 0), (1_110, 0), (1_210, 96.5)])  # 1,010 + 50 + 50.5 + 3
def test_what_is_due_and_waits_is_told_beyond_what_may_be_chance(backlog: int, overdue: float) -> None:
    assert replace(BASE, backlog=backlog).overdue == overdue


def test_partitions_add_and_their_errors_by_their_squares() -> None:
    (whole,) = together("whole", [replace(BASE, error=3.0), replace(BASE, error=4.0, counted=7)])

    assert (whole.name, whole.counted, whole.predicted, whole.error, whole.backlog) == ("whole", 107, 200, 5, 2_000)


TWO_TIERS = plan_of(scheme=Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS, 12 * HOUR_MS)))
DAY_TIER, HOUR_TIER, _ = steps(TWO_TIERS)
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
    sample = sample_of(TWO_TIERS, [], due, holding=(held_topic(tier, DAY_TIER),))

    assert window_of(sample) == ago(begins)


def test_a_slot_is_whole_since_it_was_cleared_last() -> None:
    wheel = plan_of(scheme=Wheel(rings=(Ring(slot_ms=HOUR_MS, slots=6),)), max_delay_ms=4 * HOUR_MS)
    step, _ = steps(wheel)
    due = part_of(1, first_stored_ms=ago(100))
    hour = NOW_MS // HOUR_MS
    slots = tuple(
        held_topic(part_of(0, name=f"slot-{slot}", first_stored_ms=None), step, slot % 6) for slot in range(6)
    )
    starts_ms = [start * HOUR_MS - step.headstart_ms for start in range(hour - 6, hour + 2)]
    cleared_ms = max(start_ms for start_ms in starts_ms if start_ms <= NOW_MS)

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
    sample = sample_of(TWO_TIERS, lying, due, held=held, holding=(held_topic(tier, DAY_TIER),))

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
    sample = sample_of(TWO_TIERS, lying, due, held=held, holding=(held_topic(tier, DAY_TIER),), held_population=2_000)

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


MIDNIGHT_MS = NOW_MS // DAY_MS * DAY_MS


def sends_with(delays_ms: list[int], *, window_ms: int = HOUR_MS, weight: float = 1.0) -> Sends:
    timers = tuple(timer(n, NOW_MS - 9, NOW_MS - 9 + delay_ms) for n, delay_ms in enumerate(delays_ms))
    return Sends(from_ms=NOW_MS - window_ms, until_ms=NOW_MS, timers=timers, weights=(weight,) * len(timers))


def reference(quantiles_ms: tuple[int, ...], per_second: float = 1.0) -> Reference:
    return Reference(name="then", per_second=per_second, quantiles_ms=quantiles_ms)


UNIFORM = list(range(0, 3_600_000, 1_000))  # 3,600 in an hour: one a second
UNIFORM_THEN = tuple(round(share * 3_600_000) for share in SHARES)


@pytest.mark.parametrize(
    ("delays_ms", "then", "moved"),
    [
        (UNIFORM, UNIFORM_THEN, 0.0),
        ([2 * delay for delay in UNIFORM], UNIFORM_THEN, 0.5),
        ([DAY_MS] * 3_600, (DAY_MS,) * 6, 0.0),  # all alike, then and now
        ([DAY_MS + 7] * 3_600, (DAY_MS,) * 6, 0.0),  # and with a clock's jitter
        ([2 * DAY_MS] * 3_600, (DAY_MS,) * 6, 0.99),
        ([DAY_MS] * 1_800 + [1_000] * 1_800, (DAY_MS,) * 6, 0.4),  # one of ten may be as short, as far as quantiles say
    ],
)
def test_delays_have_moved_as_far_as_their_shares_have(
    delays_ms: list[int], then: tuple[int, ...], moved: float
) -> None:
    found = drift(sends_with(delays_ms), reference(then))

    assert found.moved == pytest.approx(moved, abs=0.02)
    assert found.is_delay == (moved > 0.15)
    assert found.moved_error == pytest.approx(1.36 / 60, rel=0.01)


@pytest.mark.parametrize(
    ("per_second", "is_drift"), [(1.0, False), (1.15, False), (1.5, True), (0.9, False), (0.7, True)]
)
def test_the_rate_has_changed_beyond_a_fifth(per_second: float, is_drift: bool) -> None:
    assert drift(sends_with(UNIFORM), reference(UNIFORM_THEN, per_second)).is_rate == is_drift


def test_few_sends_are_no_drift() -> None:
    found = drift(sends_with(UNIFORM[::120]), reference(UNIFORM_THEN, 1 / 120 * 1.5))

    assert not found.is_rate, "30 of them: 45 may have been chance"
    assert not found.is_delay


def history(days: int) -> Cells:
    """By day ten times as many as by night, and other delays: 12 hours each."""
    parts = []
    for day in range(days):
        begin = MIDNIGHT_MS - (days - day) * DAY_MS
        night = begin + np.arange(0, 12 * HOUR_MS, 40_000)
        noon = begin + 12 * HOUR_MS + np.arange(0, 12 * HOUR_MS, 4_000)
        parts += [Cells.of_timers(night, night + HOUR_MS), Cells.of_timers(noon, noon + 5 * HOUR_MS)]
    return Cells.merged(parts)


@pytest.mark.parametrize("days", [3, 21])
@pytest.mark.parametrize(
    ("from_hour", "until_hour", "per_second", "median_ms"),
    [(2, 5, 0.025, HOUR_MS), (14, 15, 0.25, 5 * HOUR_MS), (11, 13, 0.1375, 5 * HOUR_MS), (0, 48, 0.1375, 5 * HOUR_MS)],
)
def test_the_same_hours_are_compared(
    days: int, from_hour: int, until_hour: int, per_second: float, median_ms: int
) -> None:
    found = reference_of(history(days), "then", MIDNIGHT_MS + from_hour * HOUR_MS, MIDNIGHT_MS + until_hour * HOUR_MS)

    assert found is not None
    assert found.per_second == pytest.approx(per_second, rel=0.03)
    assert found.quantiles_ms[SHARES.index(0.5)] == median_ms


def test_of_hours_without_a_timer_nothing_is_said() -> None:
    at_ms = MIDNIGHT_MS - 3 * DAY_MS + np.array([0, DAY_MS, 2 * DAY_MS])
    cells = Cells.of_timers(at_ms, at_ms + HOUR_MS)

    assert reference_of(cells, "then", MIDNIGHT_MS + 5 * HOUR_MS, MIDNIGHT_MS + 6 * HOUR_MS) is None

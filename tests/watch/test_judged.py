"""From what was read to the verdict and to the changed plan: no broker, no Spark."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tests.support.plan_samples import (
    NOW_MS,
    SUBSCRIPTION,
    TOPIC,
    held_topic,
    part_of,
    plan_of,
    sample_of,
    timer,
)
from timewheel.client.positions import EntryPosition
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.plan import Calendar, Native, Tiered
from timewheel.core.planfile import parse_plan
from timewheel.core.steps import steps
from timewheel.inspect.entries import Place
from timewheel.inspect.plan_sample import StoredTimer
from timewheel.spark_planner.choice.constraints import Constraints
from timewheel.watch.change import changed_plan, diff_of
from timewheel.watch.checking import Checked, judged
from timewheel.watch.expected import MAX_TURNS, expected, turns_of
from timewheel.watch.log import CheckLine
from timewheel.watch.outlook import WEEK_MS
from timewheel.watch.sends import Sends
from timewheel.watch.text import checked_facts, comparison_table, describe_sends, headline
from timewheel.watch.verdict import Level

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
    return judged(sample_of(plan, lying, part), PROFILE, constraints, **options)


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

    late = judged(sample_of(TIERED, lying, part, held=held, holding=(held_topic(tier, step),)), PROFILE, Constraints())
    moved = part_of(50, name="tier", first_stored_ms=NOW_MS, subscription="tw-relay", mark_delete=EntryPosition(1, 49))
    done = judged(sample_of(TIERED, lying, part, held=held, holding=(held_topic(moved, step),)), PROFILE, Constraints())

    assert "stuck" in names(late, Level.ATTENTION)
    assert "about 50 timers wait" in next(one.text for one in late.findings if one.name == "stuck")
    assert "stuck" not in names(done, Level.ATTENTION)


def test_topics_that_are_missing_need_attention() -> None:
    lying = sent(48, DAY_MS)
    part = part_of(len(lying), first_stored_ms=lying[0].stored_ms, counted=gaps_of(lying), backlog=10**9)
    found = judged(sample_of(plan_of(), lying, part, missing=("a", "b")), PROFILE, Constraints())

    assert "missing" in names(found, Level.ATTENTION)
    assert any("a and 1 more are missing" in one.text for one in found.findings)


def line(weeks_ago: float, times: float, now: CheckLine, **changes: Any) -> CheckLine:
    assert now.per_second is not None
    assert now.peak is not None
    return replace(
        now,
        at_ms=now.at_ms - round(weeks_ago * WEEK_MS),
        per_second=now.per_second * times,
        peak=now.peak * times,
        **changes,
    )


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
    ("window_ms", "longest_ms", "turns"),
    [(100, 0, 2), (100, 100, 3), (100, 950, 12), (1, 10**6, MAX_TURNS)],
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


def test_a_changed_plan_gives_no_partitions_to_a_due_topic_that_has_none() -> None:
    before = plan_of(scheme=Native(), partitions=0)
    assert changed_plan(before, replace(before, scheme=TIERED.scheme)).partitions == 0


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

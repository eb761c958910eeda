"""The verdict of a check: its findings and the level of the worst. A pure function of the sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import format_duration, span
from timewheel.core.plan import Tiered, Wheel
from timewheel.core.routing import release_at
from timewheel.core.steps import longest_due_stay_ms
from timewheel.inspect.plan_sample import PlanSample, PlanTopic
from timewheel.spark_planner.choice.constraints import GAP_FRACTION, Constraints
from timewheel.watch.comparison import GapComparison
from timewheel.watch.expected import Expected
from timewheel.watch.outlook import Outlook
from timewheel.watch.sends import LEAST_TIMERS, SHARES, Drift, Sends

ASTRAY_SHARE = 0.01
"""Fraction of the timers in due topics: fewer that stay longer than the plan allows are left from an earlier plan."""


class Level(StrEnum):
    """Level of a finding."""

    FINE = "fine"
    ATTENTION = "attention"
    """A limit will be reached, or the topics deviate from the plan."""
    BROKEN = "broken"
    """A limit is broken now, by the broker's own counter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A single result of a check.

    Args:
        name: Short and stable name, for programs.
        level: Level of the finding; fine for information only.
        text: A sentence.
    """

    name: str
    level: Level
    text: str


def level_of(findings: Sequence[Finding]) -> Level:
    """Return the level of the worst finding."""
    levels = [finding.level for finding in findings]
    return Level.BROKEN if Level.BROKEN in levels else Level.ATTENTION if Level.ATTENTION in levels else Level.FINE


def findings_of(
    sample: PlanSample,
    parts: Sequence[GapComparison],
    wholes: Sequence[GapComparison],
    sends: Sends,
    expected: Expected | None,
    drift: Drift | None,
    outlook: Outlook,
    profile: BrokerProfile,
    constraints: Constraints,
) -> tuple[Finding, ...]:
    """Return all findings, the worst first."""
    found = [
        *_counted(parts, profile, constraints),
        *_compared(wholes),
        *_expected(expected, profile, constraints),
        *_outlook(outlook),
        *_drift(drift, outlook),
        *_on_the_way(sample),
        *_seen(sample, sends, expected),
    ]
    order = [Level.BROKEN, Level.ATTENTION, Level.FINE]
    return tuple(sorted(found, key=lambda finding: order.index(finding.level)))


def _counted(parts: Sequence[GapComparison], profile: BrokerProfile, constraints: Constraints) -> Iterator[Finding]:
    worst = max(parts, key=lambda part: part.counted, default=None)
    limit = profile.gap_limit_ranges
    if worst is None or worst.counted <= constraints.gap_fraction * limit:
        return
    then = "the next reload delivers handled messages again" if worst.counted > limit else "there is no room left"
    yield Finding(
        name="gaps",
        level=Level.BROKEN,
        text=(
            f"{worst.name} has {worst.counted:,} gaps of {worst.subscription!r}, more than "
            f"{constraints.gap_fraction:.0%} of the {limit:,} that the broker keeps: {then}."
        ),
    )


def _compared(wholes: Sequence[GapComparison]) -> Iterator[Finding]:
    for whole in wholes:
        if whole.overdue:
            text = (
                f"at least {whole.overdue:,.0f} entries are due and {whole.subscription!r} has not acknowledged them: "
                "its consumers are away or behind."
            )
            yield Finding(name="overdue", level=Level.ATTENTION, text=text)
        if whole.agrees:
            continue
        why = (
            "fewer: acknowledgements were forgotten at a reload, or due timers are not handled"
            if whole.counted < whole.low
            else "more: timers are acknowledged before they are due, or some that are due are left"
        )
        text = (
            f"the broker counts {whole.counted:,} gaps of {whole.subscription!r}, and by the entries of the topic "
            f"there should be {whole.low:,.0f} to {whole.high:,.0f}. There are {why}."
        )
        yield Finding(name="disagree", level=Level.ATTENTION, text=text)


def _expected(expected: Expected | None, profile: BrokerProfile, constraints: Constraints) -> Iterator[Finding]:
    if expected is None or expected.is_short or not expected.broken:
        return
    evaluation = expected.evaluation
    others = [name for name in expected.broken if name != GAP_FRACTION]
    said = [f"it breaks {name}" for name in others]
    if GAP_FRACTION in expected.broken:
        said.insert(
            0,
            f"a partition comes to {evaluation.peak_gaps_per_partition:,.0f} gaps, more than "
            f"{constraints.gap_fraction:.0%} of the {profile.gap_limit_ranges:,} that the broker keeps",
        )
    text = f"if timers go on being sent as now: {'; '.join(said)}."
    yield Finding(name="expected", level=Level.ATTENTION, text=text)


def _outlook(outlook: Outlook) -> Iterator[Finding]:
    reached = outlook.reached
    if reached is None:
        return
    growth = reached.growth
    since = f" over {growth.weeks:.3g} weeks" if growth.weeks else ""
    basis = f"at this growth ({growth.weekly:+.1%} a week{since}, by {reached.basis})"
    day = f"{datetime.fromtimestamp(reached.at_ms / 1_000, UTC):%Y-%m-%d}"
    level = Level.ATTENTION if reached.at_ms <= outlook.until_ms else Level.FINE
    text = f"{basis} the limit is reached on {day}: {reached.limit}."
    yield Finding(name="growth", level=level, text=text)


def _drift(drift: Drift | None, outlook: Outlook) -> Iterator[Finding]:
    if drift is None:
        if outlook.compares:
            return
        text = (
            "there is nothing to compare with yet: give the statistic that the plan was made from (--stat), or keep a "
            "log of checks (--log), from which later checks find drift and growth."
        )
        yield Finding(name="alone", level=Level.FINE, text=text)
        return
    then = drift.reference
    if drift.is_rate:
        text = (
            f"{drift.rate * then.per_second:,.3g} timers are sent a second, against {then.per_second:,.3g} by "
            f"{then.name} ({drift.rate - 1:+.0%}, +- {drift.rate_error:.0%})."
        )
        yield Finding(name="rate", level=Level.ATTENTION, text=text)
    if drift.is_delay:
        pairs = zip(SHARES, drift.quantiles_ms, then.quantiles_ms, strict=True)
        said = ", ".join(
            f"{share:.0%} within {span(now_ms)} (then {span(then_ms)})"
            for share, now_ms, then_ms in pairs
            if share in (0.5, 0.9, 0.99)
        )
        text = f"delays differ from those of {then.name}, for at least {drift.moved:.0%} of the timers: {said}."
        yield Finding(name="delays", level=Level.ATTENTION, text=text)


def _on_the_way(sample: PlanSample) -> Iterator[Finding]:
    plan = sample.plan
    if sample.missing:
        are = "are" if len(sample.missing) > 1 else "is"
        text = f"{_some(sample.missing)} {are} missing: timewheel topics ensure PLAN"
        yield Finding(name="missing", level=Level.ATTENTION, text=text)
    for topic in sample.due:
        if topic.partitions not in (plan.partitions, 0):
            text = f"{topic.name} has {topic.partitions} partitions, and the plan says {plan.partitions}."
            yield Finding(name="partitions", level=Level.ATTENTION, text=text)
            break
    stuck = _stuck(sample)
    if stuck:
        text = (
            f"about {stuck:,.0f} timers wait in holding topics longer than {format_duration(plan.guard_ms)} past their "
            "release: no relay runs, or it is behind."
        )
        yield Finding(name="stuck", level=Level.ATTENTION, text=text)
    longest_ms = longest_due_stay_ms(plan) + plan.jitter_ms
    there = [timer for timer in sample.in_due.timers if timer.due_ms - timer.entered_ms > longest_ms]
    if len(there) > ASTRAY_SHARE * len(sample.in_due.timers):
        share = len(there) / len(sample.in_due.timers)
        why = (
            "some are sent without the plan, or by an earlier plan"
            if isinstance(plan.scheme, Tiered | Wheel)
            else ("they are sent past the plan's max_delay")
        )
        text = f"{share:.0%} of the entries in the due topic stay there for more than {span(longest_ms)}: {why}."
        yield Finding(name="astray", level=Level.ATTENTION, text=text)


def _stuck(sample: PlanSample) -> float:
    """Estimate the timers that a relay should have moved by now."""
    topic_of: dict[str, PlanTopic] = {part.name: topic for topic in sample.holding for part in topic.parts}
    part_of = {part.name: part for topic in sample.holding for part in topic.parts}
    found = 0
    for timer in sample.in_holding.timers:
        topic, part = topic_of[timer.place.topic], part_of[timer.place.topic]
        assert topic.step is not None  # holding topics have a step
        is_open = all(timer.place.position > cursor.mark_delete for cursor in part.cursors.values())
        late_ms = part.at_ms - release_at(topic.step, timer.due_ms, timer.entered_ms)
        found += is_open and late_ms > sample.plan.guard_ms
    return found * sample.in_holding.scale


def _seen(sample: PlanSample, sends: Sends, expected: Expected | None) -> Iterator[Finding]:
    if not sends.is_enough:
        text = (
            f"rate, delays and growth are not known: of the sends of the last {span(sends.window_ms)}, of which no "
            f"entry is removed yet, {len(sends.timers)} timers are in the sample, and {LEAST_TIMERS} are needed. Take "
            "more samples, or check at another time."
        )
        yield Finding(name="few", level=Level.FINE, text=text)
    if expected is not None and expected.is_short:
        text = (
            f"the window of {span(sends.window_ms)} is too short against the longest delays to say what the topics "
            "come to hold."
        )
        yield Finding(name="short", level=Level.FINE, text=text)
    elif expected is not None and expected.says_no_day:
        text = (
            f"the window of {span(sends.window_ms)} is shorter than a day: it is taken to go on like this, and hours "
            "that are busier are not in it."
        )
        yield Finding(name="no_day", level=Level.FINE, text=text)
    unread = sample.in_due.unread + sample.in_holding.unread
    if unread:
        text = f"{unread:,} chosen entries were gone, or could not be read."
        yield Finding(name="unread", level=Level.FINE, text=text)


def _some(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"

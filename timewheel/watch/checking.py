"""A check of a live plan, from its topics to the verdict: its findings, and the level of the worst."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum

import numpy as np

from timewheel.broker.admin.client import AdminClient
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.clock import Clock, SystemClock
from timewheel.core.durations import DAY_MS, format_duration, span
from timewheel.core.gap_law import shows_day
from timewheel.core.plan import Plan, Tiered, Wheel
from timewheel.core.routing import release_at
from timewheel.core.steps import longest_due_stay_ms
from timewheel.inspect.plan_sample import PlanSample, PlanTopic, StoredTimer, sample_plan
from timewheel.inspect.reader import ProgressCallback, no_report
from timewheel.inspect.sample import DEFAULT_SAMPLES
from timewheel.spark_planner.choice.constraints import GAP_FRACTION, Constraints, Room
from timewheel.spark_planner.errors import NoSuchTopic, SeveralTopics
from timewheel.spark_planner.exact.sends import Stretch
from timewheel.spark_planner.extrapolation import continuation, days_of, extended_cells, trend_of, warm_up
from timewheel.spark_planner.history.keys import LEAST_SHARE, KeyShares
from timewheel.spark_planner.pricing.evaluate import Evaluation, evaluate
from timewheel.spark_planner.summary.cells import Cells
from timewheel.spark_planner.summary.statistic import Statistic
from timewheel.watch.comparison import GapComparison, comparisons, together
from timewheel.watch.outlook import CheckLine, Growth, Outlook, growth_of, outlook_of
from timewheel.watch.sends import LEAST_TIMERS, SHARES, Drift, Reference, Sends, drift, reference_of, sends_of

CELL_LIMIT = 200_000
LEAST_CELLS = 500  # least number of cells of a repeated window: even the coarsest level may need this many
MAX_TURNS = 400
"""Limit of repetitions of a window shorter than a day: an hour of sends does not show the timers due in months."""
LEAST_OF_KEY = 10  # least number of sampled timers with the same key from which the key's share is estimated
_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The plan under the present sends, once its topics have filled up."""

    evaluation: Evaluation  # evaluation at the whole volume
    rooms: tuple[Room, ...]  # distance to each limit, the nearest first
    broken: tuple[str, ...]  # names of the broken constraints
    # True if the window is too short against the delays to assume that the rate lasts: the figures are not judged. A
    # burst of some seconds is no rate.
    is_short: bool
    says_no_day: bool  # True if the window is shorter than a day: it is repeated unchanged, without day and night


def expected(sends: Sends, plan: Plan, profile: BrokerProfile, constraints: Constraints) -> Expected:
    """Evaluate the plan on the sends, continued until its topics are full.

    The volume is scaled (``growth``) as the planner scales the file of a sample. Multiplying the sampled timers instead
    would put many of them at the same moment. The sends are enough (`Sends.is_enough`).
    """
    timers, scale = sends.evenly()
    publish_ms = np.array([timer.entered_ms for timer in timers], np.int64)
    due_ms = np.array([timer.due_ms for timer in timers], np.int64)
    cells = Cells.of_timers(publish_ms, due_ms, np.array([timer.size_bytes for timer in timers], np.int64))
    is_day = shows_day(sends.window_ms)
    is_short = False
    if is_day:
        found = warm_up(cells)
        if found is not None and found.has_rate:
            further = continuation(days_of(cells), found.warm_up_ms, np.random.default_rng(_SEED))
            cells = extended_cells(cells, further.stretches, CELL_LIMIT)
    else:
        turns = turns_of(sends.window_ms, int((due_ms - publish_ms).max()))
        is_short = turns == MAX_TURNS
        again = tuple(
            Stretch(from_ms=sends.from_ms, until_ms=sends.until_ms, shift_ms=turn * sends.window_ms)
            for turn in range(1, 1 if is_short else turns)
        )
        # As coarse as all turns together will have to be; otherwise millions of cells would exist for a moment.
        cells = extended_cells(cells.bounded(max(CELL_LIMIT // turns, LEAST_CELLS)), again, CELL_LIMIT)
    evaluation = evaluate(plan, cells, profile, growth=scale, keys=_keys(timers))
    return Expected(
        evaluation=evaluation,
        rooms=constraints.rooms(evaluation, profile),
        broken=constraints.broken_by(evaluation),
        is_short=is_short,
        says_no_day=not is_day,
    )


def turns_of(window_ms: int, longest_ms: int) -> int:
    """Return how many turns of a window bring all sends of the first turn due, plus one more turn."""
    return min(max(-(-longest_ms // window_ms) + 2, 2), MAX_TURNS)


def _keys(timers: Sequence[StoredTimer]) -> KeyShares:
    counts = Counter(timer.key for timer in timers if timer.key is not None)
    least = max(LEAST_SHARE * len(timers), LEAST_OF_KEY)
    return KeyShares(len(timers), tuple((key, count) for key, count in counts.most_common() if count >= least))


ASTRAY_SHARE = 0.01
"""Fraction of the timers in due topics: fewer that stay longer than the plan allows are left from an earlier plan."""


class Level(StrEnum):
    """Level of a finding."""

    FINE = "fine"
    ATTENTION = "attention"
    """A limit will be reached, or the topics deviate from the plan."""
    BROKEN = "broken"
    """A limit is broken now, by the broker's own counter."""

    @property
    def rank(self) -> int:
        return list(Level).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A single result of a check.

    Args:
        name: Short and stable name, for programs.
        level: Level of the finding; fine for information only.
    """

    name: str
    level: Level
    text: str


Found = tuple[str, Level, str]  # the name, the level and the text of a finding


def _findings(checked: Checked) -> tuple[Finding, ...]:
    """Return all findings, the worst first."""
    by = (_counted, _compared, _exceeded, _growing, _drifted, _on_the_way, _seen)
    found = [Finding(name=name, level=level, text=text) for find in by for name, level, text in find(checked)]
    return tuple(sorted(found, key=lambda finding: -finding.level.rank))


def _counted(checked: Checked) -> Iterator[Found]:
    worst = max(checked.parts, key=lambda part: part.counted, default=None)
    limit, constraints = checked.profile.gap_limit_ranges, checked.constraints
    if worst is None or worst.counted <= constraints.gap_fraction * limit:
        return
    then = "the next reload delivers handled messages again" if worst.counted > limit else "there is no room left"
    text = (
        f"{worst.name} has {worst.counted:,} gaps of {worst.subscription!r}, more than "
        f"{constraints.gap_fraction:.0%} of the {limit:,} that the broker keeps: {then}."
    )
    yield "gaps", Level.BROKEN, text


def _compared(checked: Checked) -> Iterator[Found]:
    for whole in checked.wholes:
        if whole.overdue:
            text = (
                f"at least {whole.overdue:,.0f} entries are due and {whole.subscription!r} has not acknowledged them: "
                "its consumers are away or behind."
            )
            yield "overdue", Level.ATTENTION, text
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
        yield "disagree", Level.ATTENTION, text


def _exceeded(checked: Checked) -> Iterator[Found]:
    expected, profile, constraints = checked.expected, checked.profile, checked.constraints
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
    yield "expected", Level.ATTENTION, text


def _growing(checked: Checked) -> Iterator[Found]:
    reached = checked.outlook.reached
    if reached is None:
        return
    growth = reached.growth
    since = f" over {growth.weeks:.3g} weeks" if growth.weeks else ""
    basis = f"at this growth ({growth.weekly:+.1%} a week{since}, by {reached.basis})"
    day = f"{datetime.fromtimestamp(reached.at_ms / 1_000, UTC):%Y-%m-%d}"
    level = Level.ATTENTION if checked.outlook.is_soon else Level.FINE
    text = f"{basis} the limit is reached on {day}: {reached.limit}."
    yield "growth", level, text


def _drifted(checked: Checked) -> Iterator[Found]:
    drift = checked.drift
    if drift is None:
        if checked.outlook.compares:
            return
        text = (
            "there is nothing to compare with yet: give the statistic that the plan was made from (--stat), or keep a "
            "log of checks (--log), from which later checks find drift and growth."
        )
        yield "alone", Level.FINE, text
        return
    then = drift.reference
    if drift.is_rate:
        text = (
            f"{drift.rate * then.per_second:,.3g} timers are sent a second, against {then.per_second:,.3g} by "
            f"{then.name} ({drift.rate - 1:+.0%}, +- {drift.rate_error:.0%})."
        )
        yield "rate", Level.ATTENTION, text
    if drift.is_delay:
        pairs = zip(SHARES, drift.quantiles_ms, then.quantiles_ms, strict=True)
        said = ", ".join(
            f"{share:.0%} within {span(now_ms)} (then {span(then_ms)})"
            for share, now_ms, then_ms in pairs
            if share in (0.5, 0.9, 0.99)
        )
        text = f"delays differ from those of {then.name}, for at least {drift.moved:.0%} of the timers: {said}."
        yield "delays", Level.ATTENTION, text


def _on_the_way(checked: Checked) -> Iterator[Found]:
    sample, plan = checked.sample, checked.plan
    if sample.missing:
        are = "are" if len(sample.missing) > 1 else "is"
        yield "missing", Level.ATTENTION, f"{_some(sample.missing)} {are} missing: timewheel topics ensure PLAN"
    for topic in sample.due:
        if topic.partitions not in (plan.partitions, 0):
            text = f"{topic.name} has {topic.partitions} partitions, and the plan says {plan.partitions}."
            yield "partitions", Level.ATTENTION, text
            break
    stuck = _stuck(sample)
    if stuck:
        text = (
            f"about {stuck:,.0f} timers wait in holding topics longer than {format_duration(plan.guard_ms)} past their "
            "release: no relay runs, or it is behind."
        )
        yield "stuck", Level.ATTENTION, text
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
        yield "astray", Level.ATTENTION, text


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


def _seen(checked: Checked) -> Iterator[Found]:
    sample, sends, expected = checked.sample, checked.sends, checked.expected
    if not sends.is_enough:
        text = (
            f"rate, delays and growth are not known: of the sends of the last {span(sends.window_ms)}, of which no "
            f"entry is removed yet, {len(sends.timers)} timers are in the sample, and {LEAST_TIMERS} are needed. Take "
            "more samples, or check at another time."
        )
        yield "few", Level.FINE, text
    if expected is not None and expected.is_short:
        text = (
            f"the window of {span(sends.window_ms)} is too short against the longest delays to say what the topics "
            "come to hold."
        )
        yield "short", Level.FINE, text
    elif expected is not None and expected.says_no_day:
        text = (
            f"the window of {span(sends.window_ms)} is shorter than a day: it is taken to go on like this, and hours "
            "that are busier are not in it."
        )
        yield "no_day", Level.FINE, text
    unread = sample.in_due.unread + sample.in_holding.unread
    if unread:
        yield "unread", Level.FINE, f"{unread:,} chosen entries were gone, or could not be read."


def _some(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


HORIZON_MS = 30 * DAY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Result of a check.

    Args:
        sample: Entries and counters read from the broker.
        profile: The broker.
        parts: Predicted and counted gaps of each subscription on each partition of the due topics.
        wholes: The same of each subscription, all partitions together.
        sends: Present rate and delays.
        expected: The plan evaluated on these sends; None if too few were sampled.
        drift: Drift since the plan was made; None without a reference.
        outlook: Projection of growth.
        findings: Findings, the worst first.
    """

    sample: PlanSample
    profile: BrokerProfile
    constraints: Constraints
    parts: tuple[GapComparison, ...]
    wholes: tuple[GapComparison, ...]
    sends: Sends
    expected: Expected | None
    drift: Drift | None
    outlook: Outlook
    findings: tuple[Finding, ...] = field(default=())

    @property
    def plan(self) -> Plan:
        return self.sample.plan

    @property
    def level(self) -> Level:
        return max((finding.level for finding in self.findings), key=lambda level: level.rank, default=Level.FINE)

    @property
    def worst(self) -> GapComparison:
        """The subscription and partition with the most gaps by the broker's counter."""
        return max(self.parts, key=lambda part: part.counted)

    @property
    def fullest(self) -> GapComparison:
        """The subscription with the most gaps, all partitions together."""
        return max(self.wholes, key=lambda whole: whole.counted)

    @property
    def needs_change(self) -> bool:
        """True if a limit is broken now, will be by the present sends, or by growth within the horizon."""
        names = {finding.name for finding in self.findings if finding.level is not Level.FINE}
        return bool(names & {"gaps", "expected", "growth"})

    def line(self) -> CheckLine:
        """Return the check as a line of the log."""
        seen = self.expected is not None
        return CheckLine(
            at_ms=self.sample.at_ms,
            due_topic=self.plan.due_topic,
            revision=self.plan.revision,
            per_second=self.sends.per_second if seen else None,
            delays_ms=self.sends.quantiles_ms() if seen else (),
            predicted=self.fullest.predicted,
            counted=self.fullest.counted,
            worst=self.worst.counted,
            peak=_peak(self.expected),
            gap_limit=self.profile.gap_limit_ranges,
            pending=self.fullest.pending,
            level=self.level.value,
        )


def check(
    admin: AdminClient,
    plan: Plan,
    profile: BrokerProfile,
    clock: Clock | None = None,
    *,
    statistic: Statistic | None = None,
    topic: str | None = None,
    earlier: Sequence[CheckLine] = (),
    constraints: Constraints | None = None,
    horizon_ms: int = HORIZON_MS,
    samples: int = DEFAULT_SAMPLES,
    seed: int = 0,
    on_progress: ProgressCallback = no_report,
) -> Checked:
    """Check a live plan without consuming or changing anything.

    Args:
        admin: Client whose role may read the topics' stats and peek at their messages.
        plan: Plan of the topics, with any scheme. Neither a relay nor a consumer of timewheel needs to run there.
        profile: The broker; `timewheel.inspect.profile.profile_of` reads the profile of a live broker.
        clock: Clock for the time of the check; defaults to the system clock.
        statistic: Statistic that the plan was made from.
        topic: Topic of the statistic; defaults to the plan's due topic, or to the statistic's only topic.
        earlier: Checks from a log (`read_checks`).
        constraints: Constraints on the plan; defaults to those of the planner.
        horizon_ms: Time ahead within which reaching a limit matters.
        samples: Number of entries to sample from the due topics, and again from the holding topics.
        seed: Seed of the sample.
        on_progress: Progress callback.

    Raises:
        NothingToSample: The plan has no due topic, or all its topics are empty.
        NotOfThisPlan: A due topic lacks the plan's subscriptions, so no counter of their gaps exists.
        NoSuchTopic: The statistic does not contain the topic.
        SeveralTopics: The statistic has several topics, and none of them is the plan's due topic.
        AdminError: A call failed; `AdminDenied` if the role lacks permission.
    """
    cells = None if statistic is None else _cells(statistic, plan, topic)
    sample = sample_plan(admin, plan, clock or SystemClock(), samples=samples, seed=seed, on_progress=on_progress)
    return evaluated(sample, profile, constraints or Constraints(), cells=cells, earlier=earlier, horizon_ms=horizon_ms)


def evaluated(
    sample: PlanSample,
    profile: BrokerProfile,
    constraints: Constraints,
    *,
    cells: Cells | None = None,
    earlier: Sequence[CheckLine] = (),
    horizon_ms: int = HORIZON_MS,
) -> Checked:
    """Evaluate a sample: every step of a check except reading from the broker."""
    parts = comparisons(sample, profile.tick_ms)
    wholes = together(sample.plan.due_topic, parts)
    sends = sends_of(sample)
    seen = expected(sends, sample.plan, profile, constraints) if sends.is_enough else None
    reference = None if seen is None else _reference(sends, sample.plan, cells, earlier)
    changed = None if reference is None else drift(sends, reference)
    checked = Checked(
        sample=sample,
        profile=profile,
        constraints=constraints,
        parts=parts,
        wholes=wholes,
        sends=sends,
        expected=seen,
        drift=changed,
        outlook=_outlook_from(sample, sends, seen, cells, earlier, horizon_ms),
    )
    return replace(checked, findings=_findings(checked))


def _cells(statistic: Statistic, plan: Plan, topic: str | None) -> Cells:
    topics = list(statistic.cells)
    if topic is None and plan.due_topic not in topics and len(topics) > 1:
        raise SeveralTopics(topics)
    wanted = topic or (plan.due_topic if plan.due_topic in topics else topics[0])
    if wanted not in topics:
        raise NoSuchTopic(wanted, topics)
    return statistic.cells[wanted]


def _reference(sends: Sends, plan: Plan, cells: Cells | None, earlier: Sequence[CheckLine]) -> Reference | None:
    """Return the statistic, or else the first check of this revision of the plan."""
    if cells is not None:
        return reference_of(cells, "the statistic", sends.from_ms, sends.until_ms)
    for line in earlier:
        if line.revision == plan.revision and line.per_second and line.delays_ms:
            day = f"{datetime.fromtimestamp(line.at_ms / 1_000, UTC):%Y-%m-%d}"
            return Reference(name=f"the check of {day}", per_second=line.per_second, quantiles_ms=line.delays_ms)
    return None


def _outlook_from(
    sample: PlanSample,
    sends: Sends,
    seen: Expected | None,
    cells: Cells | None,
    earlier: Sequence[CheckLine],
    horizon_ms: int,
) -> Outlook:
    volume: Growth | None = None
    gaps: Growth | None = None
    if seen is not None:
        rates = [(line.at_ms, line.per_second) for line in earlier if line.per_second is not None]
        volume = growth_of([*rates, (sample.at_ms, sends.per_second)])
        # A change of the plan changes its gaps, whether or not the sends change.
        revision = sample.plan.revision
        peaks = [(line.at_ms, line.peak) for line in earlier if line.peak is not None and line.revision == revision]
        gaps = growth_of([*peaks, (sample.at_ms, _peak(seen) or 0.0)])
    trend = None if cells is None else trend_of(cells)
    rooms = () if seen is None or seen.is_short else seen.rooms
    return outlook_of(rooms, volume, gaps, trend, sample.at_ms, horizon_ms)


def _peak(seen: Expected | None) -> float | None:
    """Return the gaps of the fullest partition at their peak, if the sends show them."""
    return None if seen is None or seen.is_short else seen.evaluation.peak_gaps_per_partition

"""A check of a live plan, from its topics to the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from timewheel.broker.admin.client import AdminClient
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.clock import Clock, SystemClock
from timewheel.core.durations import DAY_MS
from timewheel.core.plan import Plan
from timewheel.inspect.plan_sample import PlanSample, sample_plan
from timewheel.inspect.reader import ProgressCallback, no_report
from timewheel.inspect.sample import DEFAULT_SAMPLES
from timewheel.spark_planner.choice.constraints import Constraints
from timewheel.spark_planner.errors import NoSuchTopic, SeveralTopics
from timewheel.spark_planner.extrapolation import trend_of
from timewheel.spark_planner.summary.cells import Cells
from timewheel.spark_planner.summary.statistic import Statistic
from timewheel.watch.comparison import GapComparison, comparisons, together
from timewheel.watch.expected import Expected, expected
from timewheel.watch.log import CheckLine
from timewheel.watch.outlook import Growth, Outlook, growth_of, outlook_of
from timewheel.watch.sends import Drift, Reference, Sends, drift, reference_of, sends_of
from timewheel.watch.verdict import Finding, Level, findings_of, level_of

HORIZON_MS = 30 * DAY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Result of a check.

    Args:
        sample: Entries and counters read from the broker.
        profile: The broker.
        constraints: Constraints on the plan.
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
        """The plan that was checked."""
        return self.sample.plan

    @property
    def level(self) -> Level:
        """Level of the worst finding."""
        return level_of(self.findings)

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
    return judged(sample, profile, constraints or Constraints(), cells=cells, earlier=earlier, horizon_ms=horizon_ms)


def judged(
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
    outlook = _outlook(sample, sends, seen, cells, earlier, horizon_ms)
    return Checked(
        sample=sample,
        profile=profile,
        constraints=constraints,
        parts=parts,
        wholes=wholes,
        sends=sends,
        expected=seen,
        drift=changed,
        outlook=outlook,
        findings=findings_of(sample, parts, wholes, sends, seen, changed, outlook, profile, constraints),
    )


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


def _outlook(
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

"""Fleet: all topics of a history. Native gaps are counted for each; topics beyond a limit get their own plan.

The history is read in a pass, its sends are sorted in another, and a third pass counts the gaps of every topic under
native delays on a single partition. A topic within its limits stays on native delays, since no other plan is cheaper.
Only the other topics are planned for: side by side, so that a pass counts the candidates of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.errors import PlanError
from timewheel.core.plan import Native, Plan

from .choice.constraints import GAP_FRACTION, Constraints, max_countable
from .exact.ranges import Grid, Peak
from .exact.replay import Asked, count
from .extrapolation import warm_up
from .job import History, Passes, Planned, planning, traffic_of
from .pricing.evaluate import Evaluation, price
from .pricing.flow import QUICK
from .pricing.simulation import NATIVE, simulation_of
from .session import Progress, ProgressCallback, no_report, told

FLEET_TOPICS = 5_000  # most topics of a history
FLEET_CELLS = 2_000_000  # most cells of all topics together: 180 MB on the driver
MAX_PLANNED = 20  # topics that get their own plan; each takes some seconds
MOMENTS = 1_024  # moments at which gaps are counted. Between them there may be more gaps, with a known upper bound.
ROUGH_CELLS = 1_000  # cells for all figures of a topic except gaps: some milliseconds each
SURGE = 2.0  # greatest assumed ratio of a continuing topic's peak to its mean, as far as a short history shows


class NativeFit(StrEnum):
    """Suitability of native delays on a single partition for a topic."""

    FINE = "fine"  # the gaps were counted; gaps and all other figures are within their limits
    SHORT = "short"  # gaps are within the limit, but the history is shorter than its delays, and later gaps may not be
    OVER = "over"  # the gaps exceed the limit, or may exceed it between two counted moments
    OTHER = "other"  # the gaps are within the limit, but another limit is broken


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeGaps:
    """A topic under native delays on a single partition."""

    topic: str
    timers: int
    peak: Peak  # peak of its gaps, counted
    evaluation: Evaluation  # all other figures, estimated roughly, at the planned volume
    native_fit: NativeFit  # the verdict on native delays

    @property
    def gap_fraction(self) -> float:
        """The gaps as a fraction of the broker's limit; above 1 an unload loses acknowledgements."""
        return self.peak.gap_count / max(self.evaluation.gap_limit_ranges, 1)

    @property
    def timers_per_day(self) -> float:
        """Mean volume over the history itself, see `Evaluation.timers_per_day`."""
        return self.evaluation.timers_per_day * self.timers / self.evaluation.timers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fleet:
    """All topics of a history.

    Args:
        constraints: The user's limits and prices.
        growth: Planned volume, as a multiple of the history's volume.
        topics: Topics under native delays, the topic nearest to its limit (or furthest beyond) first.
        planned: Topics with their own plan, by topic.
        waiting: Topics that matter too, but exceed the number of plans to make, in the same order.
        unfit: Topics with a name that no plan can have, with the reason.
    """

    history: History
    profile: BrokerProfile
    constraints: Constraints
    growth: float
    topics: tuple[NativeGaps, ...]
    planned: Mapping[str, Planned]
    waiting: tuple[str, ...]
    unfit: Mapping[str, str]

    @property
    def keeps_limits(self) -> bool:
        """True if every topic can have a plan, and is fine or has a plan that keeps its limits."""
        return not self.waiting and not self.unfit and all(planned.keeps_limits for planned in self.planned.values())

    def plan_of(self, topic: str, base_of: Callable[[str], Plan]) -> Plan | None:
        """Return the plan for a topic; None: the topic has no plan yet, or no plan can name it."""
        if topic in self.planned:
            return self.planned[topic].plan
        return (
            None
            if topic in self.waiting or topic in self.unfit
            else replace(base_of(topic), scheme=Native(), intake=False).with_partitions(1)
        )


def plan_all(
    history: History,
    base_of: Callable[[str], Plan],
    profile: BrokerProfile,
    constraints: Constraints | None = None,
    *,
    most: int = MAX_PLANNED,
    growth: float = 1.0,
    as_is: bool = False,
    on_progress: ProgressCallback = no_report,
) -> Fleet:
    """Find the topics of a history that native delays do not suit, and plan for them.

    Args:
        history: Result of `survey`, with ``topic_limit=FLEET_TOPICS`` and ``cell_limit=FLEET_CELLS``.
        base_of: Returns names, subscriptions and guard for each topic; see `candidates.candidate_plans`.
        profile: The broker of all topics.
        constraints: Limits and prices for each topic; None: the defaults.
        most: Topics that get their own plan, those furthest beyond their limit first.
        growth: Volume to plan for, as a multiple of the history's volume.
        as_is: See `traffic_of`.
        on_progress: Receives the progress.
    """
    limits = constraints or Constraints()
    spark = history.rows.sparkSession
    with told(spark, "putting the history in order", on_progress, one_job=False):
        cached = history.cached
    first_ms = min(piece.first_ms for piece in cached.pieces)
    grid = Grid.regular(first_ms, max(piece.last_due_ms for piece in cached.pieces), MOMENTS)
    with told(spark, "counting native gaps of every topic", on_progress, one_job=False):
        (found,) = count(cached, [Asked(plan=NATIVE, grid=grid, by_topic=True)])
    peaks = found.gaps.topics
    allowed = max_countable(limits.allowed_gaps(profile.gap_limit_ranges), growth)
    on_progress(Progress(stage="looking at the topics", fraction=None, seconds_left=None))
    topics = []
    for topic, cells in history.statistic.cells.items():
        simulation = simulation_of(NATIVE, cells.bounded(ROUGH_CELLS), growth, resolution=QUICK)
        evaluation, filling = price(simulation, profile, 1), None if as_is else warm_up(cells)
        fit = NativeFit.FINE
        if peaks[topic].gap_count_limit > allowed:
            fit = NativeFit.OVER
        elif set(limits.broken_by(evaluation)) - {GAP_FRACTION}:
            fit = NativeFit.OTHER
        # There are never more ranges than waiting timers: each range is behind a waiting timer.
        elif filling is not None and filling.has_rate and SURGE * filling.pending * growth > allowed:
            fit = NativeFit.SHORT
        topics.append(
            NativeGaps(topic=topic, timers=cells.timers, peak=peaks[topic], evaluation=evaluation, native_fit=fit)
        )
    topics.sort(key=lambda one: (one.native_fit == NativeFit.FINE, -one.gap_fraction, one.topic))
    unfit = {}  # a history's topics may be any text
    for one in topics:
        try:
            base_of(one.topic)
        except PlanError as error:
            unfit[one.topic] = str(error)
    matter = [one.topic for one in topics if one.native_fit != NativeFit.FINE and one.topic not in unfit]
    planned: dict[str, Planned] = {}
    if matter[:most]:
        traffics = [traffic_of(history, topic, as_is=as_is) for topic in matter[:most]]
        with Passes(traffics, profile, on_progress) as passes:
            planned = passes.made(
                {
                    topic: planning(replays, passes, base_of(topic), limits, growth=growth)
                    for topic, replays in passes.topics.items()
                }
            )
    return Fleet(
        history=history,
        profile=profile,
        constraints=limits,
        growth=growth,
        topics=tuple(topics),
        planned={topic: planned[topic] for topic in matter[:most]},
        waiting=tuple(matter[most:]),
        unfit=unfit,
    )

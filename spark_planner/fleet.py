"""Fleet: all topics of a history. Native gaps are counted for each; topics beyond a limit get their own plan.

The history is read in a pass, its sends are sorted in another, and further passes over these count the gaps of every
topic under native delays on a single partition, and estimate all other figures. A topic within its limits stays on
native delays, since no other plan is cheaper. Only the other topics are planned for: a few side by side, so that a pass
counts the candidates of all of them.

Whatever grows with the number of sends stays on the workers: a topic brings its coarsest cells, its peak and a row of
figures to the driver. Only topics that are planned for bring finer cells.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.errors import PlanError
from timewheel.core.plan import Native, Plan

from .choice.constraints import GAP_FRACTION, Allowance, Constraints
from .exact.ranges import Grid, Peak
from .exact.replay import Asked, count
from .exact.sends import batch_of, few_at_once, rows_of, sends_of
from .extrapolation import WarmUp, warm_up
from .history.columns import TOPIC, schema_of
from .job import History, Passes, Planned, planning, traffic_of
from .pricing.evaluate import Evaluation, price
from .pricing.flow import QUICK
from .pricing.simulation import NATIVE, simulation_of
from .session import ProgressCallback, no_report, told
from .summary.cells import Cells

FLEET_TOPICS = 5_000
"""Most topics of a history. A topic takes 10 KB of the driver's memory, and has a piece in each 2 million rows: of more
topics these would be mostly overhead.
"""
MAX_PLANNED = 20  # topics that get their own plan; each takes some seconds
SIDE_BY_SIDE = 4  # topics whose plans are counted in one pass: a plan that is counted finely takes 3 MB of the driver
MOMENTS = 1_024  # moments at which gaps are counted. Between them there may be more gaps, with a known upper bound.
ROUGH_CELLS = 1_000  # cells for all figures of a topic except gaps: some milliseconds each, on the workers
CLOSE_CELLS = 20_000  # most cells of a topic that is planned for: 250 MB while its candidates are priced
SURGE = 2.0  # greatest assumed ratio of a continuing topic's peak to its mean, as far as a short history shows


class NativeFit(StrEnum):
    """Suitability of native delays on a single partition for a topic."""

    FINE = "fine"  # the gaps were counted; gaps and all other figures are within their limits
    SHORT = "short"  # gaps are within the limit, but the history is shorter than its delays, and later gaps may not be
    OVER = "over"  # the gaps exceed the limit, or may exceed it between two counted moments
    OTHER = "other"  # the gaps are within the limit, but another limit is broken, or a bitmap may be too small


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeGaps:
    """A topic under native delays on a single partition."""

    topic: str
    timers: int
    peak: Peak  # peak of its gaps, counted
    # all other figures, estimated roughly, at the planned volume; without its curve of gaps
    evaluation: Evaluation
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
        history: Result of `survey`, with ``topic_limit=FLEET_TOPICS``.
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
    allowance = Allowance(constraints=limits, ranges=profile.gap_limit_ranges, growth=growth)
    # Of a broker that writes bitmaps a peak only shows that all acknowledgements are kept if it is written as ranges.
    few = min(profile.metadata_store_limit_ranges, profile.gap_limit_ranges)
    kept = (replace(allowance, ranges=few) if profile.ack_format == "bitmap" else allowance).gaps(NATIVE)
    allowed = allowance.gaps(NATIVE)
    with told(spark, "looking at the topics", on_progress, one_job=False):
        rough = evaluated(history, profile, growth)
    topics = []
    for topic, (evaluation, filling) in rough.items():
        fit = NativeFit.FINE
        if peaks[topic].gap_count_limit > allowed:
            fit = NativeFit.OVER
        elif peaks[topic].gap_count_limit > kept or set(limits.broken_by(evaluation)) - {GAP_FRACTION}:
            fit = NativeFit.OTHER
        # There are never more ranges than waiting timers: each range is behind a waiting timer.
        elif not as_is and filling is not None and filling.has_rate and SURGE * filling.pending * growth > allowed:
            fit = NativeFit.SHORT
        timers = history.cells(topic).timers
        topics.append(NativeGaps(topic=topic, timers=timers, peak=peaks[topic], evaluation=evaluation, native_fit=fit))
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
        with told(spark, "looking closer at some topics", on_progress, one_job=False):
            own = history.of(matter[:most], CLOSE_CELLS)
        traffics = [traffic_of(own, topic, as_is=as_is, cell_limit=CLOSE_CELLS) for topic in matter[:most]]
        try:
            for first in range(0, len(traffics), SIDE_BY_SIDE):
                with Passes(traffics[first : first + SIDE_BY_SIDE], profile, on_progress) as passes:
                    planned |= passes.made(
                        {
                            topic: planning(replays, passes, base_of(topic), limits, growth=growth)
                            for topic, replays in passes.topics.items()
                        }
                    )
        finally:
            own.cached.forget()
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


FACTS = "facts"
_SCHEMA = schema_of("topic:text facts:bytes")
_ARROW = to_arrow_schema(_SCHEMA)


def evaluated(history: History, profile: BrokerProfile, growth: float) -> dict[str, tuple[Evaluation, WarmUp | None]]:
    """Evaluate native delays for each topic, and its warm-up, from `ROUGH_CELLS` cells, on the workers."""
    none = np.zeros(0)
    size_bytes = {topic: int(cells.size_bytes.sum()) for topic, cells in history.statistic.cells.items()}

    def cells_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for row in (row for batch in batches for row in rows_of(batch)):
            sends = sends_of(row)
            cells = Cells.of_timers(sends.publish_ms, sends.due_ms).bounded(ROUGH_CELLS)
            yield batch_of([{TOPIC: row[TOPIC], FACTS: pickle.dumps(cells)}], _ARROW)

    def facts_of(table: pa.Table) -> pa.Table:
        topic = table[TOPIC][0].as_py()
        merged = Cells.merged(pickle.loads(part) for part in table[FACTS].to_pylist())  # noqa: S301 - of our tasks
        cells = merged.bounded(ROUGH_CELLS).with_sizes(size_bytes[topic])
        evaluation = price(simulation_of(NATIVE, cells, growth, resolution=QUICK), profile, 1)
        facts = replace(evaluation, gaps_at_ms=none, gaps=none), warm_up(cells)
        return pa.Table.from_batches([batch_of([{TOPIC: topic, FACTS: pickle.dumps(facts)}], _ARROW)])

    cached = history.cached
    with few_at_once(cached.frame.sparkSession):
        found = cached.frame.mapInArrow(cells_of, _SCHEMA).groupBy(TOPIC).applyInArrow(facts_of, _SCHEMA).toArrow()
    return {
        topic: pickle.loads(facts)  # noqa: S301 - of our tasks
        for topic, facts in zip(found[TOPIC].to_pylist(), found[FACTS].to_pylist(), strict=True)
    }

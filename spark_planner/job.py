"""The whole job: surveys a history, replays it exactly through plans, decides by the counts, and explains a plan beyond
the limit.

Every function takes and returns values, so that a notebook can stop between any two of them. A history that is shorter
than its delays shows the warm-up of a topic, not its steady state: its traffic is extrapolated by repeating its days.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import islice
from typing import Self, TypeVar

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's world calls it

from timewheel.core.broker_profile import AckFormat, BrokerProfile
from timewheel.core.plan import MAX_PARTITIONS, Native, Plan
from timewheel.core.plurals import counted
from timewheel.core.steps import far_ms, steps

from .choice.choose import (
    Answer,
    Assessed,
    Counts,
    Decided,
    Decision,
    Priced,
    Wanted,
    at_once_for,
    coarse_cells,
    decide,
    run,
)
from .choice.constraints import COUNTED_LIMITS, TWICE, Allowance, Constraints, at_growth, compared_above, times_until
from .choice.reasons import describe
from .errors import EmptyHistory, NoSuchTopic, NoValidRows
from .exact.ranges import Grid
from .exact.replay import Asked, Replay, count, count_exactly, grid_for
from .exact.sends import CachedSends, cells_of, daily_gaps, extended, in_order, read
from .exact.unload import Redelivery
from .extrapolation import Continued, continued_from
from .history.columns import TOPIC
from .history.keys import KeyShares
from .history.read import ColumnMapping, assessed, fields_of, sound_rows
from .pricing.evaluate import Evaluation, evaluate
from .pricing.simulation import NATIVE
from .session import ProgressCallback, no_report, told
from .summary.cells import CELL_LIMIT, COARSEST_CELLS, Cells
from .summary.statistic import TOPIC_LIMIT, Statistic
from .summary.survey import Survey


@dataclass(frozen=True, kw_only=True, eq=False)
class History:
    """A history that was surveyed once.

    Args:
        rows: Every row with the reason against it, `columns.ASSESSED_SCHEMA`.
        statistic: The statistic, from which a plan is made.
        has_ids: True if its timers have ids, so that of copies only the first is used.
        stored: The sends of the sound rows as read, in Spark's cache.
        cached: The sends in order (released by `CachedSends.forget`); put in order on first use.
    """

    source: str
    rows: DataFrame
    statistic: Statistic
    stored: DataFrame
    has_ids: bool = False

    @cached_property
    def cached(self) -> CachedSends:
        return in_order(self.stored, {topic: cells.timers for topic, cells in self.statistic.cells.items()})

    def topic(self, wanted: str | None = None) -> str:
        """Return the topic to plan for, see `Statistic.topic`."""
        return self.statistic.topic(wanted)

    def cells(self, topic: str) -> Cells:
        return self.statistic.cells[topic]

    def of(self, topics: Sequence[str], cell_limit: int) -> History:
        """Return the history with finer cells of some topics, at most ``cell_limit`` each, and the sends of these
        alone, which the caller has to forget; runs a job over `cached`.
        """
        own = self.cached.of(*topics)
        own = replace(own, stored=own.frame.persist())
        found = replace(self, statistic=self._finer(own, cell_limit))
        vars(found)["cached"] = own
        return found

    def _finer(self, cached: CachedSends, cell_limit: int) -> Statistic:
        """Return the statistic with finer cells of the topics of these sends, at most ``cell_limit`` each."""
        finer = {
            topic: cells.with_sizes(int(self.cells(topic).size_bytes.sum()))
            for topic, cells in cells_of(cached, cell_limit).items()
        }
        return replace(self.statistic, cells={**self.statistic.cells, **finer})

    def survey(self, on_progress: ProgressCallback = no_report) -> Survey:
        """Build the summary of the history that needs no rows; runs a job over `cached`."""
        spark = self.rows.sparkSession
        with told(spark, "putting the history in order", on_progress, one_job=False):
            cached = self.cached
        with told(spark, "counting native gaps by day", on_progress, one_job=False):
            gaps, statistic = daily_gaps(cached), self.statistic
        if statistic.is_coarse:
            with told(spark, "looking closer at the topics", on_progress, one_job=False):
                statistic = self._finer(cached, max(CELL_LIMIT // len(statistic.cells), COARSEST_CELLS))
        return Survey(statistic=statistic, gaps=gaps, keys=cached.keys)


def survey(
    raw: DataFrame,
    mapping: ColumnMapping | None = None,
    *,
    topic: str | None = None,
    source: str = "given",
    cell_limit: int = CELL_LIMIT,
    topic_limit: int = TOPIC_LIMIT,
    on_progress: ProgressCallback = no_report,
) -> History:
    """Survey a history: a single pass, which reads every row once.

    Args:
        raw: Result of `read.read_history`, or any DataFrame.
        mapping: The history's columns; None: the usual names.
        topic: Leave all other topics out; None: take all.
        source: The history's name for errors and reports.
        cell_limit: The most cells of all topics together, at least `cells.COARSEST_CELLS` for each possible topic.
        topic_limit: The most topics. If more than `sends.FEW_TOPICS` are possible, the cells are the coarsest, and
            `History.of` makes finer ones.
        on_progress: Receives the progress.

    Raises:
        NoSuchTopic: The history does not have the topic.
        EmptyHistory: The history has no rows.
        NoValidRows: All rows are in quarantine.
        WrongTimeUnit: Nearly all rows are in quarantine because of the unit of their times.
        TooManyTopics: There are more topics than the limit.
        HistoryUnreadable: A file is damaged or was removed.
    """
    wanted = mapping or ColumnMapping()
    every = rows = raw.transform(assessed(wanted))
    if topic is not None:
        # A row without a topic is in quarantine, and is counted there.
        rows = every.where((F.col(TOPIC) == topic) | F.col(TOPIC).isNull())
    try:
        with told(raw.sparkSession, "reading the history", on_progress, one_job=True):
            statistic, stored = read(rows, cell_limit=cell_limit, topic_limit=topic_limit, source=source)
    except (EmptyHistory, NoValidRows):
        others = sound_rows(every).select(TOPIC).distinct().limit(TOPIC_LIMIT).collect() if topic is not None else []
        if topic is None or not others:
            raise
        raise NoSuchTopic(topic, sorted(row[0] for row in others)) from None
    has_ids = wanted.resolved(list(fields_of(raw.schema)))["timer_id"] is not None
    return History(source=source, rows=rows, statistic=statistic, stored=stored, has_ids=has_ids)


@dataclass(frozen=True, kw_only=True, eq=False)
class Traffic(Continued):
    """The timers that a plan is made for."""

    history: History
    topic: str


def traffic_of(history: History, topic: str, *, as_is: bool = False, cell_limit: int = CELL_LIMIT) -> Traffic:
    """Return the traffic that a plan for a topic is made for; runs no job.

    Args:
        history: Result of `survey`.
        topic: Topic of the history.
        as_is: Take the history as complete, regardless of its length.
        cell_limit: The most cells of a continued history.
    """
    found = continued_from(history.cells(topic), as_is=as_is, cell_limit=cell_limit)
    own = {field.name: getattr(found, field.name) for field in fields(found)}
    return Traffic(history=history, topic=topic, **own)


MOSTLY = 0.99
MAX_RANGES = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindrance:
    """The reason that the recommended plan, like every other plan, leaves more gaps than allowed."""

    allowed: int  # the most gaps of a partition that the count may find
    # timers due within this time of their send wait in the due topic under every plan; 0: every plan leaves all timers
    # there
    never_held_ms: int
    never_held_timers: int  # number of such timers in the history
    never_held_gaps: int  # the most gaps that these timers alone leave in a partition, counted
    # partitions of the due topic that would be enough, counted; None: no tried number is enough, or the planner may
    # choose the number anyway
    partitions: int | None
    lasts_ms: int  # longest time for which the plan leaves more gaps than allowed
    mostly_gaps: int  # the most gaps during `MOSTLY` of the time from the first send to the last due time
    gap_limit_ranges: int  # gap limit of a broker that would be enough
    # fraction of the limit that the recommended plan uses; None: the broker does not store its gaps
    gap_fraction: float | None


def never_held_ms(plan: Plan) -> int:
    """Return the longest delay below which a plan never holds a timer back from its due topic; 0: it holds no timer."""
    if isinstance(plan.scheme, Native):
        return 0
    if plan.intake:
        return far_ms(plan)
    # A slot accepts timers due at least its headstart after the slot's release.
    return min((step.min_remaining_ms or step.headstart_ms for step in steps(plan)[:-1]), default=0)


def least_limit(gaps: int, allowed_of: Callable[[int], int]) -> int:
    """Return the fewest ranges that a broker must store so that a number of gaps is allowed."""
    return bisect_left(range(MAX_RANGES), gaps, key=allowed_of)


T = TypeVar("T")


class Passes:
    """Counts of some topics of a history: those of a round of all topics in one pass, each made at most once. On exit
    the cache of continued sends is released; the history releases that of its own sends.
    """

    def __init__(
        self, traffics: Iterable[Traffic], profile: BrokerProfile, on_progress: ProgressCallback = no_report
    ) -> None:
        self.topics = {traffic.topic: Replays(self, traffic) for traffic in traffics}
        self.profile = profile
        self._report = on_progress
        self._history = next(iter(self.topics.values())).traffic.history
        self._rounds = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if "continued" in vars(self) and self.continued is not self._history.cached:
            self.continued.forget()

    def told(self, stage: str) -> AbstractContextManager[None]:
        return told(self._history.rows.sparkSession, stage, self._report, one_job=False)

    @cached_property
    def own(self) -> CachedSends:
        """The sends of the history."""
        if "cached" not in vars(self._history):
            with self.told("putting the history in order"):
                _ = self._history.cached
        return self._history.cached

    @cached_property
    def continued(self) -> CachedSends:
        """The sends of the topics' traffics."""
        own, traffics = self.own, [replays.traffic for replays in self.topics.values()]
        stretches = {one.topic: one.continuation.stretches if one.continuation else () for one in traffics}
        if not any(stretches.values()):
            return own
        days = max(map(len, stretches.values()))
        with self.told(f"continuing the history by {days} days"):
            return extended(own, stretches)

    def count(self, wanted: Mapping[str, Wanted]) -> None:
        """Count plans of some topics in one pass, and in further passes on finer grids."""
        asked = {topic: self.topics[topic].missing(one) for topic, one in wanted.items()}
        every = [one for of_topic in asked.values() for one in of_topic]
        if not every:
            return
        stage, plans = next(iter(wanted.values())).stage, len({(one.topic, one.plan) for one in every})
        self._rounds += not stage
        with self.told(stage or f"counting {counted(plans, 'candidate')}, round {self._rounds}"):
            found = iter(count_exactly(self.continued, every))
        for topic, of_topic in asked.items():
            self.topics[topic].store(of_topic, list(islice(found, len(of_topic))))

    def made(self, decisions: Mapping[str, Decision[T]]) -> dict[str, T]:
        """Run the decisions of some topics to their ends, side by side."""

        def gaps_of(wanted: Mapping[str, Wanted]) -> Mapping[str, Sequence[int]]:
            self.count(wanted)
            return {topic: self.topics[topic].gaps(one) for topic, one in wanted.items()}

        return run(decisions, gaps_of)


class Replays:
    """The replays of a topic so far."""

    def __init__(self, passes: Passes, traffic: Traffic) -> None:
        self.traffic = traffic
        self._passes = passes
        self._quick: dict[Plan, Replay] = {}
        self._full: dict[Plan, Replay] = {}
        self._sent_for_less: dict[int, tuple[int, int]] = {}

    def missing(self, wanted: Wanted) -> list[Asked]:
        """Return the counts that are not known yet."""
        quick = [
            self._asked(plan, limit=limit) for plan, limit in wanted.quick.items() if not self._is_decided(plan, limit)
        ]
        return [*quick, *self._fully(self._passes.continued, (plan for plan in wanted.full if plan not in self._full))]

    def store(self, asked: Sequence[Asked], found: Sequence[Replay]) -> None:
        for one, replay in zip(asked, found, strict=True):
            if one.profile is None:
                self._quick[one.plan] = replay
            else:
                # Sends in turns and at random.
                self._full[one.plan] = self._full[one.plan].or_worse(replay) if one.plan in self._full else replay

    def gaps(self, wanted: Wanted) -> list[int]:
        """Return the figures that decide about each plan, see `Wanted`, first those of ``quick``."""
        quick = [self._quick[plan].peak_per_partition.gap_count for plan in wanted.quick]
        full, ranges = [], self._passes.profile.gap_limit_ranges
        for plan, allowed in wanted.full.items():
            one = self._full[plan]
            full.append(max(one.peak_per_partition.gap_count, compared_above(one.compared, allowed, ranges)))
        return [*quick, *full]

    def keys(self) -> KeyShares:
        """Return the heaviest keys of the topic."""
        return self._passes.own.keys[self.traffic.topic]

    def count(self, plans: Mapping[Plan, int]) -> list[int]:
        """Count plans quickly, see `Wanted.quick`."""
        self._passes.count({self.traffic.topic: Wanted(quick=plans)})
        return self.gaps(Wanted(quick=plans))

    def confirm(self, plans: Mapping[Plan, int], stage: str = "") -> list[int]:
        """Count plans in full: exactly, with ledgers and redelivery; see `Wanted.full`."""
        self._passes.count({self.traffic.topic: Wanted(full=plans, stage=stage)})
        return self.gaps(Wanted(full=plans))

    def above_ms(self, plan: Plan, gap_count: int) -> int:
        """Return the longest time for which a partition has more gaps under a counted plan, to a moment's span."""
        return self.known(plan).gaps.above_ms(gap_count)

    def lasting(self, plan: Plan, gap_count: int, share: float) -> tuple[int, int]:
        """Return (longest time with more gaps, the most gaps of a share of the time), both of any partition."""
        known = self.known(plan)
        gaps = known.gaps
        may, does = gaps.above(gap_count)
        finer = gaps.grid.refined(may & ~does)
        lasts_ms = gaps.above_ms(gap_count)
        if finer is not None and finer.spans.any():
            asked = replace(self._asked(plan), grid=finer, at_random=known.at_random)
            with self._passes.told("timing the peak"):
                (found,) = count(self._passes.continued, [asked])
            steps_ms = np.diff(gaps.grid.points_ms, prepend=gaps.grid.points_ms[0])
            lasts_ms = int(steps_ms[does].sum()) + found.gaps.above_ms(gap_count)
        return lasts_ms, gaps.mostly(share)

    def counted(self, plans: Iterable[Plan]) -> dict[Plan, int]:
        """Return the best counts known so far of counted plans."""
        return {plan: self.known(plan).peak_per_partition.gap_count for plan in plans}

    def known(self, plan: Plan) -> Replay:
        return self._full.get(plan) or self._quick[plan]

    def alone(self, plan: Plan) -> Replay:
        """Replay the history without its continuation, in full."""
        own = self._passes.own.of(self.traffic.topic)
        with self._passes.told("replaying the history alone"):
            (found,) = count_exactly(own, self._fully(own, [plan])[:1])
        return found

    def sent_for_less(self, delay_ms: int) -> tuple[int, int]:
        """Return (timers of the history with a shorter delay, the most gaps of these alone on a single partition)."""
        if delay_ms not in self._sent_for_less:
            own = self._passes.own.of(self.traffic.topic)
            asked = Asked(plan=NATIVE, grid=grid_for(own), shorter_than_ms=delay_ms)
            with self._passes.told("counting timers of short delays alone"):
                (found,) = count_exactly(own, [asked]) if delay_ms else [None]
            self._sent_for_less[delay_ms] = (found.entries, found.peak_of_total.gap_count) if found else (0, 0)
        return self._sent_for_less[delay_ms]

    def predicted(self, plan: Plan, profile: BrokerProfile, growth: float = 1.0) -> Prediction:
        cells, keys = coarse_cells(self.traffic.cells), self.keys()
        evaluation = evaluate(plan, cells, profile, keys=keys)
        grown = evaluation if growth == 1 else evaluate(plan, cells, profile, growth=growth, keys=keys)
        return Prediction(
            traffic=self.traffic,
            evaluation=evaluation,
            replay=self._full[plan],
            grown=grown,
            ack_format=profile.ack_format,
        )

    def _asked(self, plan: Plan, *, limit: float | None = None) -> Asked:
        return Asked(plan=plan, grid=self._grid, topic=self.traffic.topic, limit=limit)

    @cached_property
    def _grid(self) -> Grid:
        return grid_for(self._passes.continued, self.traffic.topic)

    def _fully(self, cached: CachedSends, plans: Iterable[Plan]) -> list[Asked]:
        topic, cells, profile = self.traffic.topic, self.traffic.cells, self._passes.profile
        entry_bytes = float(cells.size_bytes.sum()) / cells.timers + profile.entry_overhead_bytes
        asked = Asked(plan=NATIVE, grid=grid_for(cached, topic), topic=topic, profile=profile, entry_bytes=entry_bytes)
        is_keyed = cached.keyed[topic]
        return [
            replace(asked, plan=plan, at_random=at_random)
            for plan in plans
            for at_random in ((False, True) if plan.own_partitions > 1 and not is_keyed else (False,))
        ]

    def _is_decided(self, plan: Plan, limit: float) -> bool:
        found = self._quick.get(plan)
        if found is None:
            return False
        peak = found.peak_per_partition
        return not peak.gap_count <= limit < peak.gap_count_limit


NEAREST = 4
"""Number of nearest plans of each kind: those with the fewest counted gaps, the cheapest of those that exceed the limit
for the shortest time, and those with the fewest estimated gaps. One of them is recommended if no plan is enough.
"""
ABOUT = 1.05  # ratio to the least value within which values count as equal
PERCENTS = [percent / 100 for percent in range(1, 101)]


class Deciding(Counts):
    """Decides the plan of a topic by counts."""

    def __init__(self, replays: Replays, priced: Priced) -> None:
        super().__init__(list(priced.priced), priced.limits, replays.keys())
        self._replays, self._priced, self._plans = replays, priced, priced.plans
        # Delay below which none of the plans holds a timer back.
        self._never_held_ms = min(filter(None, map(never_held_ms, priced.plans)), default=0)
        self._allowance = self._wanted = priced.allowance

    def allowed(self, plan: Plan) -> int:
        return self._allowance.gaps(plan)

    def count(self, plans: Mapping[Plan, int]) -> Sequence[int]:
        return self._replays.count(plans)

    def confirm(self, plans: Mapping[Plan, int]) -> Sequence[int]:
        return self._replays.confirm(plans)

    def assess(self, plan: Plan) -> Assessed:
        return self._priced.as_it_is(plan)

    def further(self, below: float) -> Sequence[Assessed]:
        # Candidates priced in one round are not yielded again in the next.
        more = self._priced.further(below)
        self.known.extend(more)
        return more

    def is_hopeless(self) -> bool:
        """Return whether timers that no candidate holds back leave too many gaps: further entries take no gap away, and
        no candidate can have more partitions.
        """
        if any(plan.is_partitioned for plan in self._plans) or not self._never_held_ms:
            return False
        most = replace(self._allowance, upper_of=lambda _: 1.0).gaps(NATIVE)
        return self._replays.sent_for_less(self._never_held_ms)[1] > most

    def decided(self) -> Decision[Decided]:
        """Return the cheapest plan within the limit, else the cheapest whose gaps the broker stores, or the nearest."""
        counted: dict[Plan, int] = {}
        confirmed: dict[Plan, int] = {}
        at_once, winner = at_once_for(self._replays.traffic.cells.timers), None
        for fraction in dict.fromkeys((self.limits.gap_fraction, 1.0)):
            self._allowance = self._with_fraction(fraction)
            found = yield from decide(self, at_once)
            counted |= found.counted
            confirmed |= found.confirmed
            if (winner := found.winner) is not None:
                break
        if winner is None:
            winner, gaps = yield from self._nearest(counted)
            confirmed |= gaps
        if winner is not None:
            winner = winner.judged(self.broken_by(winner.evaluation.plan))
        return Decided(winner=winner, counted=counted | confirmed, confirmed=confirmed)

    def _nearest(self, counted: Mapping[Plan, int]) -> Decision[tuple[Assessed | None, Mapping[Plan, int]]]:
        """Return the plan nearest to the limit: above it for the shortest time, with about the fewest gaps."""
        # A peak of seconds only matters for an unload in these seconds; a lasting peak matters for any unload. None: no
        # plan was counted, since every plan breaks another limit.
        if not counted:
            return None, {}
        costs = {one.evaluation.plan.scheme: one.cost_writes_per_second for one in self.known}
        estimated = sorted(self.known, key=lambda one: one.evaluation.peak_gaps_per_partition)
        least = {plan.scheme: plan for plan in sorted(counted, key=lambda plan: (-counted[plan], -plan.partitions))}
        by_gaps = sorted(least.values(), key=lambda plan: counted[plan])
        by_cost = sorted(self._shortest(by_gaps), key=lambda plan: costs[plan.scheme])
        plans = [*by_gaps[:NEAREST], *by_cost[:NEAREST], *(one.evaluation.plan for one in estimated[:NEAREST])]
        plans = list(dict.fromkeys(plans))
        wanted = {plan: self._wanted.gaps(plan) for plan in plans}
        gaps = dict(zip(plans, (yield Wanted(full=wanted)), strict=True))
        shortest = self._shortest(gaps)
        fewest = min(gaps[plan] for plan in shortest)
        about = (plan for plan in shortest if gaps[plan] <= ABOUT * fewest)
        return self.assess(min(about, key=lambda plan: costs[plan.scheme])), gaps

    def _shortest(self, plans: Iterable[Plan]) -> list[Plan]:
        """Return the plans that are above the limit for about the shortest time."""
        lasts_ms = {plan: self._replays.above_ms(plan, self._wanted.gaps(plan)) for plan in plans}
        return [plan for plan in lasts_ms if lasts_ms[plan] <= ABOUT * min(lasts_ms.values())]

    def hindrance(self, plan: Plan, native: Plan) -> Hindrance | None:
        """Return the cause that a plan exceeds the gap limit, with the remedies; None: the plan keeps the limit."""
        allowed = self._wanted.gaps(plan)
        (gaps,) = self.confirm({plan: allowed})
        if gaps <= allowed:
            return None
        timers, by_themselves = self._replays.sent_for_less(self._never_held_ms)
        lasts_ms, mostly_gaps = self._replays.lasting(plan, allowed, MOSTLY)
        return Hindrance(
            lasts_ms=lasts_ms,
            mostly_gaps=mostly_gaps,
            allowed=allowed,
            never_held_ms=self._never_held_ms,
            never_held_timers=timers,
            never_held_gaps=by_themselves,
            partitions=None if plan.is_partitioned or plan.intake else self._partitions((native, plan), gaps),
            gap_limit_ranges=least_limit(gaps, lambda ranges: replace(self._wanted, ranges=ranges).gaps(plan)),
            gap_fraction=next((part for part in PERCENTS if self._with_fraction(part).gaps(plan) >= gaps), None),
        )

    def _partitions(self, plans: Sequence[Plan], gaps: int) -> int | None:
        """Return the partitions of a due topic with which either plan would keep all limits; None: no tried number."""
        least = max(math.ceil(gaps / max(self._wanted.gaps(plans[-1]), 1)), 2)
        tried = [replace(plan, partitions=n) for n in (least, least + 1, 2 * least) for plan in plans]
        tried = [plan for plan in tried if plan.partitions <= MAX_PARTITIONS]
        wanted = {plan: self._wanted.gaps(plan) for plan in tried}
        fit = (plan for plan, gaps in zip(wanted, self.confirm(wanted), strict=True) if gaps <= wanted[plan])
        return next((one.partitions for one in fit if not set(self.assess(one).broken) - COUNTED_LIMITS), None)

    def broken_by(self, plan: Plan) -> tuple[str, ...]:
        """Return the names of the limits that a plan counted in full breaks by its count."""
        known = self._replays.known(plan)
        return self._wanted.broken_by(plan, known.peak_per_partition.gap_count, known.compared)

    def _with_fraction(self, gap_fraction: float) -> Allowance:
        """Return the allowance with another share of the gap limit."""
        return replace(self._wanted, constraints=replace(self._wanted.constraints, gap_fraction=gap_fraction))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prediction:
    """A plan on the traffic itself: the prediction from the statistic, and the exact replay of every timer.

    Args:
        replay: Exact replay, entry by entry.
        grown: The evaluation at the volume of interest.
        ack_format: The broker's format.
    """

    traffic: Traffic
    evaluation: Evaluation
    replay: Replay
    grown: Evaluation
    ack_format: AckFormat

    @property
    def redelivered(self) -> Redelivery:
        """What an unload at the worst moment delivers again, counted."""
        return self.replay.redelivered[self.ack_format]

    @property
    def peak_gaps_error(self) -> float:
        """Relative error of the predicted peak of all partitions together against the counted peak; 0 if both are 0."""
        exact = self.replay.peak_of_total.gap_count
        return (self.evaluation.peak_gaps - exact) / max(exact, 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Planned(Answer):
    """The planner's result, with its input. Predictions are for the traffic itself.

    Args:
        native: A single partition under the broker's delay: the plan that a user has today.
        native_alone: A single partition under the broker's delay, in the history alone; None: the history is not
            continued.
        repeated: Rows of the history's topic that repeat another row in send time, due time and key, without an id to
            distinguish them; 0 for timers with ids.
        hindrance: The reason that the plan exceeds the gap limit; None: the plan keeps it.
    """

    native: Prediction
    recommended: Prediction
    native_alone: Replay | None = None
    repeated: int = 0
    hindrance: Hindrance | None = None

    @property
    def traffic(self) -> Traffic:
        return self.native.traffic

    @property
    def history(self) -> History:
        return self.traffic.history

    @property
    def topic(self) -> str:
        return self.traffic.topic

    @property
    def is_borne_out(self) -> bool:
        """True if the exact replay counted at most as many gaps as are allowed, see `Allowance`."""
        return self.hindrance is None

    @property
    def keeps_limits(self) -> bool:
        """True if the plan breaks no constraint, and the exact count of gaps is allowed."""
        return not self.choice.recommended.broken and self.is_borne_out

    @property
    def counted_gaps(self) -> float:
        """The gaps that decide: those of the count, at the planned volume."""
        return at_growth(self.recommended.replay.peak_per_partition.gap_count, self.growth)

    @property
    def gap_room(self) -> float:
        """Multiple of the traffic's volume at which the plan's gaps reach the broker's limit, by the count."""
        return times_until(self.recommended.replay.peak_per_partition.gap_count, self.profile.gap_limit_ranges)

    @property
    def is_short_of_room(self) -> bool:
        """True if the history is too short to be continued, and `TWICE` as many timers would break the gap limit."""
        return self.traffic.is_short and self.gap_room < TWICE


def compare(
    history: History,
    topic: str,
    plans: Mapping[str, Plan],
    profile: BrokerProfile,
    *,
    growth: float = 1.0,
    as_is: bool = False,
    on_progress: ProgressCallback = no_report,
) -> dict[str, Prediction]:
    """Evaluate plans on a history, and replay the history through each plan.

    Args:
        history: Result of `survey`.
        topic: Topic of the history.
        plans: Any plans, with their partitions, by names of your choice.
        profile: The broker.
        growth: Volume for `Prediction.grown`, as a multiple of the history's volume; all other figures are for the
            volume itself.
        as_is: See `traffic_of`.
        on_progress: Receives the progress.

    Returns:
        The prediction of each plan, by the same names.
    """
    with Passes([traffic_of(history, topic, as_is=as_is)], profile, on_progress) as passes:
        replays = passes.topics[topic]
        what = next(map(describe, plans.values())) if len(plans) == 1 else f"{len(plans)} plans"
        replays.confirm(dict.fromkeys(plans.values(), 0), f"replaying {what}")
        return {name: replays.predicted(plan, profile, growth) for name, plan in plans.items()}


def predict(
    history: History,
    topic: str,
    plan: Plan,
    profile: BrokerProfile,
    *,
    growth: float = 1.0,
    as_is: bool = False,
    on_progress: ProgressCallback = no_report,
) -> Prediction:
    """Evaluate and replay a single plan, as `compare` does."""
    return compare(history, topic, {"plan": plan}, profile, growth=growth, as_is=as_is, on_progress=on_progress)["plan"]


def plan_for(
    history: History,
    topic: str,
    base: Plan,
    profile: BrokerProfile,
    constraints: Constraints | None = None,
    *,
    candidates: Sequence[Plan] | None = None,
    max_delay_ms: int | None = None,
    growth: float = 1.0,
    as_is: bool = False,
    on_progress: ProgressCallback = no_report,
) -> Planned:
    """Choose a plan for a topic of a history, and verify it by an exact replay of that history.

    Args:
        history: Result of `survey`.
        topic: Topic of the history.
        base: Names, subscriptions, guard; see `candidates.candidate_plans`.
        profile: The broker.
        constraints: The user's limits and prices; None: the defaults.
        candidates: Plans to use instead of `candidates.candidate_plans`.
        max_delay_ms: The longest delay that candidates accept; None: the history's longest delay, rounded up.
        growth: Volume to plan for, as a multiple of the history's volume.
        as_is: See `traffic_of`.
        on_progress: Receives the progress.
    """
    traffic = traffic_of(history, topic, as_is=as_is)
    with Passes([traffic], profile, on_progress) as passes:
        rounds = planning(passes.topics[topic], passes, base, constraints, candidates, max_delay_ms, growth)
        return passes.made({topic: rounds})[topic]


def planning(
    replays: Replays,
    passes: Passes,
    base: Plan,
    constraints: Constraints | None = None,
    candidates: Sequence[Plan] | None = None,
    max_delay_ms: int | None = None,
    growth: float = 1.0,
) -> Decision[Planned]:
    """Plan for a topic, in rounds of counts; arguments as in `plan_for`."""
    traffic, keys, profile = replays.traffic, replays.keys(), passes.profile
    cells, upper_of = traffic.cells, traffic.upper_of
    many = f" for {traffic.topic}" if len(traffic.history.statistic.cells) > 1 else ""
    with passes.told(f"pricing candidates{many}"):
        priced = Priced(cells, base, profile, constraints, candidates, max_delay_ms, growth, keys, upper_of)
    allowance = priced.allowance
    deciding = Deciding(replays, priced)
    decided = yield from deciding.decided()
    recommended = priced.recommended(decided.winner)
    plan, native_plan = recommended.evaluation.plan, priced.native.plan
    rules = [one.evaluation.plan for one in priced.rules.values()]
    quick = {rule: allowance.gaps(rule) for rule in rules}
    full = {one: allowance.gaps(one) for one in (plan, native_plan)}
    yield Wanted(quick=quick, full=full, stage="replaying simple rules")
    choice = priced.choice(
        recommended,
        replays.counted(decided.counted),
        replays.counted([*rules, plan, native_plan]),
        {one: replays.known(one).compared for one in [*decided.confirmed, plan, native_plan]},
    )
    native = replays.predicted(native_plan, profile)
    return Planned(
        profile=profile,
        choice=choice,
        native=native,
        recommended=native if plan == native_plan else replays.predicted(plan, profile),
        keys=keys,
        native_alone=None if traffic.continuation is None else replays.alone(native_plan),
        repeated=0 if traffic.history.has_ids else passes.own.repeated(traffic.topic),
        hindrance=deciding.hindrance(plan, native_plan),
    )

"""Exact replay: plays a history through several plans in one pass over the stored sends, and counts gaps over time.

Every timer takes its plan's way (`routes`), gets a position in its due partition by the order of arrival, and is
acknowledged when it is due, or on arrival if that is later. Ties are decided by the order of sends, and ties of sends
by the order of the input, so that a replay gives the same counts every time.

Routing is the step table of `timewheel.core.steps`, in closed form. A timer never goes back to an earlier step of its
table, so each step is taken once, with a count: a tier with ``remaining >= min_remaining`` holds a timer
``(remaining - min_remaining) // stay + 1`` times, a ring once if the release of the timer's slot is still to come.

Under native delays and in calendars timers arrive in the order of their sends: each piece is counted in the task that
reads it. Tiers and rings change the order: each piece is cut by arrival times, Spark groups the arrivals of each chunk
of time, and each chunk is sorted and counted. `ranges.stitched` joins the parts on the driver.
"""

from __future__ import annotations

import math
import pickle
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from timewheel.core.plan import Plan, Tiered, Wheel
from timewheel.core.steps import far_ms, steps

from ..errors import EmptyHistory
from ..history.columns import TOPIC, schema_of
from ..summary.cells import Integers
from .ranges import DuePartition, GapCounts, Grid, Part, PartitionGaps, Peak, RangeCounter, distinct, stitched
from .sends import (
    NO_KEY,
    PIECE,
    SENDS_PER_CHUNK,
    TASK,
    CachedSends,
    Sends,
    few_at_once,
    keep,
    packed_ascending,
    packed_spans,
    quantile_borders,
    rows_of,
    sends_of,
    unpacked_ascending,
    unpacked_spans,
)


class Routes(NamedTuple):
    """The ways of some sends."""

    arrival_ms: Integers  # arrival time in the due topic: the last nominal release, or the send
    acknowledged_ms: Integers  # acknowledgement time: when the timer is due, or on arrival if that is later
    hops: Integers  # number of re-publications on the way
    interval: Integers | None  # number of the calendar interval since 1970; None: there is a single due topic


def routes(plan: Plan, publish_ms: Integers, due_ms: Integers) -> Routes:
    """Compute the ways of sends under a plan; times are UTC milliseconds."""
    *held, due = steps(plan)
    far = moved(plan, publish_ms, due_ms)
    at_ms, hops = publish_ms, far.astype(np.int64)  # out of the intake
    moves = far if plan.intake else np.ones(len(publish_ms), np.bool_)
    for step in held:
        if step.kind == "slot":
            release_ms = due_ms // step.slot_ms * step.slot_ms - step.headstart_ms
            takes = moves & (release_ms > at_ms)
            at_ms = np.where(takes, release_ms, at_ms)
            hops += takes
        else:
            spare_ms = due_ms - at_ms - step.min_remaining_ms
            times = np.where(moves & (spare_ms >= 0), spare_ms // step.stay_ms + 1, 0)
            at_ms = at_ms + times * step.stay_ms
            hops += times
    acknowledged_ms = np.maximum(due_ms, at_ms)
    # As in Router.to_due: a timer that is past due goes to the interval of its send (broker-facts: removing-a-topic).
    return Routes(at_ms, acknowledged_ms, hops, acknowledged_ms // due.interval_ms if due.interval_ms else None)


def moved(plan: Plan, publish_ms: Integers, due_ms: Integers) -> NDArray[np.bool_]:
    """Return which timers a shadow moves as soon as they are sent; none if the plan has no intake."""
    delay_ms = due_ms - publish_ms
    return (delay_ms >= far_ms(plan)) & (delay_ms <= plan.max_delay_ms) & plan.intake


def keeps_order(plan: Plan) -> bool:
    """Return whether timers arrive in their due topic in the order of their sends."""
    return not isinstance(plan.scheme, Tiered | Wheel)


NUMBER = "number"  # number of the plan
HOPS, HOPS_MAX = "hops", "hops_max"
FOUND_SCHEMA = schema_of("found:bytes")  # the counts of one place: a list of `Found`, pickled
FOUND_ARROW = to_arrow_schema(FOUND_SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Found:
    """A due partition of one place; places ascend with positions."""

    due: DuePartition
    entries: int
    part: Part | None  # None: only entries were counted
    number: int = 0  # number of the plan
    place: int = 0
    hops: int = 0  # hops of the whole place, stored in one of its rows
    hops_max: int = 0


def found_batch(found: Sequence[Found]) -> pa.RecordBatch:
    return one_row(FOUND_ARROW, pickle.dumps(found))


def found_rows(table: pa.Table) -> list[Found]:
    return [one for packed in table.column(0).to_pylist() for one in pickle.loads(packed)]  # noqa: S301 - of our tasks


def gap_counts(grid: Grid, found: Sequence[Found]) -> GapCounts:
    parts: defaultdict[DuePartition, list[Part]] = defaultdict(list)
    for row in sorted(found, key=lambda row: (row.place, (row.part and row.part.first_place) or (0, 0))):
        assert row.part is not None, "a pass that counts hands on parts"
        parts[row.due].append(row.part)
    return GapCounts(
        grid=grid,
        partitions=tuple(
            PartitionGaps(due=due, entries=sum(part.entries for part in own), changes=stitched(grid, own))
            for due, own in sorted(parts.items())
        ),
    )


def one_row(schema: pa.Schema, *values: Any) -> pa.RecordBatch:
    arrays = [pa.array([value], kind.type) for value, kind in zip(values, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


_Entries = Mapping[tuple[int, str, int], Mapping[DuePartition, int]]
"""By plan, topic and place: the number of entries that each due partition has before the place."""
CHUNK, RANK = "chunk", "rank"
ARRIVAL_MS, STAY_MS, DUE_PARTITION = "arrival_ms", "stay_ms", "due_partition"
ARRANGED_SCHEMA = schema_of(
    "number:int topic:text chunk:int rank:int arrival_ms:bytes stay_ms:bytes due_partition:bytes hops:long "
    "hops_max:long"
)
"""The arrivals of a piece in a chunk of time under a plan, with their stays, in order of arrival: packed as sends are.
"""
_ARRANGED = to_arrow_schema(ARRANGED_SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asked:
    """Input of a count, for one plan."""

    plan: Plan  # the plan, partitions included
    grid: Grid  # moments at which gaps are counted
    ledger_entries: int = 0  # entries after which a ledger is closed; 0: all entries are in a single ledger


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replay:
    """Result of a replay.

    Args:
        entries: Entries of all due partitions: the replayed timers and, beside a shadow, the originals of moved
            timers.
        hop_count: Re-publications of all timers.
        hop_count_max: The most re-publications of a single timer.
        gaps: Gap ranges at each moment of the grid.
        peak_of_total: The most gap ranges of all due partitions together at one moment.
        peak_per_partition: The most gap ranges of any due partition, to which the broker's limit applies.
        was_sorted: True if Spark had to sort sends or arrivals.
    """

    entries: int
    hop_count: int
    hop_count_max: int
    gaps: GapCounts
    peak_of_total: Peak
    peak_per_partition: Peak
    was_sorted: bool


def count(cached: CachedSends, asked: Sequence[Asked], *, sends_per_chunk: int = SENDS_PER_CHUNK) -> list[Replay]:
    """Replay several plans in one pass, or in two for plans with ledgers; peaks are exact at the grid's moments."""
    jobs = [_Job.of(number, one, cached, sends_per_chunk) for number, one in enumerate(asked)]
    with_ledgers = [job for job in jobs if job.asked.ledger_entries]
    entries = _entries_before(_passed(cached, with_ledgers, {}, tally=True)) if with_ledgers else {}
    found = _passed(cached, jobs, entries, tally=False)
    own: defaultdict[int, list[Found]] = defaultdict(list)
    for row in found:
        own[row.number].append(row)
    return [_replayed(cached, one, own[number]) for number, one in enumerate(asked)]


def _replayed(cached: CachedSends, asked: Asked, found: Sequence[Found]) -> Replay:
    gaps = gap_counts(asked.grid, found)
    return Replay(
        entries=gaps.entries,
        hop_count=sum(row.hops for row in found),
        hop_count_max=max(row.hops_max for row in found),
        gaps=gaps,
        peak_of_total=gaps.peak_of_total,
        peak_per_partition=gaps.peak_per_partition,
        was_sorted=cached.was_sorted or not keeps_order(asked.plan),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Job:
    """A plan of a pass, as sent to the workers."""

    number: int  # number of the plan
    asked: Asked  # the plan, with its grid
    # by topic, the beginnings of the chunks of arrivals except the first; None: arrivals are in order of sends
    borders: Mapping[str, Integers] | None
    ranks: Mapping[tuple[str, int, int], int]  # ranks of pieces, see `CachedSends.ranks`
    sends_before: tuple[int, ...]  # by rank, the number of earlier sends, for round-robin routing

    @classmethod
    def of(cls, number: int, asked: Asked, cached: CachedSends, sends_per_chunk: int) -> _Job:
        borders = None
        if not keeps_order(asked.plan):
            borders = {
                topic: quantile_borders(
                    routes(asked.plan, marks.publish_ms, marks.due_ms).arrival_ms, marks.weights, sends_per_chunk
                )
                for topic, marks in cached.marks.items()
            }
        return cls(number=number, asked=asked, borders=borders, ranks=cached.ranks, sends_before=cached.sends_before)

    def partitions_of(self, rank: int, sends: Sends) -> Integers | None:
        """Return the partition of each send: by key, or round-robin without a key, as in the producer; None: there is a
        single partition. The round-robin counter counts sends with a key as well.
        """
        partitions = self.asked.plan.own_partitions
        if partitions == 1:
            return None
        turn = (self.sends_before[rank] + np.arange(len(sends))) % partitions
        if sends.key_hash is None:
            return turn
        return np.where(sends.key_hash == NO_KEY, turn, sends.key_hash % partitions)


def _passed(cached: CachedSends, jobs: Sequence[_Job], entries: _Entries, *, tally: bool) -> list[Found]:
    direct = [job for job in jobs if job.borders is None]
    arranged = {job.number: job for job in jobs if job.borders is not None}
    frames: list[DataFrame] = []
    if direct:
        frames.append(cached.frame.mapInArrow(_counting_pieces(direct, entries, tally=tally), FOUND_SCHEMA))
    if arranged:
        cut = cached.frame.mapInArrow(_arranging(list(arranged.values())), ARRANGED_SCHEMA)
        by_chunk = cut.groupBy(NUMBER, TOPIC, CHUNK)
        frames.append(by_chunk.applyInArrow(_counting_chunks(arranged, entries, tally=tally), FOUND_SCHEMA))
    with few_at_once(cached.frame.sparkSession):
        return found_rows(reduce(DataFrame.unionAll, frames).toArrow())


def _counting_pieces(jobs: Sequence[_Job], entries: _Entries, *, tally: bool) -> Any:

    def kernel(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for row in (row for batch in batches for row in rows_of(batch)):
            topic, sends = row[TOPIC], sends_of(row)
            for job in jobs:
                rank = job.ranks[topic, row[TASK], row[PIECE]]
                way = routes(job.asked.plan, sends.publish_ms, sends.due_ms)
                partition = job.partitions_of(rank, sends)
                before = entries.get((job.number, topic, rank), {})
                yield _counted(job, topic, rank, way.acknowledged_ms, way.interval, partition, before, tally=tally)

    return kernel


def _counting_chunks(jobs: Mapping[int, _Job], entries: _Entries, *, tally: bool) -> Any:
    """Map all arrivals of a chunk of time under one plan to counts."""

    def kernel(table: pa.Table) -> pa.Table:
        rows = sorted((row for batch in table.to_batches() for row in rows_of(batch)), key=lambda row: row[RANK])
        job, topic, place = jobs[rows[0][NUMBER]], rows[0][TOPIC], rows[0][CHUNK]
        arrival_ms = np.concatenate([unpacked_ascending(memoryview(row[ARRIVAL_MS])) for row in rows])
        stay_ms = np.concatenate([unpacked_spans(memoryview(row[STAY_MS])) for row in rows])
        partition = None
        if job.asked.plan.own_partitions > 1:
            partition = np.concatenate([unpacked_spans(memoryview(row[DUE_PARTITION])) for row in rows])
        # Arrivals of the same millisecond are in the order of the sends.
        order = np.argsort(arrival_ms, kind="stable")
        found = _counted(
            job,
            topic,
            place,
            (arrival_ms + stay_ms)[order],
            None,
            None if partition is None else partition[order],
            entries.get((job.number, topic, place), {}),
            hops=sum(row[HOPS] for row in rows),
            hops_max=max(row[HOPS_MAX] for row in rows),
            tally=tally,
        )
        return pa.Table.from_batches([found], FOUND_ARROW)

    return kernel


def _arranging(jobs: Sequence[_Job]) -> Any:
    """Cut pieces by arrival times, each part in order of arrival, under plans that change the order of sends."""

    def arranged(job: _Job, topic: str, rank: int, sends: Sends) -> Iterator[pa.RecordBatch]:
        assert job.borders is not None
        plan, partition = job.asked.plan, job.partitions_of(rank, sends)
        arrival_ms, acknowledged_ms, hops, _ = routes(plan, sends.publish_ms, sends.due_ms)
        index = np.arange(len(sends))
        if plan.intake:
            # The originals of moved timers are entries too: acknowledged at once, and placed among the other entries
            # in the order of the sends.
            far = np.flatnonzero(moved(plan, sends.publish_ms, sends.due_ms))
            index = np.concatenate([index, far])
            sent_ms = sends.publish_ms[far]
            arrival_ms, acknowledged_ms = (np.concatenate([ms, sent_ms]) for ms in (arrival_ms, acknowledged_ms))
            hops = np.concatenate([hops, np.zeros(len(far), np.int64)])
            partition = None if partition is None else partition[index]
        order = np.lexsort((index, arrival_ms)) if plan.intake else np.argsort(arrival_ms, kind="stable")
        arrival_ms = arrival_ms[order]
        cuts = [0, *np.searchsorted(arrival_ms, job.borders[topic], "left").tolist(), len(order)]
        for chunk, (low, high) in enumerate(pairwise(cuts)):
            if low == high:
                continue
            mine = order[low:high]
            yield one_row(
                _ARRANGED,
                job.number,
                topic,
                chunk,
                rank,
                packed_ascending(arrival_ms[low:high]),
                packed_spans(acknowledged_ms[mine] - arrival_ms[low:high]),
                b"" if partition is None else packed_spans(partition[mine]),
                int(hops[mine].sum()),
                int(hops[mine].max()),
            )

    def kernel(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for row in (row for batch in batches for row in rows_of(batch)):
            topic, sends = row[TOPIC], sends_of(row)
            for job in jobs:
                yield from arranged(job, topic, job.ranks[topic, row[TASK], row[PIECE]], sends)

    return kernel


def _counted(
    job: _Job,
    topic: str,
    place: int,
    acknowledged_ms: Integers,
    interval: Integers | None,
    partition: Integers | None,
    before: Mapping[DuePartition, int],
    *,
    hops: int = 0,
    hops_max: int = 0,
    tally: bool,
) -> pa.RecordBatch:
    """Count a stretch of positions, by due partition: a row of `FOUND_SCHEMA`."""
    dues, number = _numbered(topic, job.asked.plan.own_partitions, interval, partition)
    if tally:
        counts = [len(acknowledged_ms)] if number is None else np.bincount(number, minlength=len(dues)).tolist()
        parts: Sequence[Part | None] = [None] * len(dues)
    else:
        counter = RangeCounter(job.asked.grid, ledger_entries=job.asked.ledger_entries)
        for index, due in enumerate(dues):
            counter.open(index, before.get(due, 0))
        counter.feed(0 if number is None else number, acknowledged_ms)
        found = counter.parts()
        counts, parts = [part.entries for part in found], found
    rows = [
        Found(
            number=job.number,
            place=place,
            due=due,
            entries=entries,
            hops=hops if index == 0 else 0,
            hops_max=hops_max,
            part=part,
        )
        for index, (due, entries, part) in enumerate(zip(dues, counts, parts, strict=True))
    ]
    return found_batch(rows)


def _numbered(
    topic: str, partitions: int, interval: Integers | None, partition: Integers | None
) -> tuple[list[DuePartition], Integers | None]:
    """Return the due partitions of some entries, and the index of each entry's partition; None: a single partition."""
    if interval is None and partition is None:
        return [DuePartition(topic=topic, interval=0, partition=0)], None
    least, code = 0, partition
    if interval is not None:
        least = int(interval.min())
        # A single number for both; Python's integers show whether it fits.
        if (int(interval.max()) - least + 1) * partitions > np.iinfo(np.int64).max:
            raise OverflowError(
                f"{int(interval.max()) - least + 1} calendar intervals between the due times of a piece"
            )
        code = (interval - least) * partitions + (0 if partition is None else partition)
    assert code is not None
    present, number = distinct(code)
    dues = [
        DuePartition(topic=topic, interval=least + one // partitions, partition=one % partitions)
        for one in present.tolist()
    ]
    return dues, number


def _entries_before(found: Sequence[Found]) -> _Entries:
    so_far: defaultdict[tuple[int, DuePartition], int] = defaultdict(int)
    before: defaultdict[tuple[int, str, int], dict[DuePartition, int]] = defaultdict(dict)
    for row in sorted(found, key=lambda row: row.place):
        before[row.number, row.due.topic, row.place][row.due] = so_far[row.number, row.due]
        so_far[row.number, row.due] += row.entries
    return dict(before)


def replay(
    history: DataFrame,
    plan: Plan,
    *,
    grid: Grid | None = None,
    ledger_entries: int = 0,
    exact_peak: bool = False,
    sends_per_chunk: int = SENDS_PER_CHUNK,
) -> Replay:
    """Play a history through a plan.

    Args:
        history: A normalised history (`columns.HISTORY_SCHEMA`). Each topic is played through the plan by itself.
        plan: A plan of any scheme.
        grid: See `replay_all`.
        ledger_entries: See `replay_all`.
        exact_peak: ``exact_peaks`` of `replay_all`.
        sends_per_chunk: Approximate number of rows that a task sorts, if they have to be sorted.

    Raises:
        EmptyHistory: The history has no rows.
    """
    cached = keep(history, sends_per_chunk=sends_per_chunk)
    try:
        (found,) = replay_all(
            cached,
            [plan],
            grid=grid,
            ledger_entries=ledger_entries,
            exact_peaks=exact_peak,
            sends_per_chunk=sends_per_chunk,
        )
    finally:
        cached.forget()
    return found


def replay_all(
    cached: CachedSends,
    plans: Sequence[Plan],
    *,
    grid: Grid | None = None,
    ledger_entries: int = 0,
    exact_peaks: bool = False,
    refuted_above: float = math.inf,
    sends_per_chunk: int = SENDS_PER_CHUNK,
) -> list[Replay]:
    """Play the sends of a history through several plans, in one pass.

    Args:
        cached: The sends. Each topic is played through the plans by itself.
        plans: Plans of any scheme.
        grid: Moments at which gaps are counted; None: 4,096 moments from the first send to the last due time.
        ledger_entries: Entries after which a ledger is closed; 0: all entries are in a single ledger.
        exact_peaks: Make further passes, on finer and finer grids of the spans that may contain a peak, until all peaks
            are exact. Otherwise peaks are exact at the grid's moments, and bounded between them.
        refuted_above: With ``exact_peaks``: a plan with a partition known to have more gaps gets no further pass. Its
            peaks are lower bounds.
        sends_per_chunk: Approximate number of arrivals that a task sorts.

    Returns:
        The result of each plan, in the order of ``plans``.

    Raises:
        EmptyHistory: There are no sends.
    """
    if not cached.pieces:
        raise EmptyHistory
    grid = grid or Grid.regular(
        min(piece.first_ms for piece in cached.pieces), max(piece.last_due_ms for piece in cached.pieces)
    )
    asked = [Asked(plan=plan, grid=grid, ledger_entries=ledger_entries) for plan in plans]
    found = count(cached, asked, sends_per_chunk=sends_per_chunk)
    return _with_exact_peaks(cached, asked, found, refuted_above, sends_per_chunk) if exact_peaks else found


def _with_exact_peaks(
    cached: CachedSends, asked: Sequence[Asked], counted: Sequence[Replay], refuted_above: float, sends_per_chunk: int
) -> list[Replay]:
    total = [one.peak_of_total for one in counted]
    partition = [one.peak_per_partition for one in counted]
    gaps = {number: one.gaps for number, one in enumerate(counted)}
    while True:
        finer: dict[int, Asked] = {}
        for number, of in gaps.items():
            if partition[number].gap_count > refuted_above:
                continue
            spans = of.open_spans(least_total=total[number].gap_count, least_partition=partition[number].gap_count)
            grid = of.grid.refined(spans)
            if grid is not None:
                finer[number] = replace(asked[number], grid=grid)
        if not finer:
            break
        found = count(cached, list(finer.values()), sends_per_chunk=sends_per_chunk)
        gaps = {number: one.gaps for number, one in zip(finer, found, strict=True)}
        for number, of in gaps.items():
            total[number] = max(total[number], of.peak_of_total, key=attrgetter("gap_count"))
            partition[number] = max(partition[number], of.peak_per_partition, key=attrgetter("gap_count"))
    # Unless it was refuted: no moment has a higher count, and no span can have a higher count.
    for peaks in (total, partition):
        for number, peak in enumerate(peaks):
            if partition[number].gap_count <= refuted_above:
                peaks[number] = replace(peak, gap_count_limit=peak.gap_count)
    return [
        replace(one, peak_of_total=total[number], peak_per_partition=partition[number])
        for number, one in enumerate(counted)
    ]

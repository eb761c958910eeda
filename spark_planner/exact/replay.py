"""Exact replay: plays a history through several plans in one pass over the stored sends, and counts gaps over time.

Every timer takes its plan's way (`routes`), gets a position in its due partition by the order of arrival, and is
acknowledged when it is due, or on arrival if that is later. Ties are decided by the order of sends, and ties of sends
by the order of the input, so that a replay gives the same counts every time.

Routing is the step table of `timewheel.core.steps`, in closed form. A timer never goes back to an earlier step of its
table, so each step is taken once, with a count: a tier with ``remaining >= min_remaining`` holds a timer
``(remaining - min_remaining) // stay + 1`` times, a ring once if the release of the timer's slot is still to come.

Under native delays and in calendars timers arrive in the order of their sends: each piece is counted in the task that
reads it. Tiers and rings change the order, but only of the timers that they hold: Spark groups the sends of each chunk
of time, once for all plans, and the timers that each plan held until then, and each chunk is merged and counted. Spark
then sorts the counts by due partition and position, and tasks join and sum them, so that the driver receives a few
arrays of the grid's length for each plan, however many rows, topics and partitions there are.

A **quick count** takes all entries of a partition as one ledger, and sends without a key as in turns. A **full count**
closes ledgers as a broker does (`unload.Ledgers`), which only adds ranges, and counts what unloads deliver again: the
entries themselves are sorted by due partition, and a task reads each partition from its first position to its last.
"""

from __future__ import annotations

import math
import pickle
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import groupby, pairwise
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's world calls it
from pyspark.sql.pandas.types import to_arrow_schema

from timewheel.core.broker_profile import AckFormat, BrokerProfile
from timewheel.core.plan import Plan, Tiered, Wheel
from timewheel.core.steps import Step, far_ms, steps

from ..errors import EmptyHistory
from ..history.columns import TASK, TOPIC, schema_of
from ..summary.cells import Integers
from .ranges import (
    DEFAULT_POINTS,
    MAX_POINTS,
    Changes,
    GapCounts,
    GapTally,
    Grid,
    Peak,
    RangeCounter,
    Stitcher,
    distinct,
)
from .sends import (
    NO_KEY,
    PIECE,
    SENDS_PER_CHUNK,
    CachedSends,
    Sends,
    few_at_once,
    keep,
    packed_ascending,
    packed_sends,
    packed_spans,
    quantile_borders,
    rows_of,
    sends_of,
    unpacked_ascending,
    unpacked_spans,
)
from .unload import NOTHING_COMPARED, Ledgers, Redelivery, Unload, unload_moments, worse_of, worst_of


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
        spare_ms = accepted_until_ms(step, due_ms) - at_ms
        takes = moves & (spare_ms >= 0)
        if step.kind == "slot":
            at_ms = np.where(takes, at_ms + spare_ms + 1, at_ms)
            hops += takes
        else:
            times = np.where(takes, spare_ms // step.stay_ms + 1, 0)
            at_ms = at_ms + times * step.stay_ms
            hops += times
    acknowledged_ms = np.maximum(due_ms, at_ms)
    # As in Router.to_due: a timer that is past due goes to the interval of its send (broker-facts: removing-a-topic).
    return Routes(at_ms, acknowledged_ms, hops, acknowledged_ms // due.interval_ms if due.interval_ms else None)


def accepted_until_ms(step: Step, due_ms: Integers) -> Integers:
    """Return the last time at which a tier or a ring accepts each timer; a ring's slot is released right after it."""
    if step.kind == "slot":
        return due_ms // step.slot_ms * step.slot_ms - step.headstart_ms - 1
    return due_ms - step.min_remaining_ms


def moved(plan: Plan, publish_ms: Integers, due_ms: Integers) -> NDArray[np.bool_]:
    """Return which timers a shadow moves as soon as they are sent; none if the plan has no intake."""
    delay_ms = due_ms - publish_ms
    return (delay_ms >= far_ms(plan)) & (delay_ms <= plan.max_delay_ms) & plan.intake


def held(plan: Plan, publish_ms: Integers, due_ms: Integers) -> NDArray[np.bool_]:
    """Return which timers wait in a tier or a ring; all others arrive when they are sent."""
    if plan.intake:
        return moved(plan, publish_ms, due_ms)
    found = np.zeros(len(publish_ms), np.bool_)
    for step in steps(plan)[:-1]:
        found |= accepted_until_ms(step, due_ms) >= publish_ms
    return found


def keeps_order(plan: Plan) -> bool:
    """Return whether timers arrive in their due topic in the order of their sends."""
    return not isinstance(plan.scheme, Tiered | Wheel)


NUMBER = "number"  # number of the plan
GROUP = "group"  # column: the task that sums a due partition
INTERVAL, PARTITION, PLACE = "interval", "partition", "place"
HOPS, HOPS_MAX = "hops", "hops_max"
ARRIVAL_MS, STAY_MS, PART = "arrival_ms", "stay_ms", "part"
PLACED_SCHEMA = schema_of(
    "number:int group:int topic:text interval:long partition:int place:int hops:long hops_max:long part:bytes "
    "arrival_ms:bytes stay_ms:bytes"
)
"""A due partition of one place; places ascend with positions. Its counts (`ranges.Part`, pickled), or its entries in
order of arrival, packed as sends are. The hops of the whole place are in one of its rows.
"""
_PLACED = to_arrow_schema(PLACED_SCHEMA)
SUMMED_SCHEMA = schema_of("number:int summed:bytes")
_SUMMED = to_arrow_schema(SUMMED_SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Summed:
    """The counts of some due partitions of a plan."""

    gaps: GapCounts
    hops: int
    hops_max: int
    redelivered: Integers  # a row for each format, a column for each moment
    compared: Integers  # see `Unload.compared`, of any partition


def one_row(schema: pa.Schema, *values: Any) -> pa.RecordBatch:
    arrays = [pa.array([value], kind.type) for value, kind in zip(values, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


CHUNK, RANK, BEGIN = "chunk", "rank", "begin"
SENT = -1  # in place of a plan's number
ARRANGED_SCHEMA = schema_of(
    "topic:text chunk:int number:int rank:int begin:long publish_ms:bytes delay_ms:bytes key_hash:bytes hops:long "
    "hops_max:long"
)
"""A part of a piece in a chunk of time, packed as sends are: its sends, from number ``begin`` of the topic on; or those
that a plan held, with arrivals in place of send times, stays of delays, and partitions of hashes. The hops of the whole
piece are in one of the plan's rows.
"""
_ARRANGED = to_arrow_schema(ARRANGED_SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asked:
    """Input of a count, for one plan.

    Args:
        plan: The plan, partitions included.
        grid: Moments at which gaps are counted.
        topic: The topic whose sends are played through the plan; None: each topic by itself.
        shorter_than_ms: Leave out sends with this delay or a longer one, under a plan that keeps the order; 0: none.
        profile: The broker, for a full count; None: a quick count.
        entry_bytes: Mean size of an entry, for a full count.
        at_random: Send timers without a key to random partitions, instead of in turns.
        moments_ms: Moments at which a full count unloads all due topics.
        by_topic: Return the peak of each topic.
        limit: For `count_exactly`: only decide whether a partition has more gaps than this. A span without more gaps is
            not refined, and a plan that has more gets no further pass; a peak up to the limit has a
            ``gap_count_limit`` up to the limit too. None: all peaks are exact.
    """

    plan: Plan
    grid: Grid
    topic: str | None = None
    shorter_than_ms: int = 0
    profile: BrokerProfile | None = None
    entry_bytes: float = 0.0
    at_random: bool = False
    moments_ms: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    by_topic: bool = False
    limit: float | None = None


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
        redelivered: By format, what an unload at the worst moment delivers again; empty after a quick count.
        compared: The most of any partition, see `Unload.compared`; empty if the broker does not write bitmaps.
        at_random: True if timers without a key were sent to random partitions.
    """

    entries: int
    hop_count: int
    hop_count_max: int
    gaps: GapCounts
    peak_of_total: Peak
    peak_per_partition: Peak
    was_sorted: bool
    redelivered: Mapping[AckFormat, Redelivery] = field(default_factory=dict)
    compared: tuple[int, ...] = ()
    at_random: bool = False

    def or_worse(self, other: Replay) -> Replay:
        """Return the replay with more gaps, with the worse of both by redelivery."""
        worse = max(self, other, key=lambda of: of.peak_per_partition.gap_count)
        compared = tuple(map(max, self.compared, other.compared))
        return replace(worse, redelivered=worse_of(self.redelivered, other.redelivered), compared=compared)


def count(cached: CachedSends, asked: Sequence[Asked], *, sends_per_chunk: int = SENDS_PER_CHUNK) -> list[Replay]:
    """Replay several plans in one pass; peaks are exact at the grids' moments."""
    wanted = dict(enumerate(asked))
    return list(_summed(cached, wanted, [_placed(cached, wanted, sends_per_chunk)]).values())


def _placed(cached: CachedSends, asked: Mapping[int, Asked], sends_per_chunk: int) -> DataFrame:
    """Return rows of `PLACED_SCHEMA`; within each task in the order of due partitions and positions."""
    jobs = [_Job.of(number, one, cached, group) for group, (number, one) in enumerate(asked.items())]
    direct = [job for job in jobs if keeps_order(job.asked.plan)]
    arranged = [job for job in jobs if not keeps_order(job.asked.plan)]
    most_tasks = int(cached.frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 200)
    frames: list[DataFrame] = []
    if direct:
        frames.append(cached.frame.mapInArrow(_placing_pieces(direct, _Order.of(cached)), PLACED_SCHEMA))
    if arranged:
        assert not any(job.asked.shorter_than_ms for job in arranged)
        borders = _borders(arranged, cached, sends_per_chunk, most_tasks)
        cut = cached.frame.mapInArrow(_arranging(arranged, borders, _Order.of(cached)), ARRANGED_SCHEMA)
        chunks = cut.repartitionById(most_tasks, F.pmod(F.hash(TOPIC) + F.col(CHUNK), F.lit(most_tasks)).cast("int"))
        ordered = chunks.sortWithinPartitions(TOPIC, CHUNK, NUMBER, RANK)
        frames.append(ordered.mapInArrow(_placing_chunks(arranged), PLACED_SCHEMA))
    tasks = min(most_tasks, sum(job.groups for job in jobs))
    every = reduce(DataFrame.unionAll, frames).repartitionById(tasks, F.col(GROUP) % tasks)
    return every.sortWithinPartitions(NUMBER, TOPIC, INTERVAL, PARTITION, PLACE)


def _summed(cached: CachedSends, asked: Mapping[int, Asked], placed: Sequence[DataFrame]) -> dict[int, Replay]:
    found: dict[int, list[Summed]] = {number: [] for number in asked}
    with few_at_once(cached.frame.sparkSession):
        summed = reduce(DataFrame.unionAll, placed).mapInArrow(_summing(asked), SUMMED_SCHEMA).toArrow()
    for number, of_task in zip(*(column.to_pylist() for column in summed.columns), strict=True):
        found[number].append(pickle.loads(of_task))  # noqa: S301 - of our tasks
    return {number: _replayed(cached, one, found[number]) for number, one in asked.items()}


def _replayed(cached: CachedSends, asked: Asked, found: Sequence[Summed]) -> Replay:
    gaps = replace(GapCounts.joined([one.gaps for one in found] or [GapTally(asked.grid).found()]), grid=asked.grid)
    redelivered = sum((one.redelivered for one in found), np.zeros((2, len(asked.moments_ms)), np.int64))
    return Replay(
        entries=gaps.entries,
        hop_count=sum(one.hops for one in found),
        hop_count_max=max((one.hops_max for one in found), default=0),
        gaps=gaps,
        peak_of_total=gaps.peak_of_total,
        peak_per_partition=gaps.peak_per_partition,
        was_sorted=cached.was_sorted or not keeps_order(asked.plan),
        redelivered={} if asked.profile is None else worst_of(asked.moments_ms, redelivered),
        compared=tuple(np.max([one.compared for one in found] or [NOTHING_COMPARED], axis=0).tolist())
        if asked.profile is not None and asked.profile.ack_format == "bitmap"
        else (),
        at_random=asked.at_random,
    )


MAX_GROUPS = 16  # tasks that sum the topics of a plan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Job:
    """A plan of a pass, as sent to the workers."""

    number: int  # number of the plan
    asked: Asked  # the plan, with its grid
    group: int  # the first of the tasks that sum the due partitions
    groups: int  # number of these tasks

    @classmethod
    def of(cls, number: int, asked: Asked, cached: CachedSends, group: int) -> _Job:
        topics = len(cached.marks) if asked.topic is None else 1
        return cls(number=number, asked=asked, group=group, groups=min(topics, MAX_GROUPS))

    def partition(self, index: Integers, key_hash: Integers | None) -> Integers | None:
        """Return the partition of sends, by key, or without a key in turns, as in the producer, or at random; None:
        there is a single partition. ``index``: their numbers in the topic; the turns count sends with a key as well.
        """
        partitions = self.asked.plan.own_partitions
        if partitions == 1:
            return None
        partition = scattered(index, partitions) if self.asked.at_random else index % partitions
        return partition if key_hash is None else np.where(key_hash == NO_KEY, partition, key_hash % partitions)

    def placed(
        self,
        topic: str,
        place: int,
        arrival_ms: Integers,
        acknowledged_ms: Integers,
        interval: Integers | None,
        partition: Integers | None,
        *,
        hops: int = 0,
        hops_max: int = 0,
    ) -> pa.RecordBatch:
        """Count, or sort by due partition, a stretch of positions: rows of `PLACED_SCHEMA`."""
        dues, number = _numbered(self.asked.plan.own_partitions, interval, partition)
        parts, arrivals, stays = ([b""] * len(dues) for _ in range(3))
        if self.asked.profile is None:
            counter = RangeCounter(self.asked.grid)
            for index in range(len(dues)):
                counter.open(index)
            counter.feed(0 if number is None else number, acknowledged_ms)
            parts = [pickle.dumps(part) for part in counter.parts()]
        else:
            order = np.arange(len(arrival_ms)) if number is None else np.argsort(number, kind="stable")
            sizes = [len(order)] if number is None else np.bincount(number, minlength=len(dues))
            for index, own in enumerate(np.split(order, np.cumsum(sizes)[:-1])):
                arrivals[index] = packed_ascending(arrival_ms[own])
                stays[index] = packed_spans(acknowledged_ms[own] - arrival_ms[own])
        rows, more = len(dues), [0] * (len(dues) - 1)
        group = self.group + zlib.crc32(topic.encode()) % self.groups
        columns = (
            *([value] * rows for value in (self.number, group, topic)),
            *zip(*dues, strict=True),
            [place] * rows,
            *([value, *more] for value in (hops, hops_max)),
            *(parts, arrivals, stays),
        )
        arrays = [pa.array(column, kind.type) for column, kind in zip(columns, _PLACED, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=_PLACED)


def scattered(index: Integers, partitions: int) -> Integers:
    """Return a random partition for each send, the same for the same index (splitmix64)."""
    mixed = index.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    found: Integers = ((mixed ^ (mixed >> np.uint64(31))) % np.uint64(partitions)).astype(np.int64)
    return found


class _Order(NamedTuple):
    """The order of the pieces, as sent to the workers."""

    ranks: Mapping[tuple[str, int, int], int]  # see `CachedSends.ranks`
    sends_before: tuple[int, ...]  # by rank, the number of earlier sends of the topic

    @classmethod
    def of(cls, cached: CachedSends) -> _Order:
        return cls(cached.ranks, cached.sends_before)

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, int, int, Sends]]:
        """Iterate over pieces: topic, rank, number of the first send, sends."""
        for row in (row for batch in batches for row in rows_of(batch)):
            rank = self.ranks[row[TOPIC], row[TASK], row[PIECE]]
            yield row[TOPIC], rank, self.sends_before[rank], sends_of(row)


def _borders(jobs: Sequence[_Job], cached: CachedSends, sends_per_chunk: int, tasks: int) -> dict[str, Integers]:
    """Return by topic the beginnings of the chunks of time except the first: no chunk has more than about this many
    sends, or arrivals under any plan.
    """
    found = {}
    for topic, marks in cached.marks.items():
        plans = [job.asked.plan for job in jobs if job.asked.topic in (None, topic)]
        if not plans:
            continue
        ways = [marks.publish_ms, *(routes(plan, marks.publish_ms, marks.due_ms).arrival_ms for plan in plans)]
        per_chunk = min(sends_per_chunk, max(int(marks.weights.sum()) // tasks, LEAST_PER_CHUNK))
        fine = quantile_borders(np.concatenate(ways), np.tile(marks.weights, len(ways)), max(per_chunk // 4, 1))
        mass = [np.bincount(np.searchsorted(fine, way, "right"), marks.weights, len(fine) + 1) for way in ways]
        reached = np.cumsum(np.max(mass, axis=0))[:-1] // per_chunk
        found[topic] = fine[np.diff(reached, prepend=0) > 0]
    return found


def _of_topic(jobs: Sequence[_Job], topic: str) -> list[_Job]:
    return [job for job in jobs if job.asked.topic in (None, topic)]


def _placing_pieces(jobs: Sequence[_Job], order: _Order) -> Any:

    def kernel(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for topic, rank, begin, sends in order.read(batches):
            index = begin + np.arange(len(sends))
            for job in _of_topic(jobs, topic):
                own, mine = sends, index
                if job.asked.shorter_than_ms:
                    is_short = sends.due_ms - sends.publish_ms < job.asked.shorter_than_ms
                    own, mine = sends.at(is_short), index[is_short]
                if len(own):
                    way = routes(job.asked.plan, own.publish_ms, own.due_ms)
                    partition = job.partition(mine, own.key_hash)
                    yield job.placed(topic, rank, way.arrival_ms, way.acknowledged_ms, way.interval, partition)

    return kernel


def _arranging(jobs: Sequence[_Job], borders: Mapping[str, Integers], order: _Order) -> Any:
    """Cut pieces by time, and what each plan holds of them by arrival."""

    def rows(
        topic: str, number: int, rank: int, begin: int, sends: Sends, hops: int = 0, hops_max: int = 0
    ) -> Iterator[pa.RecordBatch]:
        cuts = [0, *np.searchsorted(sends.publish_ms, borders[topic], "left").tolist(), len(sends)]
        for chunk, (low, high) in enumerate(pairwise(cuts)):
            if low < high:
                part = packed_sends(sends.at(slice(low, high))).values()
                yield one_row(_ARRANGED, topic, chunk, number, rank, begin + low, *part, hops, hops_max)
                hops = hops_max = 0

    def kernel(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for topic, rank, begin, sends in order.read(batches):
            if topic in borders:
                yield from rows(topic, SENT, rank, begin, sends)
            for job in _of_topic(jobs, topic):
                index = np.flatnonzero(held(job.asked.plan, sends.publish_ms, sends.due_ms))
                own = sends.at(index)
                way = routes(job.asked.plan, own.publish_ms, own.due_ms)
                found = Sends(way.arrival_ms, way.acknowledged_ms, job.partition(begin + index, own.key_hash))
                hops = int(way.hops.sum()), int(way.hops.max(initial=0))
                yield from rows(topic, job.number, rank, 0, found.in_order(), *hops)

    return kernel


def _placing_chunks(jobs: Sequence[_Job]) -> Any:
    """Merge the sends of a chunk of time with what each plan held until then, and map them to rows by due partition."""

    def joined(rows: Iterable[Mapping[str, Any]]) -> tuple[Sends, Integers]:
        """Return sends, and their numbers in the topic."""
        found = [(sends_of(row), row[BEGIN]) for row in rows]
        index = (begin + np.arange(len(sends)) for sends, begin in found)
        return Sends.joined([_NO_SENDS, *(sends for sends, _ in found)]), np.concatenate([_NONE, *index])

    def placed(job: _Job, topic: str, chunk: int, sent: Sends, index: Integers, rows: Any) -> Iterator[pa.RecordBatch]:
        # Arrivals of the same millisecond are in the order of the sends: what was held was sent before.
        late, is_held = joined(rows)[0].in_order(), held(job.asked.plan, sent.publish_ms, sent.due_ms)
        if job.asked.plan.intake:
            # The originals of moved timers are entries too: acknowledged at once.
            sent = Sends(sent.publish_ms, np.where(is_held, sent.publish_ms, sent.due_ms), sent.key_hash)
        else:
            sent, index = sent.at(~is_held), index[~is_held]
        places = np.searchsorted(sent.publish_ms, late.publish_ms, "left")
        partition = job.partition(index, sent.key_hash)
        if len(sent) or len(late):
            yield job.placed(
                topic,
                chunk,
                np.insert(sent.publish_ms, places, late.publish_ms),
                np.insert(sent.due_ms, places, late.due_ms),
                None,
                None if partition is None else np.insert(partition, places, late.key_hashes()),
                hops=sum(row[HOPS] for row in rows),
                hops_max=max((row[HOPS_MAX] for row in rows), default=0),
            )

    def kernel(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        every = (row for batch in batches for row in rows_of(batch))
        for (topic, chunk), rows in groupby(every, itemgetter(TOPIC, CHUNK)):
            by_number = {number: list(own) for number, own in groupby(rows, itemgetter(NUMBER))}
            sent, index = joined(by_number.get(SENT, ()))
            for job in _of_topic(jobs, topic):
                yield from placed(job, topic, chunk, sent, index, by_number.get(job.number, ()))

    return kernel


def _summing(asked_by_number: Mapping[int, Asked]) -> Any:
    """Join rows of `PLACED_SCHEMA`, in the order of due partitions and places, and sum each plan's partitions."""

    def summed(number: int, rows: Iterable[dict[str, Any]]) -> Summed:
        asked = asked_by_number[number]
        tally, hops, hops_max = GapTally(asked.grid, by_topic=asked.by_topic), 0, 0
        redelivered, compared = np.zeros((2, len(asked.moments_ms)), np.int64), NOTHING_COMPARED
        for (topic, _, _), places in groupby(rows, itemgetter(TOPIC, INTERVAL, PARTITION)):
            own = _Partition(asked)
            for row in places:
                own.add(row)
                hops, hops_max = hops + row[HOPS], max(hops_max, row[HOPS_MAX])
            tally.add(topic, *own.counted())
            if own.unload is not None:
                redelivered += own.unload.redelivered()
                compared = np.maximum(compared, own.unload.compared())
        # The driver has the grid.
        gaps = replace(tally.found(), grid=_NO_GRID)
        return Summed(gaps=gaps, hops=hops, hops_max=hops_max, redelivered=redelivered, compared=compared)

    def kernel(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        every = (row for batch in batches for row in rows_of(batch))
        for number, rows in groupby(every, itemgetter(NUMBER)):
            yield one_row(_SUMMED, number, pickle.dumps(summed(number, rows)))

    return kernel


_NO_GRID = Grid.at(np.zeros(1, np.int64))
_NONE = np.zeros(0, np.int64)
_NO_SENDS = Sends(_NONE, _NONE, None)


def _numbered(
    partitions: int, interval: Integers | None, partition: Integers | None
) -> tuple[list[tuple[int, int]], Integers | None]:
    """Return the due partitions of some entries as (interval, partition), and the index of each entry's due partition;
    None: there is a single one.
    """
    if interval is None and partition is None:
        return [(0, 0)], None
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
    return [(least + one // partitions, one % partitions) for one in present.tolist()], number


class _Partition:
    """Reads the rows of a due partition, in the order of positions."""

    def __init__(self, asked: Asked) -> None:
        self._stitcher = Stitcher(asked.grid)
        self.unload: Unload | None = None
        if asked.profile is not None:
            self._ledgers, self._counter = Ledgers(asked.profile, asked.entry_bytes), RangeCounter(asked.grid)
            self._counter.open(0)
            self.unload = Unload(asked.moments_ms, asked.profile)

    def add(self, row: Mapping[str, Any]) -> None:
        if self.unload is None:
            self._stitcher.add(pickle.loads(row[PART]))  # noqa: S301 - of our tasks
            return
        arrival_ms = unpacked_ascending(memoryview(row[ARRIVAL_MS]))
        acknowledged_ms = arrival_ms + unpacked_spans(memoryview(row[STAY_MS]))
        ledger, entry = self._ledgers.places(arrival_ms)
        self._counter.feed(0, acknowledged_ms, ledger, entry)
        self.unload.feed(acknowledged_ms, ledger)

    def counted(self) -> tuple[int, Changes]:
        """Return the entries, and the changes of the number of ranges."""
        if self.unload is not None:
            self._stitcher.add(*self._counter.parts())
        return self._stitcher.entries, self._stitcher.changes()


def replay(
    history: DataFrame,
    plan: Plan,
    *,
    grid: Grid | None = None,
    profile: BrokerProfile | None = None,
    exact_peak: bool = False,
    sends_per_chunk: int = SENDS_PER_CHUNK,
) -> Replay:
    """Play a history through a plan.

    Args:
        history: A normalised history (`columns.HISTORY_SCHEMA`). Each topic is played through the plan by itself.
        plan: A plan of any scheme.
        grid: Moments at which gaps are counted; None: see `grid_for`.
        profile: The broker, for a full count: with its ledgers, and with redelivery. None: a quick count.
        exact_peak: Make further passes until all peaks are exact. Otherwise peaks are exact at the grid's moments, and
            bounded between them.
        sends_per_chunk: Approximate number of rows that a task sorts, if they have to be sorted.

    Raises:
        EmptyHistory: The history has no rows.
    """
    cached = keep(history, sends_per_chunk=sends_per_chunk)
    try:
        asked = Asked(plan=plan, grid=grid or grid_for(cached), profile=profile)
        if exact_peak:
            (found,) = count_exactly(cached, [asked], sends_per_chunk=sends_per_chunk)
        else:
            (found,) = count(cached, [asked], sends_per_chunk=sends_per_chunk)
    finally:
        cached.forget()
    return found


LEAST_PER_CHUNK = 1 << 16  # smaller chunks, for a task each, would cost more than they spread
PLANS_AT_ONCE = 48  # plans of one pass: their counts on the finest grids are 130 MB
MAX_KEPT = 500_000_000  # entries of full counts that are kept on disk between passes: 3 GB
SENDS_PER_MOMENT = 200
"""Sends for each moment of a grid: so few ranges begin between two moments that most bounds decide."""


def grid_for(cached: CachedSends, topic: str | None = None) -> Grid:
    """Return moments from the first send to the last due time of a topic, or of all: 4,096, and more for more sends.

    Raises:
        EmptyHistory: There are no sends.
    """
    pieces = [piece for piece in cached.pieces if topic in (None, piece.topic)]
    if not pieces:
        raise EmptyHistory
    sends = sum(piece.sends for piece in pieces)
    return Grid.regular(
        min(piece.first_ms for piece in pieces),
        max(piece.last_due_ms for piece in pieces),
        min(max(sends // SENDS_PER_MOMENT, DEFAULT_POINTS), MAX_POINTS),
    )


def count_exactly(
    cached: CachedSends, asked: Sequence[Asked], *, sends_per_chunk: int = SENDS_PER_CHUNK
) -> list[Replay]:
    """Replay several plans, in further passes on finer and finer grids of the spans that may contain a peak, until all
    peaks are exact, or decided (`Asked.limit`); a full count counts redelivery in these.

    Args:
        cached: The sends.
        asked: The plans.
        sends_per_chunk: Approximate number of arrivals that a task sorts.
    """
    batches = (asked[low : low + PLANS_AT_ONCE] for low in range(0, len(asked), PLANS_AT_ONCE))
    return [found for batch in batches for found in _counted_exactly(cached, batch, sends_per_chunk)]


def _kept(cached: CachedSends, full: Mapping[int, Asked], sends_per_chunk: int) -> DataFrame | None:
    """Keep the entries of full counts, which are the same in each pass: a pass over them costs half as much."""
    topics = [one.topic for one in full.values()]
    entries = sum(piece.sends for piece in cached.pieces for topic in topics if topic in (None, piece.topic))
    if not 0 < entries <= MAX_KEPT:
        return None
    return _placed(cached, full, sends_per_chunk).persist(StorageLevel.DISK_ONLY)


def _counted_exactly(cached: CachedSends, asked: Sequence[Asked], sends_per_chunk: int) -> list[Replay]:
    full = {number: one for number, one in enumerate(asked) if one.profile is not None}
    entries = _kept(cached, full, sends_per_chunk)

    def counted(wanted: Mapping[int, Asked]) -> dict[int, Replay]:
        fresh = {number: one for number, one in wanted.items() if entries is None or number not in full}
        frames = [_placed(cached, fresh, sends_per_chunk)] if fresh else []
        if entries is not None and len(fresh) < len(wanted):
            frames.append(entries.where(F.col(NUMBER).isin(list(wanted))))
        return _summed(cached, wanted, frames)

    try:
        found = counted(dict(enumerate(asked)))
        peaks = {number: _Peaks(one.gaps, asked[number].limit) for number, one in found.items()}
        unloaded = dict(found)
        last = {number: one.gaps for number, one in found.items()}
        while True:
            wanted: dict[int, Asked] = {}
            for number, gaps in last.items():
                # A pass unloads at the moments of the pass before it, and the last pass at those of the finest grid.
                one, grid = asked[number], peaks[number].finer()
                moments_ms = _NONE if one.profile is None else unload_moments(gaps, one.profile)
                if grid is not None or len(moments_ms):
                    wanted[number] = replace(one, grid=grid or _NO_GRID, moments_ms=moments_ms)
            if not wanted:
                break
            results = counted(wanted)
            last = {number: one.gaps for number, one in results.items() if wanted[number].grid is not _NO_GRID}
            for number, result in results.items():
                unloaded[number] = unloaded[number].or_worse(result)
                if number in last:
                    peaks[number].add(result.gaps)
    finally:
        if entries is not None:
            entries.unpersist()
    return [
        replace(
            one,
            peak_of_total=peaks[number].total,
            peak_per_partition=peaks[number].partition,
            redelivered=unloaded[number].redelivered,
            compared=unloaded[number].compared,
        )
        for number, one in found.items()
    ]


class _Peaks:
    """The peaks of a plan so far, with the bounds of all spans that were not refined."""

    def __init__(self, gaps: GapCounts, limit: float | None) -> None:
        self._limit = limit
        self.total, self.partition = gaps.peak_of_total, gaps.peak_per_partition
        self._settled = [0, 0]
        self._note(gaps)

    def add(self, gaps: GapCounts) -> None:
        """Add the counts of a finer grid, which covers all open spans."""
        self.total = max(self.total, gaps.peak_of_total, key=attrgetter("gap_count"))
        self.partition = max(self.partition, gaps.peak_per_partition, key=attrgetter("gap_count"))
        self._note(gaps)

    def finer(self) -> Grid | None:
        """Return the grid of the next pass; None: the peaks are known."""
        return self._gaps.grid.refined(self._open)

    def _note(self, gaps: GapCounts) -> None:
        self._gaps = gaps
        if self._limit is None:
            self._open = gaps.open_spans(total=self.total.gap_count, partition=self.partition.gap_count)
        elif self.partition.gap_count > self._limit:
            self._open = np.zeros(len(gaps.grid), np.bool_)
        else:
            self._open = gaps.open_spans(total=math.inf, partition=self._limit)
        settled = gaps.grid.spans & ~self._open
        for index, bounds in enumerate((gaps.together[1], gaps.fullest[1])):
            self._settled[index] = max(self._settled[index], int(bounds[settled].max(initial=0)))
        self.total, self.partition = (
            replace(peak, gap_count_limit=max(peak.gap_count, limit))
            for peak, limit in zip((self.total, self.partition), self._settled, strict=True)
        )

"""Exact replay: a history played through a plan, entry by entry, and its gap ranges counted over time.

Every timer takes its plan's way (`routed`), gets a position in its due partition by the order of arrival, and is
acknowledged when it is due, or on arrival if that is later. Ties are settled by the order of sends, and those by the
order of the input, so that a replay gives the same counts every time. Nothing but counts on the grid gets to the
driver: a few numbers for each due partition and stretch of a million rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every user of PySpark knows

from timewheel.core.plan import Calendar, Plan, Tiered, Wheel
from timewheel.spark_planner.errors import EmptyHistory
from timewheel.spark_planner.exact.grid import Grid
from timewheel.spark_planner.exact.pieces import ORDER_MS, PARTITION, SOURCE
from timewheel.spark_planner.exact.ranges import Part, stitched
from timewheel.spark_planner.exact.replay_result import DuePartition, GapCounts, PartitionGaps, Peak
from timewheel.spark_planner.exact.routed import ACKNOWLEDGED_MS, ARRIVAL_MS, HOPS, INTERVAL, KEY_PARTITION, with_route
from timewheel.spark_planner.exact.run_rows import ENTRY, LEDGER, Found, Offsets, RunKey, counting, tallying, turning
from timewheel.spark_planner.exact.streams import INPUT_ORDER, ROWS_PER_CHUNK, Stream, as_read, sorted_by
from timewheel.spark_planner.history.columns import PUBLISH_MS, TOPIC

__all__ = ["Replay", "count_acks", "replay"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replay:
    """What a replay found.

    Args:
        entries: Timers that were played.
        hop_count: Re-publications of all of them.
        hop_count_max: The most of one.
        gaps: Gap ranges at each moment of the grid.
        peak_of_total: The most of all due partitions together at one moment.
        peak_per_partition: The most of any one due partition: what the broker's limit is about.
        was_sorted: Whether Spark had to sort the arrivals.
    """

    entries: int
    hop_count: int
    hop_count_max: int
    gaps: GapCounts
    peak_of_total: Peak
    peak_per_partition: Peak
    was_sorted: bool


def replay(
    history: DataFrame,
    plan: Plan,
    *,
    grid: Grid | None = None,
    ledger_entries: int = 0,
    exact_peak: bool = False,
    rows_per_chunk: int = ROWS_PER_CHUNK,
) -> Replay:
    """Play a history through a plan.

    Args:
        history: Normalised (`columns.HISTORY_SCHEMA`). Of several topics each is played through the plan by itself.
        plan: Any scheme.
        grid: Where to count; None: 4,096 moments from the first arrival to the last acknowledgement.
        ledger_entries: Entries after which a ledger is closed; 0: all are in one.
        exact_peak: Go over the arrivals again, on ever finer grids of where a peak can still be, until both peaks are
            exact. Otherwise they are exact at the grid's moments, and bounded between them.
        rows_per_chunk: About how many rows one task sorts, where they have to be sorted.

    Raises:
        EmptyHistory: It has no row.
    """
    first = history.select(TOPIC).first()
    if first is None:
        raise EmptyHistory
    topic: str = first[0]
    routed = history.transform(with_route(plan))
    hops = isinstance(plan.scheme, Tiered | Wheel)
    facts = _facts(routed, topic, span=grid is None, hops=hops)
    grid = grid or Grid.regular(facts.first_ms, facts.last_ms)
    arrivals = routed.select(
        PUBLISH_MS,
        ARRIVAL_MS,
        ACKNOWLEDGED_MS,
        TOPIC,
        INTERVAL,
        F.col(KEY_PARTITION).alias(PARTITION),
        F.monotonically_increasing_id().alias(INPUT_ORDER),
    )
    # Half of the time goes into handing rows to Python: what is the same in all of them is not handed over.
    constant = {
        TOPIC: not facts.of_other_topics,
        INTERVAL: not isinstance(plan.scheme, Calendar),
        PARTITION: plan.partitions == 1,
    }
    arrivals = arrivals.drop(*(name for name, is_constant in constant.items() if is_constant))
    streams = (
        _in_order_of_arrival(arrivals, plan.partitions, topic, rows_per_chunk)
        if hops
        else _in_order_of_sends(arrivals, rows_per_chunk)
    )
    passes, gaps = _first_in_order(streams, plan.partitions, topic, ledger_entries, grid)
    peaks = passes.exact_peaks(gaps) if exact_peak else (gaps.peak_of_total, gaps.peak_per_partition)
    return Replay(
        entries=gaps.entries,
        hop_count=facts.hop_count,
        hop_count_max=facts.hop_count_max,
        gaps=gaps,
        peak_of_total=peaks[0],
        peak_per_partition=peaks[1],
        was_sorted=passes.stream.is_sorted,
    )


def count_acks(acks: DataFrame, *, grid: Grid | None = None) -> GapCounts:
    """Gap ranges from acknowledgements that were observed, by the position of each entry.

    Args:
        acks: `PARTITION` (int), `ENTRY` (bigint), optionally `LEDGER` (bigint; else all entries are in one), and
            `ACKNOWLEDGED_MS` (bigint, UTC milliseconds; null: not acknowledged), none of the others null and each
            position once. An entry that is missing between two of its ledger, or before the first of a later ledger,
            counts as not acknowledged; what is before a partition's first row is taken as deleted.
        grid: Where to count; None: 4,096 moments from the first acknowledgement to the last.

    Raises:
        EmptyHistory: There is not one acknowledgement.
    """
    if grid is None:
        first_ms, last_ms = acks.agg(F.min(ACKNOWLEDGED_MS), F.max(ACKNOWLEDGED_MS)).first() or (None, None)
        if first_ms is None or last_ms is None:
            raise EmptyHistory
        grid = Grid.regular(first_ms, last_ms)
    ledger = F.col(LEDGER) if LEDGER in acks.columns else F.lit(0)
    placed = acks.select(
        F.lit("").alias(TOPIC),
        F.lit(0).cast("bigint").alias(INTERVAL),
        F.col(PARTITION).cast("int").alias(PARTITION),
        ledger.cast("bigint").alias(LEDGER),
        F.col(ENTRY).cast("bigint").alias(ENTRY),
        F.col(ACKNOWLEDGED_MS).cast("bigint").alias(ACKNOWLEDGED_MS),
    ).orderBy(PARTITION, LEDGER, ENTRY)
    # Spark numbers the tasks of a sorted frame in its order, and each is one stretch.
    found = Stream(frame=placed, is_sorted=True).run(counting(grid, 1, Offsets(), split=False))
    assert found is not None, "nothing is looked at that could be out of order"
    return _gap_counts(grid, found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """What Spark sums up before the arrivals are counted; what was not asked for is 0.

    Args:
        of_other_topics: Timers of another topic than the first one's.
        first_ms: The first arrival.
        last_ms: The last acknowledgement.
        hop_count: Hops of all.
        hop_count_max: The most of one.
    """

    of_other_topics: int
    first_ms: int = 0
    last_ms: int = 0
    hop_count: int = 0
    hop_count_max: int = 0


def _facts(routed: DataFrame, topic: str, *, span: bool, hops: bool) -> _Facts:
    """Numbers only: the least and the greatest of texts would take Spark longer than all of the counting. And none that
    is known without: a file's columns are read only if they are asked for.
    """
    asked = {"of_other_topics": F.sum(F.when(F.col(TOPIC) == topic, 0).otherwise(1))}
    if span:
        asked |= {"first_ms": F.min(ARRIVAL_MS), "last_ms": F.max(ACKNOWLEDGED_MS)}
    if hops:
        asked |= {"hop_count": F.sum(HOPS), "hop_count_max": F.max(HOPS)}
    (found,) = routed.agg(*(column.alias(name) for name, column in asked.items())).collect()
    return _Facts(**found.asDict())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Passes:
    """Arrivals in order, and what has to be known before each of their runs."""

    stream: Stream
    partitions: int
    topic: str
    ledger_entries: int
    offsets: Offsets

    @classmethod
    def prepared(cls, stream: Stream, partitions: int, topic: str, ledger_entries: int) -> _Passes | None:
        """None: the stream is not in order."""
        offsets = Offsets()
        if stream.has_turns and partitions > 1:
            sends = stream.run(tallying(partitions, offsets, topic=topic, by_topic=True))
            if sends is None:
                return None
            offsets = replace(offsets, sends=_sends_before(sends))
        if ledger_entries:
            entries = stream.run(tallying(partitions, offsets, topic=topic))
            if entries is None:
                return None
            offsets = replace(offsets, entries=_entries_before(entries))
        return cls(stream=stream, partitions=partitions, topic=topic, ledger_entries=ledger_entries, offsets=offsets)

    def count(self, grid: Grid) -> GapCounts | None:
        """None: the stream is not in order."""
        found = self.stream.run(
            counting(grid, self.partitions, self.offsets, topic=self.topic, ledger_entries=self.ledger_entries)
        )
        return None if found is None else _gap_counts(grid, found)

    def exact_peaks(self, gaps: GapCounts) -> tuple[Peak, Peak]:
        """(of all partitions together, per partition), exact, by passes over ever finer grids."""
        total, partition = gaps.peak_of_total, gaps.peak_per_partition
        while True:
            spans = gaps.open_spans(least_total=total.gap_count, least_partition=partition.gap_count)
            finer = gaps.grid.refined(spans)
            found = None if finer is None else self.count(finer)
            if found is None:
                # At the moments nothing was found to be above, and between them nothing can be.
                return replace(total, gap_count_limit=total.gap_count), replace(
                    partition, gap_count_limit=partition.gap_count
                )
            gaps = found
            total = max(total, gaps.peak_of_total, key=_gap_count)
            partition = max(partition, gaps.peak_per_partition, key=_gap_count)


def _in_order_of_sends(arrivals: DataFrame, rows_per_chunk: int) -> Iterator[Stream]:
    """As the history is, in case that it is in order; then sorted."""
    frame = arrivals.withColumn(ORDER_MS, F.col(PUBLISH_MS))
    yield as_read(frame.drop(PUBLISH_MS, ARRIVAL_MS, INPUT_ORDER))
    yield sorted_by(frame.drop(PUBLISH_MS, ARRIVAL_MS), INPUT_ORDER, rows_per_chunk=rows_per_chunk)


def _in_order_of_arrival(arrivals: DataFrame, partitions: int, topic: str, rows_per_chunk: int) -> Iterator[Stream]:
    """Sorted by arrival, once each timer has the partition that it got when it was sent."""
    if partitions > 1:
        arrivals = _with_turns(arrivals, partitions, topic, rows_per_chunk)
    frame = arrivals.withColumn(ORDER_MS, F.col(ARRIVAL_MS)).drop(ARRIVAL_MS)
    yield replace(sorted_by(frame, PUBLISH_MS, INPUT_ORDER, rows_per_chunk=rows_per_chunk), has_turns=False)


def _with_turns(arrivals: DataFrame, partitions: int, topic: str, rows_per_chunk: int) -> DataFrame:
    """The arrivals with a partition each."""
    frame = arrivals.withColumn(ORDER_MS, F.col(PUBLISH_MS))
    by_topic = tallying(partitions, Offsets(), topic=topic, by_topic=True)
    stream = as_read(frame)
    sends = stream.run(by_topic)
    if sends is None:
        stream = sorted_by(frame, INPUT_ORDER, rows_per_chunk=rows_per_chunk)
        sends = stream.run(by_topic)
    assert sends is not None, "a sorted stream is in order"
    turned = stream.frame.mapInArrow(
        turning(partitions, Offsets(sends=_sends_before(sends)), topic), stream.frame.schema
    )
    return turned.drop(ORDER_MS, SOURCE)


def _first_in_order(
    streams: Iterator[Stream], partitions: int, topic: str, ledger_entries: int, grid: Grid
) -> tuple[_Passes, GapCounts]:
    for stream in streams:
        passes = _Passes.prepared(stream, partitions, topic, ledger_entries)
        gaps = None if passes is None else passes.count(grid)
        if passes is not None and gaps is not None:
            return passes, gaps
    raise AssertionError("the last stream is sorted, and so in order")


def _sends_before(found: Sequence[Found]) -> dict[RunKey, dict[str, int]]:
    so_far: defaultdict[str, int] = defaultdict(int)
    before: defaultdict[RunKey, dict[str, int]] = defaultdict(dict)
    for row in found:
        before[row.key][row.due.topic] = so_far[row.due.topic]
        so_far[row.due.topic] += row.entries
    return dict(before)


def _entries_before(found: Sequence[Found]) -> dict[RunKey, dict[DuePartition, int]]:
    so_far: defaultdict[DuePartition, int] = defaultdict(int)
    before: defaultdict[RunKey, dict[DuePartition, int]] = defaultdict(dict)
    for row in found:
        before[row.key][row.due] = so_far[row.due]
        so_far[row.due] += row.entries
    return dict(before)


def _gap_counts(grid: Grid, found: Sequence[Found]) -> GapCounts:
    parts: defaultdict[DuePartition, list[Part]] = defaultdict(list)
    for row in found:
        assert row.part is not None, "a pass that counts hands on parts"
        parts[row.due].append(row.part)
    return GapCounts(
        grid=grid,
        partitions=tuple(
            PartitionGaps(due=due, entries=sum(part.entries for part in own), changes=stitched(grid, own))
            for due, own in sorted(parts.items())
        ),
    )


def _gap_count(peak: Peak) -> int:
    return peak.gap_count

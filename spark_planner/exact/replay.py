"""Exact replay: a history played through plans, entry by entry, with gap ranges counted over time.

Every timer takes its plan's way (`routes`), gets a position in its due partition by the order of arrival, and is
acknowledged when it is due, or on arrival if that is later. Ties are decided by the order of sends, and ties of sends
by the order of the input, so that a replay gives the same counts every time. Only counts on the grid reach the driver:
a few numbers for each due partition and stretch of positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

from timewheel.core.plan import Plan

from ..errors import EmptyHistory
from .counting import Asked, Counted, count, keeps_order
from .ranges import GapCounts, Grid, Peak
from .sends import SENDS_PER_CHUNK, CachedSends, keep


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
    counted = count(cached, asked, sends_per_chunk=sends_per_chunk)
    peaks = [(one.gaps.peak_of_total, one.gaps.peak_per_partition) for one in counted]
    if exact_peaks:
        peaks = _exact_peaks(cached, asked, counted, refuted_above, sends_per_chunk)
    return [
        Replay(
            entries=one.gaps.entries,
            hop_count=one.hop_count,
            hop_count_max=one.hop_count_max,
            gaps=one.gaps,
            peak_of_total=total,
            peak_per_partition=partition,
            was_sorted=cached.was_sorted or not keeps_order(plan),
        )
        for plan, one, (total, partition) in zip(plans, counted, peaks, strict=True)
    ]


def _exact_peaks(
    cached: CachedSends, asked: Sequence[Asked], counted: Sequence[Counted], refuted_above: float, sends_per_chunk: int
) -> list[tuple[Peak, Peak]]:
    """Return (peak of all partitions together, peak per partition) of each plan, exact or refuted."""
    total = [one.gaps.peak_of_total for one in counted]
    partition = [one.gaps.peak_per_partition for one in counted]
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
            total[number] = max(total[number], of.peak_of_total, key=_gap_count)
            partition[number] = max(partition[number], of.peak_per_partition, key=_gap_count)
    # No moment has a higher count, and no span can have a higher count.
    return [
        (all_of_it, one) if one.gap_count > refuted_above else (_exactly(all_of_it), _exactly(one))
        for all_of_it, one in zip(total, partition, strict=True)
    ]


def _exactly(peak: Peak) -> Peak:
    return replace(peak, gap_count_limit=peak.gap_count)


def _gap_count(peak: Peak) -> int:
    return peak.gap_count

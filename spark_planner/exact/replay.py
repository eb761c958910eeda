"""Exact replay: a history played through plans, entry by entry, and gap ranges counted over time.

Every timer takes its plan's way (`ways`), gets a position in its due partition by the order of arrival, and is
acknowledged when it is due, or on arrival if that is later. Ties are settled by the order of sends, and those by the
order of the input, so that a replay gives the same counts every time. Nothing but counts on the grid gets to the
driver: a few numbers for each due partition and stretch of positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

from timewheel.core.plan import Plan
from timewheel.spark_planner.errors import EmptyHistory
from timewheel.spark_planner.exact.counting import Asked, Counted, count
from timewheel.spark_planner.exact.grid import Grid
from timewheel.spark_planner.exact.replay_result import GapCounts, Peak
from timewheel.spark_planner.exact.sends import SENDS_PER_CHUNK, Kept, keep
from timewheel.spark_planner.exact.ways import keeps_order

__all__ = ["Replay", "replay", "replay_all"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replay:
    """What a replay found.

    Args:
        entries: Of all due partitions: timers that were played, and beside a shadow the originals of what it lifted.
        hop_count: Re-publications of all of them.
        hop_count_max: The most of one.
        gaps: Gap ranges at each moment of the grid.
        peak_of_total: The most of all due partitions together at one moment.
        peak_per_partition: The most of any one due partition: what the broker's limit is about.
        was_sorted: Whether Spark had to sort sends or arrivals.
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
        history: Normalised (`columns.HISTORY_SCHEMA`). Of several topics each is played through the plan by itself.
        plan: Any scheme.
        grid: As of `replay_all`.
        ledger_entries: As of `replay_all`.
        exact_peak: As of `replay_all`.
        sends_per_chunk: About how many rows one task sorts, where they have to be sorted.

    Raises:
        EmptyHistory: It has no row.
    """
    kept = keep(history, sends_per_chunk=sends_per_chunk)
    try:
        (found,) = replay_all(
            kept,
            [plan],
            grid=grid,
            ledger_entries=ledger_entries,
            exact_peaks=exact_peak,
            sends_per_chunk=sends_per_chunk,
        )
    finally:
        kept.forget()
    return found


def replay_all(
    kept: Kept,
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
        kept: The sends. Of several topics each is played through the plans by itself.
        plans: Of any schemes.
        grid: Where to count; None: 4,096 moments from the first send to the last due time.
        ledger_entries: Entries after which a ledger is closed; 0: all are in one.
        exact_peaks: Go over the sends again, on ever finer grids of where a peak can still be, until all peaks are
            exact. Otherwise they are exact at the grid's moments, and bounded between them.
        refuted_above: With ``exact_peaks``: a plan of which a partition is known to have more gaps is not gone over
            again. Its peaks are that high at least.
        sends_per_chunk: About how many arrivals one task puts in order.

    Returns:
        What each plan does, in their order.

    Raises:
        EmptyHistory: There is not one send.
    """
    if not kept.pieces:
        raise EmptyHistory
    grid = grid or Grid.regular(
        min(piece.first_ms for piece in kept.pieces), max(piece.last_due_ms for piece in kept.pieces)
    )
    asked = [Asked(plan=plan, grid=grid, ledger_entries=ledger_entries) for plan in plans]
    counted = count(kept, asked, sends_per_chunk=sends_per_chunk)
    peaks = [(one.gaps.peak_of_total, one.gaps.peak_per_partition) for one in counted]
    if exact_peaks:
        peaks = _exact_peaks(kept, asked, counted, refuted_above, sends_per_chunk)
    return [
        Replay(
            entries=one.gaps.entries,
            hop_count=one.hop_count,
            hop_count_max=one.hop_count_max,
            gaps=one.gaps,
            peak_of_total=total,
            peak_per_partition=partition,
            was_sorted=kept.was_sorted or not keeps_order(plan),
        )
        for plan, one, (total, partition) in zip(plans, counted, peaks, strict=True)
    ]


def _exact_peaks(
    kept: Kept, asked: Sequence[Asked], counted: Sequence[Counted], refuted_above: float, sends_per_chunk: int
) -> list[tuple[Peak, Peak]]:
    """(of all partitions together, per partition) of each plan, exact or refuted, by passes over ever finer grids."""
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
        found = count(kept, list(finer.values()), sends_per_chunk=sends_per_chunk)
        gaps = {number: one.gaps for number, one in zip(finer, found, strict=True)}
        for number, of in gaps.items():
            total[number] = max(total[number], of.peak_of_total, key=_gap_count)
            partition[number] = max(partition[number], of.peak_per_partition, key=_gap_count)
    # At the moments nothing was found to be above, and between them nothing can be.
    return [
        (all_of_it, one) if one.gap_count > refuted_above else (_exactly(all_of_it), _exactly(one))
        for all_of_it, one in zip(total, partition, strict=True)
    ]


def _exactly(peak: Peak) -> Peak:
    return replace(peak, gap_count_limit=peak.gap_count)


def _gap_count(peak: Peak) -> int:
    return peak.gap_count

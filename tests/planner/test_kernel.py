"""The kernels of an exact count: ranges as a cursor has them, packed numbers, gaps by day."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.cursor import Stored, brute_force_peak, exact_gaps, in_ledgers, ranges_at
from timewheel.core.durations import DAY_MS
from timewheel.spark_planner.exact.ranges import NEVER_MS, GapCounts, GapTally, Grid, RangeCounter, Stitcher, distinct
from timewheel.spark_planner.exact.sends import packed_ascending, packed_spans, unpacked_ascending, unpacked_spans
from timewheel.spark_planner.summary.survey import FINEST_STEP_MS, DailyGaps

T = TypeVar("T")
Partitions = dict[int, list[Stored]]
END_MS = 40  # times are few, so that they often meet

times_ms = st.integers(0, END_MS)


@st.composite
def stored(draw: st.DrawFn) -> list[Stored]:
    """A partition's entries: some not acknowledged, some missing, ledgers of any size."""
    found: list[Stored] = []
    ledger, entry = draw(st.integers(0, 3)), draw(st.integers(0, 2))
    for time_ms in draw(st.lists(times_ms | st.none(), max_size=30)):
        found.append(Stored(ledger, entry, time_ms))
        step = draw(st.sampled_from(["next"] * 8 + ["missing", "ledger", "ledger with a hole"]))
        match step:
            case "ledger":
                ledger, entry = ledger + draw(st.integers(1, 2)), 0
            case "ledger with a hole":
                ledger, entry = ledger + 1, 1
            case _:
                entry += 2 if step == "missing" else 1
    return found


def numbers(values: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


def counted(grid: Grid, partitions: Partitions, rng: random.Random, *, places: bool = False) -> GapCounts:
    """All partitions' entries, interleaved at random in position order, cut into chunks and those into pieces; the
    partitions summed in two groups.
    """
    waiting = {number: list(entries) for number, entries in partitions.items() if entries}
    stream: list[tuple[int, Stored]] = []
    while waiting:
        number = rng.choice(sorted(waiting))
        stream.append((number, waiting[number].pop(0)))
        if not waiting[number]:
            del waiting[number]
    joined: defaultdict[int, Stitcher] = defaultdict(lambda: Stitcher(grid))
    for chunk in cut(stream, rng):
        counter = RangeCounter(grid)
        opened: dict[int, int] = {}
        for piece in cut(chunk, rng):
            for number, _ in piece:
                if number not in opened:
                    opened[number] = len(opened)
                    counter.open(opened[number])
            counter.feed(
                numbers([opened[number] for number, _ in piece]),
                numbers([NEVER_MS if entry.acknowledged_ms is None else entry.acknowledged_ms for _, entry in piece]),
                numbers([entry.ledger for _, entry in piece]) if places else None,
                numbers([entry.entry for _, entry in piece]) if places else None,
            )
        for number, part in zip(opened, counter.parts(), strict=True):
            joined[number].add(part)
    tallies = [GapTally(grid, by_topic=True) for _ in range(2)]
    for number, own in sorted(joined.items()):
        tallies[number % 2].add(str(number), own.entries, own.changes())
    return GapCounts.joined([tally.found() for tally in tallies])


def cut(values: Sequence[T], rng: random.Random) -> list[Sequence[T]]:
    borders = [0, *sorted(rng.choices(range(len(values) + 1), k=rng.randrange(5))), len(values)]
    return [values[low:high] for low, high in pairwise(borders)]


def check(found: GapCounts, partitions: Partitions) -> None:
    points = found.grid.points_ms.tolist()
    over_time = {n: [ranges_at(entries, at_ms) for at_ms in points] for n, entries in partitions.items() if entries}
    columns = list(zip(*over_time.values(), strict=True)) or [(0,)] * len(points)
    assert found.total.tolist() == [sum(column) for column in columns]
    assert found.most.tolist() == [max(column) for column in columns]
    assert {topic: peak.gap_count for topic, peak in found.topics.items()} == {
        str(number): max(counts) for number, counts in over_time.items()
    }
    assert found.entries == sum(map(len, partitions.values()))
    _, both_ends = found.above(1)
    expected = [False, *(any(min(pair) > 1 for pair in zip(*ends, strict=True)) for ends in pairwise(columns))]
    assert both_ends.tolist() == [both and span for both, span in zip(expected, found.grid.spans.tolist(), strict=True)]


grids = st.builds(lambda step: Grid.regular(0, END_MS, max(2, END_MS // step)), st.integers(1, 20)) | st.builds(
    lambda moments: Grid.at(numbers(moments)), st.lists(st.integers(-2, END_MS + 2), min_size=1, max_size=12)
)


@settings(max_examples=400)
@given(partitions=st.lists(stored(), min_size=1, max_size=4), grid=grids, seed=st.integers(0, 2**32))
def test_given_positions_count_as_a_cursor_does(partitions: list[list[Stored]], grid: Grid, seed: int) -> None:
    cases = dict(enumerate(partitions))
    check(counted(grid, cases, random.Random(seed), places=True), cases)


@settings(max_examples=400)
@given(
    partitions=st.lists(st.lists(times_ms, max_size=30), min_size=1, max_size=4), grid=grids, seed=st.integers(0, 2**32)
)
def test_entries_of_one_ledger_count_as_a_cursor_does(partitions: list[list[int]], grid: Grid, seed: int) -> None:
    cases = {number: in_ledgers(found) for number, found in enumerate(partitions)}
    check(counted(grid, cases, random.Random(seed)), cases)


@settings(max_examples=250)
@given(partitions=st.lists(st.lists(times_ms, min_size=1, max_size=40), min_size=1, max_size=3), grid=grids)
def test_the_peak_is_between_its_bounds_and_a_finer_grid_settles_it(partitions: list[list[int]], grid: Grid) -> None:
    cases = {number: in_ledgers(found) for number, found in enumerate(partitions)}
    grid = Grid.regular(0, END_MS, min(len(grid) + 1, END_MS))
    most = max(brute_force_peak(entries) for entries in cases.values())
    found = counted(grid, cases, random.Random(0))
    first = found.peak_per_partition
    assert first.gap_count <= most <= first.gap_count_limit

    best, best_total = first.gap_count, found.peak_of_total.gap_count
    limits = []
    while (finer := found.grid.refined(found.open_spans(total=best_total, partition=best), 8)) is not None:
        found = counted(finer, cases, random.Random(0))
        best = max(best, found.peak_per_partition.gap_count)
        best_total = max(best_total, found.peak_of_total.gap_count)
        limits.append(len(finer))
    assert best == most
    assert best_total == max(
        sum(ranges_at(entries, at_ms) for entries in cases.values()) for at_ms in range(END_MS + 1)
    )
    assert len(limits) <= END_MS.bit_length()  # each time at least halved


@given(st.lists(times_ms, max_size=40))
def test_one_ledger_counts_as_the_law_says(acknowledged_ms: list[int]) -> None:
    grid = Grid.regular(0, END_MS, END_MS + 1)
    found = counted(grid, {0: in_ledgers(acknowledged_ms)}, random.Random(1))
    assert found.total.tolist() == exact_gaps(acknowledged_ms, grid.points_ms.tolist())


def test_the_cursor_by_brute_force_on_a_case_that_can_be_seen() -> None:
    # Ledger 0: acknowledged, not, acknowledged | ledger 1: acknowledged at 5, not, acknowledged: the first is mark-
    # delete's, and the range of the third does not go on into ledger 1.
    entries = [
        Stored(0, 0, 1),
        Stored(0, 1, None),
        Stored(0, 2, 1),
        Stored(1, 0, 5),
        Stored(1, 1, None),
        Stored(1, 2, 1),
    ]
    assert [ranges_at(entries, at_ms) for at_ms in (0, 1, 5)] == [0, 2, 3]
    assert brute_force_peak(entries) == 3


@pytest.mark.parametrize(("first_ms", "last_ms", "points"), [(0, 10, 1), (0, 10, 1 << 20), (10, 0, 5)])
def test_a_grid_that_cannot_be_is_refused(first_ms: int, last_ms: int, points: int) -> None:
    with pytest.raises(ValueError, match="grid"):
        Grid.regular(first_ms, last_ms, points)


def test_partitions_are_opened_in_turn() -> None:
    with pytest.raises(ValueError, match="out of turn"):
        RangeCounter(Grid.regular(0, 1, 2)).open(1)


@given(st.lists(st.integers(0, 6), max_size=40) | st.lists(st.integers(0, 2**62), max_size=40))
def test_a_table_says_what_a_sort_says(values: list[int]) -> None:
    present, where = distinct(numbers(values))
    assert present.tolist() == sorted(set(values))
    assert present[where].tolist() == values


MOST = 2**63 - 1


@given(st.lists(st.integers(0, MOST), max_size=50))
def test_spans_come_back(values: list[int]) -> None:
    packed = packed_spans(np.array(values, np.int64))

    assert unpacked_spans(memoryview(packed)).tolist() == values


@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=50))
def test_times_in_order_come_back(values: list[int]) -> None:
    packed = packed_ascending(np.sort(np.array(values, np.int64)))

    assert unpacked_ascending(memoryview(packed)).tolist() == sorted(values)


@pytest.mark.parametrize(
    ("most", "width"), [(0, 1), (255, 1), (256, 2), (2**16 - 1, 2), (2**16, 4), (2**32 - 1, 4), (2**32, 8), (MOST, 8)]
)
def test_no_number_takes_more_bytes_than_the_widest_needs(most: int, width: int) -> None:
    assert len(packed_spans(np.array([0, most, 1], np.int64))) == 1 + 3 * width


Integers = NDArray[np.int64]
sends = st.lists(st.tuples(st.integers(0, 3 * DAY_MS), st.integers(0, 2 * DAY_MS)), min_size=0, max_size=60).map(
    lambda found: np.array(sorted(found), np.int64).reshape(-1, 2)
)


def by_definition(due_ms: Integers, at_ms: int) -> int:
    """Pairs of neighbours of which only the later one is acknowledged."""
    return sum(after <= at_ms < before for before, after in pairwise(due_ms.tolist()))


@given(sends, st.integers(0, 6), st.integers(0, 5 * DAY_MS))
def test_the_days_together_count_what_there_is(sent: Integers, doublings: int, at_ms: int) -> None:
    publish_ms, due_ms = sent[:, 0], sent[:, 0] + sent[:, 1]
    step_ms = FINEST_STEP_MS << doublings
    found = DailyGaps.of_sends(publish_ms, due_ms, step_ms)
    moment_ms = at_ms // step_ms * step_ms
    assert int(found.at(np.array([at_ms]))[0]) == by_definition(due_ms, moment_ms)
    days = [found.of_day(day) for day in np.unique(found.day).tolist()]
    again = DailyGaps.merged(days)
    for name in ("day", "moment", "change"):
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name))


@given(sends, st.integers(0, 4), st.integers(0, 4))
def test_fewer_moments_are_those_that_would_have_been_counted(sent: Integers, fine: int, coarser: int) -> None:
    publish_ms, due_ms = sent[:, 0], sent[:, 0] + sent[:, 1]
    step_ms = FINEST_STEP_MS << (fine + coarser)
    found = DailyGaps.of_sends(publish_ms, due_ms, FINEST_STEP_MS << fine).coarsened(step_ms)
    straight = DailyGaps.of_sends(publish_ms, due_ms, step_ms)
    assert (found.change != 0).all()
    for name in ("day", "moment", "change"):
        np.testing.assert_array_equal(getattr(found, name), getattr(straight, name))


def test_only_longer_steps_are_among_the_shorter() -> None:
    with pytest.raises(ValueError, match="2000 ms apart are not among those 4000"):
        DailyGaps.none(4_000).coarsened(2_000)

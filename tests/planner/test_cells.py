"""Cells: merging does not depend on order or cut, and nothing is lost by coarsening."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timewheel.spark_planner.summary.cells import BUCKET_BITS, LEVELS, Cells, bounded_together, bucket_of

TIMERS = st.lists(
    st.tuples(
        st.integers(1_700_000_000_000, 1_700_000_000_000 + 10 * 86_400_000),  # publish
        st.one_of(st.integers(0, 100), st.integers(0, 10 * 365 * 86_400_000), st.just(3_600_000)),  # delay
        st.integers(0, 5_000_000),  # size
    ),
    max_size=60,
)
FACTS = ("count", *(f"{what}_{end}_ms" for what in ("publish", "delay", "due") for end in ("min", "max")), "size_bytes")
ARRAYS = ("slot", "bucket", *FACTS)


def cells_of(timers: list[tuple[int, int, int]], level: int = 0) -> Cells:
    publish, delay, size = np.array(timers, np.int64).reshape(-1, 3).T
    return Cells.of_timers(publish, publish + delay, size, level=level)


def rows(cells: Cells) -> list[tuple[int, ...]]:
    return [tuple(map(int, row)) for row in zip(*(getattr(cells, name) for name in ARRAYS), strict=True)]


def brute_force(timers: list[tuple[int, int, int]], level: int) -> list[tuple[int, ...]]:
    groups: defaultdict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
    bits = LEVELS[level].bits
    for publish, delay, size in timers:
        shift = max(max(delay, 1).bit_length() - 1 - bits, 0)
        groups[publish // LEVELS[level].slot_ms, (shift << bits) + (delay >> shift)].append((publish, delay, size))
    found: list[tuple[int, ...]] = []
    for (slot, bucket), members in sorted(groups.items()):
        publishes, delays = [publish for publish, _, _ in members], [delay for _, delay, _ in members]
        dues = [publish + delay for publish, delay, _ in members]
        extremes = (min(publishes), max(publishes), min(delays), max(delays), min(dues), max(dues))
        found.append((slot, bucket, len(members), *extremes, sum(size for _, _, size in members)))
    return found


@given(TIMERS, st.integers(0, len(LEVELS) - 1))
def test_cells_are_the_groups_that_a_dictionary_finds(timers: list[tuple[int, int, int]], level: int) -> None:
    assert rows(cells_of(timers, level)) == brute_force(timers, level)
    assert rows(cells_of(timers).coarsened(level)) == brute_force(timers, level)


@given(TIMERS, TIMERS, TIMERS, st.tuples(*[st.integers(0, len(LEVELS) - 1)] * 3))
def test_merging_is_associative_and_commutative_at_any_levels(
    first: list[tuple[int, int, int]],
    second: list[tuple[int, int, int]],
    third: list[tuple[int, int, int]],
    levels: tuple[int, int, int],
) -> None:
    a, b, c = (cells_of(timers, level) for timers, level in zip((first, second, third), levels, strict=True))
    together = rows(Cells.merged([a, b, c]))
    assert together == brute_force(first + second + third, max(levels))
    assert rows(Cells.merged([c, Cells.merged([b, a])])) == together
    assert rows(Cells.merged([Cells.merged([a, c]), b])) == together


@given(TIMERS, st.data())
def test_any_cut_of_a_history_gives_the_same_bounded_cells(
    timers: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    limit = data.draw(st.integers(1, 70))
    tasks = data.draw(st.lists(st.integers(0, 4), min_size=len(timers), max_size=len(timers)))
    parts = [
        cells_of([timer for timer, of in zip(timers, tasks, strict=True) if of == task]).bounded(limit)
        for task in range(5)
    ]
    whole = cells_of(timers).bounded(limit)
    merged = Cells.merged(data.draw(st.permutations(parts))).bounded(limit)
    assert (merged.level, rows(merged)) == (whole.level, rows(whole))


@given(TIMERS, st.integers(1, 70))
def test_bounding_keeps_counts_and_extremes_and_stops_at_the_first_level_that_fits(
    timers: list[tuple[int, int, int]], limit: int
) -> None:
    fine = cells_of(timers)
    cells = fine.bounded(limit)
    assert len(cells) <= limit or cells.level == len(LEVELS) - 1
    assert cells.level == 0 or len(cells_of(timers, cells.level - 1)) > limit
    assert cells.timers == len(timers)
    assert int(cells.size_bytes.sum()) == sum(size for _, _, size in timers)
    if timers:
        for name in ("publish", "delay", "due"):
            assert getattr(cells, f"{name}_min_ms").min() == getattr(fine, f"{name}_min_ms").min()
            assert getattr(cells, f"{name}_max_ms").max() == getattr(fine, f"{name}_max_ms").max()


@given(st.lists(TIMERS, min_size=1, max_size=4), st.data())
def test_topics_are_bounded_together_whatever_the_cut(
    topics: list[list[tuple[int, int, int]]], data: st.DataObject
) -> None:
    limit = data.draw(st.integers(1, 100))
    whole = bounded_together({str(topic): cells_of(timers) for topic, timers in enumerate(topics)}, limit)
    at = [data.draw(st.integers(0, len(timers))) for timers in topics]
    halves = [
        bounded_together({str(topic): cells_of(timers[cut]) for topic, (timers, cut) in enumerate(cuts)}, limit)
        for cuts in (
            [(timers, slice(0, end)) for timers, end in zip(topics, at, strict=True)],
            [(timers, slice(end, None)) for timers, end in zip(topics, at, strict=True)],
        )
    ]
    merged = bounded_together({topic: Cells.merged([half[topic] for half in halves]) for topic in whole}, limit)
    assert {topic: rows(cells) for topic, cells in merged.items()} == {t: rows(cells) for t, cells in whole.items()}
    assert len({cells.level for cells in whole.values()}) == 1


@given(st.integers(0, 2**53 - 1), st.integers(3, 5))
def test_buckets_are_ordered_narrow_and_nested(delay_ms: int, bits: int) -> None:
    def bucket(value: int, of_bits: int) -> int:
        return int(bucket_of(np.array([value], np.int64), of_bits)[0])

    assert bucket(delay_ms, bits) <= bucket(min(delay_ms + 1, 2**53 - 1), bits) < 1 << BUCKET_BITS
    # Within a bucket delays differ by less than one part in 2 ** bits; so twice that further on is another bucket.
    assert bucket(delay_ms, bits) < bucket(delay_ms + (delay_ms >> bits - 1) + 1, bits)
    lower, upper = (delay_ms >> 3) << 3, delay_ms
    if bucket(lower, 5) == bucket(upper, 5):
        assert bucket(lower, 3) == bucket(upper, 3)


def test_the_ladder_nests_and_its_last_rung_holds_any_history() -> None:
    for finer, coarser in pairwise(LEVELS):
        assert coarser.slot_ms % finer.slot_ms == 0
        assert coarser.bits <= finer.bits
    span_ms = LEVELS[-1].slot_ms
    assert span_ms > 4_000 * 365 * 86_400_000
    delays_ms = np.geomspace(1, 10 * 365 * 86_400_000, 1_000_000).astype(np.int64)
    assert len(Cells.of_timers(np.zeros_like(delays_ms), delays_ms, level=len(LEVELS) - 1)) < 300


def test_cells_do_not_become_finer_again() -> None:
    with pytest.raises(ValueError, match="finer"):
        cells_of([(0, 1, 0)], level=3).coarsened(2)


def test_a_million_timers_of_one_fixed_delay_keep_its_width_of_nothing() -> None:
    publish_ms = 1_700_000_000_000 + np.arange(1_000_000, dtype=np.int64) * 864
    cells = Cells.of_timers(publish_ms, publish_ms + 3_600_000).bounded(10_000)
    assert len(cells) <= 10_000
    assert (cells.delay_min_ms == cells.delay_max_ms).all()

"""Ledgers and redelivery entry by entry, against the rules acted out."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.support.brute_force import Rollover, most_gaps
from tests.support.forgetting import redelivered_exactly
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS
from timewheel.core.plan import Native, Plan
from timewheel.spark_planner.choice.constraints import compared_above
from timewheel.spark_planner.exact.ranges import Grid
from timewheel.spark_planner.exact.replay import Asked, count, count_exactly, grid_for, scattered
from timewheel.spark_planner.exact.sends import FEW_TOPICS, keep
from timewheel.spark_planner.exact.unload import Ledgers, Unload
from timewheel.spark_planner.history.columns import HISTORY_SCHEMA


def cut(number: int, rng: random.Random) -> list[slice]:
    borders = sorted({0, number, *(rng.randrange(number) for _ in range(3))})
    return [slice(low, high) for low, high in pairwise(borders)]


@settings(max_examples=300)
@given(
    arrival_ms=st.lists(st.integers(0, 60), min_size=1, max_size=60).map(sorted),
    entries=st.integers(1, 9),
    ages=st.tuples(st.integers(0, 12), st.integers(1, 30)),
    seed=st.integers(0, 2**32),
)
def test_ledgers_are_closed_as_a_broker_does(
    arrival_ms: list[int], entries: int, ages: tuple[int, int], seed: int
) -> None:
    profile = BrokerProfile(name="x", ledger_max_entries=entries, ledger_min_age_ms=ages[0], ledger_max_age_ms=ages[1])
    numbered, found = Ledgers(profile, 100.0), []
    for part in cut(len(arrival_ms), random.Random(seed)):
        found += list(zip(*(of.tolist() for of in numbered.places(np.array(arrival_ms[part]))), strict=True))
    rollover = Rollover(profile.ledger_max_entries, profile.ledger_min_age_ms, profile.ledger_max_age_ms)
    by_hand = rollover.ledgers(np.array(arrival_ms)).tolist()
    assert found == [(ledger, number - by_hand.index(ledger)) for number, ledger in enumerate(by_hand)]


def test_a_ledger_is_full_of_bytes_too() -> None:
    profile = BrokerProfile(name="x", ledger_max_bytes=1_000, ledger_min_age_ms=0)
    ledger, _ = Ledgers(profile, 300.0).places(np.arange(9))
    assert ledger.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2]


def ranges_of(acknowledged: np.ndarray, ledger_entries: int) -> int:
    """Count the ranges behind mark-delete; a range ends with its ledger."""
    past = acknowledged & (np.cumsum(~acknowledged) > 0)
    begins = past & ~np.r_[False, past[:-1]]
    begins[::ledger_entries] = past[::ledger_entries]
    return int(np.count_nonzero(begins))


@settings(max_examples=400)
@given(
    acknowledged_ms=st.lists(st.integers(0, 12), min_size=1, max_size=60),
    ledger_entries=st.sampled_from([1, 2, 3, 7, 100]),
    limits=st.tuples(st.integers(0, 6), st.integers(0, 4)),
    keeps_crossing_ledger=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_an_unload_delivers_again_what_the_rules_say(
    acknowledged_ms: list[int],
    ledger_entries: int,
    limits: tuple[int, int],
    keeps_crossing_ledger: bool,
    seed: int,
) -> None:
    profile = BrokerProfile(
        name="x",
        gap_limit_ranges=limits[0],
        metadata_store_limit_ranges=limits[1],
        keeps_crossing_ledger=keeps_crossing_ledger,
    )
    moments_ms = np.arange(-1, 14)
    unload, times = Unload(moments_ms, profile), np.array(acknowledged_ms)
    for part in cut(len(times), random.Random(seed)):
        unload.feed(times[part], np.arange(len(times))[part] // ledger_entries)
    ranges, bitmap = unload.redelivered()
    for at_ms, as_bitmap in zip(moments_ms.tolist(), bitmap.tolist(), strict=True):
        alone = Unload(np.array([at_ms]), profile)
        alone.feed(times, np.arange(len(times)) // ledger_entries)
        entries = compared_above(alone.compared().tolist(), 1.0)
        number = ranges_of(times <= at_ms, ledger_entries)
        assert entries == 0 or number > min(limits)
        # Every acknowledgement is kept just if there are few ranges, or the entries are within the limit.
        if number <= limits[0]:
            assert (as_bitmap == 0) == (entries <= limits[0])
    for at_ms, as_ranges, as_bitmap in zip(moments_ms.tolist(), ranges.tolist(), bitmap.tolist(), strict=True):
        acknowledged = times <= at_ms
        assert as_ranges == redelivered_exactly(acknowledged, ledger_entries, profile, "ranges")
        assert as_bitmap == redelivered_exactly(acknowledged, ledger_entries, profile, "bitmap")


@pytest.mark.parametrize("partitions", [2, 3, 7, 64])
def test_sends_at_random_spread_evenly_and_in_no_order(partitions: int) -> None:
    rows = 10_000 * partitions
    found = scattered(np.arange(rows), partitions)
    counts = np.bincount(found, minlength=partitions)
    assert abs(counts / 10_000 - 1).max() < 0.05
    again = np.mean(found[1:] == found[:-1])
    assert again == pytest.approx(1 / partitions, rel=0.05, abs=0.002)


BEGIN_MS = 1_700_000_000_000
PLAN = Plan(due_topic="persistent://acme/crm/reminders", subscriptions=("s",), scheme=Native())


def test_delays_in_strict_turns_are_worse_with_a_second_producer(spark: SparkSession) -> None:
    """Timers of an hour and of five days, in turns: one producer sends each kind to a partition of its own."""
    sent_ms = BEGIN_MS + np.arange(4_000) * 60_000
    delay_ms = np.where(np.arange(4_000) % 2, 5 * DAY_MS, DAY_MS // 24)
    rows = [(sent, sent + delay, 0, None, "") for sent, delay in zip(sent_ms.tolist(), delay_ms.tolist(), strict=True)]
    cached = keep(spark.createDataFrame(rows, HISTORY_SCHEMA).coalesce(1))
    asked = Asked(plan=PLAN.with_partitions(2), grid=grid_for(cached))
    turns, chance = count_exactly(cached, [asked, Asked(plan=asked.plan, grid=asked.grid, at_random=True)])
    cached.forget()
    assert turns.peak_per_partition.gap_count == 0
    by_hand = most_gaps(asked.plan, sent_ms, sent_ms + delay_ms, scattered(np.arange(4_000), 2))
    assert chance.peak_per_partition.gap_count == by_hand > 500


def test_topics_in_turns_are_counted_as_if_each_were_alone(spark: SparkSession) -> None:
    rng = np.random.default_rng(3)
    topics, number = 3 * FEW_TOPICS, 20_000
    topic = rng.zipf(1.3, number) % topics
    sent_ms = BEGIN_MS + np.sort(rng.integers(0, DAY_MS, number))
    due_ms = sent_ms + rng.integers(0, DAY_MS, number)
    key = rng.zipf(1.5, number) % 50
    rows = [
        (sent, due, 0, f"k-{key}", f"topic-{of}")
        for sent, due, key, of in zip(sent_ms.tolist(), due_ms.tolist(), key.tolist(), topic.tolist(), strict=True)
    ]
    frame = spark.createDataFrame(rows, HISTORY_SCHEMA).repartition(3)
    cached = keep(frame, topics=topics, sends_per_chunk=2_000)
    assert max(piece.sends for piece in cached.pieces) > 1_000
    assert len(cached.pieces) < 2 * topics
    grid = Grid.regular(int(sent_ms[0]), int(due_ms.max()), 200)
    (found,) = count(cached, [Asked(plan=PLAN, grid=grid, by_topic=True)])
    for of in np.unique(topic).tolist():
        own = due_ms[topic == of]
        counts = np.count_nonzero((own[1:, None] <= grid.points_ms) & (grid.points_ms < own[:-1, None]), axis=0)
        assert found.gaps.topics[f"topic-{of}"].gap_count == counts.max()
        heaviest, share = cached.keys[f"topic-{of}"].heaviest or ("", 0.0)
        keys = np.bincount(key[topic == of])
        if len(own) > 500:
            assert heaviest == f"k-{keys.argmax()}"
            assert share == pytest.approx(keys.max() / len(own), rel=0.02)
    cached.forget()

"""The exact replay on Spark against brute force, on thousands of small histories."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that every user of PySpark knows

from tests.core.plan_space import journey, plans, sends
from tests.support.cursor import Stored, in_ledgers, ranges_at
from tests.support.observed_acks import ACKNOWLEDGED_MS, ENTRY, LEDGER, PARTITION, count_acks
from tests.support.stored_entry import native_entry
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import HOUR_MS, SECOND_MS
from timewheel.core.names import java_string_hash, partition_for_key
from timewheel.core.plan import Calendar, Native, Plan, Ring, Scheme, Tiered, Wheel
from timewheel.core.routing import Hold, Router
from timewheel.shadow.machine.move_decider import MoveDecider, MoveDecision
from timewheel.spark_planner.errors import EmptyHistory
from timewheel.spark_planner.exact.ranges import Grid
from timewheel.spark_planner.exact.replay import Asked, Replay, count_exactly, keeps_order, replay, routes
from timewheel.spark_planner.exact.sends import NO_KEY, keep, key_hashes
from timewheel.spark_planner.history.columns import HISTORY_SCHEMA

DueKey = tuple[str, int, int]  # (topic, calendar interval, partition)


class Sent(NamedTuple):
    """A row of a normalised history."""

    publish_ms: int
    due_ms: int
    size_bytes: int
    key: str | None
    topic: str


class _Arrived(NamedTuple):
    arrival_ms: int
    publish_ms: int
    input_order: int
    acknowledged_ms: int


def brute_replay(history: Sequence[Sent], plan: Plan, ledger_entries: int) -> dict[DueKey, list[Stored]]:
    """Return the entries of every due partition, in position order."""
    router = Router(plan)
    turns: defaultdict[str, int] = defaultdict(int)
    arrived: defaultdict[DueKey, list[_Arrived]] = defaultdict(list)
    for order, sent in sorted(enumerate(history), key=lambda item: (item[1].publish_ms, item[0])):
        turn = turns[sent.topic]
        turns[sent.topic] += 1
        partition = partition_for_key(sent.key, plan.partitions) if sent.key else turn % plan.partitions
        at_ms = sent.publish_ms
        interval = sent.due_ms // plan.scheme.interval_ms if isinstance(plan.scheme, Calendar) else 0
        here = arrived[sent.topic, interval, partition]
        if plan.intake:
            decision = MoveDecider(plan).decision(native_entry(sent.publish_ms, sent.due_ms), sent.publish_ms)
            moved = decision is MoveDecision.MOVE
            # A moved message is acknowledged at once, any other message when it is due.
            here.append(_Arrived(at_ms, at_ms, order, at_ms if moved else sent.due_ms))
            if not moved:
                continue
        while isinstance(route := router.route(sent.due_ms, at_ms), Hold):
            at_ms = route.release_at_ms
        here.append(_Arrived(at_ms, sent.publish_ms, order, max(sent.due_ms, at_ms)))
    return {
        key: in_ledgers([entry.acknowledged_ms for entry in sorted(entries)], ledger_entries)
        for key, entries in arrived.items()
    }


CASES = 120  # small histories in one Spark job, each a topic of its own: Spark's time is by the job
BEGIN_MS = 1_700_000_000_000
SPAN_MS = 30 * SECOND_MS
TICK_MS = 500  # times are few, so that they often meet

TIERS = Tiered(window_ms=3_000, tiers_ms=(2_000, 5_000))
TIERS_OF_HOURS = Tiered(window_ms=HOUR_MS // 4, tiers_ms=(HOUR_MS // 4,))
RINGS = Wheel(rings=(Ring(slot_ms=2_000, slots=20), Ring(slot_ms=10_000, slots=10)))


def plan(scheme: Scheme, partitions: int = 1, *, intake: bool = False) -> Plan:
    return Plan(
        due_topic="persistent://acme/crm/reminders",
        subscriptions=("s",),
        scheme=scheme,
        partitions=partitions,
        guard_ms=500,
        max_delay_ms=max(SPAN_MS, HOUR_MS if scheme is TIERS_OF_HOURS else 0),
        relay="service" if intake else "embedded",
        intake=intake,
    )


def histories(seed: int) -> list[Sent]:
    """Cases of 1 to 25 timers: uniform, fixed and clock-aligned delays, some with keys; interleaved, not in order."""
    rng = random.Random(seed)
    found: list[Sent] = []
    for case in range(CASES):
        kind = rng.choice(["uniform", "fixed", "clock", "burst"])
        burst_ms = rng.randrange(0, SPAN_MS, TICK_MS)
        for _ in range(rng.randrange(1, 26)):
            publish_ms = BEGIN_MS + (burst_ms if kind == "burst" else rng.randrange(0, SPAN_MS, TICK_MS))
            due_ms = publish_ms + rng.randrange(0, SPAN_MS, TICK_MS)
            if kind == "fixed":
                due_ms = publish_ms + rng.choice([0, 4_000, 12_000])
            elif kind == "clock":
                due_ms = (due_ms // 5_000 + 1) * 5_000
            found.append(Sent(publish_ms, due_ms, 0, rng.choice([None, None, "", "a", "k-7", "é😀"]), f"case-{case}"))
    rng.shuffle(found)
    return found


def frame_of(spark: SparkSession, history: Sequence[Sent]) -> DataFrame:
    return spark.createDataFrame([tuple(sent) for sent in history], HISTORY_SCHEMA)


GRID = Grid.regular(BEGIN_MS, BEGIN_MS + 2 * SPAN_MS, 2 * SPAN_MS // 1_500 + 1)
"""Of three ticks: what a peak does between its moments has to be found as well."""
EVERY_TICK = range(BEGIN_MS, BEGIN_MS + 2 * SPAN_MS + 5_001, TICK_MS)


def broker(ledger_entries: int) -> BrokerProfile:
    """Return a broker that closes ledgers by their entries alone."""
    age_ms = 365 * 24 * HOUR_MS
    return BrokerProfile(name="x", ledger_max_entries=ledger_entries, ledger_min_age_ms=0, ledger_max_age_ms=age_ms)


def replayed(
    spark: SparkSession, history: Sequence[Sent], value: Plan, ledger_entries: int
) -> tuple[Replay, dict[DueKey, list[Stored]]]:
    """Replay a history, and check the gaps at every moment and the peaks against those of the brute force."""
    # 0 entries in a ledger: a quick count.
    profile = broker(ledger_entries) if ledger_entries else None
    cached = keep(frame_of(spark, history), sends_per_chunk=len(history) // 5)
    asked = Asked(plan=value, grid=GRID, profile=profile, by_topic=True)
    (found,) = count_exactly(cached, [asked], sends_per_chunk=len(history) // 5)
    cached.forget()
    cursors = brute_replay(history, value, ledger_entries)
    points = GRID.points_ms.tolist()
    at_points = {key: [ranges_at(entries, at_ms) for at_ms in points] for key, entries in cursors.items()}
    assert found.gaps.total.tolist() == [sum(column) for column in zip(*at_points.values(), strict=True)]
    assert found.gaps.most.tolist() == [max(column) for column in zip(*at_points.values(), strict=True)]
    assert {topic: peak.gap_count for topic, peak in found.gaps.topics.items()} == {
        topic: max(max(counts) for key, counts in at_points.items() if key[0] == topic)
        for topic in {key[0] for key in cursors}
    }
    over_time = [[ranges_at(entries, at_ms) for at_ms in EVERY_TICK] for entries in cursors.values()]
    assert found.peak_per_partition.gap_count == max(map(max, over_time))
    assert found.peak_of_total.gap_count == max(map(sum, zip(*over_time, strict=True)))
    assert found.peak_of_total.is_exact
    assert found.peak_per_partition.is_exact
    assert sum(counts[EVERY_TICK.index(found.peak_of_total.at_ms)] for counts in over_time) == (
        found.peak_of_total.gap_count
    )
    return found, cursors


REPLAYED: dict[str, tuple[Scheme, int, int]] = {
    "native": (Native(), 1, 0),
    "native-3-ledgers": (Native(), 3, 4),
    "calendar-2-ledgers": (Calendar(interval_ms=4_000), 2, 3),
    "tiers-ledgers": (TIERS, 1, 5),
    "tiers-3": (TIERS, 3, 0),
    "rings-2-ledgers": (RINGS, 2, 4),
}
"""By name: scheme, partitions, entries in a ledger."""
LONGER = {
    # What is sorted anyway goes the way of the shuffled.
    **{(name, True): pytest.mark.proof for name in REPLAYED if name not in ("native", "calendar-2-ledgers")},
    **{(name, False): pytest.mark.short for name in ("native-3-ledgers", "calendar-2-ledgers", "rings-2-ledgers")},
}
"""By name, and whether the history is in order."""


@pytest.mark.parametrize(
    ("scheme", "partitions", "ledger_entries", "is_in_order"),
    [
        pytest.param(
            *case,
            is_in_order,
            id=f"{name}-{'in order' if is_in_order else 'shuffled'}",
            marks=LONGER.get((name, is_in_order), ()),
        )
        for name, case in REPLAYED.items()
        for is_in_order in (True, False)
    ],
)
def test_a_replay_equals_brute_force(
    spark: SparkSession, scheme: Scheme, partitions: int, ledger_entries: int, is_in_order: bool
) -> None:
    history = histories(10 * partitions + ledger_entries)
    if is_in_order:
        history.sort(key=lambda sent: sent.publish_ms)
    value = plan(scheme, partitions)
    found, _ = replayed(spark, history, value, ledger_entries)

    assert found.entries == len(history)
    assert found.was_sorted == (isinstance(scheme, Tiered | Wheel) or not is_in_order)


SHADOWS: dict[str, tuple[Scheme, int, int]] = {
    "tiers": (TIERS, 1, 0),
    "tiers-3-ledgers": (TIERS, 3, 5),
    "rings-2-ledgers": (RINGS, 2, 4),
}


@pytest.mark.parametrize(
    ("scheme", "partitions", "ledger_entries"),
    [
        pytest.param(*case, id=name, marks=() if name == "tiers-3-ledgers" else pytest.mark.short)
        for name, case in SHADOWS.items()
    ],
)
def test_a_replay_beside_a_shadow_equals_brute_force(
    spark: SparkSession, scheme: Scheme, partitions: int, ledger_entries: int
) -> None:
    """Each message stored as it came, judged by the shadow's own code, and its copy walked by the router."""
    history = histories(100 + 10 * partitions + ledger_entries)
    value = plan(scheme, partitions, intake=True)
    found, cursors = replayed(spark, history, value, ledger_entries)
    moved = sum(map(len, cursors.values())) - len(history)
    assert 100 < moved < len(history) - 100
    assert found.entries == len(history) + moved
    far = [sent for sent in history if MoveDecider(value).far_ms <= sent.due_ms - sent.publish_ms <= value.max_delay_ms]
    assert len(far) == moved
    hops = [1 + len(journey(value, sent.due_ms, sent.publish_ms).holds) for sent in far]
    assert (found.hop_count, found.hop_count_max) == (sum(hops), max(hops))


def test_many_plans_in_one_pass_are_each_counted_as_if_alone(spark: SparkSession) -> None:
    history = frame_of(spark, [sent for sent in histories(7) if sent.topic.endswith("7")])
    plans = [plan(scheme, partitions) for scheme, partitions, _ in REPLAYED.values()]
    cached = keep(history)
    asked = [
        Asked(plan=value, grid=GRID, topic=topic, profile=profile)
        for value in plans
        for topic, profile in ((None, None), ("case-7", broker(3)), ("case-17", None))
    ]
    for one, found in zip(asked, count_exactly(cached, asked), strict=True):
        of_topic = history if one.topic is None else history.where(F.col("topic") == one.topic)
        alone = replay(of_topic, one.plan, grid=GRID, profile=one.profile, exact_peak=True)
        assert found.entries == alone.entries
        assert found.gaps.total.tolist() == alone.gaps.total.tolist()
        assert (found.hop_count, found.hop_count_max) == (alone.hop_count, alone.hop_count_max)
        assert (found.peak_of_total, found.peak_per_partition) == (alone.peak_of_total, alone.peak_per_partition)
    cached.forget()


def test_hops_are_those_of_the_router(spark: SparkSession) -> None:
    history = histories(8)
    found = replay(frame_of(spark, history), plan(TIERS), grid=GRID)
    hops = [len(journey(plan(TIERS), sent.due_ms, sent.publish_ms).holds) for sent in history]
    assert (found.hop_count, found.hop_count_max) == (sum(hops), max(hops))


@pytest.mark.short
def test_files_in_order_need_no_sort_however_spark_reads_them(spark: SparkSession, tmp_path: Path) -> None:
    # Spark reads the largest file first and packs several into one task: here the order of times is another.
    rng = np.random.default_rng(5)
    rows = [300, 20_000, 5, 8_000, 1, 40_000]
    publish_ms = np.sort(rng.integers(0, 24 * HOUR_MS, sum(rows)))
    due_ms = publish_ms + rng.integers(0, HOUR_MS, sum(rows))
    at = 0
    for number, size in enumerate(rows):
        own = slice(at, at + size)
        at += size
        table = pa.table(
            {
                "publish_ms": publish_ms[own],
                "due_ms": due_ms[own],
                "size_bytes": np.zeros(size, np.int64),
                "key": pa.nulls(size, pa.string()),
                "topic": pa.array([""] * size),
            }
        )
        pq.write_table(table, tmp_path / f"part-{number}.parquet")
    history = spark.read.parquet(str(tmp_path))
    found = replay(history, plan(Native()))
    assert not found.was_sorted
    in_one = replay(history.orderBy("publish_ms").coalesce(1), plan(Native()))
    assert found.gaps.total.tolist() == in_one.gaps.total.tolist()
    # Where the order of arrival is another, and where sends take turns, the order of the files matters as well.
    for value in (plan(TIERS_OF_HOURS, 3), plan(Native(), 3)):
        of_files, of_one = (replay(of, value) for of in (history, history.orderBy("publish_ms").coalesce(1)))
        assert of_files.gaps.total.tolist() == of_one.gaps.total.tolist()
        assert of_files.peak_per_partition == of_one.peak_per_partition
    before, after = due_ms[:-1], due_ms[1:]
    for at_ms, count in zip(found.gaps.grid.points_ms[::50], found.gaps.total[::50], strict=True):
        assert count == np.count_nonzero((after <= at_ms) & (at_ms < before))


@pytest.mark.parametrize("has_ledgers", [True, False])
def test_acknowledgements_that_were_observed_are_counted_by_position(spark: SparkSession, has_ledgers: bool) -> None:
    rng = random.Random(11)
    cursors: dict[int, list[Stored]] = {}
    for partition in range(300):
        ledger, entry = rng.randrange(5), rng.randrange(3)
        cursors[partition] = []
        for _ in range(rng.randrange(1, 30)):
            at_ms = rng.choice([None, *[BEGIN_MS + rng.randrange(0, SPAN_MS, TICK_MS)] * 9])
            cursors[partition].append(Stored(ledger if has_ledgers else 0, entry, at_ms))
            entry += rng.choice([1] * 9 + [2])
            if has_ledgers and rng.random() < 0.2:
                ledger, entry = ledger + 1, rng.choice([0, 0, 0, 1])
    rows = [(partition, *stored) for partition, entries in cursors.items() for stored in entries]
    rng.shuffle(rows)
    acks = spark.createDataFrame(
        rows, f"{PARTITION} int, {LEDGER} bigint, {ENTRY} bigint, {ACKNOWLEDGED_MS} bigint"
    ).repartition(5)
    found = count_acks(acks if has_ledgers else acks.drop(LEDGER), grid=GRID)
    at_points = {number: [ranges_at(of, at_ms) for at_ms in GRID.points_ms.tolist()] for number, of in cursors.items()}
    assert found.total.tolist() == [sum(column) for column in zip(*at_points.values(), strict=True)]
    assert {topic: peak.gap_count for topic, peak in found.topics.items()} == {
        str(number): max(counts) for number, counts in at_points.items()
    }


def test_an_empty_history_is_refused(spark: SparkSession) -> None:
    empty = spark.createDataFrame([], HISTORY_SCHEMA)
    with pytest.raises(EmptyHistory):
        replay(empty, plan(Native()))
    acks = spark.createDataFrame([(0, 0, None)], f"{PARTITION} int, {ENTRY} bigint, {ACKNOWLEDGED_MS} bigint")
    with pytest.raises(EmptyHistory):
        count_acks(acks)


# ----------------- The ways of many sends at once are those of the router, one by one; and their keys have Java's hash.
SENDS_PER_PLAN = 30


@st.composite
def sent(draw: st.DrawFn) -> tuple[Plan, list[tuple[int, int]]]:
    plan = draw(plans("native", "tiered", "calendar", "wheel"))
    return plan, [draw(sends(plan)) for _ in range(SENDS_PER_PLAN)]


@given(sent())
def test_ways_are_the_routers(case: tuple[Plan, list[tuple[int, int]]]) -> None:
    plan, rows = case
    due_ms, publish_ms = np.array(rows, np.int64).T
    found = routes(plan, publish_ms, due_ms)
    for number, (due, publish) in enumerate(rows):
        arrived_ms, hops = walked(plan, due, publish)
        arrival = int(found.arrival_ms[number])
        assert arrival == arrived_ms
        assert found.acknowledged_ms[number] == max(due, arrived_ms)
        assert found.hops[number] == hops
        if isinstance(plan.scheme, Calendar):
            assert found.interval is not None
            assert found.interval[number] == max(due, publish) // plan.scheme.interval_ms
        else:
            assert found.interval is None
        assert arrival == publish or not keeps_order(plan)


def walked(plan: Plan, due_ms: int, publish_ms: int) -> tuple[int, int]:
    """When a send arrives in its due topic, and its hops; under a plan with an intake it comes from a plain client."""
    if (
        plan.intake
        and MoveDecider(plan).decision(native_entry(publish_ms, due_ms), publish_ms) is not MoveDecision.MOVE
    ):
        return publish_ms, 0
    way = journey(plan, due_ms, publish_ms)
    return way.arrived_ms, len(way.holds) + plan.intake


@given(st.lists(st.none() | st.text(max_size=20), min_size=1))
def test_keys_have_javas_hash(texts: list[str | None]) -> None:
    texts = [text for text in texts if text is None or text.isprintable()]
    found = key_hashes(pa.chunked_array([pa.array(texts, pa.string())]))
    if not any(texts):
        assert found is None or set(found.tolist()) == {NO_KEY}
    else:
        assert found is not None
        assert found.tolist() == [java_string_hash(text) if text else NO_KEY for text in texts]

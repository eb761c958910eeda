"""Keys of a history, and rows that repeat another."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.names import partition_for_key
from timewheel.core.plan import MAX_PARTITIONS, Native, Plan, Tiered
from timewheel.spark_planner.choice.constraints import Constraints
from timewheel.spark_planner.exact.sends import Sends, heavy_keys, repeated
from timewheel.spark_planner.history.keys import LEAST_SHARE, KeyShares
from timewheel.spark_planner.history.read import read_history
from timewheel.spark_planner.job import Planned, plan_for, survey
from timewheel.spark_planner.pricing.evaluate import price
from timewheel.spark_planner.pricing.simulation import simulation_of
from timewheel.spark_planner.results.facts import describe_copies, describe_keys, planned_facts
from timewheel.spark_planner.results.report_page import report_page
from timewheel.spark_planner.summary.cells import Cells

START_MS = 1_767_571_200_000
PROFILE = BrokerProfile.from_mapping({"base": "4.0", "name": "small", "gap_limit_ranges": 300})
BASE = Plan(due_topic="persistent://acme/crm/reminders", subscriptions=("billing",), max_delay_ms=30 * DAY_MS)
LIMITS = Constraints()

some_keys = st.lists(st.one_of(st.none(), st.sampled_from(["", "a", "b", "tenant-42", "größe", "𝄞"])), max_size=80)


@given(pieces=st.lists(some_keys, min_size=1, max_size=5))
def test_keys_are_counted_over_pieces(pieces: list[list[str | None]]) -> None:
    parts = []
    for keys in pieces:
        told = heavy_keys(pa.chunked_array([pa.array(keys, pa.string())]))
        parts.append(KeyShares(len(keys), () if told is None else tuple((key, n) for key, n in json.loads(told))))
    merged = KeyShares.merged(parts)
    exact = Counter(key for keys in pieces for key in keys if key)
    assert merged.timers == sum(map(len, pieces))
    for key, timers in merged.heavy:
        # Of a piece of 80 a single one is left out, here in each of up to five.
        assert 0 <= exact[key] - timers <= len(pieces)
    assert all(timers <= len(pieces) for key, timers in exact.items() if key not in dict(merged.heavy))
    assert [timers for _, timers in merged.heavy] == sorted((timers for _, timers in merged.heavy), reverse=True)


@given(
    weights=st.dictionaries(st.sampled_from([f"key-{n}" for n in range(12)]), st.integers(1, 500), max_size=8),
    others=st.integers(1, 5_000),
    partitions=st.integers(1, 64),
)
def test_the_fullest_partition_is_that_of_javas_hash(weights: dict[str, int], others: int, partitions: int) -> None:
    timers = sum(weights.values()) + others
    shares = KeyShares(timers, tuple(weights.items()))
    filled = np.full(partitions, others / partitions)
    for key, weight in weights.items():
        filled[partition_for_key(key, partitions)] += weight
    assert shares.fullest(partitions) == pytest.approx(filled.max() / timers)
    assert 1 / partitions <= shares.fullest(partitions) + 1e-12


@given(
    weights=st.dictionaries(st.sampled_from([f"key-{n}" for n in range(12)]), st.integers(1, 500), max_size=4),
    others=st.integers(1, 5_000),
    times=st.floats(0.1, 40.0),
)
def test_the_fewest_partitions_are_those_of_a_search(weights: dict[str, int], others: int, times: float) -> None:
    shares = KeyShares(sum(weights.values()) + others, tuple(weights.items()))
    enough = [n for n in range(1, MAX_PARTITIONS + 1) if shares.fullest(n) * times <= 1 + 1e-9]
    found = shares.fewest(times)
    if enough:
        assert found <= enough[0]
        # Fewer only where no number is much better, and that a little too much.
        assert found == enough[0] or shares.fullest(found) <= 1.1 * shares.fullest(enough[-1])
    assert shares.fullest(found) <= max(1 / times + 1e-9, 1.1 * min(shares.fullest(n) for n in (1, 64, MAX_PARTITIONS)))


@pytest.mark.parametrize(
    ("heavy", "fewest"),
    [((), "as many as the gaps ask for"), ((("a", 800),), "more"), ((("a", 6_000),), "no number will do")],
)
def test_partitions_are_those_that_the_fullest_needs(heavy: tuple[tuple[str, int], ...], fewest: str) -> None:
    rng = np.random.default_rng(3)
    sent_ms = np.sort(rng.integers(0, 10 * DAY_MS, 10_000)) + START_MS
    cells = Cells.of_timers(sent_ms, sent_ms + rng.integers(HOUR_MS, 5 * DAY_MS, 10_000)).bounded(5_000)
    shares = KeyShares(10_000, heavy)
    simulation = simulation_of(BASE, cells, keys=shares)
    partitions = LIMITS.least_partitions(simulation, PROFILE)
    gaps = price(simulation, PROFILE, partitions).peak_gaps_per_partition
    even = int(np.ceil(simulation.gaps.peak_topic_gaps / 240))
    if fewest == "no number will do":
        # As good as a thousand partitions, about, with a few.
        assert gaps > 240
        assert gaps <= 1.1 * price(simulation, PROFILE, MAX_PARTITIONS).peak_gaps_per_partition
        assert partitions < 64
    else:
        assert gaps <= 240
        assert partitions == even if fewest.startswith("as many") else partitions > even
        fewer = [price(simulation, PROFILE, n).peak_gaps_per_partition for n in range(1, partitions)]
        assert all(found > 240 for found in fewer)


# ------------------------------------------------------------------------------------------------------ in a whole plan
@pytest.fixture(scope="module")
def hot(spark: SparkSession) -> Planned:
    """Half of all timers are of one tenant; tiers or twenty native partitions would do without it."""
    rng = np.random.default_rng(8)
    sent_ms = np.sort(rng.integers(0, 20 * DAY_MS, 30_000)) + START_MS
    table = pa.table(
        {
            "publish_ms": sent_ms,
            "due_ms": sent_ms + rng.integers(HOUR_MS, 5 * DAY_MS, 30_000),
            "key": np.where(rng.random(30_000) < 0.5, "tenant-42", rng.integers(0, 5_000, 30_000).astype(str)),
        }
    )
    history = survey(spark.createDataFrame(table))
    tiers = Tiered(window_ms=6 * HOUR_MS, tiers_ms=(6 * HOUR_MS, DAY_MS))
    plans = [Plan(due_topic=BASE.due_topic, subscriptions=("billing",), scheme=scheme) for scheme in (Native(), tiers)]
    return plan_for(history, "", BASE, PROFILE, candidates=plans, as_is=True)


def test_a_hot_key_is_named_with_what_it_does(hot: Planned) -> None:
    assert hot.keys.heaviest is not None
    assert hot.keys.heaviest[0] == "tenant-42"
    assert hot.keys.heaviest[1] == pytest.approx(0.5, abs=0.01)
    said = describe_keys(hot)
    assert said.startswith("Key 'tenant-42' has 50% of all timers")
    assert "No number of partitions makes native delays right for it" in said
    assert said in report_page(hot).replace("&#39;", "'")
    assert planned_facts(hot)["keys"]["heaviest_key"] == "tenant-42"


def test_the_estimate_of_the_fullest_partition_is_near_its_count(hot: Planned) -> None:
    assert isinstance(hot.plan.scheme, Tiered)
    predicted = hot.recommended.evaluation.peak_gaps_per_partition
    counted = hot.recommended.replay.peak_per_partition.gap_count
    assert counted <= 240
    assert predicted == pytest.approx(counted, rel=0.25)


def test_a_key_of_little_weight_is_not_mentioned(spark: SparkSession) -> None:
    rng = np.random.default_rng(8)
    sent_ms = np.sort(rng.integers(0, 5 * DAY_MS, 2_000)) + START_MS
    keys = rng.integers(0, 1_000, 2_000).astype(str)
    table = pa.table({"publish_ms": sent_ms, "due_ms": sent_ms + HOUR_MS, "key": keys})
    planned = plan_for(survey(spark.createDataFrame(table)), "", BASE, PROFILE, candidates=[BASE], as_is=True)
    assert planned.keys.heaviest is None
    assert max(Counter(keys.tolist()).values()) < LEAST_SHARE * 2_000
    assert describe_keys(planned) == ""


PLAN = Plan(due_topic="persistent://acme/crm/a", subscriptions=("b",), scheme=Native(), max_delay_ms=9 * DAY_MS)
rows = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(-1, 2)), max_size=40)


@given(rows, st.booleans())
def test_each_but_the_first_of_its_like_is_counted(sent: list[tuple[int, int, int]], keyed: bool) -> None:
    sent = sorted(sent, key=lambda row: row[0])
    publish_ms, due_ms, key = (np.array([row[part] for row in sent], np.int64) for part in range(3))
    sends = Sends(publish_ms=publish_ms, due_ms=due_ms, key_hash=key if keyed else None)
    alike = Counter(row if keyed else row[:2] for row in sent)
    assert repeated(sends) == sum(count - 1 for count in alike.values())


def timers(number: int, *, ids: bool = False) -> pa.Table:
    rng = np.random.default_rng(2)
    sent_ms = np.sort(rng.choice(3 * DAY_MS, number, replace=False)) + START_MS
    columns = {"publish_ms": sent_ms, "due_ms": sent_ms + rng.integers(0, DAY_MS, number)}
    return pa.table({**columns, **({"timer_id": [str(one) for one in range(number)]} if ids else {})})


def planned_for(spark: SparkSession, folder: Path, *tables: pa.Table) -> Planned:
    for number, table in enumerate(tables):
        pq.write_table(table, folder / f"{number}.parquet")
    history = survey(read_history(spark, str(folder)))
    found = plan_for(history, "", PLAN, BrokerProfile.named("4.0"), candidates=[PLAN], as_is=True)
    history.cached.forget()
    return found


def test_a_file_that_came_twice_is_told(spark: SparkSession, tmp_path: Path) -> None:
    once = timers(3_000)
    found = planned_for(spark, tmp_path, once, once)
    assert found.history.statistic.timers == 6_000
    assert found.repeated == 3_000
    said = describe_copies(found)
    assert said.startswith("3,000 of 6,000 rows (50%) repeat another one")
    assert "--timer-id" in said
    assert planned_facts(found)["copies"] == {"repeated_rows": 3_000}
    assert said.split(" If ", maxsplit=1)[0] in report_page(found)


@pytest.mark.parametrize(("again", "told"), [(0, False), (20, False), (40, True)])
def test_few_are_not_worth_a_sentence(spark: SparkSession, tmp_path: Path, again: int, told: bool) -> None:
    once = timers(3_000)
    both = pa.concat_tables([once, once.slice(100, again)]).sort_by("publish_ms")
    found = planned_for(spark, tmp_path, both)
    assert found.repeated == again
    assert bool(describe_copies(found)) == told


def test_where_timers_have_ids_none_is_a_copy(spark: SparkSession, tmp_path: Path) -> None:
    once = timers(500, ids=True)
    others = once.set_column(2, "timer_id", pa.array([f"other-{one}" for one in range(500)]))
    found = planned_for(spark, tmp_path, once, others, once)
    assert found.history.statistic.timers == 1_000
    assert found.history.statistic.quarantined == {"later_copy": 500}
    assert found.repeated == 0
    assert describe_copies(found) == ""

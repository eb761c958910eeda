"""What is recommended for histories whose delays depend on each other, beside a count of everything by brute force."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from examples.history.generate import START_MS
from tests.support.brute_force import (
    Integers,
    Rollover,
    arrivals,
    entries_of,
    java_hash,
    literal,
    most_gaps,
    peak,
    spans,
)
from tests.support.dependent import DEPENDENT, HISTORIES, Timers
from tests.support.forgetting import redelivered_exactly
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.plan import Calendar, Native, Plan, Ring, Scheme, Tiered, Wheel
from timewheel.spark_planner.choice.choose import EACH
from timewheel.spark_planner.choice.constraints import GAP_FRACTION, REDELIVERED, Constraints
from timewheel.spark_planner.exact.replay import scattered
from timewheel.spark_planner.job import Passes, Planned, plan_for, planning, survey, traffic_of
from timewheel.spark_planner.pricing.evaluate import evaluate
from timewheel.spark_planner.summary.cells import Cells

if TYPE_CHECKING:
    from tests.conftest import Evidence

BASE = Plan(due_topic="persistent://acme/crm/reminders", subscriptions=("billing",), max_delay_ms=10 * DAY_MS)
SCHEMES = (
    Native(),
    Calendar(interval_ms=DAY_MS),
    Calendar(interval_ms=6 * HOUR_MS),
    Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS, 6 * HOUR_MS, DAY_MS)),
    Tiered(window_ms=6 * HOUR_MS, tiers_ms=(6 * HOUR_MS, DAY_MS)),
    Tiered(window_ms=12 * HOUR_MS, tiers_ms=(12 * HOUR_MS,)),
    Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS,)),
    Wheel(rings=(Ring(slot_ms=6 * HOUR_MS, slots=44, headstart_ms=HOUR_MS),)),
)
CANDIDATES = [replace(BASE, scheme=scheme) for scheme in SCHEMES]
# What is dear is what decides between partitions, tiers and topics: at these prices all of them win somewhere.
LIMITS = Constraints(topic_writes_per_second=0.05, relay_writes_per_second=0.2)
MAX_PARTITIONS = EACH
PARTS = (1.3, 0.6, 0.3, 0.15, 0.07)  # limits, in parts of what native delays leave: at the first nobody has to migrate
LEAST_GAPS = 20  # with lower limits, which timers happen to be neighbours decides more than how many there are
GAP_LIMIT = 100_000  # of the broker, of which each history may use a part
NAMES = ["publish_ms", "due_ms", "key", "topic"]
ROWS, FEW_ROWS = 24_000, 6_000
KEYED = 5  # every so many histories have keys, a few of which are heavy
ROLLOVERS = (Rollover(50_000, 10 * MINUTE_MS, 4 * HOUR_MS), Rollover(300, 10 * MINUTE_MS, 4 * HOUR_MS))
EVERYDAY = ("turns, 1", "runs, 3", "herd, 1", "beside, 1", "senders, 3", "a delay that drifts")


@dataclass
class ByHand:
    """The cheapest plan, by counting all that could be."""

    sent_ms: Integers
    due_ms: Integers
    keys: Sequence[str] | None
    rollover: Rollover
    known: dict[Plan, int] = field(default_factory=dict)

    def gaps(self, plan: Plan) -> int:
        """The most gaps of a partition; without keys in turns and at random, of which the worse counts."""
        if plan not in self.known:
            turns, partitions = np.arange(len(self.sent_ms)), plan.partitions
            ways = [turns % partitions, *([scattered(turns, partitions)] if partitions > 1 else [])]
            if self.keys is not None:
                ways = [np.array([java_hash(key) % partitions for key in self.keys], np.int64)]
            counts = (most_gaps(plan, self.sent_ms, self.due_ms, way, self.rollover) for way in ways)
            self.known[plan] = max(counts)
        return self.known[plan]

    def __len__(self) -> int:
        return len(self.sent_ms)

    def native(self, allowed: int) -> list[int]:
        """The numbers of partitions with which native delays fit."""
        native = replace(BASE, scheme=Native())
        every = range(1, MAX_PARTITIONS + 1)
        return [number for number in every if self.gaps(replace(native, partitions=number)) <= allowed]

    def cheapest(self, cells: Cells, profile: BrokerProfile, allowed: int) -> tuple[float, Plan | None]:
        """(its cost, the plan); none within `MAX_PARTITIONS` keeps its limits."""
        best: tuple[float, Plan | None] = (np.inf, None)
        for candidate in CANDIDATES:
            alone = evaluate(replace(candidate, partitions=1), cells, profile)
            for partitions in range(1, MAX_PARTITIONS + 1):
                if LIMITS.cost_with(alone, partitions) >= best[0]:
                    break  # and what hops write in groups is more with more partitions
                plan = replace(candidate, partitions=partitions)
                if self.gaps(plan) > allowed:
                    continue
                evaluation = evaluate(plan, cells, profile)
                if not set(LIMITS.broken_by(evaluation)) - {GAP_FRACTION}:
                    cost = LIMITS.cost_of(evaluation).writes_per_second
                    best = (cost, plan) if cost < best[0] else best
                    break
        return best


def _of(name: str, rows: int) -> ByHand:
    rng = np.random.default_rng(21)
    sent_ms, due_ms = HISTORIES[name](rng, rows)
    assert (np.diff(sent_ms) >= 0).all()
    assert int((due_ms - sent_ms).max()) <= BASE.max_delay_ms
    number = list(HISTORIES).index(name)
    keyed = number >= len(DEPENDENT) and number % KEYED == 0
    keys = [f"customer-{key}" for key in np.minimum(rng.zipf(1.3, len(sent_ms)), 1_000).tolist()] if keyed else None
    return ByHand(sent_ms, due_ms, keys, ROLLOVERS[number % 2])


def _are_decided_as_by_hand(
    spark: SparkSession, names: Iterable[str], rows: int, rollover: Rollover, parts: Iterable[float] = PARTS
) -> dict[str, int]:
    """Plan for histories at each limit, side by side as topics of one; return the figures of the proof."""
    figures = {"histories": 0, "native delays": 0, "plans counted by hand": 0}
    every = {name: _of(name, rows) for name in names}
    found = {name: by_hand for name, by_hand in every.items() if by_hand.rollover == rollover}
    schema = "publish_ms bigint, due_ms bigint, key string, topic string"
    table = pa.concat_tables(
        pa.table(
            [
                own.sent_ms,
                own.due_ms,
                pa.array(own.keys, "string") if own.keys else pa.nulls(len(own), "string"),
                [name] * len(own),
            ],
            NAMES,
        )
        for name, own in found.items()
    )
    history = survey(spark.createDataFrame(table, schema).coalesce(1))
    facts = {"base": "4.0", "gap_limit_ranges": GAP_LIMIT, "ledger_max_entries": rollover.entries}
    profile = BrokerProfile.from_mapping({**facts, "name": "small"})
    with Passes([traffic_of(history, name, as_is=True) for name in found], profile) as passes:
        for part in parts:
            allowed = {name: max(int(part * own.gaps(CANDIDATES[0])), LEAST_GAPS) for name, own in found.items()}
            decisions = {
                name: planning(
                    replays, passes, BASE, replace(LIMITS, gap_fraction=allowed[name] / GAP_LIMIT), CANDIDATES
                )
                for name, replays in passes.topics.items()
            }
            for name, planned in passes.made(decisions).items():
                _is_as_by_hand(f"{name}, {part}", planned, found[name], history.cells(name), allowed[name])
                figures["histories"] += 1
                figures["native delays"] += isinstance(planned.plan.scheme, Native)
    history.cached.forget()
    return {**figures, "plans counted by hand": sum(len(own.known) for own in found.values())}


def _is_as_by_hand(case: str, planned: Planned, by_hand: ByHand, cells: Cells, allowed: int) -> None:
    plan, fullest = planned.plan, by_hand.gaps(planned.plan)
    at = f"{case}, {allowed} allowed: {plan.scheme} on {plan.partitions} leaves {fullest}"
    assert fullest == planned.recommended.replay.peak_per_partition.gap_count, at
    assert fullest == planned.choice.counted[plan], at
    assert planned.keeps_limits == (fullest <= allowed), f"{at}: what the count refutes is said to keep its limits"
    cost = planned.choice.recommended.cost_writes_per_second if planned.keeps_limits else np.inf
    for partitions in by_hand.native(allowed):
        least = LIMITS.cost_with(evaluate(CANDIDATES[0], cells, planned.profile), partitions)
        assert cost <= least * (1 + 1e-9), f"{at}: a needless migration, native delays fit on {partitions}"
    if by_hand.keys is None:  # else heavy keys may share a partition, and more partitions may leave more gaps
        least, cheapest = by_hand.cheapest(cells, planned.profile, allowed)
        assert cost <= least * (1 + 1e-9), f"{at}: {cheapest} costs less"


@pytest.mark.proof
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("rollover", ROLLOVERS)
@pytest.mark.parametrize("part", PARTS)
def test_the_recommendation_is_the_cheapest_that_brute_force_bears_out(
    spark: SparkSession, part: float, rollover: Rollover, evidence: Evidence
) -> None:
    figures = _are_decided_as_by_hand(spark, HISTORIES, ROWS, rollover, [part])
    evidence(
        f"the cheapest plan at {part:.0%} of native gaps, ledgers of {rollover.entries:,}", figures, on_broker=False
    )


@pytest.mark.proof
@pytest.mark.parametrize("name", DEPENDENT)
def test_the_law_is_wrong_for_dependent_delays_by_any_factor(name: str, evidence: Evidence) -> None:
    own, profile = _of(name, ROWS), BrokerProfile.named("4.0")
    cells, figures = Cells.of_timers(own.sent_ms, own.due_ms), {}
    for plan, text in ((CANDIDATES[0], "native"), (CANDIDATES[4], "tiers of 6 h and 1 d")):
        figures[f"{text} counted"] = own.gaps(plan)
        figures[f"{text} by the law"] = round(evaluate(plan, cells, profile).peak_gaps)
    evidence(f"dependent delays, {name}", figures, on_broker=False)


@pytest.mark.parametrize("rollover", ROLLOVERS)
@pytest.mark.short
def test_the_same_for_few_timers_of_a_few_histories(spark: SparkSession, rollover: Rollover) -> None:
    assert _are_decided_as_by_hand(spark, EVERYDAY, FEW_ROWS, rollover)["histories"] == len(EVERYDAY) // 2 * len(PARTS)


def most_again(plan: Plan, own: ByHand, profile: BrokerProfile) -> int:
    """Return what an unload delivers again at the worst of 300 moments, without keys in turns."""
    entries = [
        (acknowledged_ms, np.zeros(0, np.int64) if ledger is None else ledger)
        for acknowledged_ms, ledger in entries_of(plan, own.sent_ms, own.due_ms, None, own.rollover)
    ]
    moments_ms = np.linspace(own.sent_ms[0], own.due_ms.max(), 300).astype(np.int64)
    return max(
        sum(redelivered_exactly(times_ms <= at_ms, ledger, profile, profile.ack_format) for times_ms, ledger in entries)
        for at_ms in moments_ms.tolist()
    )


@pytest.mark.parametrize("long", [20, 8])
@pytest.mark.short
def test_of_a_broker_that_writes_bitmaps_no_plan_is_said_to_fit_that_brings_messages_again(
    spark: SparkSession, long: int
) -> None:
    # Each so many timers one waits for days, the others for minutes: few gaps, with many handled messages between them.
    rng = np.random.default_rng(long)
    sent_ms = START_MS + np.sort(rng.integers(0, 3 * DAY_MS, FEW_ROWS))
    far_ms = rng.integers(DAY_MS, 5 * DAY_MS, FEW_ROWS)
    delay_ms = np.where(rng.integers(0, long, FEW_ROWS) == 0, far_ms, rng.integers(0, HOUR_MS, FEW_ROWS))
    own = ByHand(sent_ms, sent_ms + delay_ms, None, ROLLOVERS[1])
    frame = pa.table({"publish_ms": own.sent_ms, "due_ms": own.due_ms})
    history = survey(spark.createDataFrame(frame, "publish_ms bigint, due_ms bigint").coalesce(1))
    # The gaps of native delays are within the limit; what is handled behind them is not within that of a bitmap.
    limit = int(1.4 * own.gaps(CANDIDATES[0]))
    facts = {"gap_limit_ranges": limit, "metadata_store_limit_ranges": limit // 8, "name": "small"}
    small = {"base": "4.2", **facts, "ledger_max_entries": own.rollover.entries}
    profile = BrokerProfile.from_mapping(small)
    planned = plan_for(history, "", BASE, profile, LIMITS, candidates=CANDIDATES, as_is=True)
    ranges = replace(profile, ack_format="ranges")
    as_ranges = plan_for(history, "", BASE, ranges, LIMITS, candidates=CANDIDATES, as_is=True)
    history.cached.forget()
    assert as_ranges.plan == CANDIDATES[0]
    assert most_again(CANDIDATES[0], own, profile) > 0
    assert planned.keeps_limits
    assert planned.plan != CANDIDATES[0]
    assert most_again(planned.plan, own, profile) == 0
    assert planned.recommended.redelivered.entries == 0
    assert planned.choice.broken_by(CANDIDATES[0]) == (REDELIVERED,)


def blocks(rng: np.random.Generator) -> Timers:
    """Ten timers of one delay in a row: the law sees ten times the gaps that there are."""
    begin_ms = START_MS + np.sort(rng.integers(0, 30 * DAY_MS, 2_400))
    far_ms = np.where(rng.random(2_400) < 0.5, rng.integers(25 * DAY_MS, 30 * DAY_MS, 2_400), 15 * MINUTE_MS)
    sent_ms = (begin_ms[:, None] + np.cumsum(rng.integers(1, 40, (2_400, 10)), 1)).ravel()
    order = np.argsort(sent_ms, kind="stable")
    return sent_ms[order], (sent_ms + np.repeat(far_ms, 10))[order]


def nine(rng: np.random.Generator) -> Timers:
    """All timers are due at 09:00 of the next day, spread over a minute."""
    sent_ms = START_MS + np.sort(rng.integers(0, 28 * DAY_MS, 30_000))
    return sent_ms, (sent_ms // DAY_MS + 1) * DAY_MS + 9 * HOUR_MS + rng.integers(0, MINUTE_MS, 30_000)


@pytest.mark.parametrize(("timers", "limit", "partitions"), [(blocks, 1_100, 1), (nine, 152, 3)])
@pytest.mark.short
def test_of_all_candidates_none_moves_timers_that_native_delays_can_hold(
    spark: SparkSession, timers: Callable[[np.random.Generator], Timers], limit: int, partitions: int
) -> None:
    sent_ms, due_ms = timers(np.random.default_rng(4))
    table = pa.table({"publish_ms": sent_ms, "due_ms": due_ms})
    history = survey(spark.createDataFrame(table, "publish_ms bigint, due_ms bigint").coalesce(1))
    profile = BrokerProfile.from_mapping({"base": "4.0", "name": "small", "gap_limit_ranges": limit})
    planned = plan_for(history, "", replace(BASE, max_delay_ms=30 * DAY_MS), profile, as_is=True)
    history.cached.forget()
    assert (planned.plan.scheme, planned.plan.partitions) == (Native(), partitions)
    by_hand = ByHand(sent_ms, due_ms, None, ROLLOVERS[0])
    gaps = [by_hand.gaps(planned.plan.with_partitions(fewer)) for fewer in range(1, partitions + 1)]
    assert planned.choice.counted[planned.plan] == gaps[-1] <= 0.8 * limit
    assert all(gap_count > 0.8 * limit for gap_count in gaps[:-1])
    assert planned.keeps_limits


@pytest.mark.parametrize("scheme", [SCHEMES[0], SCHEMES[4], SCHEMES[7]])
@pytest.mark.parametrize("by_hour", [False, True])
def test_the_brute_force_sees_what_a_broker_sees(scheme: Scheme, *, by_hour: bool) -> None:
    """Ranges by their beginnings and ends, beside a set of acknowledged positions at random moments."""
    rng, entries = np.random.default_rng(5), 3_000
    sent_ms = START_MS + np.sort(rng.integers(0, DAY_MS, entries))
    due_ms = sent_ms + rng.integers(1, 2 * DAY_MS, entries)
    due_ms = due_ms // HOUR_MS * HOUR_MS + HOUR_MS if by_hour else due_ms
    at_ms, acknowledged_ms, _ = arrivals(replace(BASE, scheme=scheme), sent_ms, due_ms)
    order = np.argsort(at_ms, kind="stable")
    at_ms, acknowledged_ms = at_ms[order], acknowledged_ms[order]
    moments = rng.choice(acknowledged_ms, 60).tolist()
    for ledger in (None, Rollover(200, 10 * MINUTE_MS, HOUR_MS).ledgers(at_ms)):
        begin_ms, end_ms = spans(acknowledged_ms, ledger)
        seen = [literal(acknowledged_ms, moment_ms, ledger) for moment_ms in moments]
        assert seen == [np.count_nonzero((begin_ms <= moment) & (moment < end_ms)) for moment in moments]
        every = [literal(acknowledged_ms, moment_ms, ledger) for moment_ms in np.unique(acknowledged_ms).tolist()]
        assert peak(begin_ms, end_ms) == max(every) > (0 if ledger is None else 10)

"""Above five million timers: the figures that decide are counts at every size, and equal to brute force."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from examples.history.generate import START_MS
from tests.support.brute_force import Integers, Rollover, arrivals, most_gaps
from tests.support.forgetting import redelivered_exactly
from timewheel.core.broker_profile import AckFormat, BrokerProfile
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.plan import Plan, Tiered
from timewheel.spark_planner.exact.replay import Asked, count_exactly, grid_for
from timewheel.spark_planner.history.read import read_history
from timewheel.spark_planner.job import survey

if TYPE_CHECKING:
    from tests.conftest import Evidence

Timers = tuple[Integers, Integers]
BASE = Plan(due_topic="persistent://acme/crm/reminders", subscriptions=("billing",), max_delay_ms=30 * DAY_MS)
PLANS = {
    "native": BASE,
    "native, 3 partitions": BASE.with_partitions(3),
    "tiers": replace(BASE, scheme=Tiered(window_ms=6 * HOUR_MS, tiers_ms=(6 * HOUR_MS, DAY_MS))),
}
PROFILE = BrokerProfile.named("4.0")
ROLLOVER = Rollover(PROFILE.ledger_max_entries, PROFILE.ledger_min_age_ms, PROFILE.ledger_max_age_ms)
FORMATS: tuple[AckFormat, ...] = ("ranges", "bitmap")


def campaigns(rng: np.random.Generator, timers: int) -> Timers:
    """A reminder of 15 minutes, and each week a campaign of a ninetieth of all timers, due within a minute."""
    size, sent, due = timers // 90, [], []
    for day in range(2, 90, 7):
        at_ms = START_MS + day * DAY_MS + 10 * HOUR_MS
        sent.append(at_ms + np.sort(rng.integers(0, 10 * MINUTE_MS, size)))
        due.append(at_ms + 2 * DAY_MS + rng.integers(0, MINUTE_MS, size))
    sent.append(START_MS + rng.integers(0, 90 * DAY_MS, timers - len(sent) * size))
    due.append(sent[-1] + 15 * MINUTE_MS + rng.integers(0, 200, len(sent[-1])))
    sent_ms = np.concatenate(sent)
    order = np.argsort(sent_ms, kind="stable")
    return sent_ms[order], np.concatenate(due)[order]


def mornings(rng: np.random.Generator, timers: int) -> Timers:
    """All timers are due at 09:00 of one of the next seven days, spread over a second."""
    sent_ms = START_MS + np.sort(rng.integers(0, 60 * DAY_MS, timers))
    day = sent_ms // DAY_MS + rng.integers(1, 8, timers)
    return sent_ms, day * DAY_MS + 9 * HOUR_MS + rng.integers(0, 1_000, timers)


def bursts(rng: np.random.Generator, timers: int) -> Timers:
    """Bursts of three seconds, whose timers are due in any order within half an hour of the next day."""
    starts = START_MS + rng.integers(0, 60 * DAY_MS, timers // 5_000)
    sent_ms = np.sort(np.repeat(starts, 5_000) + rng.integers(0, 3_000, len(starts) * 5_000))
    return sent_ms, sent_ms + DAY_MS + rng.integers(0, 30 * MINUTE_MS, len(sent_ms))


@pytest.mark.proof
@pytest.mark.parametrize(("of", "timers"), [(campaigns, 5_380_000), (mornings, 6_000_000), (bursts, 12_000_000)])
def test_peaks_and_redelivery_of_millions_are_those_of_brute_force(
    spark: SparkSession,
    tmp_path: Path,
    of: Callable[[np.random.Generator, int], Timers],
    timers: int,
    evidence: Evidence,
) -> None:
    sent_ms, due_ms = of(np.random.default_rng(4), timers)
    pq.write_table(pa.table({"publish_ms": sent_ms, "due_ms": due_ms}), tmp_path / "history.parquet")
    cached = survey(read_history(spark, str(tmp_path / "history.parquet"))).cached
    quick = [Asked(plan=plan, grid=grid_for(cached)) for plan in PLANS.values()]
    full = [replace(one, profile=PROFILE, entry_bytes=150.0) for one in quick]
    found = iter(count_exactly(cached, [*quick, *full]))
    counted = {name: next(found).peak_per_partition for name in PLANS}
    confirmed = {name: next(found) for name in PLANS}
    cached.forget()
    figures: dict[str, object] = {"timers": len(sent_ms)}
    for name, plan in PLANS.items():
        peak, again = confirmed[name].peak_per_partition, confirmed[name].redelivered
        assert counted[name].is_exact
        assert counted[name].gap_count == most_gaps(plan, sent_ms, due_ms)
        assert peak.gap_count == most_gaps(plan, sent_ms, due_ms, rollover=ROLLOVER)
        figures[name] = peak.gap_count
        at_ms, acknowledged_ms, _ = arrivals(plan, sent_ms, due_ms)
        for ack_format in FORMATS if name != "native, 3 partitions" else ():
            order = np.argsort(at_ms, kind="stable")
            ledgers = ROLLOVER.ledgers(at_ms[order])
            is_acknowledged = acknowledged_ms[order] <= again[ack_format].at_ms
            by_hand = redelivered_exactly(is_acknowledged, ledgers, PROFILE, ack_format)
            assert again[ack_format].entries == by_hand
            assert (by_hand > 0) >= (ack_format == "ranges" and peak.gap_count > PROFILE.gap_limit_ranges + 1)
            figures[f"{name}, again ({ack_format})"] = by_hand
    evidence(f"counts above five million timers, {of.__name__}", figures, on_broker=False)

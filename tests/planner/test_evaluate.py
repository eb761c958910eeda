"""Evaluation: every number of a plan against played histories and hand-made sums."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from tests.support.exact_play import play
from tests.support.workloads import START_MS, WORKLOADS, Timers
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.plan import Calendar, Native, Plan, Ring, Scheme, Tiered, Wheel
from timewheel.spark_planner.choice.choose import PRICING_CELLS, assess, choose, coarse_cells
from timewheel.spark_planner.choice.constraints import Constraints
from timewheel.spark_planner.pricing.evaluate import evaluate
from timewheel.spark_planner.pricing.simulation import MAX_BURST_CELLS, with_bursts_apart
from timewheel.spark_planner.summary.cells import LEVELS, Cells

PROFILE = BrokerProfile.named("4.0")


def plan_of(scheme: Scheme) -> Plan:
    return Plan(due_topic="persistent://acme/crm/reminders", subscriptions=("billing", "audit"), scheme=scheme)


NATIVE = plan_of(Native())
TIERED = plan_of(Tiered(window_ms=12 * HOUR_MS, tiers_ms=(12 * HOUR_MS, DAY_MS, 5 * DAY_MS)))
CALENDAR = plan_of(Calendar(interval_ms=DAY_MS))
WHEEL = plan_of(Wheel(rings=(Ring(slot_ms=HOUR_MS, slots=30), Ring(slot_ms=DAY_MS, slots=33))))
PLANS = {"native": NATIVE, "tiered": TIERED, "calendar": CALENDAR, "wheel": WHEEL}

SENT_MS, DUE_MS = WORKLOADS["mixture"](np.random.default_rng(5), 200_000, 10)
CELLS = Cells.of_timers(SENT_MS, DUE_MS, np.full(len(SENT_MS), 250)).bounded(100_000)


@pytest.mark.parametrize("name", PLANS)
def test_pending_and_hops_are_those_of_the_exact_play(name: str) -> None:
    found, played = evaluate(PLANS[name], CELLS, PROFILE), play(PLANS[name], SENT_MS, DUE_MS)
    # Of the fullest moment of some hundred, chance makes more than the mean: about the root of what waits.
    pending = played.pending_peak()
    assert found.peak_pending == pytest.approx(pending, abs=3.5 * pending**0.5)
    assert found.hops_mean == pytest.approx(float(played.hops.mean()), abs=0.01)
    assert found.hops_max == pytest.approx(int(played.hops.max()), abs=1)
    assert found.hops_p99 == pytest.approx(int(np.quantile(played.hops, 0.99)), abs=1)
    assert found.timers == pytest.approx(200_000)


def test_a_calendars_topics_are_looked_at_one_by_one() -> None:
    found, played = evaluate(CALENDAR, CELLS, PROFILE), play(CALENDAR, SENT_MS, DUE_MS)
    fullest = max(
        int((played.arrival_ms[played.topic == topic] < topic * DAY_MS).sum()) for topic in np.unique(played.topic)
    )
    assert found.peak_pending_per_partition >= fullest * 0.97
    assert found.peak_pending_per_partition < found.peak_pending / 3
    assert found.peak_gaps_per_topic == pytest.approx(played.peak(per="topic"), rel=0.06)


def test_partitions_divide_gaps_pending_and_silence() -> None:
    one, four = evaluate(NATIVE, CELLS, PROFILE, 1), evaluate(NATIVE, CELLS, PROFILE, 4)
    assert four.plan.partitions == 4
    assert four.peak_gaps == one.peak_gaps
    assert four.peak_gaps_per_partition == pytest.approx(one.peak_gaps / 4)
    assert four.silence_seconds == pytest.approx(one.peak_pending * 90e-6 / 4)
    played = play(replace(NATIVE, partitions=4), SENT_MS, DUE_MS)
    assert four.peak_gaps_per_partition == pytest.approx(played.peak(per="partition"), rel=0.05)


def test_growth_multiplies_what_grows_with_the_volume() -> None:
    once, thrice = evaluate(TIERED, CELLS, PROFILE), evaluate(TIERED, CELLS, PROFILE, growth=3.0)
    for name in ("timers", "peak_gaps", "peak_pending", "republished_entries", "relay_hops_per_second"):
        assert getattr(thrice, name) == pytest.approx(3 * getattr(once, name), rel=1e-4), name
    assert thrice.hops_mean == pytest.approx(once.hops_mean)


def test_bytes_are_entries_times_size_times_copies() -> None:
    found = evaluate(TIERED, CELLS, replace(PROFILE, write_quorum=3, entry_overhead_bytes=50))
    entry_bytes = (250 + 50) * 3
    assert found.republished_entries == pytest.approx(found.hops_mean * found.timers)
    assert found.republished_bytes == pytest.approx(found.republished_entries * entry_bytes)
    assert found.written_bytes == pytest.approx((found.timers + found.republished_entries) * entry_bytes)
    assert sum(found.step_entries) == pytest.approx(found.republished_entries)
    assert 1 <= found.writes_per_timer <= 1 + found.hops_mean + 1e-9
    assert found.written_entries == pytest.approx(found.writes_per_timer * found.timers)
    assert found.storage_bytes >= (found.peak_pending + 0) * entry_bytes


def test_held_entries_are_those_that_wait_in_tiers() -> None:
    played = play(TIERED, SENT_MS, DUE_MS)
    sent_ms = np.sort(SENT_MS)
    at_ms = START_MS + 9 * DAY_MS
    held = int((sent_ms <= at_ms).sum() - (played.arrival_ms <= at_ms).sum())
    found = evaluate(TIERED, CELLS, PROFILE)
    assert found.held_peak_entries == pytest.approx(held, rel=0.15)
    assert found.held_peak_entries >= held * 0.97


def test_topics_and_consumers_are_those_of_the_topology() -> None:
    # Due topic, three tiers and dead letters; two subscriptions on 2 due partitions, one relay on each of 6 held ones.
    tiered = evaluate(TIERED, CELLS, PROFILE, 2)
    assert (tiered.topics, tiered.partition_topics, tiered.consumers) == (5, 2 + 6 + 1, 4 + 6)
    wheel = evaluate(WHEEL, CELLS, PROFILE)
    assert (wheel.topics, wheel.consumers) == (1 + 63 + 1, 2 + 63)
    calendar = evaluate(CALENDAR, CELLS, PROFILE)
    assert (calendar.topics, calendar.consumers) == (32, 64)


def test_the_delayed_index_counts_broker_held_tiers_too() -> None:
    relay_held = evaluate(TIERED, CELLS, PROFILE)
    by_broker = plan_of(Tiered(window_ms=12 * HOUR_MS, tiers_ms=(12 * HOUR_MS, DAY_MS, 5 * DAY_MS), hold="broker"))
    found = evaluate(by_broker, CELLS, PROFILE)
    assert relay_held.delayed_index_bytes == pytest.approx(relay_held.peak_pending * 24)
    assert found.delayed_index_bytes == pytest.approx((found.peak_pending + found.held_peak_entries) * 24)


def test_a_cursor_is_priced_by_its_format() -> None:
    as_ranges = evaluate(NATIVE, CELLS, replace(PROFILE, gap_limit_ranges=5_000))
    assert as_ranges.cursor_bytes == pytest.approx(5_001 * 26)
    bitmap = evaluate(NATIVE, CELLS, BrokerProfile.named("4.2"))
    assert bitmap.cursor_bytes == pytest.approx(bitmap.span_entries / 8, rel=0.2)
    assert not evaluate(NATIVE, CELLS, replace(PROFILE, frame_limit_bytes=50_000)).cursor_fits_frame
    assert bitmap.redelivered == bitmap.redelivered_as_bitmap
    assert as_ranges.redelivered == as_ranges.redelivered_as_ranges


def test_only_what_is_past_the_limit_comes_again() -> None:
    within = evaluate(TIERED, CELLS, PROFILE)
    assert within.gap_fraction < 1
    assert within.redelivered.worst_entries == 0
    past = evaluate(NATIVE, CELLS, replace(PROFILE, gap_limit_ranges=1_000))
    assert past.redelivered.worst_entries > past.redelivered.mean_entries > 1_000


def test_a_relay_that_cannot_keep_up_makes_timers_late() -> None:
    # 150,000 timers within a minute leave a tier within a minute again: 2,500 a second for a relay of 100.
    sent_ms, due_ms = WORKLOADS["campaign"](np.random.default_rng(6), 150_000, 1)
    cells = Cells.of_timers(sent_ms, due_ms + 6 * HOUR_MS)
    tiered = plan_of(Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS, 6 * HOUR_MS)))
    slow = evaluate(tiered, cells, replace(PROFILE, relay_hops_per_second=100))
    assert slow.relay_hops_per_second == pytest.approx(2_500, rel=0.3)
    assert slow.lateness_seconds == pytest.approx(150_000 / 100 - 300, rel=0.2)
    assert evaluate(tiered, cells, PROFILE).lateness_seconds == 0


def test_a_slot_is_swept_within_its_head_start_or_late() -> None:
    # 60,000 timers due in one hour leave their hour slot at once: with 5 min of head start 200 a second.
    sent_ms = START_MS + np.sort(np.random.default_rng(7).integers(0, HOUR_MS, 60_000))
    due_ms = START_MS + 10 * HOUR_MS + np.random.default_rng(8).integers(0, HOUR_MS, 60_000)
    cells = Cells.of_timers(sent_ms, due_ms)
    found = evaluate(WHEEL, cells, replace(PROFILE, relay_hops_per_second=100))
    assert found.relay_hops_per_second == pytest.approx(60_000 / 300, rel=0.03)
    assert found.lateness_seconds == pytest.approx(60_000 / 100 - 300, rel=0.06)


def test_an_evaluation_crosses_processes() -> None:
    found = evaluate(TIERED, CELLS, PROFILE)
    assert pickle.loads(pickle.dumps(found)) == found


def test_one_timer_and_none_have_an_evaluation() -> None:
    one = np.array([START_MS])
    for plan in PLANS.values():
        found = evaluate(plan, Cells.of_timers(one, one + 3 * DAY_MS + MINUTE_MS), PROFILE)
        assert (found.peak_gaps, found.timers) == (0, 1)
        none = np.zeros(0, np.int64)
        assert evaluate(plan, Cells.of_timers(none, none), PROFILE).timers == 0


# ---------------------------------------------------- Bursts: a campaign in a long history is told as sharply as alone.
BURST_TIMERS = 20_000
BURST_MS = START_MS + 20 * DAY_MS


def sends_with_a_burst() -> Timers:
    """40 days of reminders at any time of the next week; in the middle 20,000 within a minute, due within ten."""
    rng = np.random.default_rng(11)
    calm_ms = START_MS + rng.integers(0, 40 * DAY_MS, 80_000)
    burst_ms = BURST_MS + rng.integers(0, MINUTE_MS, BURST_TIMERS)
    sent_ms = np.concatenate([calm_ms, burst_ms])
    delay_ms = np.concatenate([rng.integers(0, 7 * DAY_MS, 80_000), rng.integers(0, 10 * MINUTE_MS, BURST_TIMERS)])
    order = np.argsort(sent_ms, kind="stable")
    return sent_ms[order], (sent_ms + delay_ms)[order]


BURST_SENT_MS, BURST_DUE_MS = sends_with_a_burst()
BURST_CELLS = Cells.of_timers(BURST_SENT_MS, BURST_DUE_MS)


BURST_PLANS = {
    "native": plan_of(Native()),
    "tiered 12h": TIERED,
    "tiered 1h": plan_of(Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS, 6 * HOUR_MS, DAY_MS))),
    "wheel": plan_of(Wheel(rings=(Ring(slot_ms=HOUR_MS, slots=30), Ring(slot_ms=DAY_MS, slots=33)))),
}


def test_a_burst_is_set_apart_and_no_timer_is_lost() -> None:
    level = 9
    calm, burst = with_bursts_apart(BURST_CELLS, level)
    assert calm.level == level
    assert calm.timers + burst.timers == BURST_CELLS.timers == 100_000
    assert BURST_TIMERS <= burst.timers < BURST_TIMERS + 100
    assert len(burst) <= MAX_BURST_CELLS
    assert burst.slot_ms <= LEVELS[level].slot_ms / 16
    # Slots of 512 s are looked at in 16 parts of 32 s: so near to the burst is what goes with it.
    assert int(burst.publish_min_ms.min()) > BURST_MS - 32_000
    assert int(burst.publish_max_ms.max()) < BURST_MS + MINUTE_MS + 32_000


@pytest.mark.parametrize("workload", ["mixture", "seasons"])
@pytest.mark.parametrize("level", [0, 4, 9, 15])
def test_days_and_nights_and_chance_are_no_bursts(workload: str, level: int) -> None:
    cells = Cells.of_timers(*WORKLOADS[workload](np.random.default_rng(2), 20_000, 5))
    (all_of_them,) = with_bursts_apart(cells, level)
    assert all_of_them.timers == cells.timers


@pytest.mark.parametrize("minutes", [3, 9, 30, 100])
def test_the_rest_of_a_slot_at_either_end_of_a_history_is_no_burst(minutes: int) -> None:
    # Slots of 8,192 s of which the first and the last are filled for so many minutes, 20 timers a second.
    slot_ms = LEVELS[15].slot_ms
    first_ms = -(-START_MS // slot_ms) * slot_ms
    sent_ms = np.arange(first_ms - minutes * MINUTE_MS, first_ms + 4 * slot_ms + minutes * MINUTE_MS, 50)
    assert len(with_bursts_apart(Cells.of_timers(sent_ms, sent_ms + HOUR_MS), 15)) == 1


@pytest.mark.parametrize("name", BURST_PLANS)
def test_a_burst_in_a_long_history_peaks_as_played(name: str) -> None:
    # Some 5,000 of the burst, a quarter of it; natively also L W / 6 = 2,333 of the others.
    exact = play(BURST_PLANS[name], BURST_SENT_MS, BURST_DUE_MS).peak()
    assert exact > 4_900
    assert evaluate(BURST_PLANS[name], BURST_CELLS, PROFILE).peak_gaps == pytest.approx(exact, rel=0.03)


def test_choosing_from_few_cells_sees_the_burst_to_a_tenth() -> None:
    coarse = coarse_cells(BURST_CELLS)
    assert sum(map(len, coarse)) <= PRICING_CELLS + MAX_BURST_CELLS < len(BURST_CELLS)
    for plan in BURST_PLANS.values():
        fine = evaluate(plan, BURST_CELLS, PROFILE).peak_gaps
        assert assess(plan, coarse, PROFILE, Constraints()).evaluation.peak_gaps == pytest.approx(fine, rel=0.1)
    blurred = evaluate(TIERED, BURST_CELLS.bounded(PRICING_CELLS), PROFILE).peak_gaps
    assert blurred < 0.5 * evaluate(TIERED, BURST_CELLS, PROFILE).peak_gaps


def test_what_is_recommended_is_priced_from_all_cells() -> None:
    chosen = choose(BURST_CELLS, TIERED, PROFILE, candidates=[TIERED]).recommended
    assert chosen == assess(TIERED, BURST_CELLS, PROFILE, Constraints())
    assert chosen != assess(TIERED, coarse_cells(BURST_CELLS), PROFILE, Constraints())

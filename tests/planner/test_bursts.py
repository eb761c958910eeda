"""Bursts: a campaign in a long history is told as sharply as alone."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.exact_play import play
from tests.support.plans import plan_of
from tests.support.workloads import START_MS, WORKLOADS, Timers
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.plan import Native, Ring, Tiered, Wheel
from timewheel.spark_planner.choice.choose import PRICING_CELLS, assess, choose, coarse_cells
from timewheel.spark_planner.choice.constraints import Constraints
from timewheel.spark_planner.pricing.evaluate import evaluate
from timewheel.spark_planner.pricing.simulation import MAX_BURST_CELLS, with_bursts_apart
from timewheel.spark_planner.summary.cells import LEVELS, Cells

PROFILE = BrokerProfile.named("4.0")
BURST_TIMERS = 20_000
BURST_MS = START_MS + 20 * DAY_MS


def history() -> Timers:
    """40 days of reminders at any time of the next week; in the middle 20,000 within a minute, due within ten."""
    rng = np.random.default_rng(11)
    calm_ms = START_MS + rng.integers(0, 40 * DAY_MS, 80_000)
    burst_ms = BURST_MS + rng.integers(0, MINUTE_MS, BURST_TIMERS)
    sent_ms = np.concatenate([calm_ms, burst_ms])
    delay_ms = np.concatenate([rng.integers(0, 7 * DAY_MS, 80_000), rng.integers(0, 10 * MINUTE_MS, BURST_TIMERS)])
    order = np.argsort(sent_ms, kind="stable")
    return sent_ms[order], (sent_ms + delay_ms)[order]


SENT_MS, DUE_MS = history()
CELLS = Cells.of_timers(SENT_MS, DUE_MS)


TIERED = plan_of(Tiered(window_ms=12 * HOUR_MS, tiers_ms=(12 * HOUR_MS, DAY_MS, 5 * DAY_MS)))
PLANS = {
    "native": plan_of(Native()),
    "tiered 12h": TIERED,
    "tiered 1h": plan_of(Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS, 6 * HOUR_MS, DAY_MS))),
    "wheel": plan_of(Wheel(rings=(Ring(slot_ms=HOUR_MS, slots=30), Ring(slot_ms=DAY_MS, slots=33)))),
}


def test_a_burst_is_set_apart_and_no_timer_is_lost() -> None:
    level = 9
    calm, burst = with_bursts_apart(CELLS, level)
    assert calm.level == level
    assert calm.timers + burst.timers == CELLS.timers == 100_000
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


@pytest.mark.parametrize("name", PLANS)
def test_a_burst_in_a_long_history_peaks_as_played(name: str) -> None:
    # Some 5,000 of the burst, a quarter of it; natively also L W / 6 = 2,333 of the others.
    exact = play(PLANS[name], SENT_MS, DUE_MS).peak()
    assert exact > 4_900
    assert evaluate(PLANS[name], CELLS, PROFILE).peak_gaps == pytest.approx(exact, rel=0.03)


def test_choosing_from_few_cells_sees_the_burst_to_a_tenth() -> None:
    coarse = coarse_cells(CELLS)
    assert sum(map(len, coarse)) <= PRICING_CELLS + MAX_BURST_CELLS < len(CELLS)
    for plan in PLANS.values():
        fine = evaluate(plan, CELLS, PROFILE).peak_gaps
        assert assess(plan, coarse, PROFILE, Constraints()).evaluation.peak_gaps == pytest.approx(fine, rel=0.1)
    blurred = evaluate(TIERED, CELLS.bounded(PRICING_CELLS), PROFILE).peak_gaps
    assert blurred < 0.5 * evaluate(TIERED, CELLS, PROFILE).peak_gaps


def test_what_is_recommended_is_priced_from_all_cells() -> None:
    chosen = choose(CELLS, TIERED, PROFILE, candidates=[TIERED]).recommended
    assert chosen == assess(TIERED, CELLS, PROFILE, Constraints())
    assert chosen != assess(TIERED, coarse_cells(CELLS), PROFILE, Constraints())

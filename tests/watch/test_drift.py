"""Rate and delays now, against then: told where they differ by more than sample, chance and the hour of the day."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.plan_samples import NOW_MS, timer
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.spark_planner.summary.cells import Cells
from timewheel.watch.sends import SHARES, Reference, Sends, drift, reference_of

MIDNIGHT_MS = NOW_MS // DAY_MS * DAY_MS


def sends(delays_ms: list[int], *, window_ms: int = HOUR_MS, weight: float = 1.0) -> Sends:
    timers = tuple(timer(n, NOW_MS - 9, NOW_MS - 9 + delay_ms) for n, delay_ms in enumerate(delays_ms))
    return Sends(from_ms=NOW_MS - window_ms, until_ms=NOW_MS, timers=timers, weights=(weight,) * len(timers))


def reference(quantiles_ms: tuple[int, ...], per_second: float = 1.0) -> Reference:
    return Reference(name="then", per_second=per_second, quantiles_ms=quantiles_ms)


UNIFORM = list(range(0, 3_600_000, 1_000))
"""3,600 in an hour: one a second."""
UNIFORM_THEN = tuple(round(share * 3_600_000) for share in SHARES)


@pytest.mark.parametrize(
    ("delays_ms", "then", "moved"),
    [
        (UNIFORM, UNIFORM_THEN, 0.0),
        ([2 * delay for delay in UNIFORM], UNIFORM_THEN, 0.5),
        ([DAY_MS] * 3_600, (DAY_MS,) * 6, 0.0),  # all alike, then and now
        ([DAY_MS + 7] * 3_600, (DAY_MS,) * 6, 0.0),  # and with a clock's jitter
        ([2 * DAY_MS] * 3_600, (DAY_MS,) * 6, 0.99),
        ([DAY_MS] * 1_800 + [1_000] * 1_800, (DAY_MS,) * 6, 0.4),  # one of ten may be as short, as far as quantiles say
    ],
)
def test_delays_have_moved_as_far_as_their_shares_have(
    delays_ms: list[int], then: tuple[int, ...], moved: float
) -> None:
    found = drift(sends(delays_ms), reference(then))

    assert found.moved == pytest.approx(moved, abs=0.02)
    assert found.is_delay == (moved > 0.15)
    assert found.moved_error == pytest.approx(1.36 / 60, rel=0.01)


@pytest.mark.parametrize(
    ("per_second", "is_drift"),
    [(1.0, False), (1.15, False), (1.5, True), (0.9, False), (0.7, True)],
)
def test_the_rate_has_changed_beyond_a_fifth(per_second: float, is_drift: bool) -> None:
    assert drift(sends(UNIFORM), reference(UNIFORM_THEN, per_second)).is_rate == is_drift


def test_few_sends_are_no_drift() -> None:
    found = drift(sends(UNIFORM[::120]), reference(UNIFORM_THEN, 1 / 120 * 1.5))

    assert not found.is_rate, "30 of them: 45 may have been chance"
    assert not found.is_delay


def history(days: int) -> Cells:
    """By day ten times as many as by night, and other delays: 12 hours each."""
    parts = []
    for day in range(days):
        begin = MIDNIGHT_MS - (days - day) * DAY_MS
        night = begin + np.arange(0, 12 * HOUR_MS, 40_000)
        noon = begin + 12 * HOUR_MS + np.arange(0, 12 * HOUR_MS, 4_000)
        parts += [Cells.of_timers(night, night + HOUR_MS), Cells.of_timers(noon, noon + 5 * HOUR_MS)]
    return Cells.merged(parts)


@pytest.mark.parametrize("days", [3, 21])
@pytest.mark.parametrize(
    ("from_hour", "until_hour", "per_second", "median_ms"),
    [
        (2, 5, 0.025, HOUR_MS),
        (14, 15, 0.25, 5 * HOUR_MS),
        (11, 13, 0.1375, 5 * HOUR_MS),
        (0, 48, 0.1375, 5 * HOUR_MS),
    ],
)
def test_the_same_hours_are_compared(
    days: int, from_hour: int, until_hour: int, per_second: float, median_ms: int
) -> None:
    found = reference_of(history(days), "then", MIDNIGHT_MS + from_hour * HOUR_MS, MIDNIGHT_MS + until_hour * HOUR_MS)

    assert found is not None
    assert found.per_second == pytest.approx(per_second, rel=0.03)
    assert found.quantiles_ms[SHARES.index(0.5)] == median_ms


def test_of_hours_without_a_timer_nothing_is_said() -> None:
    at_ms = MIDNIGHT_MS - 3 * DAY_MS + np.array([0, DAY_MS, 2 * DAY_MS])
    cells = Cells.of_timers(at_ms, at_ms + HOUR_MS)

    assert reference_of(cells, "then", MIDNIGHT_MS + 5 * HOUR_MS, MIDNIGHT_MS + 6 * HOUR_MS) is None

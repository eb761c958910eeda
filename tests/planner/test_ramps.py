"""Ramps: sums of even rises, exactly and at places."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from timewheel.spark_planner.pricing.gap_curve import BURST_PLACES, Ramps, risen, risen_evenly

Floats = NDArray[np.float64]

RAMP = st.tuples(st.integers(0, 2), st.integers(-5_000, 5_000), st.integers(0, 4_000), st.integers(1, 9))


@given(given=st.lists(RAMP, min_size=1, max_size=12), at=st.integers(-6_000, 10_000))
def test_a_row_has_the_value_and_the_integrals_of_its_ramps(given: list[tuple[int, int, int, int]], at: int) -> None:
    row, start, width, share = (np.array(column, np.float64) for column in zip(*given, strict=True))
    of_row = row.astype(np.int64)
    curves = Ramps.of(of_row, start, start + width, share, 3)
    origin_ms = float(start.min()) - 2
    fine_ms = np.linspace(origin_ms, max(at, origin_ms), 4_001)
    for number in range(3):
        mine = row == number
        values = _sum_at(fine_ms, start[mine], width[mine], share[mine])
        value, integral_ms, square_ms = (
            float(found[0]) for found in curves.at(np.array([number]), np.array([max(at, origin_ms)]))
        )
        length_ms = float(fine_ms[-1] - fine_ms[0])
        total = max(float(share[mine].sum()), 1.0)
        assert value == pytest.approx(float(values[-1]), abs=1e-6 * total)
        # The grid is as good as a step of it.
        assert integral_ms == pytest.approx(float(values.mean()) * length_ms, abs=5 * total)
        assert square_ms == pytest.approx(float((values**2).mean()) * length_ms, abs=5 * total**2)


def test_many_ramps_at_places_are_the_exact_ones_moved_by_less_than_a_place() -> None:
    rng = np.random.default_rng(1)
    number, rows, span_ms = 20_000, 40, 300_000
    row = rng.integers(0, rows, number)
    start_ms = rng.integers(0, span_ms, number).astype(np.float64)
    # A third of them are steps.
    width_ms = np.where(rng.random(number) < 0.3, 0.0, rng.random(number) * (span_ms - start_ms))
    share = rng.random(number)
    exact = Ramps.of(row, start_ms, start_ms + width_ms, share, rows)
    placed = Ramps.of(row, start_ms, start_ms + width_ms, share, rows, bursts=True)
    assert len(placed.key) == rows * (BURST_PLACES + 2) < len(exact.key) / 10
    probe, at_ms = np.repeat(np.arange(rows), 50), np.tile(np.linspace(-10, span_ms + 10, 50), rows)
    total, place_ms = np.bincount(row, share)[probe], span_ms / BURST_PLACES
    value, integral_ms, square_ms = placed.at(probe, at_ms)
    assert (value >= exact.values(probe, at_ms - place_ms) - 1e-9).all()
    assert (value <= exact.values(probe, at_ms + place_ms) + 1e-9).all()
    _, exact_integral_ms, exact_square_ms = exact.at(probe, at_ms)
    assert (np.abs(integral_ms - exact_integral_ms) <= place_ms * total).all()
    assert (np.abs(square_ms - exact_square_ms) <= place_ms * total**2).all()
    assert integral_ms.max() > 100 * place_ms  # so that the bound says something


@given(given=st.lists(RAMP, min_size=1, max_size=12))
def test_sums_at_even_moments_are_those_at_any_to_half_a_step(given: list[tuple[int, int, int, int]]) -> None:
    _, start, width, mass = (np.array(column, np.float64) for column in zip(*given, strict=True))
    step_ms, moments = 250.0, 64
    at_ms = np.linspace(-5_500.0, -5_500.0 + step_ms * (moments - 1), moments)
    found = risen_evenly(-5_500.0, step_ms, moments, start, start + width, mass)
    assert (found >= risen(at_ms - step_ms, start, start + width, mass)[0] - 1e-6).all()
    assert (found <= risen(at_ms + step_ms, start, start + width, mass)[0] + 1e-6).all()
    assert found[-1] == pytest.approx(mass.sum())


def _sum_at(at_ms: Floats, start: Floats, width: Floats, share: Floats) -> Floats:
    done = (at_ms[:, None] - start) / np.maximum(width, 1)
    risen_share = np.where(width < 1, at_ms[:, None] >= start, np.clip(done, 0, 1))
    found: Floats = (risen_share * share).sum(axis=1)
    return found

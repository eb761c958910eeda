"""Seeded histories with known difficulties: fixed delays, times on the clock, bursts, seasons."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS

Integers = NDArray[np.int64]
Timers = tuple[Integers, Integers]  # (publish times, ascending, due times), UTC milliseconds

START_MS = 1_760_000_000_000 // DAY_MS * DAY_MS
_TEN_MINUTES_MS = 10.0 * MINUTE_MS


def _even(rng: np.random.Generator, rows: int, days: int) -> Integers:
    return np.sort(START_MS + rng.integers(0, days * DAY_MS, rows))


def _mixed_delay(rng: np.random.Generator, rows: int) -> Integers:
    short = rng.exponential(_TEN_MINUTES_MS, rows)
    long = rng.uniform(HOUR_MS, 7 * DAY_MS, rows)
    return np.where(rng.random(rows) < 0.9, short, long).astype(np.int64)


def _next_nine(publish_ms: Integers) -> Integers:
    return (publish_ms // DAY_MS + 1) * DAY_MS + 9 * HOUR_MS


def mixture(rng: np.random.Generator, rows: int, days: int) -> Timers:
    publish_ms = _even(rng, rows, days)
    return publish_ms, publish_ms + _mixed_delay(rng, rows)


def fixed_hour(rng: np.random.Generator, rows: int, days: int) -> Timers:
    publish_ms = _even(rng, rows, days)
    return publish_ms, publish_ms + HOUR_MS


def three_fixed(rng: np.random.Generator, rows: int, days: int) -> Timers:
    publish_ms = _even(rng, rows, days)
    return publish_ms, publish_ms + rng.choice([HOUR_MS, DAY_MS, 5 * DAY_MS], rows)


def nine_next_day(rng: np.random.Generator, rows: int, days: int) -> Timers:
    publish_ms = _even(rng, rows, days)
    return publish_ms, _next_nine(publish_ms)


def half_nine(rng: np.random.Generator, rows: int, days: int) -> Timers:
    publish_ms = _even(rng, rows, days)
    short_ms = publish_ms + rng.exponential(_TEN_MINUTES_MS, rows).astype(np.int64)
    return publish_ms, np.where(rng.random(rows) < 0.5, _next_nine(publish_ms), short_ms)


def campaign(rng: np.random.Generator, rows: int, days: int) -> Timers:
    del days
    publish_ms = np.sort(START_MS + 10 * HOUR_MS + rng.integers(0, MINUTE_MS, rows))
    return publish_ms, publish_ms + MINUTE_MS + rng.integers(0, 8 * HOUR_MS, rows)


def seasons(rng: np.random.Generator, rows: int, days: int) -> Timers:
    drawn_ms = START_MS + rng.integers(0, days * DAY_MS, 2 * rows)
    height = (1 + 0.9 * np.sin(2 * np.pi * (drawn_ms % DAY_MS) / DAY_MS)) / 1.9
    publish_ms = np.sort(drawn_ms[rng.random(2 * rows) < height][:rows])
    return publish_ms, publish_ms + _mixed_delay(rng, len(publish_ms))


def full_hours(rng: np.random.Generator, rows: int, days: int) -> Timers:
    publish_ms = _even(rng, rows, days)
    rough_ms = publish_ms + rng.integers(HOUR_MS, 3 * DAY_MS, rows)
    return publish_ms, -(-rough_ms // HOUR_MS) * HOUR_MS


WORKLOADS: dict[str, Callable[[np.random.Generator, int, int], Timers]] = {
    "mixture": mixture,
    "fixed 1h": fixed_hour,
    "fixed 1h, 1d, 5d": three_fixed,
    "09:00 next day": nine_next_day,
    "half 09:00, half exponential": half_nine,
    "campaign": campaign,
    "seasons": seasons,
    "full hours": full_hours,
}
"""Name -> function of (generator, rows, days)."""

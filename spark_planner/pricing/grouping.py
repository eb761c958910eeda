"""Grouping: the number of entries for a plan's hops, if relays send hops in groups (broker-facts: batched-hops).

A group of hops begins with its first hop and is sent a linger L later, and all groups of a source partition are sent
together. With r hops a second out of a source, of which a share p goes to a destination, a source partition sends
``1 / (L + 1 / r)`` such rounds a second. A round has a group for that destination unless neither its first hop nor any
other hop goes there: with a probability of ``1 - (1 - p) exp(-p r L)``, for hops at random times. A group has a limit
of messages and of bytes.

Rates are those of the pieces, even within a piece. For pieces that are single moments they are rates per minute, but of
at least a part of `Resolution.hop_places`. A second that stands out of its minute is a burst, and so is a slot's
release. Bursts shorter than a piece need fewer entries than computed here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from timewheel.core.grouping import GROUP_BYTES, GROUP_MESSAGES
from timewheel.core.steps import Step
from timewheel.spark_planner.pricing.flow import SENT, Stays
from timewheel.spark_planner.pricing.resolution import CLOSE, Resolution

__all__ = ["HopRates", "grouped_entries", "hop_rates", "into_one", "rates_of_intake"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

AT_ONCE_S = 1.0
"""Timers that leave within twice this time count as a single moment."""
MINUTE_S = 60.0
BURST_SIZE, BURST_SHARE = 20.0, 0.5
"""Least size of a burst: timers in a second, and share of their minute."""
LEAST_PER_S = 1e-12
"""Lower rates are rounding errors of float sums."""
BINS_PER_DOUBLING = 8
"""Resolution of rates: within 9 %."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HopRates:
    """Hops out of the topics of a step, by destination; all partitions together.

    Args:
        seconds: Total duration of each rate.
        per_s: Hops a second: a row per destination step, a column per rate.
        burst_step: The destination of each burst.
        burst_size: Hops of each burst.
    """

    seconds: Floats
    per_s: Floats
    burst_step: Integers
    burst_size: Floats


def hop_rates(
    table: tuple[Step, ...], stays: tuple[Stays, ...], resolution: Resolution = CLOSE
) -> tuple[HopRates, ...]:
    """Return the rates of the hops from step to step, an item per source step.

    Args:
        table: Result of `timewheel.core.steps.steps`.
        stays: For each step, the timers that wait in it.
        resolution: Bounds on the resolution of time.
    """
    return tuple(
        _rates_from(stays, source, resolution.hop_places, source_is_tier=step.kind == "tier")
        for source, step in enumerate(table)
    )


def rates_of_intake(stays: tuple[Stays, ...], resolution: Resolution = CLOSE) -> HopRates:
    """Return the rates of the hops out of the intake, through which all timers enter.

    Args:
        stays: For each step, the timers that wait in it.
        resolution: Bounds on the resolution of time.
    """
    return _rates_from(stays, SENT, resolution.hop_places, source_is_tier=True)


def into_one(rates: HopRates) -> HopRates:
    """Return the rates of the same hops with a single destination topic."""
    return HopRates(
        seconds=rates.seconds,
        per_s=rates.per_s.sum(axis=0, keepdims=True),
        burst_step=np.zeros_like(rates.burst_step),
        burst_size=rates.burst_size,
    )


def grouped_entries(rates: tuple[HopRates, ...], *, partitions: int, linger_ms: int, entry_bytes: float) -> Floats:
    """Return the number of entries that the hops into each step are written as.

    Args:
        rates: Result of `hop_rates`.
        partitions: Partitions of every topic; hops spread over them evenly.
        linger_ms: Time for which hops wait for each other.
        entry_bytes: Size of a message.
    """
    most = max(min(GROUP_MESSAGES, GROUP_BYTES / max(entry_bytes, 1.0)), 1.0)
    steps = max((len(one.per_s) for one in rates), default=0)
    entries = np.zeros(steps)
    for one in rates:
        entries += _of_streams(one, partitions, linger_ms / 1000, most)
        sizes = one.burst_size / partitions
        groups = np.maximum(sizes / most, np.minimum(sizes, 1.0)) * partitions
        entries += np.bincount(one.burst_step, groups, steps)
    return entries


def _of_streams(rates: HopRates, partitions: int, linger_s: float, most: float) -> Floats:
    per_s = rates.per_s / partitions
    in_all = np.maximum(per_s.sum(axis=0), 1e-300)
    rounds_per_s = 1.0 / (linger_s + 1.0 / in_all)
    has_group = 1.0 - (1.0 - per_s / in_all) * np.exp(-per_s * linger_s)
    groups_per_s = np.clip(rounds_per_s * has_group, per_s / most, per_s)
    found: Floats = (groups_per_s * rates.seconds).sum(axis=1) * partitions
    return found


def _rates_from(stays: tuple[Stays, ...], source: int, places: int, *, source_is_tier: bool) -> HopRates:
    picked = [np.flatnonzero(one.came_from == source) for one in stays]
    step = np.repeat(np.arange(len(stays)), [len(mine) for mine in picked])
    count, entered_ms, released_ms, half_ms = (
        np.concatenate([getattr(one, name)[mine] for one, mine in zip(stays, picked, strict=True)])
        for name in ("count", "entered_ms", "released_ms", "half_ms")
    )
    middle_s, half_s = entered_ms / 1000, half_ms / 1000
    is_burst = half_s <= AT_ONCE_S
    if source_is_tier:
        is_burst = _stands_out(middle_s, count, is_burst)
        middle_s, half_s = _in_minutes(middle_s, half_s)
    which = np.flatnonzero(is_burst)
    burst_step, burst_size = _bursts(len(stays), step[which], count[which], entered_ms[which], released_ms[which])
    spread = ~is_burst
    seconds, per_s = _streams(len(stays), places, step[spread], count[spread], middle_s[spread], half_s[spread])
    return HopRates(seconds=seconds, per_s=per_s, burst_step=burst_step, burst_size=burst_size)


def _stands_out(at_s: Floats, count: Floats, is_moment: Flags) -> Flags:
    """Return whether the second of each moment has much of its minute's timers."""
    found = is_moment.copy()
    seconds, index = np.unique(np.floor(at_s[is_moment]).astype(np.int64), return_inverse=True)
    in_second = np.bincount(index, count[is_moment], len(seconds))
    _, minute = np.unique(seconds // MINUTE_S, return_inverse=True)
    in_minute = np.bincount(minute, in_second)[minute] if len(seconds) else in_second
    found[is_moment] = ((in_second >= BURST_SIZE) & (in_second >= BURST_SHARE * in_minute))[index]
    return found


def _in_minutes(middle_s: Floats, half_s: Floats) -> tuple[Floats, Floats]:
    """Spread moments over their minute, in which they are at random times."""
    is_moment = half_s <= AT_ONCE_S
    minute_s = (np.floor(middle_s / MINUTE_S) + 0.5) * MINUTE_S
    return np.where(is_moment, minute_s, middle_s), np.where(is_moment, MINUTE_S / 2, half_s)


def _bursts(steps: int, step: Integers, count: Floats, at_ms: Floats, until_ms: Floats) -> tuple[Integers, Floats]:
    """Sum the timers of each second by destination topic; topics of a ring are distinguished by their release."""
    if not len(step):
        return step, count
    at_s, until_s = (np.floor(moment_ms / 1000).astype(np.int64) for moment_ms in (at_ms, until_ms))
    stay_s = until_s - at_s
    keys, index = np.unique(
        ((at_s - at_s.min()) * (stay_s.max() + 1) + stay_s) * steps + step,
        return_inverse=True,
    )
    return keys % steps, np.bincount(index, count).astype(np.float64)


def _streams(
    steps: int, places: int, step: Integers, count: Floats, middle_s: Floats, half_s: Floats
) -> tuple[Floats, Floats]:
    """Return the durations of rates for overlapping pieces that leave evenly over a time; similar rates are merged."""
    if not len(step):
        return np.zeros(0), np.zeros((steps, 0))
    start_s, end_s = middle_s - half_s, middle_s + half_s
    base_s = float(start_s.min())
    place_s = (float(end_s.max()) - base_s) / places
    first = np.rint((start_s - base_s) / place_s).astype(np.int64)
    last = np.maximum(np.rint((end_s - base_s) / place_s).astype(np.int64), first + 1)
    rate = count / ((last - first) * place_s)
    row, size = step * (places + 2), steps * (places + 2)
    changes = np.bincount(row + first, rate, size) - np.bincount(row + last, rate, size)
    per_s = np.maximum(changes.reshape(steps, -1).cumsum(axis=1), 0.0)
    in_all = np.maximum(per_s.sum(axis=0), LEAST_PER_S)
    bins = np.floor(np.log2(in_all / LEAST_PER_S) * BINS_PER_DOUBLING).astype(np.int64)
    lasting = np.bincount(bins)
    summed = np.stack([np.bincount(bins, rates) for rates in per_s])
    found = lasting > 0
    return (lasting[found] * place_s).astype(np.float64), summed[:, found] / lasting[found]

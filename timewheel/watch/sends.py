"""Estimate rate and delays of the sends from the entries of a live topic, without the bias of stored entries;
and drift: rate and delays compared with those that a plan was made for.

Entries stored in a topic are no fair sample of its sends: a timer of ten days stays a hundred times as long as a timer
of two hours. So timers are counted where and when they were **sent**: of all copies of a timer only the first, in
whichever topic of the plan it lies, and only in a time window whose sends are all still stored. Brokers delete ledgers
whole and from the front, so each partition still stores everything sent since its first entry, acknowledged or not.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.plan import Calendar
from timewheel.inspect.plan_sample import Part, PlanSample, PlanTopic, StoredTimer
from timewheel.spark_planner.summary.cells import Cells

LEAST_TIMERS = 30  # below this number of sampled sends no rate is reported: its error would exceed a third
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
"""Shares of the timers: a check stores the delays that these shares do not exceed."""
NORMAL_95 = 1.96
DKW_95 = sqrt(log(2 / 0.05) / 2)
"""Divided by the root of the sample size: greatest error of any share of the delays, at 95 % for all shares at once
(Dvoretzky-Kiefer-Wolfowitz).
"""
_EVER_MS = 0
_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sends:
    """Sampled sends of a time window.

    Args:
        from_ms: Start of the window, UTC milliseconds: all sends since then are still stored.
        until_ms: End of the window, UTC milliseconds.
        timers: Sampled first copies that were sent within the window, by ``entered_ms``.
        weights: For each sampled timer, the number of sends that it stands for.
    """

    from_ms: int
    until_ms: int
    timers: tuple[StoredTimer, ...]
    weights: tuple[float, ...]

    @property
    def window_ms(self) -> int:
        return max(self.until_ms - self.from_ms, 0)

    @property
    def is_enough(self) -> bool:
        """True if the sends suffice to estimate rate and delays."""
        return len(self.timers) >= LEAST_TIMERS and self.window_ms > 0

    @property
    def per_second(self) -> float:
        """Sends per second; 0 without a window."""
        return sum(self.weights) * 1_000 / self.window_ms if self.window_ms else 0.0

    @property
    def per_second_error(self) -> float:
        """Error of `per_second` at 95 %, from sampling and from random arrivals."""
        squares = sum(weight**2 for weight in self.weights)
        return NORMAL_95 * sqrt(squares) * 1_000 / self.window_ms if self.window_ms else 0.0

    @property
    def share_error(self) -> float:
        """Greatest error of the share of sends up to any delay, at 95 %."""
        squares = sum(weight**2 for weight in self.weights)
        return min(DKW_95 * sqrt(squares) / sum(self.weights), 1.0) if self.weights else 1.0

    def delays(self) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Return (ascending delays in milliseconds, each delay's share of all sends)."""
        total = sum(self.weights)
        found = sorted(
            (timer.due_ms - timer.entered_ms, weight) for timer, weight in zip(self.timers, self.weights, strict=True)
        )
        return tuple(delay_ms for delay_ms, _ in found), tuple(weight / total for _, weight in found)

    def quantiles_ms(self) -> tuple[int, ...]:
        """Return the delays not exceeded by `SHARES` of the sends; empty without sends."""
        delays_ms, shares = self.delays()
        if not delays_ms:
            return ()
        reached = list(accumulate(shares))
        return tuple(
            next((delay for delay, so_far in zip(delays_ms, reached, strict=True) if so_far >= share), delays_ms[-1])
            for share in SHARES
        )

    def evenly(self) -> tuple[tuple[StoredTimer, ...], float]:
        """Return a random subset of the timers with equal weights, and the weight."""
        if not self.weights:
            return (), 1.0
        most = max(self.weights)
        drawn = random.Random(_SEED)  # noqa: S311 - a fair draw, not a secret
        kept = tuple(
            timer
            for timer, weight in zip(self.timers, self.weights, strict=True)
            if weight == most or drawn.random() * most < weight
        )
        return kept, max(most, 1.0)


def sends_of(sample: PlanSample) -> Sends:
    """Return the sends that a sample of a plan's topics shows."""
    from_ms, until_ms = window_of(sample), sample.at_ms
    found = [
        (timer, drawn.scale)
        for drawn in (sample.in_due, sample.in_holding)
        for timer in drawn.timers
        if timer.is_first and from_ms <= timer.stored_ms and timer.entered_ms < until_ms
    ]
    found.sort(key=lambda pair: pair[0].entered_ms)
    return Sends(
        from_ms=from_ms,
        until_ms=until_ms,
        timers=tuple(timer for timer, _ in found),
        weights=tuple(weight for _, weight in found),
    )


def window_of(sample: PlanSample) -> int:
    """Return the moment since which all sends are still stored in every topic of the plan; UTC milliseconds.

    It is the latest of all partitions. A calendar's topics before the running interval may be deleted, and with them
    earlier sends that were due in those intervals. So a calendar's window begins no earlier than the running interval.
    """
    found = [_complete_since_ms(topic, part) for topic in (*sample.due, *sample.holding) for part in topic.parts]
    if isinstance(sample.plan.scheme, Calendar):
        interval_ms = sample.plan.scheme.interval_ms
        found.append(sample.at_ms // interval_ms * interval_ms)
    return min(max(found, default=sample.at_ms), sample.at_ms)


def _complete_since_ms(topic: PlanTopic, part: Part) -> int:
    stays_ms = _none_left_since_ms(topic, part.at_ms)
    return stays_ms if part.first_stored_ms is None else min(part.first_stored_ms, stays_ms)


def _none_left_since_ms(topic: PlanTopic, at_ms: int) -> int:
    """Return the moment since which no send to this topic can have been acknowledged yet, by the plan."""
    step = topic.step
    if step is None:
        # A timer may be due when it is sent, but not before the interval of a calendar's topic.
        is_ahead = topic.interval_start_ms is not None and topic.interval_start_ms > at_ms
        return _EVER_MS if is_ahead else at_ms
    if step.stay_ms:
        return at_ms - step.stay_ms
    # A slot is cleared once per turn: at its start, less the head start.
    turn_ms = step.slots * step.slot_ms
    first_ms = topic.slot * step.slot_ms - step.headstart_ms
    return at_ms - (at_ms - first_ms) % turn_ms


RATE_DRIFT = 0.2  # fraction of the former rate: a change by a fifth, beyond chance and sampling error, is drift
DELAY_DRIFT = 0.1
"""Fraction of all timers: changed delays of a tenth of them, beyond chance and sampling error, are drift."""
SAME = 0.03
"""Fraction of a delay: smaller differences count as equal. Statistics have buckets of 3 %, and clocks jitter."""
WEEKLY_MS = 14 * DAY_MS
"""Length from which a history is compared by days of the week; a shorter history is compared by hours of the day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Former rate at the same hours, and delays not exceeded by `SHARES`; the name follows "against"."""

    name: str
    per_second: float
    quantiles_ms: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Change of rate and delays since a reference.

    Args:
        rate: Present rate divided by the former rate.
        rate_error: Error of `rate`, at 95 %.
        moved: Least share of timers whose delays have changed.
        moved_error: Error of `moved`, at 95 %.
        quantiles_ms: Delays not exceeded by `SHARES` of the present sends.
    """

    reference: Reference
    rate: float
    rate_error: float
    moved: float
    moved_error: float
    quantiles_ms: tuple[int, ...]

    @property
    def is_rate(self) -> bool:
        return abs(self.rate - 1) - self.rate_error > RATE_DRIFT

    @property
    def is_delay(self) -> bool:
        return self.moved - self.moved_error > DELAY_DRIFT


def drift(sends: Sends, reference: Reference) -> Drift:
    """Compare the sends with a reference. The sends are enough, and the reference has a rate above 0."""
    delays_ms, shares = sends.delays()
    return Drift(
        reference=reference,
        rate=sends.per_second / reference.per_second,
        rate_error=sends.per_second_error / reference.per_second,
        moved=_moved(delays_ms, shares, reference.quantiles_ms),
        moved_error=sends.share_error,
        quantiles_ms=sends.quantiles_ms(),
    )


def _moved(delays_ms: Sequence[int], shares: Sequence[float], then_ms: Sequence[int]) -> float:
    """Return the largest change of the share of timers up to any of the former quantiles.

    Many timers may share a delay; then any share from just below that delay up to it counts as unchanged.
    """
    reached = [0.0, *accumulate(shares)]
    most = 0.0
    for share, quantile_ms in zip(SHARES, then_ms, strict=True):
        below = reached[bisect_left(delays_ms, quantile_ms * (1 - SAME))]
        upto = reached[bisect_right(delays_ms, quantile_ms * (1 + SAME))]
        most = max(most, below - share, share - upto)
    return most


def reference_of(cells: Cells, name: str, from_ms: int, until_ms: int) -> Reference | None:
    """Return a history's rate and delays at the hours of a window.

    A window shorter than a day is compared with the same hours of the history's days, and of the same days of the week
    if the history has two weeks. Otherwise the night would count as a drop in traffic. None if the history has no timer
    at these hours, or no length.
    """
    first_ms, last_ms = int(cells.publish_min_ms.min()), int(cells.publish_max_ms.max()) + 1
    period_ms = DAY_MS if last_ms - first_ms < WEEKLY_MS else 7 * DAY_MS
    is_all = until_ms - from_ms >= period_ms or last_ms - first_ms < DAY_MS
    # Hours of the period, so that a window of some minutes is not compared with equally few minutes of a day.
    begin = 0 if is_all else from_ms // HOUR_MS
    hours = period_ms // HOUR_MS if is_all else -(-until_ms // HOUR_MS) - begin
    middle_ms: NDArray[np.int64] = cells.middle_ms
    inside = (middle_ms // HOUR_MS - begin) % (period_ms // HOUR_MS) < hours
    count = cells.count[inside]
    length_ms = last_ms - first_ms
    if not is_all:
        all_hours = np.arange(first_ms // HOUR_MS, -(-last_ms // HOUR_MS))
        same = all_hours[(all_hours - begin) % (period_ms // HOUR_MS) < hours]
        # The first and the last hour may be incomplete.
        length_ms = int(
            (np.minimum((same + 1) * HOUR_MS, last_ms) - np.maximum(same * HOUR_MS, first_ms)).clip(0).sum()
        )
    if not len(count) or length_ms <= 0:
        return None
    return Reference(
        name=name, per_second=float(count.sum()) * 1_000 / length_ms, quantiles_ms=_quantiles(cells.where(inside))
    )


def _quantiles(cells: Cells) -> tuple[int, ...]:
    """Return the quantiles of the delays; timers of a cell count with the cell's middle delay."""
    delay_ms = (cells.delay_min_ms + cells.delay_max_ms) // 2
    order = np.argsort(delay_ms)
    reached = np.cumsum(cells.count[order])
    places = np.searchsorted(reached, np.array(SHARES) * reached[-1] - 1e-9)
    return tuple(int(delay) for delay in delay_ms[order][np.minimum(places, len(order) - 1)])

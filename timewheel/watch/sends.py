"""Estimate rate and delays of the sends from the entries of a live topic, without the bias of stored entries.

Entries stored in a topic are no fair sample of its sends: a timer of ten days stays a hundred times as long as a timer
of two hours. So timers are counted where and when they were **sent**: of all copies of a timer only the first, in
whichever topic of the plan it lies, and only in a time window whose sends are all still stored. Brokers delete ledgers
whole and from the front, so each partition still stores everything sent since its first entry, acknowledged or not.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import log, sqrt

from timewheel.core.plan import Calendar
from timewheel.inspect.plan_sample import Drawn, Part, PlanSample, PlanTopic, StoredTimer

LEAST_TIMERS = 30
"""Below this number of sampled sends no rate is reported: its error would exceed a third."""
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
        """Length of the window."""
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
        for timer in _firsts(drawn)
        if from_ms <= timer.stored_ms and timer.entered_ms < until_ms
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


def _firsts(drawn: Drawn) -> Sequence[StoredTimer]:
    return [timer for timer in drawn.timers if timer.is_first]


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

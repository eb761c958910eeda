"""Which timers are sent, and how long before they are due: from the entries of a live topic, without their bias.

What waits in a topic is no fair sample of what is sent there: a timer of ten days is there a hundred times as long as
one of two hours. So timers are counted where and when they were **sent**: of all copies of a timer only the first one,
in whatever topic of the plan that is, and only in a window of time in which nothing that was sent is gone yet. Brokers
delete ledgers whole and from the front, so in each partition all that was sent since its first entry is there,
acknowledged or not.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import log, sqrt

from timewheel.core.plan import Calendar
from timewheel.ops.plan_stored import Drawn, Part, PlanSample, PlanTopic, StoredTimer

__all__ = ["LEAST_TIMERS", "SHARES", "Sends", "sends_of", "window_of"]

LEAST_TIMERS = 30
"""Of fewer sampled sends nothing is said: their rate is not known to a third."""
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
"""Of the timers: the delays that so many do not exceed are what is kept of a check."""
NORMAL_95 = 1.96
DKW_95 = sqrt(log(2 / 0.05) / 2)
"""Over the root of the sample: how far any share of the delays may be off, at 95 % for all of them at once
(Dvoretzky-Kiefer-Wolfowitz)."""
_EVER_MS = 0
_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sends:
    """What was sent within a window of time.

    Args:
        from_ms: When the window begins: all that was sent since then is still stored; UTC milliseconds.
        until_ms: When it ends, UTC milliseconds.
        timers: Sampled first copies that were sent within it, by ``entered_ms``.
        weights: For each of them, how many sends it stands for.
    """

    from_ms: int
    until_ms: int
    timers: tuple[StoredTimer, ...]
    weights: tuple[float, ...]

    @property
    def window_ms(self) -> int:
        """Its length."""
        return max(self.until_ms - self.from_ms, 0)

    @property
    def is_enough(self) -> bool:
        """Whether anything can be said of rate and delays."""
        return len(self.timers) >= LEAST_TIMERS and self.window_ms > 0

    @property
    def per_second(self) -> float:
        """Sends a second; 0 if there is no window."""
        return sum(self.weights) * 1_000 / self.window_ms if self.window_ms else 0.0

    @property
    def per_second_error(self) -> float:
        """Of that, at 95 %: the sample's, and that of arrivals by chance."""
        squares = sum(weight**2 for weight in self.weights)
        return NORMAL_95 * sqrt(squares) * 1_000 / self.window_ms if self.window_ms else 0.0

    @property
    def share_error(self) -> float:
        """How far the share of sends up to any delay may be off, at 95 %."""
        squares = sum(weight**2 for weight in self.weights)
        return min(DKW_95 * sqrt(squares) / sum(self.weights), 1.0) if self.weights else 1.0

    def delays(self) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """(delays ascending in milliseconds, the share of all sends that each one is)."""
        total = sum(self.weights)
        found = sorted(
            (timer.due_ms - timer.entered_ms, weight) for timer, weight in zip(self.timers, self.weights, strict=True)
        )
        return tuple(delay_ms for delay_ms, _ in found), tuple(weight / total for _, weight in found)

    def quantiles_ms(self) -> tuple[int, ...]:
        """The delays that `SHARES` of the sends do not exceed; none if there are no sends."""
        delays_ms, shares = self.delays()
        if not delays_ms:
            return ()
        reached = list(accumulate(shares))
        return tuple(
            next((delay for delay, so_far in zip(delays_ms, reached, strict=True) if so_far >= share), delays_ms[-1])
            for share in SHARES
        )

    def evenly(self) -> tuple[tuple[StoredTimer, ...], float]:
        """Fewer of them, each of which stands for as many sends as any other, and for how many that is."""
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
    """The sends that a sample of a plan's topics shows."""
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
    """Since when all that was sent is still there, in every topic of the plan; UTC milliseconds.

    It is the latest of all partitions. A calendar's topics before the running interval may be deleted, and with them
    what was sent before that and was due within them: there the window begins with the interval at the earliest.
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
    """What was sent to this topic since then cannot have been acknowledged yet, by the plan."""
    step = topic.step
    if step is None:
        # A timer may be due when it is sent; but not before the interval of a calendar's topic.
        is_ahead = topic.interval_start_ms is not None and topic.interval_start_ms > at_ms
        return _EVER_MS if is_ahead else at_ms
    if step.stay_ms:
        return at_ms - step.stay_ms
    # A slot is cleared once in a turn: at its start, less the head start.
    turn_ms = step.slots * step.slot_ms
    first_ms = topic.slot * step.slot_ms - step.headstart_ms
    return at_ms - (at_ms - first_ms) % turn_ms

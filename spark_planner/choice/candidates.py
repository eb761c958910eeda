"""Candidates: the plans among which the planner chooses, the same for the same history length and base plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from typing import TypeVar

from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS, ROUND_MS, SECOND_MS, round_duration
from timewheel.core.errors import PlanError
from timewheel.core.plan import (
    MAX_CALENDAR_TOPICS,
    MAX_SLOTS,
    MIN_STAY_MS,
    Calendar,
    Native,
    Plan,
    Ring,
    Scheme,
    Tiered,
    Wheel,
    tier_hops,
)

from ..errors import MaxDelayTooShort

FINE_MS = tuple(
    sorted(
        {
            *ROUND_MS,
            *(seconds * SECOND_MS for seconds in (3, 4, 6, 8, 20, 25, 40, 45, 50)),
            *(minutes * MINUTE_MS for minutes in (3, 4, 6, 7, 8, 12, 20, 25, 40, 45, 50)),
            *(hours * HOUR_MS for hours in (4, 5, 8, 9, 10, 15, 18, 20)),
            *(days * DAY_MS for days in (3, 4, 7, 14, 15)),
        }
    )
)
"""Finer durations, for histories of short delays, where `ROUND_MS` has few."""
LEAST_CANDIDATES = 300
ENOUGH_CANDIDATES = 330  # number of candidates up to which the finer durations fill the list
MAX_WHEELS = 64
MAX_PER_WINDOW = 26  # most tier sets of a window; sets of few tiers come first

T = TypeVar("T")

LEAST_RING_RATIO = 4
WINDOWS = 14
"""Number of windows: the longest round durations below the longest delay. Shorter windows re-publish too often to be
worth pricing.
"""
TIERS_ABOVE = 7  # durations above the window from which further tiers are taken, up to `MORE_TIERS` at once
MORE_TIERS = 3
MAX_CANDIDATE_HOPS = 48
"""Most hops of the longest delay in the history. A plan that re-publishes a timer more often is never the cheapest."""
MAX_FAR_HOPS = 400  # most hops of a delay as long as the requested ``max_delay``, which is rare: the history has none
LEAST_RATIO = 2.0  # smallest ratio of neighbouring tiers: closer tiers cost topics and save few hops
FINE_RATIO = 1.25


def candidate_plans(base: Plan, longest_delay_ms: int, max_delay_ms: int | None = None) -> tuple[Plan, ...]:
    """Build the plans that differ in windows, tier sets, intervals or rings.

    Args:
        base: Names, subscriptions, guard, tick and everything else that is not chosen. Its ``max_delay`` is ignored:
            every plan has a ``max_delay``, and a default value carries no information about the history. With an intake
            all candidates are shadows: tiers and wheels only.
        longest_delay_ms: The longest delay of the history.
        max_delay_ms: The longest delay that the plans accept; tiers, rings and calendars reach that far. None: the
            history's longest delay, rounded up.

    Returns:
        Each scheme once, the simple rules among them, all of them valid, in a fixed order. Partitions are those of the
        base: they are chosen later.

    Raises:
        MaxDelayTooShort: The history has longer delays.
    """
    frame = _frame(base, longest_delay_ms, max_delay_ms)
    limit_ms, reach_ms = frame.max_delay_ms, max(round_duration(longest_delay_ms), MIN_STAY_MS)
    found: dict[Scheme, Plan] = {}
    for durations_ms, ratio, most in ((ROUND_MS, LEAST_RATIO, None), (FINE_MS, FINE_RATIO, ENOUGH_CANDIDATES)):
        usable_ms = [duration_ms for duration_ms in durations_ms if duration_ms < limit_ms]
        made = [
            _valid(frame, scheme, intake=base.intake)
            for scheme in _schemes(usable_ms, limit_ms, reach_ms, base.guard_ms, ratio)
        ]
        new = list({plan.scheme: plan for plan in made if plan is not None and plan.scheme not in found}.values())
        for plan in new if most is None else thinned(new, max(most - len(found), 2)):
            found[plan.scheme] = plan
        if len(found) >= LEAST_CANDIDATES:
            break
    for plan in article_plans(base, longest_delay_ms, max_delay_ms).values():
        found.setdefault(plan.scheme, plan)
    return tuple(found.values())


def as_shadow(base: Plan) -> Plan:
    """Return a base whose candidates are shadows: any client reads, and a separate service moves all timers.

    Args:
        base: The base plan, as in `candidate_plans`.
    """
    # The scheme is ignored, but a plan with an intake needs a scheme that holds timers.
    holds = Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS,))
    return replace(base, scheme=holds, intake=True, relay="service", readers="any", cancel=None)


def article_plans(base: Plan, longest_delay_ms: int, max_delay_ms: int | None = None) -> dict[str, Plan]:
    """Build the plans of the source article's rules of thumb, by rule name; rules without a valid plan are left out."""
    frame = _frame(base, longest_delay_ms, max_delay_ms)
    rules: dict[str, Scheme] = {
        "1 day": Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS,)),
        "1 day and 5 days": Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS, 5 * DAY_MS)),
        "12 hours": Tiered(window_ms=12 * HOUR_MS, tiers_ms=(12 * HOUR_MS,)),
        "day topics": Calendar(interval_ms=DAY_MS),
    }
    plans = {name: _valid(frame, scheme, intake=base.intake) for name, scheme in rules.items()}
    return {name: plan for name, plan in plans.items() if plan is not None}


def _frame(base: Plan, longest_delay_ms: int, max_delay_ms: int | None) -> Plan:
    if max_delay_ms is None:
        max_delay_ms = round_duration(longest_delay_ms)
    elif max_delay_ms < longest_delay_ms:
        raise MaxDelayTooShort(max_delay_ms, longest_delay_ms)
    return replace(base, scheme=Native(), intake=False, max_delay_ms=max(max_delay_ms, MIN_STAY_MS))


def _schemes(usable_ms: list[int], limit_ms: int, reach_ms: int, guard_ms: int, ratio: float) -> Iterator[Scheme]:
    yield Native()
    for interval_ms in usable_ms:
        if limit_ms // interval_ms + 2 <= MAX_CALENDAR_TOPICS:
            yield Calendar(interval_ms=interval_ms)
    # A window shorter than two guards is all slack; a window longer than the history's delays equals native delays.
    windows_ms = [window_ms for window_ms in usable_ms if 2 * guard_ms <= window_ms < reach_ms][-WINDOWS:]
    for window_ms in windows_ms:
        tiered = list(_tiered(window_ms, usable_ms, limit_ms, reach_ms, guard_ms, ratio))
        yield from sorted(tiered, key=lambda scheme: len(scheme.tiers_ms))[
            : MAX_PER_WINDOW if ratio >= LEAST_RATIO else None
        ]
    wheels = list(_wheels([slot_ms for slot_ms in usable_ms if slot_ms >= guard_ms], limit_ms, guard_ms))
    yield from thinned(sorted(wheels, key=lambda wheel: len(wheel.rings)), MAX_WHEELS)


def _tiered(
    window_ms: int, usable_ms: list[int], limit_ms: int, reach_ms: int, guard_ms: int, ratio: float
) -> Iterator[Tiered]:
    above_ms = [tier_ms for tier_ms in usable_ms if tier_ms >= ratio * window_ms and tier_ms + guard_ms < limit_ms]
    ladder_ms = thinned(above_ms, TIERS_ABOVE)
    below_ms = [tier_ms for tier_ms in usable_ms if ratio * tier_ms <= window_ms and tier_ms > 2 * guard_ms]
    for smallest_ms in (window_ms, *below_ms[-1:]):
        for number in range(MORE_TIERS + 1):
            for more_ms in combinations(ladder_ms, number):
                tiers_ms = (smallest_ms, *more_ms)
                if any(high < ratio * low for low, high in pairwise(tiers_ms)):
                    continue
                scheme = Tiered(window_ms=window_ms, tiers_ms=tiers_ms)
                if smallest_ms + guard_ms >= limit_ms or tier_hops(scheme, guard_ms, limit_ms) > MAX_FAR_HOPS:
                    continue
                if tier_hops(scheme, guard_ms, min(reach_ms, limit_ms)) <= MAX_CANDIDATE_HOPS:
                    yield scheme


def _wheels(slots_ms: list[int], limit_ms: int, guard_ms: int) -> Iterator[Wheel]:
    for rings in (1, 2, 3):
        for chosen_ms in combinations(slots_ms, rings):
            if any(high % low or high < LEAST_RING_RATIO * low for low, high in pairwise(chosen_ms)):
                continue
            covered_ms = [high + guard_ms + 2 * low for low, high in pairwise(chosen_ms)]
            covered_ms.append(limit_ms + 2 * chosen_ms[-1])
            counts = [max(-(-cover_ms // slot_ms), 4) for slot_ms, cover_ms in zip(chosen_ms, covered_ms, strict=True)]
            if max(counts) <= MAX_SLOTS and guard_ms <= chosen_ms[0]:
                yield Wheel(
                    rings=tuple(
                        Ring(slot_ms=slot_ms, slots=count) for slot_ms, count in zip(chosen_ms, counts, strict=True)
                    )
                )


def thinned(values: Sequence[T], number: int) -> list[T]:
    """Take at most ``number`` values, evenly over the list, including the first and the last."""
    if len(values) <= number:
        return list(values)
    last = len(values) - 1
    return [values[round(last * index / (number - 1))] for index in range(number)]


def _valid(frame: Plan, scheme: Scheme, *, intake: bool) -> Plan | None:
    try:
        return replace(frame, scheme=scheme, intake=intake)
    except PlanError:
        return None  # a rule of the plan forbids this scheme for this base: there is nothing to price

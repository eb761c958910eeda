"""Hindrance: why no plan keeps the gap limit, and what would help."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from timewheel.core.plan import Native, Plan
from timewheel.core.steps import far_ms, steps

__all__ = ["MOSTLY", "Hindrance", "least_limit", "never_held_ms"]

MOSTLY = 0.99
MOST_RANGES = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindrance:
    """Why the recommended plan leaves more gaps than were asked for, as every other would.

    Args:
        allowed: The most gaps of a partition that the count might have found.
        never_held_ms: Timers due within so long of their send wait in the due topic whatever is planned; 0: every
            plan leaves all of them there.
        never_held_timers: How many of the history's.
        never_held_gaps: The most that these leave on one partition by themselves, counted.
        partitions: With so many a due topic would do, counted; None: not, or it can have others anyway.
        lasts_ms: For so long at most the plan leaves more than allowed.
        mostly_gaps: And for `MOSTLY` of the time from the first send to the last due so many at most.
        gap_limit_ranges: A broker that keeps so many would do.
        gap_fraction: The recommended plan is within this part of the limit; None: the broker does not keep its gaps.
    """

    allowed: int
    never_held_ms: int
    never_held_timers: int
    never_held_gaps: int
    partitions: int | None
    lasts_ms: int
    mostly_gaps: int
    gap_limit_ranges: int
    gap_fraction: float | None


def never_held_ms(plan: Plan) -> int:
    """The longest delay below which a plan never holds a timer back from its due topic; 0: it holds none at all."""
    if isinstance(plan.scheme, Native):
        return 0
    if plan.intake:
        return far_ms(plan)
    # A slot takes what is due its headstart after its release, at the least.
    return min((step.min_remaining_ms or step.headstart_ms for step in steps(plan)[:-1]), default=0)


def least_limit(gaps: int, allowed_of: Callable[[int], int]) -> int:
    """The fewest ranges that a broker must keep for so many gaps to be allowed.

    Args:
        gaps: Counted.
        allowed_of: The most that a count may find, by the ranges that a broker keeps.
    """
    return bisect_left(range(MOST_RANGES), gaps, key=allowed_of)

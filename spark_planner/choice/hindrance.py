"""Hindrance: the cause that no plan keeps the gap limit, and the remedies."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from timewheel.core.plan import Native, Plan
from timewheel.core.steps import far_ms, steps

__all__ = ["MOSTLY", "Hindrance", "least_limit", "never_held_ms"]

MOSTLY = 0.99
MAX_RANGES = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindrance:
    """The reason that the recommended plan, like every other plan, leaves more gaps than allowed.

    Args:
        allowed: The most gaps of a partition that the count may find.
        never_held_ms: Timers due within this time of their send wait in the due topic under every plan; 0: every plan
            leaves all timers there.
        never_held_timers: Number of such timers in the history.
        never_held_gaps: The most gaps that these timers alone leave in a partition, counted.
        partitions: Partitions of the due topic that would be enough, counted; None: no tried number is enough, or the
            planner may choose the number anyway.
        lasts_ms: Longest time for which the plan leaves more gaps than allowed.
        mostly_gaps: The most gaps during `MOSTLY` of the time from the first send to the last due time.
        gap_limit_ranges: Gap limit of a broker that would be enough.
        gap_fraction: Fraction of the limit that the recommended plan uses; None: the broker does not store its gaps.
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
    """Return the longest delay below which a plan never holds a timer back from its due topic; 0: it holds no timer."""
    if isinstance(plan.scheme, Native):
        return 0
    if plan.intake:
        return far_ms(plan)
    # A slot accepts timers due at least its headstart after the slot's release.
    return min((step.min_remaining_ms or step.headstart_ms for step in steps(plan)[:-1]), default=0)


def least_limit(gaps: int, allowed_of: Callable[[int], int]) -> int:
    """Return the fewest ranges that a broker must store so that a number of gaps is allowed.

    Args:
        gaps: The counted gaps.
        allowed_of: Returns the most gaps that a count may find, for a number of ranges that a broker stores.
    """
    return bisect_left(range(MAX_RANGES), gaps, key=allowed_of)

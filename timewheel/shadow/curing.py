"""Finds the longest window with which a shadow leaves so few gaps that the broker keeps them all."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS, format_duration
from timewheel.core.escapes import timewheel_command
from timewheel.core.plan import Plan, Tiered
from timewheel.core.steps import far_ms
from timewheel.ops.gaps.standing import WATCH_SHARE

__all__ = ["Excess", "curing", "lines_of", "neighbours", "windows", "with_window"]

ROUND_MS = (
    *(minutes * MINUTE_MS for minutes in (1, 2, 5, 10, 20, 30)),
    *(hours * HOUR_MS for hours in (1, 2, 3, 6, 12)),
    *(days * DAY_MS for days in (1, 2, 5, 10, 20, 30, 60, 90)),
)
LEAST_RATIO = 3
"""Of neighbouring tiers that are added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """Gaps beyond the limit that a shadow would leave.

    Args:
        topic: Full name of the worst partition.
        subscription: The worst one there.
        gaps: It has now.
        gaps_after: It would have once all that is far from due is lifted.
        limit: The broker's.
        cure: The plan with a window that would do; None: there is none.
        shortest_ms: With so much time left an entry is lifted at the shortest window.
        stays: Pending entries of the partition that stay even then.
        pending: All pending entries of the partition that were looked at.
    """

    topic: str
    subscription: str
    gaps: int
    gaps_after: int
    limit: int
    cure: Plan | None
    shortest_ms: int
    stays: int
    pending: int

    @property
    def read(self) -> str:
        """What was counted, and why no window would do if none does."""
        found = (
            f"subscription {self.subscription} has {self.gaps:,} gaps, and {self.gaps_after:,} once the shadow has "
            f"caught up; the broker keeps {self.limit:,}"
        )
        if self.cure is not None:
            return found
        return (
            f"{found}. No window would do: of {self.pending:,} pending entries {self.stays:,} are due within "
            f"{format_duration(self.shortest_ms)}, or cannot be lifted"
        )

    def cure_in(self, target: str) -> str:
        """The command that puts the plan right, and what it writes; empty: no window would do.

        Args:
            target: How the user named the plan.
        """
        if self.cure is None or not isinstance(self.cure.scheme, Tiered):
            return ""
        window = format_duration(self.cure.scheme.window_ms)
        start = timewheel_command("shadow", "start", target, "--window", window)
        return f"{start}   # writes into the plan: {lines_of(self.cure)}"


def lines_of(plan: Plan) -> str:
    """What stands of its window and tiers in a plan's file."""
    if not isinstance(plan.scheme, Tiered):
        return ""
    window, tiers = format_duration(plan.scheme.window_ms), [format_duration(one) for one in plan.scheme.tiers_ms]
    return f'revision = {plan.revision}, [tiered] window = "{window}", tiers = {json.dumps(tiers)}'


def with_window(plan: Plan, window_ms: int) -> Plan:
    """A plan's next revision with another window, over tiers that begin with it; its longer tiers stay. The plan
    itself, if it has them already.

    Args:
        plan: Holds in relays.
        window_ms: Of a minute at least, and of the plan's guard.

    Raises:
        PlanError: The plan's rules forbid it.
    """
    own_ms = plan.scheme.tiers_ms if isinstance(plan.scheme, Tiered) else ()
    tiers_ms = [window_ms]
    for tier_ms in sorted({*own_ms, *ROUND_MS}):
        ratio = 2 if tier_ms in own_ms else LEAST_RATIO
        if ratio * tiers_ms[-1] <= tier_ms < plan.max_delay_ms - plan.guard_ms:
            tiers_ms.append(tier_ms)
    scheme = Tiered(window_ms=window_ms, tiers_ms=tuple(tiers_ms))
    if scheme == plan.scheme:
        return plan
    return replace(plan, scheme=scheme, revision=plan.revision + 1)


def windows(plan: Plan) -> list[Plan]:
    """The plan with each window that lifts more than its own, the longest first."""
    made = [with_window(plan, window_ms) for window_ms in reversed(ROUND_MS) if plan.guard_ms <= window_ms]
    return [one for one in made if far_ms(one) < far_ms(plan)]


def neighbours(plan: Plan) -> list[Plan]:
    """The plan with the next shorter window and with the next longer one, as far as there are such."""
    own_ms, most_ms = far_ms(plan), plan.max_delay_ms - plan.guard_ms
    made = [with_window(plan, window_ms) for window_ms in ROUND_MS if plan.guard_ms <= window_ms < most_ms]
    shorter = [one for one in made if far_ms(one) < own_ms]
    longer = [one for one in made if far_ms(one) > own_ms]
    return [*shorter[-1:], *longer[:1]]


def curing(plan: Plan, limit: int, most_after: Callable[[int], int]) -> Plan | None:
    """The plan with the longest window that leaves room below the limit, or else is below it at all.

    Args:
        plan: Holds in relays.
        limit: The broker's.
        most_after: Gaps of the worst subscription once all with so much time left is lifted.
    """
    narrower = [(one, most_after(far_ms(one))) for one in windows(plan)]
    for most in (WATCH_SHARE * limit, limit):
        for one, after in narrower:
            if after <= most:
                return one
    return None

"""Chooses a shadow's window: the longest with which it leaves so few gaps that the broker keeps them all."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from timewheel.core.durations import (
    DAY_MS,
    HOUR_MS,
    MAX_DURATION_MS,
    MINUTE_MS,
    ROUND_MS,
    format_duration,
    round_duration,
)
from timewheel.core.escapes import timewheel_command
from timewheel.core.plan import Native, Plan, Tiered
from timewheel.core.steps import far_ms
from timewheel.ops.gaps.standing import WATCH_SHARE

__all__ = ["Excess", "curing", "first_plan", "fitted", "lines_of", "neighbours", "windows", "with_window"]

WINDOWS_MS = tuple(one for one in ROUND_MS if MINUTE_MS <= one <= 90 * DAY_MS)
FIRST_WINDOW_MS = 12 * HOUR_MS
"""The longest window of a plan that is made for a topic: so long its shadow may be away before a timer comes twice."""
LEAST_RATIO = 3
"""Of neighbouring tiers that are added."""
SHARES = (0.5, WATCH_SHARE, 1.0)
"""Of the broker's limit: the longest window within the first of these that any is within. Half leaves room to grow."""


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
    scheme = _tiered(window_ms, plan)
    return plan if scheme == plan.scheme else replace(plan, scheme=scheme, revision=plan.revision + 1)


def _tiered(window_ms: int, plan: Plan) -> Tiered:
    own_ms = plan.scheme.tiers_ms if isinstance(plan.scheme, Tiered) else ()
    tiers_ms = [window_ms]
    for tier_ms in sorted({*own_ms, *WINDOWS_MS}):
        ratio = 2 if tier_ms in own_ms else LEAST_RATIO
        if ratio * tiers_ms[-1] <= tier_ms < plan.max_delay_ms - plan.guard_ms:
            tiers_ms.append(tier_ms)
    return Tiered(window_ms=window_ms, tiers_ms=tuple(tiers_ms))


def windows(plan: Plan) -> list[Plan]:
    """The plan with each window that lifts more than its own, the longest first; its revision stays."""
    return [one for one in reversed(_with_each_window(plan)) if far_ms(one) < far_ms(plan)]


def neighbours(plan: Plan) -> list[Plan]:
    """The plan with the next shorter window and with the next longer one, as far as there are such."""
    longer = [one for one in _with_each_window(plan) if far_ms(one) > far_ms(plan)]
    return [*windows(plan)[:1], *longer[:1]]


def _with_each_window(plan: Plan) -> list[Plan]:
    most_ms = plan.max_delay_ms - plan.guard_ms
    windows_ms = [window_ms for window_ms in WINDOWS_MS if plan.guard_ms <= window_ms < most_ms]
    return [replace(plan, scheme=_tiered(window_ms, plan)) for window_ms in windows_ms]


def curing(plan: Plan, limit: int, most_after: Callable[[int], int]) -> Plan | None:
    """The plan itself, or with the longest shorter window, that leaves room below the limit, or is below it at all.

    Args:
        plan: Holds in relays.
        limit: The broker's.
        most_after: Gaps of the worst subscription once all with so much time left is lifted.
    """
    every = [(one, most_after(far_ms(one))) for one in (plan, *windows(plan))]
    for share in SHARES:
        for one, after in every:
            if after <= share * limit:
                return one if one is plan else replace(one, revision=plan.revision + 1)
    return None


def first_plan(topic: str, subscriptions: Sequence[str], partitions: int, tick_ms: int) -> Plan:
    """A shadow for a topic that has no plan, before its delays are known: it takes any of them.

    Args:
        topic: Full name.
        subscriptions: All that it has.
        partitions: That it has; 0: it is not partitioned.
        tick_ms: Of the broker.
    """
    return Plan(
        due_topic=topic,
        subscriptions=tuple(subscriptions),
        partitions=partitions,
        tick_ms=tick_ms,
        max_delay_ms=MAX_DURATION_MS,
        scheme=Tiered(window_ms=FIRST_WINDOW_MS, tiers_ms=(FIRST_WINDOW_MS,)),
        relay="service",
        readers="any",
        intake=True,
    )


def fitted(plan: Plan, window_ms: int, longest_ms: int) -> Plan:
    """A first plan with the window that was chosen for it, and for the delays that its topic has.

    Args:
        plan: Of `first_plan`.
        window_ms: Of a minute at least, and of the plan's guard.
        longest_ms: Of the delays.
    """
    reach_ms = round_duration(max(longest_ms, 2 * (window_ms + plan.guard_ms)))
    bare = replace(plan, max_delay_ms=reach_ms, scheme=Native(), intake=False)
    return replace(bare, scheme=_tiered(window_ms, bare), intake=plan.intake)

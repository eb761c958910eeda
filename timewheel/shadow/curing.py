"""Chooses a shadow's window: the longest that leaves so few gaps that the broker keeps them all."""

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
from timewheel.core.gap_law import WATCH_SHARE
from timewheel.core.plan import Native, Plan, Scheme, Tiered
from timewheel.core.steps import far_ms

WINDOWS_MS = tuple(one for one in ROUND_MS if MINUTE_MS <= one <= 90 * DAY_MS)
FIRST_WINDOW_MS = 12 * HOUR_MS
"""The longest window of a plan that is made for a topic: its shadow may be down this long before a timer comes
twice."""
LEAST_RATIO = 3  # least ratio of neighbouring tiers that are added
SHARES = (0.5, WATCH_SHARE, 1.0)
"""Parts of the broker's limit, tried in order: the longest window that leaves gaps within the part is chosen. Half
leaves room to grow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """Gaps beyond the limit that a shadow would leave."""

    topic: str  # full name of the worst partition
    subscription: str  # the worst subscription there
    gaps: int  # its gaps now
    gaps_after: int  # its gaps once all timers far from due are moved
    limit: int  # the broker's limit
    cure: Plan | None  # the plan with a window that would be short enough; None: there is none
    shortest_ms: int  # remaining time from which an entry is moved with the shortest window
    stays: int  # pending entries of the partition that stay even then
    pending: int  # all pending entries of the partition that were read

    @property
    def read(self) -> str:
        """The counts, and why no window would be short enough if none is."""
        found = (
            f"subscription {self.subscription} has {self.gaps:,} gaps, and {self.gaps_after:,} once the shadow has "
            f"caught up; the broker keeps {self.limit:,}"
        )
        if self.cure is not None:
            return found
        return (
            f"{found}. No window would do: of {self.pending:,} pending entries {self.stays:,} are due within "
            f"{format_duration(self.shortest_ms)}, or cannot be moved"
        )

    def cure_in(self, target: str, reached_by: Sequence[str] = ()) -> str:
        """Return the command that corrects the plan, with the lines that it writes; empty: no window would be short
        enough. ``target`` is the plan's name as the user typed it, ``reached_by`` the options that reach the cluster.
        """
        if self.cure is None or not isinstance(self.cure.scheme, Tiered):
            return ""
        window = format_duration(self.cure.scheme.window_ms)
        start = timewheel_command("shadow", "start", target, "--window", window, *reached_by)
        return f"{start}   # writes into the plan: {lines_of(self.cure)}"


def lines_of(plan: Plan) -> str:
    """Format a plan's window and tiers as lines of its file."""
    if not isinstance(plan.scheme, Tiered):
        return ""
    window, tiers = format_duration(plan.scheme.window_ms), [format_duration(one) for one in plan.scheme.tiers_ms]
    return f'revision = {plan.revision}, [tiered] window = "{window}", tiers = {json.dumps(tiers)}'


def with_window(plan: Plan, window_ms: int) -> Plan:
    """Return a plan's next revision with another window, over tiers that begin with it; its longer tiers stay. If the
    plan has the same window and tiers already, return the plan itself. The plan holds in relays, and the window is at
    least a minute and its guard.

    Raises:
        PlanError: The plan's rules forbid it.
    """
    scheme = _tiered(window_ms, plan)
    return plan if scheme == plan.scheme else _next_revision(plan, scheme)


def _next_revision(plan: Plan, scheme: Scheme) -> Plan:
    return replace(plan, scheme=scheme, revision=plan.revision + 1)


def _tiered(window_ms: int, plan: Plan) -> Tiered:
    own_ms = plan.scheme.tiers_ms if isinstance(plan.scheme, Tiered) else ()
    tiers_ms = [window_ms]
    for tier_ms in sorted({*own_ms, *WINDOWS_MS}):
        ratio = 2 if tier_ms in own_ms else LEAST_RATIO
        if ratio * tiers_ms[-1] <= tier_ms < plan.max_delay_ms - plan.guard_ms:
            tiers_ms.append(tier_ms)
    return Tiered(window_ms=window_ms, tiers_ms=tuple(tiers_ms))


def windows(plan: Plan) -> list[Plan]:
    """Return the plan with each window that moves more than its own, the longest first; its revision stays."""
    return [one for one in reversed(_with_each_window(plan)) if far_ms(one) < far_ms(plan)]


def neighbours(plan: Plan) -> list[Plan]:
    """Return the plan with the next shorter window and with the next longer window, if they exist."""
    longer = [one for one in _with_each_window(plan) if far_ms(one) > far_ms(plan)]
    return [*windows(plan)[:1], *longer[:1]]


def _with_each_window(plan: Plan) -> list[Plan]:
    max_ms = plan.max_delay_ms - plan.guard_ms
    windows_ms = [window_ms for window_ms in WINDOWS_MS if plan.guard_ms <= window_ms < max_ms]
    return [replace(plan, scheme=_tiered(window_ms, plan)) for window_ms in windows_ms]


def curing(plan: Plan, limit: int, max_after: Callable[[int], int]) -> Plan | None:
    """Return the plan, or the plan with the longest shorter window, that leaves room below the limit or is below it at
    all. ``max_after`` returns the gaps of the worst subscription once all entries with at least this remaining time
    are moved.
    """
    every = [(one, max_after(far_ms(one))) for one in (plan, *windows(plan))]
    for share in SHARES:
        for one, after in every:
            if after <= share * limit:
                return one if one is plan else _next_revision(plan, one.scheme)
    return None


def first_plan(topic: str, subscriptions: Sequence[str], partitions: int, tick_ms: int) -> Plan:
    """Build a shadow's plan for a topic without a plan, before its delays are known: it accepts any of them.

    The plan needs all subscriptions of the topic, its partitions (0: it is not partitioned) and the broker's tick.
    """
    return Plan(
        due_topic=topic, subscriptions=tuple(subscriptions), partitions=partitions, tick_ms=tick_ms,
        max_delay_ms=MAX_DURATION_MS, scheme=Tiered(window_ms=FIRST_WINDOW_MS, tiers_ms=(FIRST_WINDOW_MS,)),
        relay="service", readers="any", intake=True,
    )  # fmt: skip


def fitted(plan: Plan, window_ms: int, longest_ms: int) -> Plan:
    """Return a plan of `first_plan` with the chosen window, at least a minute and the guard, for its topic's delays."""
    reach_ms = round_duration(max(longest_ms, 2 * (window_ms + plan.guard_ms)))
    bare = replace(plan, max_delay_ms=reach_ms, scheme=Native(), intake=False)
    return replace(bare, scheme=_tiered(window_ms, bare), intake=plan.intake)

"""Makes a shadow's plan for a topic without a plan, with the longest window that leaves few gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from timewheel.broker.admin.client import AdminClient
    from timewheel.core.plan import Plan
    from timewheel.shadow.survey import Survey

__all__ = ["bare_plan", "plan_of_topic"]


def bare_plan(admin: AdminClient, topic: str) -> Plan:
    """Make a plan with the topic's own subscriptions and partitions, by which its waiting entries are read.

    Args:
        admin: Admin client of any broker.
        topic: Full name of a persistent topic, partitioned or not.

    Raises:
        BadParameter: The topic already has a shadow.
        NothingToSample: The topic does not exist, or has no subscription.
        AdminError: The role may not read the topic's stats.
    """
    from timewheel.core.escapes import visible
    from timewheel.core.names import parts_of
    from timewheel.inspect.errors import NothingToSample
    from timewheel.inspect.missing_topics import no_such_topic
    from timewheel.inspect.profile import profile_of
    from timewheel.inspect.shadowed import shadow_of
    from timewheel.shadow.curing import first_plan
    from timewheel.shadow.facts import is_users

    partitions = admin.topics.partitions(topic)
    if partitions is None:
        raise NothingToSample(topic, no_such_topic(admin, topic))
    if (state := shadow_of(admin, topic)) is not None:
        there = f"it has a shadow already ({state}): name the plan file that it was started with"
        raise typer.BadParameter(f"{visible(topic)}: {there}", param_hint="PLAN")
    every = [admin.topics.stats(part).subscriptions for part in parts_of(topic, partitions)]
    names = {name for found in every for name, one in found.items() if one.is_durable and is_users(name)}
    if not names:
        raise NothingToSample(topic, "it has no subscription, so nothing waits there and there are no gaps")
    return first_plan(topic, sorted(names), partitions, profile_of(admin).tick_ms)


def plan_of_topic(found: Survey, window_ms: int | None) -> Plan:
    """Make the plan of a topic for its delays.

    Args:
        found: The topic, surveyed by its `bare_plan`.
        window_ms: The plan's window; None: the longest, up to half a day, that leaves few gaps; the shortest if none
            does.

    Raises:
        NothingToSample: No message with a delay waits in the topic.
        PlanError: No plan can have this window.
    """
    from timewheel.core.plan import Tiered
    from timewheel.inspect.errors import NothingToSample
    from timewheel.shadow.curing import fitted, windows

    plan = found.plan
    if found.delays is None:
        raise NothingToSample(
            plan.due_topic,
            "no message with a delay waits there now, so there is nothing to choose a window by: look again while some "
            "wait, or choose by a history of sends: timewheel plan HISTORY --shadow --out PLAN",
        )
    if window_ms is None:
        scheme = (found.fitting or windows(plan)[-1]).scheme
        assert isinstance(scheme, Tiered), "a shadow's first plan and its windows are tiers"
        window_ms = scheme.window_ms
    return fitted(plan, window_ms, found.delays.longest_ms)
